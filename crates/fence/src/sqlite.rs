//! SQLite: the marks live in the database file, and are checked in the transaction that writes.
//!
//! SQLite has one writer at a time, so the check needs no locks of its own. It also means that a process that is paused inside
//! its transaction keeps all other processes from writing: keep the transaction short, and do the work before it.

use fencepost_core::Token;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use crate::access::Access;
use crate::error::Error;
use crate::rules::{MarkTable, Marks, Use};
use crate::upkeep::{Forgotten, Installed, SCHEMA_VERSION, Status};

/// The SQL that [`install`] runs: for reviews, and for teams that change schemas with tools of their own.
pub const SCRIPT: &str = "\
CREATE TABLE fencepost_base (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version INTEGER NOT NULL,
    base INTEGER NOT NULL
);
CREATE TABLE fencepost_marks (
    name TEXT PRIMARY KEY,
    write_floor INTEGER NOT NULL,
    read_floor INTEGER NOT NULL,
    write_floor_below INTEGER NOT NULL,
    read_floor_below INTEGER NOT NULL,
    writes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO fencepost_base VALUES (1, 1, 0);
";

/// Creates the tables of the marks, `fencepost_base` and `fencepost_marks`, if they are missing.
///
/// # Errors
/// [`Error::NotInstalled`] if a newer version has created them.
pub fn install(connection: &mut Connection) -> Result<Installed, Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(Error::store)?;
    let there = "SELECT count(*) FROM sqlite_schema WHERE name = 'fencepost_base'";
    if transaction.query_row(there, [], |row| row.get::<_, i64>(0)).map_err(Error::store)? > 0 {
        base(&transaction)?;
        return Ok(Installed::AlreadyThere);
    }
    transaction.execute_batch(SCRIPT).map_err(Error::store)?;
    transaction.commit().map_err(Error::store)?;
    Ok(Installed::New)
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

/// The state of the marks.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
pub fn status(connection: &Connection) -> Result<Status, Error> {
    let base = base(connection)?;
    let select = "SELECT count(*), coalesce(sum(writes), 0), coalesce(max(max(write_floor, write_floor_below)), 0)
        FROM fencepost_marks";
    let counted = |row: &Row<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?, row.get::<_, u64>(2)?));
    let (names, writes, highest) = connection.query_row(select, [], counted).map_err(Error::store)?;
    Ok(Status { version: SCHEMA_VERSION, base, names, writes, highest: Token(highest).max(base) })
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
    let select = "SELECT version, base FROM fencepost_base";
    let mut select = connection.prepare_cached(select).map_err(not_installed)?;
    let row = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u64>(1)?));
    let (version, base) = select.query_row([], row).map_err(Error::store)?;
    if version != SCHEMA_VERSION {
        let why = format!(
            "the guard's marks have format version {version}, and this release knows {SCHEMA_VERSION}: use a newer release of Fencepost"
        );
        return Err(Error::NotInstalled(why));
    }
    Ok(Token(base))
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
