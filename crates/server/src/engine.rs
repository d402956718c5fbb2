//! Connects the tasks of the server with the machines: the replica, the efficiency tier beside it, and the edge of the session protocol.
//!
//! A process has one engine, and one thread uses it. A task submits its input here and wakes the turn loop ([`Shared::ring`]). The turn
//! loop turns the replica, and the engine distributes the output. The engine decides nothing about streams (the edge does), nothing
//! about locks and nothing about consensus. It keeps the tickets of reads, administrative acts and member changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use fencepost_core::{Admin, LogPosition, LogicalMs, Nanos, Operation, Outcome, Principal, Ticket, shortened};
use fencepost_replica::{
    EfficiencyTier, MemberChange, MemberView, Node, NotTaken, Output, Replica, Role, SILENT_AFTER_MS, Stop,
};
use fencepost_session::edge::{Edge, Lead, StreamId, Transmit};
use fencepost_session::{End, Tier};
use fencepost_wire::{Cause, ShownNode, Transfer, v1};
use tokio::sync::{Notify, oneshot, watch};

use crate::clock;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::port::{self, Port};
use crate::status;

/// A call that waits for the reply to a ticket. The tickets of streams are in the edge.
enum WaitingCall {
    Act(oneshot::Sender<Acted>),
    Read(oneshot::Sender<()>),
    MemberChange(oneshot::Sender<()>),
}

/// The result of an administrator's act.
pub(crate) struct Acted {
    pub(crate) position: LogPosition,
    pub(crate) stamp: LogicalMs,
    pub(crate) outcome: Outcome,
}

/// The state of the node that tasks may wait for. It seldom changes. The applied position has its own channel, so that only tasks
/// that wait for entries are woken by every entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The term in which this node leads and serves. `None` if it does not.
    pub(crate) serves_in: Option<u64>,
    pub(crate) leader: Option<u64>,
    /// The newest snapshot.
    pub(crate) snapshot: Option<LogPosition>,
    /// Whether this node was removed from the cluster. `leader` is then the leader at that time.
    pub(crate) was_removed: bool,
}

pub(crate) struct Engine {
    node: Node,
    pub(crate) peers: Peers,
    pub(crate) metrics: Metrics,
    edge: Edge,
    last_stream: u64,
    /// The wakers of connections that wait for something to send.
    sending: HashMap<StreamId, Waker>,
    /// The calls that wait for a reply of the replica.
    waiting_calls: HashMap<Ticket, WaitingCall>,
    efficiency: EfficiencyTier,
    progress: watch::Sender<Progress>,
    applied: watch::Sender<LogPosition>,
    is_shutting_down: bool,
}

/// A handle to the engine. Every task of the server has one.
#[derive(Clone)]
pub(crate) struct Shared {
    engine: Arc<Mutex<Engine>>,
    bell: Arc<Notify>,
    progress: watch::Receiver<Progress>,
    applied: watch::Receiver<LogPosition>,
}

impl Shared {
    pub(crate) fn new(node: Node, peers: Peers, bell: Arc<Notify>) -> Shared {
        let (progress, progress_seen) = watch::channel(progress_of(&node));
        let (applied, applied_seen) = watch::channel(node.replica().applied());
        let engine = Engine {
            node,
            peers,
            metrics: Metrics::default(),
            // If the system has no random numbers the seed is zero. Then clients could choose ids whose hashes collide, which costs
            // time and nothing else.
            edge: Edge::new(getrandom::u64().unwrap_or_default()),
            last_stream: 0,
            sending: HashMap::new(),
            waiting_calls: HashMap::new(),
            efficiency: EfficiencyTier::default(),
            progress,
            applied,
            is_shutting_down: false,
        };
        Shared { engine: Arc::new(Mutex::new(engine)), bell, progress: progress_seen, applied: applied_seen }
    }

    /// The engine. Never held across an await; only the engine thread locks it, so this never blocks.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the turn loop.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// The position up to which the log is applied.
    pub(crate) fn applied(&self) -> watch::Receiver<LogPosition> {
        self.applied.clone()
    }

    /// Returns when the state includes everything that was acknowledged before the call.
    ///
    /// # Errors
    /// [`End`] says where to ask instead.
    pub(crate) async fn linearize(&self) -> Result<(), End> {
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
    /// [`End`] says where to ask instead, or that the outcome is unknown.
    pub(crate) async fn act(&self, admin: Admin) -> Result<Acted, End> {
        let acted = {
            let mut engine = self.engine();
            let ticket = engine.submit(Operation::Admin(admin))?;
            let (sender, receiver) = oneshot::channel();
            engine.waiting_calls.insert(ticket, WaitingCall::Act(sender));
            receiver
        };
        self.ring();
        acted.await.map_err(|_| End::outcome_unknown())
    }

    /// Makes all the changes of the members in one step. Returns when the step is committed.
    ///
    /// # Errors
    /// [`End`] says why not, where to ask instead, or that the outcome is unknown.
    pub(crate) async fn change_members(&self, changes: Vec<MemberChange>, cause: Cause) -> Result<(), End> {
        let changed = {
            let mut engine = self.engine();
            let taken = engine.node.replica_mut().change_members(&changes, &cause);
            let ticket = taken.map_err(|why| engine.refusal(&why))?;
            let (sender, receiver) = oneshot::channel();
            engine.waiting_calls.insert(ticket, WaitingCall::MemberChange(sender));
            receiver
        };
        self.ring();
        changed.await.map_err(|_| End::outcome_unknown())
    }
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

/// Where to ask instead of this node, which does not lead.
fn elsewhere(replica: &Replica) -> End {
    if replica.was_removed() {
        return End::removed();
    }
    match leader_address(replica) {
        Some(leader) => End::not_leader(leader),
        None => End::no_leader(status::without_leader(&replica.hearing())),
    }
}

/// The leader's address for clients, if another node is known to lead.
fn leader_address(replica: &Replica) -> Option<String> {
    let leader = replica.leader().filter(|leader| *leader != replica.id())?;
    replica.member(leader).map(|member| member.client_address().to_owned())
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

    pub(crate) fn efficiency(&self) -> &EfficiencyTier {
        &self.efficiency
    }

    /// When to turn next, if no input comes before.
    pub(crate) fn next_turn(&self) -> Nanos {
        let next = self.node.next_turn();
        self.efficiency.next_turn().map_or(next, |other| other.min(next))
    }

    pub(crate) fn streams(&self) -> usize {
        self.edge.streams()
    }

    /// The leader's address for clients, if another node is known to lead.
    pub(crate) fn leader_address(&self) -> Option<String> {
        leader_address(self.replica())
    }

    /// The leader's address for clients, if it is known. This node's own address if it leads.
    pub(crate) fn known_leader_address(&self) -> Option<String> {
        let replica = self.replica();
        replica.member(replica.leader()?).map(|member| member.client_address().to_owned())
    }

    /// Why this node does not serve, and where to ask instead.
    pub(crate) fn not_leader(&self) -> End {
        if self.is_shutting_down {
            return End::shutting_down();
        }
        elsewhere(self.replica())
    }

    /// Why the replica did not take something, and where to ask instead.
    pub(crate) fn refusal(&self, why: &NotTaken) -> End {
        match why {
            NotTaken::NotLeader { .. } => elsewhere(self.replica()),
            why => port::refusal(why),
        }
    }

    /// `Ok` if this node is a member, or about to become one.
    ///
    /// # Errors
    /// [`End`] if it was removed: its state no longer changes. A node that was cut off when it was removed cannot know that. It answers
    /// stale reads like any node that is behind, and it is not ready, since it hears no leader.
    pub(crate) fn check_member(&self) -> Result<(), End> {
        if self.replica().was_removed() { Err(End::removed()) } else { Ok(()) }
    }

    fn submit(&mut self, operation: Operation) -> Result<Ticket, End> {
        let submitted = self.node.replica_mut().submit(operation);
        submitted.map_err(|why| self.refusal(&why))
    }

    fn begin_read(&mut self) -> Result<oneshot::Receiver<()>, End> {
        let submitted = self.node.replica_mut().submit_read();
        let ticket = submitted.map_err(|why| self.refusal(&why))?;
        let (sender, receiver) = oneshot::channel();
        self.waiting_calls.insert(ticket, WaitingCall::Read(sender));
        Ok(receiver)
    }

    // ---- Streams

    /// Begins to serve a stream.
    ///
    /// # Errors
    /// [`End`] if this node does not serve the stream.
    pub(crate) fn connect(&mut self, principal: Principal, tier: Tier) -> Result<StreamId, End> {
        let lead = self.lead();
        self.last_stream += 1;
        let id = StreamId(self.last_stream);
        self.edge.handle_connected(id, principal, tier, lead)?;
        Ok(id)
    }

    fn lead(&self) -> Result<Lead, End> {
        let replica = self.node.replica();
        if self.is_shutting_down || !replica.serves() {
            return Err(self.not_leader());
        }
        let group = replica.group();
        Ok(Lead { cluster: group.cluster, group: group.group, node: replica.id(), term: replica.term() })
    }

    /// Takes a message of a client.
    pub(crate) fn take_message(&mut self, id: StreamId, message: v1::ClientMessage) {
        let Engine { node, efficiency, metrics, edge, .. } = self;
        let (replica, efficiency, now) = (node.replica_mut(), efficiency.of_term(), clock::now());
        edge.handle_message(id, message, &mut Port { replica, efficiency, metrics, now });
        self.wake_ready();
    }

    /// Ends a stream because of a fault on its connection.
    pub(crate) fn end_stream(&mut self, id: StreamId, why: End) {
        self.edge.handle_fault(id, why);
        self.wake_ready();
    }

    /// A stream's connection is closed.
    pub(crate) fn disconnect(&mut self, id: StreamId) {
        self.edge.handle_disconnected(id);
        self.sending.remove(&id);
    }

    /// What to send on a stream next.
    pub(crate) fn poll_transmit(&mut self, id: StreamId, context: &Context<'_>) -> Poll<Transmit> {
        match self.edge.poll_transmit(id) {
            Some(transmit) => Poll::Ready(transmit),
            None => {
                self.sending.insert(id, context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Wakes the connections that have something new to send.
    fn wake_ready(&mut self) {
        while let Some(id) = self.edge.poll_ready() {
            if let Some(waker) = self.sending.remove(&id) {
                waker.wake();
            }
        }
    }

    // ---- Turns

    /// One turn: turns the replica and the efficiency tier, and distributes their output.
    ///
    /// # Errors
    /// [`Stop`] if the node must not go on.
    pub(crate) fn turn(&mut self, now: Nanos) -> Result<(), Stop> {
        self.metrics.turns += 1;
        self.node.replica_mut().set_wall_clock(clock::wall_ms());
        let (outputs, mut lost) = (self.node.turn(now)?, Vec::new());
        // The turn may have waited for the disk.
        let done = clock::now();
        for output in outputs {
            match output {
                Output::PeerLost { peer, .. } => lost.push(peer),
                other => self.hand_out(Tier::Correctness, other, done),
            }
        }
        self.tell_of_lost(&lost);
        self.follow_leadership(now);
        let version = self.node.replica().state().version();
        for output in self.efficiency.turn(version, now) {
            self.hand_out(Tier::Efficiency, output, done);
        }
        self.wake_ready();
        let (progress, applied) = (progress_of(&self.node), self.node.replica().applied());
        self.progress.send_if_modified(|known| std::mem::replace(known, progress) != progress);
        self.applied.send_if_modified(|known| std::mem::replace(known, applied) != applied);
        Ok(())
    }

    fn hand_out(&mut self, tier: Tier, output: Output, now: Nanos) {
        match output {
            Output::Send(message) => self.peers.send(message),
            Output::SendSnapshot { message, position } => self.peers.send_snapshot(message, position),
            Output::Reply { ticket, position, stamp, reply } => {
                self.metrics.answered(tier, ticket, &reply, now);
                let Engine { node, efficiency, metrics, edge, .. } = self;
                let (replica, efficiency) = (node.replica_mut(), efficiency.of_term());
                let port = &mut Port { replica, efficiency, metrics, now };
                let others = edge.handle_reply((tier, ticket), (position, stamp), reply, port);
                if let Some(reply) = others
                    && let Some(WaitingCall::Act(waiting)) = self.waiting_calls.remove(&ticket)
                {
                    // A caller that gave up waiting is not an error.
                    let _ = waiting.send(Acted { position, stamp, outcome: reply.outcome });
                }
            }
            Output::Push { position, stamp, push } => {
                if self.edge.handle_push(tier, (position, stamp), &push) {
                    self.metrics.pushes += 1;
                }
            }
            Output::ReadReady { ticket, .. } => {
                if let Some(WaitingCall::Read(waiting)) = self.waiting_calls.remove(&ticket) {
                    let _ = waiting.send(());
                }
            }
            Output::Abandoned(ticket) => {
                if !self.edge.handle_abandoned(tier, ticket) {
                    // Dropping the sender tells the caller that the outcome is unknown.
                    drop(self.waiting_calls.remove(&ticket));
                }
            }
            Output::MembersChanged { position, ticket, cause } => {
                let ours = ticket.and_then(|ticket| self.waiting_calls.remove(&ticket));
                if let Some(WaitingCall::MemberChange(waiting)) = ours {
                    let _ = waiting.send(());
                }
                if let Some(Cause { by, reason }) = cause {
                    let (by, reason) = (by.as_str(), reason.as_str());
                    tracing::info!(index = position.index, by, reason, "the members are changed");
                }
                self.follow_members();
            }
            Output::TransferBegun { position, transfer: Transfer { to, cause } } => {
                let (to, by, reason) = (self.call(to), cause.by.as_str(), cause.reason.as_str());
                tracing::info!(index = position.index, to, by, reason, "the leadership is transferred");
            }
            Output::JobsFill { name, records, bytes } => {
                let of = name.as_ref().map_or("all names", |name| name.as_str());
                tracing::warn!(
                    of = %shortened(of),
                    records,
                    bytes,
                    "the remembered jobs take more than four fifths of their room, and without room jobs are refused: keep them for less \
                     time, or forget some"
                );
            }
            Output::PeerFound { peer, silent_ms } => {
                self.metrics.peers_found += 1;
                let peer = self.call(peer);
                tracing::info!(peer, silent_ms, "a peer is heard again");
            }
            Output::PeerLost { .. } => unreachable!("`turn` collects lost peers"),
            Output::Write(_) | Output::MakeSnapshot { .. } | Output::Compact { .. } => {
                unreachable!("the node itself carries out disk work")
            }
        }
    }

    /// Logs which peers have become silent in this turn, in one line.
    fn tell_of_lost(&mut self, lost: &[u64]) {
        if lost.is_empty() {
            return;
        }
        self.metrics.peers_lost += lost.len() as u64;
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
            Some(member) => format!("{} ({})", member.name(), ShownNode(node)),
            None => ShownNode(node).to_string(),
        }
    }

    /// Follows leader changes: the efficiency tier and the streams belong to one term, and end with it.
    // Rule: tier-efficiency
    fn follow_leadership(&mut self, now: Nanos) {
        let replica = self.node.replica();
        let serves_in = replica.serves().then(|| replica.term());
        let hash_seed = || getrandom::u64().unwrap_or_default();
        if !self.efficiency.follow(serves_in, hash_seed, now) {
            return;
        }
        match serves_in {
            Some(term) => tracing::info!(term, "this node leads"),
            None => tracing::info!("this node no longer leads"),
        }
        self.metrics.follow_leadership();
        let why = self.not_leader();
        self.edge.handle_lead(serves_in, || why);
    }

    /// The members have changed: connects to the new ones and disconnects from the removed ones.
    pub(crate) fn follow_members(&mut self) {
        let replica = self.node.replica();
        let members = replica.members();
        let names: Vec<String> =
            members.iter().map(|it| format!("{} ({}, {:?})", name_of(it), ShownNode(it.node), it.role)).collect();
        tracing::info!(members = names.join(", "), "the members");
        let (me, applied) = (replica.id(), replica.applied().index);
        let described = members.into_iter().filter_map(|view| view.member);
        self.peers.follow(applied, described.filter(|member| member.node() != me));
    }

    /// Begins a leadership transfer to the voter `to`, or to the voter that has the most of the log. Returns the successor; `None` if
    /// this node does not lead, or there is no such voter.
    pub(crate) fn begin_hand_over(&mut self, to: Option<u64>, cause: Cause) -> Option<u64> {
        let replica = self.node.replica_mut();
        if !replica.serves() {
            return None;
        }
        let me = replica.id();
        let others = replica.members().into_iter().filter(|it| it.role == Role::Voter && it.node != me);
        let successor = others.filter(|it| to.is_none_or(|to| it.node == to)).max_by_key(|it| it.matched)?.node;
        replica.transfer_lead(successor, cause).ok().map(|()| successor)
    }

    /// Stops the node. Nothing is written or sent any more.
    pub(crate) fn close(&mut self) {
        self.shut_down();
        self.peers.follow(self.node.replica().applied().index, std::iter::empty());
        self.node.close();
    }

    /// Refuses new streams, and ends all current ones.
    pub(crate) fn shut_down(&mut self) {
        self.is_shutting_down = true;
        self.edge.handle_shut_down();
        self.wake_ready();
    }
}
