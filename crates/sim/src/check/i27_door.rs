//! I27: every command of a session comes from the stream that was bound last with the session's secret. Its answers and pushes reach that
//! stream, or that stream ends. No other stream gets them.
//!
//! This is a second, simple model of the edge. Which stream is bound follows from the decisions of the lock states and from the stream
//! that asked, never from what a node's edge remembers. Each stream is owed what was decided for it, in order. A message takes the whole
//! send buffer, so each message must contain exactly what the stream is owed.
//!
//! Only the client that made a session knows its secret, so every stream bound to the session must belong to that client. This holds for
//! the hostile client and its own sessions, too. The two lock states of a node are separate, and so is each term of the efficiency
//! tier: the same session id in another lock state is another session.

use std::collections::{BTreeSet, VecDeque};

use fencepost_core::{LogPosition, Outcome, Push, Refusal, Reply, SessionId};
use fencepost_session::Tier;
use fencepost_session::bounds::OUTBOX_BYTES_MAX;
use fencepost_session::edge::StreamId;
use fencepost_wire::{api, v1};
use prost::Message;

use super::findings::Findings;
use super::ledger::Map;
use crate::fact::{Kind, StreamCommand};

/// How many bindings of one session are remembered. More than the last one, because a node that is behind may still use an earlier one.
const BINDINGS_MAX: usize = 16;

/// The model of the edges of all nodes: streams, sessions and bindings.
#[derive(Debug, Default)]
pub(super) struct Door {
    streams: Map<StreamId, Stream>,
    sessions: Map<(Locks, SessionId), Session>,
    /// How often each node began or stopped serving, or changed its term.
    terms: Map<u64, u64>,
}

/// A lock state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Locks {
    Replicated,
    /// The efficiency tier of a node, and how many of its terms were over before.
    InMemory(u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Served,
    /// Its term is over. What it was owed before may still be sent; nothing else may happen on it.
    Ending,
    Over,
}

#[derive(Debug)]
struct Stream {
    client: usize,
    node: u64,
    locks: Locks,
    life: Life,
    /// The sessions that the client named on this stream.
    spoken_of: BTreeSet<SessionId>,
    /// The answers that it is owed: session, request number, and index of the entry.
    answers: VecDeque<(SessionId, u64, u64)>,
    /// The pushes that it is owed, with the index of the entry.
    pushes: VecDeque<(v1::Push, u64)>,
    /// The sessions that moved to another stream, with the new epoch. This stream must be told.
    detached: VecDeque<(SessionId, u64)>,
}

#[derive(Debug)]
struct Session {
    /// The client that opened it. `None` if the decision of the open was never reported, because the node crashed before.
    made_by: Option<usize>,
    /// In the order in which the nodes heard of them, the newest last.
    bindings: VecDeque<Binding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Binding {
    /// The entry that decided it.
    index: u64,
    stream: StreamId,
    node: u64,
    /// Whether that entry opened the session. The same entry may also have ended an older session with this id.
    is_first: bool,
}

impl Binding {
    fn is_made_in(&self, index: u64) -> bool {
        self.is_first && self.index == index
    }
}

impl Session {
    /// The last binding up to this entry, in the order of the log.
    fn bound_at(&self, index: u64) -> Option<Binding> {
        self.bindings.iter().filter(|binding| binding.index <= index).max_by_key(|binding| binding.index).copied()
    }

    /// The stream that is bound according to what this node has heard.
    fn bound_by(&self, node: u64) -> Option<StreamId> {
        self.bindings.iter().rev().find(|binding| binding.node == node).map(|binding| binding.stream)
    }
}

impl Door {
    /// The cluster was restored: forgets everything.
    pub(super) fn restored(&mut self) {
        *self = Door::default();
    }

    pub(super) fn connected(&mut self, stream: StreamId, client: usize, node: u64, tier: Tier) {
        let locks = self.locks(node, tier);
        let (spoken_of, answers, pushes, detached) = Default::default();
        let life = Life::Served;
        self.streams.insert(stream, Stream { client, node, locks, life, spoken_of, answers, pushes, detached });
    }

    /// The log has opened a session. An older session with this id has ended, even if no node heard of that, so the client that opened that one
    /// has no right to this one. The decision of the open, if it is reported, tells whose it is.
    pub(super) fn opened_in_log(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(&(Locks::Replicated, session)) {
            session.made_by = None;
        }
    }

    pub(super) fn term_over(&mut self, node: u64) {
        *self.terms.entry(node).or_default() += 1;
        let served = self.streams.values_mut().filter(|stream| stream.node == node && stream.life == Life::Served);
        served.for_each(|stream| stream.life = Life::Ending);
    }

    pub(super) fn stream_over(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.life = Life::Over;
            stream.spoken_of.clear();
            stream.forget_owed();
        }
    }

    pub(super) fn said(&mut self, stream: StreamId, message: &v1::ClientMessage) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        let opens = message.opens.iter().map(|it| (it.session_high, it.session_low));
        let attaches = message.attaches.iter().map(|it| (it.session_high, it.session_low));
        let keep_alives = message.keep_alives.iter().map(|it| (it.session_high, it.session_low));
        let requests = message.requests.iter().map(|it| (it.session_high, it.session_low));
        let all = opens.chain(attaches).chain(keep_alives).chain(requests);
        stream.spoken_of.extend(all.map(|(high, low)| SessionId(api::whole(high, low))));
    }

    /// A node may submit a command only for a stream of this term that is bound to the session. Opens and attaches need no binding.
    pub(super) fn submitted(&mut self, command: StreamCommand, findings: &mut Findings) {
        findings.report.door_commands += 1;
        let Some(stream) = self.streams.get(&command.stream) else {
            return findings.found("I27", || format!("{command:?} is submitted for a stream that never existed"));
        };
        findings.ensure(stream.life == Life::Served, "I27", || {
            format!("{command:?} is submitted for a stream whose term is over: {stream:?}")
        });
        if let Kind::Open | Kind::Attach = command.kind {
            return;
        }
        let bound = self.sessions.get(&(stream.locks, command.session)).and_then(|it| it.bound_by(stream.node));
        findings.ensure(bound == Some(command.stream), "I27", || {
            format!("{command:?} is submitted by node {} for a session that is bound to {bound:?}", stream.node)
        });
    }

    /// A command was decided: updates the binding, and what the streams are owed.
    pub(super) fn decided(
        &mut self,
        command: StreamCommand,
        position: LogPosition,
        reply: &Reply,
        findings: &mut Findings,
    ) {
        let index = position.index;
        let Some(stream) = self.streams.get(&command.stream) else { return };
        let (key, client, node) = ((stream.locks, command.session), stream.client, stream.node);
        let is_first = matches!(reply.outcome, Outcome::Opened { .. }) && reply.repeat.is_none();
        let epoch = match &reply.outcome {
            Outcome::Opened { epoch } if is_first => {
                let session = self.sessions.entry(key).or_insert_with(Session::unknown);
                session.made_by = Some(client);
                Some(*epoch)
            }
            // Rule: attach
            Outcome::Opened { epoch } => {
                self.it_is_its_own(key, client, command, findings);
                let bound = self.served_by(key, node);
                let binds = bound.map_or(epoch.0 == 1, |bound| bound == command.stream);
                if !binds {
                    // The edge tells the client to attach instead.
                    return;
                }
                // If this stream is bound already, nothing changes.
                bound.is_none().then_some(*epoch)
            }
            Outcome::Attached(attached) => {
                self.it_is_its_own(key, client, command, findings);
                Some(attached.epoch)
            }
            outcome => {
                if matches!(command.kind, Kind::KeepAlive | Kind::Request(_)) && !is_turned_away(outcome) {
                    let bound = self.sessions.get(&key).and_then(|session| session.bound_at(index));
                    let is_bound = bound.is_some_and(|binding| {
                        // A client that opens a session with an old id while its old stream still sends requests harms only itself.
                        let is_its_own = self.streams.get(&binding.stream).is_some_and(|it| it.client == client);
                        binding.stream == command.stream || binding.is_first && is_its_own
                    });
                    findings.ensure(is_bound, "I27", || {
                        format!(
                            "{command:?} is carried out at {position:?} ({outcome:?}), but {bound:?} was bound last"
                        )
                    });
                }
                None
            }
        };
        let before = self.served_by(key, node).filter(|before| *before != command.stream && epoch.is_some());
        if let Some((epoch, before)) = epoch.zip(before)
            && let Some(before) = self.streams.get_mut(&before)
        {
            before.detached.push_back((command.session, epoch.0));
        }
        if epoch.is_some() {
            findings.report.door_bindings += 1;
            self.bind(key, Binding { index, stream: command.stream, node, is_first });
        }
        if reply.outcome == Outcome::Closed {
            self.ended(key, |binding| binding.node == node);
        }
        let stream = self.streams.get_mut(&command.stream).expect("just seen");
        if stream.life == Life::Served {
            stream.answers.push_back((command.session, number_of(command.kind), index));
        }
    }

    /// A lock state pushes to a session: the bound stream is owed the push, if it is a stream of this node.
    pub(super) fn pushed(&mut self, node: u64, tier: Tier, position: LogPosition, push: &Push) {
        let key = (self.locks(node, tier), api::push_session(push));
        let Some(session) = self.sessions.get(&key) else { return };
        let is_heard = |binding: &Binding| binding.node == node && !binding.is_made_in(position.index);
        if let Some(binding) = session.bound_at(position.index).filter(is_heard)
            && let Some(stream) = self.streams.get_mut(&binding.stream).filter(|stream| stream.life == Life::Served)
        {
            stream.pushes.push_back((api::push_to_wire(push), position.index));
        }
        if let Push::SessionEnded { .. } = push {
            // Not a session with this id that was opened in the same entry.
            self.ended(key, |binding| binding.node == node && !binding.is_made_in(position.index));
        }
    }

    /// A message contains all that its stream is owed, and nothing else.
    pub(super) fn sent(&mut self, id: StreamId, message: &v1::ServerMessage, findings: &mut Findings) {
        is_within_the_bound(id, message, findings);
        let Some(stream) = self.streams.get_mut(&id) else {
            return findings.found("I27", || format!("a message was sent to {id:?}, which never existed"));
        };
        for decided in &message.decided {
            for answer in &decided.answers {
                findings.report.door_answers += 1;
                let session = SessionId(api::whole(answer.session_high, answer.session_low));
                let (heard, owed) = ((session, answer.number, decided.index), stream.answers.pop_front());
                findings.ensure(owed == Some(heard), "I27", || {
                    format!("{id:?} of client {} gets the answer {heard:?}, but is owed {owed:?}", stream.client)
                });
            }
            for push in &decided.pushes {
                findings.report.door_pushes += 1;
                let owed = stream.pushes.pop_front();
                let is_owed = owed.as_ref().is_some_and(|owed| owed.0 == *push && owed.1 == decided.index);
                findings.ensure(is_owed, "I27", || {
                    format!(
                        "{id:?} of client {} gets {push:?} of {}, but is owed {owed:?}",
                        stream.client, decided.index
                    )
                });
            }
        }
        for detached in &message.detached {
            findings.report.door_detached += 1;
            let heard = (SessionId(api::whole(detached.session_high, detached.session_low)), detached.epoch);
            let owed = stream.detached.pop_front();
            findings.ensure(owed == Some(heard), "I27", || {
                format!("{id:?} is told that {heard:?} is attached elsewhere, but is owed {owed:?}")
            });
        }
        for not_taken in &message.not_taken {
            findings.report.door_refusals += 1;
            let session = SessionId(api::whole(not_taken.session_high, not_taken.session_low));
            findings.ensure(stream.spoken_of.contains(&session), "I27", || {
                format!("{id:?} gets a refusal for {session:?}, which it never named: {not_taken:?}")
            });
        }
        let is_left = !stream.answers.is_empty() || !stream.pushes.is_empty() || !stream.detached.is_empty();
        findings.ensure(!is_left, "I27", || {
            format!("a message to {id:?} leaves out something that it is owed: {stream:?}")
        });
        stream.forget_owed();
    }

    fn locks(&self, node: u64, tier: Tier) -> Locks {
        match tier {
            Tier::Correctness => Locks::Replicated,
            Tier::Efficiency => Locks::InMemory(node, self.terms.get(&node).copied().unwrap_or_default()),
        }
    }

    /// The stream that is bound at this node, if it is still served.
    fn served_by(&self, key: (Locks, SessionId), node: u64) -> Option<StreamId> {
        let bound = self.sessions.get(&key)?.bound_by(node)?;
        self.streams.get(&bound).filter(|stream| stream.life == Life::Served).map(|_| bound)
    }

    /// A session is attached, or opened again, only by the client that opened it first: no other client has its secret.
    fn it_is_its_own(
        &mut self,
        key: (Locks, SessionId),
        client: usize,
        command: StreamCommand,
        findings: &mut Findings,
    ) {
        let session = self.sessions.entry(key).or_insert_with(Session::unknown);
        let made_by = *session.made_by.get_or_insert(client);
        findings.ensure(made_by == client, "I27", || {
            format!("client {client} takes over a session of client {made_by} without its secret: {command:?}")
        });
    }

    fn bind(&mut self, key: (Locks, SessionId), binding: Binding) {
        let bindings = &mut self.sessions.entry(key).or_insert_with(Session::unknown).bindings;
        bindings.push_back(binding);
        if bindings.len() > BINDINGS_MAX {
            bindings.pop_front();
        }
    }

    /// A node heard that a session ended: removes the bindings that ended with it. Any client may use the id again.
    fn ended(&mut self, key: (Locks, SessionId), is_over: impl Fn(&Binding) -> bool) {
        if let Some(session) = self.sessions.get_mut(&key) {
            let last = session.bindings.back().copied();
            session.bindings.retain(|binding| !is_over(binding));
            if session.bindings.back() != last.as_ref() || session.bindings.is_empty() {
                session.made_by = None;
            }
        }
    }
}

impl Session {
    fn unknown() -> Session {
        Session { made_by: None, bindings: VecDeque::new() }
    }
}

impl Stream {
    fn forget_owed(&mut self) {
        self.answers.clear();
        self.pushes.clear();
        self.detached.clear();
    }
}

/// The send buffer of a stream held at most the bound plus one item.
fn is_within_the_bound(stream: StreamId, message: &v1::ServerMessage, findings: &mut Findings) {
    let bytes = message.encoded_len();
    findings.report.door_bytes_max = findings.report.door_bytes_max.max(bytes as u64);
    if bytes <= OUTBOX_BYTES_MAX {
        return;
    }
    // The encoding between the items does not count.
    let decided = message.decided.iter().map(Message::encoded_len);
    let not_taken = message.not_taken.iter().map(Message::encoded_len);
    let items: Vec<usize> = decided.chain(not_taken).chain(message.detached.iter().map(Message::encoded_len)).collect();
    let (sum, largest) = (items.iter().sum::<usize>(), items.iter().max().copied().unwrap_or_default());
    findings.ensure(sum <= OUTBOX_BYTES_MAX + largest, "I27", || {
        format!("{sum} bytes waited for {stream:?}, but the bound is {OUTBOX_BYTES_MAX}")
    });
}

/// Whether the lock state refused the command because of its session or epoch.
fn is_turned_away(outcome: &Outcome) -> bool {
    use Refusal::{NoSession, WrongEpoch};
    matches!(outcome, Outcome::Refused(NoSession | WrongEpoch { .. }))
}

fn number_of(kind: Kind) -> u64 {
    match kind {
        Kind::Request(number) => number.0,
        Kind::Open | Kind::Attach | Kind::KeepAlive => 0,
    }
}
