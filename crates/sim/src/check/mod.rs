//! The checkers: one file an invariant. Each sees every fact of a run, in order, beside the ledger of what the log has said so far.
//!
//! The log position is a witness of the order, so checking is one replay. An entry is walked event by event: the operations that
//! caused nothing are judged where they stand between the events of those that did. What must hold at an event is asked just before it
//! is followed, what must hold after an entry is asked at its end, and only of what the entry touched.

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

/// The group of the replicated locks: their tokens rise over terms and restores.
const REPLICATED: (u128, u64) = (0, 0);

/// All checkers.
pub struct Checkers {
    findings: Findings,
    ledger: Ledger,
    /// The cluster, once it is another than in the beginning.
    cluster: Option<u128>,
    /// Where the last entry stands.
    last: LogPosition,
    causes: Causes,
    /// Which operations of the entry were judged. Cancels of waits take effect before the others.
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
    door: i27_door::Door,
    black_box: black_box::BlackBox,
    /// The users of the efficiency tier. Administrators do not reach it.
    // Rule: tier-efficiency
    in_memory: black_box::BlackBox,
}

impl Default for Checkers {
    fn default() -> Checkers {
        Checkers::new(false)
    }
}

impl Checkers {
    /// Checkers of a new run. If an administrator may break grants or evict sessions in it, the clients alone cannot know why
    /// somebody acts too late, and the black-box checker stays silent.
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
            }
            Fact::Heard { cluster, .. } if self.cluster.is_some_and(|known| known != cluster) => {}
            Fact::Heard { session, number, position, stamp, outcome, repeat, .. } => {
                self.acknowledged.heard(session, number, position, stamp, (outcome, repeat), findings);
                self.real_time.heard(position.index);
            }
            Fact::Told { request, answer } => self.black_box.told(request, answer),
            Fact::Acts { session, grant, token } => {
                self.time.acts(&self.ledger, session, grant, token, findings);
                self.black_box.acts(REPLICATED, (session, grant, token), findings);
            }
            Fact::ReadAsked { read } => self.real_time.read_asked(read),
            Fact::ReadAnswered { read, position } => self.real_time.read_answered(read, position.index, findings),
            Fact::Watched { watcher, prefix, event } => self.watch.given(watcher, prefix, event, findings),
            Fact::WatchCompacted { watcher, oldest } => self.watch.compacted(watcher, oldest, findings),
            Fact::WatchedThrough { watcher, prefix, index } => self.watch.through(watcher, prefix, index, findings),
            Fact::Store(access) => self.fenced.accessed(access, findings),
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
                i19_liveness::nobody_waits_for_what_is_free(&self.ledger, findings);
                self.late.nothing_is_left(&self.ledger, findings);
            }
        }
    }

    /// Within one term the efficiency tier keeps its holders apart as the replicated locks do. Between terms it promises nothing.
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

    /// The world itself has found something.
    pub fn found(&mut self, invariant: &'static str, at: WorldTime, what: String) {
        self.findings.now = at;
        self.findings.found(invariant, || what);
    }

    /// What was found: the first hundred at most.
    pub fn violations(&self) -> &[Violation] {
        &self.findings.violations
    }

    /// How much was looked at.
    pub fn report(&self) -> &Report {
        &self.findings.report
    }

    /// A new log begins. Tokens go on rising, and the store goes on guarding.
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
            format!("{} answers to {expected} commands at {:?}", effects.replies.len(), entry.position)
        });
        if effects.replies.len() != expected {
            return;
        }

        self.ledger.begin(entry);
        self.late.entry(entry.stamp, self.findings.now);
        self.time.is_not_ahead(entry.stamp, &mut self.findings);
        for (renewal, reply) in batch.renewals.iter().zip(&effects.replies) {
            i11_owner_only::who_renews(&self.ledger, renewal, &reply.outcome, &mut self.findings);
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
            format!("the first entry of a term lifts deadlines, and no other: {position:?} after {last:?}")
        });
        self.findings.ensure(rises, "I3", || format!("an entry at {position:?} after one at {last:?}"));
        let goes_on = last == LogPosition::default() || entry.stamp >= self.ledger.stamp;
        self.findings.ensure(goes_on, "I9", || {
            format!("stamp {} at {position:?} after {}: time goes back", entry.stamp.0, self.ledger.stamp.0)
        });
        self.last = position;
    }

    /// Judges the answer to one operation, as of just before it causes anything.
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
        }
        if let (fencepost_core::Action::Extend { grant, .. }, Outcome::Extended { until }, None) =
            (&request.action, &reply.outcome, &reply.repeat)
        {
            ledger.extended(*grant, *until);
        }
    }

    /// Checks one event against the ledger as it is before it, and follows it.
    fn event(&mut self, entry: &LoggedEntry, event: &Event, cause: Option<usize>) {
        i13_deadlock::the_cycle_is_real(&mut self.ledger, event, &mut self.findings);
        let step = Step::new(&self.ledger, entry, event, cause);
        let findings = &mut self.findings;
        if let Some(granted) = step.granted_request() {
            i01_exclusion::nobody_else_holds_it(&step, &granted, findings);
            i05_order::nobody_is_passed(&step, &granted, findings);
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
        }
        self.ledger.follow(event, operation, unchecked);
    }

    /// What must hold after an entry.
    fn after(&mut self, entry: &LoggedEntry) {
        let findings = &mut self.findings;
        for at in self.causes.unused(entry) {
            findings.found("I3", || {
                let reply = &entry.effects.replies[entry.batch.renewals.len() + at];
                format!("told {:?}, and no event says so: {:?}", reply.outcome, entry.batch.operations[at])
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
        i06_wake_up::nobody_waits_for_nothing(&mut self.ledger, findings);
        i09_time::nothing_due_is_left(&mut self.ledger, findings);
        i13_deadlock::no_cycle_is_left(&mut self.ledger, findings);
        self.acknowledged.entry(entry, findings);
        self.watch.entry(entry);
    }
}

/// Whether an event is a cancel of what waited before this entry's operations: such a cancel is done before all of them.
// Rule: within-an-entry
fn is_cancel_of_old_wait(ledger: &Ledger, event: &Event) -> bool {
    match event {
        Event::NotGranted { request, outcome: Outcome::Cancelled } => {
            ledger.waiting(request.session, request.number).is_some_and(|arrival| ledger.waited_before(arrival))
        }
        _ => false,
    }
}

/// The wait that an event ends, and how.
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

/// Counts what was looked at.
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
