//! STUB while the state machine is written: the signatures that everything else may build on.
#![allow(unused)]
use crate::*;

/// The whole lock state of one group.
#[derive(Debug, Clone)]
pub struct LockState {}

impl LockState {
    /// An empty state. `hash_seed` is this node's own and cannot be seen in any outcome.
    pub fn new(hash_seed: u64) -> LockState {
        unimplemented!()
    }
    /// The only thing that changes the state.
    pub fn apply(&mut self, stamp: LogicalMs, batch: Batch) -> Effects {
        unimplemented!()
    }
    /// The state as records, in canonical order.
    pub fn records(&self) -> Vec<Record> {
        unimplemented!()
    }
    /// A state from records.
    pub fn restore(hash_seed: u64, records: impl IntoIterator<Item = Record>) -> Result<LockState, String> {
        unimplemented!()
    }
    /// A state from a backup: no sessions, tokens raised by `token_jump`.
    pub fn restore_backup(
        hash_seed: u64,
        records: impl IntoIterator<Item = Record>,
        token_jump: u64,
    ) -> Result<LockState, String> {
        unimplemented!()
    }
    /// The hash of the records.
    pub fn state_hash(&self) -> u64 {
        unimplemented!()
    }
    /// The earliest stamp at which something is due.
    pub fn next_deadline(&self) -> Option<LogicalMs> {
        unimplemented!()
    }
    /// Compares every derived structure with the records; says what differs.
    pub fn verify(&self) -> Result<(), String> {
        unimplemented!()
    }
}
