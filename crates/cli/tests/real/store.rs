//! The store that the locks protect: an SQLite file with the same guard that users have. It records every attempt, accepted or not,
//! in the transaction that decides on it.

use std::path::Path;
use std::time::Duration;

use fencepost_core::Token;
use fencepost_fence::{Access, Error, FencingToken, sqlite};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::history::{Attempt, Kind};

/// A connection to the store; one for each client.
pub(crate) struct Store(Connection);

impl Store {
    pub(crate) fn open(path: &Path) -> Store {
        let mut store = Connection::open(path).expect("a file in a directory of our own");
        store.busy_timeout(Duration::from_secs(20)).expect("a valid setting");
        // The store itself never crashes here, so it need not sync.
        store
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                 CREATE TABLE IF NOT EXISTS numbers (resource TEXT PRIMARY KEY, value INTEGER NOT NULL);
                 CREATE TABLE IF NOT EXISTS attempts
                     (seq INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT NOT NULL, token INTEGER NOT NULL,
                      kind TEXT NOT NULL, value INTEGER NOT NULL, accepted INTEGER NOT NULL);",
            )
            .expect("valid SQL");
        sqlite::install(&mut store).expect("a file of our own");
        Store(store)
    }

    /// Claims and reads, if the token is not too old.
    // Rule: claim-before-read
    pub(crate) fn claim(&mut self, resource: &str, token: u64) -> Option<i64> {
        self.attempt(resource, token, Kind::Claim)
    }

    /// Writes a value that is based on what was read. Returns whether the guard accepted it.
    pub(crate) fn write(&mut self, resource: &str, token: u64, value: i64) -> bool {
        self.attempt(resource, token, Kind::Write(value)).is_some()
    }

    /// Writes with a token that is probably stale. Returns whether the guard accepted it.
    pub(crate) fn write_late(&mut self, resource: &str, token: u64) -> bool {
        self.attempt(resource, token, Kind::Late).is_some()
    }

    // Rule: same-transaction
    fn attempt(&mut self, resource: &str, token: u64, kind: Kind) -> Option<i64> {
        let transaction =
            self.0.transaction_with_behavior(TransactionBehavior::Immediate).expect("the busy timeout is long enough");
        let fencing = FencingToken::of_exclusive(Token(token));
        let admitted = match kind {
            Kind::Claim => sqlite::admit(&transaction, &Access::claim(resource, fencing)),
            Kind::Write(_) | Kind::Late => sqlite::admit(&transaction, &Access::write(resource, fencing)),
        };
        let accepted = match admitted {
            Ok(()) => true,
            Err(Error::Stale(_)) => false,
            Err(error) => panic!("{error}"),
        };
        let select = "SELECT value FROM numbers WHERE resource = ?1";
        let value: Option<i64> =
            transaction.query_row(select, [resource], |row| row.get(0)).optional().expect("valid SQL");
        let value = value.unwrap_or_default();
        let (word, new) = match kind {
            Kind::Claim => ("claim", value),
            Kind::Write(new) => ("write", new),
            Kind::Late => ("late", value),
        };
        if accepted {
            let upsert = "INSERT INTO numbers VALUES (?1, ?2) ON CONFLICT (resource) DO UPDATE SET value = ?2";
            transaction.execute(upsert, params![resource, new]).expect("valid SQL");
        }
        let insert = "INSERT INTO attempts (resource, token, kind, value, accepted) VALUES (?1, ?2, ?3, ?4, ?5)";
        let token = i64::try_from(token).expect("tokens are below 2^53");
        transaction.execute(insert, params![resource, token, word, new, accepted]).expect("valid SQL");
        transaction.commit().expect("the file can be written");
        accepted.then_some(value)
    }

    /// All attempts, in order.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        let mut select = self
            .0
            .prepare("SELECT resource, token, kind, value, accepted FROM attempts ORDER BY seq")
            .expect("valid SQL");
        let attempt = |row: &rusqlite::Row<'_>| {
            let kind = match row.get::<_, String>(2)?.as_str() {
                "claim" => Kind::Claim,
                "late" => Kind::Late,
                _ => Kind::Write(row.get(3)?),
            };
            let token = u64::try_from(row.get::<_, i64>(1)?).unwrap_or_default();
            Ok(Attempt { resource: row.get(0)?, token, kind, accepted: row.get(4)? })
        };
        select.query_map([], attempt).expect("valid SQL").map(|row| row.expect("valid rows")).collect()
    }
}
