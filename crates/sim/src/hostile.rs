//! A hostile client. It knows every session id, every secret hash and every epoch, like a thief of backups, but no secret except its own.
//!
//! It tries to open and attach sessions of other clients, keeps them alive and makes requests for them, in past, current and future
//! epochs. It sends invalid messages, repeats earlier messages, and floods a node without reading the answers. It also has sessions of
//! its own, and goes on using their old streams after it has moved them. None of this may touch the sessions of other
//! clients; I27 checks that.

use std::collections::VecDeque;

use fencepost_core::{
    Acquire, Action, Epoch, GrantId, Lock, LockMode, Locks, Metadata, Name, Request, RequestNumber, SecretHash, Seen,
    SessionId, Terms, Ttl, Wait,
};
use fencepost_session::Tier;
use fencepost_session::client::NewSession;
use fencepost_session::edge::StreamId;
use fencepost_wire::{SessionSecret, api, v1};

use crate::process::{Arrival, Deed};
use crate::random::Random;
use crate::user::new_session;
use crate::world::address;

/// Sessions of other clients that it remembers: the newest ones, because they are most likely alive.
const KNOWN_MAX: usize = 24;
/// Streams that it keeps open at a time.
const STREAMS_MAX: usize = 3;
/// Its first request number. High, so that no user makes a request with the same number: the hostile client may open a session with the
/// id of an ended session before the user knows that its session ended.
const FIRST_NUMBER: u64 = 1 << 40;
/// Keep-alives in each message of a flood, and number of messages. Each keep-alive is refused with a text, and all these texts together
/// exceed the node's send buffer.
const FLOOD: (usize, usize) = (5_000, 16);
/// How long it does not read after a flood, in milliseconds.
const BLIND_MS: u64 = 2_000;

/// What it knows of a session of another client.
#[derive(Clone, Debug)]
struct Known {
    tier: Tier,
    session: SessionId,
    hash: SecretHash,
    epoch: Epoch,
}

/// A session of its own.
#[derive(Clone, Debug)]
struct Own {
    tier: Tier,
    new: NewSession,
    epoch: Epoch,
}

/// The hostile client.
#[derive(Debug)]
pub(crate) struct Hostile {
    random: Random,
    known: VecDeque<Known>,
    streams: Vec<(StreamId, Tier)>,
    own: Vec<Own>,
    /// Grants that it has heard of, of all sessions.
    grants: VecDeque<GrantId>,
    last: Option<v1::ClientMessage>,
    last_number: u64,
    /// This run includes a flood, and it has not happened yet.
    may_flood: bool,
}

impl Hostile {
    pub(crate) fn new(mut random: Random) -> Hostile {
        let may_flood = random.one_in(4);
        Hostile {
            random,
            known: VecDeque::new(),
            streams: Vec::new(),
            own: Vec::new(),
            grants: VecDeque::new(),
            last: None,
            last_number: FIRST_NUMBER,
            may_flood,
        }
    }

    /// Learns everything about a session that was opened or attached, except its secret.
    pub(crate) fn learn(&mut self, tier: Tier, session: SessionId, hash: SecretHash, epoch: Epoch) {
        if let Some(own) = self.own.iter_mut().find(|own| own.tier == tier && own.new.id == session) {
            own.epoch = epoch;
            return;
        }
        self.known.retain(|known| (known.tier, known.session) != (tier, session));
        self.known.push_back(Known { tier, session, hash, epoch });
        if self.known.len() > KNOWN_MAX {
            self.known.pop_front();
        }
    }

    /// Learns the id of a grant of any session.
    pub(crate) fn learn_grant(&mut self, grant: GrantId) {
        self.grants.push_back(grant);
        if self.grants.len() > KNOWN_MAX {
            self.grants.pop_front();
        }
    }

    /// Takes what reaches it. It ignores answers and only notes which streams ended.
    pub(crate) fn hear(&mut self, arrival: &Arrival) {
        if let Arrival::Ended(stream, _) = arrival {
            self.streams.retain(|(up, _)| up != stream);
        }
    }

    /// Ends its streams for good.
    pub(crate) fn hang_up(&mut self) -> Vec<Deed> {
        self.streams.drain(..).map(|(stream, _)| Deed::HangUp(stream)).collect()
    }

    /// Its next attack, as deeds for the world.
    pub(crate) fn act(&mut self, nodes: &[u64], next_stream: &mut u64) -> Vec<Deed> {
        if self.streams.len() < STREAMS_MAX && self.random.percent(60) {
            *next_stream += 1;
            let (stream, tier) = (StreamId(*next_stream), *self.random.pick(&[Tier::Correctness, Tier::Efficiency]));
            self.streams.push((stream, tier));
            return vec![Deed::Dial(stream, tier, address(*self.random.pick(nodes)))];
        }
        let Some((stream, tier)) = self.streams.get(self.random.below(STREAMS_MAX as u64) as usize).copied() else {
            return Vec::new();
        };
        match self.random.below(20) {
            0 => {
                self.streams.retain(|(up, _)| *up != stream);
                vec![Deed::HangUp(stream)]
            }
            1..=4 => self.moves_its_own(stream, tier),
            5 if self.may_flood => self.floods(stream),
            6..=7 => self.last.clone().map(|again| Deed::Send(stream, again)).into_iter().collect(),
            _ => {
                let message = self.message(tier);
                self.last = Some(message.clone());
                vec![Deed::Send(stream, message)]
            }
        }
    }

    /// An administrator is about to end a session: opens its id on each stream, so that some opens come before the end is known.
    pub(crate) fn opens_evicted(&mut self, session: SessionId) -> Vec<Deed> {
        let Some(known) = self.known.iter().find(|known| known.session == session).cloned() else { return Vec::new() };
        let streams: Vec<StreamId> = self.streams.iter().filter(|it| it.1 == known.tier).map(|it| it.0).collect();
        let open = |stream| {
            let message = v1::ClientMessage { opens: vec![self.open(&known)], ..v1::ClientMessage::default() };
            Deed::Send(stream, message)
        };
        streams.into_iter().map(open).collect()
    }

    /// Moves a session of its own to another stream, while the old streams send requests in the current and the next epochs.
    fn moves_its_own(&mut self, stream: StreamId, tier: Tier) -> Vec<Deed> {
        let Some(at) = self.own.iter().position(|own| own.tier == tier) else {
            let new = new_session(Ttl::new(5_000).expect("in bounds"), &mut self.random);
            let open = api::open_to_wire(new.id, &new.secret, new.ttl, &new.metadata);
            let session = new.id;
            self.own.push(Own { tier, new, epoch: Epoch(1) });
            let requests = vec![self.acquire(session, Epoch(1), "hostile")];
            let message = v1::ClientMessage { opens: vec![open], requests, ..v1::ClientMessage::default() };
            return vec![Deed::Send(stream, message)];
        };
        if self.random.one_in(8) {
            self.own.remove(at);
            return Vec::new();
        }
        let Own { new, epoch, .. } = self.own[at].clone();
        let attach = api::attach_to_wire(new.id, &new.secret, &Seen::default());
        let attaches = v1::ClientMessage { attaches: vec![attach], ..v1::ClientMessage::default() };
        let mut deeds = vec![Deed::Send(stream, attaches)];
        let others: Vec<StreamId> =
            self.streams.iter().filter(|it| it.1 == tier && it.0 != stream).map(|it| it.0).collect();
        for other in others {
            let guess = Epoch(epoch.0 + self.random.below(3));
            let requests =
                vec![self.acquire(new.id, guess, "hostile"), self.acquire(new.id, Epoch(epoch.0 + 1), "guess")];
            deeds.push(Deed::Send(other, v1::ClientMessage { requests, ..v1::ClientMessage::default() }));
        }
        deeds
    }

    /// Causes more refusals than the node's send buffer may hold, and does not read them.
    fn floods(&mut self, stream: StreamId) -> Vec<Deed> {
        let Some(known) = self.known.back().cloned() else { return Vec::new() };
        self.may_flood = false;
        let (each, messages) = FLOOD;
        let keep_alive = api::keep_alive_to_wire(known.session, known.epoch, &Seen::default());
        let message = v1::ClientMessage { keep_alives: vec![keep_alive; each], ..v1::ClientMessage::default() };
        let mut deeds = vec![Deed::StopReading(stream, BLIND_MS)];
        deeds.extend(std::iter::repeat_n(message, messages).map(|message| Deed::Send(stream, message)));
        deeds
    }

    /// A message with random attacks.
    fn message(&mut self, tier: Tier) -> v1::ClientMessage {
        let mut message = v1::ClientMessage::default();
        for _ in 0..self.random.between(1, 4) {
            let of_tier: Vec<Known> = self.known.iter().filter(|known| known.tier == tier).cloned().collect();
            let foreign = if of_tier.is_empty() { None } else { Some(self.random.pick(&of_tier).clone()) };
            match (self.random.below(10), foreign) {
                (0..=2, Some(foreign)) => {
                    // The id is in use, so the open is refused. The request behind it must be refused, too.
                    message.opens.push(self.open(&foreign));
                    let epoch = self.guess(foreign.epoch);
                    message.requests.push(self.act_for(foreign.session, epoch));
                }
                (3..=4, Some(foreign)) => message.attaches.push(self.attach(&foreign)),
                (5..=6, Some(foreign)) => {
                    let epoch = self.guess(foreign.epoch);
                    message.keep_alives.push(api::keep_alive_to_wire(foreign.session, epoch, &Seen::default()));
                }
                (7..=8, Some(foreign)) => {
                    let epoch = self.guess(foreign.epoch);
                    message.requests.push(self.act_for(foreign.session, epoch));
                }
                (_, foreign) => {
                    self.say_nonsense(foreign.map_or(SessionId(1), |foreign| foreign.session), &mut message)
                }
            }
        }
        message
    }

    /// A wrong secret: the hash of the right one, random bytes, or zeros.
    fn wrong_secret(&mut self, foreign: &Known) -> SessionSecret {
        let secret = match self.random.below(4) {
            0..=1 => foreign.hash.0,
            2 => [self.random.number() as u8; 32],
            _ => [0; 32],
        };
        secret.into()
    }

    fn open(&mut self, foreign: &Known) -> v1::OpenSession {
        let secret = self.wrong_secret(foreign);
        api::open_to_wire(foreign.session, &secret, Ttl::new(1_000).expect("in bounds"), &Metadata::default())
    }

    fn attach(&mut self, foreign: &Known) -> v1::AttachSession {
        let secret = self.wrong_secret(foreign);
        api::attach_to_wire(foreign.session, &secret, &Seen::default())
    }

    fn guess(&mut self, epoch: Epoch) -> Epoch {
        match self.random.below(6) {
            0..=2 => epoch,
            3..=4 => Epoch(epoch.0 + 1),
            _ => Epoch(epoch.0.saturating_sub(1)),
        }
    }

    /// A request that would harm the session if it were carried out.
    fn act_for(&mut self, session: SessionId, epoch: Epoch) -> v1::Request {
        let action = match (self.random.below(3), self.grants.back()) {
            (0, _) => Action::Close,
            (1, Some(grant)) => Action::Release { grant: *grant, report: None },
            _ => return self.acquire(session, epoch, "account-0"),
        };
        self.request(session, epoch, action)
    }

    fn acquire(&mut self, session: SessionId, epoch: Epoch, name: &str) -> v1::Request {
        let lock = Lock { name: Name::new(name).expect("a plain name"), mode: LockMode::Exclusive };
        let (locks, terms) = (Locks::from_buf([lock]), Terms::default());
        self.request(session, epoch, Action::Acquire(Acquire { locks, owner: None, wait: Wait::No, terms }))
    }

    fn request(&mut self, session: SessionId, epoch: Epoch, action: Action) -> v1::Request {
        self.last_number += 1;
        let (number, seen) = (RequestNumber(self.last_number), Seen::default());
        api::request_to_wire(&Request { session, epoch, number, seen, action })
    }

    /// Adds an invalid part to a message.
    fn say_nonsense(&mut self, session: SessionId, message: &mut v1::ClientMessage) {
        let mut request = self.acquire(session, Epoch(1), "account-0");
        match self.random.below(7) {
            0 => request.number = 0,
            1 => request.action = None,
            2 => request.epoch = u64::MAX,
            3 => {
                if let Some(v1::request::Action::Acquire(acquire)) = &mut request.action {
                    acquire.locks.iter_mut().for_each(|lock| lock.name = "n".repeat(10_000));
                }
            }
            4 => {
                if let Some(v1::request::Action::Acquire(acquire)) = &mut request.action {
                    acquire.locks.iter_mut().for_each(|lock| lock.mode = 77);
                }
            }
            5 => {
                let (mut open, mut attach) = (v1::OpenSession::default(), v1::AttachSession::default());
                (open.session_high, open.session_low) = api::halves(session.0);
                (attach.session_high, attach.session_low) = api::halves(session.0);
                message.opens.push(open);
                message.attaches.push(attach);
            }
            _ => return,
        }
        message.requests.push(request);
    }
}
