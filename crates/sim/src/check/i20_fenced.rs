//! I20: the guarded store never accepts a stale write, whichever process pauses.
//!
//! Judged by the store's own record alone, from names and tokens. The checker does not look at who holds which lock.

use fencepost_core::Name;

use crate::fact::{Access, AccessKind};

use super::findings::Findings;
use super::ledger::Map;

/// What the store has accepted, by name.
// Rule: fence
#[derive(Debug, Default)]
pub(super) struct Fenced {
    names: Map<Name, Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    /// The highest accepted token. Claims and writes need at least this one.
    write_floor: u64,
    /// The highest token that wrote. Reads need at least this one.
    read_floor: u64,
    /// The current version; `None` before the first write.
    version: Option<u64>,
}

impl Fenced {
    pub(super) fn accessed(&mut self, access: &Access, findings: &mut Findings) {
        findings.report.accesses += 1;
        let marks = self.names.entry(access.name.clone()).or_default();
        let token = access.token.0;
        let floor = match access.what {
            AccessKind::Read => marks.read_floor,
            AccessKind::Claim | AccessKind::Write { .. } | AccessKind::Once { .. } => marks.write_floor,
        };
        findings.report.stale_accesses += u64::from(token < floor);
        if !access.accepted {
            return;
        }
        findings.ensure(token >= floor, "I20", || {
            format!("the store accepted token {token} after token {floor}: {access:?}")
        });
        marks.write_floor = marks.write_floor.max(token);
        if let AccessKind::Once { .. } = access.what {
            marks.read_floor = marks.read_floor.max(token);
        }
        if let AccessKind::Write { based_on, makes } = access.what {
            marks.read_floor = marks.read_floor.max(token);
            let is_based = marks.version.is_none_or(|version| version == based_on && makes > version);
            findings.ensure(is_based, "I20", || {
                format!(
                    "a write is not based on the current version {:?}, or does not raise it: {access:?}",
                    marks.version
                )
            });
            marks.version = Some(makes);
        }
    }
}
