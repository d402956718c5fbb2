//! The checkers, one file for each invariant. They see every fact of a run, in order, and a ledger of what the log has said so far.
//!
//! The log gives the order of all operations, so one pass over it is enough. An entry is checked event by event. Operations without an
//! event are judged in between, in the order of the operations. What must hold at an event is checked just before the ledger follows it.
//! What must hold after an entry is checked at its end, and only for what the entry touched, so the cost does not grow with the state.

mod black_box;
mod causes;
mod due;
mod findings;
mod follow;
mod i01_exclusion;
mod i02_tokens;
mod i03_acknowledged;
mod i04_living;
mod i05_order;
mod i06_wake_up;
mod i07_session_end;
mod i08_multi_lock;
mod i09_time;
mod i11_owner_only;
mod i12_once;
mod i13_deadlock;
mod i14_watch;
mod i15_hashes;
mod i17_real_time;
mod i19_liveness;
mod i20_fenced;
mod i22_late;
mod i26_jobs;
mod i27_door;
mod ledger;
mod looking;
mod place;
mod recent;
mod step;
#[cfg(test)]
mod tests;

use fencepost_core::{Event, Held, LogPosition, Operation, Outcome, RequestNumber, SessionId};
use fencepost_session::client::RequestKey;

use crate::fact::{Fact, LoggedEntry, WorldTime};

pub use findings::{Report, Violation};

use causes::Causes;
use findings::Findings;
use ledger::Ledger;
use step::Step;

/// The group of the replicated locks for the black-box checker. One group for the whole run, because their tokens rise over all terms and
/// restores.
const REPLICATED: (u128, u64) = (0, 0);

/// All checkers.
pub struct Checkers {
    findings: Findings,
    ledger: Ledger,
    /// The current cluster after a restore; `None` before the first restore.
    cluster: Option<u128>,
    /// The position of the last entry.
    last: LogPosition,
    causes: Causes,
    /// Which operations of the entry are already judged. Not always a prefix: cancels of older waits take effect before the other
    /// operations.
    judged: Vec<bool>,
    tokens: i02_tokens::Tokens,
    acknowledged: i03_acknowledged::Acknowledged,
    time: i09_time::Time,
    once: i12_once::Once,
    watch: i14_watch::Watch,
    hashes: i15_hashes::Hashes,
    real_time: i17_real_time::RealTime,
    fenced: i20_fenced::Fenced,
    late: i22_late::Late,
    jobs: i26_jobs::Jobs,
    door: i27_door::Door,
    black_box: black_box::BlackBox,
    /// The black-box checker for users of the efficiency tier. Administrators cannot act there.
    // Rule: tier-efficiency
    in_memory: black_box::BlackBox,
}

impl Default for Checkers {
    fn default() -> Checkers {
        Checkers::new(false)
    }
}

impl Checkers {
    /// Checkers for a new run. `administered` says that administrators may break grants or evict sessions. A holder may then act after it
    /// lost its lock, so the black-box checker, which does not see the log, is off.
    pub fn new(administered: bool) -> Checkers {
        Checkers {
            findings: Findings::default(),
            ledger: Ledger::default(),
            cluster: None,
            last: LogPosition::default(),
            causes: Causes::default(),
            judged: Vec::new(),
            tokens: Default::default(),
            acknowledged: Default::default(),
            time: Default::default(),
            once: Default::default(),
            watch: Default::default(),
            hashes: Default::default(),
            real_time: Default::default(),
            fenced: Default::default(),
            late: Default::default(),
            jobs: Default::default(),
            door: Default::default(),
            black_box: black_box::BlackBox::new(administered),
            in_memory: black_box::BlackBox::new(false),
        }
    }

    /// Checks one fact.
    pub fn see(&mut self, at: WorldTime, fact: &Fact<'_>) {
        self.findings.now = at;
        let findings = &mut self.findings;
        match *fact {
            Fact::Logged(entry) => self.logged(entry),
            Fact::Applied { node, position, state_hash } => self.hashes.applied(node, position, state_hash, findings),
            Fact::Asked { request, action } => {
                self.real_time.asked(request, self.once.knows(request.session, request.number), findings);
                self.time.asked(request, at);
                self.black_box.asked(request, action);
                self.jobs.asked(request, action);
            }
            Fact::Heard { cluster, .. } if self.cluster.is_some_and(|known| known != cluster) => {}
            Fact::Heard { session, number, position, stamp, outcome, repeat, .. } => {
                self.acknowledged.heard(session, number, position, stamp, (outcome, repeat), findings);
                self.real_time.heard(position.index);
            }
            Fact::Told { request, answer } => {
                self.black_box.told(request, answer);
                self.jobs.told(request, answer, findings);
            }
            Fact::Acts { session, grant, token } => {
                self.time.acts(&self.ledger, session, grant, token, findings);
                self.black_box.acts(REPLICATED, (session, grant, token), findings);
            }
            Fact::ReadAsked { read } => self.real_time.read_asked(read),
            Fact::ReadAnswered { read, position } => self.real_time.read_answered(read, position.index, findings),
            Fact::Watched { watcher, prefix, event } => self.watch.given(watcher, prefix, event, findings),
            Fact::WatchCompacted { watcher, oldest } => self.watch.compacted(watcher, oldest, findings),
            Fact::WatchedThrough { watcher, prefix, index } => self.watch.through(watcher, prefix, index, findings),
            Fact::Store(access) => {
                self.fenced.accessed(access, findings);
                self.jobs.accessed(access, findings);
            }
            Fact::JobRead { position, stamp, name, key, record } => {
                self.jobs.read(position.index, stamp, (name, key), record, findings);
            }
            Fact::JobConcluded { name, key, token, completed } => {
                self.jobs.concluded((name.clone(), key.clone()), token, completed, self.ledger.stamp, findings);
            }
            Fact::Disturbed => self.time.disturbed(),
            Fact::Healed => self.time.healed(at),
            Fact::Leads { leader, planned } => self.late.leads(leader, planned, findings),
            Fact::Serves { node, ready } => i19_liveness::it_serves(node, ready, findings),
            Fact::Shown { node, lives, hears } => i19_liveness::it_is_shown_as_it_is(node, lives, hears, findings),
            Fact::InMemory { group, fact } => self.in_memory(group, fact),
            Fact::Restored { cluster } => self.restored(cluster),
            Fact::Connected { stream, client, node, tier } => self.door.connected(stream, client, node, tier),
            Fact::Said { stream, message } => self.door.said(stream, message),
            Fact::Submitted(command) => self.door.submitted(command, findings),
            Fact::Decided { command, position, reply } => self.door.decided(command, position, reply, findings),
            Fact::Pushed { node, tier, position, push } => self.door.pushed(node, tier, position, push),
            Fact::Sent { stream, message } => self.door.sent(stream, message, findings),
            Fact::StreamOver { stream } => self.door.stream_over(stream),
            Fact::TermOver { node } => self.door.term_over(node),
            Fact::Over => {
                i19_liveness::no_request_waits_for_what_is_free(&self.ledger, findings);
                self.late.nothing_is_left(&self.ledger, findings);
            }
        }
    }

    /// Checks a fact of the efficiency tier. Within one term its locks exclude each other like the replicated ones. Between terms it
    /// promises nothing.
    // Rule: tier-efficiency
    fn in_memory(&mut self, group: (u128, u64), fact: &Fact<'_>) {
        match *fact {
            Fact::Asked { request, action } => self.in_memory.asked(request, action),
            Fact::Told { request, answer } => self.in_memory.told(request, answer),
            Fact::Acts { session, grant, token } => {
                self.findings.report.acts_in_memory += 1;
                self.in_memory.acts(group, (session, grant, token), &mut self.findings);
            }
            _ => {}
        }
    }

    /// Notes a violation that the world itself found.
    pub fn found(&mut self, invariant: &'static str, at: WorldTime, what: String) {
        self.findings.now = at;
        self.findings.found(invariant, || what);
    }

    /// The violations found, at most the first hundred.
    pub fn violations(&self) -> &[Violation] {
        &self.findings.violations
    }

    /// How much was checked.
    pub fn report(&self) -> &Report {
        &self.findings.report
    }

    /// The cluster was restored: a new log begins. Tokens must go on rising (I2) and the store keeps its marks (I20), so these checkers
    /// keep their state.
    fn restored(&mut self, cluster: u128) {
        self.cluster = Some(cluster);
        self.last = LogPosition::default();
        self.ledger.restored();
        self.acknowledged = Default::default();
        self.time.restored();
        self.once.restored();
        self.watch.restored();
        self.hashes.restored();
        self.real_time.restored();
        self.black_box.restored();
        self.late.restored();
        self.jobs.restored();
        self.door.restored();
    }

    fn logged(&mut self, entry: &LoggedEntry) {
        let (batch, effects) = (&entry.batch, &entry.effects);
        self.findings.report.entries += 1;
        self.findings.report.events += effects.events.len() as u64;
        self.findings.report.operations += batch.operations.len() as u64;
        self.follows_the_last(entry);
        let expected = batch.renewals.len() + batch.operations.len();
        self.findings.ensure(effects.replies.len() == expected, "I12", || {
            format!(
                "there are {} answers to {expected} commands in the entry at {:?}",
                effects.replies.len(),
                entry.position
            )
        });
        if effects.replies.len() != expected {
            return;
        }

        self.ledger.begin(entry);
        self.late.entry(entry.stamp, self.findings.now);
        self.time.is_not_ahead(entry.stamp, &mut self.findings);
        for (renewal, reply) in batch.renewals.iter().zip(&effects.replies) {
            i11_owner_only::who_renews(&self.ledger, renewal, &reply.outcome, &mut self.findings);
            self.jobs.renewed(renewal, &reply.outcome, &mut self.findings);
            self.ledger.renewed(renewal, &reply.outcome);
        }
        self.causes.gather(entry);
        self.judged.clear();
        self.judged.resize(batch.operations.len(), false);
        let mut judged_up_to = 0;
        for event in &effects.events {
            i07_session_end::nothing_is_left(&mut self.ledger, Some(event), &mut self.findings);
            let cause = self.causes.of(event, entry, &self.ledger);
            match cause.or_else(|| self.causes.of_what_follows(event)) {
                Some(at) if is_cancel_of_old_wait(&self.ledger, event) => self.judge(entry, at),
                Some(at) => {
                    (judged_up_to..=at).for_each(|at| self.judge(entry, at));
                    judged_up_to = judged_up_to.max(at + 1);
                }
                None => {}
            }
            self.event(entry, event, cause);
        }
        (judged_up_to..batch.operations.len()).for_each(|at| self.judge(entry, at));
        self.after(entry);
    }

    // Rule: logical-time
    fn follows_the_last(&mut self, entry: &LoggedEntry) {
        let (last, position) = (self.last, entry.position);
        let rises = position.index > last.index && position.term >= last.term;
        // Rule: failover-grace
        let lifts_rightly = entry.batch.failover_grace == (position.term > last.term) || last == LogPosition::default();
        self.findings.ensure(lifts_rightly, "I9", || {
            format!(
                "the first entry of a term, and no other, must have the fail-over grace: {position:?} after {last:?}"
            )
        });
        self.findings.ensure(rises, "I3", || {
            format!("the entry at {position:?} follows the entry at {last:?}, but positions must rise")
        });
        let goes_on = last == LogPosition::default() || entry.stamp >= self.ledger.stamp;
        self.findings.ensure(goes_on, "I9", || {
            format!("stamp {} at {position:?} after {}: time went back", entry.stamp.0, self.ledger.stamp.0)
        });
        self.last = position;
    }

    /// Judges the answer to one operation, against the ledger just before the operation's events.
    fn judge(&mut self, entry: &LoggedEntry, at: usize) {
        if std::mem::replace(&mut self.judged[at], true) {
            return;
        }
        let Operation::Request(request) = &entry.batch.operations[at] else { return };
        let reply = &entry.effects.replies[entry.batch.renewals.len() + at];
        let (ledger, findings) = (&mut self.ledger, &mut self.findings);
        i11_owner_only::who_asks(ledger, request, &reply.outcome, findings);
        if reply.repeat.is_none() {
            i11_owner_only::the_owner_is_known(ledger, request, &reply.outcome, findings);
        }
        if ledger.session(request.session).is_some() && self.once.replied(request, reply, entry.stamp, findings) {
            let key = RequestKey { session: request.session, number: request.number };
            self.real_time.decided(key, entry.position.index, findings);
            self.time.decided(key, entry.stamp);
            self.jobs.replied(ledger, request, &reply.outcome, findings);
        }
        if let (fencepost_core::Action::Extend { grant, .. }, Outcome::Extended { until }, None) =
            (&request.action, &reply.outcome, &reply.repeat)
        {
            ledger.extended(*grant, *until);
        }
    }

    /// Checks one event against the ledger before it, then lets the ledger follow it.
    fn event(&mut self, entry: &LoggedEntry, event: &Event, cause: Option<usize>) {
        i13_deadlock::the_cycle_is_real(&mut self.ledger, event, &mut self.findings);
        let step = Step::new(&self.ledger, entry, event, cause);
        let findings = &mut self.findings;
        if let Some(granted) = step.granted_request() {
            i01_exclusion::no_other_owner_holds_it(&step, &granted, findings);
            i05_order::no_waiter_is_passed(&step, &granted, findings);
        }
        i01_exclusion::permits_are_within_the_limit(&step, findings);
        i01_exclusion::it_rests_as_asked(&step, findings);
        self.tokens.check(&step, findings);
        i03_acknowledged::what_ends_is_held(&step, findings);
        i04_living::who_gets_something_lives_and_asked(&step, findings);
        i05_order::permits_go_to_the_head(&step, findings);
        i05_order::arrivals_rise(&step, findings);
        i07_session_end::what_goes_with_a_session(&step, findings);
        i08_multi_lock::exactly_what_was_asked(&step, findings);
        self.time.ends_when_due(&step, findings);
        self.time.note(&step);
        self.late.ends_in_time(&step, findings);
        i11_owner_only::only_the_owner_acts(&step, findings);
        self.jobs.event(&step, findings);
        count(&step, findings);

        let ended = wait_that_ends(&step);
        let unchecked = step.is_unchecked();
        let operation = cause.map(|at| &entry.batch.operations[at]);
        if let Some((session, number, outcome)) = ended {
            self.once.wait_ended(session, number, outcome.clone(), entry.stamp, findings);
            self.acknowledged.wait_ended(session, number, outcome);
        }
        if let Event::SessionOpened { session, .. } = event {
            self.once.session_ended(*session);
            self.door.opened_in_log(*session);
        }
        self.ledger.follow(event, operation, unchecked);
    }

    /// Checks what must hold after an entry.
    fn after(&mut self, entry: &LoggedEntry) {
        let findings = &mut self.findings;
        for at in self.causes.unused(entry) {
            findings.found("I3", || {
                let reply = &entry.effects.replies[entry.batch.renewals.len() + at];
                format!(
                    "the answer {:?} reports a change, but no event shows it: {:?}",
                    reply.outcome, entry.batch.operations[at]
                )
            });
        }
        i07_session_end::nothing_is_left(&mut self.ledger, None, findings);
        for event in &entry.effects.events {
            if let Event::SessionEnded { session, .. } = event
                && self.ledger.session(*session).is_none()
            {
                self.once.session_ended(*session);
            }
        }
        i06_wake_up::no_waiter_is_grantable(&mut self.ledger, findings);
        i09_time::nothing_due_is_left(&mut self.ledger, findings);
        i13_deadlock::no_cycle_is_left(&mut self.ledger, findings);
        self.jobs.after(findings);
        self.acknowledged.entry(entry, findings);
        self.watch.entry(entry);
    }
}

/// Whether an event cancels a request that waited before this entry. Such cancels take effect before all operations of the entry.
// Rule: within-an-entry
fn is_cancel_of_old_wait(ledger: &Ledger, event: &Event) -> bool {
    match event {
        Event::NotGranted { request, outcome: Outcome::Cancelled } => {
            ledger.waiting(request.session, request.number).is_some_and(|arrival| ledger.waited_before(arrival))
        }
        _ => false,
    }
}

/// The wait that an event ends, and its outcome.
fn wait_that_ends(step: &Step<'_>) -> Option<(SessionId, RequestNumber, Outcome)> {
    let waiter = step.ledger.waiters.get(&step.waiter?)?;
    let outcome = match step.event {
        Event::Granted { grant, token, count, .. } => Outcome::Granted { grant: *grant, token: *token, count: *count },
        Event::Converted { grant, token, .. } => Outcome::Converted { grant: *grant, token: *token },
        Event::NotGranted { outcome, .. } => outcome.clone(),
        _ => return None,
    };
    Some((waiter.request.session, waiter.request.number, outcome))
}

/// Counts what was checked.
fn count(step: &Step<'_>, findings: &mut Findings) {
    let report = &mut findings.report;
    match step.event {
        Event::Granted { grant, .. } if step.ledger.grants.contains_key(grant) => report.re_entries += 1,
        Event::Granted { request, .. } => {
            report.grants += 1;
            report.hand_overs += u64::from(step.waiter.is_some());
            match &request.wants {
                Held::Permits { .. } => report.permits += 1,
                Held::Locks(locks) => report.multi_locks += u64::from(locks.len() > 1),
            }
        }
        Event::Converted { grant, held, .. } => {
            let before = step.ledger.grants.get(grant);
            report.upgrades += u64::from(before.is_some_and(|before| follow::is_stronger(&before.held, held)));
        }
        _ => {}
    }
}
