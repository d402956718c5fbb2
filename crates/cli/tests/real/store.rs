//! The store that the locks protect: an SQLite file that keeps the highest token it has seen for each resource, and refuses
//! every older one. It writes down every attempt, accepted or not, in the transaction that decides about it.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::history::{Attempt, Kind};

/// A connection to the store; one for each client.
pub(crate) struct Store(Connection);

impl Store {
    pub(crate) fn open(path: &Path) -> Store {
        let store = Connection::open(path).expect("a file in a directory of our own");
        store.busy_timeout(Duration::from_secs(20)).expect("a valid setting");
        // The store itself never crashes here, so it need not sync.
        store
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                 CREATE TABLE IF NOT EXISTS marks
                     (resource TEXT PRIMARY KEY, write_floor INTEGER NOT NULL, value INTEGER NOT NULL);
                 CREATE TABLE IF NOT EXISTS attempts
                     (seq INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT NOT NULL, token INTEGER NOT NULL,
                      kind TEXT NOT NULL, value INTEGER NOT NULL, accepted INTEGER NOT NULL);",
            )
            .expect("valid SQL");
        Store(store)
    }

    /// Lifts the floor and reads, if the token is not too old.
    // Rule: claim-before-read
    pub(crate) fn claim(&mut self, resource: &str, token: u64) -> Option<i64> {
        self.attempt(resource, token, Kind::Claim)
    }

    /// Writes what was made of what was read. Whether it was let in.
    pub(crate) fn write(&mut self, resource: &str, token: u64, value: i64) -> bool {
        self.attempt(resource, token, Kind::Write(value)).is_some()
    }

    /// Writes with a token that is probably too old.
    pub(crate) fn write_late(&mut self, resource: &str, token: u64) -> bool {
        self.attempt(resource, token, Kind::Late).is_some()
    }

    // Rule: same-transaction
    fn attempt(&mut self, resource: &str, token: u64, kind: Kind) -> Option<i64> {
        let token = i64::try_from(token).expect("tokens are below 2^53");
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate).expect("it waits its turn");
        let marks: Option<(i64, i64)> = transaction
            .query_row("SELECT write_floor, value FROM marks WHERE resource = ?1", [resource], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
            .expect("valid SQL");
        let (write_floor, value) = marks.unwrap_or_default();
        // Rule: fence
        let accepted = token >= write_floor;
        let (word, new) = match kind {
            Kind::Claim => ("claim", value),
            Kind::Write(new) => ("write", new),
            Kind::Late => ("late", value),
        };
        if accepted {
            let upsert = "INSERT INTO marks VALUES (?1, ?2, ?3)
                          ON CONFLICT (resource) DO UPDATE SET write_floor = ?2, value = ?3";
            transaction.execute(upsert, params![resource, token, new]).expect("valid SQL");
        }
        let insert = "INSERT INTO attempts (resource, token, kind, value, accepted) VALUES (?1, ?2, ?3, ?4, ?5)";
        transaction.execute(insert, params![resource, token, word, new, accepted]).expect("valid SQL");
        transaction.commit().expect("the file can be written");
        accepted.then_some(value)
    }

    /// Everything that was tried, in order.
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
