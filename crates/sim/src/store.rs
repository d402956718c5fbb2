//! What the locks are there to protect: a store with a guard that checks tokens, and the same store without one.
//!
//! Every holder reads a value, works on it, and writes what it made of it. Whoever writes something that was made from an old
//! value undoes what others wrote in between. The guarded store refuses that by the token alone; the other one cannot.

use std::collections::BTreeMap;

use fencepost_core::{Name, SessionId, Token};

use crate::fact::{Access, AccessKind};

/// Both stores.
#[derive(Debug, Default)]
pub(crate) struct Store {
    guarded: BTreeMap<Name, Guarded>,
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

#[derive(Debug, Default)]
struct Guarded {
    /// The highest token that wrote or claimed.
    write_floor: u64,
    /// The highest token that wrote.
    read_floor: u64,
    version: u64,
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
    /// What is there now.
    pub(crate) versions: Versions,
}

impl Store {
    /// Does it, and says what the guarded store's record has about it.
    // Rule: fence
    pub(crate) fn call(&mut self, call: &Call) -> (Reply, Access) {
        let guarded = self.guarded.entry(call.name.clone()).or_default();
        let unguarded = self.unguarded.entry(call.name.clone()).or_default();
        let token = call.token.0;
        let (accepted, what) = match call.what {
            CallKind::Read => {
                let accepted = token >= guarded.read_floor;
                if accepted {
                    guarded.write_floor = guarded.write_floor.max(token);
                }
                (accepted, AccessKind::Read)
            }
            // Rule: claim-before-read
            CallKind::Claim => {
                let accepted = token >= guarded.write_floor;
                guarded.write_floor = guarded.write_floor.max(token);
                (accepted, AccessKind::Claim)
            }
            CallKind::Write(based_on) => {
                let accepted = token >= guarded.write_floor;
                if accepted {
                    (guarded.write_floor, guarded.read_floor) = (token, token);
                    guarded.version += 1;
                }
                self.tally.writes += 1;
                self.tally.refused += u64::from(!accepted);
                self.tally.corrupted += u64::from(based_on.unguarded != *unguarded);
                // It writes what it made of what it read, whatever has been written since.
                *unguarded += 1;
                (accepted, AccessKind::Write { based_on: based_on.guarded, makes: guarded.version })
            }
        };
        let versions = Versions { guarded: guarded.version, unguarded: *unguarded };
        let access = Access { name: call.name.clone(), session: call.session, token: call.token, what, accepted };
        (Reply { accepted, versions }, access)
    }
}
