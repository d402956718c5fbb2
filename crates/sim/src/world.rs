//! The world: nodes, clients, the store, and everything that is on its way between them. One seed decides what happens.

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
use crate::store::{Call, Store};
use crate::user::User;
use crate::watcher::Watcher;
use crate::worker::Worker;

mod clients;
mod door;
mod expect;
mod faults;
mod hostile;
mod leases;
mod nodes;
mod phases;
mod play;
mod upgrades;

pub use faults::Faults;
pub use phases::{Outcome, Plan, SEEDS_DEFAULT};

/// When a run begins: not at zero, so that nothing works by accident.
const BEGINNING: WorldTime = WorldTime(1_000_000_000);

/// Users of a process of the efficiency tier. Two meet often enough, and what they do costs no entry.
const EFFICIENCY_WORKERS: usize = 2;

/// Something that is going to happen.
#[derive(Debug)]
enum Happening {
    /// A message of a peer arrives, perhaps with a snapshot.
    Peer { message: Box<Message>, snapshot: Option<Arc<[u8]>>, known: KnownVersions },
    /// A node's own time to turn.
    Turn { node: u64, serial: u64 },
    /// A sync is done.
    Synced { node: u64, life: u64 },
    /// The snapshot that was asked for is made.
    SnapshotMade { node: u64, life: u64 },
    /// A client's dial arrives.
    Dialled { stream: StreamId },
    /// What a client sent arrives.
    FromClient { stream: StreamId, message: Box<v1::ClientMessage> },
    /// A client's end of a stream is gone, and the node hears it.
    HungUp { stream: StreamId },
    /// Something reaches a client.
    ToClient { client: usize, arrival: Box<Arrival> },
    /// A client's own time to act.
    Wake { client: usize, serial: u64 },
    /// The hostile client's time to act.
    Hostile,
    /// A stream that was not read for a while is read again.
    ReadsAgain { stream: StreamId },
    /// A call reaches the store.
    Store { client: usize, worker: usize, call: u64, what: Box<Call> },
    /// The next fault, or the next thing that administrators, readers and watchers do.
    Chance,
    /// A node gets the newer release.
    Upgrade { node: u64 },
    /// A fault is over.
    Undo(faults::Undo),
    /// Something of the Redlock that a scenario shows beside ours.
    Redlock(redlock::Event),
}

/// A stream between a client and a node. Each way is in order.
#[derive(Debug)]
struct Wire {
    client: usize,
    node: u64,
    tier: Tier,
    /// When the last message on each way arrives.
    to_node: WorldTime,
    to_client: WorldTime,
    /// Nothing is read of it before.
    read_from: WorldTime,
    /// The ends that are still there.
    client_holds: bool,
    node_holds: bool,
}

/// Everything.
pub struct World {
    /// The time.
    pub now: WorldTime,
    /// Who looks on.
    pub observer: Observer,
    random: Random,
    agenda: Agenda<Happening>,
    network: Network,
    nodes: BTreeMap<u64, SimNode>,
    clients: Vec<Process>,
    hostile: Option<Hostile>,
    /// The wake-up that counts, for each client.
    wakes: Vec<u64>,
    streams: BTreeMap<StreamId, Wire>,
    next_stream: u64,
    store: Store,
    settings: Settings,
    /// What the first node to apply each entry found in it.
    log: VecDeque<(LogPosition, u64)>,
    /// The state that follows from the log, on no node.
    witness: LockState,
    faults: Faults,
    lead: leases::Lead,
    next_node: u64,
    watchers: Vec<Watcher>,
    reads: u64,
    snapshots_made: u64,
    /// How often the format version was raised.
    raises: u64,
    redlock: Redlock,
    /// A node stopped by itself, which it must not.
    stopped: Option<String>,
}

/// How clients dial a node.
pub fn address(node: u64) -> String {
    format!("n{node}")
}

fn node_of(address: &str) -> Option<u64> {
    address.strip_prefix('n')?.parse().ok()
}

impl World {
    /// A world of so many nodes and clients, in which nothing has happened yet.
    pub fn new(seed: u64, plan: &Plan, traces: bool) -> World {
        let (mut world, mut random) = World::without_clients(seed, plan, traces);
        for _ in 0..plan.clients {
            // The sessions of one process are alike, as they are with real users, and so they end together when it does.
            let ttl_ms = match plan.leases {
                true => *random.pick(&[5_000, 10_000, 20_000, 60_000]),
                false => *random.pick(&[1_500, 4_000, 8_000, 15_000]),
            };
            let make_user = |at, random, local| match plan.leases {
                true => User::Holder(Holder::new(ttl_ms, random, local)),
                false => User::Worker(Worker::new(at, ttl_ms, random, local)),
            };
            world.add_client(Tier::Correctness, plan.workers, &make_user, random.fork());
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

    /// The nodes of a plan, and the chance that is left for its clients.
    fn without_clients(seed: u64, plan: &Plan, traces: bool) -> (World, Random) {
        let mut random = Random::new(seed);
        let group = GroupId { cluster: 0xC0, group: 1 };
        let mut settings = Settings::new(0, group, 0);
        (settings.snapshot_every_entries, settings.entries_kept) = (random.between(30, 300), random.between(2, 40));
        // Few ask at a time here, and several entries are to be under way all the same.
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

    /// Lets time pass until then.
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
                    let line =
                        || format!("without a guard {} is CORRUPTED: the write overwrote a newer value", what.name);
                    self.observer.line(self.now, "store", line);
                }
                let delay = self.network.delay(Endpoint::Store, Endpoint::Client(client), &mut self.random);
                let arrival = Box::new(Arrival::Store { worker, call, reply });
                self.agenda.put(WorldTime(self.now.0 + delay), Happening::ToClient { client, arrival });
            }
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
