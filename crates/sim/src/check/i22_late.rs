//! I22: in real time, whatever time ends is over by its deadline and what `bounded-late` allows, however often the lead changes.
//!
//! A lease that is not renewed ends at the latest its TTL and 3 s after its last renewal, a longest hold, a wait and a rest without
//! the 3 s; and 500 ms later, with the commit that is under way. To that is added all time without a leader, 1 s for each change of
//! the lead that was not planned, with the commit that was under way then, and 0.5% for clocks. The world says who leads. Without
//! its word nothing is judged: in most runs other things go wrong that hold up every commit.

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
/// What a leader that did not hand over may take with it.
const UNPLANNED_MS: u64 = 1_000;
/// An entry is on the disks of a majority within this time where nothing goes wrong but the lead: two ways of up to 2 ms and two
/// syncs of up to 4 ms, behind those that are under way.
const COMMIT_MS: u64 = 30;
/// Clocks run slow by one in so many at most.
const CLOCK_ONE_IN: u64 = 200;

/// Real time, as far as something may count on it.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Whether the world says who leads.
    is_on: bool,
    /// The last leader, by node and term.
    leader: Option<(u64, u64)>,
    /// Since when there is none.
    leaderless_since: Option<WorldTime>,
    /// What all changes of the lead up to now allow, without the one that goes on.
    allowed_ns: u64,
    /// For the stamp of each entry: when the first entry with it was in the log, and what was allowed up to then.
    logged: BTreeMap<LogicalMs, (WorldTime, u64)>,
}

/// Something that ends by time: the stamp that it counts from, how long it may last, and whether a fail-over lifts it.
#[derive(Clone, Copy, Debug)]
struct Lasts {
    from: LogicalMs,
    ms: u64,
    is_lifted: bool,
}

impl Late {
    /// From now on this node leads in this term, or none does.
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

    /// The log has an entry with this stamp.
    pub(super) fn entry(&mut self, stamp: LogicalMs, now: WorldTime) {
        if self.is_on {
            let allowed = self.allowed_up_to(now);
            self.logged.entry(stamp).or_insert((now, allowed));
        }
    }

    /// What ends by time has not lasted too long.
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

    /// The run is over: nothing is left that should have ended.
    pub(super) fn nothing_is_left(&self, ledger: &Ledger, findings: &mut Findings) {
        let sessions = ledger.sessions.keys().filter_map(|session| session_lasts(ledger, *session));
        let grants = ledger.grants.keys();
        let grants = grants.flat_map(|grant| [ttl_lasts(ledger, *grant), hold_lasts(ledger, *grant)]).flatten();
        let waits = ledger.waiters.values().filter_map(|waiter| until(waiter.queued_at, waiter.until));
        let rests = ledger.rests.values().filter_map(|rest| until(rest.began_at, Some(rest.until)));
        // The order of hash maps is not to be seen.
        let mut left: Vec<Lasts> = sessions.chain(grants).chain(waits).chain(rests).collect();
        left.sort_by_key(|lasts| (lasts.from, lasts.ms));
        for lasts in left {
            self.judge(lasts, &|| format!("still there at the end: {lasts:?}"), findings);
        }
    }

    /// A new log begins.
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
            format!("lasted {lasted} ms, not {allowed} ms at most ({changes} for changes of the lead): {}", what())
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

/// Something that a fail-over does not lift.
fn until(from: LogicalMs, until: Option<LogicalMs>) -> Option<Lasts> {
    Some(Lasts { from, ms: until?.0.saturating_sub(from.0), is_lifted: false })
}
