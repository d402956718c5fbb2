//! The node's side of the session protocol: which stream may act for which session, and where each answer goes.
//!
//! The driver tells the edge what happens: a client connected, a message came, a turn of the replica gave a reply or a push. The edge
//! submits commands through one port ([`Submit`]) and hands out messages by [`Edge::poll_transmit`]. It knows no socket, no replica
//! and no lock rule. Reads, administrative acts and changes of the members belong to the driver: the edge hands back the replies whose
//! tickets it does not know. See docs/decisions/0022-the-edge-without-io.md.

mod binding;
mod opening;
mod outbox;
mod stream;
mod tickets;

#[cfg(test)]
mod tests;

use fencepost_core::{
    Action, Epoch, LogPosition, LogicalMs, Operation, Outcome, Principal, Push, Renewal, Reply, Request, RequestNumber,
    SecretHash, SessionId, Ticket,
};
use fencepost_wire::{api, v1};
use foldhash::fast::FixedState;
use sha2::{Digest, Sha256};

use self::binding::{Binding, Bindings, MayNot};
use self::opening::{NotHeld, Opening};
use self::outbox::Outbox;
use self::stream::Stream;
use self::tickets::{Kind, StreamCommand, Tickets};
use crate::bounds::{OUTBOXES_BYTES_MAX, STREAMS_MAX};
use crate::end::{End, NotTaken, Reason};
use crate::planted::{Bug, planted};
use crate::tier::Tier;

/// A hash table whose order must not be visible. Its hashes depend only on the edge's seed.
type Table<Key, Value> = hashbrown::HashMap<Key, Value, FixedState>;
type Set<Key> = hashbrown::HashSet<Key, FixedState>;

fn table<Key, Value>(hash_seed: u64) -> Table<Key, Value> {
    Table::with_hasher(FixedState::with_seed(hash_seed))
}

fn set<Key>(hash_seed: u64) -> Set<Key> {
    Set::with_hasher(FixedState::with_seed(hash_seed))
}

/// One client's stream. The driver chooses the number, and never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A command of a stream to a lock state.
#[derive(Clone, Debug)]
pub enum Command {
    /// An open or a request.
    Operation(Operation),
    /// A keep-alive or an attach.
    Renewal(Renewal),
}

/// Where the edge submits commands: the replica and the efficiency tier beside it, or a test's lock state.
pub trait Submit {
    /// Takes a command. The driver passes its reply, with the ticket, to [`Edge::handle_reply`].
    ///
    /// # Errors
    /// [`NotTaken`] if the command was not carried out, and will not be.
    fn submit(&mut self, tier: Tier, command: Command) -> Result<Ticket, NotTaken>;
}

/// The leader, as the hello of a stream names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The cluster.
    pub cluster: u128,
    /// Its replicated group.
    pub group: u64,
    /// The node that leads.
    pub node: u64,
    /// The term in which it leads.
    pub term: u64,
}

/// What the node sends on a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Transmit {
    /// A message.
    Message(v1::ServerMessage),
    /// The stream is over. Nothing follows.
    End(End),
}

/// The streams of one node.
#[derive(Debug)]
pub struct Edge {
    hash_seed: u64,
    streams: Table<StreamId, Stream>,
    /// Which stream acts for each session, and gets its pushes.
    bindings: Bindings,
    tickets: Tickets,
    /// The term of all streams. `None` if the node does not serve.
    serves_in: Option<u64>,
    /// Bytes in all send buffers. Invariant: the sum over `streams`.
    unread_bytes: usize,
    /// Streams that have something to send. Invariant: a stream is listed exactly if its `is_ready` is set.
    ready: Vec<StreamId>,
}

impl Edge {
    /// An edge without streams. A random seed keeps clients from choosing ids whose hashes collide; a simulation uses the same seed
    /// each time.
    pub fn new(hash_seed: u64) -> Edge {
        Edge {
            hash_seed,
            streams: table(hash_seed),
            bindings: Bindings::new(hash_seed),
            tickets: Tickets::new(hash_seed),
            serves_in: None,
            unread_bytes: 0,
            ready: Vec::new(),
        }
    }

    /// The number of streams, including those that are ending.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    // ---- Input

    /// A client has connected. `lead` says that this node leads, or why it does not serve.
    ///
    /// # Errors
    /// [`End`] if the node does not serve the stream. It says where to ask instead.
    pub fn handle_connected(
        &mut self,
        id: StreamId,
        principal: Principal,
        tier: Tier,
        lead: Result<Lead, End>,
    ) -> Result<(), End> {
        let lead = lead?;
        if self.streams.len() >= STREAMS_MAX {
            let message = format!("this node serves {STREAMS_MAX} streams already: share a stream between sessions");
            return Err(End::new(Reason::TooManyStreams, message));
        }
        let (cluster_high, cluster_low) = api::halves(lead.cluster);
        let (group, node, term) = (tier.group(lead.group, lead.term), lead.node, lead.term);
        self.streams.insert(id, Stream::new(tier, principal, self.hash_seed));
        self.put(id, |outbox| outbox.hello(v1::Hello { cluster_high, cluster_low, group, node, term }));
        Ok(())
    }

    /// A stream's connection is closed. Its sessions stay alive.
    pub fn handle_disconnected(&mut self, id: StreamId) {
        self.let_go_of_sessions(id);
        if let Some(stream) = self.streams.remove(&id) {
            self.unread_bytes -= stream.outbox.bytes();
        }
    }

    /// The driver ends a stream because of a fault on the connection. Messages that wait in the send buffer still go out.
    pub fn handle_fault(&mut self, id: StreamId, why: End) {
        self.end_stream(id, why);
    }

    /// The term in which this node serves, or `None`. Streams belong to one term: when it changes they end, and clients attach their
    /// sessions at the new leader.
    // Rule: tier-efficiency
    pub fn handle_lead(&mut self, serves_in: Option<u64>, why: impl FnOnce() -> End) {
        if std::mem::replace(&mut self.serves_in, serves_in) != serves_in {
            self.tickets.forget_efficiency();
            self.end_streams(&why());
        }
    }

    /// The node is about to stop.
    pub fn handle_shut_down(&mut self) {
        self.end_streams(&End::shutting_down());
    }

    /// A message of a client came.
    pub fn handle_message(&mut self, id: StreamId, message: v1::ClientMessage, port: &mut impl Submit) {
        if self.streams.get(&id).is_none_or(|stream| stream.outbox.is_closed()) {
            return;
        }
        for open in &message.opens {
            let session = SessionId(api::whole(open.session_high, open.session_low));
            let Stream { tier, principal, .. } = &self.streams[&id];
            let (tier, principal) = (*tier, principal.clone());
            // While the id is bound to another stream the open is refused, even if that session has just ended. So every request of the
            // old session is in the log before the open, and never becomes a request of the new session with the same id.
            if self.is_bound_elsewhere(tier, session, id) {
                self.answer_may_not(id, session, Kind::Open, MayNot::NotBound);
                continue;
            }
            match api::open_from_wire(open, principal, hash) {
                Ok(asked) => {
                    let is_taken =
                        self.submit(id, session, Kind::Open, Command::Operation(Operation::Open(asked)), port);
                    if let Some(stream) = self.streams.get_mut(&id).filter(|_| is_taken) {
                        stream.opening.begin(session);
                    }
                }
                Err(error) => self.answer_invalid(id, session, Kind::Open, error.for_caller()),
            }
        }
        for attach in &message.attaches {
            let session = SessionId(api::whole(attach.session_high, attach.session_low));
            let renewal = api::attach_from_wire(attach, hash);
            self.submit(id, session, Kind::Attach, Command::Renewal(renewal), port);
        }
        for keep_alive in &message.keep_alives {
            let session = SessionId(api::whole(keep_alive.session_high, keep_alive.session_low));
            match self.check(id, session, keep_alive.epoch) {
                Ok(()) => {
                    let renewal = api::keep_alive_from_wire(keep_alive);
                    self.submit(id, session, Kind::KeepAlive, Command::Renewal(renewal), port);
                }
                Err(why) => self.answer_may_not(id, session, Kind::KeepAlive, why),
            }
        }
        for request in message.requests {
            self.take_request(id, request, port);
        }
    }

    /// The lock state has decided a command. Returns the reply if no stream asked for it.
    pub fn handle_reply(
        &mut self,
        (tier, ticket): (Tier, Ticket),
        (position, stamp): (LogPosition, LogicalMs),
        reply: Reply,
        port: &mut impl Submit,
    ) -> Option<Reply> {
        let Some(StreamCommand { stream: id, session, kind }) = self.tickets.take(tier, ticket) else {
            return Some(reply);
        };
        if let Outcome::Opened { epoch } = reply.outcome
            && reply.repeat.is_some()
            && self.refuses_repeated_open(tier, session, id, epoch)
        {
            self.answer_may_not(id, session, kind, MayNot::NotBound);
            self.run_held(id, session, port);
            return None;
        }
        let answers = vec![api::answer_to_wire(session, kind.number(), &reply)];
        let to = self.answers_to(tier, session, id);
        self.put(to, |outbox| outbox.decided(v1::Decided { answers, ..entry_at(position, stamp) }));
        match reply.outcome {
            Outcome::Opened { epoch } => {
                let opened_at = match reply.repeat {
                    None => Some(position),
                    Some(_) => self.bindings.get(tier, session).and_then(|binding| binding.opened_at),
                };
                self.bind(tier, session, Binding { stream: id, epoch, opened_at });
            }
            Outcome::Attached(attached) => {
                self.bind(tier, session, Binding { stream: id, epoch: attached.epoch, opened_at: None });
            }
            Outcome::Closed => self.unbind(tier, session),
            _ => {}
        }
        if kind == Kind::Open {
            self.run_held(id, session, port);
        }
        None
    }

    /// The node lost leadership before a command was decided. Returns whether a stream had asked for it. That stream ends soon; the
    /// client then attaches at the new leader and learns what became of the command.
    pub fn handle_abandoned(&mut self, tier: Tier, ticket: Ticket) -> bool {
        self.tickets.take(tier, ticket).is_some()
    }

    /// The lock state has a push for a session. Returns whether a stream here gets it.
    pub fn handle_push(&mut self, tier: Tier, (position, stamp): (LogPosition, LogicalMs), push: &Push) -> bool {
        let session = api::push_session(push);
        let Some(binding) = self.bindings.get(tier, session).filter(|binding| self.hears(binding, position)) else {
            return false;
        };
        let pushes = vec![api::push_to_wire(push)];
        self.put(binding.stream, |outbox| outbox.decided(v1::Decided { pushes, ..entry_at(position, stamp) }));
        if let Push::SessionEnded { .. } = push {
            self.unbind(tier, session);
        }
        true
    }

    // ---- Output

    /// A stream that has something new to send. The order of streams is arbitrary.
    pub fn poll_ready(&mut self) -> Option<StreamId> {
        let id = self.ready.pop()?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_ready = false;
        }
        Some(id)
    }

    /// What to send on a stream next. After [`Transmit::End`] the driver calls [`Edge::handle_disconnected`].
    pub fn poll_transmit(&mut self, id: StreamId) -> Option<Transmit> {
        let outbox = &mut self.streams.get_mut(&id)?.outbox;
        self.unread_bytes -= outbox.bytes();
        let transmit = outbox.poll();
        self.unread_bytes += outbox.bytes();
        transmit
    }

    // ---- Private steps

    fn take_request(&mut self, id: StreamId, request: v1::Request, port: &mut impl Submit) {
        let session = SessionId(api::whole(request.session_high, request.session_low));
        let kind = Kind::Request(RequestNumber(request.number));
        match self.check(id, session, request.epoch) {
            Ok(()) => {}
            Err(MayNot::NotBound) => {
                let Some(stream) = self.streams.get_mut(&id) else { return };
                return match stream.opening.hold(session, request) {
                    Ok(()) => {}
                    Err(NotHeld::NotOpening) => self.answer_may_not(id, session, kind, MayNot::NotBound),
                    Err(NotHeld::Full) => self.answer_not_taken(id, session, kind, NotTaken::Overloaded),
                };
            }
            Err(why) => return self.answer_may_not(id, session, kind, why),
        }
        match api::request_from_wire(request) {
            Ok(request) if self.is_forgetful(id) && asks_for_job(&request) => {
                self.answer_invalid(id, session, kind, NO_JOBS.to_owned());
            }
            Ok(request) => {
                self.submit(id, session, kind, Command::Operation(Operation::Request(request)), port);
            }
            Err(error) => self.answer_invalid(id, session, kind, error.for_caller()),
        }
    }

    /// Whether the stream is for the efficiency tier, which forgets everything with its term.
    // Rule: tier-efficiency
    fn is_forgetful(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.tier == Tier::Efficiency)
    }

    fn check(&self, id: StreamId, session: SessionId, epoch: u64) -> Result<(), MayNot> {
        let stream = self.streams.get(&id).ok_or(MayNot::NotBound)?;
        self.bindings.check(stream.tier, session, id, epoch)
    }

    /// An open was answered. The requests held behind it are taken if the open bound the session, and refused otherwise.
    fn run_held(&mut self, id: StreamId, session: SessionId, port: &mut impl Submit) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        for request in stream.opening.end(session) {
            self.take_held(id, session, request, port);
        }
    }

    /// Whether a repeated open binds the session to its stream. It does not take the session from another stream, and it does not
    /// undo an attach, because it may be an old message of a stream that is gone.
    fn may_repeat_open(&self, tier: Tier, session: SessionId, id: StreamId, epoch: Epoch) -> bool {
        match self.bindings.get(tier, session) {
            Some(binding) => binding.stream == id,
            None => epoch == Epoch(1),
        }
    }

    /// Submits a command of a stream. If it is not taken, tells the client why and returns false.
    fn submit(
        &mut self,
        id: StreamId,
        session: SessionId,
        kind: Kind,
        command: Command,
        port: &mut impl Submit,
    ) -> bool {
        let Some(tier) = self.streams.get(&id).map(|stream| stream.tier) else { return false };
        match port.submit(tier, command) {
            Ok(ticket) => {
                self.tickets.insert(tier, ticket, StreamCommand { stream: id, session, kind });
                true
            }
            // No answer: the stream ends soon, and its end says where to go.
            Err(NotTaken::NotLeader) => false,
            Err(why) => {
                self.answer_not_taken(id, session, kind, why);
                false
            }
        }
    }

    fn answer_may_not(&mut self, id: StreamId, session: SessionId, kind: Kind, why: MayNot) {
        let (why, message) = match why {
            MayNot::NotBound => (
                v1::NotTakenWhy::AttachFirst,
                "this stream does not act for the session: attach it here, with its secret, then ask again",
            ),
            MayNot::LaterEpoch => (
                v1::NotTakenWhy::Invalid,
                "this epoch is later than the stream's: use the epoch that its open or attach was answered with",
            ),
        };
        self.put_not_taken(id, session, kind, why, message.to_owned(), None);
    }

    fn answer_invalid(&mut self, id: StreamId, session: SessionId, kind: Kind, message: String) {
        self.put_not_taken(id, session, kind, v1::NotTakenWhy::Invalid, message, None);
    }

    fn answer_not_taken(&mut self, id: StreamId, session: SessionId, kind: Kind, why: NotTaken) {
        let code = match why {
            NotTaken::DiskShort => v1::NotTakenWhy::DiskShort,
            NotTaken::Overloaded | NotTaken::NotLeader => v1::NotTakenWhy::Overloaded,
        };
        let retry_after_ms = u64::try_from(why.retry_after().as_millis()).ok();
        self.put_not_taken(id, session, kind, code, why.message().to_owned(), retry_after_ms);
    }

    fn put_not_taken(
        &mut self,
        id: StreamId,
        session: SessionId,
        kind: Kind,
        why: v1::NotTakenWhy,
        message: String,
        retry_after_ms: Option<u64>,
    ) {
        let (session_high, session_low) = api::halves(session.0);
        let (number, why) = (kind.number().map_or(0, |number| number.0), why.into());
        let not_taken = v1::NotTaken { session_high, session_low, number, why, message, retry_after_ms };
        self.put(id, |outbox| outbox.not_taken(not_taken));
    }

    /// Binds a session to the stream that has shown its secret. The previous stream gets a `Detached` and keeps its other sessions.
    /// If the new stream is gone by now, the session is bound to no stream: the previous stream's epoch is over all the same.
    // Rule: attach
    fn bind(&mut self, tier: Tier, session: SessionId, binding: Binding) {
        let before = match self.streams.get_mut(&binding.stream).filter(|stream| !stream.outbox.is_closed()) {
            Some(stream) => {
                stream.sessions.insert(session);
                self.bindings.bind(tier, session, binding)
            }
            None => self.bindings.unbind(tier, session),
        };
        let Some(before) = before.filter(|before| before.stream != binding.stream) else { return };
        if let Some(stream) = self.streams.get_mut(&before.stream) {
            stream.sessions.remove(&session);
        }
        self.tell_detached(before.stream, session, binding.epoch);
    }

    fn unbind(&mut self, tier: Tier, session: SessionId) {
        if let Some(binding) = self.bindings.unbind(tier, session)
            && let Some(stream) = self.streams.get_mut(&binding.stream)
        {
            stream.sessions.remove(&session);
        }
    }

    /// Unbinds all sessions of a stream, and drops the requests that it holds behind opens.
    fn let_go_of_sessions(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let tier = stream.tier;
        for session in stream.sessions.drain() {
            self.bindings.unbind(tier, session);
        }
        stream.opening = Opening::new(self.hash_seed);
    }

    fn end_stream(&mut self, id: StreamId, why: End) {
        self.let_go_of_sessions(id);
        self.put(id, |outbox| outbox.end(why));
    }

    fn end_streams(&mut self, why: &End) {
        let ending = self.streams.iter().filter(|(_, stream)| ends_with_term(stream.tier));
        let ids: Vec<StreamId> = ending.map(|(id, _)| *id).collect();
        for id in ids {
            self.end_stream(id, why.clone());
        }
    }

    /// Puts something into a stream's send buffer, counts its bytes, and marks the stream as ready.
    fn put(&mut self, id: StreamId, put: impl FnOnce(&mut Outbox)) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.outbox.is_crowded = self.unread_bytes > OUTBOXES_BYTES_MAX;
        self.unread_bytes -= stream.outbox.bytes();
        put(&mut stream.outbox);
        self.unread_bytes += stream.outbox.bytes();
        if !std::mem::replace(&mut stream.is_ready, true) {
            self.ready.push(id);
        }
    }

    // ---- Private steps with a planted fault: see planted.rs

    fn is_bound_elsewhere(&self, tier: Tier, session: SessionId, id: StreamId) -> bool {
        let is_elsewhere = self.bindings.get(tier, session).is_some_and(|binding| binding.stream != id);
        is_elsewhere && !planted(Bug::OpensBeforeTheEnd)
    }

    fn refuses_repeated_open(&self, tier: Tier, session: SessionId, id: StreamId, epoch: Epoch) -> bool {
        !self.may_repeat_open(tier, session, id, epoch) && !planted(Bug::RepeatedOpenTakesOver)
    }

    /// The stream that an answer goes to: the stream `id`, which asked.
    fn answers_to(&self, tier: Tier, session: SessionId, id: StreamId) -> StreamId {
        let bound = self.bindings.get(tier, session).filter(|_| planted(Bug::AnswersTheBoundStream));
        bound.map_or(id, |binding| binding.stream)
    }

    fn hears(&self, binding: &Binding, position: LogPosition) -> bool {
        let has_unread = || self.streams.get(&binding.stream).is_some_and(|stream| stream.outbox.bytes() > 0);
        binding.hears(position) && !(planted(Bug::DropsPushBehindAnswer) && has_unread())
    }

    /// Takes a request that was held behind an open.
    fn take_held(&mut self, id: StreamId, session: SessionId, request: v1::Request, port: &mut impl Submit) {
        if !planted(Bug::RunsHeldOfRefused) {
            return self.take_request(id, request, port);
        }
        let kind = Kind::Request(RequestNumber(request.number));
        if let Ok(request) = api::request_from_wire(request) {
            self.submit(id, session, kind, Command::Operation(Operation::Request(request)), port);
        }
    }

    /// Tells a stream that another stream acts for the session now, in this epoch.
    fn tell_detached(&mut self, id: StreamId, session: SessionId, epoch: Epoch) {
        if planted(Bug::DetachesInSilence) {
            return;
        }
        let (session_high, session_low) = api::halves(session.0);
        let detached = v1::Detached { session_high, session_low, epoch: epoch.0 };
        self.put(id, |outbox| outbox.detached(detached));
    }
}

/// Whether the streams of a tier end with their term. All do, except with a planted fault.
fn ends_with_term(tier: Tier) -> bool {
    !planted(match tier {
        Tier::Correctness => Bug::KeepsStreamsOverTerm,
        Tier::Efficiency => Bug::KeepsEfficiencyStreamsOverTerm,
    })
}

/// The hash of a secret. The log has only the hash.
fn hash(secret: &[u8]) -> SecretHash {
    taken_for_hash(secret).unwrap_or_else(|| SecretHash(Sha256::digest(secret).into()))
}

/// The secret itself as a hash: only with a planted fault.
fn taken_for_hash(secret: &[u8]) -> Option<SecretHash> {
    <[u8; 32]>::try_from(secret).ok().filter(|_| planted(Bug::TakesHashForSecret)).map(SecretHash)
}

/// An entry without answers and pushes yet.
fn entry_at(position: LogPosition, stamp: LogicalMs) -> v1::Decided {
    v1::Decided { index: position.index, term: position.term, stamp_ms: stamp.0, ..v1::Decided::default() }
}

const NO_JOBS: &str =
    "the efficiency tier has no jobs: it forgets what is done when the leader changes. Use the correctness tier";

fn asks_for_job(request: &Request) -> bool {
    matches!(&request.action, Action::Acquire(acquire) if acquire.terms.job.is_some())
}
