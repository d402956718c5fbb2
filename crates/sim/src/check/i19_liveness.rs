//! I19: within a bounded time after healing, every live node serves, the leader shows it as up, and no request waits for a free resource.
//!
//! The world reports the state of the nodes when the time is over. That every worker gets an answer is checked in `world/phases.rs`.

use fencepost_replica::Hears;

use super::findings::Findings;
use super::ledger::Ledger;

/// A healed node serves, or knows the leader.
pub(super) fn it_serves(node: u64, ready: bool, findings: &mut Findings) {
    findings.report.serves += 1;
    findings.ensure(ready, "I19", || format!("node {node} does not serve though the world is healed"));
}

/// The leader shows a member as up exactly if it runs.
pub(super) fn it_is_shown_as_it_is(node: u64, lives: bool, hears: Hears, findings: &mut Findings) {
    findings.report.shown += 1;
    let is_up = hears == Hears::Yes;
    findings.ensure(is_up == lives, "I19", || format!("node {node} runs: {lives}, but the leader shows: {hears:?}"));
}

/// At the end of the run every waiter is checked once more, independently of what was touched last.
pub(super) fn no_request_waits_for_what_is_free(ledger: &Ledger, findings: &mut Findings) {
    if ledger.may_have_hidden_reasons() {
        return;
    }
    for (arrival, waiter) in &ledger.waiters {
        findings.report.waiters_at_end += 1;
        findings.ensure(!ledger.passes(*arrival), "I19", || {
            format!("a request waits for a free resource: {:?}", waiter.request)
        });
    }
}
