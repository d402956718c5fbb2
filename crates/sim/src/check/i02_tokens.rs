//! I2: tokens rise strictly in the order of the grants. A token is never used again, not even after deletion, fail-over or restore.
//!
//! A new grant and an upgrade get a new token. A re-entry and a weakening keep the old one.

use fencepost_core::{Event, Token};

use super::findings::Findings;
use super::follow::is_stronger;
use super::step::Step;

/// The highest token so far. Kept over a restore.
// Rule: token-order
#[derive(Debug, Default)]
pub(super) struct Tokens {
    last: u64,
}

impl Tokens {
    pub(super) fn check(&mut self, step: &Step<'_>, findings: &mut Findings) {
        match step.event {
            Event::Granted { grant, token, count, .. } => match step.ledger.grants.get(grant) {
                Some(held) => findings.ensure(held.token == *token, "I2", || {
                    format!("a re-entry into a grant with token {} has another token: {:?}", held.token.0, step.event)
                }),
                None => {
                    findings.ensure(grant.0 == token.0 && *count == 1, "I2", || {
                        format!("a new grant has an id other than its token, or a count other than 1: {:?}", step.event)
                    });
                    self.rises(*token, step, findings);
                }
            },
            Event::Converted { grant, token, held, .. } => {
                let Some(before) = step.ledger.grants.get(grant) else { return };
                if is_stronger(&before.held, held) {
                    self.rises(*token, step, findings);
                } else {
                    findings.ensure(*token == before.token, "I2", || {
                        format!("a conversion to a weaker mode has a new token: {:?}", step.event)
                    });
                }
            }
            _ => {}
        }
    }

    fn rises(&mut self, token: Token, step: &Step<'_>, findings: &mut Findings) {
        findings.ensure(token.0 > self.last, "I2", || {
            format!("token {} is not higher than the earlier token {}: {:?}", token.0, self.last, step.event)
        });
        self.last = self.last.max(token.0);
    }
}
