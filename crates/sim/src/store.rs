//! The store that the locks protect, twice: with a guard that checks tokens, and without one.
//!
//! Every holder reads a value, works on it, and writes a new value that is based on it. A writer that read an old version overwrites
//! what others wrote in between. The guarded store refuses such a write by its token alone; the unguarded store accepts it and is
//! corrupted. Having both in every run shows what the guard prevents.
//!
//! The work of a job is one effect at each store. The guarded store has a row for each job, which is written in the same step as the
//! effect, so the effect stands once. The store without a guard has no such row and counts the effects.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{JobKey, Name, SessionId, Token};
use fencepost_fence::rules::{MarkTable, Shown, Use};

use crate::fact::{Access, AccessKind};

/// Both stores.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// The guard. Uses the rules of `fencepost-fence`, which the guards of real stores follow.
    marks: MarkTable,
    guarded: BTreeMap<Name, u64>,
    unguarded: BTreeMap<Name, u64>,
    /// The jobs whose effect stands in the guarded store.
    rows: BTreeSet<(Name, JobKey)>,
    /// The effects of each job at a store that checks tokens, but has no rows, and at the store without a guard.
    effects: BTreeMap<(Name, JobKey), (u64, u64)>,
    /// Figures of the run.
    pub(crate) tally: StoreTally,
}

/// What happened at the stores in one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreTally {
    /// Writes that arrived.
    pub writes: u64,
    /// Writes that the guard refused.
    pub refused: u64,
    /// Writes that overwrote a newer value at the store without a guard.
    pub corrupted: u64,
    /// Effects of jobs that arrived.
    pub effects: u64,
    /// Effects that the guard refused.
    pub effects_refused: u64,
    /// Second and further effects of a job at a store that checks tokens, but has no row for the job.
    pub repeated_without_row: u64,
    /// Second and further effects of a job at the store without a guard.
    pub repeated_without_guard: u64,
}

/// A call of a user to both stores.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The resource.
    pub(crate) name: Name,
    /// Whose grant.
    pub(crate) session: SessionId,
    /// The token of the grant.
    pub(crate) token: Token,
    /// The key of the job whose work this is.
    pub(crate) key: Option<JobKey>,
    pub(crate) what: CallKind,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A read with a shared grant's token.
    Read,
    /// A claim and a read, by a holder that will write.
    Claim,
    /// A write that is based on these versions.
    Write(Versions),
    /// The effect of a job, with its row.
    Once,
}

/// The version of a value in each store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) guarded: u64,
    pub(crate) unguarded: u64,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// The guard let it through.
    pub(crate) accepted: bool,
    /// The call was a write that overwrote a newer value at the store without a guard, or an effect that stands there twice.
    pub(crate) corrupted: bool,
    /// The versions after the call.
    pub(crate) versions: Versions,
}

impl Store {
    /// Performs the call at both stores. The `Access` is the guarded store's own record of it.
    // Rule: fence
    pub(crate) fn call(&mut self, call: &Call) -> (Reply, Access) {
        let used_to = match call.what {
            CallKind::Read => Use::Read,
            CallKind::Claim => Use::Claim,
            CallKind::Write(_) | CallKind::Once => Use::Write,
        };
        let accepted = self.marks.admit(&[Shown { name: call.name.clone(), token: call.token, used_to }]).is_ok();
        let guarded = self.guarded.entry(call.name.clone()).or_default();
        let unguarded = self.unguarded.entry(call.name.clone()).or_default();
        let mut corrupted = false;
        let what = match call.what {
            CallKind::Read => AccessKind::Read,
            CallKind::Claim => AccessKind::Claim,
            CallKind::Write(based_on) => {
                *guarded += u64::from(accepted);
                self.tally.writes += 1;
                self.tally.refused += u64::from(!accepted);
                corrupted = based_on.unguarded != *unguarded;
                self.tally.corrupted += u64::from(corrupted);
                // Without a guard the write succeeds, whatever was written since the read.
                *unguarded += 1;
                AccessKind::Write { based_on: based_on.guarded, makes: *guarded }
            }
            CallKind::Once => {
                let job = (call.name.clone(), call.key.clone().expect("the effect of a job"));
                let (with_token, without) = self.effects.entry(job.clone()).or_default();
                self.tally.effects += 1;
                self.tally.effects_refused += u64::from(!accepted);
                self.tally.repeated_without_row += u64::from(accepted && *with_token > 0);
                corrupted = *without > 0;
                self.tally.repeated_without_guard += u64::from(corrupted);
                *with_token += u64::from(accepted);
                *without += 1;
                AccessKind::Once { is_new: accepted && self.rows.insert(job) }
            }
        };
        let versions = Versions { guarded: *guarded, unguarded: *unguarded };
        let (name, key) = (call.name.clone(), call.key.clone());
        let access = Access { name, session: call.session, token: call.token, key, what, accepted };
        (Reply { accepted, corrupted, versions }, access)
    }
}
