//! I9 and I10: nothing expires early, seen from the log and from any client; nothing later than 500 ms of logical time while there is
//! a leader; and fail-over lifts a deadline by no more than `failover-grace` says.
//!
//! The ledger knows every deadline to the millisecond. Each entry must end everything that is due at its stamp and nothing else. How
//! long after a deadline the next entry comes is only judged while the world is undisturbed. A holder never acts in the belief that it
//! holds what the log has ended by time; what an administrator took from it, or a cancel of its own, it cannot know at once.
//!
//! And whether or not a holder acts at the wrong moment: logical time is never ahead of what any client can prove. A request that was
//! sent at S entered the log with the stamp L, so no entry has a stamp later than L and the time since S.

use fencepost_core::{Event, GrantEnd, GrantId, LogicalMs, Outcome, SessionEnd, SessionId, Token};
use fencepost_session::client::RequestKey;

use crate::fact::WorldTime;

use super::due::Due;
use super::findings::Findings;
use super::ledger::Ledger;
use super::recent::Recent;
use super::step::Step;

/// How late something may end, in logical time.
// Rule: bounded-late
const LATE_MS_MAX: u64 = 500;
/// The commit in flight when the deadline passed.
const IN_FLIGHT_MS: u64 = 1_000;
/// How long after the last disturbance bounds on time hold again.
const SETTLES_MS: u64 = 10_000;
/// Grants that ended by time, remembered for those who act later.
const ENDED_MAX: usize = 1_000_000;
/// Requests that were asked and are not decided, as far as they are remembered.
const ASKED_MAX: usize = 100_000;
/// A leader's clock is ahead by one in so many at most.
const CLOCK_ONE_IN: i128 = 200;

/// What is remembered about time.
#[derive(Debug)]
pub(super) struct Time {
    /// Since when nothing is disturbed.
    healed_at: Option<WorldTime>,
    /// Grants that ended by time, with the entry that ended them.
    ended: Recent<GrantId, u64>,
    /// Grants up to this one were given before a restore, of which their holders cannot know.
    restored_after: u64,
    last_grant: u64,
    /// When each request that is not decided was first sent.
    asked: Recent<RequestKey, WorldTime>,
    /// The proof that says most: the least that any decided request lets the stamps be ahead.
    ahead_max: Option<i128>,
}

impl Default for Time {
    fn default() -> Time {
        let (ended, asked) = (Recent::up_to(ENDED_MAX), Recent::up_to(ASKED_MAX));
        Time { healed_at: None, ended, restored_after: 0, last_grant: 0, asked, ahead_max: None }
    }
}

/// How far a stamp is ahead of an instant, by the fastest clock that a leader may have; only to be compared with others.
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

    /// The log has an entry with this stamp now.
    // Rule: logical-time
    pub(super) fn is_not_ahead(&self, stamp: LogicalMs, findings: &mut Findings) {
        let Some(most) = self.ahead_max else { return };
        findings.report.proved_stamps += 1;
        let by_ms = (ahead(stamp, findings.now) - most) / CLOCK_ONE_IN / 1_000_000;
        findings.ensure(by_ms < 1, "I9", || {
            format!("the stamp {} is {by_ms} ms later than a request proves that it can be", stamp.0)
        });
    }

    /// What ends by time was due.
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
            format!("ended at {}, due {deadline:?}: {:?}", now.0, step.event)
        });
        self.is_soon(deadline, now, step.event, findings);
    }

    fn is_soon(&self, deadline: Option<LogicalMs>, now: LogicalMs, event: &Event, findings: &mut Findings) {
        let is_calm = self.healed_at.is_some_and(|healed| findings.now >= healed.after_ms(SETTLES_MS));
        let Some(deadline) = deadline.filter(|_| is_calm) else { return };
        let late_ms = now.0.saturating_sub(deadline.0);
        findings.report.latest_ms = findings.report.latest_ms.max(late_ms);
        findings.ensure(late_ms <= LATE_MS_MAX + IN_FLIGHT_MS, "I10", || {
            format!("ended {late_ms} ms after its deadline while nothing was disturbed: {event:?}")
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

    /// Somebody acts: its grant has not ended by time, and it is its own.
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
        findings.ensure(grant.0 <= self.last_grant, "I4", || format!("the log knows no such grant: {}", what()));
        let ended = self.ended.get(&grant);
        findings.ensure(ended.is_none(), "I9", || format!("entry {ended:?} has ended it by time: {}", what()));
        if let Some(held) = ledger.grants.get(&grant) {
            let is_its_own = held.session == session && (grant.0..=held.token.0).contains(&token.0);
            findings.ensure(is_its_own, "I3", || format!("it is {held:?}: {}", what()));
        }
    }
}

/// Everything that is due at an entry's stamp is gone after it.
// Rule: within-an-entry
pub(super) fn nothing_due_is_left(ledger: &mut Ledger, findings: &mut Findings) {
    for due in ledger.overdue() {
        findings.found("I10", || {
            format!(
                "{due:?} was due {:?} and is still there after entry {} at {}",
                ledger.deadline(due),
                ledger.index,
                ledger.stamp.0
            )
        });
    }
}
