//! SQLite: the marks live in the database file, and are checked in the transaction that writes. [`once`] records the key of a piece of
//! work there, in the transaction of the work.
//!
//! SQLite has one writer at a time, so the check needs no locks of its own. It also means that a process that is paused inside
//! its transaction keeps all other processes from writing: keep the transaction short, and do the work before it.

use fencepost_core::{FencingToken, Name, Token};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use crate::access::Access;
use crate::error::Error;
use crate::once::{Before, Once, check_key};
use crate::rules::{MarkTable, Marks, Use};
use crate::upkeep::{Forgotten, Installed, Status};

/// The SQL that [`install`] runs: for reviews, and for teams that change schemas with tools of their own.
pub const SCRIPT: &str = "\
CREATE TABLE IF NOT EXISTS fencepost_base (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version INTEGER NOT NULL,
    base INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS fencepost_marks (
    name TEXT PRIMARY KEY,
    write_floor INTEGER NOT NULL,
    read_floor INTEGER NOT NULL,
    write_floor_below INTEGER NOT NULL,
    read_floor_below INTEGER NOT NULL,
    writes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fencepost_keys (
    name TEXT NOT NULL,
    job_key TEXT NOT NULL,
    token INTEGER NOT NULL,
    recorded_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (name, job_key)
) WITHOUT ROWID;
INSERT INTO fencepost_base VALUES (1, 2, 0) ON CONFLICT (only_row) DO UPDATE SET version = 2;
";
/// The version of [`SCRIPT`]. Version 1 had no keys.
pub const VERSION: u32 = 2;

/// Creates the tables of the guard, `fencepost_base`, `fencepost_marks` and `fencepost_keys`, or upgrades them.
///
/// # Errors
/// [`Error::NotInstalled`] if a newer version has created them.
pub fn install(connection: &mut Connection) -> Result<Installed, Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(Error::store)?;
    let there = "SELECT count(*) FROM sqlite_schema WHERE name = 'fencepost_base'";
    let there = transaction.query_row(there, [], |row| row.get::<_, i64>(0)).map_err(Error::store)? > 0;
    let before = if there { Some(version_and_base(&transaction)?.0) } else { None };
    match before {
        Some(VERSION) => return Ok(Installed::AlreadyThere),
        Some(version) if version > VERSION => return Err(other_version(version)),
        _ => transaction.execute_batch(SCRIPT).map_err(Error::store)?,
    }
    transaction.commit().map_err(Error::store)?;
    Ok(before.map_or(Installed::New, |from| Installed::Upgraded { from, to: VERSION }))
}

/// Admits an access into this transaction. The marks and the writes that follow take effect together, when it commits.
///
/// ```
/// # use fencepost_fence::{Access, FencingToken, sqlite};
/// # let mut database = rusqlite::Connection::open_in_memory().unwrap();
/// # sqlite::install(&mut database).unwrap();
/// # database.execute_batch("CREATE TABLE wallet (id INTEGER, balance INTEGER)").unwrap();
/// # let token: FencingToken = "7".parse().unwrap();
/// let transaction = database.transaction()?;
/// sqlite::admit(&transaction, &Access::write("wallet:7", token))?;
/// transaction.execute("UPDATE wallet SET balance = 400 WHERE id = 7", [])?;
/// transaction.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Stale`] if the store has seen a newer token; then roll back. [`Error::NotInstalled`] without [`install`].
// Rule: same-transaction
pub fn admit<Kind>(transaction: &Transaction<'_>, access: &Access<Kind>) -> Result<(), Error> {
    let shown = access.shown()?;
    // The first statement writes, so that no other process can write from here on. A transaction that began with a read fails
    // here if another process has written since. So it does not go on with an old view.
    let taken = "UPDATE fencepost_base SET only_row = only_row";
    transaction.prepare_cached(taken).map_err(not_installed)?.execute([]).map_err(Error::store)?;
    let mut table = MarkTable::with_base(base(transaction)?);
    let select =
        "SELECT write_floor, read_floor, write_floor_below, read_floor_below FROM fencepost_marks WHERE name = ?1";
    let mut select = prepared(transaction, select)?;
    let names = access.names()?;
    for name in &names {
        if let Some(marks) = select.query_row([name.as_str()], marks_of).optional().map_err(Error::store)? {
            table.restore(name.clone(), marks);
        }
    }
    table.admit(shown)?;
    let upsert = "INSERT INTO fencepost_marks VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (name) DO UPDATE SET
        write_floor = ?2, read_floor = ?3, write_floor_below = ?4, read_floor_below = ?5, writes = writes + ?6";
    let mut upsert = prepared(transaction, upsert)?;
    for name in &names {
        let marks = table.marks(name);
        let writes = shown.iter().filter(|one| one.name == *name && one.used_to == Use::Write).count();
        let floors = [marks.write_floor, marks.read_floor, marks.write_floor_below, marks.read_floor_below];
        let [write, read, write_below, read_below] = floors.map(number);
        let row = params![name.as_str(), write, read, write_below, read_below, writes as i64];
        upsert.execute(row).map_err(Error::store)?;
    }
    Ok(())
}

/// Records in this transaction that the work of a key is done, and shows the token of the lock that it is done under.
///
/// The row and the work commit together. Give each transaction a key of its own: a job that commits after each of its items has
/// keys such as `2026-11/40`.
///
/// ```
/// # use fencepost_fence::{FencingToken, sqlite};
/// # let mut database = rusqlite::Connection::open_in_memory().unwrap();
/// # sqlite::install(&mut database).unwrap();
/// # database.execute_batch("CREATE TABLE bill (id INTEGER, due INTEGER); CREATE TABLE account (id INTEGER, due INTEGER)").unwrap();
/// # let token: FencingToken = "7".parse().unwrap();
/// let transaction = database.transaction()?;
/// sqlite::once(&transaction, "billing", "2026-11", token)?;
/// transaction.execute("INSERT INTO bill SELECT id, due FROM account", [])?;
/// transaction.commit()?;
///
/// let again = database.transaction()?;
/// let refused = sqlite::once(&again, "billing", "2026-11", token).unwrap_err();
/// assert!(refused.before().is_some_and(|before| before.own), "this holder has done it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It shows the token as [`admit`] does with [`Access::write`], so that call is not needed for this name.
///
/// - **Record a key once in its transaction.** SQLite does not show which transaction has written a row, so a second `once` with the
///   same key says that the work was done before, with the caller's own token, although nothing is committed yet.
/// - **The commit is durable** with `PRAGMA synchronous = FULL`, the default of SQLite. No transaction can change that setting.
///
/// Only the token of an exclusive lock records work. A reader's token does not compile:
///
/// ```compile_fail,E0308
/// # use fencepost_fence::{Error, ReadToken, sqlite};
/// # fn example(transaction: &rusqlite::Transaction<'_>) -> Result<(), Error> {
/// let reader: ReadToken = "42".parse().unwrap();
/// sqlite::once(transaction, "billing", "2026-11", reader)
/// # }
/// ```
///
/// # Errors
/// [`Error::Before`] if the work was done before; then roll back. Its `own` tells whether with this same token: then a commit of this
/// holder, whose outcome it did not learn, took effect. [`Error::BadKey`] if the key is not valid. [`Error::Unsupported`] if the
/// transaction has ended. All others as [`admit`].
// Rule: once
pub fn once(transaction: &Transaction<'_>, name: &str, key: &str, token: FencingToken) -> Result<(), Error> {
    match try_once(transaction, name, key, token)? {
        Once::First => Ok(()),
        Once::Before(before) => Err(before.into()),
    }
}

/// As [`once`], but a key that was recorded before is no error: for batches, which leave out what was done.
///
/// # Errors
/// As [`once`], but for [`Error::Before`]. A key that this transaction itself has recorded counts as recorded before.
// Rule: once
pub fn try_once(transaction: &Transaction<'_>, name: &str, key: &str, token: FencingToken) -> Result<Once, Error> {
    check_key(key)?;
    if transaction.is_autocommit() {
        return Err(Error::Unsupported("the transaction has ended, and `once` counts only inside one: begin another"));
    }
    // First, because it takes the write lock. So no other process can record the key from here on.
    admit(transaction, &Access::write(name, token))?;
    let own = Token::from(token);
    let insert = "INSERT INTO fencepost_keys (name, job_key, token) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    if prepared(transaction, insert)?.execute(params![name, key, number(own)]).map_err(Error::store)? == 1 {
        return Ok(Once::First);
    }
    let select = "SELECT token FROM fencepost_keys WHERE name = ?1 AND job_key = ?2";
    let before = prepared(transaction, select)?.query_row([name, key], |row| row.get(0)).map_err(Error::store)?;
    let before = Token(before);
    Ok(Once::Before(Before { name: Name::new(name)?, key: key.to_owned(), token: before, own: before == own }))
}

/// Forgets a key, so that its work can be done again. Returns the token with which it was recorded; `None` if it was not.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`]. [`Error::BadName`] and [`Error::BadKey`].
pub fn forget(connection: &Connection, name: &str, key: &str) -> Result<Option<Token>, Error> {
    check_key(key)?;
    Name::new(name)?;
    base(connection)?;
    let delete = "DELETE FROM fencepost_keys WHERE name = ?1 AND job_key = ?2 RETURNING token";
    let token = connection.query_row(delete, [name, key], |row| row.get(0)).optional().map_err(Error::store)?;
    Ok(token.map(Token))
}

/// The state of the marks.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
pub fn status(connection: &Connection) -> Result<Status, Error> {
    let base = base(connection)?;
    let select = "SELECT count(*), coalesce(sum(writes), 0), coalesce(max(max(write_floor, write_floor_below)), 0),
        (SELECT count(*) FROM fencepost_keys) FROM fencepost_marks";
    let counted =
        |row: &Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?, row.get::<_, u64>(2)?, row.get(3)?));
    let (names, writes, highest, keys) = connection.query_row(select, [], counted).map_err(Error::store)?;
    Ok(Status { version: VERSION, base, names, writes, highest: Token(highest).max(base), keys: Some(keys) })
}

/// Forgets every mark that is not above the oldest living token, and raises the base floor to that token.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
// Rule: fence-gc
pub fn forget_below(connection: &mut Connection, oldest_live: Token) -> Result<Forgotten, Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(Error::store)?;
    let base = base(&transaction)?.max(oldest_live);
    transaction.execute("UPDATE fencepost_base SET base = ?1", [number(base)]).map_err(Error::store)?;
    let delete = "DELETE FROM fencepost_marks WHERE max(write_floor, write_floor_below) <= ?1";
    let names = transaction.execute(delete, [number(base)]).map_err(Error::store)?;
    transaction.commit().map_err(Error::store)?;
    Ok(Forgotten { names: names as u64, base })
}

/// The base floor, if the tables are there in the version that this guard knows.
fn base(connection: &Connection) -> Result<Token, Error> {
    match version_and_base(connection)? {
        (VERSION, base) => Ok(base),
        (version, _) => Err(other_version(version)),
    }
}

fn version_and_base(connection: &Connection) -> Result<(u32, Token), Error> {
    let select = "SELECT version, base FROM fencepost_base";
    let mut select = connection.prepare_cached(select).map_err(not_installed)?;
    let row = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, Token(row.get(1)?)));
    select.query_row([], row).map_err(Error::store)
}

fn other_version(version: u32) -> Error {
    let what_to_do =
        if version > VERSION { "use a newer release of Fencepost" } else { "run `fencepost fence init sqlite:FILE`" };
    Error::NotInstalled(format!(
        "the guard's marks have format version {version}, and this release knows {VERSION}: {what_to_do}"
    ))
}

fn not_installed(error: rusqlite::Error) -> Error {
    let missing = error.to_string().contains("no such table");
    let why = || "no marks in this database: run `fencepost fence init sqlite:FILE`".to_owned();
    if missing { Error::NotInstalled(why()) } else { Error::store(error) }
}

fn prepared<'a>(transaction: &'a Transaction<'_>, sql: &str) -> Result<rusqlite::CachedStatement<'a>, Error> {
    transaction.prepare_cached(sql).map_err(Error::store)
}

fn marks_of(row: &Row<'_>) -> rusqlite::Result<Marks> {
    Ok(Marks {
        write_floor: Token(row.get(0)?),
        read_floor: Token(row.get(1)?),
        write_floor_below: Token(row.get(2)?),
        read_floor_below: Token(row.get(3)?),
    })
}

fn number(token: Token) -> i64 {
    i64::try_from(token.0).expect("tokens are below 2^53")
}
