//! One node's replicated lock state: consensus as a step function, and the lock state that it feeds.
//!
//! Everything that arrives is queued by a `handle_*` or `submit_*`; [`Replica::turn`] does the work of one turn of the
//! loop and gives out what has to be done. A replica decides nothing about locks, and the lock state nothing about
//! consensus.

use std::collections::VecDeque;
use std::sync::Arc;

use fencepost_core::{Batch, EventRing, LockState, LogicalMs, Operation, Renewal, ReplyTo};
use fencepost_wire::Entry as LockEntry;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType, Message, MessageType, Snapshot};
use raft::{Config, RawNode, SnapshotStatus, StateRole};

use crate::apply::{Applied, apply_to, member_changes, read_entry};
use crate::error::{NotTaken, Stop};
use crate::gather::{Gather, Ticket, Tickets};
use crate::log::{GROUP_BEGINS, Log, LogPosition};
use crate::ports::{LogWrite, Output};
use crate::proof::Proofs;
use crate::snapshot::{GroupId, SnapshotInfo, events_begin, read_snapshot};
use crate::stamp::{Nanos, StampClock};

/// How often consensus counts time.
pub const TICK_MS: u64 = 100;
/// Ticks without a word from the leader until a follower stands for election, at least; at most twice as many.
pub const ELECTION_TICKS: usize = 10;
/// Ticks between two words of the leader.
pub const HEARTBEAT_TICKS: usize = 2;
/// Events that a node keeps for watchers.
pub const EVENTS_KEPT_MAX: usize = 100_000;

/// What a replica is told once, when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The node's id. A node that lost its disk never comes back under its old one.
    pub id: u64,
    /// Whose state it is.
    pub group: GroupId,
    /// For this node's hash tables and election timeouts; drawn at random, or by a simulation.
    pub seed: u64,
    /// A snapshot is made when so many entries have been applied since the last one.
    pub snapshot_every_entries: u64,
    /// So many entries stay behind a snapshot, for followers that are only a little behind.
    pub entries_kept: u64,
}

/// What leading means beyond consensus.
#[derive(Debug)]
enum Lead {
    /// Somebody else leads, or nobody.
    No,
    /// Elected in this term; the first entry, which carries the fail-over grace, is not yet applied.
    Starting { term: u64 },
    /// The first entry is applied, and time runs.
    Running { term: u64, clock: StampClock },
}

/// One node of a group.
pub struct Replica {
    settings: Settings,
    raft: RawNode<Log>,
    state: LockState,
    applied: LogPosition,
    lead: Lead,
    gather: Gather,
    /// The proposal that is not yet applied, with its position. Another term's entry at its index is not it.
    in_flight: Option<(LogPosition, Tickets)>,
    next_ticket: u64,
    next_tick: Nanos,
    /// What may be sent only when the write of this number is durable.
    after_persist: VecDeque<(u64, Vec<Message>)>,
    /// The last write that was handed out, and the last that is durable.
    last_write: u64,
    last_persisted: u64,
    /// Reads that wait for their index: asked again each tick until consensus answers.
    reads_asked: Vec<Ticket>,
    reads_confirmed: Vec<(u64, Ticket)>,
    election_seed: u64,
    election_ticks: usize,
    proofs: Proofs,
    /// The snapshot that is being made, and the hash that the serving state had there.
    making: Option<(SnapshotInfo, u64)>,
    /// The write that holds a peer's snapshot, and the index it reaches: consensus may count on it when it is durable.
    installing: Option<(u64, u64)>,
    /// A snapshot that came from a peer, until consensus has decided about it.
    incoming: Option<(LogPosition, LockState, Arc<[u8]>)>,
    events: EventRing,
    outputs: Vec<Output>,
}

impl Replica {
    /// A node that goes on from this log, and from the snapshot that its log names, if it names one.
    ///
    /// # Errors
    /// [`Stop`] if the snapshot cannot be read or consensus does not accept the log.
    pub fn new(settings: Settings, mut log: Log, snapshot: Option<&[u8]>, now: Nanos) -> Result<Replica, Stop> {
        let (applied, state) = match snapshot {
            Some(bytes) => read_snapshot(settings.group, bytes, settings.seed)?,
            None => (log.before, LockState::new(settings.seed)),
        };
        if let Some(info) = &log.snapshot {
            // What was changed since will be applied again.
            log.members = info.members.clone();
        }
        // A snapshot holds only what was committed, whether or not the commit index came to the disk before the crash.
        log.hard_state.commit = log.hard_state.commit.max(applied.index);
        let config = Config {
            id: settings.id,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: applied.index,
            pre_vote: true,
            check_quorum: true,
            // Left off: with it, lost and reordered messages can make consensus panic. We batch inside an entry ourselves.
            batch_append: false,
            skip_bcast_commit: true,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut replica = Replica {
            settings,
            raft: RawNode::new(&config, log, &logger)?,
            state,
            applied,
            lead: Lead::No,
            gather: Gather::default(),
            in_flight: None,
            next_ticket: 0,
            next_tick: now.after_ms(TICK_MS),
            after_persist: VecDeque::new(),
            last_write: 0,
            last_persisted: 0,
            reads_asked: Vec::new(),
            reads_confirmed: Vec::new(),
            election_seed: settings.seed,
            election_ticks: 0,
            proofs: Proofs::default(),
            making: None,
            installing: None,
            incoming: None,
            events: EventRing::new(EVENTS_KEPT_MAX, events_begin(applied)),
            outputs: Vec::new(),
        };
        replica.draw_election_timeout();
        Ok(replica)
    }

    /// The lock state as of the last applied entry.
    pub fn state(&self) -> &LockState {
        &self.state
    }

    /// The recent events.
    pub fn events(&self) -> &EventRing {
        &self.events
    }

    /// The last applied entry.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    /// Whether this node leads and serves: its first entry is applied.
    pub fn serves(&self) -> bool {
        matches!(self.lead, Lead::Running { .. })
    }

    /// Who leads, as far as this node knows.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raft.raft.leader_id).filter(|leader| *leader != raft::INVALID_ID)
    }

    /// The term that this node is in.
    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    /// Takes a sign of life for the next entry.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead.
    pub fn submit_renewal(&mut self, renewal: Renewal) -> Result<Ticket, NotTaken> {
        let ticket = self.ticket()?;
        self.gather.renewal(ticket, renewal);
        Ok(ticket)
    }

    /// Takes an operation for the next entry.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead, or too many operations wait.
    pub fn submit(&mut self, operation: Operation) -> Result<Ticket, NotTaken> {
        if self.gather.is_full() {
            return Err(NotTaken::Overloaded);
        }
        let ticket = self.ticket()?;
        self.gather.operation(ticket, operation);
        Ok(ticket)
    }

    /// Asks for a linearizable read: [`Output::ReadReady`] says when [`Replica::state`] may be read for it.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead.
    // Rule: read
    pub fn submit_read(&mut self) -> Result<Ticket, NotTaken> {
        let ticket = self.ticket()?;
        self.raft.read_index(ticket.0.to_le_bytes().to_vec());
        self.reads_asked.push(ticket);
        Ok(ticket)
    }

    /// Takes a message of a peer.
    ///
    /// # Errors
    /// [`Stop`] if consensus refuses to go on.
    pub fn handle_message(&mut self, message: Message) -> Result<(), Stop> {
        // Rule: one-proposer
        if message.msg_type == MessageType::MsgPropose {
            return Ok(());
        }
        match self.raft.step(message) {
            // Somebody who is no longer, or not yet, a member: not for us.
            Err(raft::Error::StepPeerNotFound | raft::Error::StepLocalMsg) => {}
            stepped => stepped?,
        }
        self.draw_election_timeout();
        Ok(())
    }

    /// Takes a message that came with the bytes of a snapshot.
    ///
    /// # Errors
    /// [`Stop`] only if consensus refuses to go on. A snapshot that cannot be used is dropped; the leader sends another.
    pub fn handle_snapshot(&mut self, message: Message, bytes: Arc<[u8]>) -> Result<(), Stop> {
        let metadata = message.get_snapshot().get_metadata();
        let named = LogPosition { index: metadata.index, term: metadata.term };
        match read_snapshot(self.settings.group, &bytes, self.settings.seed) {
            Ok((position, state)) if position == named => self.incoming = Some((position, state, bytes)),
            _ => return Ok(()),
        }
        self.handle_message(message)
    }

    /// Asks for a snapshot of everything applied so far, for a backup: [`Output::MakeSnapshot`] follows, unless one is being
    /// made already.
    pub fn snapshot_now(&mut self) {
        if self.making.is_none() {
            self.begin_snapshot();
        }
    }

    /// The snapshot for this peer was sent, or could not be.
    pub fn handle_snapshot_sent(&mut self, peer: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raft.report_snapshot(peer, status);
    }

    /// The snapshot that was asked for is durable, and has this state hash.
    ///
    /// # Errors
    /// [`Stop`] if its state is not the one that this node serves.
    pub fn handle_snapshot_made(&mut self, position: LogPosition, state_hash: u64) -> Result<(), Stop> {
        let Some((info, hash_here)) = self.making.take_if(|(info, _)| info.position == position) else { return Ok(()) };
        if hash_here != state_hash {
            return Err(Stop::StateDiffers { index: position.index });
        }
        let drop_through = position.index.saturating_sub(self.settings.entries_kept);
        let log = self.raft.mut_store();
        log.name_snapshot(info);
        log.compact(drop_through);
        self.outputs.push(Output::Compact(drop_through));
        Ok(())
    }

    /// The write of this number, and all before it, is durable.
    pub fn handle_persisted(&mut self, number: u64) {
        self.last_persisted = self.last_persisted.max(number);
        self.raft.on_persist_ready(number);
        if let Some((_, index)) = self.installing.take_if(|(write, _)| *write <= number) {
            self.raft.advance_apply_to(index);
        }
        while let Some((_, messages)) = self.after_persist.pop_front_if(|(after, _)| *after <= number) {
            self.outputs.extend(messages.into_iter().map(Output::Send));
        }
    }

    /// Asks for another node to lead. Commands are not taken until it is decided.
    pub fn transfer_lead(&mut self, to: u64) {
        self.raft.transfer_leader(to);
    }

    /// Proposes a change of the members: one at a time, by joint consensus where it takes more than one step.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead, or a change is under way.
    pub fn change_member(&mut self, node: u64, change: MemberChange) -> Result<(), NotTaken> {
        self.check_leads()?;
        let change_type = match change {
            MemberChange::AddLearner => ConfChangeType::AddLearnerNode,
            MemberChange::Promote => ConfChangeType::AddNode,
            MemberChange::Remove => ConfChangeType::RemoveNode,
        };
        let single = ConfChangeSingle { change_type, node_id: node, ..ConfChangeSingle::default() };
        let change = ConfChangeV2 { changes: vec![single].into(), ..ConfChangeV2::default() };
        // Consensus would take it and quietly write an empty entry instead.
        if self.raft.raft.has_pending_conf() {
            return Err(NotTaken::ChangeUnderWay);
        }
        self.raft.propose_conf_change(Vec::new(), change).map_err(|_| NotTaken::ChangeUnderWay)
    }
}

/// A change of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Sends the node the log, without a vote.
    AddLearner,
    /// Gives it a vote.
    Promote,
    /// Takes it out.
    Remove,
}

impl Replica {
    /// One turn of the loop: counts time, proposes what has arrived, and gives out what has to be done.
    ///
    /// # Errors
    /// [`Stop`] if this node must not go on. What was given out before it still counts.
    pub fn turn(&mut self, now: Nanos) -> Result<Vec<Output>, Stop> {
        if now >= self.next_tick {
            // One tick, however long the process slept: a stalled node is not owed an election.
            self.next_tick = now.after_ms(TICK_MS);
            self.raft.tick();
            self.draw_election_timeout();
            // Consensus forgets reads that came before its first commit of the term, so all are asked again.
            for ticket in &self.reads_asked {
                self.raft.read_index(ticket.0.to_le_bytes().to_vec());
            }
        }
        // First what has arrived, so that a new leader's log is all there when it looks for the highest stamp.
        self.handle_everything_ready(now)?;
        self.follow_leadership()?;
        if let Lead::Running { clock, .. } = &mut self.lead {
            clock.turn(now);
        }
        self.propose(now)?;
        self.handle_everything_ready(now)?;
        Ok(std::mem::take(&mut self.outputs))
    }

    fn ticket(&mut self) -> Result<Ticket, NotTaken> {
        self.check_leads()?;
        self.next_ticket += 1;
        Ok(Ticket(self.next_ticket))
    }

    fn check_leads(&self) -> Result<(), NotTaken> {
        match self.lead {
            Lead::No => Err(NotTaken::NotLeader { leader: self.leader() }),
            Lead::Starting { .. } | Lead::Running { .. } => Ok(()),
        }
    }

    /// Begins to lead in a new term, or gives up what cannot be answered any more.
    fn follow_leadership(&mut self) -> Result<(), Stop> {
        let term = self.term();
        let leads = self.raft.raft.state == StateRole::Leader;
        let led = match &self.lead {
            Lead::No => None,
            Lead::Starting { term } | Lead::Running { term, .. } => Some(*term),
        };
        if led.is_some() && led != Some(term).filter(|_| leads) {
            self.lead = Lead::No;
            let in_flight = self.in_flight.take().map(|(_, tickets)| tickets).unwrap_or_default();
            let waiting = self.gather.abandon();
            let reads = std::mem::take(&mut self.reads_asked);
            let confirmed = std::mem::take(&mut self.reads_confirmed).into_iter().map(|(_, ticket)| ticket);
            let abandoned = in_flight.renewals.into_iter().chain(in_flight.operations).chain(waiting).chain(reads);
            self.outputs.extend(abandoned.chain(confirmed).map(Output::Abandoned));
        }
        if leads && matches!(self.lead, Lead::No) {
            // Rule: failover-grace
            let entry = LockEntry {
                term,
                stamp: self.highest_stamp()?,
                wall_clock_ms: None,
                batch: Batch { failover_grace: true, ..Batch::default() },
                proof: None,
            };
            self.raft.propose(Vec::new(), fencepost_wire::encode(&entry))?;
            self.lead = Lead::Starting { term };
        }
        Ok(())
    }

    /// The highest stamp in the log, committed or not: the base of a new leader's time.
    // Rule: logical-time
    fn highest_stamp(&self) -> Result<LogicalMs, Stop> {
        for entry in self.raft.store().newest_first().take_while(|entry| entry.index > self.applied.index) {
            if let Some(lock_entry) = read_entry(entry)? {
                return Ok(lock_entry.stamp.max(self.state.stamp()));
            }
        }
        Ok(self.state.stamp())
    }

    /// Puts everything that has arrived into one entry, if the last one is through.
    fn propose(&mut self, now: Nanos) -> Result<(), Stop> {
        let Lead::Running { term, clock } = &self.lead else { return Ok(()) };
        // While the lead is being handed over, consensus takes nothing.
        if self.in_flight.is_some() || self.raft.raft.lead_transferee.is_some() {
            return Ok(());
        }
        let (term, stamp) = (*term, clock.stamp());
        // Rule: bounded-late
        let deadline_passed = self.state.next_deadline().is_some_and(|deadline| deadline <= stamp);
        if let Some((batch, tickets)) = self.gather.take(now, deadline_passed) {
            let proof = self.proofs.pop_unsent();
            let entry = LockEntry { term, stamp, wall_clock_ms: None, batch, proof };
            self.raft.propose(Vec::new(), fencepost_wire::encode(&entry))?;
            self.in_flight = Some((LogPosition { index: self.raft.raft.raft_log.last_index(), term }, tickets));
        }
        Ok(())
    }

    fn handle_everything_ready(&mut self, now: Nanos) -> Result<(), Stop> {
        while self.raft.has_ready() {
            self.handle_ready(now)?;
        }
        Ok(())
    }

    fn handle_ready(&mut self, now: Nanos) -> Result<(), Stop> {
        let mut ready = self.raft.ready();
        let number = ready.number();
        for message in ready.take_messages() {
            self.outputs.push(self.send(message));
        }
        let snapshot = (!ready.snapshot().is_empty()).then(|| self.install(ready.snapshot())).transpose()?;

        let (entries, hard_state) = (ready.take_entries(), ready.hs().cloned());
        let log = self.raft.mut_store();
        log.append(&entries);
        if let Some(hard_state) = &hard_state {
            log.hard_state = hard_state.clone();
        }
        if snapshot.is_some() {
            self.installing = Some((number, self.applied.index));
        }
        if snapshot.is_some() || !entries.is_empty() || hard_state.is_some() {
            let must_sync = ready.must_sync();
            self.outputs.push(Output::Write(LogWrite { number, snapshot, hard_state, entries, must_sync }));
            self.last_write = number;
        }
        let after = ready.take_persisted_messages();
        for read in ready.take_read_states() {
            self.confirm_read(read);
        }
        let committed = ready.take_committed_entries();
        self.raft.advance_append_async(ready);

        if self.last_write <= self.last_persisted {
            // Nothing was to be written: it is as durable as what was.
            self.raft.on_persist_ready(number);
            self.outputs.extend(after.into_iter().map(Output::Send));
        } else {
            self.after_persist.push_back((self.last_write, after));
        }
        let applies = !committed.is_empty();
        for entry in committed {
            self.apply(&entry, now)?;
        }
        if applies {
            self.raft.advance_apply_to(self.applied.index);
        }
        self.finish_reads();
        self.snapshot_if_due();
        Ok(())
    }

    fn send(&self, message: Message) -> Output {
        if message.msg_type != MessageType::MsgSnapshot {
            return Output::Send(message);
        }
        let metadata = message.get_snapshot().get_metadata();
        let position = LogPosition { index: metadata.index, term: metadata.term };
        Output::SendSnapshot { message, position }
    }

    /// Goes on from the snapshot of a peer.
    fn install(&mut self, snapshot: &Snapshot) -> Result<(SnapshotInfo, Arc<[u8]>), Stop> {
        let metadata = snapshot.get_metadata();
        let position = LogPosition { index: metadata.index, term: metadata.term };
        let members = metadata.get_conf_state().clone();
        let (_, state, bytes) = (self.incoming.take().filter(|(named, ..)| *named == position))
            .expect("consensus accepts only a snapshot whose bytes came with it");
        self.state = state;
        self.applied = position;
        self.events = EventRing::new(EVENTS_KEPT_MAX, events_begin(position));
        self.making = None;
        let info = SnapshotInfo { position, members };
        self.raft.mut_store().install(info.clone());
        Ok((info, bytes))
    }

    fn snapshot_if_due(&mut self) {
        let last = self.raft.store().snapshot.as_ref().map_or(GROUP_BEGINS.index, |info| info.position.index);
        if self.making.is_none() && self.applied.index >= last + self.settings.snapshot_every_entries {
            self.begin_snapshot();
        }
    }

    fn begin_snapshot(&mut self) {
        let info = SnapshotInfo { position: self.applied, members: self.raft.store().members.clone() };
        self.making = Some((info.clone(), self.state.state_hash()));
        self.outputs.push(Output::MakeSnapshot(info));
    }

    fn apply(&mut self, entry: &Entry, now: Nanos) -> Result<(), Stop> {
        self.apply_alone(entry, now)?;
        self.proofs.note(entry.index, &self.state);
        Ok(())
    }

    fn apply_alone(&mut self, entry: &Entry, now: Nanos) -> Result<(), Stop> {
        self.applied = LogPosition { index: entry.index, term: entry.term };
        if entry.entry_type != EntryType::EntryNormal {
            let members = self.raft.apply_conf_change(&member_changes(entry)?)?;
            self.raft.mut_store().members = members;
            return Ok(());
        }
        let Some(Applied { stamp, effects, proof }) = apply_to(&mut self.state, entry)? else { return Ok(()) };
        if let Some(proof) = proof {
            self.proofs.check(proof)?;
        }
        self.events.push(entry.index, stamp, effects.events);
        // The first entry of a term carries the grace, and is the first that changes the state in it.
        if matches!(self.lead, Lead::Starting { term } if term == entry.term) {
            self.lead = Lead::Running { term: entry.term, clock: StampClock::new(stamp, now) };
        }
        let position = self.applied;
        if let Some((_, tickets)) = self.in_flight.take_if(|(proposed, _)| *proposed == position) {
            for reply in effects.replies {
                let ticket = match reply.to {
                    ReplyTo::Renewal(place) => tickets.renewals[place],
                    ReplyTo::Operation(place) => tickets.operations[place],
                };
                self.outputs.push(Output::Reply { ticket, position, stamp, reply });
            }
        }
        self.outputs.extend(effects.pushes.into_iter().map(|push| Output::Push { position, stamp, push }));
        Ok(())
    }

    fn confirm_read(&mut self, read: raft::ReadState) {
        let Ok(bytes) = <[u8; 8]>::try_from(read.request_ctx.as_slice()) else { return };
        let ticket = Ticket(u64::from_le_bytes(bytes));
        // It may have been asked more than once and is answered once.
        if let Some(at) = self.reads_asked.iter().position(|asked| *asked == ticket) {
            self.reads_asked.remove(at);
            self.reads_confirmed.push((read.index, ticket));
        }
    }

    fn finish_reads(&mut self) {
        let applied = self.applied.index;
        let ready = self.reads_confirmed.extract_if(.., |(index, _)| *index <= applied);
        self.outputs.extend(ready.map(|(_, ticket)| Output::ReadReady(ticket)));
    }

    /// Consensus draws its election timeout from the thread's generator; this draws it from the replica's own seed, so
    /// that a simulation can repeat itself.
    fn draw_election_timeout(&mut self) {
        if self.raft.raft.randomized_election_timeout() == self.election_ticks {
            return;
        }
        self.election_seed =
            self.election_seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.election_ticks = ELECTION_TICKS + (self.election_seed >> 33) as usize % ELECTION_TICKS;
        self.raft.raft.set_randomized_election_timeout(self.election_ticks);
    }
}
