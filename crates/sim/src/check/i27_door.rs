//! I27: every command of a session came from the stream bound last with its secret; its answers and pushes reach that stream, or that
//! stream ends; no other stream hears them.
//!
//! This is the door once more, written for obviousness: who is bound follows from what the lock states decided and from which stream had
//! asked, never from what a node's edge remembers. Each stream is owed what was decided for it, in order. A message takes everything
//! that waits, so each message must be exactly what is owed.
//!
//! Only the client that made a session knows its secret. So every stream that is bound to the session must be of that client, the
//! hostile one included: what it makes is its own. The two lock states of a node, and each term of the efficiency tier, are apart: the
//! same id in another one is another session.

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

/// Bindings of one session that are remembered. Nodes that are behind may still speak of earlier ones.
const BINDINGS_MAX: usize = 16;

/// Everything about streams and sessions, as the facts tell it.
#[derive(Debug, Default)]
pub(super) struct Door {
    streams: Map<StreamId, Stream>,
    sessions: Map<(Locks, SessionId), Session>,
    /// How often each node began or ended to serve.
    terms: Map<u64, u64>,
}

/// A lock state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Locks {
    Replicated,
    /// The efficiency tier of a node, by how many of its terms were over before.
    InMemory(u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Served,
    /// Its term is over. What it was owed before may still leave, and nothing else happens on it.
    Ending,
    Over,
}

#[derive(Debug)]
struct Stream {
    client: usize,
    node: u64,
    locks: Locks,
    life: Life,
    /// The sessions that the client has spoken of here.
    spoken_of: BTreeSet<SessionId>,
    /// The answers that it is owed: to which session and number, from which entry.
    answers: VecDeque<(SessionId, u64, u64)>,
    /// The pushes that it is owed, with their entries.
    pushes: VecDeque<(v1::Push, u64)>,
    /// The detached sessions that it must hear of, with the epochs of the streams that have them now.
    detached: VecDeque<(SessionId, u64)>,
}

#[derive(Debug)]
struct Session {
    /// The client that made it. None if no open of it was seen decided: its node died before.
    made_by: Option<usize>,
    /// The newest last, as the nodes heard of them.
    bindings: VecDeque<Binding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Binding {
    /// The entry that decided it.
    index: u64,
    stream: StreamId,
    node: u64,
    /// Whether that entry made the session. Then another session with this id may have ended in it.
    is_first: bool,
}

impl Binding {
    fn is_made_in(&self, index: u64) -> bool {
        self.is_first && self.index == index
    }
}

impl Session {
    /// The stream that was bound last, in the order of the lock state, when this entry was applied.
    fn bound_at(&self, index: u64) -> Option<Binding> {
        self.bindings.iter().filter(|binding| binding.index <= index).max_by_key(|binding| binding.index).copied()
    }

    /// The stream that was bound last, as this node has heard.
    fn bound_by(&self, node: u64) -> Option<StreamId> {
        self.bindings.iter().rev().find(|binding| binding.node == node).map(|binding| binding.stream)
    }
}

impl Door {
    /// Nothing is left of the old cluster.
    pub(super) fn restored(&mut self) {
        *self = Door::default();
    }

    pub(super) fn connected(&mut self, stream: StreamId, client: usize, node: u64, tier: Tier) {
        let locks = self.locks(node, tier);
        let (spoken_of, answers, pushes, detached) = Default::default();
        let life = Life::Served;
        self.streams.insert(stream, Stream { client, node, locks, life, spoken_of, answers, pushes, detached });
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

    /// A node submits only what a stream may ask for.
    pub(super) fn submitted(&mut self, command: StreamCommand, findings: &mut Findings) {
        findings.report.door_commands += 1;
        let Some(stream) = self.streams.get(&command.stream) else {
            return findings.found("I27", || format!("{command:?} is submitted for a stream that never was"));
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

    /// A command was decided: what that means for who is bound, and what its stream is owed.
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
                    // It is told to attach instead.
                    return;
                }
                // If it is bound already, nothing changes.
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
                        // A client that makes a session of an old id while its old stream asks on harms itself alone.
                        let is_its_own = self.streams.get(&binding.stream).is_some_and(|it| it.client == client);
                        binding.stream == command.stream || binding.is_first && is_its_own
                    });
                    findings.ensure(is_bound, "I27", || {
                        format!(
                            "{command:?} is carried out at {position:?} ({outcome:?}), and {bound:?} was bound last"
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

    /// A session is to be told something: the stream that is bound to it is owed it, if it is one of this node.
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
            // Not the one that was made in the same entry.
            self.ended(key, |binding| binding.node == node && !binding.is_made_in(position.index));
        }
    }

    /// A message is all that its stream is owed, and nothing else.
    pub(super) fn sent(&mut self, id: StreamId, message: &v1::ServerMessage, findings: &mut Findings) {
        is_within_the_bound(id, message, findings);
        let Some(stream) = self.streams.get_mut(&id) else {
            return findings.found("I27", || format!("a message for {id:?}, which never was"));
        };
        for decided in &message.decided {
            for answer in &decided.answers {
                findings.report.door_answers += 1;
                let session = SessionId(api::whole(answer.session_high, answer.session_low));
                let (heard, owed) = ((session, answer.number, decided.index), stream.answers.pop_front());
                findings.ensure(owed == Some(heard), "I27", || {
                    format!("{id:?} of client {} hears the answer {heard:?}, and is owed {owed:?}", stream.client)
                });
            }
            for push in &decided.pushes {
                findings.report.door_pushes += 1;
                let owed = stream.pushes.pop_front();
                let is_owed = owed.as_ref().is_some_and(|owed| owed.0 == *push && owed.1 == decided.index);
                findings.ensure(is_owed, "I27", || {
                    format!(
                        "{id:?} of client {} hears {push:?} of {}, and is owed {owed:?}",
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
                format!("{id:?} hears that {heard:?} is attached elsewhere, and is owed {owed:?}")
            });
        }
        for not_taken in &message.not_taken {
            findings.report.door_refusals += 1;
            let session = SessionId(api::whole(not_taken.session_high, not_taken.session_low));
            findings.ensure(stream.spoken_of.contains(&session), "I27", || {
                format!("{id:?} hears of {session:?}, which it never spoke of: {not_taken:?}")
            });
        }
        let is_left = !stream.answers.is_empty() || !stream.pushes.is_empty() || !stream.detached.is_empty();
        findings
            .ensure(!is_left, "I27", || format!("{id:?} is sent a message without all that it is owed: {stream:?}"));
        stream.forget_owed();
    }

    fn locks(&self, node: u64, tier: Tier) -> Locks {
        match tier {
            Tier::Correctness => Locks::Replicated,
            Tier::Efficiency => Locks::InMemory(node, self.terms.get(&node).copied().unwrap_or_default()),
        }
    }

    /// The stream that is bound at this node, if it is there and its term is not over.
    fn served_by(&self, key: (Locks, SessionId), node: u64) -> Option<StreamId> {
        let bound = self.sessions.get(&key)?.bound_by(node)?;
        self.streams.get(&bound).filter(|stream| stream.life == Life::Served).map(|_| bound)
    }

    /// Only the client that made a session has its secret.
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
            format!("client {client} takes a session of client {made_by} over, without its secret: {command:?}")
        });
    }

    fn bind(&mut self, key: (Locks, SessionId), binding: Binding) {
        let bindings = &mut self.sessions.entry(key).or_insert_with(Session::unknown).bindings;
        bindings.push_back(binding);
        if bindings.len() > BINDINGS_MAX {
            bindings.pop_front();
        }
    }

    /// A node has heard that a session is over, and with it these bindings. Its id may be used again, by any client.
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

/// What waited for a stream was at most the bound and one item more.
fn is_within_the_bound(stream: StreamId, message: &v1::ServerMessage, findings: &mut Findings) {
    let bytes = message.encoded_len();
    findings.report.door_bytes_max = findings.report.door_bytes_max.max(bytes as u64);
    if bytes <= OUTBOX_BYTES_MAX {
        return;
    }
    // What stands between the items does not count.
    let decided = message.decided.iter().map(Message::encoded_len);
    let not_taken = message.not_taken.iter().map(Message::encoded_len);
    let items: Vec<usize> = decided.chain(not_taken).chain(message.detached.iter().map(Message::encoded_len)).collect();
    let (sum, largest) = (items.iter().sum::<usize>(), items.iter().max().copied().unwrap_or_default());
    findings.ensure(sum <= OUTBOX_BYTES_MAX + largest, "I27", || {
        format!("{sum} bytes waited for {stream:?}, and the bound is {OUTBOX_BYTES_MAX}")
    });
}

/// Whether the lock state itself has refused to let the session act.
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
