//! A node with its disk, as a server runs it: after a restart it has everything that it acknowledged, from its log or its snapshot.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "files are made, damaged and removed, and threads waited for"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fencepost_core::{
    Acquire, Action, Epoch, Lock, LockMode, Locks, Metadata, Name, Nanos, Open, Operation, Outcome, Principal, Request,
    RequestNumber, SecretHash, Seen, SessionId, Terms, Token, TokenCheck, Ttl, Wait,
};
use fencepost_replica::store::{Start, read_identity};
use fencepost_replica::{GroupId, Log, Node, Output, Settings, Stop, StorageLocation};

const GROUP: GroupId = GroupId { cluster: 0xC, group: 1 };

/// A directory that is deleted when the test ends.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("fencepost-node-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Directory(path)
    }

    fn start(&self, start: Start<'_>) -> Result<Turned, Stop> {
        Turned::start(StorageLocation::Directory { path: &self.0, start })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A node that is turned when it is woken. Its clock moves only when nothing else happens.
struct Turned {
    node: Node,
    woken: Receiver<()>,
    now: Nanos,
}

impl Turned {
    fn start(location: StorageLocation<'_>) -> Result<Turned, Stop> {
        let (wake, woken) = channel();
        let wake = Arc::new(move || wake.send(()).unwrap_or_default());
        let settings = Settings { snapshot_every_entries: 40, entries_kept: 5, ..Settings::new(1, GROUP, 1) };
        Ok(Turned { node: Node::start(settings, location, wake, Nanos(0))?, woken, now: Nanos(0) })
    }

    fn turn(&mut self) -> Vec<Output> {
        if self.woken.recv_timeout(Duration::from_millis(1)).is_err() {
            self.now = self.now.after_ms(10);
        }
        self.node.turn(self.now).expect("the node continues")
    }

    fn turn_until(&mut self, what: &str, holds: impl Fn(&Node) -> bool) {
        for _ in 0..60_000 {
            if holds(&self.node) {
                return;
            }
            self.turn();
        }
        panic!("not in time: {what}");
    }

    fn ask(&mut self, operation: Operation) -> Outcome {
        self.turn_until("it serves", |node| node.replica().serves());
        let ticket = self.node.replica_mut().submit(operation).expect("the only node leads");
        for _ in 0..60_000 {
            for output in self.turn() {
                if let Output::Reply { ticket: answered, reply, .. } = output
                    && answered == ticket
                {
                    return reply.outcome;
                }
            }
        }
        panic!("not answered");
    }

    fn lock(&mut self, number: u64) -> Token {
        match self.ask(lock(number)) {
            Outcome::Granted { token, .. } => token,
            other => panic!("not granted: {other:?}"),
        }
    }
}

fn open() -> Operation {
    Operation::Open(Open {
        session: SessionId(7),
        secret_hash: SecretHash([1; 32]),
        principal: Principal::new("tests").unwrap(),
        ttl: Ttl::new(600_000_000).unwrap(),
        metadata: Metadata::default(),
    })
}

fn name(number: u64) -> Name {
    Name::new(&format!("lock-{number}")).unwrap()
}

fn lock(number: u64) -> Operation {
    let locks = Locks::from_buf([Lock { name: name(number), mode: LockMode::Exclusive }]);
    Operation::Request(Request {
        session: SessionId(7),
        epoch: Epoch(1),
        number: RequestNumber(number),
        seen: Seen { mark: number - 1, ..Seen::default() },
        action: Action::Acquire(Acquire { locks, owner: None, wait: Wait::No, terms: Terms::default() }),
    })
}

fn snapshot_files(directory: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory.join("snapshots")).expect("a directory of snapshots");
    files.map(|file| file.expect("a file").path()).collect()
}

#[test]
fn what_was_acknowledged_is_there_when_a_node_starts_again() {
    let directory = Directory::new("again");
    assert_eq!(read_identity(&directory.0).expect("it may be missing"), None);
    let mut node = directory.start(Start::New(&Log::new(&[1]))).expect("an empty directory");
    node.ask(open());
    let tokens: Vec<Token> = (1..=10).map(|number| node.lock(number)).collect();
    drop(node);
    let identity = read_identity(&directory.0).expect("it can be read").expect("it exists");
    assert_eq!((identity.cluster, identity.node), (GROUP.cluster, 1));

    let mut node = directory.start(Start::Again).expect("a sound log");
    node.turn_until("it has applied its log", |node| node.replica().serves());
    for (number, token) in (1..).zip(&tokens) {
        let found = node.node.replica().state().check(&name(number), *token);
        assert!(matches!(found, TokenCheck::Stands { .. }), "lock {number}: {found:?}");
    }
    // A repeat gets the answer from before the restart, and new locks get higher tokens.
    assert_eq!(node.lock(10), tokens[9]);
    assert!(node.lock(11) > tokens[9]);
    node.node.replica().state().verify().expect("a sound state");
}

#[test]
fn a_node_starts_again_from_its_snapshot_and_the_entries_after_it() {
    let directory = Directory::new("snapshot");
    let mut node = directory.start(Start::New(&Log::new(&[1]))).expect("an empty directory");
    node.ask(open());
    for number in 1..=300 {
        node.lock(number);
    }
    node.turn_until("a snapshot is made", |node| node.replica().newest_snapshot().is_some_and(|it| it.index > 200));
    let newest = node.node.replica().newest_snapshot();
    assert_eq!(node.node.replica().entries_from(100).count(), 0, "the log no longer holds entries of the snapshot");
    drop(node);
    assert_eq!(snapshot_files(&directory.0).len(), 1, "older ones are deleted");

    let mut node = directory.start(Start::Again).expect("a sound log and snapshot");
    assert!(node.node.replica().applied() >= newest.unwrap(), "it starts from the snapshot");
    node.turn_until("it has applied its log", |node| node.replica().serves());
    assert_eq!(node.node.replica().state().counts().grants, 300);
    assert!(node.lock(301) > Token(300));
    let bytes = node.node.snapshots().read(newest.unwrap()).expect("peers can get it");
    assert!(!bytes.is_empty());
}

#[test]
fn a_log_without_the_snapshot_that_it_follows_is_refused_with_what_to_do() {
    let directory = Directory::new("missing");
    let mut node = directory.start(Start::New(&Log::new(&[1]))).expect("an empty directory");
    node.ask(open());
    for number in 1..=200 {
        node.lock(number);
    }
    node.turn_until("a snapshot is made", |node| node.replica().newest_snapshot().is_some());
    drop(node);
    for file in snapshot_files(&directory.0) {
        std::fs::remove_file(file).expect("it can be removed");
    }
    let Err(stop) = directory.start(Start::Again) else { panic!("it started without its snapshot") };
    assert!(stop.to_string().contains("snapshot"), "{stop}");
}

#[test]
fn a_node_in_memory_serves_and_makes_its_snapshots() {
    let mut node = Turned::start(StorageLocation::Memory(Box::new(Log::new(&[1])))).expect("nothing can be wrong");
    node.ask(open());
    for number in 1..=100 {
        node.lock(number);
    }
    node.turn_until("a snapshot is made", |node| node.replica().newest_snapshot().is_some());
    let newest = node.node.replica().newest_snapshot().unwrap();
    assert!(node.node.snapshots().read(newest).is_ok());
}
