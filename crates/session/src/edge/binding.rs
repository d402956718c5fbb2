//! Which stream acts for which session, and in which epoch.
//!
//! A session is bound to the stream that showed its secret last: by the open that made it, or by an attach. The binding keeps the epoch
//! that this open or attach was answered with, and the stream may act in no later epoch. Without that check, a stream that lost its
//! session could guess the next epoch: within one entry an attach takes effect before operations, so the lock state would accept such
//! a request. This file sends nothing; `mod.rs` answers the client.

use fencepost_core::{Epoch, LogPosition, SessionId};

use super::{StreamId, Table};
use crate::planted::{Bug, planted};
use crate::tier::Tier;

/// A session's stream, and the epoch in which the stream acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) stream: StreamId,
    pub(super) epoch: Epoch,
    /// The entry that opened the session, if the open made this binding.
    pub(super) opened_at: Option<LogPosition>,
}

impl Binding {
    /// Whether a push of the entry at this position is for this stream. A push of the entry that opened the session is not: it belongs
    /// to an earlier session with the same id, which ended in that entry.
    pub(super) fn hears(&self, position: LogPosition) -> bool {
        self.opened_at != Some(position)
    }
}

/// Why a stream may not act for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayNot {
    /// The session is not bound to the stream.
    NotBound,
    /// The session is bound to the stream, but in an earlier epoch than the request's.
    LaterEpoch,
}

/// The bindings of both tiers. Invariant: every bound stream exists, and lists the session among its own.
#[derive(Debug)]
pub(super) struct Bindings(Table<(Tier, SessionId), Binding>);

impl Bindings {
    pub(super) fn new(hash_seed: u64) -> Bindings {
        Bindings(super::table(hash_seed))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Binds a session. Returns the binding that this one replaces.
    pub(super) fn bind(&mut self, tier: Tier, session: SessionId, binding: Binding) -> Option<Binding> {
        replace(&mut self.0, (tier, session), binding)
    }

    pub(super) fn unbind(&mut self, tier: Tier, session: SessionId) -> Option<Binding> {
        self.0.remove(&(tier, session))
    }

    pub(super) fn get(&self, tier: Tier, session: SessionId) -> Option<Binding> {
        self.0.get(&(tier, session)).copied()
    }

    /// `Ok` if the stream may act for the session in this epoch. Earlier epochs are left to the lock state: it refuses them and names
    /// the current epoch.
    // Rule: attach
    pub(super) fn check(&self, tier: Tier, session: SessionId, stream: StreamId, epoch: u64) -> Result<(), MayNot> {
        match self.get(tier, session).filter(|binding| binding.stream == stream) {
            Some(binding) if epoch <= binding.epoch.0 => Ok(()),
            Some(_) => refuse(MayNot::LaterEpoch),
            None => refuse(MayNot::NotBound),
        }
    }
}

// ---- Private steps with a planted fault: see planted.rs

fn refuse(why: MayNot) -> Result<(), MayNot> {
    let is_allowed = match why {
        MayNot::NotBound => planted(Bug::ActsUnbound),
        MayNot::LaterEpoch => planted(Bug::ActsUnbound) || planted(Bug::ActsInLaterEpochs),
    };
    if is_allowed { Ok(()) } else { Err(why) }
}

fn replace(table: &mut Table<(Tier, SessionId), Binding>, key: (Tier, SessionId), binding: Binding) -> Option<Binding> {
    if planted(Bug::KeepsOldBinding) && table.contains_key(&key) {
        return None;
    }
    table.insert(key, binding)
}
