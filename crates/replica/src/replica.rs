//! One node's replicated lock state: consensus as a step function, and the lock state that it feeds.
//!
//! A `handle_*` or `submit_*` method queues what arrives. [`Replica::turn`] does the work of one turn of the loop and gives out
//! what the driver has to do. A replica decides nothing about locks, and the lock state decides nothing about consensus.

use std::collections::VecDeque;
use std::sync::Arc;

use fencepost_core::{
    Act, Action, Batch, Event, EventRing, KnownVersions, LockState, LogPosition, LogicalMs, Nanos, Operation, Renewal,
    ReplyTo, Ticket,
};
use fencepost_wire::{Cause, Entry as LockEntry, MemberChanges, Members, Transfer, WallClock};
use raft::eraftpb::{ConfChangeV2, Entry, EntryType, Message, MessageType};
use raft::{Config, RawNode, StateRole};

use crate::apply::{Applied, apply_to, read_entry, read_member_changes};
use crate::bounds::{
    APPEND_BYTES_MAX, APPENDS_IN_FLIGHT_MAX, ELECTION_TICKS, ENTRIES_IN_FLIGHT_MAX, ENTRIES_KEPT_DEFAULT,
    EVENTS_KEPT_MAX, FURTHER_ENTRY_MIN_DEFAULT, HEARTBEAT_TICKS, LOG_BYTES_MAX_DEFAULT, READS_WAITING_MAX,
    SNAPSHOT_EVERY_BYTES_DEFAULT, SNAPSHOT_EVERY_ENTRIES_DEFAULT, STAMP_EVERY_MS, TICK_MS,
};
use crate::error::{NotTaken, Stop};
use crate::gather::{Gather, Tickets};
use crate::log::{GROUP_BEGINS, Log, entry_bytes};
use crate::members::{MemberChange, apply_changes, from_conf_state, plan, to_conf_change};
use crate::planted::{
    counts_on_from_the_log, enforces_one_proposer, gives_failover_grace, keeps_time_in_the_log, waits_for_the_disk,
};
use crate::ports::{LogWrite, Output};
use crate::proof::Proofs;
use crate::snapshot::{GroupId, Restored, SnapshotInfo, events_begin, read_snapshot};
use crate::stamp::StampClock;
use crate::tally::Tally;

mod faults;
mod hearing;
mod snapshots;
mod versions;
mod view;

pub use hearing::{Hearing, Hears, Lag};
use snapshots::{bytes_kept, go_on_from, position_of};

/// The settings of a replica. They do not change while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The node's id. A node that lost its disk never comes back under its old id.
    pub id: u64,
    /// The cluster and the group that the node belongs to.
    pub group: GroupId,
    /// For this node's hash tables and election timeouts. A server draws it at random, a simulation from its own seed.
    pub seed: u64,
    /// A snapshot is due when this number of entries has been applied since the last one.
    pub snapshot_every_entries: u64,
    /// A snapshot is also due when the entries since the last one have this number of bytes.
    pub snapshot_every_bytes: u64,
    /// The most entries that stay in the log after a snapshot includes them, for followers that are a little behind. Fewer stay if
    /// they are large.
    pub entries_kept: u64,
    /// The most memory that the log may take. It fills up when snapshots are slower than entries. Then a leader takes no
    /// operations, and a follower takes no entries, until there is room.
    pub log_bytes_max: u64,
    /// The fewest waiting operations for which another entry goes out while one is in flight.
    pub further_entry_min: usize,
    /// The format versions that this node knows.
    pub known: KnownVersions,
}

impl Settings {
    /// Settings for a node with a gigabyte of memory. The log in memory is mostly for followers that are a little behind: a second
    /// of a busy group is a few mebibytes.
    pub fn new(id: u64, group: GroupId, seed: u64) -> Settings {
        Settings {
            id,
            group,
            seed,
            snapshot_every_entries: SNAPSHOT_EVERY_ENTRIES_DEFAULT,
            snapshot_every_bytes: SNAPSHOT_EVERY_BYTES_DEFAULT,
            entries_kept: ENTRIES_KEPT_DEFAULT,
            log_bytes_max: LOG_BYTES_MAX_DEFAULT,
            further_entry_min: FURTHER_ENTRY_MIN_DEFAULT,
            known: KnownVersions::THIS_BUILD,
        }
    }

    /// The part of the log's room that operations may use. The rest is for keep-alives and stamps, so that no live session expires
    /// while a slow snapshot holds operations up.
    fn log_bytes_for_operations(&self) -> u64 {
        self.log_bytes_max - self.log_bytes_max / 8
    }
}

/// Whether this node leads, and how far its leadership has come. Consensus knows only the first part.
#[derive(Debug)]
enum Lead {
    /// This node does not lead.
    No,
    /// Elected in this term. The first entry, which carries the fail-over grace, is not applied yet.
    Starting { term: u64 },
    /// The first entry is applied, and the clock runs. `logged` is the stamp of the leader's newest entry: a new leader that has
    /// that entry counts on from there.
    Running { term: u64, clock: StampClock, logged: LogicalMs },
}

/// A snapshot that is being made.
#[derive(Debug)]
struct Making {
    info: SnapshotInfo,
    /// The hash of the serving state at that position.
    state_hash: u64,
    /// The part of [`Replica::bytes_since_snapshot`] that it includes.
    bytes: u64,
}

/// One node of a group.
pub struct Replica {
    settings: Settings,
    raft: RawNode<Log>,
    state: LockState,
    /// The wall-clock times of the stamps in the applied entries. For people; nothing is decided by it.
    wall_clock: WallClock,
    members: Members,
    applied: LogPosition,
    /// The voters that the group began with. Used to make this node's first snapshot. Empty if the node started from a snapshot.
    first_voters: Vec<u64>,
    lead: Lead,
    /// The requested leadership transfer. Invariant: empty after a turn, which begins the transfer.
    hand_over: Option<Transfer>,
    /// The latest stamp that came in a heartbeat. Invariant: zero, unless the fault `TimeInHeartbeats` is planted.
    heard_stamp: LogicalMs,
    gather: Gather,
    /// This leader's entries that are not applied yet, in order. An entry of another term at the same index is a
    /// different entry, so the whole position is compared.
    in_flight: VecDeque<(LogPosition, Tickets)>,
    /// The change of the members that is not complete yet, with the position of its first entry.
    changing: Option<(LogPosition, Ticket)>,
    next_ticket: u64,
    next_tick: Nanos,
    last_turn: Nanos,
    disk_short: bool,
    wall_clock_ms: Option<u64>,
    /// Messages that may be sent only when the write with this number is durable.
    after_persist: VecDeque<(u64, Vec<Message>)>,
    /// The number of the last write that was given out.
    last_write: u64,
    /// The number of the last write that is durable.
    last_persisted: u64,
    /// Reads that wait for consensus. They are asked again each tick until consensus answers.
    reads_asked: Vec<Ticket>,
    /// Reads that wait until this index is applied.
    reads_confirmed: Vec<(u64, Ticket)>,
    election_seed: u64,
    election_ticks: usize,
    proofs: Proofs,
    making: Option<Making>,
    /// Bytes of the applied entries that are in no durable snapshot.
    bytes_since_snapshot: u64,
    /// The number of the write with a peer's snapshot, and the snapshot's index. Consensus may count on it when it is durable.
    installing: Option<(u64, u64)>,
    /// A peer's snapshot that consensus has accepted and not given out yet.
    incoming: Option<(Restored, Arc<[u8]>)>,
    events: EventRing,
    tally: Tally,
    ears: hearing::Ears,
    versions: versions::Versions,
    outputs: Vec<Output>,
}

impl Replica {
    /// A node that continues from this log and its newest snapshot, if there is one. If the snapshot reaches further than the log,
    /// the log is emptied and begins after the snapshot.
    ///
    /// # Errors
    /// [`Stop`] if the snapshot cannot be read or is missing, or consensus does not accept the log.
    pub fn new(settings: Settings, mut log: Log, snapshot: Option<&[u8]>, now: Nanos) -> Result<Replica, Stop> {
        let Restored { position: applied, members, state, wall_clock } = match snapshot {
            Some(bytes) => {
                let restored = read_snapshot(settings.group, bytes, settings.seed, settings.known)?;
                go_on_from(&mut log, restored.info())?;
                let bytes_kept = bytes_kept(settings.log_bytes_max);
                log.compact(log.compactable(restored.position.index, settings.entries_kept, bytes_kept));
                restored
            }
            // The group has no snapshot yet, or the node is about to join.
            None if log.before == GROUP_BEGINS || log.last() == LogPosition::default() => {
                let members = from_conf_state(&log.members);
                let state = LockState::new(settings.seed);
                Restored { position: log.before, members, state, wall_clock: WallClock::NONE }
            }
            None => return Err(Stop::SnapshotMissing { before: log.before }),
        };
        let first_voters = if snapshot.is_none() { log.members.voters.clone() } else { Vec::new() };
        let config = Config {
            id: settings.id,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: applied.index,
            pre_vote: true,
            check_quorum: true,
            // Off: with it, lost and reordered messages can make consensus panic. Batches form inside an entry instead.
            batch_append: false,
            skip_bcast_commit: true,
            max_size_per_msg: APPEND_BYTES_MAX,
            max_inflight_msgs: APPENDS_IN_FLIGHT_MAX,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut replica = Replica {
            settings,
            raft: RawNode::new(&config, log, &logger)?,
            state,
            wall_clock,
            members,
            applied,
            first_voters,
            lead: Lead::No,
            hand_over: None,
            heard_stamp: LogicalMs(0),
            gather: Gather::default(),
            in_flight: VecDeque::new(),
            changing: None,
            next_ticket: 0,
            next_tick: now.after_ms(TICK_MS),
            last_turn: now,
            disk_short: false,
            wall_clock_ms: None,
            after_persist: VecDeque::new(),
            last_write: 0,
            last_persisted: 0,
            reads_asked: Vec::new(),
            reads_confirmed: Vec::new(),
            election_seed: settings.seed,
            election_ticks: 0,
            proofs: Proofs::default(),
            making: None,
            bytes_since_snapshot: 0,
            installing: None,
            incoming: None,
            events: EventRing::new(EVENTS_KEPT_MAX, events_begin(applied)),
            tally: Tally::default(),
            ears: hearing::Ears::new(now),
            versions: versions::Versions::default(),
            outputs: Vec::new(),
        };
        // First apply what is committed. Consensus does not stand for election while a committed change of the members is not applied,
        // and `is_alone` needs the members.
        replica.handle_everything_ready(now)?;
        if replica.is_alone() {
            // No other node could lead, so an election timeout would be wasted.
            replica.raft.campaign()?;
        }
        Ok(replica)
    }

    /// The latest instant at which [`Replica::turn`] must be called again if nothing arrives until then.
    pub fn next_turn(&self) -> Nanos {
        if self.hand_over.is_some() {
            return self.last_turn;
        }
        let Lead::Running { clock, logged, .. } = &self.lead else { return self.next_tick };
        // What lets the next entry go out is an event that causes a turn of its own.
        if !self.may_propose() {
            return self.next_tick;
        }
        if self.gather.is_urgent(self.has_room_for_operations()) {
            return self.last_turn;
        }
        let renewals = self.gather.has_renewals().then_some(Nanos(0));
        let time = self.time_is_due_at(*logged).map(|stamp| clock.reaches(stamp));
        let reason = renewals.into_iter().chain(time).min();
        reason.map_or(self.next_tick, |reason| reason.max(self.gather.next_beat()).min(self.next_tick))
    }

    /// Says whether the disk is nearly full. While it is, operations that make the state larger are refused. All others are taken,
    /// so that a client can release its locks on a full disk.
    pub fn set_disk_short(&mut self, is_short: bool) {
        self.disk_short = is_short;
    }

    /// Sets the wall clock time for the next entries, in milliseconds since 1970. It is for people who read the log. It decides nothing.
    pub fn set_wall_clock(&mut self, ms: u64) {
        self.wall_clock_ms = Some(ms);
    }

    /// Takes a keep-alive or an attach for the next entry.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead.
    pub fn submit_renewal(&mut self, renewal: Renewal) -> Result<Ticket, NotTaken> {
        let ticket = self.ticket()?;
        if self.must_go_through_the_log(ticket, &renewal) {
            self.gather.renewal(ticket, renewal);
        }
        Ok(ticket)
    }

    /// Takes an operation for the next entry.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead, too many operations wait, or the log or the disk is full.
    pub fn submit(&mut self, operation: Operation) -> Result<Ticket, NotTaken> {
        self.check_leads()?;
        let wants_more = grows_the_state(&operation);
        if self.disk_short && wants_more {
            return Err(NotTaken::DiskShort);
        }
        if !self.gather.has_room(wants_more) || !self.has_room_for_operations() {
            return Err(NotTaken::Overloaded);
        }
        let ticket = self.ticket()?;
        if operation.needs() > self.state.version() {
            self.refuse_for_now(ticket, operation.needs());
        } else {
            self.gather.operation(ticket, operation);
        }
        Ok(ticket)
    }

    /// Submits a linearizable read: [`Output::ReadReady`] says when [`Replica::state`] may be read for it.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead, or too many reads wait.
    // Rule: read
    pub fn submit_read(&mut self) -> Result<Ticket, NotTaken> {
        let ticket = self.ticket()?;
        if self.reads_asked.len() >= READS_WAITING_MAX {
            return Err(NotTaken::Overloaded);
        }
        if self.must_ask_consensus(ticket) {
            self.raft.read_index(ticket.0.to_le_bytes().to_vec());
            self.reads_asked.push(ticket);
        }
        Ok(ticket)
    }

    /// Takes a message of a peer.
    ///
    /// # Errors
    /// [`Stop`] if consensus cannot continue.
    pub fn handle_message(&mut self, message: Message) -> Result<(), Stop> {
        self.ears.note(message.from);
        self.take_stamp_from(&message);
        match message.msg_type {
            // Rule: one-proposer
            MessageType::MsgPropose if enforces_one_proposer() => Ok(()),
            // Only the leader's own process starts a leadership transfer, so that the entry with its stamp goes first.
            MessageType::MsgTransferLeader => Ok(()),
            // Useless without the bytes of the snapshot, which come through `handle_snapshot`.
            MessageType::MsgSnapshot => Ok(()),
            MessageType::MsgAppend if self.has_no_room_for(&message) => Ok(()),
            MessageType::MsgTimeoutNow => {
                // Consensus does not stand for election while a committed change of the members is not applied. A removed leader
                // sends this message right after it commits the change.
                self.handle_everything_ready(self.last_turn)?;
                // As in `turn`: this node must not stand for election during an install.
                if self.installing.is_none() { self.step(message) } else { Ok(()) }
            }
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote if self.is_from_a_stranger(&message) => Ok(()),
            _ => self.step(message),
        }
    }

    fn step(&mut self, message: Message) -> Result<(), Stop> {
        match self.raft.step(message) {
            // The sender is not a member, or not yet: ignore its message.
            Err(raft::Error::StepPeerNotFound | raft::Error::StepLocalMsg) => Ok(()),
            stepped => Ok(stepped?),
        }
    }

    /// Whether the sender of a vote request is not a member and lacks entries that this node has: a removed node, or one that lost its
    /// disk. It cannot get the vote, and must not raise the term. A sender that lacks nothing is let through: it may be a member by
    /// an entry that has not arrived here yet, and then the group may need this vote.
    fn is_from_a_stranger(&self, message: &Message) -> bool {
        !self.members.has(message.from) && !self.raft.raft.raft_log.is_up_to_date(message.index, message.log_term)
    }

    /// Whether the log is full and this append would make it longer. The append is dropped, and the leader sends it again later. An
    /// append that only replaces entries, or that consensus must reject, is let through. Otherwise a follower whose entries must be
    /// replaced would wait for ever.
    fn has_no_room_for(&self, message: &Message) -> bool {
        let log = &self.raft.raft.raft_log;
        self.log_bytes() >= self.settings.log_bytes_max
            && log.match_term(message.index, message.log_term)
            && log.find_conflict(&message.entries) > log.last_index()
    }

    /// Whether the next entry may go out now. The first one always may. While others are in flight, it must hold enough operations to
    /// be worth its cost.
    fn may_propose(&self) -> bool {
        // During a leadership transfer consensus takes no proposal.
        if self.raft.raft.lead_transferee.is_some() {
            return false;
        }
        self.in_flight.back().is_none_or(|(_, last)| {
            // Many small entries would cost more than they save.
            let worth_it = self.settings.further_entry_min.max(last.operations.len() / 4);
            self.in_flight.len() < ENTRIES_IN_FLIGHT_MAX && self.gather.operations() >= worth_it
        })
    }

    fn has_room_for_operations(&self) -> bool {
        self.log_bytes() < self.settings.log_bytes_for_operations()
    }

    fn is_log_full(&self) -> bool {
        self.log_bytes() >= self.settings.log_bytes_max
    }

    /// Notes that a peer cannot be reached at the moment: messages to it may be lost.
    pub fn handle_unreachable(&mut self, peer: u64) {
        self.raft.report_unreachable(peer);
    }

    /// Notes that the write with this number, and all writes before it, are durable.
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

    /// Starts a leadership transfer to another voter. The next turn begins it, and no entry is written until it ends. If the other node
    /// does not lead after an election timeout, this node continues to lead. The entry before the transfer has the cause.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead, or the other node has no vote.
    pub fn transfer_lead(&mut self, to: u64, cause: Cause) -> Result<(), NotTaken> {
        self.check_leads()?;
        if !self.members.voters.contains(&to) {
            return Err(NotTaken::NoVoter { node: to });
        }
        self.hand_over = (to != self.settings.id).then_some(Transfer { to, cause });
        Ok(())
    }

    /// Proposes changes of the members, all together. A single change takes one step. Several changes take joint consensus: until its
    /// last step, the old voters and the new voters must both agree. [`Output::MembersChanged`] says when the change is complete. The
    /// entry of the change has its cause.
    ///
    /// # Errors
    /// [`NotTaken`] if this node does not lead, another change is in progress, or this change is not allowed.
    pub fn change_members(&mut self, changes: &[MemberChange], cause: &Cause) -> Result<Ticket, NotTaken> {
        self.check_leads()?;
        // Consensus would accept a second change and silently write an empty entry instead.
        if self.raft.raft.has_pending_conf() || !self.members.voters_outgoing.is_empty() {
            return Err(NotTaken::ChangeUnderWay);
        }
        let last = self.raft.raft.raft_log.last_index();
        let progress = self.raft.raft.prs();
        let matched = |node| progress.get(node).map_or(0, |progress| progress.matched);
        let planned = plan(&self.members, changes, last, matched)?;
        self.check_versions(changes)?;
        let context = fencepost_wire::encode_beside(&planned.described, cause).into();
        let change = ConfChangeV2 { context, ..to_conf_change(&planned) };
        self.raft.propose_conf_change(Vec::new(), change).map_err(|_| NotTaken::ChangeUnderWay)?;
        let ticket = self.ticket()?;
        let position = LogPosition { index: self.raft.raft.raft_log.last_index(), term: self.term() };
        self.changing = Some((position, ticket));
        Ok(ticket)
    }
}

/// Whether an operation makes the state larger if it succeeds.
pub(crate) fn grows_the_state(operation: &Operation) -> bool {
    match operation {
        Operation::Open(_) => true,
        #[cfg(feature = "made-up-version")]
        Operation::MadeUp(_) => false,
        // A checkpoint can wait until there is room again. A completion cannot: without it the work is done twice.
        Operation::Request(request) => {
            matches!(request.action, Action::Acquire(_) | Action::TakePermits(_) | Action::Checkpoint { .. })
        }
        Operation::Admin(admin) => matches!(admin.act, Act::Freeze { .. } | Act::SetLimit { .. }),
    }
}

impl Replica {
    /// One turn of the loop: counts time, proposes what has arrived, and returns what the driver has to do.
    ///
    /// # Errors
    /// [`Stop`] if this node must not continue. Outputs of earlier turns are still valid.
    pub fn turn(&mut self, now: Nanos) -> Result<Vec<Output>, Stop> {
        self.last_turn = now;
        self.ears.turn(now);
        let ticks = now >= self.next_tick;
        if ticks {
            // One tick, however long the process slept: a node that stalled must not stand for election at once.
            self.next_tick = now.after_ms(TICK_MS);
            self.set_election_timeout();
            // A node must not stand for election until the snapshot that replaced its log is durable. Consensus would
            // look for entries of the old log, and panic.
            if self.installing.is_none() {
                self.raft.tick();
            }
            // Consensus forgets reads that arrive before its first commit of the term, so all are asked again.
            for ticket in &self.reads_asked {
                self.raft.read_index(ticket.0.to_le_bytes().to_vec());
            }
        }
        // First store what has arrived, so that a new leader's log is complete when it looks for the highest stamp.
        self.handle_everything_ready(now)?;
        self.follow_leadership()?;
        if ticks {
            self.listen();
        }
        self.note_logs();
        if let Lead::Running { clock, .. } = &mut self.lead {
            clock.turn(now);
        }
        if ticks {
            self.raise_version()?;
        }
        self.propose(now)?;
        self.begin_hand_over()?;
        self.handle_everything_ready(now)?;
        self.snapshot_if_due();
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

    /// Begins to lead in a new term. After a lost leadership, abandons the commands that this node can no longer answer.
    fn follow_leadership(&mut self) -> Result<(), Stop> {
        let term = self.term();
        let leads = self.raft.raft.state == StateRole::Leader;
        let led = match &self.lead {
            Lead::No => None,
            Lead::Starting { term } | Lead::Running { term, .. } => Some(*term),
        };
        if led.is_some() && led != Some(term).filter(|_| leads) && enforces_one_proposer() {
            self.lead = Lead::No;
            self.hand_over = None;
            let in_flight = std::mem::take(&mut self.in_flight).into_iter();
            let in_flight = in_flight.flat_map(|(_, tickets)| tickets.renewals.into_iter().chain(tickets.operations));
            let waiting = self.gather.abandon();
            let reads = std::mem::take(&mut self.reads_asked);
            let confirmed = std::mem::take(&mut self.reads_confirmed).into_iter().map(|(_, ticket)| ticket);
            self.abandon_change();
            let abandoned = in_flight.chain(waiting).chain(reads);
            self.outputs.extend(abandoned.chain(confirmed).map(Output::Abandoned));
        }
        if leads && matches!(self.lead, Lead::No) {
            // Rule: failover-grace
            let entry = LockEntry {
                version: self.state.version(),
                term,
                stamp: self.highest_stamp()?,
                wall_clock_ms: self.wall_clock_ms,
                batch: Batch { failover_grace: gives_failover_grace(), ..Batch::default() },
                ..LockEntry::default()
            };
            self.raft.propose(Vec::new(), fencepost_wire::encode(&entry))?;
            self.lead = Lead::Starting { term };
        }
        Ok(())
    }

    /// The highest stamp in the log, committed or not: the base of a new leader's time.
    // Rule: logical-time
    fn highest_stamp(&self) -> Result<LogicalMs, Stop> {
        let least = self.state.stamp().max(self.heard_stamp);
        let counts = |entry: &&Entry| entry.index > self.applied.index && counts_on_from_the_log();
        for entry in self.raft.store().newest_first().take_while(counts) {
            if let Some(lock_entry) = read_entry(entry, self.settings.known)? {
                return Ok(lock_entry.stamp.max(least));
            }
        }
        Ok(least)
    }

    /// The stamp at which passing time alone is a reason to write an entry: when something expires, or when a new leader would rewind
    /// time by more than [`STAMP_EVERY_MS`]. `None` while nothing can expire.
    // Rule: bounded-late, idle-is-silent
    fn time_is_due_at(&self, logged: LogicalMs) -> Option<LogicalMs> {
        let deadline = self.state.next_deadline()?;
        let next_logged = keeps_time_in_the_log().then_some(LogicalMs(logged.0 + STAMP_EVERY_MS));
        next_logged.into_iter().chain([deadline]).min()
    }

    /// Puts everything that has arrived into one entry, if another entry may go out.
    fn propose(&mut self, now: Nanos) -> Result<(), Stop> {
        let Lead::Running { clock, logged, .. } = &self.lead else { return Ok(()) };
        if !self.may_propose() || self.is_log_full() {
            return Ok(());
        }
        let time_is_due = self.time_is_due_at(*logged).is_some_and(|due| due <= clock.stamp());
        match self.gather.take(now, time_is_due, self.has_room_for_operations()) {
            Some((batch, tickets)) => self.append(batch, tickets, None),
            None => Ok(()),
        }
    }

    /// Begins the requested leadership transfer. First it writes an entry with the leader's stamp and the cause. Consensus lets the successor stand
    /// for election only when it has all of the leader's log. So the successor counts on from that stamp, and no time since the last
    /// entry is lost.
    // Rule: bounded-late
    fn begin_hand_over(&mut self) -> Result<(), Stop> {
        let Some(transfer) = self.hand_over.take().filter(|_| !matches!(self.lead, Lead::No)) else { return Ok(()) };
        let to = transfer.to;
        if self.raft.raft.lead_transferee == Some(to) {
            return Ok(());
        }
        // During a transfer to a third node, consensus would refuse the entry.
        self.raft.raft.abort_leader_transfer();
        // A full log takes no entry, and a starting leader has counted no time yet.
        if matches!(self.lead, Lead::Running { .. }) && !self.is_log_full() && keeps_time_in_the_log() {
            self.append(Batch::default(), Tickets::default(), Some(transfer))?;
        }
        self.raft.transfer_leader(to);
        Ok(())
    }

    /// Proposes one entry with the current stamp.
    fn append(&mut self, batch: Batch, tickets: Tickets, transfer: Option<Transfer>) -> Result<(), Stop> {
        let Lead::Running { term, clock, logged } = &mut self.lead else { return Ok(()) };
        *logged = clock.stamp();
        let (term, stamp, proof) = (*term, *logged, self.proofs.pop_unsent());
        let version = self.state.version();
        let entry = LockEntry { version, term, stamp, wall_clock_ms: self.wall_clock_ms, batch, proof, transfer };
        self.raft.propose(Vec::new(), fencepost_wire::encode(&entry))?;
        self.in_flight.push_back((LogPosition { index: self.raft.raft.raft_log.last_index(), term }, tickets));
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
        // A commit index alone is normally written with the next entries. A removed node gets no more entries, and after a restart it
        // must know that it was removed.
        let changes_members = ready.committed_entries().iter().any(|entry| entry.entry_type != EntryType::EntryNormal);
        if snapshot.is_some() || !entries.is_empty() || hard_state.is_some() || changes_members {
            let must_sync = ready.must_sync() || changes_members;
            self.outputs.push(Output::Write(LogWrite { number, snapshot, hard_state, entries, must_sync }));
            self.last_write = number;
        }
        let after = ready.take_persisted_messages();
        for read in ready.take_read_states() {
            self.confirm_read(read);
        }
        let committed = ready.take_committed_entries();
        self.raft.advance_append_async(ready);

        if self.last_write > self.last_persisted && waits_for_the_disk() {
            self.after_persist.push_back((self.last_write, after));
        } else {
            // There is no write to wait for: all earlier writes are durable.
            self.raft.on_persist_ready(number);
            self.outputs.extend(after.into_iter().map(Output::Send));
        }
        let applies = !committed.is_empty();
        for entry in committed {
            self.apply(&entry, now)?;
        }
        if applies {
            self.raft.advance_apply_to(self.applied.index);
        }
        self.finish_reads();
        Ok(())
    }

    fn send(&self, mut message: Message) -> Output {
        self.put_stamp_into(&mut message);
        if message.msg_type != MessageType::MsgSnapshot {
            return Output::Send(message);
        }
        let position = position_of(message.get_snapshot());
        Output::SendSnapshot { message, position }
    }

    fn apply(&mut self, entry: &Entry, now: Nanos) -> Result<(), Stop> {
        self.apply_alone(entry, now)?;
        self.proofs.note(entry.index, &self.state);
        Ok(())
    }

    fn apply_alone(&mut self, entry: &Entry, now: Nanos) -> Result<(), Stop> {
        self.applied = LogPosition { index: entry.index, term: entry.term };
        let applied = self.applied;
        if self.changing.is_some_and(|(begins, _)| begins.index == applied.index && begins != applied) {
            self.abandon_change();
        }
        self.bytes_since_snapshot += entry_bytes(entry);
        if let Some(changes) = read_member_changes(entry)? {
            return self.apply_member_changes(changes);
        }
        let Replica { state, wall_clock, settings, .. } = self;
        let Some(Applied { stamp, wall_clock_ms, effects, proof, transfer }) =
            apply_to(state, wall_clock, entry, settings.known)?
        else {
            return Ok(());
        };
        if let Some(proof) = proof {
            self.proofs.check(proof)?;
        }
        if matches!(self.lead, Lead::Starting { term } | Lead::Running { term, .. } if term == entry.term) {
            self.tally.note(&effects);
        }
        for event in &effects.events {
            if let Event::JobsFill { name, records, bytes } = event {
                self.outputs.push(Output::JobsFill { name: name.clone(), records: *records, bytes: *bytes });
            }
        }
        self.events.push(entry.index, stamp, wall_clock_ms, effects.events);
        // In each term, the first entry that changes the state is the leader's own entry, which carries the fail-over grace.
        if matches!(self.lead, Lead::Starting { term } if term == entry.term) {
            self.lead = Lead::Running { term: entry.term, clock: StampClock::new(stamp, now), logged: stamp };
        }
        let position = self.applied;
        if let Some((_, tickets)) = self.in_flight.pop_front_if(|(proposed, _)| *proposed == position) {
            for reply in effects.replies {
                let ticket = match reply.to {
                    ReplyTo::Renewal(place) => tickets.renewals[place],
                    ReplyTo::Operation(place) => tickets.operations[place],
                };
                self.outputs.push(Output::Reply { ticket, position, stamp, reply });
            }
        }
        self.outputs.extend(effects.pushes.into_iter().map(|push| Output::Push { position, stamp, push }));
        self.outputs.extend(transfer.map(|transfer| Output::TransferBegun { position, transfer }));
        Ok(())
    }

    fn apply_member_changes(&mut self, changes: MemberChanges) -> Result<(), Stop> {
        let by_consensus = from_conf_state(&self.raft.apply_conf_change(&to_conf_change(&changes))?);
        apply_changes(&mut self.members, &changes);
        let by_us = Members { directory: by_consensus.directory.clone(), ..self.members.clone() };
        assert_eq!(by_us, by_consensus, "a snapshot would have other members than consensus");
        let is_through = self.members.voters_outgoing.is_empty();
        let votes = self.members.voters.contains(&self.settings.id) || !is_through;
        if !votes && self.raft.raft.state == StateRole::Leader {
            self.name_successor();
            // This node was removed while it led. Consensus would let it stay leader, and would refuse every proposal.
            self.raft.raft.become_follower(self.term(), raft::INVALID_ID);
        }
        let applied = self.applied;
        let ours = self.changing.take_if(|(begins, _)| is_through && begins.index <= applied.index);
        let ticket = ours.map(|(_, ticket)| ticket);
        self.outputs.push(Output::MembersChanged { position: applied, ticket, cause: changes.cause });
        Ok(())
    }

    /// Tells the voter with the longest log to stand for election now. If the message is lost, an election timeout passes first.
    fn name_successor(&mut self) {
        let matched = |voter: &u64| self.raft.raft.prs().get(*voter).map(|progress| progress.matched);
        let Some(to) = self.members.voters.iter().copied().max_by_key(matched) else { return };
        let (from, term) = (self.settings.id, self.term());
        let message = Message { msg_type: MessageType::MsgTimeoutNow, from, to, term, ..Message::default() };
        self.outputs.push(Output::Send(message));
    }

    /// Abandons the pending change of the members: this node will not learn its outcome.
    fn abandon_change(&mut self) {
        self.outputs.extend(self.changing.take().map(|(_, ticket)| Output::Abandoned(ticket)));
    }

    fn confirm_read(&mut self, read: raft::ReadState) {
        let Ok(bytes) = <[u8; 8]>::try_from(read.request_ctx.as_slice()) else { return };
        let ticket = Ticket(u64::from_le_bytes(bytes));
        // A read may have been asked more than once. It is answered once.
        if let Some(at) = self.reads_asked.iter().position(|asked| *asked == ticket) {
            self.reads_asked.remove(at);
            self.reads_confirmed.push((read.index, ticket));
        }
    }

    fn finish_reads(&mut self) {
        let position = self.applied;
        let ready = self.reads_confirmed.extract_if(.., |(index, _)| *index <= position.index);
        self.outputs.extend(ready.map(|(_, ticket)| Output::ReadReady { ticket, position }));
    }

    /// Sets the election timeout from the replica's own seed, so that a simulation can repeat a run. Consensus would draw it from the
    /// thread's random generator. It reads the timeout in a tick, so this is called before each tick. Draws a new timeout whenever
    /// consensus has restarted its wait.
    fn set_election_timeout(&mut self) {
        if self.raft.raft.election_elapsed == 0 || self.election_ticks == 0 {
            self.election_seed =
                self.election_seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.election_ticks = ELECTION_TICKS + (self.election_seed >> 33) as usize % ELECTION_TICKS;
        }
        self.raft.raft.set_randomized_election_timeout(self.election_ticks);
    }
}
