//! I19: within the bound after healing every live node serves and the leader shows it as up, and no request waits for a free resource.

use fencepost_replica::Hears;

use super::findings::Findings;
use super::ledger::Ledger;

/// A node says whether it serves, when it must.
pub(super) fn it_serves(node: u64, ready: bool, findings: &mut Findings) {
    findings.report.serves += 1;
    findings.ensure(ready, "I19", || format!("node {node} does not serve though everything is healed"));
}

/// The leader shows a member that runs as up, and one that does not run never so.
pub(super) fn it_is_shown_as_it_is(node: u64, lives: bool, hears: Hears, findings: &mut Findings) {
    findings.report.shown += 1;
    let is_up = hears == Hears::Yes;
    findings.ensure(is_up == lives, "I19", || format!("node {node} runs: {lives}, and the leader says: {hears:?}"));
}

/// In the end, everybody who waits is looked at once more, each for itself.
pub(super) fn nobody_waits_for_what_is_free(ledger: &Ledger, findings: &mut Findings) {
    if ledger.may_have_hidden_reasons() {
        return;
    }
    for (arrival, waiter) in &ledger.waiters {
        findings.report.waiters_at_end += 1;
        findings.ensure(!ledger.passes(*arrival), "I19", || format!("waits for what is free: {:?}", waiter.request));
    }
}
