//! I20: the guarded store accepts no stale write, in any run, whatever pauses.
//!
//! Judged by the store's own record alone: by name and token, without asking who holds what.

use fencepost_core::Name;

use crate::fact::{Access, AccessKind};

use super::findings::Findings;
use super::ledger::Map;

/// What the store has let through, by name.
// Rule: fence
#[derive(Debug, Default)]
pub(super) struct Fenced {
    names: Map<Name, Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    /// The highest token that was let through.
    write_floor: u64,
    /// The highest token that wrote.
    read_floor: u64,
    /// The version that is there, once somebody wrote.
    version: Option<u64>,
}

impl Fenced {
    pub(super) fn accessed(&mut self, access: &Access, findings: &mut Findings) {
        findings.report.accesses += 1;
        let marks = self.names.entry(access.name.clone()).or_default();
        let token = access.token.0;
        let floor = match access.what {
            AccessKind::Read => marks.read_floor,
            AccessKind::Claim | AccessKind::Write { .. } => marks.write_floor,
        };
        findings.report.stale_accesses += u64::from(token < floor);
        if !access.accepted {
            return;
        }
        findings.ensure(token >= floor, "I20", || format!("let through after token {floor}: {access:?}"));
        marks.write_floor = marks.write_floor.max(token);
        if let AccessKind::Write { based_on, makes } = access.what {
            marks.read_floor = marks.read_floor.max(token);
            let is_based = marks.version.is_none_or(|version| version == based_on && makes > version);
            findings.ensure(is_based, "I20", || format!("a lost update, {:?} was there: {access:?}", marks.version));
            marks.version = Some(makes);
        }
    }
}
