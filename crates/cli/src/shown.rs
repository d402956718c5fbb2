//! How values are shown: ids, modes, ages, and the client behind a session.
//!
//! People get short ids and ages; programs get whole ids and milliseconds. Text that other users chose (names, owners, metadata)
//! is not escaped here: the caller passes it through `output::printable` before it prints it.

use std::collections::{BTreeMap, BTreeSet};

use fencepost::{JobKey, Name, ReadAt};
use fencepost_core::{FreezeId, Held, LogicalMs, OwnerName, SessionId};
pub(crate) use fencepost_json::{Facts, freeze_id, lock_mode, metadata, node_id, scope, session_id, takes};
use serde_json::Value;

use crate::{duration, wall_time};

/// Hex digits of a short id: enough to tell ten thousand apart.
const SHORT_ID_DIGITS: usize = 12;

pub(crate) fn short_session(id: SessionId) -> String {
    session_id(id)[..SHORT_ID_DIGITS].to_owned()
}

pub(crate) fn short_freeze(id: FreezeId) -> String {
    freeze_id(id)[..SHORT_ID_DIGITS].to_owned()
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

/// How long from now, in logical time.
pub(crate) fn left(until: LogicalMs, now: LogicalMs) -> String {
    duration::show(until.0.saturating_sub(now.0))
}

/// `, job 2026-11, attempt 2`: what follows a holder or a waiter, if it is there for a job.
pub(crate) fn job(key: Option<&JobKey>, attempt: Option<u64>) -> String {
    let attempt = attempt.map_or(String::new(), |attempt| format!(", attempt {attempt}"));
    key.map_or(String::new(), |key| format!(", job {key}{attempt}"))
}

/// `fencepost job show billing 2026-11`, as a shell takes it.
pub(crate) fn job_command(what: &str, name: &Name, key: &JobKey) -> String {
    format!("`fencepost job {what} {} {}`", word(name.as_str()), word(key.as_str()))
}

/// A word of a command line. In quotes, if a shell would take it for more than one word or for more than text.
fn word(text: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "-_./:,@%+=".contains(it);
    if text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// How much of one fact people see. Programs get all of it: metadata has 4 KiB at most.
const FACT_CHARS_MAX: usize = 64;

/// `backup.sh, ann@db-1, pid 17, started 2026-11-18T16:03:13Z`: the facts that are known.
pub(crate) fn client(facts: &Facts) -> String {
    let fact = |key: &str| facts.get(key).map(|value| short(value));
    let mut parts = Vec::new();
    let what: Vec<String> = [fact("name").or_else(|| fact("program")), fact("command")].into_iter().flatten().collect();
    parts.extend((!what.is_empty()).then(|| what.join(" ")));
    // A client is often named after its program.
    let name = facts.get("name");
    let program = facts.get("program").filter(|program| name.is_some_and(|name| !name.starts_with(*program)));
    parts.extend(program.map(|program| format!("program {}", short(program))));
    parts.extend(place(facts));
    parts.extend(fact("pid").map(|pid| format!("pid {pid}")));
    parts.extend(fact("started").map(|started| format!("started {started}")));
    parts.join(", ")
}

/// `ann@db-1`, or what is known of it.
fn place(facts: &Facts) -> Option<String> {
    let fact = |key: &str| facts.get(key).map(|value| short(value));
    match (fact("user"), fact("host")) {
        (Some(user), Some(host)) => Some(format!("{user}@{host}")),
        (Some(user), None) => Some(format!("user {user}")),
        (None, Some(host)) => Some(format!("on {host}")),
        (None, None) => None,
    }
}

/// The beginning of a long text.
fn short(text: &str) -> String {
    match text.char_indices().nth(FACT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The clients behind sessions.
#[derive(Default)]
pub(crate) struct People {
    clients: BTreeMap<SessionId, Facts>,
}

impl People {
    pub(crate) fn learn(&mut self, session: SessionId, bytes: &[u8]) {
        self.clients.insert(session, metadata(bytes));
    }

    pub(crate) fn knows(&self, session: SessionId) -> bool {
        self.clients.contains_key(&session)
    }

    /// Forgets all other sessions.
    pub(crate) fn keep(&mut self, sessions: &BTreeSet<SessionId>) {
        self.clients.retain(|session, _| sessions.contains(session));
    }

    /// The client of a session, for programs. Null if it is not known.
    pub(crate) fn json(&self, session: SessionId) -> Value {
        self.clients.get(&session).map_or(Value::Null, fencepost_json::client)
    }

    /// `ann@db-1`, or the session if that is not known.
    pub(crate) fn place(&self, session: SessionId) -> String {
        self.clients.get(&session).and_then(place).unwrap_or_else(|| short_session(session))
    }

    /// `session 3fa2... (backup.sh, ann@db-1, pid 17, started 2026-11-18T16:03:13Z), owner "nightly"`.
    pub(crate) fn who(&self, session: SessionId, owner: Option<&OwnerName>) -> String {
        let mut text = format!("session {}", short_session(session));
        let client = self.clients.get(&session).map(client).unwrap_or_default();
        if !client.is_empty() {
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
    use fencepost_json::with_since;
    use serde_json::json;

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
        let shown = |bytes: &[u8]| client(&metadata(bytes));
        assert_eq!(
            shown(b"command=backup.sh\nhost=db-1\nname=fencepost run\npid=17\nprogram=fencepost\nstarted=2026-11-18T16:03:13Z\nuser=ann"),
            "fencepost run backup.sh, ann@db-1, pid 17, started 2026-11-18T16:03:13Z"
        );
        assert_eq!(shown(b"name=billing\nprogram=worker\nuser=ann"), "billing, program worker, user ann");
        assert_eq!(shown(b"program=worker\nhost=db-1"), "worker, on db-1");
        assert_eq!(shown(b"pid=17"), "pid 17");
        let mut people = People::default();
        let session = SessionId(0x3fa2 << 112);
        assert_eq!(people.who(session, None), "session 3fa200000000");
        assert_eq!((people.place(session), people.json(session)), ("3fa200000000".to_owned(), Value::Null));
        people.learn(session, b"pid=17\nuser=ann\nhost=db-1");
        let owner = OwnerName::new("job").unwrap();
        assert_eq!(people.who(session, Some(&owner)), "session 3fa200000000 (ann@db-1, pid 17), owner \"job\"");
        assert_eq!(people.place(session), "ann@db-1");
        assert_eq!(people.json(session), json!({ "pid": 17, "user": "ann", "host": "db-1" }));
    }

    #[test]
    fn metadata_of_any_form_is_read_as_far_as_it_goes() {
        let read =
            |bytes: &[u8]| metadata(bytes).into_iter().map(|(key, value)| format!("{key}:{value}")).collect::<Vec<_>>();
        assert_eq!(read(b"host=db-1\r\nuser=ann\rpid=17"), ["host:db-1", "pid:17", "user:ann"]);
        assert_eq!(read("\u{feff} host =  db-1 \n\n\t user=ann\n".as_bytes()), ["host:db-1", "user:ann"]);
        assert_eq!(read(b"host=a\nhost=b"), ["host:b"], "the last one counts");
        assert_eq!(read(b"command=a=b"), ["command:a=b"]);
        assert_eq!(read(b"nonsense\n=db-1\nhost=\n==\n{\"json\": true}"), [] as [&str; 0]);
        assert_eq!(read(b"\xff\xfe\nhost=d\xffb"), ["host:d\u{fffd}b"]);
        assert_eq!(read(b""), [] as [&str; 0]);
        let huge = format!("host={}", "ü".repeat(2_000));
        let facts = metadata(huge.as_bytes());
        assert_eq!(client(&facts), format!("on {}...", "ü".repeat(FACT_CHARS_MAX)));
        assert_eq!(fencepost_json::client(&facts)["host"], "ü".repeat(2_000), "programs get all of it");
        assert_eq!(fencepost_json::client(&metadata(b"pid=many\nport=80")), json!({ "pid": "many", "port": "80" }));
    }
}
