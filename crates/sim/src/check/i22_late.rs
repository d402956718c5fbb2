//! I22: in real time, everything with a deadline ends within what the rule `bounded-late` allows, however often the leader changes.
//!
//! The bound for a lease that is not renewed is its TTL plus 3 s of grace after its last renewal. A maximum hold time, a wait and a rest
//! have no grace. To each bound are added: 500 ms and one commit in flight, all time without a leader, 1 s and one commit for each
//! unplanned leader change, and 0.5% for clock drift. The world reports who leads. In runs without these reports nothing is judged,
//! because other faults there delay every commit.

use std::collections::BTreeMap;

use fencepost_core::{Event, GrantEnd, LogicalMs, Outcome, SessionEnd, bounds};

use crate::fact::WorldTime;

use super::findings::Findings;
use super::ledger::Ledger;
use super::step::Step;

const MS: u64 = 1_000_000;
/// How late something may end while there is a leader.
// Rule: bounded-late
const LATE_MS: u64 = 500;
/// Time that an unplanned leader change may cost: logical time that the old leader had not written into the log.
const UNPLANNED_MS: u64 = 1_000;
/// Longest commit in a lease run: two messages of up to 2 ms and two syncs of up to 4 ms, each perhaps behind one in flight.
const COMMIT_MS: u64 = 30;
/// A clock is slow by at most 1 in 200.
const CLOCK_ONE_IN: u64 = 200;

/// How much real time the leader changes allow.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Whether the world reports who leads.
    is_on: bool,
    /// The last leader: node and term.
    leader: Option<(u64, u64)>,
    /// Since when no node leads; `None` while one leads.
    leaderless_since: Option<WorldTime>,
    /// The time that all completed leader changes allow together, in nanoseconds.
    allowed_ns: u64,
    /// For each stamp: when its first entry was in the log, and the time that leader changes allowed up to then.
    logged: BTreeMap<LogicalMs, (WorldTime, u64)>,
}

/// Something with a deadline: the stamp at which it begins, how long it may last, and whether a fail-over extends it.
#[derive(Clone, Copy, Debug)]
struct Lasts {
    from: LogicalMs,
    ms: u64,
    is_lifted: bool,
}

impl Late {
    /// The world reports a leader change.
    pub(super) fn leads(&mut self, leader: Option<(u64, u64)>, planned: bool, findings: &mut Findings) {
        self.is_on = true;
        let Some(leader) = leader else {
            self.leaderless_since.get_or_insert(findings.now);
            return;
        };
        if let Some(since) = self.leaderless_since.take() {
            self.allowed_ns += findings.now.0 - since.0;
        }
        if self.leader.is_some_and(|last| last != leader) {
            findings.report.lead_changes += 1;
            findings.report.planned_lead_changes += u64::from(planned);
            self.allowed_ns += if planned { 0 } else { (UNPLANNED_MS + COMMIT_MS) * MS };
        }
        self.leader = Some(leader);
    }

    /// The log has a new entry with this stamp.
    pub(super) fn entry(&mut self, stamp: LogicalMs, now: WorldTime) {
        if self.is_on {
            let allowed = self.allowed_up_to(now);
            self.logged.entry(stamp).or_insert((now, allowed));
        }
    }

    /// What ends by time did not last too long.
    // Rule: bounded-late
    pub(super) fn ends_in_time(&self, step: &Step<'_>, findings: &mut Findings) {
        let ledger = step.ledger;
        let lasts = match step.event {
            Event::SessionEnded { session, how: SessionEnd::Expired } => session_lasts(ledger, *session),
            Event::Ended { grant, how: GrantEnd::Ttl, .. } => ttl_lasts(ledger, *grant),
            Event::Ended { grant, how: GrantEnd::MaxHold, .. } => hold_lasts(ledger, *grant),
            Event::NotGranted { outcome: Outcome::TimedOut, .. } => {
                let waiter = step.waiter.and_then(|arrival| ledger.waiters.get(&arrival));
                waiter.and_then(|waiter| until(waiter.queued_at, waiter.until))
            }
            Event::RestEnded { grant, waived: false, .. } => {
                ledger.rests.get(grant).and_then(|rest| until(rest.began_at, Some(rest.until)))
            }
            _ => None,
        };
        if let Some(lasts) = lasts {
            self.judge(lasts, &|| format!("{:?}", step.event), findings);
        }
    }

    /// At the end of the run nothing is left that should have ended.
    pub(super) fn nothing_is_left(&self, ledger: &Ledger, findings: &mut Findings) {
        let sessions = ledger.sessions.keys().filter_map(|session| session_lasts(ledger, *session));
        let grants = ledger.grants.keys();
        let grants = grants.flat_map(|grant| [ttl_lasts(ledger, *grant), hold_lasts(ledger, *grant)]).flatten();
        let waits = ledger.waiters.values().filter_map(|waiter| until(waiter.queued_at, waiter.until));
        let rests = ledger.rests.values().filter_map(|rest| until(rest.began_at, Some(rest.until)));
        // Sorted, because the order of hash maps must not be visible.
        let mut left: Vec<Lasts> = sessions.chain(grants).chain(waits).chain(rests).collect();
        left.sort_by_key(|lasts| (lasts.from, lasts.ms));
        for lasts in left {
            self.judge(lasts, &|| format!("it was still there at the end of the run: {lasts:?}"), findings);
        }
    }

    /// The cluster was restored: a new log begins.
    pub(super) fn restored(&mut self) {
        self.logged.clear();
    }

    fn judge(&self, lasts: Lasts, what: &dyn Fn() -> String, findings: &mut Findings) {
        let Some((began, allowed_before)) = self.logged.get(&lasts.from) else { return };
        let lasted_ns = findings.now.0 - began.0;
        let grace_ms = if lasts.is_lifted { bounds::FAILOVER_GRACE_MS } else { 0 };
        let changes_ns = self.allowed_up_to(findings.now) - allowed_before;
        let allowed_ns = (lasts.ms + grace_ms + LATE_MS + COMMIT_MS) * MS + changes_ns + lasted_ns / CLOCK_ONE_IN;
        findings.report.timed_leases += 1;
        findings.ensure(lasted_ns <= allowed_ns, "I22", || {
            let (lasted, allowed, changes) = (lasted_ns / MS, allowed_ns / MS, changes_ns / MS);
            format!(
                "a session, grant, wait or rest lasted {lasted} ms, but at most {allowed} ms are allowed ({changes} ms for leader \
                 changes): {}",
                what()
            )
        });
    }

    fn allowed_up_to(&self, now: WorldTime) -> u64 {
        self.allowed_ns + self.leaderless_since.map_or(0, |since| now.0 - since.0)
    }
}

fn session_lasts(ledger: &Ledger, id: fencepost_core::SessionId) -> Option<Lasts> {
    let session = ledger.session(id)?;
    Some(Lasts { from: session.renewed_at, ms: session.ttl.millis().get(), is_lifted: true })
}

fn ttl_lasts(ledger: &Ledger, id: fencepost_core::GrantId) -> Option<Lasts> {
    let grant = ledger.grants.get(&id)?;
    let session = ledger.sessions.get(&grant.session)?;
    let from = grant.granted_at.max(session.renewed_at);
    Some(Lasts { from, ms: grant.lasts.ttl?.millis().get(), is_lifted: true })
}

fn hold_lasts(ledger: &Ledger, id: fencepost_core::GrantId) -> Option<Lasts> {
    let grant = ledger.grants.get(&id)?;
    until(grant.granted_at, grant.hold_until)
}

/// A deadline that a fail-over does not extend.
fn until(from: LogicalMs, until: Option<LogicalMs>) -> Option<Lasts> {
    Some(Lasts { from, ms: until?.0.saturating_sub(from.0), is_lifted: false })
}
