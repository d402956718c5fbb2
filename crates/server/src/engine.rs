//! Where requests meet the replica: who asked what, and where the answer goes.
//!
//! There is one engine a process, and one thread. Whoever has something for the replica submits it here and rings the bell
//! ([`Shared::ring`]); the turn loop turns the replica and hands out what came of it. The engine knows streams, sessions and
//! tickets. It decides nothing about locks and nothing about consensus.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_core::{
    Admin, LogicalMs, Operation, Outcome, Principal, Renewal, Reply, RequestNumber, SecretHash, SessionId, bounds,
};
use fencepost_replica::{
    LogPosition, MemberChange, MemberView, Nanos, Node, NotTaken, Output, Replica, Role, SILENT_AFTER_MS, Stop, Ticket,
    Unreplicated,
};
use fencepost_wire::{api, v1};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, oneshot, watch};
use tonic::Status;

use crate::clock;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::peers::Peers;
use crate::status;

/// The efficiency tier of each term is a group of its own. Replicated groups count from one.
// Rule: tier-efficiency
const EFFICIENCY_GROUPS: u64 = 1 << 63;

/// One client's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamId(u64);

/// Which lock state a stream is about: the replicated one, or the one in this node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tier {
    Correctness,
    Efficiency,
}

/// What a stream can ask of a lock state.
enum Command {
    Operation(Operation),
    Renewal(Renewal),
}

struct Stream {
    tier: Tier,
    outbox: Outbox,
    principal: Principal,
    /// Sessions that were opened or attached here. Only for those may this stream act: an id alone is no credential.
    sessions: HashSet<SessionId>,
    /// Sessions whose open is not answered yet, with the requests that came behind it.
    opening: HashMap<SessionId, Vec<v1::Request>>,
}

/// What a ticket stands for.
enum Asked {
    OnStream { stream: StreamId, session: SessionId, number: Option<RequestNumber> },
    Act(oneshot::Sender<Acted>),
    Read(oneshot::Sender<()>),
    MemberChange(oneshot::Sender<()>),
}

/// What came of an administrator's act.
pub(crate) struct Acted {
    pub(crate) position: LogPosition,
    pub(crate) stamp: LogicalMs,
    pub(crate) outcome: Outcome,
}

/// What observers of the whole node may wait for. It seldom changes; how far the log is applied is said apart, so that nobody
/// who does not care is woken by every entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The term in which this node leads and serves, if it does.
    pub(crate) serves_in: Option<u64>,
    pub(crate) leader: Option<u64>,
    /// The newest snapshot.
    pub(crate) snapshot: Option<LogPosition>,
    /// Whether this node is no member any more. Consensus still names the leader that it had then.
    pub(crate) was_removed: bool,
}

pub(crate) struct Engine {
    node: Node,
    pub(crate) peers: Peers,
    pub(crate) metrics: Arc<Metrics>,
    streams: HashMap<StreamId, Stream>,
    next_stream: u64,
    /// Where each session is connected: where its pushes go.
    connected: HashMap<SessionId, StreamId>,
    /// Each tier counts its tickets by itself.
    asked: HashMap<(Tier, Ticket), Asked>,
    /// The efficiency tier, while this node leads: it belongs to the term.
    efficiency: Option<Unreplicated>,
    /// The term whose streams these are.
    serves_in: Option<u64>,
    progress: watch::Sender<Progress>,
    applied: watch::Sender<LogPosition>,
    is_shutting_down: bool,
}

/// The engine, as everybody has it.
#[derive(Clone)]
pub(crate) struct Shared {
    engine: Arc<Mutex<Engine>>,
    bell: Arc<Notify>,
    progress: watch::Receiver<Progress>,
    applied: watch::Receiver<LogPosition>,
}

impl Shared {
    pub(crate) fn new(node: Node, peers: Peers, metrics: Arc<Metrics>, bell: Arc<Notify>) -> Shared {
        let (progress, progress_seen) = watch::channel(progress_of(&node));
        let (applied, applied_seen) = watch::channel(node.replica().applied());
        let engine = Engine {
            node,
            peers,
            metrics,
            streams: HashMap::new(),
            next_stream: 0,
            connected: HashMap::new(),
            asked: HashMap::new(),
            efficiency: None,
            serves_in: None,
            progress,
            applied,
            is_shutting_down: false,
        };
        Shared { engine: Arc::new(Mutex::new(engine)), bell, progress: progress_seen, applied: applied_seen }
    }

    /// The engine. Nobody holds it across an await, and there is one thread, so nobody waits here.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a turn soon.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// How far the log is applied.
    pub(crate) fn applied(&self) -> watch::Receiver<LogPosition> {
        self.applied.clone()
    }

    /// Returns when the state shows everything that was acknowledged before the call.
    ///
    /// # Errors
    /// A status that says where to ask instead.
    pub(crate) async fn linearize(&self) -> Result<(), Status> {
        let ready = {
            let mut engine = self.engine();
            engine.begin_read()?
        };
        self.ring();
        ready.await.map_err(|_| self.engine().not_leader())
    }

    /// Carries an administrator's act through the log.
    ///
    /// # Errors
    /// A status that says where to ask instead, or that the outcome is unknown.
    pub(crate) async fn act(&self, admin: Admin) -> Result<Acted, Status> {
        let acted = {
            let mut engine = self.engine();
            let ticket = engine.submit(Operation::Admin(admin))?;
            let (sender, receiver) = oneshot::channel();
            engine.asked.insert((Tier::Correctness, ticket), Asked::Act(sender));
            receiver
        };
        self.ring();
        acted.await.map_err(|_| status::outcome_unknown())
    }

    /// Changes the members, all at once, and returns when the change is through.
    ///
    /// # Errors
    /// A status that says why not, where to ask instead, or that the outcome is unknown.
    pub(crate) async fn change_members(&self, changes: Vec<MemberChange>) -> Result<(), Status> {
        let changed = {
            let mut engine = self.engine();
            let taken = engine.node.replica_mut().change_members(&changes);
            let ticket = taken.map_err(|why| engine.refusal(&why))?;
            let (sender, receiver) = oneshot::channel();
            engine.asked.insert((Tier::Correctness, ticket), Asked::MemberChange(sender));
            receiver
        };
        self.ring();
        changed.await.map_err(|_| status::outcome_unknown())
    }
}

/// An entry, with nothing in it yet for a stream.
fn entry_at(position: LogPosition, stamp: LogicalMs) -> v1::Decided {
    v1::Decided { index: position.index, term: position.term, stamp_ms: stamp.0, ..Default::default() }
}

fn name_of(member: &MemberView) -> &str {
    member.member.as_ref().map_or("not yet described", |member| member.name())
}

fn progress_of(node: &Node) -> Progress {
    let replica = node.replica();
    Progress {
        serves_in: replica.serves().then(|| replica.term()),
        leader: replica.leader(),
        snapshot: replica.newest_snapshot(),
        was_removed: replica.was_removed(),
    }
}

impl Engine {
    pub(crate) fn replica(&self) -> &Replica {
        self.node.replica()
    }

    pub(crate) fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// When to turn next, if nothing comes before.
    pub(crate) fn next_turn(&self) -> Nanos {
        let next = self.node.next_turn();
        self.efficiency.as_ref().and_then(Unreplicated::next_turn).map_or(next, |other| other.min(next))
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The leader's address for clients, if it is known.
    pub(crate) fn leader_address(&self) -> Option<String> {
        let replica = self.replica();
        let leader = replica.leader().filter(|leader| *leader != replica.id())?;
        replica.member(leader).map(|member| member.client_address().to_owned())
    }

    /// The same, and this node's own if it leads.
    pub(crate) fn known_leader_address(&self) -> Option<String> {
        let replica = self.replica();
        replica.member(replica.leader()?).map(|member| member.client_address().to_owned())
    }

    pub(crate) fn not_leader(&self) -> Status {
        if self.is_shutting_down {
            status::shutting_down()
        } else if self.replica().was_removed() {
            status::removed()
        } else {
            status::not_leader(self.leader_address().as_deref(), &self.replica().hearing())
        }
    }

    /// As a status, with where to ask instead.
    pub(crate) fn refusal(&self, why: &NotTaken) -> Status {
        match why {
            NotTaken::NotLeader { .. } if self.replica().was_removed() => status::removed(),
            NotTaken::NotLeader { .. } => {
                status::not_leader(self.leader_address().as_deref(), &self.replica().hearing())
            }
            why => status::not_taken(why),
        }
    }

    /// Nothing if this node is a member, or about to be one.
    ///
    /// # Errors
    /// A status if it was removed: what it knows is as of then, and will not change any more. A node that was cut off when it
    /// was removed cannot know. It answers stale reads as any node that is behind, and is not ready, since it hears of no
    /// leader.
    pub(crate) fn check_member(&self) -> Result<(), Status> {
        if self.replica().was_removed() { Err(status::removed()) } else { Ok(()) }
    }

    fn submit(&mut self, operation: Operation) -> Result<Ticket, Status> {
        let submitted = self.node.replica_mut().submit(operation);
        submitted.map_err(|why| self.refusal(&why))
    }

    fn begin_read(&mut self) -> Result<oneshot::Receiver<()>, Status> {
        let submitted = self.node.replica_mut().submit_read();
        let ticket = submitted.map_err(|why| self.refusal(&why))?;
        let (sender, receiver) = oneshot::channel();
        self.asked.insert((Tier::Correctness, ticket), Asked::Read(sender));
        Ok(receiver)
    }

    /// Begins to serve a stream.
    ///
    /// # Errors
    /// A status if this node does not lead.
    pub(crate) fn connect(&mut self, principal: Principal, tier: Tier) -> Result<(StreamId, Outbox), Status> {
        let replica = self.node.replica();
        if self.is_shutting_down || !replica.serves() {
            return Err(self.not_leader());
        }
        let group = replica.group();
        let (cluster_high, cluster_low) = api::halves(group.cluster);
        let outbox = Outbox::default();
        outbox.hello(v1::Hello {
            cluster_high,
            cluster_low,
            group: match tier {
                Tier::Correctness => group.group,
                Tier::Efficiency => EFFICIENCY_GROUPS | replica.term(),
            },
            node: replica.id(),
            term: replica.term(),
        });
        self.next_stream += 1;
        let id = StreamId(self.next_stream);
        let (sessions, opening) = (HashSet::new(), HashMap::new());
        self.streams.insert(id, Stream { tier, outbox: outbox.clone(), principal, sessions, opening });
        Ok((id, outbox))
    }

    /// The stream is gone; its sessions live on.
    pub(crate) fn disconnect(&mut self, id: StreamId) {
        let Some(stream) = self.streams.remove(&id) else { return };
        for session in stream.sessions {
            if self.connected.get(&session) == Some(&id) {
                self.connected.remove(&session);
            }
        }
    }

    /// Takes what a client said.
    pub(crate) fn take_message(&mut self, id: StreamId, message: v1::ClientMessage) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let principal = stream.principal.clone();
        for open in message.opens {
            let session = SessionId(api::whole(open.session_high, open.session_low));
            match api::open_from_wire(&open, principal.clone()) {
                Ok(asked) => {
                    if self.submit_on(id, session, None, Command::Operation(Operation::Open(asked)))
                        && let Some(stream) = self.streams.get_mut(&id)
                    {
                        stream.opening.insert(session, Vec::new());
                    }
                }
                Err(error) => self.answer_invalid(id, session, None, error.for_caller()),
            }
        }
        for attach in message.attaches {
            let session = SessionId(api::whole(attach.session_high, attach.session_low));
            let renewal = api::attach_from_wire(&attach, |secret| SecretHash(Sha256::digest(secret).into()));
            self.submit_on(id, session, None, Command::Renewal(renewal));
        }
        for keep_alive in message.keep_alives {
            let session = SessionId(api::whole(keep_alive.session_high, keep_alive.session_low));
            if self.may_act(id, session) {
                let renewal: Renewal = api::keep_alive_from_wire(&keep_alive);
                self.submit_on(id, session, None, Command::Renewal(renewal));
            } else {
                self.answer_not_here(id, session, None);
            }
        }
        for request in message.requests {
            self.take_request(id, request);
        }
    }

    fn take_request(&mut self, id: StreamId, request: v1::Request) {
        let session = SessionId(api::whole(request.session_high, request.session_low));
        let number = Some(RequestNumber(request.number));
        if !self.may_act(id, session) {
            let Some(stream) = self.streams.get_mut(&id) else { return };
            match stream.opening.get_mut(&session) {
                // Not before the open is answered: if the id is somebody else's, the request must not be theirs.
                Some(held) if held.len() < bounds::UNSEEN_ANSWERS_MAX => held.push(request),
                _ => self.answer_not_here(id, session, number),
            }
            return;
        }
        match api::request_from_wire(request) {
            Ok(request) => {
                self.submit_on(id, session, number, Command::Operation(Operation::Request(request)));
            }
            Err(error) => self.answer_invalid(id, session, number, error.for_caller()),
        }
    }

    fn may_act(&self, id: StreamId, session: SessionId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.sessions.contains(&session))
    }

    /// Submits for a stream; if it is not taken, the stream hears why.
    fn submit_on(
        &mut self,
        stream: StreamId,
        session: SessionId,
        number: Option<RequestNumber>,
        command: Command,
    ) -> bool {
        let Some(tier) = self.streams.get(&stream).map(|stream| stream.tier) else { return false };
        match self.submit_to(tier, command) {
            Ok(ticket) => {
                self.asked.insert((tier, ticket), Asked::OnStream { stream, session, number });
                true
            }
            // The whole stream will end, with where to go.
            Err(NotTaken::NotLeader { .. }) => false,
            Err(why) => {
                let (code, retry_after_ms) = match why {
                    NotTaken::DiskShort => (v1::NotTakenWhy::DiskShort, 1_000),
                    _ => (v1::NotTakenWhy::Overloaded, 100),
                };
                self.answer_not_taken(stream, session, number, code, why.to_string(), Some(retry_after_ms));
                false
            }
        }
    }

    fn submit_to(&mut self, tier: Tier, command: Command) -> Result<Ticket, NotTaken> {
        match (tier, command) {
            (Tier::Correctness, Command::Operation(operation)) => self.node.replica_mut().submit(operation),
            (Tier::Correctness, Command::Renewal(renewal)) => self.node.replica_mut().submit_renewal(renewal),
            (Tier::Efficiency, command) => {
                let leader = self.node.replica().leader();
                let efficiency = self.efficiency.as_mut().ok_or(NotTaken::NotLeader { leader })?;
                match command {
                    Command::Operation(operation) => efficiency.submit(operation),
                    Command::Renewal(renewal) => Ok(efficiency.submit_renewal(renewal)),
                }
            }
        }
    }

    fn answer_invalid(&self, id: StreamId, session: SessionId, number: Option<RequestNumber>, message: String) {
        self.answer_not_taken(id, session, number, v1::NotTakenWhy::Invalid, message, None);
    }

    fn answer_not_here(&self, id: StreamId, session: SessionId, number: Option<RequestNumber>) {
        let message = "this session was neither opened nor attached on this stream: attach it first, with its secret";
        self.answer_invalid(id, session, number, message.to_owned());
    }

    fn answer_not_taken(
        &self,
        id: StreamId,
        session: SessionId,
        number: Option<RequestNumber>,
        why: v1::NotTakenWhy,
        message: String,
        retry_after_ms: Option<u64>,
    ) {
        let Some(stream) = self.streams.get(&id) else { return };
        let (session_high, session_low) = api::halves(session.0);
        let (number, why) = (number.map_or(0, |number| number.0), why.into());
        stream.outbox.not_taken(v1::NotTaken { session_high, session_low, number, why, message, retry_after_ms });
    }

    /// One turn: turns the replica and hands out what came of it.
    ///
    /// # Errors
    /// [`Stop`] if the node must not go on.
    pub(crate) fn turn(&mut self, now: Nanos) -> Result<(), Stop> {
        self.metrics.turns.inc();
        self.node.replica_mut().set_wall_clock(clock::wall_ms());
        let mut lost = Vec::new();
        for output in self.node.turn(now)? {
            match output {
                Output::PeerLost { peer, .. } => lost.push(peer),
                other => self.hand_out(Tier::Correctness, other),
            }
        }
        self.tell_of_lost(&lost);
        self.follow_leadership(now);
        let version = self.node.replica().state().version();
        let in_memory = self.efficiency.as_mut().map(|efficiency| efficiency.turn(version, now));
        for output in in_memory.into_iter().flatten() {
            self.hand_out(Tier::Efficiency, output);
        }
        let (progress, applied) = (progress_of(&self.node), self.node.replica().applied());
        self.progress.send_if_modified(|known| std::mem::replace(known, progress) != progress);
        self.applied.send_if_modified(|known| std::mem::replace(known, applied) != applied);
        Ok(())
    }

    fn hand_out(&mut self, tier: Tier, output: Output) {
        match output {
            Output::Send(message) => self.peers.send(message),
            Output::SendSnapshot { message, position } => self.peers.send_snapshot(message, position),
            Output::Reply { ticket, position, stamp, reply } => self.answer((tier, ticket), position, stamp, reply),
            Output::Push { position, stamp, push } => {
                let session = api::push_session(&push);
                if let Some(stream) = self.connected.get(&session).and_then(|id| self.streams.get(id)) {
                    let pushes = vec![api::push_to_wire(&push)];
                    stream.outbox.decided(v1::Decided { pushes, ..entry_at(position, stamp) });
                    self.metrics.pushes.inc();
                }
                if let fencepost_core::Push::SessionEnded { .. } = push {
                    self.unbind(session);
                }
            }
            Output::ReadReady { ticket, .. } => {
                if let Some(Asked::Read(waiting)) = self.asked.remove(&(tier, ticket)) {
                    // Whoever gave up waiting is not an error.
                    let _ = waiting.send(());
                }
            }
            // Dropping what waits tells it that the outcome is unknown.
            Output::Abandoned(ticket) => drop(self.asked.remove(&(tier, ticket))),
            Output::MembersChanged { ticket, .. } => {
                let ours = ticket.and_then(|ticket| self.asked.remove(&(tier, ticket)));
                if let Some(Asked::MemberChange(waiting)) = ours {
                    let _ = waiting.send(());
                }
                self.follow_members();
            }
            Output::PeerFound { peer, silent_ms } => {
                self.metrics.peers_found.inc();
                let peer = self.call(peer);
                tracing::info!(peer, silent_ms, "a peer is heard again");
            }
            Output::PeerLost { .. } => unreachable!("they are told of together"),
            Output::Write(_) | Output::MakeSnapshot { .. } | Output::Compact { .. } => {
                unreachable!("the node carries out what concerns its disk")
            }
        }
    }

    /// Says which peers have become silent, all of one turn in one line.
    fn tell_of_lost(&self, lost: &[u64]) {
        if lost.is_empty() {
            return;
        }
        self.metrics.peers_lost.inc_by(lost.len() as u64);
        let peers = lost.iter().map(|peer| self.call(*peer)).collect::<Vec<String>>().join(", ");
        let (replica, silent_ms) = (self.replica(), SILENT_AFTER_MS);
        match replica.leader() {
            Some(_) => tracing::warn!(peers, silent_ms, "peers are silent: see whether they run and can be reached"),
            None => tracing::warn!(peers, silent_ms, "{}", status::without_leader(&replica.hearing())),
        }
    }

    /// A member's name and id, for people.
    fn call(&self, node: u64) -> String {
        match self.replica().member(node) {
            Some(member) => format!("{} ({node:x})", member.name()),
            None => format!("{node:x}"),
        }
    }

    fn answer(&mut self, asked: (Tier, Ticket), position: LogPosition, stamp: LogicalMs, reply: Reply) {
        self.metrics.answers.inc();
        let (id, session, number) = match self.asked.remove(&asked) {
            Some(Asked::OnStream { stream, session, number }) => (stream, session, number),
            Some(Asked::Act(waiting)) => {
                let _ = waiting.send(Acted { position, stamp, outcome: reply.outcome });
                return;
            }
            Some(Asked::Read(_) | Asked::MemberChange(_)) | None => return,
        };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let answers = vec![api::answer_to_wire(session, number, &reply)];
        stream.outbox.decided(v1::Decided { answers, ..entry_at(position, stamp) });
        match reply.outcome {
            Outcome::Opened { .. } | Outcome::Attached(_) => {
                stream.sessions.insert(session);
                let held = stream.opening.remove(&session).unwrap_or_default();
                self.connected.insert(session, id);
                for request in held {
                    self.take_request(id, request);
                }
            }
            Outcome::Closed => self.unbind(session),
            Outcome::Refused(_) if number.is_none() => {
                let held = stream.opening.remove(&session).unwrap_or_default();
                for request in held {
                    self.answer_not_here(id, session, Some(RequestNumber(request.number)));
                }
            }
            _ => {}
        }
    }

    fn unbind(&mut self, session: SessionId) {
        if let Some(id) = self.connected.remove(&session)
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.sessions.remove(&session);
        }
    }

    /// Streams belong to a term: when another begins they end, and clients attach their sessions where it leads.
    // Rule: tier-efficiency
    fn follow_leadership(&mut self, now: Nanos) {
        let replica = self.node.replica();
        let serves_in = replica.serves().then(|| replica.term());
        if serves_in == self.serves_in {
            return;
        }
        match serves_in {
            Some(term) => tracing::info!(term, "this node leads"),
            None => tracing::info!("this node no longer leads"),
        }
        self.serves_in = serves_in;
        self.efficiency = serves_in.map(|term| Unreplicated::new(term, getrandom::u64().unwrap_or(term), now));
        self.asked.retain(|(tier, _), _| *tier == Tier::Correctness);
        self.end_streams(self.not_leader());
    }

    /// Talks to those who are members now.
    pub(crate) fn follow_members(&mut self) {
        let replica = self.node.replica();
        let members = replica.members();
        let names: Vec<String> =
            members.iter().map(|it| format!("{} ({:x}, {:?})", name_of(it), it.node, it.role)).collect();
        tracing::info!(members = names.join(", "), "the members");
        let (me, applied) = (replica.id(), replica.applied().index);
        let described = members.into_iter().filter_map(|view| view.member);
        self.peers.follow(applied, described.filter(|member| member.node() != me));
    }

    /// Begins to let another node lead: the one that was named, or the voter that has the most of the log. None if this
    /// node does not lead, or there is no such voter.
    pub(crate) fn begin_hand_over(&mut self, to: Option<u64>) -> Option<u64> {
        let replica = self.node.replica_mut();
        if !replica.serves() {
            return None;
        }
        let me = replica.id();
        let others = replica.members().into_iter().filter(|it| it.role == Role::Voter && it.node != me);
        let successor = others.filter(|it| to.is_none_or(|to| it.node == to)).max_by_key(|it| it.matched)?.node;
        replica.transfer_lead(successor).ok().map(|()| successor)
    }

    fn end_streams(&mut self, status: Status) {
        self.connected.clear();
        for (_, stream) in self.streams.drain() {
            stream.outbox.end(status.clone());
        }
    }

    /// Stops: nothing is turned, written or sent any more.
    pub(crate) fn close(&mut self) {
        self.shut_down();
        self.peers.follow(self.node.replica().applied().index, std::iter::empty());
        self.node.close();
    }

    /// Takes no more clients, and sends away those that are here.
    pub(crate) fn shut_down(&mut self) {
        self.is_shutting_down = true;
        self.end_streams(status::shutting_down());
    }
}
