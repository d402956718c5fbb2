//! I15 and I16: replicas at the same position have the same state hash, and so has one replica each time it comes there.
//!
//! A node comes to a position again after a crash or from a snapshot. If it then says another hash than itself before, snapshot or
//! replay have changed the state (I15); if it says another than somebody else, the replicas have parted (I16).

use fencepost_core::LogPosition;
use std::collections::BTreeMap;

use super::findings::Findings;

/// Positions that are remembered; the oldest go first.
const POSITIONS_MAX: usize = 500_000;

/// Who said which hash first, by index.
#[derive(Debug, Default)]
pub(super) struct Hashes {
    by_index: BTreeMap<u64, (u64, u64, u64)>,
}

impl Hashes {
    pub(super) fn restored(&mut self) {
        self.by_index.clear();
    }

    pub(super) fn applied(&mut self, node: u64, position: LogPosition, state_hash: u64, findings: &mut Findings) {
        let Some((first, term, hash)) = self.by_index.get(&position.index).copied() else {
            self.by_index.insert(position.index, (node, position.term, state_hash));
            if self.by_index.len() > POSITIONS_MAX {
                self.by_index.pop_first();
            }
            return;
        };
        findings.report.hashes_compared += 1;
        let invariant = if first == node { "I15" } else { "I16" };
        findings.ensure((term, hash) == (position.term, state_hash), invariant, || {
            format!(
                "node {node} has hash {state_hash:016x} at {position:?}, node {first} had {hash:016x} in term {term}"
            )
        });
    }
}
