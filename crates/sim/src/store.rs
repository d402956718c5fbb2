//! What the locks are there to protect: a store with a guard that checks tokens, and the same store without one.
//!
//! Every holder reads a value, works on it, and writes what it made of it. Whoever writes something that was made from an old
//! value undoes what others wrote in between. The guarded store refuses that by the token alone; the other one cannot.

use std::collections::BTreeMap;

use fencepost_core::{Name, SessionId, Token};
use fencepost_fence::rules::{MarkTable, Shown, Use};

use crate::fact::{Access, AccessKind};

/// Both stores.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// The guard: the very rules that the guards of real stores follow.
    marks: MarkTable,
    guarded: BTreeMap<Name, u64>,
    unguarded: BTreeMap<Name, u64>,
    /// Figures of the run.
    pub(crate) tally: StoreTally,
}

/// What happened at the stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreTally {
    /// Writes that came.
    pub writes: u64,
    /// Writes that the guard refused.
    pub refused: u64,
    /// Writes that undid others at the store without a guard.
    pub corrupted: u64,
}

/// What somebody asks of the stores.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The resource.
    pub(crate) name: Name,
    /// Whose grant.
    pub(crate) session: SessionId,
    /// The token of the grant.
    pub(crate) token: Token,
    /// What.
    pub(crate) what: CallKind,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Read, as a reader among others.
    Read,
    /// Claim and read, as one that means to write.
    Claim,
    /// Write what was made of these versions.
    Write(Versions),
}

/// What was read: of the store with a guard, and of the one without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    /// With a guard.
    pub(crate) guarded: u64,
    /// Without.
    pub(crate) unguarded: u64,
}

/// What the guard said, and what was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// The guard let it through.
    pub(crate) accepted: bool,
    /// At the store without a guard, it was a write that undid another.
    pub(crate) corrupted: bool,
    /// What is there now.
    pub(crate) versions: Versions,
}

impl Store {
    /// Does it, and says what the guarded store's record has about it.
    // Rule: fence
    pub(crate) fn call(&mut self, call: &Call) -> (Reply, Access) {
        let used_to = match call.what {
            CallKind::Read => Use::Read,
            CallKind::Claim => Use::Claim,
            CallKind::Write(_) => Use::Write,
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
                // It writes what it made of what it read, whatever has been written since.
                *unguarded += 1;
                AccessKind::Write { based_on: based_on.guarded, makes: *guarded }
            }
        };
        let versions = Versions { guarded: *guarded, unguarded: *unguarded };
        let access = Access { name: call.name.clone(), session: call.session, token: call.token, what, accepted };
        (Reply { accepted, corrupted, versions }, access)
    }
}
