//! I6: after each entry no waiter could be granted.
//!
//! Only new waiters, and waiters for which something was freed since the last look, are checked. Every other waiter was found blocked
//! before, at a name or freeze that nothing has touched since. After a restore some reasons to wait are unknown (rests, freezes), so
//! waiters are not judged while such reasons may exist.

use super::findings::Findings;
use super::ledger::Ledger;

/// Checks the waiters that may have become grantable.
// Rule: no-missed-wake-up
pub(super) fn no_waiter_is_grantable(ledger: &mut Ledger, findings: &mut Findings) {
    let free = ledger.look();
    findings.report.looks = ledger.looks;
    if ledger.may_have_hidden_reasons() {
        return;
    }
    for arrival in free {
        if let Some(waiter) = ledger.waiters.get(&arrival) {
            findings.found("I6", || {
                format!("nothing blocks this waiter after entry {}: {:?}", ledger.index, waiter.request)
            });
        }
    }
}
