//! The world of one run: the nodes, the clients, the store, and everything in flight between them.
//!
//! This file owns the state and the event loop. It takes the next happening from the agenda, sets the time, and hands it to the file in
//! `world/` that handles it. All randomness comes from one seed and all time from the agenda, so equal seeds give equal runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fencepost_core::{KnownVersions, LockState, LogPosition, Nanos};
use fencepost_replica::{GroupId, Message, Settings};
use fencepost_session::Tier;
use fencepost_session::client::DialFailure;
use fencepost_session::edge::StreamId;
use fencepost_wire::v1;

use crate::agenda::Agenda;
use crate::fact::{Fact, WorldTime};
use crate::holder::Holder;
use crate::hostile::Hostile;
use crate::network::{Endpoint, Network};
use crate::node::SimNode;
use crate::observer::Observer;
use crate::process::{Arrival, Process};
use crate::random::Random;
use crate::redlock::{self, Redlock};
use crate::runner::Runner;
use crate::store::{Call, Store};
use crate::user::User;
use crate::watcher::Watcher;
use crate::worker::Worker;

mod clients;
mod door;
mod expect;
mod faults;
mod hostile;
mod jobs;
mod leases;
mod nodes;
mod phases;
mod play;
mod upgrades;

pub use faults::Faults;
pub use phases::{Outcome, Plan, SEEDS_DEFAULT};

/// World time at the start of a run. Not zero, so that no code works only because time 0 is the default.
const BEGINNING: WorldTime = WorldTime(1_000_000_000);

/// Users in each process of the efficiency tier. Two are enough to compete for locks. Their requests cost no log entries.
const EFFICIENCY_WORKERS: usize = 2;

/// A scheduled happening.
#[derive(Debug)]
enum Happening {
    /// A message of a peer arrives, perhaps with a snapshot.
    Peer { message: Box<Message>, snapshot: Option<Arc<[u8]>>, known: KnownVersions },
    /// A node's timer for its next turn fires.
    Turn { node: u64, serial: u64 },
    /// A sync of a node's disk completes.
    Synced { node: u64, life: u64 },
    /// A requested snapshot is due to be made.
    SnapshotMade { node: u64, life: u64 },
    /// A client's dial arrives at the node.
    Dialled { stream: StreamId },
    /// A client's message arrives at the node.
    FromClient { stream: StreamId, message: Box<v1::ClientMessage> },
    /// The node learns that the client closed the stream.
    HungUp { stream: StreamId },
    /// Something reaches a client.
    ToClient { client: usize, arrival: Box<Arrival> },
    /// A client's timer fires.
    Wake { client: usize, serial: u64 },
    /// The hostile client's timer fires.
    Hostile,
    /// The hostile client reads a stream again that it left unread.
    ReadsAgain { stream: StreamId },
    /// A call reaches the store.
    Store { client: usize, worker: usize, call: u64, what: Box<Call> },
    /// A client's read of a job reaches a node.
    JobRead { node: u64, read: Box<jobs::JobRead> },
    /// The next chance for a fault, and for administrators, readers and watchers to act.
    Chance,
    /// A node is upgraded to the newer release.
    Upgrade { node: u64 },
    /// A fault ends.
    Undo(faults::Undo),
    /// An event of the Redlock model in a scenario.
    Redlock(redlock::Event),
}

/// A stream between a client and a node. Each direction keeps its order.
#[derive(Debug)]
struct Wire {
    client: usize,
    node: u64,
    tier: Tier,
    /// When the last message in each direction arrives. Later messages arrive no earlier.
    to_node: WorldTime,
    to_client: WorldTime,
    /// The client reads nothing before this time.
    read_from: WorldTime,
    /// Whether each end is still open. The stream is forgotten when both are closed.
    client_holds: bool,
    node_holds: bool,
}

/// The state of one run.
pub struct World {
    /// The true time.
    pub now: WorldTime,
    /// The checkers, the trace and the figures.
    pub observer: Observer,
    random: Random,
    agenda: Agenda<Happening>,
    network: Network,
    nodes: BTreeMap<u64, SimNode>,
    clients: Vec<Process>,
    hostile: Option<Hostile>,
    /// The serial of the valid timer, for each client. Timers with other serials are ignored.
    wakes: Vec<u64>,
    streams: BTreeMap<StreamId, Wire>,
    next_stream: u64,
    store: Store,
    settings: Settings,
    /// The position and content hash of each entry, from the first node that applied it. Other nodes are compared with it.
    log: VecDeque<(LogPosition, u64)>,
    /// The lock state that follows from `log`, computed by the world itself. The states of the nodes are compared with it.
    witness: LockState,
    faults: Faults,
    lead: leases::Lead,
    next_node: u64,
    watchers: Vec<Watcher>,
    reads: u64,
    /// The reads of jobs that nodes have accepted, by the number of the read.
    job_reads: BTreeMap<u64, jobs::JobRead>,
    snapshots_made: u64,
    /// How often the format version was raised.
    raises: u64,
    redlock: Redlock,
    /// Why a node stopped itself. It must not, so the run ends as a violation.
    stopped: Option<String>,
}

/// The address under which clients dial a node.
pub fn address(node: u64) -> String {
    format!("n{node}")
}

fn node_of(address: &str) -> Option<u64> {
    address.strip_prefix('n')?.parse().ok()
}

impl World {
    /// A world with the nodes and clients of a plan, in which nothing has happened yet.
    pub fn new(seed: u64, plan: &Plan, traces: bool) -> World {
        let (mut world, mut random) = World::without_clients(seed, plan, traces);
        for _ in 0..plan.clients {
            // The sessions of one process have the same TTL, as with real users, so they expire together when the process dies.
            let ttl_ms = match plan.leases {
                true => *random.pick(&[5_000, 10_000, 20_000, 60_000]),
                false => *random.pick(&[1_500, 4_000, 8_000, 15_000]),
            };
            let make_user = |at, random, local| match plan.leases {
                true => User::Holder(Holder::new(ttl_ms, random, local)),
                false if at < plan.workers => User::Worker(Worker::new(at, ttl_ms, random, local)),
                false => User::Runner(Runner::new(at, ttl_ms, random, local)),
            };
            world.add_client(Tier::Correctness, plan.workers + plan.runners, &make_user, random.fork());
        }
        for _ in 0..plan.efficiency_clients {
            let ttl_ms = *random.pick(&[1_500, 4_000, 8_000]);
            let make_user = |at, random, local| User::Worker(Worker::new(at, ttl_ms, random, local));
            world.add_client(Tier::Efficiency, EFFICIENCY_WORKERS, &make_user, random.fork());
        }
        if plan.hostile {
            world.add_hostile(random.fork());
        }
        world
    }

    /// A world with the nodes of a plan, and the random generator for its clients.
    fn without_clients(seed: u64, plan: &Plan, traces: bool) -> (World, Random) {
        let mut random = Random::new(seed);
        let group = GroupId { cluster: 0xC0, group: 1 };
        let mut settings = Settings::new(0, group, 0);
        (settings.snapshot_every_entries, settings.entries_kept) = (random.between(30, 300), random.between(2, 40));
        // A run has few concurrent requests. With this setting several entries are in flight all the same.
        settings.further_entry_min = 1 + (seed % 3) as usize;
        let mut world = World {
            now: BEGINNING,
            observer: Observer::new(traces, plan.administered),
            agenda: Agenda::default(),
            network: Network::default(),
            nodes: BTreeMap::new(),
            clients: Vec::new(),
            hostile: None,
            wakes: Vec::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
            store: Store::default(),
            settings,
            log: VecDeque::new(),
            witness: LockState::new(seed),
            faults: Faults::new(plan),
            lead: leases::Lead::default(),
            next_node: plan.nodes + 1,
            watchers: Vec::new(),
            reads: 0,
            job_reads: BTreeMap::new(),
            snapshots_made: 0,
            raises: 0,
            redlock: Redlock::default(),
            stopped: None,
            random: random.fork(),
        };
        let voters: Vec<u64> = (1..=plan.nodes).collect();
        for id in &voters {
            world.found(*id, &voters);
        }
        world.watchers =
            ["", "account", "/a"].into_iter().zip(0..).map(|(prefix, id)| Watcher::new(id, prefix)).collect();
        (world, random)
    }

    fn add_client(
        &mut self,
        tier: Tier,
        users: usize,
        make_user: &dyn Fn(usize, Random, Nanos) -> User,
        random: Random,
    ) {
        let id = self.clients.len();
        let addresses = self.nodes.keys().map(|node| address(*node)).collect();
        self.clients.push(Process::new(id, tier, (users, make_user), addresses, random, self.now));
        self.wakes.push(0);
        self.reach(id, Arrival::Wake);
    }

    /// Runs everything that is scheduled up to this time.
    fn run_until(&mut self, until: WorldTime) {
        while self.stopped.is_none()
            && let Some((at, what)) = self.agenda.next(until)
        {
            self.now = at;
            self.happen(what);
        }
        self.now = until;
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Peer { message, snapshot, known } => self.peer_arrives(*message, snapshot, known),
            Happening::Turn { node, serial } => {
                if self.nodes.get(&node).is_some_and(|node| node.serial == serial) {
                    self.turn(node);
                }
            }
            Happening::Synced { node, life } => self.synced(node, life),
            Happening::SnapshotMade { node, life } => self.snapshot_made(node, life),
            Happening::Dialled { stream } => self.dialled(stream),
            Happening::FromClient { stream, message } => self.client_said(stream, *message),
            Happening::HungUp { stream } => self.hung_up(stream),
            Happening::ToClient { client, arrival } => self.reach(client, *arrival),
            Happening::Wake { client, serial } => {
                if self.wakes[client] == serial && !self.clients[client].paused {
                    self.reach(client, Arrival::Wake);
                }
            }
            Happening::Hostile => self.hostile_acts(),
            Happening::ReadsAgain { stream } => self.read_again(stream),
            Happening::Store { client, worker, call, what } => {
                let (reply, access) = self.store.call(&what);
                self.observer.fact(self.now, &Fact::Store(&access));
                if reply.corrupted {
                    let line = || match &what.key {
                        Some(key) => format!("without a guard {} {key} is done TWICE", what.name),
                        None => {
                            format!("without a guard {} is CORRUPTED: the write overwrote a newer value", what.name)
                        }
                    };
                    self.observer.line(self.now, "store", line);
                }
                let delay = self.network.delay(Endpoint::Store, Endpoint::Client(client), &mut self.random);
                let arrival = Box::new(Arrival::Store { worker, call, reply });
                self.agenda.put(WorldTime(self.now.0 + delay), Happening::ToClient { client, arrival });
            }
            Happening::JobRead { node, read } => self.job_read_arrives(node, *read),
            Happening::Chance => self.chance(),
            Happening::Upgrade { node } => self.upgrade(node),
            Happening::Undo(undo) => self.undo(undo),
            Happening::Redlock(event) => self.redlock_happens(event),
        }
    }

    fn end_stream(&mut self, stream: StreamId, failure: DialFailure) {
        let Some(wire) = self.streams.get_mut(&stream) else { return };
        wire.node_holds = false;
        let (client, node) = (wire.client, wire.node);
        self.observer.fact(self.now, &Fact::StreamOver { stream });
        if !self.network.is_cut(Endpoint::Node(node), Endpoint::Client(client)) {
            let delay = self.network.delay(Endpoint::Node(node), Endpoint::Client(client), &mut self.random);
            let wire = self.streams.get_mut(&stream).expect("just seen");
            wire.to_client = wire.to_client.max(WorldTime(self.now.0 + delay));
            let arrival = Box::new(Arrival::Ended(stream, failure));
            self.agenda.put(wire.to_client, Happening::ToClient { client, arrival });
        }
        self.forget_if_over(stream);
    }

    fn forget_if_over(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(|wire| !wire.client_holds && !wire.node_holds) {
            self.streams.remove(&stream);
        }
    }
}
