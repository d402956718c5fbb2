//! I6: after each entry no grantable waiter waits.
//!
//! Only those are looked at for whom something was freed since the last look, and those who are new: everybody else was found blocked
//! before, at a place that nothing has touched. After a restore some reasons to wait are not known (rests, freezes), so a waiter is
//! not judged while there may be any.

use super::findings::Findings;
use super::ledger::Ledger;

/// Looks at whoever may pass.
// Rule: no-missed-wake-up
pub(super) fn nobody_waits_for_nothing(ledger: &mut Ledger, findings: &mut Findings) {
    let free = ledger.look();
    findings.report.looks = ledger.looks;
    if ledger.may_have_hidden_reasons() {
        return;
    }
    for arrival in free {
        if let Some(waiter) = ledger.waiters.get(&arrival) {
            findings
                .found("I6", || format!("nothing is in the way after entry {}: {:?}", ledger.index, waiter.request));
        }
    }
}
