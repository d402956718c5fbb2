//! A client's process: the real machines of the client library, with the users whose sessions they carry.

use std::collections::VecDeque;
use std::time::Duration;

use fencepost_core::{LogPosition, LogicalMs, Nanos, Push, RequestNumber};
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
use crate::user::User;
use crate::worker::{Errand, Hands, Worker};

/// How long a dial may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Something that reaches a process.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    /// The node took the stream.
    Connected(StreamId, v1::Hello),
    /// It did not, or the stream has ended. If the node said so, who leads.
    Ended(StreamId, DialFailure),
    /// A message.
    Message(StreamId, v1::ServerMessage),
    /// The store has answered a call of a worker.
    Store {
        /// Whose.
        worker: usize,
        /// Which.
        call: u64,
        /// What it said.
        reply: Reply,
    },
    /// A scenario tells a user to do something.
    Order {
        /// Whom.
        user: usize,
        /// What.
        order: Order,
    },
    /// Time has passed.
    Wake,
}

enum Link {
    Down,
    Dialling { stream: StreamId, until: Nanos },
    Up { stream: StreamId },
}

/// What the world is to do for a process.
pub(crate) enum Deed {
    /// Dial this address.
    Dial(StreamId, Tier, String),
    /// Send this.
    Send(StreamId, v1::ClientMessage),
    /// Nobody reads this stream any more.
    HangUp(StreamId),
    /// Leave this stream unread for so many milliseconds.
    StopReading(StreamId, u64),
    /// Run an errand for a worker.
    Errand(Errand),
}

/// A client's process.
pub(crate) struct Process {
    /// Which.
    pub(crate) id: usize,
    /// Its clock, which counts while it is paused.
    pub(crate) clock: Clock,
    /// It neither reads nor acts; what arrives waits.
    pub(crate) paused: bool,
    /// What has arrived meanwhile.
    pub(crate) waiting: VecDeque<Arrival>,
    /// What its locks are for. All of its streams are of this tier.
    tier: Tier,
    /// The users in it.
    users: Vec<User>,
    machine: Connection,
    reconnect: Reconnect,
    link: Link,
    /// The cluster and the group that answer on the stream that is up, or answered on the last one.
    group: (u128, u64),
    addresses: Vec<String>,
    /// The addresses are others than those that it began to dial with.
    moved: bool,
    random: Random,
}

impl Process {
    /// A new process that knows these addresses, with so many users.
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
            reconnect: Reconnect::new(addresses.clone()),
            link: Link::Down,
            group: (0, 0),
            addresses,
            moved: false,
            random,
        }
    }

    /// The process dies and starts again: nothing is left of it but what the cluster knows.
    pub(crate) fn crash(&mut self, now: WorldTime) -> Option<Deed> {
        let local = self.local(now);
        self.machine = Connection::default();
        self.reconnect = Reconnect::new(self.addresses.clone());
        self.users.iter_mut().for_each(|user| user.forget(local));
        (self.paused, self.waiting) = (false, VecDeque::new());
        self.hang_up()
    }

    /// Other nodes may have to be asked from now on.
    pub(crate) fn learn_addresses(&mut self, addresses: Vec<String>) {
        self.moved |= self.addresses != addresses;
        self.addresses = addresses;
    }

    /// Those of its users whom chance moves.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.users.iter().filter_map(|user| if let User::Worker(worker) = user { Some(worker) } else { None })
    }

    /// Those of its users who do what a scenario says.
    pub(crate) fn scripted(&self) -> impl Iterator<Item = &ScriptedUser> {
        self.users.iter().filter_map(|user| if let User::Scripted(user) = user { Some(user) } else { None })
    }

    /// What people call it: by those who use it, if they have names.
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

    /// Who answered last, for a process of the efficiency tier.
    fn in_memory(&self) -> Option<(u128, u64)> {
        (self.tier == Tier::Efficiency).then_some(self.group)
    }

    /// Something arrived: takes it, lets everybody act, and says what is to be done and when to wake it.
    pub(crate) fn handle(
        &mut self,
        arrival: Arrival,
        now: WorldTime,
        observer: &mut Observer,
        next_stream: &mut u64,
    ) -> (Vec<Deed>, WorldTime) {
        let (local, in_memory) = (self.local(now), self.in_memory());
        let mut deeds = Vec::new();
        let errands = &mut Vec::new();
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
                    // What the efficiency tier says stands in no log.
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
                };
                self.users[worker].handle_store(call, reply, hands);
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
                };
                if let User::Scripted(user) = &mut self.users[user] {
                    user.handle_order(order, hands);
                }
            }
            Arrival::Wake => {}
        }
        self.act(now, local, observer, errands, &mut deeds, next_stream);
        deeds.extend(errands.drain(..).map(Deed::Errand));
        let wake = self.next_at(local);
        (deeds, self.clock.when(wake.0))
    }

    fn lose_link(&mut self, failure: DialFailure, local: Nanos) {
        if let Link::Up { .. } = self.link {
            self.machine.handle_disconnected(local);
        }
        self.link = Link::Down;
        if std::mem::take(&mut self.moved) {
            self.reconnect = Reconnect::new(self.addresses.clone());
        }
        self.reconnect.handle_failed(local, failure, self.random.number());
        self.machine.handle_reachable(!self.reconnect.is_open());
    }

    /// Does everything that is due.
    fn act(
        &mut self,
        now: WorldTime,
        local: Nanos,
        observer: &mut Observer,
        errands: &mut Vec<Errand>,
        deeds: &mut Vec<Deed>,
        next_stream: &mut u64,
    ) {
        let in_memory = self.in_memory();
        self.machine.handle_timeout(local);
        for at in 0..self.users.len() {
            let hands =
                &mut Hands { client: self.id, in_memory, machine: &mut self.machine, observer, now, local, errands };
            self.users[at].handle_time(hands);
        }
        // What a worker does may end something for another one, and so on.
        while let Some(event) = self.machine.poll_event() {
            let Event::Answered(request, answer) = event else { continue };
            let user = self.users.iter_mut().find(|user| user.session() == Some(request.session));
            let hands =
                &mut Hands { client: self.id, in_memory, machine: &mut self.machine, observer, now, local, errands };
            match user {
                Some(user) => user.handle_answer(request, &answer, hands),
                None => hands.tell(&Fact::Told { request, answer: &answer }),
            }
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

    fn next_at(&mut self, local: Nanos) -> Nanos {
        let link = match &self.link {
            Link::Down => match self.reconnect.poll(local) {
                Step::WaitUntil(at) => Some(at),
                Step::Dial(_) => unreachable!("whoever is due to dial has dialled"),
            },
            Link::Dialling { until, .. } => Some(*until),
            Link::Up { .. } => None,
        };
        let users = self.users.iter().filter_map(User::next_at);
        let machine = self.machine.poll_timeout();
        // At the latest after a second, as the driver does it.
        let latest = local.after(Duration::from_secs(1));
        users.chain(machine).chain(link).fold(latest, Nanos::min).max(Nanos(local.0 + 1))
    }
}

/// Tells what a message says.
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
