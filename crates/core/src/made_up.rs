//! The made-up version 2, for the tests of upgrades: a remark about the whole group, set by an operation and kept in a record.
//!
//! It is an example of a future change of the formats. No release has it: the feature `made-up-version` compiles it in, and
//! even then a replica knows it only if its settings say so.

use crate::digest::Term;
use crate::outcome::Outcome;
use crate::record::RemarkRecord;
use crate::state::LockState;
use crate::words::Reason;

/// The remark, with its term in the state hash.
#[derive(Clone, Debug)]
pub(crate) struct Remark {
    pub(crate) record: RemarkRecord,
    term: Term,
}

impl LockState {
    /// Sets the remark.
    pub(crate) fn remark(&mut self, text: Reason) -> Outcome {
        self.insert_remark(RemarkRecord { text, since: self.stamp });
        Outcome::Done
    }

    /// Puts a remark into the state, new or from a snapshot.
    pub(crate) fn insert_remark(&mut self, record: RemarkRecord) {
        let mut term = self.remark.take().map(|remark| remark.term).unwrap_or_default();
        self.digest.put(&mut term, &("remark", &record));
        self.remark = Some(Remark { record, term });
    }
}
