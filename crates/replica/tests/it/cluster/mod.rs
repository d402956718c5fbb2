//! A whole group in one process, driven step by step: no sockets, no threads, no real time.
//!
//! Every node has its own disk and its own connections, and each can be stalled, crashed, cut off or slowed. One seed decides
//! everything, so a failing test can be replayed.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fencepost_core::{
    Acquire, Action, Epoch, KnownVersions, Lock, LockMode, Locks, LogPosition, LogicalMs, Metadata, Name, Nanos, Open,
    Operation, Outcome, Principal, Push, Reason, Renewal, Reply, Request, RequestNumber, SecretHash, Seen, SessionId,
    Terms, Ticket, Ttl, Wait,
};
use fencepost_replica::{
    GroupId, Log, LogWrite, MemberChange, Message, NotTaken, Output, PeerMessage, Replica, Settings, Stop, decode_peer,
    encode_peer, make_snapshot, read_snapshot,
};
use fencepost_wire::{Cause, Member};

/// Milliseconds that one step takes.
pub(crate) const STEP_MS: u64 = 5;

/// A node's disk: what is durable, and what a crash loses.
struct Disk {
    durable: Log,
    snapshot: Option<Arc<[u8]>>,
    unsynced: VecDeque<LogWrite>,
    /// The requested snapshot: its last entry, and the voters that the group began with. The node's first snapshot uses them.
    order: Option<(LogPosition, Vec<u64>)>,
    /// Syncs so far, for the tests that count them.
    syncs: u64,
}

pub(crate) struct Node {
    /// The versions that its release knows.
    known: KnownVersions,
    /// `None` while the node is down.
    pub replica: Option<Replica>,
    disk: Disk,
    /// While set, the process neither turns nor reads its messages. They wait.
    pub stalled: bool,
    /// While set, the disk syncs nothing.
    pub disk_stalled: bool,
    /// While set, no snapshot is made.
    pub snapshots_stalled: bool,
    /// How many of the next snapshots fail because the disk is full.
    pub snapshots_put_off: u64,
    /// While set, this node sends no snapshots to peers. When it is reset, the pending ones count as failed.
    pub sending_stalled: bool,
    sending: BTreeSet<u64>,
    pub replies: BTreeMap<Ticket, Answered>,
    pub abandoned: BTreeSet<Ticket>,
    pub reads: BTreeMap<Ticket, LogPosition>,
    pub changed: BTreeSet<Ticket>,
    /// The most memory that its log ever took.
    pub log_bytes_most: u64,
    pub pushes: Vec<Push>,
    /// The peers that it reported as lost (true) or found (false), in order.
    pub peers: Vec<(u64, bool)>,
    /// The causes of the member changes and leadership transfers that it applied, in order.
    pub causes: Vec<Cause>,
}

#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub position: LogPosition,
    pub stamp: LogicalMs,
    pub reply: Reply,
}

/// A message in flight, with the bytes of a snapshot if it announces one.
#[derive(Clone)]
struct Parcel {
    arrives: Nanos,
    /// The versions in the sender's hello on this connection.
    known: KnownVersions,
    message: Message,
    snapshot: Option<Arc<[u8]>>,
}

pub(crate) const GROUP: GroupId = GroupId { cluster: 0xC, group: 1 };

/// Small, so that tests see snapshots.
pub(crate) const SNAPSHOT_EVERY_ENTRIES: u64 = 40;

/// The settings of all nodes, without their ids.
fn settings(group: GroupId) -> Settings {
    let settings = Settings::new(0, group, 0);
    // With the default, tests with few operations would never have several entries in flight.
    Settings { snapshot_every_entries: SNAPSHOT_EVERY_ENTRIES, entries_kept: 5, further_entry_min: 1, ..settings }
}

pub(crate) struct Cluster {
    pub nodes: BTreeMap<u64, Node>,
    pub settings: Settings,
    pub now: Nanos,
    network: Vec<Parcel>,
    /// Pairs (from, to) whose messages are lost.
    pub cut: BTreeSet<(u64, u64)>,
    /// How many of a hundred messages are lost. As many of the others arrive twice.
    pub loss_percent: u64,
    pub delay_ms_max: u64,
    random: u64,
    /// The number of delivered messages.
    pub delivered: u64,
    /// The number of snapshots that the nodes made.
    pub snapshots_made: u64,
    /// The node whose build has this fault.
    #[cfg(feature = "planted-bugs")]
    pub faulty: Option<(u64, fencepost_core::Bug)>,
    /// While set, every new snapshot reports a wrong state hash.
    pub forge_snapshots: bool,
}

impl Cluster {
    pub(crate) fn new(voters: &[u64], seed: u64) -> Cluster {
        let mut cluster = Cluster {
            nodes: BTreeMap::new(),
            settings: settings(GROUP),
            now: Nanos(1_000_000_000),
            network: Vec::new(),
            cut: BTreeSet::new(),
            loss_percent: 0,
            delay_ms_max: 1,
            random: seed,
            delivered: 0,
            snapshots_made: 0,
            #[cfg(feature = "planted-bugs")]
            faulty: None,
            forge_snapshots: false,
        };
        for id in voters {
            cluster.add_node(*id, Log::new(voters), None);
        }
        cluster
    }

    /// Starts a node with this log and snapshot on its disk.
    pub(crate) fn add_node(&mut self, id: u64, log: Log, snapshot: Option<Arc<[u8]>>) {
        let settings = Settings { id, seed: self.random ^ id, ..self.settings };
        let replica =
            Replica::new(settings, log.clone(), snapshot.as_deref(), self.now).expect("the log and snapshot are sound");
        let disk = Disk { durable: log, snapshot, unsynced: VecDeque::new(), order: None, syncs: 0 };
        self.nodes.insert(
            id,
            Node {
                known: settings.known,
                replica: Some(replica),
                disk,
                stalled: false,
                disk_stalled: false,
                snapshots_stalled: false,
                snapshots_put_off: 0,
                sending_stalled: false,
                sending: BTreeSet::new(),
                replies: BTreeMap::new(),
                abandoned: BTreeSet::new(),
                reads: BTreeMap::new(),
                changed: BTreeSet::new(),
                log_bytes_most: 0,
                pushes: Vec::new(),
                peers: Vec::new(),
                causes: Vec::new(),
            },
        );
    }

    /// Starts a new node that knows nothing but its id.
    pub(crate) fn join(&mut self, id: u64) {
        self.add_node(id, Log::joining(), None);
    }

    /// Changes the members at the leader and lets time pass until the change is complete.
    pub(crate) fn change(&mut self, changes: &[MemberChange]) {
        let leader = self.run_until("the change is taken", |cluster| {
            let leader = cluster.leader()?;
            cluster.replica(leader).change_members(changes, &cause()).ok().map(|ticket| (leader, ticket))
        });
        self.run_until("the change is complete", |cluster| {
            cluster.node(leader.0).changed.contains(&leader.1).then_some(())
        });
    }

    /// Ends the process. What was not synced is lost, and so is every message in flight to the node.
    pub(crate) fn crash(&mut self, id: u64) {
        let node = self.nodes.get_mut(&id).expect("a node that exists");
        node.replica = None;
        node.disk.unsynced.clear();
        node.disk.order = None;
        self.network.retain(|parcel| parcel.message.to != id);
    }

    /// Starts the process again from its disk, with the same release.
    pub(crate) fn restart(&mut self, id: u64) {
        let settings = Settings { known: self.nodes[&id].known, ..self.settings };
        let others = std::mem::replace(&mut self.settings, settings);
        self.restart_as_others(id);
        self.settings = others;
    }

    /// Ends the process and starts it again with another release.
    pub(crate) fn exchange(&mut self, id: u64, known: KnownVersions) {
        self.crash(id);
        self.node(id).known = known;
        self.restart(id);
    }

    /// Why a release that knows these versions does not start from the node's disk.
    pub(crate) fn refusal_to_start(&mut self, id: u64, known: KnownVersions) -> Stop {
        let disk = &self.nodes[&id].disk;
        let settings = Settings { id, known, ..self.settings };
        let started = Replica::new(settings, disk.durable.clone(), disk.snapshot.as_deref(), self.now);
        started.err().expect("it cannot read the disk")
    }

    fn restart_as_others(&mut self, id: u64) {
        let disk = &self.nodes[&id].disk;
        let (log, snapshot) = (disk.durable.clone(), disk.snapshot.clone());
        let snapshots_stalled = self.nodes[&id].snapshots_stalled;
        self.add_node(id, log, snapshot);
        self.node(id).snapshots_stalled = snapshots_stalled;
    }

    pub(crate) fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node that exists")
    }

    pub(crate) fn replica(&mut self, id: u64) -> &mut Replica {
        self.node(id).replica.as_mut().expect("a node that is up")
    }

    /// Cuts a node off in both directions.
    pub(crate) fn isolate(&mut self, id: u64) {
        for other in self.nodes.keys().copied().filter(|other| *other != id).collect::<Vec<_>>() {
            self.cut.extend([(id, other), (other, id)]);
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// The node that leads and serves. If several believe so, the one with the highest term.
    pub(crate) fn leader(&self) -> Option<u64> {
        let serving = self.nodes.iter().filter_map(|(id, node)| Some((*id, node.replica.as_ref()?)));
        serving.filter(|(_, replica)| replica.serves()).max_by_key(|(_, replica)| replica.term()).map(|(id, _)| id)
    }

    /// Lets time pass.
    pub(crate) fn run_ms(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(STEP_MS) {
            self.step();
        }
    }

    /// Lets time pass until `holds` returns a value. Panics after a simulated minute.
    pub(crate) fn run_until<Found>(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut Cluster) -> Option<Found>,
    ) -> Found {
        for _ in 0..60_000 / STEP_MS {
            if let Some(found) = holds(self) {
                return found;
            }
            self.step();
        }
        panic!("not within a minute: {what}");
    }

    pub(crate) fn run_until_leader(&mut self) -> u64 {
        self.run_until("a node leads", |cluster| cluster.leader())
    }

    fn step(&mut self) {
        self.now = self.now.after_ms(STEP_MS);
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            #[cfg(feature = "planted-bugs")]
            fencepost_core::plant(self.faulty.filter(|(node, _)| *node == id).map(|(_, bug)| bug));
            self.step_node(id);
        }
    }

    fn step_node(&mut self, id: u64) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("a node that exists");
        if node.stalled {
            return;
        }
        let Some(replica) = &mut node.replica else { return };
        if !node.disk_stalled && !node.disk.unsynced.is_empty() {
            node.disk.syncs += 1;
            for write in node.disk.unsynced.drain(..) {
                node.disk.durable.persist(&write);
                if let Some((_, bytes)) = &write.snapshot {
                    node.disk.snapshot = Some(bytes.clone());
                    node.disk.order = None;
                }
                replica.handle_persisted(write.number);
            }
        }
        if !node.snapshots_stalled
            && let Some((through, first_voters)) = node.disk.order.take()
        {
            if node.snapshots_put_off > 0 {
                node.snapshots_put_off -= 1;
                replica.handle_snapshot_put_off(through);
            } else {
                let state_hash = node.disk.make_snapshot(self.settings.group, node.known, through, &first_voters);
                self.snapshots_made += 1;
                let state_hash = state_hash ^ u64::from(self.forge_snapshots);
                replica.handle_snapshot_made(through, state_hash).expect("the same state twice");
            }
        }
        if !node.sending_stalled {
            std::mem::take(&mut node.sending).into_iter().for_each(|peer| replica.handle_snapshot_sent(peer, false));
        }
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.network)
            .into_iter()
            .partition(|parcel| parcel.message.to == id && parcel.arrives <= now);
        self.network = later;
        for Parcel { message, snapshot, known, .. } in due {
            self.delivered += 1;
            replica.handle_hello(message.from, known);
            match snapshot {
                Some(bytes) => replica.handle_snapshot(message, bytes).expect("consensus continues"),
                None => replica.handle_message(message).expect("consensus continues"),
            }
        }
        node.log_bytes_most = node.log_bytes_most.max(replica.log_bytes());
        replica.set_wall_clock(wall_ms(now));
        for output in replica.turn(now).expect("the node continues") {
            let mut send = |message, snapshot| {
                // As over a real network: every message is encoded and decoded.
                let GroupId { cluster, group } = self.settings.group;
                let bytes = encode_peer(&PeerMessage { cluster, group, message }).expect("a message for a peer");
                let message = decode_peer(&bytes).expect("encoded bytes can be decoded").message;
                let parcel = Parcel { arrives: now, known: node.known, message, snapshot };
                self.network.extend(transmit(
                    parcel,
                    &self.cut,
                    &mut self.random,
                    self.loss_percent,
                    self.delay_ms_max,
                ));
            };
            match output {
                Output::Send(message) => send(message, None),
                Output::SendSnapshot { message, .. } if node.sending_stalled => drop(node.sending.insert(message.to)),
                Output::SendSnapshot { message, .. } => {
                    let peer = message.to;
                    send(message, node.disk.snapshot.clone());
                    replica.handle_snapshot_sent(peer, true);
                }
                Output::MakeSnapshot { through, first_voters } => node.disk.order = Some((through, first_voters)),
                Output::Compact { before, .. } => drop(node.disk.durable.compact(before.index)),
                Output::Write(write) => node.disk.unsynced.push_back(write),
                Output::Reply { ticket, position, stamp, reply } => {
                    let again = node.replies.insert(ticket, Answered { position, stamp, reply });
                    assert!(again.is_none(), "a command is answered once");
                }
                Output::Abandoned(ticket) => drop(node.abandoned.insert(ticket)),
                Output::ReadReady { ticket, position } => drop(node.reads.insert(ticket, position)),
                Output::MembersChanged { ticket, cause, .. } => {
                    node.changed.extend(ticket);
                    node.causes.extend(cause);
                }
                Output::TransferBegun { transfer, .. } => node.causes.push(transfer.cause),
                Output::Push { push, .. } => node.pushes.push(push),
                Output::PeerLost { peer, .. } => node.peers.push((peer, true)),
                Output::PeerFound { peer, .. } => node.peers.push((peer, false)),
                Output::JobsFill { .. } => {}
            }
        }
    }

    /// Submits to the leader and lets time pass until it is answered.
    pub(crate) fn ask(&mut self, operation: Operation) -> Answered {
        let leader = self.run_until_leader();
        let ticket = self.replica(leader).submit(operation).expect("the leader takes it");
        self.run_until("the command is answered", |cluster| cluster.node(leader).replies.get(&ticket).cloned())
    }

    /// Submits a keep-alive to a node, whether it leads or not.
    pub(crate) fn keep_alive(&mut self, node: u64, session: u128) -> Result<Ticket, NotTaken> {
        let (session, epoch) = (SessionId(session), Epoch(1));
        self.replica(node).submit_renewal(Renewal::KeepAlive { session, epoch, seen: Seen::default() })
    }

    /// Waits until every node that is up has caught up, and checks that all have the same state.
    pub(crate) fn assert_replicas_equal(&mut self) {
        let newest = self.nodes.values().filter_map(|node| Some(node.replica.as_ref()?.applied())).max();
        let newest = newest.expect("some node is up");
        self.run_until("every node has caught up", |cluster| {
            let behind = |node: &Node| node.replica.as_ref().is_some_and(|replica| replica.applied() < newest);
            (!cluster.nodes.values().any(behind)).then_some(())
        });
        let mut by_position: BTreeMap<LogPosition, BTreeSet<(u64, String)>> = BTreeMap::new();
        for replica in self.nodes.values().filter_map(|node| node.replica.as_ref()) {
            replica.state().verify().expect("the state is sound");
            let holds = (replica.state().state_hash(), format!("{:?}", replica.wall_clock()));
            by_position.entry(replica.applied()).or_default().insert(holds);
        }
        let members = |replica: &Replica| {
            let members = replica.members().into_iter().map(|view| (view.node, view.member, view.role));
            (replica.applied(), members.collect::<Vec<_>>())
        };
        let members: Vec<_> = self.nodes.values().filter_map(|node| node.replica.as_ref()).map(members).collect();
        for (one, other) in members.iter().zip(&members[1..]) {
            assert!(one.0 != other.0 || one.1 == other.1, "two nodes differ in their members: {one:?}, {other:?}");
        }
        for (position, held) in by_position {
            assert_eq!(held.len(), 1, "replicas differ at {position:?}: {held:?}");
        }
    }

    pub(crate) fn snapshot_bytes(&self, id: u64) -> Option<Arc<[u8]>> {
        self.nodes[&id].disk.snapshot.clone()
    }

    pub(crate) fn syncs(&self, id: u64) -> u64 {
        self.nodes[&id].disk.syncs
    }
}

/// The wall clock of every node: nine hours ahead of the clock of the test.
pub(crate) fn wall_ms(now: Nanos) -> u64 {
    9 * 3_600_000 + now.0 / 1_000_000
}

impl Disk {
    /// Makes the snapshot durable, and returns its state hash.
    fn make_snapshot(
        &mut self,
        group: GroupId,
        known: KnownVersions,
        through: LogPosition,
        first_voters: &[u64],
    ) -> u64 {
        let entries = self.durable.entries().cloned();
        let (bytes, state_hash) = make_snapshot(group, self.snapshot.as_deref(), first_voters, entries, through, known)
            .expect("no entry is missing");
        let restored = read_snapshot(group, &bytes, 7, known).expect("written bytes can be read");
        assert_eq!(restored.position, through);
        assert_eq!(restored.state.state_hash(), state_hash);
        self.snapshot = Some(bytes.into());
        state_hash
    }
}

/// A node's name and addresses in the tests.
pub(crate) fn member(id: u64) -> Member {
    Member::new(id, &format!("n{id}"), &format!("n{id}:7201"), &format!("n{id}:7200")).expect("a plain member")
}

/// The cause of a member change or a leadership transfer in the tests.
pub(crate) fn cause() -> Cause {
    Cause { by: Principal::new("tests").expect("plain"), reason: Reason::new("").expect("short") }
}

/// The copies of a parcel that arrive: none if it is lost, two if it is doubled, each with its delay.
fn transmit(
    parcel: Parcel,
    cut: &BTreeSet<(u64, u64)>,
    random: &mut u64,
    loss_percent: u64,
    delay_ms_max: u64,
) -> Vec<Parcel> {
    let mut draw = |below: u64| {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % below
    };
    if cut.contains(&(parcel.message.from, parcel.message.to)) || draw(100) < loss_percent {
        return Vec::new();
    }
    let copies = if draw(100) < loss_percent { 2 } else { 1 };
    (0..copies).map(|_| Parcel { arrives: parcel.arrives.after_ms(draw(delay_ms_max + 1)), ..parcel.clone() }).collect()
}

pub(crate) fn open(session: u128, ttl_ms: u64) -> Operation {
    Operation::Open(Open {
        session: SessionId(session),
        secret_hash: SecretHash([1; 32]),
        principal: Principal::new("tests").expect("a plain name"),
        ttl: Ttl::new(ttl_ms).expect("a TTL in bounds"),
        metadata: Metadata::default(),
    })
}

pub(crate) fn lock(session: u128, number: u64, name: &str, wait: Wait) -> Operation {
    let lock = Lock { name: Name::new(name).expect("a plain name"), mode: LockMode::Exclusive };
    Operation::Request(Request {
        session: SessionId(session),
        epoch: Epoch(1),
        number: RequestNumber(number),
        seen: Seen::default(),
        action: Action::Acquire(Acquire { locks: Locks::from_buf([lock]), owner: None, wait, terms: Terms::default() }),
    })
}

pub(crate) fn token(answered: &Answered) -> u64 {
    match answered.reply.outcome {
        Outcome::Granted { token, .. } => token.0,
        ref other => panic!("not granted: {other:?}"),
    }
}
