//! A node with its log on a real disk: what it acknowledged is there when it starts again.
#![allow(clippy::disallowed_methods, reason = "a directory for the log is made and removed")]

use fencepost_core::{
    Acquire, Action, Epoch, Lock, LockMode, Locks, Metadata, Name, Open, Operation, Outcome, Principal, Request,
    RequestNumber, SecretHash, Seen, SessionId, Terms, Token, TokenCheck, Ttl, Wait,
};
use fencepost_replica::store::{Identity, LogStore, Start};
use fencepost_replica::{GroupId, Log, Nanos, Output, Replica, Settings};

const IDENTITY: Identity = Identity { cluster: 0xC, node: 1 };

struct Node {
    replica: Replica,
    store: LogStore,
    now: Nanos,
}

impl Node {
    fn start(directory: &std::path::Path, start: Start<'_>) -> Node {
        let (store, log) = LogStore::open(directory, IDENTITY, 1, start).expect("the log is sound");
        let group = GroupId { cluster: IDENTITY.cluster, group: 1 };
        let settings = Settings { snapshot_every_entries: 1_000_000, ..Settings::new(1, group, 1) };
        let replica = Replica::new(settings, log, None, Nanos(0)).expect("the log is sound");
        Node { replica, store, now: Nanos(0) }
    }

    /// Turns until the operation is answered.
    fn ask(&mut self, operation: &Operation) -> Outcome {
        let mut ticket = None;
        for _ in 0..10_000 {
            self.now = self.now.after_ms(10);
            if ticket.is_none() && self.replica.serves() {
                ticket = Some(self.replica.submit(operation.clone()).expect("the only node leads"));
            }
            for output in self.replica.turn(self.now).expect("the node goes on") {
                match output {
                    Output::Write(write) => {
                        self.store.write(1, &write).expect("the disk is sound");
                        self.replica.handle_persisted(write.number);
                    }
                    Output::Reply { ticket: answered, reply, .. } if Some(answered) == ticket => return reply.outcome,
                    _ => {}
                }
            }
        }
        panic!("not answered: {operation:?}");
    }
}

fn open() -> Operation {
    Operation::Open(Open {
        session: SessionId(7),
        secret_hash: SecretHash([1; 32]),
        principal: Principal::new("tests").unwrap(),
        ttl: Ttl::new(600_000).unwrap(),
        metadata: Metadata::default(),
    })
}

fn lock(number: u64) -> Operation {
    let lock = Lock { name: Name::new(&format!("r{number}")).unwrap(), mode: LockMode::Exclusive };
    Operation::Request(Request {
        session: SessionId(7),
        epoch: Epoch(1),
        number: RequestNumber(number),
        seen: Seen::default(),
        action: Action::Acquire(Acquire {
            locks: Locks::from_buf([lock]),
            owner: None,
            wait: Wait::No,
            terms: Terms::default(),
        }),
    })
}

#[test]
fn what_was_acknowledged_is_there_when_the_node_starts_again() {
    let directory = std::env::temp_dir().join(format!("fencepost-on-disk-{}", std::process::id()));
    let mut node = Node::start(&directory, Start::New(&Log::new(&[1])));
    assert!(matches!(node.ask(&open()), Outcome::Opened { .. }));
    for number in 1..=20 {
        assert!(matches!(node.ask(&lock(number)), Outcome::Granted { token: Token(given), .. } if given == number));
        if number % 5 == 0 {
            // The process ends without a word, and starts again.
            drop(node);
            node = Node::start(&directory, Start::Again);
        }
    }
    // A repeat gets what was said before the restart, and the lock still stands.
    assert!(matches!(node.ask(&lock(3)), Outcome::Granted { token: Token(3), .. }));
    let found = node.replica.state().check(&Name::new("r3").unwrap(), Token(3));
    assert!(matches!(found, TokenCheck::Stands { .. }), "{found:?}");
    node.replica.state().verify().unwrap();
    drop(node);
    std::fs::remove_dir_all(&directory).unwrap();
}
