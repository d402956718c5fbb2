//! Replica equality: the leader's entries say what its state was, and whoever had another one stops.
//!
//! Every replica notes its state hash at the same few positions. The leader puts the newest of its own into the next entry
//! that it writes anyway, so the comparison costs a few bytes and no message.

use std::collections::VecDeque;

use fencepost_core::LockState;
use fencepost_wire::StateProof;

use crate::bounds::{PROOF_EVERY_ENTRIES, PROOFS_KEPT_MAX};
use crate::error::Stop;

/// The hashes of this node's own state at recent positions.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    noted: VecDeque<StateProof>,
    /// The newest has not been told to the others yet.
    unsent: bool,
}

impl Proofs {
    /// Takes note of the state after an entry, if it is one of those that are compared.
    pub(crate) fn note(&mut self, index: u64, state: &LockState) {
        if index.is_multiple_of(PROOF_EVERY_ENTRIES) {
            self.noted.truncate(PROOFS_KEPT_MAX - 1);
            self.noted.push_front(StateProof { index, state_hash: state.state_hash() });
            self.unsent = true;
        }
    }

    /// The newest, once.
    pub(crate) fn pop_unsent(&mut self) -> Option<StateProof> {
        std::mem::take(&mut self.unsent).then(|| self.noted.front().copied()).flatten()
    }

    /// Compares what the leader had with what this node had.
    ///
    /// # Errors
    /// [`Stop`] if the two differ. A position that this node has not noted is passed over.
    pub(crate) fn check(&self, proof: StateProof) -> Result<(), Stop> {
        match self.noted.iter().find(|noted| noted.index == proof.index) {
            Some(noted) if noted.state_hash != proof.state_hash => Err(Stop::StateDiffers { index: proof.index }),
            _ => Ok(()),
        }
    }
}
