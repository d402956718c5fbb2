//! The guard of SQLite, against a real file.
#![cfg(feature = "sqlite")]

use std::time::Duration;

use crate::suite::{AnyAccess, Connection, Records, Store, before, done_before, stale, writer};
use fencepost_fence::{Access, Error, FencingToken, Forgotten, Installed, Once, ReadToken, Status, Token, sqlite};
use rusqlite::{OptionalExtension, Transaction, TransactionBehavior};
use tempfile::TempDir;

struct Sqlite(TempDir);

impl Sqlite {
    fn fresh() -> Sqlite {
        let store = Sqlite(tempfile::tempdir().expect("a temporary directory"));
        let mut database = store.open();
        assert_eq!(sqlite::install(&mut database).expect("a database of our own"), Installed::New);
        database
            .execute_batch("CREATE TABLE numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL)")
            .expect("valid SQL");
        store
    }

    fn open(&self) -> rusqlite::Connection {
        let database = rusqlite::Connection::open(self.0.path().join("store.db")).expect("a directory of our own");
        database.busy_timeout(Duration::from_secs(60)).expect("a valid setting");
        // These tests do not need to survive a power failure.
        database.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").expect("valid SQL");
        database
    }
}

struct Client(rusqlite::Connection);

impl Store for Sqlite {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = true;

    async fn connect(&self) -> Client {
        Client(self.open())
    }
}

impl Client {
    fn begin(&mut self) -> Transaction<'_> {
        self.0.transaction_with_behavior(TransactionBehavior::Immediate).expect("it waits its turn")
    }
}

fn number(transaction: &rusqlite::Connection, name: &str) -> i64 {
    let select = "SELECT number FROM numbers WHERE name = ?1";
    transaction.query_row(select, [name], |row| row.get(0)).optional().expect("valid SQL").unwrap_or(0)
}

fn set(transaction: &rusqlite::Connection, name: &str, number: i64) {
    let upsert = "INSERT INTO numbers VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET number = ?2";
    transaction.execute(upsert, rusqlite::params![name, number]).expect("valid SQL");
}

impl Connection for Client {
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error> {
        let transaction = self.begin();
        sqlite::admit(&transaction, &Access::claim(name, token))?;
        let number = number(&transaction, name);
        transaction.commit().map_err(|error| Error::Store(error.into()))?;
        Ok(number)
    }

    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error> {
        let transaction = self.begin();
        sqlite::admit(&transaction, &Access::read(name, token))?;
        let number = number(&transaction, name);
        transaction.commit().map_err(|error| Error::Store(error.into()))?;
        Ok(number)
    }

    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error> {
        let transaction = self.begin();
        sqlite::admit(&transaction, &Access::write(name, token))?;
        set(&transaction, name, number);
        transaction.commit().map_err(|error| Error::Store(error.into()))
    }

    async fn peek(&mut self, name: &str) -> i64 {
        number(&self.0, name)
    }

    async fn write_unguarded(&mut self, name: &str, number: i64) {
        set(&self.0, name, number);
    }

    async fn admit(&mut self, access: &AnyAccess) -> Result<(), Error> {
        let transaction = self.begin();
        match access {
            AnyAccess::Reads(access) => sqlite::admit(&transaction, access)?,
            AnyAccess::Claims(access) => sqlite::admit(&transaction, access)?,
            AnyAccess::Writes(access) => sqlite::admit(&transaction, access)?,
        }
        transaction.commit().map_err(|error| Error::Store(error.into()))
    }

    async fn write_and_crash(mut self, name: &str, token: FencingToken, number: i64) {
        let transaction = self.begin();
        sqlite::admit(&transaction, &Access::write(name, token)).expect("its token is good");
        set(&transaction, name, number);
        // The transaction and the connection end without a commit, as if the process were killed.
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten, Error> {
        sqlite::forget_below(&mut self.0, oldest_live)
    }
}

crate::suite::suite!(Some(Sqlite::fresh()));

#[test]
fn installing_again_changes_nothing_and_a_newer_form_is_refused() {
    let store = Sqlite::fresh();
    let mut database = store.open();
    assert_eq!(sqlite::install(&mut database).expect("it is there"), Installed::AlreadyThere);
    let expected =
        Status { version: sqlite::VERSION, base: Token(0), names: 0, writes: 0, highest: Token(0), keys: Some(0) };
    assert_eq!(sqlite::status(&database).expect("it is there"), expected);
    database.execute("UPDATE fencepost_base SET version = 3", []).expect("valid SQL");
    let refused = sqlite::install(&mut database).expect_err("a newer version has created it");
    assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("version 3")), "{refused}");
}

#[test]
fn without_the_tables_it_says_what_to_run() {
    let mut database = rusqlite::Connection::open_in_memory().expect("memory");
    let transaction = database.transaction().expect("there is no other transaction");
    let refused = sqlite::admit(&transaction, &Access::write("wallet", writer(1))).expect_err("there are no tables");
    assert!(refused.to_string().contains("fencepost fence init"), "{refused}");
}

#[test]
fn a_name_that_is_not_valid_is_refused() {
    let store = Sqlite::fresh();
    let mut database = store.open();
    let transaction = database.transaction().expect("there is no other transaction");
    for name in ["", "/a//b", "line\nbreak"] {
        let refused = sqlite::admit(&transaction, &Access::write(name, writer(1))).expect_err("no name");
        assert!(matches!(refused, Error::BadName(_)), "{refused}");
    }
}

/// A transaction that began with a read does not see what others write. It must not pass the guard with that old view.
// Rule: claim-before-read
#[test]
fn a_transaction_that_has_read_before_it_claims_is_not_let_in_with_its_old_view() {
    let store = Sqlite::fresh();
    let (mut early, mut other) = (store.open(), store.open());
    let transaction = early.transaction().expect("there is no other transaction");
    assert_eq!(number(&transaction, "wallet"), 0);
    let newer = other.transaction().expect("readers do not block it");
    sqlite::admit(&newer, &Access::write("wallet", writer(5))).expect("the first");
    set(&newer, "wallet", 50);
    newer.commit().expect("it is the only writer");
    let refused = sqlite::admit(&transaction, &Access::claim("wallet", writer(7))).expect_err("it has an old view");
    assert!(matches!(refused, Error::Store(_)), "{refused}");
}

/// A process is paused inside its transaction. No other process passes it, and its late writes are refused.
#[test]
fn an_open_transaction_blocks_others_and_lets_nothing_stale_in() {
    let store = Sqlite::fresh();
    let (mut paused, mut successor) = (store.open(), store.open());
    successor.busy_timeout(Duration::ZERO).expect("a valid setting");
    let transaction =
        paused.transaction_with_behavior(TransactionBehavior::Immediate).expect("there is no other transaction");
    sqlite::admit(&transaction, &Access::write("wallet", writer(5))).expect("the first");
    let busy = successor.transaction_with_behavior(TransactionBehavior::Immediate).map(drop).expect_err("it is taken");
    assert_eq!(busy.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
    set(&transaction, "wallet", 50);
    transaction.commit().expect("no newer token was admitted before it");
    let claim = successor.transaction_with_behavior(TransactionBehavior::Immediate).expect("it is free");
    sqlite::admit(&claim, &Access::claim("wallet", writer(7))).expect("newer");
    assert_eq!(number(&claim, "wallet"), 50, "what was admitted before is there");
    claim.commit().expect("it is the only writer");
    let late = paused.transaction().expect("it is free");
    stale(sqlite::admit(&late, &Access::write("wallet", writer(5))), 5, 7);
}

impl Records for Client {
    async fn once(&mut self, name: &str, key: &str, token: FencingToken) -> Result<(), Error> {
        let transaction = self.begin();
        sqlite::once(&transaction, name, key, token)?;
        set(&transaction, name, number(&transaction, name) + 1);
        transaction.commit().map_err(|error| Error::Store(error.into()))
    }

    async fn batch(&mut self, name: &str, keys: &[&str], token: FencingToken) -> Result<Vec<Once>, Error> {
        let transaction = self.begin();
        let found =
            keys.iter().map(|key| sqlite::try_once(&transaction, name, key, token)).collect::<Result<_, _>>()?;
        transaction.commit().map_err(|error| Error::Store(error.into()))?;
        Ok(found)
    }

    async fn once_and_crash(mut self, name: &str, key: &str, token: FencingToken) {
        let transaction = self.begin();
        sqlite::once(&transaction, name, key, token).expect("the first");
        set(&transaction, name, number(&transaction, name) + 1);
    }

    async fn forget(&mut self, name: &str, key: &str) -> Result<Option<Token>, Error> {
        sqlite::forget(&self.0, name, key)
    }

    async fn status(&mut self) -> Status {
        sqlite::status(&self.0).expect("it is there")
    }
}

crate::suite::once_suite!(Some(Sqlite::fresh()));

/// A transaction that SQL has ended is no transaction: the key would be committed before the work.
// Rule: once
#[test]
fn once_is_refused_after_the_transaction_has_ended() {
    let store = Sqlite::fresh();
    let mut database = store.open();
    let transaction = database.transaction().expect("there is no other transaction");
    sqlite::admit(&transaction, &Access::write("billing", writer(5))).expect("the first");
    transaction.execute_batch("COMMIT").expect("valid SQL");
    for refused in [
        sqlite::once(&transaction, "billing", "a", writer(5)),
        sqlite::try_once(&transaction, "billing", "a", writer(5)).map(drop),
    ] {
        assert!(matches!(refused.expect_err("it would be on its own"), Error::Unsupported(_)));
    }
    drop(transaction);
    assert_eq!(sqlite::status(&database).expect("it is there").keys, Some(0));
}

/// A transaction that began with a read does not see the key of another. It must not pass with that old view.
// Rule: once
#[test]
fn once_is_refused_to_a_transaction_with_an_old_view() {
    let store = Sqlite::fresh();
    let (mut early, mut other) = (store.open(), Client(store.open()));
    let transaction = early.transaction().expect("there is no other transaction");
    assert_eq!(number(&transaction, "billing"), 0);
    crate::suite::block_on(other.once("billing", "a", writer(5))).expect("the first");
    let refused = sqlite::once(&transaction, "billing", "a", writer(6)).expect_err("it has an old view");
    assert!(matches!(refused, Error::Store(_)), "{refused}");
    drop(transaction);
    let again = early.transaction().expect("there is no other transaction");
    done_before(sqlite::once(&again, "billing", "a", writer(6)), &before("billing", "a", 5, false));
}

#[test]
fn rolling_back_to_a_savepoint_takes_the_key_and_the_token_back() {
    let store = Sqlite::fresh();
    let mut database = store.open();
    let transaction = database.transaction().expect("there is no other transaction");
    transaction.execute_batch("SAVEPOINT s").expect("valid SQL");
    sqlite::once(&transaction, "billing", "a", writer(7)).expect("the first");
    transaction.execute_batch("ROLLBACK TO s").expect("valid SQL");
    sqlite::once(&transaction, "billing", "a", writer(5)).expect("the mark of 7 is gone as well");
    transaction.commit().expect("it is the only writer");
}

/// A trap. The documentation warns of it.
#[test]
fn trap_a_key_that_the_transaction_itself_has_recorded_looks_like_done() {
    let store = Sqlite::fresh();
    let mut database = store.open();
    let transaction = database.transaction().expect("there is no other transaction");
    sqlite::once(&transaction, "billing", "a", writer(5)).expect("the first");
    done_before(sqlite::once(&transaction, "billing", "a", writer(5)), &before("billing", "a", 5, true));
}

#[test]
fn a_version_without_keys_is_upgraded() {
    let store = Sqlite::fresh();
    let mut client = Client(store.open());
    crate::suite::block_on(client.write("billing", writer(5), 50)).expect("the first");
    let as_version_1_was = "DROP TABLE fencepost_keys; UPDATE fencepost_base SET version = 1";
    client.0.execute_batch(as_version_1_was).expect("valid SQL");
    for missing in [sqlite::status(&client.0).map(drop), sqlite::forget(&client.0, "billing", "a").map(drop)] {
        let missing = missing.expect_err("it has no keys");
        assert!(missing.to_string().contains("run `fencepost fence init"), "{missing}");
    }
    let upgraded = sqlite::install(&mut client.0).expect("it is older");
    assert_eq!(upgraded, Installed::Upgraded { from: 1, to: sqlite::VERSION });
    let mut rest = crate::suite::block_on(client.status());
    assert_eq!((rest.highest, rest.keys.take()), (Token(5), Some(0)), "the marks are kept");
    crate::suite::block_on(client.once("billing", "a", writer(5))).expect("the first");
    client.0.execute_batch(sqlite::SCRIPT).expect("it can be run again");
    assert_eq!(crate::suite::block_on(client.status()).keys, Some(1), "keys are kept");
}
