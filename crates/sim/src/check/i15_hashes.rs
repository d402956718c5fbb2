//! I15 and I16: all replicas have the same state hash at the same position, and a replica has the same hash each time it reaches it.
//!
//! A node reaches a position again after a crash or from a snapshot. If its hash then differs from its own earlier hash, the snapshot or
//! the replay changed the state (I15). If it differs from the hash of another node, the replicas diverged (I16).

use fencepost_core::LogPosition;
use std::collections::BTreeMap;

use super::findings::Findings;

/// How many positions are remembered. The oldest are forgotten first.
const POSITIONS_MAX: usize = 500_000;

/// The first reported hash of each index: node, term and hash.
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
