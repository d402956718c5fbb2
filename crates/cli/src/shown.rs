//! How values are shown: ids, modes, ages, and the client behind a session.
//!
//! People get short ids and ages; programs get whole ids and milliseconds. Text that other users chose (names, owners, metadata)
//! is not escaped here: the caller passes it through `output::printable` before it prints it.

use std::collections::BTreeMap;

use fencepost::ReadAt;
use fencepost_core::{FreezeId, Held, LockMode, LogicalMs, Mode, OwnerName, Scope, SessionId, Takes};
use serde_json::{Value, json};

use crate::{duration, wall_time};

/// Hex digits of a short id: enough to tell ten thousand apart.
const SHORT_ID_DIGITS: usize = 12;

pub(crate) fn session_id(id: SessionId) -> String {
    format!("{:032x}", id.0)
}

pub(crate) fn short_session(id: SessionId) -> String {
    session_id(id)[..SHORT_ID_DIGITS].to_owned()
}

pub(crate) fn freeze_id(id: FreezeId) -> String {
    format!("{:032x}", id.0)
}

pub(crate) fn short_freeze(id: FreezeId) -> String {
    freeze_id(id)[..SHORT_ID_DIGITS].to_owned()
}

pub(crate) fn node_id(node: u64) -> String {
    format!("{node:012x}")
}

pub(crate) fn lock_mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::Update => "update",
        LockMode::Exclusive => "exclusive",
    }
}

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

pub(crate) fn takes(takes: Takes) -> String {
    match takes {
        Takes::Mode(it) => mode(it).to_owned(),
        Takes::Permits(permits) => format!("permits: {}", permits.get()),
    }
}

/// The names that are held or wanted, and their modes.
pub(crate) fn held(held: &Held) -> (String, String) {
    match held {
        Held::Permits { name, permits } => (name.to_string(), format!("permits: {}", permits.get())),
        Held::Locks(locks) => {
            let names: Vec<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
            let mut modes: Vec<&str> = locks.iter().map(|lock| lock_mode(lock.mode)).collect();
            modes.dedup();
            (names.join(", "), modes.join(", "))
        }
    }
}

pub(crate) fn held_json(held: &Held) -> Value {
    match held {
        Held::Permits { name, permits } => json!([{ "name": name.as_str(), "permits": permits.get() }]),
        Held::Locks(locks) => {
            locks.iter().map(|lock| json!({ "name": lock.name.as_str(), "mode": lock_mode(lock.mode) })).collect()
        }
    }
}

pub(crate) fn scope(scope: &Scope) -> String {
    match scope {
        Scope::Name(name) => name.to_string(),
        Scope::Prefix(prefix) if prefix.is_empty() => "every name".to_owned(),
        Scope::Prefix(prefix) => format!("{}*", String::from_utf8_lossy(prefix)),
    }
}

pub(crate) fn scope_json(scope: &Scope) -> Value {
    match scope {
        Scope::Name(name) => json!({ "name": name.as_str() }),
        Scope::Prefix(prefix) => json!({ "prefix": String::from_utf8_lossy(prefix) }),
    }
}

/// What people read where the cluster no longer knows which wall-clock time a stamp was.
const UNKNOWN: &str = "unknown";

/// How long ago, by the wall clock: logical time stands still while no node leads.
pub(crate) fn age(at: &ReadAt, since: LogicalMs) -> String {
    at.age(since).map_or(UNKNOWN.to_owned(), |age| duration::show(age.as_millis() as u64))
}

/// When, by the wall clock.
pub(crate) fn time(at: &ReadAt, stamp: LogicalMs) -> String {
    at.wall_clock.at(stamp).map_or(UNKNOWN.to_owned(), wall_time::for_people)
}

/// Adds to JSON since when something is so: the wall-clock time and the age for people, `null` where they are unknown, and the stamp for
/// programs.
pub(crate) fn with_since(mut json: Value, at: &ReadAt, since: LogicalMs) -> Value {
    json["since"] = at.wall_clock.at(since).map(wall_time::rfc_3339).into();
    json["age_ms"] = at.age(since).map(|age| age.as_millis() as u64).into();
    json["since_stamp_ms"] = since.0.into();
    json
}

/// How long from now, in logical time.
pub(crate) fn left(until: LogicalMs, now: LogicalMs) -> String {
    duration::show(until.0.saturating_sub(now.0))
}

/// The metadata of a session: `key=value` lines, as our client libraries write them. Other clients may write
/// anything; lines of another form are skipped.
pub(crate) fn metadata(bytes: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().filter_map(|line| line.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect()
}

/// `backup.sh, pid 17 on db-1`: the parts that are known.
pub(crate) fn client(bytes: &[u8]) -> String {
    let known = metadata(bytes);
    let mut text = String::new();
    for key in ["name", "command"] {
        if let Some(value) = known.get(key) {
            text.push_str(if text.is_empty() { "" } else { " " });
            text.push_str(value);
        }
    }
    if let Some(pid) = known.get("pid") {
        text.push_str(if text.is_empty() { "" } else { ", " });
        text.push_str(&format!("pid {pid}"));
    }
    if let Some(host) = known.get("host") {
        text.push_str(&format!(" on {host}"));
    }
    text.trim().to_owned()
}

/// The clients behind sessions.
#[derive(Default)]
pub(crate) struct People {
    clients: BTreeMap<SessionId, String>,
}

impl People {
    pub(crate) fn learn(&mut self, session: SessionId, metadata: &[u8]) {
        self.clients.insert(session, client(metadata));
    }

    /// `session 3fa2… (backup.sh, pid 17 on db-1), owner "nightly"`.
    pub(crate) fn who(&self, session: SessionId, owner: Option<&OwnerName>) -> String {
        let mut text = format!("session {}", short_session(session));
        if let Some(client) = self.clients.get(&session).filter(|client| !client.is_empty()) {
            text.push_str(&format!(" ({client})"));
        }
        if let Some(owner) = owner {
            text.push_str(&format!(", owner {:?}", owner.as_str()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_the_table_of_times_is_unknown() {
        let mut at = ReadAt { stamp: LogicalMs(70_000), wall_clock_ms: 1_763_481_723_123, ..ReadAt::default() };
        at.wall_clock.note(LogicalMs(0), LogicalMs(60_000), 1_763_481_663_123);
        let (old, known) = (LogicalMs(59_999), LogicalMs(60_000));
        assert_eq!((age(&at, old).as_str(), time(&at, old).as_str()), (UNKNOWN, UNKNOWN));
        assert_eq!((age(&at, known).as_str(), time(&at, known).as_str()), ("1m", "2025-11-18 16:01:03 UTC"));
        let unknown = json!({ "since": null, "age_ms": null, "since_stamp_ms": 59_999 });
        assert_eq!(with_since(json!({}), &at, old), unknown);
        let since = json!({ "since": "2025-11-18T16:01:03.123Z", "age_ms": 60_000, "since_stamp_ms": 60_000 });
        assert_eq!(with_since(json!({}), &at, known), since);
    }

    #[test]
    fn a_session_is_shown_with_what_is_known_of_its_client() {
        assert_eq!(
            client(b"host=db-1\npid=17\nname=fencepost\ncommand=backup.sh"),
            "fencepost backup.sh, pid 17 on db-1"
        );
        assert_eq!(client(b"pid=17"), "pid 17");
        assert_eq!(client(b"\xff\xfe"), "");
        let mut people = People::default();
        let session = SessionId(0x3fa2 << 112);
        assert_eq!(people.who(session, None), "session 3fa200000000");
        people.learn(session, b"pid=17");
        let owner = OwnerName::new("job").unwrap();
        assert_eq!(people.who(session, Some(&owner)), "session 3fa200000000 (pid 17), owner \"job\"");
    }
}
