//! The lock state of one group, and the one function that changes it.
//!
//! This file owns the order within an entry: renewals, ends, cancels of waits, successors, operations. It also says which
//! function carries out which request. What each of these does is in the file of its rule.

use std::collections::BTreeMap;

use crate::command::{Action, Batch, Operation};
use crate::deadlines::{Deadlines, Due};
use crate::digest::Digest;
use crate::format_version::FormatVersion;
use crate::freeze::Freezes;
use crate::grant::{Grant, Rest};
use crate::job_table::Jobs;
#[cfg(feature = "made-up-version")]
use crate::made_up::Remark;
use crate::once::Asker;
use crate::outcome::{Effects, GrantEnd, Outcome, Refusal, Repeat, Reply, ReplyTo, SessionEnd};
use crate::planted;
use crate::record::Header;
use crate::semaphore::Semaphore;
use crate::table::{ResourceTable, SessionTable};
use crate::waiter::{Freed, Waiter};
use crate::words::{Arrival, GrantId, LogicalMs, Name, Principal};

/// The whole lock state of one group.
///
/// ```
/// use fencepost_core::{
///     Acquire, Action, Batch, Epoch, Lock, LockMode, LockState, Locks, LogicalMs, Metadata, Name, Open, Operation,
///     Outcome, Principal, Request, RequestNumber, SecretHash, Seen, SessionId, Terms, Ttl, Wait,
/// };
///
/// let session = SessionId(1);
/// let open = Operation::Open(Open {
///     session,
///     secret_hash: SecretHash([0; 32]),
///     principal: Principal::new("payments")?,
///     ttl: Ttl::new(30_000)?,
///     metadata: Metadata::default(),
/// });
/// let acquire = Operation::Request(Request {
///     session,
///     epoch: Epoch(1),
///     number: RequestNumber(1),
///     seen: Seen::default(),
///     action: Action::Acquire(Acquire {
///         locks: Locks::from_buf([Lock { name: Name::new("orders/42")?, mode: LockMode::Exclusive }]),
///         owner: None,
///         wait: Wait::No,
///         terms: Terms::default(),
///     }),
/// });
///
/// let mut state = LockState::new(0);
/// let effects = state.apply(LogicalMs(0), Batch { operations: vec![open, acquire], ..Batch::default() });
/// assert!(matches!(effects.replies[1].outcome, Outcome::Granted { .. }));
/// # Ok::<(), fencepost_core::BadWord>(())
/// ```
#[derive(Clone, Debug)]
pub struct LockState {
    pub(crate) version: FormatVersion,
    pub(crate) stamp: LogicalMs,
    pub(crate) last_token: u64,
    pub(crate) last_arrival: u64,
    pub(crate) grace_at: Option<LogicalMs>,

    pub(crate) sessions: SessionTable,
    pub(crate) grants: BTreeMap<GrantId, Box<Grant>>,
    pub(crate) rests: BTreeMap<GrantId, Rest>,
    pub(crate) waiters: BTreeMap<Arrival, Box<Waiter>>,
    pub(crate) semaphores: BTreeMap<Name, Semaphore>,
    pub(crate) freezes: Freezes,
    /// The records of jobs, and what is derived from them.
    pub(crate) jobs: Jobs,
    pub(crate) jobs_refused: bool,
    #[cfg(feature = "made-up-version")]
    pub(crate) remark: Option<Remark>,

    // Everything below follows from the fields above. It is in no snapshot; a restore builds it again.
    pub(crate) resources: ResourceTable,
    /// The number of sessions of each principal.
    pub(crate) principals: BTreeMap<Principal, usize>,
    /// The number of semaphores that have an administrator's limit.
    pub(crate) limit_count: usize,
    pub(crate) deadlines: Deadlines,
    pub(crate) digest: Digest,

    /// What was freed and whose waiters are not yet looked at. Invariant: empty between entries.
    pub(crate) freed: Vec<Freed>,
    /// Waiters whose owner released or weakened something, so that they may now wait for more than before. Searched for
    /// cycles before successors are granted. Invariant: empty between entries.
    pub(crate) loosened: Vec<Arrival>,
    /// What the current entry has caused so far. Invariant: empty between entries.
    pub(crate) effects: Effects,
}

impl LockState {
    /// An empty state. The seed is for this node's hash tables only; it changes no outcome and no state hash.
    pub fn new(hash_seed: u64) -> LockState {
        LockState {
            version: FormatVersion::FIRST,
            stamp: LogicalMs(0),
            last_token: 0,
            last_arrival: 0,
            grace_at: None,
            sessions: SessionTable::new(hash_seed),
            grants: BTreeMap::new(),
            rests: BTreeMap::new(),
            waiters: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            freezes: Freezes::default(),
            jobs: Jobs::default(),
            jobs_refused: false,
            #[cfg(feature = "made-up-version")]
            remark: None,
            resources: ResourceTable::new(hash_seed),
            principals: BTreeMap::new(),
            limit_count: 0,
            deadlines: Deadlines::default(),
            digest: Digest::default(),
            freed: Vec::new(),
            loosened: Vec::new(),
            effects: Effects::default(),
        }
    }

    /// Applies one log entry and returns everything that it caused. Nothing else changes the state.
    ///
    /// # Panics
    /// If the stamp is smaller than that of the previous entry, or if an invariant is broken: a wrong answer costs more
    /// than downtime.
    // Rule: logical-time
    // Rule: within-an-entry
    pub fn apply(&mut self, stamp: LogicalMs, batch: Batch) -> Effects {
        assert!(stamp >= self.stamp, "stamp {} after {}: logical time never goes back", stamp.0, self.stamp.0);
        self.stamp = stamp;
        // First of all, so that one version's rules decide the whole entry.
        self.version = self.version.max(batch.raise_to.unwrap_or(self.version));
        if batch.failover_grace {
            self.grace_at = Some(stamp);
            planted::keep_attempts(self);
        }
        self.jobs.forget_ended(stamp, &mut self.digest);
        for (place, renewal) in batch.renewals.into_iter().enumerate() {
            let outcome = self.renew(renewal).unwrap_or_else(Outcome::Refused);
            self.reply(ReplyTo::Renewal(place), outcome, None);
        }
        self.end_everything_due();
        let mut cancelled = self.cancel_waits(&batch.operations).into_iter().peekable();
        self.grant_successors();
        for (place, operation) in batch.operations.into_iter().enumerate() {
            let (outcome, repeat) = match cancelled.next_if(|(cancel, _)| *cancel == place) {
                Some((_, outcome)) => (outcome, None),
                None => self.operate(operation),
            };
            self.reply(ReplyTo::Operation(place), outcome, repeat);
            self.grant_successors();
        }
        self.make_first_deadline_exact();
        std::mem::take(&mut self.effects)
    }

    /// The stamp of the last entry.
    pub fn stamp(&self) -> LogicalMs {
        self.stamp
    }

    /// The active format version. Its rules decide everything.
    pub fn version(&self) -> FormatVersion {
        self.version
    }

    /// The earliest stamp at which something is due. An empty entry before that stamp would end nothing.
    // Rule: idle-is-silent
    pub fn next_deadline(&self) -> Option<LogicalMs> {
        self.deadlines.first().map(|(at, _)| at)
    }

    /// One number for the whole state. Replicas at the same log position have the same number.
    pub fn state_hash(&self) -> u64 {
        self.digest.with(&("header", self.header()))
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            version: self.version,
            stamp: self.stamp,
            last_token: self.last_token,
            last_arrival: self.last_arrival,
            grace_at: self.grace_at,
            jobs_refused: self.jobs_refused,
        }
    }

    fn operate(&mut self, operation: Operation) -> (Outcome, Option<Repeat>) {
        // Rule: format-version
        let needs = operation.needs();
        if needs > self.version {
            return (Outcome::Refused(Refusal::NotYet { needs }), None);
        }
        match operation {
            #[cfg(feature = "made-up-version")]
            Operation::MadeUp(text) => (self.remark(text), None),
            Operation::Open(open) => self.open(open),
            Operation::Request(request) => self.answer_once(request),
            Operation::Admin(admin) => (self.administer(admin), None),
        }
    }

    /// Carries out a request that was not answered before.
    pub(crate) fn carry_out(&mut self, asker: Asker, action: Action) -> Outcome {
        match action {
            Action::Acquire(acquire) => self.acquire(asker, acquire),
            Action::TakePermits(take) => self.take_permits(asker, take),
            Action::Cancel { request, release_if_granted } => self.cancel(asker, request, release_if_granted),
            Action::Release { grant, report } => self.release(asker, grant, report.map(|report| *report)),
            Action::Begin { grant } => self.begin(asker, grant),
            Action::Checkpoint { grant, bytes } => self.checkpoint(asker, grant, bytes),
            Action::Extend { grant, max_hold } => self.extend(asker, grant, max_hold),
            Action::Convert { grant, name, mode, wait } => self.convert(asker, grant, &name, mode, wait),
            Action::SetValue { grant, value } => self.set_value(asker, grant, value),
            Action::Close => self.close(asker),
        }
    }

    fn reply(&mut self, to: ReplyTo, outcome: Outcome, repeat: Option<Repeat>) {
        self.effects.replies.push(Reply { to, outcome, repeat });
    }

    /// Ends everything whose deadline the stamp has reached, as one set: what is due is decided before anything ends, and
    /// nothing is granted in between.
    // Rule: never-early
    // Rule: bounded-late
    fn end_everything_due(&mut self) {
        let stamp = planted::expiry_stamp(self.stamp);
        let (mut sessions, mut grants, mut waits, mut rests) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut lifted = Vec::new();
        for due in self.deadlines.up_to(stamp) {
            match due {
                Due::Session(id) => {
                    let session = &self.sessions[&id];
                    if session.deadline(self.grace_at) <= stamp {
                        sessions.push(id);
                        continue;
                    }
                    let renewed_at = session.record.renewed_at;
                    let ttls = session.ttls.iter().flat_map(|ttls| ttls.due(stamp, renewed_at, self.grace_at));
                    grants.extend(ttls.map(|grant| (grant, GrantEnd::Ttl)));
                    lifted.push(id);
                }
                Due::Hold(grant) => grants.push((grant, GrantEnd::MaxHold)),
                Due::Wait(arrival) => waits.push(arrival),
                Due::Rest(grant) => rests.push(grant),
            }
        }
        sessions.sort_unstable();
        // By grant id. If a grant is due twice, its TTL comes before its max-hold, and the second end finds no grant.
        grants.sort_by_key(|(grant, how)| (*grant, *how == GrantEnd::MaxHold));
        waits.sort_unstable();
        rests.sort_unstable();

        for id in sessions {
            self.end_session(id, &SessionEnd::Expired);
            planted::grant_nothing_yet(self);
        }
        for (grant, how) in grants {
            if self.grants.contains_key(&grant) {
                self.end_grant(grant, &how);
            }
        }
        for arrival in waits {
            if self.waiters.contains_key(&arrival) {
                self.end_wait(arrival, Outcome::TimedOut);
            }
        }
        for grant in rests {
            self.end_rest(grant, false);
        }
        for id in lifted {
            self.move_session_timer(id);
        }
    }

    /// A fail-over grace lifts deadlines without touching the set of deadlines, so its first one may be too early. Moves the
    /// first ones until the first is exact.
    fn make_first_deadline_exact(&mut self) {
        while let Some((at, Due::Session(id))) = self.deadlines.first() {
            self.move_session_timer(id);
            if self.sessions[&id].timer == at {
                return;
            }
        }
    }
}
