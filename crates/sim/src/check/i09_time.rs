//! I9 and I10: nothing expires early, as seen from the log and from any client. While there is a leader, nothing expires more than 500 ms
//! of logical time late. A fail-over extends a deadline by no more than the rule `failover-grace` allows.
//!
//! The ledger knows every deadline to the millisecond. Each entry must end everything that is due at its stamp, and nothing else. How
//! long after a deadline the next entry comes is judged only while the world is undisturbed. No holder acts on a grant that the log
//! ended by time. It may act on a grant that an administrator or its own cancel ended, because it learns of that later.
//!
//! Independently of acting holders, logical time never runs ahead of real time. If a request was sent at time S and entered the log with
//! stamp L, then no entry at time T may have a stamp above L + (T - S), apart from clock drift.

use fencepost_core::{Event, GrantEnd, GrantId, LogicalMs, Outcome, SessionEnd, SessionId, Token};
use fencepost_session::client::RequestKey;

use crate::fact::WorldTime;

use super::due::Due;
use super::findings::Findings;
use super::ledger::Ledger;
use super::recent::Recent;
use super::step::Step;

/// How late something may end, in logical milliseconds.
// Rule: bounded-late
const LATE_MS_MAX: u64 = 500;
/// Additional time for a commit that is in flight when the deadline passes.
const IN_FLIGHT_MS: u64 = 1_000;
/// Bounds on time hold again this long after the world is healed.
const SETTLES_MS: u64 = 10_000;
/// How many grants that ended by time are remembered.
const ENDED_MAX: usize = 1_000_000;
/// How many undecided requests are remembered.
const ASKED_MAX: usize = 100_000;
/// A leader's clock is fast by at most 1 in 200.
const CLOCK_ONE_IN: i128 = 200;

/// What the checker remembers.
#[derive(Debug)]
pub(super) struct Time {
    /// When the world was healed; `None` while it is disturbed.
    healed_at: Option<WorldTime>,
    /// Grants that ended by time, with the index of the entry that ended them.
    ended: Recent<GrantId, u64>,
    /// Grants up to this id were made before a restore. Their holders cannot know of the restore, so they are not judged.
    restored_after: u64,
    last_grant: u64,
    /// When each undecided request was first sent.
    asked: Recent<RequestKey, WorldTime>,
    /// The strictest bound so far on how far a stamp may be ahead: the minimum of `ahead` over all decided requests.
    ahead_max: Option<i128>,
}

impl Default for Time {
    fn default() -> Time {
        let (ended, asked) = (Recent::up_to(ENDED_MAX), Recent::up_to(ASKED_MAX));
        Time { healed_at: None, ended, restored_after: 0, last_grant: 0, asked, ahead_max: None }
    }
}

/// How far a stamp is ahead of an instant, by the fastest clock that a leader may have. In nanoseconds times `CLOCK_ONE_IN`; only
/// differences are meaningful.
fn ahead(stamp: LogicalMs, at: WorldTime) -> i128 {
    i128::from(stamp.0) * 1_000_000 * CLOCK_ONE_IN - i128::from(at.0) * (CLOCK_ONE_IN + 1)
}

impl Time {
    pub(super) fn disturbed(&mut self) {
        self.healed_at = None;
    }

    pub(super) fn healed(&mut self, at: WorldTime) {
        self.healed_at = Some(at);
    }

    pub(super) fn restored(&mut self) {
        self.ended.clear();
        self.asked.clear();
        self.ahead_max = None;
        self.restored_after = self.last_grant;
    }

    /// A request is sent for the first time.
    pub(super) fn asked(&mut self, request: RequestKey, at: WorldTime) {
        self.asked.note(request, at);
    }

    /// A request is decided, for the first time, in an entry with this stamp.
    pub(super) fn decided(&mut self, request: RequestKey, stamp: LogicalMs) {
        let Some(at) = self.asked.take(&request) else { return };
        let ahead = ahead(stamp, at);
        self.ahead_max = Some(self.ahead_max.map_or(ahead, |most| most.min(ahead)));
    }

    /// A new entry has this stamp: it is not ahead of what the decided requests prove.
    // Rule: logical-time
    pub(super) fn is_not_ahead(&self, stamp: LogicalMs, findings: &mut Findings) {
        let Some(most) = self.ahead_max else { return };
        findings.report.proved_stamps += 1;
        let by_ms = (ahead(stamp, findings.now) - most) / CLOCK_ONE_IN / 1_000_000;
        findings.ensure(by_ms < 1, "I9", || {
            format!("the stamp {} is {by_ms} ms later than the time of a decided request allows", stamp.0)
        });
    }

    /// What ends by time was due, and did not end too late.
    // Rule: never-early
    pub(super) fn ends_when_due(&mut self, step: &Step<'_>, findings: &mut Findings) {
        let ledger = step.ledger;
        let deadline = match step.event {
            Event::SessionEnded { session, how: SessionEnd::Expired } => ledger.deadline(Due::Session(*session)),
            Event::Ended { grant, how: GrantEnd::Ttl, .. } => {
                ledger.grants.get(grant).and_then(|grant| ledger.ttl_ends(grant))
            }
            Event::Ended { grant, how: GrantEnd::MaxHold, .. } => {
                ledger.grants.get(grant).and_then(|grant| grant.hold_until)
            }
            Event::NotGranted { outcome: Outcome::TimedOut, .. } => {
                step.waiter.and_then(|arrival| ledger.deadline(Due::Wait(arrival)))
            }
            Event::RestEnded { grant, waived: false, .. } => match ledger.deadline(Due::Rest(*grant)) {
                None if ledger.is_restored => return,
                deadline => deadline,
            },
            _ => return,
        };
        match step.event {
            Event::NotGranted { .. } => findings.report.time_outs += 1,
            Event::RestEnded { .. } => {}
            _ => findings.report.expiries += 1,
        }
        let now = step.entry.stamp;
        findings.ensure(deadline.is_some_and(|deadline| deadline <= now), "I9", || {
            format!("a session, grant, wait or rest ended at {}, but was due at {deadline:?}: {:?}", now.0, step.event)
        });
        self.is_soon(deadline, now, step.event, findings);
    }

    fn is_soon(&self, deadline: Option<LogicalMs>, now: LogicalMs, event: &Event, findings: &mut Findings) {
        let is_calm = self.healed_at.is_some_and(|healed| findings.now >= healed.after_ms(SETTLES_MS));
        let Some(deadline) = deadline.filter(|_| is_calm) else { return };
        let late_ms = now.0.saturating_sub(deadline.0);
        findings.report.latest_ms = findings.report.latest_ms.max(late_ms);
        findings.ensure(late_ms <= LATE_MS_MAX + IN_FLIGHT_MS, "I10", || {
            format!("a session, grant, wait or rest ended {late_ms} ms after its deadline in an undisturbed world: {event:?}")
        });
    }

    /// Remembers which grants ended by time.
    pub(super) fn note(&mut self, step: &Step<'_>) {
        match step.event {
            Event::Granted { grant, .. } => self.last_grant = self.last_grant.max(grant.0),
            Event::Ended {
                grant,
                how: GrantEnd::Ttl | GrantEnd::MaxHold | GrantEnd::Session(SessionEnd::Expired),
                ..
            } => {
                self.ended.note(*grant, step.entry.position.index);
            }
            _ => {}
        }
    }

    /// A user acts under a grant: the grant must be its own, and must not have ended by time.
    // Rule: holder-stops-first
    pub(super) fn acts(
        &self,
        ledger: &Ledger,
        session: SessionId,
        grant: GrantId,
        token: Token,
        findings: &mut Findings,
    ) {
        findings.report.acts += 1;
        if grant.0 <= self.restored_after {
            return;
        }
        let what = || format!("{session:?} acts under grant {} with token {}", grant.0, token.0);
        findings.ensure(grant.0 <= self.last_grant, "I4", || format!("{}, but the log has no such grant", what()));
        let ended = self.ended.get(&grant);
        findings.ensure(ended.is_none(), "I9", || format!("{}, but entry {ended:?} ended that grant by time", what()));
        if let Some(held) = ledger.grants.get(&grant) {
            let is_its_own = held.session == session && (grant.0..=held.token.0).contains(&token.0);
            findings.ensure(is_its_own, "I3", || {
                format!("{}, but in the log that grant has another session or token: {held:?}", what())
            });
        }
    }
}

/// After an entry, nothing is left that was due at its stamp.
// Rule: within-an-entry
pub(super) fn nothing_due_is_left(ledger: &mut Ledger, findings: &mut Findings) {
    for due in ledger.overdue() {
        findings.found("I10", || {
            format!(
                "{due:?} was due at {:?}, but is still there after entry {} with stamp {}",
                ledger.deadline(due),
                ledger.index,
                ledger.stamp.0
            )
        });
    }
}
