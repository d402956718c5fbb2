//! Who ordered a change of the cluster, and why: in the entry of a change of the members, and in the entry before a leadership transfer.
//!
//! It is for people who read the log. It decides nothing. An administrator's act on locks has its author and its reason in the core's
//! own type.

use fencepost_core::{Principal, Reason};

use crate::error::WireError;
use crate::from_wire::{self, known};
use crate::v1 as wire;

/// Who ordered something, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The author.
    pub by: Principal,
    /// The reason. May be empty.
    pub reason: Reason,
}

/// A planned leadership transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The node that should lead.
    pub to: u64,
    /// Who ordered it, and why.
    pub cause: Cause,
}

impl Cause {
    pub(crate) fn to_wire(&self) -> wire::Cause {
        wire::Cause { by: self.by.as_str().to_owned(), reason: self.reason.as_str().to_owned() }
    }

    pub(crate) fn from_wire(wire::Cause { by, reason }: &wire::Cause) -> Result<Cause, WireError> {
        Ok(Cause { by: from_wire::principal(by)?, reason: from_wire::reason(reason)? })
    }
}

impl Transfer {
    pub(crate) fn to_wire(&self) -> wire::Transfer {
        wire::Transfer { to: self.to, cause: Some(self.cause.to_wire()) }
    }

    pub(crate) fn from_wire(wire::Transfer { to, cause }: &wire::Transfer) -> Result<Transfer, WireError> {
        Ok(Transfer { to: *to, cause: Cause::from_wire(known("the cause of a transfer", cause.as_ref())?)? })
    }
}
