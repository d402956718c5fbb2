//! Ids and kinds as words, the same for people and programs.

use fencepost_core::{FreezeId, GrantEnd, LockMode, Mode, Scope, SessionEnd, SessionId, Takes};
use fencepost_wire::ShownNode;

/// The id of a session.
pub fn session_id(id: SessionId) -> String {
    format!("{:032x}", id.0)
}

/// The id of a freeze.
pub fn freeze_id(id: FreezeId) -> String {
    format!("{:032x}", id.0)
}

/// The id of a node.
pub fn node_id(node: u64) -> String {
    ShownNode(node).to_string()
}

/// The mode of a lock.
pub fn lock_mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::Update => "update",
        LockMode::Exclusive => "exclusive",
    }
}

/// A mode, also one that a lock below brings.
pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::IS => "shared below",
        Mode::IX => "exclusive below",
        Mode::S => "shared",
        Mode::U => "update",
        Mode::SIX => "shared, exclusive below",
        Mode::X => "exclusive",
    }
}

/// What a holder takes of a name.
pub fn takes(takes: Takes) -> String {
    match takes {
        Takes::Mode(it) => mode(it).to_owned(),
        Takes::Permits(permits) => format!("permits: {}", permits.get()),
    }
}

/// How a session ended.
pub(crate) fn session_end(how: &SessionEnd) -> &'static str {
    match how {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
        SessionEnd::Evicted(_) => "evicted",
        SessionEnd::Restored => "restored",
    }
}

/// How a grant ended.
pub(crate) fn grant_end(how: &GrantEnd) -> &'static str {
    match how {
        GrantEnd::Released => "released",
        GrantEnd::Session(SessionEnd::Closed) => "session closed",
        GrantEnd::Session(SessionEnd::Expired) => "session expired",
        GrantEnd::Session(SessionEnd::Evicted(_)) => "session evicted",
        GrantEnd::Session(SessionEnd::Restored) => "cluster restored",
        GrantEnd::Ttl => "ttl",
        GrantEnd::MaxHold => "max-hold",
        GrantEnd::Broken(_) => "broken",
    }
}

/// What a freeze covers, in words.
pub fn scope(scope: &Scope) -> String {
    match scope {
        Scope::Name(name) => name.to_string(),
        Scope::Prefix(prefix) if prefix.is_empty() => "every name".to_owned(),
        Scope::Prefix(prefix) => format!("{}*", String::from_utf8_lossy(prefix)),
    }
}
