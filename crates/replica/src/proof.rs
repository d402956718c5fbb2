//! Replica equality: the leader's entries carry its state hash, and a replica with another hash stops.
//!
//! Every replica notes its state hash at the same few positions. The leader puts its newest hash into the next entry
//! that it writes anyway, so the comparison costs a few bytes and no message. This file compares. It repairs nothing: a node whose
//! state differs cannot tell which of the two is right.

use std::collections::VecDeque;

use fencepost_core::LockState;
use fencepost_wire::StateProof;

use crate::bounds::{PROOF_EVERY_ENTRIES, PROOFS_KEPT_MAX};
use crate::error::Stop;

/// The hashes of this node's own state at recent positions.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    noted: VecDeque<StateProof>,
    /// The newest hash is in no entry yet.
    unsent: bool,
}

impl Proofs {
    /// Notes the state hash after an entry, if hashes are compared at its index.
    pub(crate) fn note(&mut self, index: u64, state: &LockState) {
        if index.is_multiple_of(PROOF_EVERY_ENTRIES) {
            self.noted.truncate(PROOFS_KEPT_MAX - 1);
            self.noted.push_front(StateProof { index, state_hash: state.state_hash() });
            self.unsent = true;
        }
    }

    /// The newest hash, if it was not taken before.
    pub(crate) fn pop_unsent(&mut self) -> Option<StateProof> {
        std::mem::take(&mut self.unsent).then(|| self.noted.front().copied()).flatten()
    }

    /// Compares the leader's hash with this node's own.
    ///
    /// # Errors
    /// [`Stop`] if the two differ. An index at which this node has noted no hash is not compared.
    pub(crate) fn check(&self, proof: StateProof) -> Result<(), Stop> {
        match self.noted.iter().find(|noted| noted.index == proof.index) {
            Some(noted) if noted.state_hash != proof.state_hash => Err(Stop::StateDiffers { index: proof.index }),
            _ => Ok(()),
        }
    }
}
