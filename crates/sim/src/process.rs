//! A client's process: the real machines of the client library, and the users whose sessions they carry.
//!
//! It drives the machines as the library's own driver does: it dials, sends, receives and wakes them up, and decides nothing itself.
//! What it wants from the network it returns as deeds for the world.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use fencepost_core::{JobRecord, LogPosition, LogicalMs, Nanos, Push, RequestNumber};
use fencepost_session::Tier;
use fencepost_session::client::{Connection, DialFailure, Event, Reconnect, Step};
use fencepost_session::edge::StreamId;
use fencepost_wire::{api, v1};

use crate::clock::Clock;
use crate::fact::{Fact, WorldTime};
use crate::observer::Observer;
use crate::random::Random;
use crate::scripted::{Order, ScriptedUser};
use crate::store::Reply;
use crate::user::{Served, User};
use crate::worker::{Errand, Hands};

/// Timeout of a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Something that reaches a process.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    /// The node accepted the stream.
    Connected(StreamId, v1::Hello),
    /// The node refused the stream, or the stream ended. Names the leader if the node did.
    Ended(StreamId, DialFailure),
    /// A message of the node.
    Message(StreamId, v1::ServerMessage),
    /// The store answered a call of a user.
    Store { worker: usize, call: u64, reply: Reply },
    /// The cluster answered a user's read of a job.
    Job { user: usize, call: u64, record: Option<Box<JobRecord>> },
    /// An order of a scenario to a user.
    Order { user: usize, order: Order },
    /// The process's timer fired.
    Wake,
}

enum Link {
    Down,
    Dialling { stream: StreamId, until: Nanos },
    Up { stream: StreamId },
}

/// What the world has to do for a process.
pub(crate) enum Deed {
    /// Dial this address.
    Dial(StreamId, Tier, String),
    /// Send this message.
    Send(StreamId, v1::ClientMessage),
    /// Close the client's end of this stream.
    HangUp(StreamId),
    /// Leave this stream unread for this many milliseconds.
    StopReading(StreamId, u64),
    /// Make a call for a user.
    Errand(Errand),
}

/// A client's process.
pub(crate) struct Process {
    pub(crate) id: usize,
    /// Its clock. It runs on while the process is paused.
    pub(crate) clock: Clock,
    /// While paused the process neither reads nor acts; arrivals go to `waiting`.
    pub(crate) paused: bool,
    /// What arrived during the pause.
    pub(crate) waiting: VecDeque<Arrival>,
    /// The tier of its locks, and of all its streams.
    tier: Tier,
    users: Vec<User>,
    machine: Connection,
    reconnect: Reconnect,
    link: Link,
    /// The cluster and the group of the last greeting.
    group: (u128, u64),
    addresses: Vec<String>,
    /// `addresses` changed since `reconnect` got them.
    moved: bool,
    random: Random,
}

impl Process {
    /// A new process that knows these addresses, with this many users.
    pub(crate) fn new(
        id: usize,
        tier: Tier,
        (users, make_user): (usize, &dyn Fn(usize, Random, Nanos) -> User),
        addresses: Vec<String>,
        mut random: Random,
        now: WorldTime,
    ) -> Process {
        let clock = Clock::draw(&mut random);
        let local = Nanos(clock.shows(now));
        let users = (0..users).map(|at| make_user(at, random.fork(), local)).collect();
        Process {
            id,
            clock,
            paused: false,
            waiting: VecDeque::new(),
            tier,
            users,
            machine: Connection::default(),
            reconnect: Reconnect::new(addresses.clone(), Duration::ZERO),
            link: Link::Down,
            group: (0, 0),
            addresses,
            moved: false,
            random,
        }
    }

    /// The process crashes and restarts at once. It loses everything; the cluster still has its sessions.
    pub(crate) fn crash(&mut self, now: WorldTime) -> Option<Deed> {
        let local = self.local(now);
        self.machine = Connection::default();
        self.reconnect = Reconnect::new(self.addresses.clone(), Duration::ZERO);
        self.users.iter_mut().for_each(|user| user.forget(local));
        (self.paused, self.waiting) = (false, VecDeque::new());
        self.hang_up()
    }

    /// Takes the current addresses of the nodes. Used at the next dial after a failure.
    pub(crate) fn learn_addresses(&mut self, addresses: Vec<String>) {
        self.moved |= self.addresses != addresses;
        self.addresses = addresses;
    }

    /// How its users that act by chance were served: the number of each, the answers that it got, and the user itself for people.
    pub(crate) fn served(&self) -> impl Iterator<Item = (usize, Served, &dyn Debug)> {
        self.users.iter().filter_map(|user| match user {
            User::Worker(worker) => Some((worker.id, worker.served, worker as &dyn Debug)),
            User::Runner(runner) => Some((runner.id, runner.served, runner as &dyn Debug)),
            User::Holder(_) | User::Scripted(_) => None,
        })
    }

    /// Its users that follow a scenario.
    pub(crate) fn scripted(&self) -> impl Iterator<Item = &ScriptedUser> {
        self.users.iter().filter_map(|user| if let User::Scripted(user) = user { Some(user) } else { None })
    }

    /// Its name for people: from its users' names if they have any, otherwise its number.
    pub(crate) fn tell(&self) -> String {
        let names: Vec<&str> = self.scripted().map(|user| user.name.as_str()).collect();
        match names[..] {
            [] => format!("client {}", self.id),
            [name] => name.to_owned(),
            [first, .., last] => format!("the process of {first} to {last}"),
        }
    }

    fn hang_up(&mut self) -> Option<Deed> {
        match std::mem::replace(&mut self.link, Link::Down) {
            Link::Down => None,
            Link::Dialling { stream, .. } | Link::Up { stream } => Some(Deed::HangUp(stream)),
        }
    }

    fn local(&self, now: WorldTime) -> Nanos {
        Nanos(self.clock.shows(now))
    }

    /// The group of the last greeting, for a process of the efficiency tier; `None` for the correctness tier.
    fn in_memory(&self) -> Option<(u128, u64)> {
        (self.tier == Tier::Efficiency).then_some(self.group)
    }

    /// Takes an arrival and lets the machines and all users act. Returns deeds for the world, and when to wake the process.
    pub(crate) fn handle(
        &mut self,
        arrival: Arrival,
        now: WorldTime,
        observer: &mut Observer,
        next_stream: &mut u64,
    ) -> (Vec<Deed>, WorldTime) {
        let (local, in_memory) = (self.local(now), self.in_memory());
        let mut deeds = Vec::new();
        let (errands, leaves) = (&mut Vec::new(), &mut false);
        match arrival {
            Arrival::Connected(stream, hello) => {
                if matches!(self.link, Link::Dialling { stream: dialled, .. } if dialled == stream) {
                    self.link = Link::Up { stream };
                    self.group = (api::whole(hello.cluster_high, hello.cluster_low), hello.group);
                    self.reconnect.handle_connected(&crate::world::address(hello.node));
                    self.machine.handle_connected(&hello, local);
                } else {
                    deeds.push(Deed::HangUp(stream));
                }
            }
            Arrival::Ended(stream, failure) => {
                let ours = match self.link {
                    Link::Down => false,
                    Link::Dialling { stream: ours, .. } | Link::Up { stream: ours } => ours == stream,
                };
                if ours {
                    self.lose_link(failure, local);
                }
            }
            Arrival::Message(stream, message) => {
                if matches!(self.link, Link::Up { stream: ours } if ours == stream) {
                    // Answers of the efficiency tier are in no log, so the checkers of the log do not see them.
                    if self.tier == Tier::Correctness {
                        hear(self.group.0, &message, now, observer);
                    }
                    self.machine.handle_message(message, local).expect("a server of the same version");
                }
            }
            Arrival::Store { worker, call, reply } => {
                let hands = &mut Hands {
                    client: self.id,
                    in_memory,
                    machine: &mut self.machine,
                    observer,
                    now,
                    local,
                    errands,
                    leaves,
                };
                self.users[worker].handle_store(call, reply, hands);
            }
            Arrival::Job { user, call, record } => {
                let hands = &mut Hands {
                    client: self.id,
                    in_memory,
                    machine: &mut self.machine,
                    observer,
                    now,
                    local,
                    errands,
                    leaves,
                };
                self.users[user].handle_job(call, record.as_deref(), hands);
            }
            Arrival::Order { user, order } => {
                let hands = &mut Hands {
                    client: self.id,
                    in_memory,
                    machine: &mut self.machine,
                    observer,
                    now,
                    local,
                    errands,
                    leaves,
                };
                if let User::Scripted(user) = &mut self.users[user] {
                    user.handle_order(order, hands);
                }
            }
            Arrival::Wake => {}
        }
        self.act(now, local, observer, (&mut *errands, leaves), &mut deeds, next_stream);
        deeds.extend(errands.drain(..).map(Deed::Errand));
        if *leaves {
            self.end_program(now, observer, &mut deeds);
        }
        // A new program begins with its first wake-up.
        let wake = if *leaves { Nanos(local.0 + 1) } else { self.next_at(local) };
        (deeds, self.clock.when(wake.0))
    }

    fn lose_link(&mut self, failure: DialFailure, local: Nanos) {
        if let Link::Up { .. } = self.link {
            self.machine.handle_disconnected(local);
        }
        self.link = Link::Down;
        if std::mem::take(&mut self.moved) {
            self.reconnect = Reconnect::new(self.addresses.clone(), Duration::ZERO);
        }
        self.reconnect.handle_failed(local, failure, self.random.number());
        self.machine.handle_reachable(!self.reconnect.is_open(local));
    }

    /// Lets the machines and users do everything that is due, then sends.
    fn act(
        &mut self,
        now: WorldTime,
        local: Nanos,
        observer: &mut Observer,
        (errands, leaves): (&mut Vec<Errand>, &mut bool),
        deeds: &mut Vec<Deed>,
        next_stream: &mut u64,
    ) {
        let in_memory = self.in_memory();
        self.machine.handle_timeout(local);
        for at in 0..self.users.len() {
            let machine = &mut self.machine;
            let hands = &mut Hands { client: self.id, in_memory, machine, observer, now, local, errands, leaves };
            self.users[at].handle_time(hands);
        }
        // A user that handles an answer may cause further answers.
        while let Some(event) = self.machine.poll_event() {
            let Event::Answered(request, answer) = event else { continue };
            let user = self.users.iter_mut().find(|user| user.session() == Some(request.session));
            let machine = &mut self.machine;
            let hands = &mut Hands { client: self.id, in_memory, machine, observer, now, local, errands, leaves };
            match user {
                Some(user) => user.handle_answer(request, &answer, hands),
                None => hands.tell(&Fact::Told { request, answer: &answer }),
            }
        }
        if *leaves {
            // What is left to send is sent by `end_program`.
            return;
        }
        if self.machine.is_stalled()
            && let Link::Up { stream } = self.link
        {
            deeds.push(Deed::HangUp(stream));
            self.lose_link(DialFailure::Stalled, local);
        }
        if let Link::Dialling { stream, until } = self.link
            && until <= local
        {
            deeds.push(Deed::HangUp(stream));
            self.lose_link(DialFailure::Unreachable, local);
        }
        if let Link::Down = self.link
            && let Step::Dial(address) = self.reconnect.poll(local)
        {
            *next_stream += 1;
            let stream = StreamId(*next_stream);
            self.link = Link::Dialling { stream, until: local.after(DIAL_TIMEOUT) };
            deeds.push(Deed::Dial(stream, self.tier, address));
        }
        if let Link::Up { stream } = self.link {
            while let Some(message) = self.machine.poll_transmit(local) {
                deeds.push(Deed::Send(stream, message));
            }
        }
    }

    /// The program ends: it sends what the library sends then, and starts again with empty memory.
    fn end_program(&mut self, now: WorldTime, observer: &mut Observer, deeds: &mut Vec<Deed>) {
        observer.fault(now, "program ended", || self.tell());
        let local = self.local(now);
        self.machine.handle_farewell();
        if let Link::Up { stream } = self.link {
            while let Some(message) = self.machine.poll_transmit(local) {
                deeds.push(Deed::Send(stream, message));
            }
        }
        deeds.extend(self.crash(now));
    }

    fn next_at(&mut self, local: Nanos) -> Nanos {
        let link = match &self.link {
            Link::Down => match self.reconnect.poll(local) {
                Step::WaitUntil(at) => Some(at),
                Step::Dial(_) => unreachable!("`act` has dialled if a dial was due"),
            },
            Link::Dialling { until, .. } => Some(*until),
            Link::Up { .. } => None,
        };
        let users = self.users.iter().filter_map(User::next_at);
        let machine = self.machine.poll_timeout();
        // At the latest after a second, as in the library's driver.
        let latest = local.after(Duration::from_secs(1));
        users.chain(machine).chain(link).fold(latest, Nanos::min).max(Nanos(local.0 + 1))
    }
}

/// Reports the answers and ended waits in a message as facts.
fn hear(cluster: u128, message: &v1::ServerMessage, now: WorldTime, observer: &mut Observer) {
    for decided in &message.decided {
        let position = LogPosition { index: decided.index, term: decided.term };
        let stamp = LogicalMs(decided.stamp_ms);
        for answer in &decided.answers {
            let api::Answer { session, number, outcome, repeat } =
                api::answer_from_wire(answer.clone()).expect("a server of the same version");
            let outcome = &outcome;
            observer.fact(now, &Fact::Heard { cluster, session, number, position, stamp, outcome, repeat });
        }
        for push in &decided.pushes {
            let push = api::push_from_wire(push.clone()).expect("a server of the same version");
            if let Push::Ended { session, number: RequestNumber(number), outcome } = &push {
                let (number, outcome) = (Some(RequestNumber(*number)), outcome);
                observer.fact(
                    now,
                    &Fact::Heard { cluster, session: *session, number, position, stamp, outcome, repeat: None },
                );
            }
        }
    }
}
