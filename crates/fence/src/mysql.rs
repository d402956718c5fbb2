//! MySQL and MariaDB: the marks live in two tables, and a procedure checks them in the transaction that writes. [`once`] records the
//! key of a piece of work in a third table, in the transaction of the work.
//!
//! Tested with MariaDB 10.11. The SQL uses only what MySQL 8.0 has as well, but it has not been run there.
//!
//! - **Call the guard first.** A transaction that has read before the guard is refused if another holder has written since: under
//!   REPEATABLE READ, the default, it would decide from its old view. // Rule: claim-before-read
//! - **Roll back after a refusal.** MySQL keeps a transaction open after an error, with its locks. A [`Transaction`] that is dropped is
//!   rolled back when its connection is next used or closed; until then it blocks the next holder. So call `rollback`.
//! - **Keep the transaction short.** A holder that is paused inside it blocks the next holder. MariaDB ends it after
//!   `idle_seconds` (in the table `fencepost_base`, 5 by default). MySQL cannot: give its connections a short `wait_timeout`.
//! - **Be ready to run it again.** All names are locked in one order, so guarded transactions do not deadlock with each other.
//!   One case is left: if several wait for a new name whose first access is rolled back, InnoDB ends all but one (error 1213).
//!
//! The same procedures serve every other language: `CALL fencepost_claim(name, token)`, `fencepost_write`, `fencepost_read`, and
//! `fencepost_present` for several names at once, and `CALL fencepost_once(name, key, token)`. They fail with SQLSTATE `FP412` if a token
//! is stale, and with `FP208` if work was done before.

use fencepost_core::{FencingToken, Name, Token};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Transaction, TxOpts};
use serde_json::json;

use crate::access::Access;
use crate::error::Error;
use crate::once::{Before, Once, check_key};
use crate::rules::{Shown, Stale, Use};
use crate::upkeep::{Forgotten, Installed, Status};

/// The SQL that [`install`] runs: for reviews, and for teams that change schemas by hand, with `mariadb` or `mysql`.
pub const SCRIPT: &str = include_str!("mysql.sql");
/// The version of [`SCRIPT`]. In version 1 the parts of a check ran with the installer's rights as well.
pub const VERSION: u32 = 3;

/// The SQLSTATE of a stale token.
const STALE: &str = "FP412";
/// The SQLSTATE if the work of a key was done before.
pub const BEFORE: &str = "FP208";
/// What separates the statements in the file. The command line clients use it, too.
const DELIMITER: &str = "\n//\n";

/// MySQL's error numbers for a table and for a procedure that do not exist.
const NO_SUCH_TABLE: u16 = 1146;
const NO_SUCH_PROCEDURE: u16 = 1305;
/// MySQL's error number for a procedure that the account may not call.
const MAY_NOT_CALL: u16 = 1370;

/// Creates the tables and procedures of the guard in the database of this connection, or upgrades them.
///
/// Three procedures, `fencepost_present`, `_once` and `_try_once`, run with the rights of the account that installs them. So use an
/// account that has rights on this database alone; the refusal of any other account shows how to create one. Applications need EXECUTE on the procedures.
///
/// # Errors
/// [`Error::NotInstalled`] if a newer version has created them, if this account has rights outside of the database, or if there
/// is a view in the place of a table of the guard.
pub async fn install(connection: &mut Conn) -> Result<Installed, Error> {
    // Statements that create things commit one by one, so a lock keeps other installations out. It ends with the connection at
    // the latest.
    let lock = "SELECT GET_LOCK('fencepost_install', 60)";
    if connection.query_first(lock).await.map_err(failed)? != Some(1) {
        return Err(Error::store("another connection has been installing the guard for a minute: try again"));
    }
    // A procedure keeps the SQL mode that it was created in, and some modes parse SQL differently.
    let mode = "SET @fencepost_sql_mode = @@sql_mode, SESSION sql_mode = 'STRICT_TRANS_TABLES'";
    connection.query_drop(mode).await.map_err(failed)?;
    let installed = match check_rights(connection).await {
        Ok(()) => install_alone(connection).await,
        refused => refused.map(|()| Installed::AlreadyThere),
    };
    connection.query_drop("SET SESSION sql_mode = @fencepost_sql_mode").await.map_err(failed)?;
    connection.query_drop("DO RELEASE_LOCK('fencepost_install')").await.map_err(failed)?;
    installed
}

async fn install_alone(connection: &mut Conn) -> Result<Installed, Error> {
    let before = base_row(connection, "").await?.map(|(version, _)| version);
    match before {
        Some(VERSION) => return Ok(Installed::AlreadyThere),
        Some(version) if version > VERSION => return Err(other_version(version)),
        _ => {}
    }
    let server: Option<String> = connection.query_first("SELECT VERSION()").await.map_err(failed)?;
    // MariaDB can replace a procedure, which keeps the rights to call it.
    let replaces = server.is_some_and(|version| version.contains("MariaDB"));
    let (_, statements) = SCRIPT.split_once("\nDELIMITER //\n").expect("the file names its delimiter");
    for statement in statements.split_terminator(DELIMITER) {
        if replaces && statement.trim_start().starts_with("DROP PROCEDURE") {
            continue;
        }
        connection.query_drop(statement).await.map_err(failed)?;
    }
    Ok(before.map_or(Installed::New, |from| Installed::Upgraded { from, to: VERSION }))
}

/// Refuses an account that has rights outside of the database: an application with many rights in the database could use them.
async fn check_rights(connection: &mut Conn) -> Result<(), Error> {
    // In the catalogue, accounts are quoted and names of databases are escaped.
    let outside = "SELECT CURRENT_USER(), DATABASE(), (
            SELECT MIN(privilege_type) FROM (
                SELECT grantee, privilege_type FROM information_schema.user_privileges
                UNION ALL SELECT grantee, privilege_type FROM information_schema.schema_privileges
                    WHERE REPLACE(table_schema, CHAR(92), '') <> DATABASE()
            ) AS granted
            WHERE privilege_type <> 'USAGE' AND grantee = CONCAT('''',
                LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER()) - CHAR_LENGTH(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)) - 1),
                '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), ''''))";
    let row: Option<(String, Option<String>, Option<String>)> =
        connection.query_first(outside).await.map_err(failed)?;
    let (account, database, right) = row.expect("a select of values has one row");
    let Some(database) = database else {
        return Err(Error::NotInstalled("name the database in the address".to_owned()));
    };
    let Some(right) = right else { return Ok(()) };
    Err(Error::NotInstalled(format!(
        "{account} has rights outside of the database {database} ({right}), and the guard would run with them. Install it as an \
         account of its own: CREATE USER fencepost IDENTIFIED BY '...'; GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, \
         CREATE ROUTINE, ALTER ROUTINE, EXECUTE ON `{database}`.* TO fencepost"
    )))
}

/// Admits an access into this transaction. The marks and the writes that follow take effect together, when it commits.
///
/// ```no_run
/// # use fencepost_fence::{Access, FencingToken, mysql};
/// use mysql_async::{Conn, TxOpts, prelude::Queryable};
///
/// # async fn example(connection: &mut Conn, token: FencingToken) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = connection.start_transaction(TxOpts::default()).await?;
/// mysql::admit(&mut transaction, &Access::write("wallet:7", token)).await?;
/// transaction.query_drop("UPDATE wallet SET balance = 400 WHERE id = 7").await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Stale`] if the store has seen a newer token; then roll back. [`Error::NotInstalled`] without [`install`].
/// [`Error::Store`] if the transaction has an old view because it read before the guard, or if InnoDB ended it in a deadlock:
/// then run it again from its start.
///
/// # Cancellation
/// The server may or may not have admitted it: roll back.
// Rule: same-transaction
pub async fn admit<Kind>(transaction: &mut Transaction<'_>, access: &Access<Kind>) -> Result<(), Error> {
    let shown = access.shown()?.iter().map(shown_as_json).collect::<serde_json::Value>().to_string();
    match transaction.exec_drop("CALL fencepost_present(?)", (shown,)).await {
        Err(mysql_async::Error::Server(error)) if error.state == STALE => Err(stale(transaction).await?.into()),
        outcome => outcome.map_err(failed),
    }
}

/// Records in this transaction that the work of a key is done, and shows the token of the lock that it is done under.
///
/// The row and the work commit together. Give each transaction a key of its own: a job that commits after each of its items has
/// keys such as `2026-11/40`.
///
/// ```no_run
/// # use fencepost_fence::{FencingToken, mysql};
/// use mysql_async::{Conn, TxOpts, prelude::Queryable};
///
/// # async fn example(connection: &mut Conn, token: FencingToken) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = connection.start_transaction(TxOpts::default()).await?;
/// mysql::once(&mut transaction, "billing", "2026-11", token).await?;
/// transaction.query_drop("INSERT INTO bill SELECT id, due FROM account").await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// It shows the token as [`admit`] does with [`Access::write`], so that call is not needed for this name.
///
/// - **No statement that creates or changes a table** may follow in the transaction: MySQL would commit the key before the work.
/// - **Record a key once in its transaction.** MySQL does not show which transaction has written a row, so a second `once` with the
///   same key says that the work was done before, with the caller's own token, although nothing is committed yet.
/// - **The commit is durable** if `innodb_flush_log_at_trx_commit` is 1, the default. No transaction can change that setting.
///
/// Only the token of an exclusive lock records work. A reader's token does not compile:
///
/// ```compile_fail,E0308
/// # use fencepost_fence::{Error, ReadToken, mysql};
/// # async fn example(transaction: &mut mysql_async::Transaction<'_>) -> Result<(), Error> {
/// let reader: ReadToken = "42".parse().unwrap();
/// mysql::once(transaction, "billing", "2026-11", reader).await
/// # }
/// ```
///
/// # Errors
/// [`Error::Before`] if the work was done before; then roll back. Its `own` tells whether with this same token: then a commit of this
/// holder, whose answer was lost, took effect. [`Error::BadKey`] if the key is not valid. All others as [`admit`]. After a deadlock
/// or a lost connection, run the transaction again from its start.
///
/// # Cancellation
/// The key may or may not be recorded in the transaction: roll back.
// Rule: once
pub async fn once(transaction: &mut Transaction<'_>, name: &str, key: &str, token: FencingToken) -> Result<(), Error> {
    if call(transaction, "CALL fencepost_once(?, ?, ?)", name, key, token).await? {
        return Ok(());
    }
    match before(transaction, name, key).await? {
        Once::Before(before) => Err(before.into()),
        Once::First => Err(Error::store("the refusal of fencepost_once does not say which token recorded the key")),
    }
}

/// As [`once`], but a key that was recorded before is no error: for batches, which leave out what was done.
///
/// # Errors
/// As [`once`], but for [`Error::Before`]. A key that this transaction itself has recorded counts as recorded before.
///
/// # Cancellation
/// As [`once`].
// Rule: once
pub async fn try_once(
    transaction: &mut Transaction<'_>,
    name: &str,
    key: &str,
    token: FencingToken,
) -> Result<Once, Error> {
    call(transaction, "CALL fencepost_try_once(?, ?, ?, @fencepost_first)", name, key, token).await?;
    before(transaction, name, key).await
}

/// Whether the procedure has ended without refusing the key as recorded before.
async fn call(
    transaction: &mut Transaction<'_>,
    procedure: &str,
    name: &str,
    key: &str,
    token: FencingToken,
) -> Result<bool, Error> {
    check_key(key)?;
    Name::new(name)?;
    match transaction.exec_drop(procedure, (name, key, Token::from(token).0)).await {
        Ok(()) => Ok(true),
        Err(mysql_async::Error::Server(error)) if error.state == BEFORE => Ok(false),
        Err(mysql_async::Error::Server(error)) if error.state == STALE => Err(stale(transaction).await?.into()),
        Err(error) => Err(failed(error)),
    }
}

/// What the last call of a procedure has found, from the variables that it has set.
async fn before(transaction: &mut Transaction<'_>, name: &str, key: &str) -> Result<Once, Error> {
    let select = "SELECT @fencepost_before_token, @fencepost_before_own";
    let row: Option<(Option<u64>, Option<bool>)> = transaction.query_first(select).await.map_err(failed)?;
    let (Some(token), own) = row.expect("a select of variables has one row") else { return Ok(Once::First) };
    let (name, own) = (Name::new(name)?, own.unwrap_or_default());
    Ok(Once::Before(Before { name, key: key.to_owned(), token: Token(token), own }))
}

/// Forgets a key, so that its work can be done again. Returns the token with which it was recorded; `None` if it was not.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`]. [`Error::BadName`] and [`Error::BadKey`].
pub async fn forget(connection: &mut Conn, name: &str, key: &str) -> Result<Option<Token>, Error> {
    check_key(key)?;
    Name::new(name)?;
    base(base_row(connection, "").await?)?;
    let mut transaction = connection.start_transaction(TxOpts::default()).await.map_err(failed)?;
    // As bytes: a text would be compared by the collation of the connection.
    let (name, key) = (name.as_bytes(), key.as_bytes());
    let select = "SELECT token FROM fencepost_keys WHERE name = ? AND job_key = ? FOR UPDATE";
    let token: Option<u64> = transaction.exec_first(select, (name, key)).await.map_err(failed)?;
    let delete = "DELETE FROM fencepost_keys WHERE name = ? AND job_key = ?";
    transaction.exec_drop(delete, (name, key)).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(token.map(Token))
}

/// The state of the marks.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
pub async fn status(connection: &mut Conn) -> Result<Status, Error> {
    let base = base(base_row(connection, "").await?)?;
    let select = "SELECT count(*), CAST(coalesce(sum(writes), 0) AS UNSIGNED),
        coalesce(max(greatest(write_floor, write_floor_below)), 0), (SELECT count(*) FROM fencepost_keys) FROM fencepost_marks";
    let row = connection.query_first(select).await.map_err(failed)?;
    let (names, writes, highest, keys) = row.expect("an aggregate has one row");
    Ok(Status { version: VERSION, base, names, writes, highest: Token(highest).max(base), keys: Some(keys) })
}

/// Forgets every mark that is not above the oldest living token, and raises the base floor to that token.
///
/// It waits for the open guarded transactions, and new ones wait for it.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`]. [`Error::Store`] if a transaction stays open for too long: try again.
// Rule: fence-gc
pub async fn forget_below(connection: &mut Conn, oldest_live: Token) -> Result<Forgotten, Error> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await.map_err(failed)?;
    let base = base(base_row(&mut transaction, "FOR UPDATE").await?)?.max(oldest_live);
    let raise = "UPDATE fencepost_base SET base = ?, tidied = tidied + 1";
    transaction.exec_drop(raise, (base.0,)).await.map_err(failed)?;
    let forget = "DELETE FROM fencepost_marks WHERE greatest(write_floor, write_floor_below) <= ?";
    transaction.exec_drop(forget, (base.0,)).await.map_err(failed)?;
    let names = transaction.affected_rows();
    transaction.commit().await.map_err(failed)?;
    Ok(Forgotten { names, base })
}

/// Version and base floor; `None` if nothing is installed.
async fn base_row(connection: &mut impl Queryable, locked: &str) -> Result<Option<(u32, u64)>, Error> {
    // Reading a view would run functions of its creator with the rights of this account.
    let view = "SELECT table_name FROM information_schema.views WHERE table_schema = DATABASE()
        AND table_name IN ('fencepost_base', 'fencepost_marks', 'fencepost_keys')";
    if let Some(view) = connection.query_first::<String, _>(view).await.map_err(failed)? {
        return Err(Error::NotInstalled(format!(
            "{view} is a view that the guard did not create: find out who created it, and drop it"
        )));
    }
    match connection.query_first(format!("SELECT version, base FROM fencepost_base {locked}")).await {
        Err(mysql_async::Error::Server(error)) if error.code == NO_SUCH_TABLE => Ok(None),
        outcome => outcome.map_err(failed),
    }
}

/// The base floor, if the tables are there in the version that this guard knows.
fn base(row: Option<(u32, u64)>) -> Result<Token, Error> {
    match row {
        Some((VERSION, base)) => Ok(Token(base)),
        Some((version, _)) => Err(other_version(version)),
        None => Err(not_installed()),
    }
}

fn other_version(version: u32) -> Error {
    let what_to_do =
        if version > VERSION { "use a newer release of Fencepost" } else { "run `fencepost fence init mysql://...`" };
    Error::NotInstalled(format!(
        "the guard's marks have format version {version}, and this release knows {VERSION}: {what_to_do}"
    ))
}

fn shown_as_json(shown: &Shown) -> serde_json::Value {
    let used_to = match shown.used_to {
        Use::Read => "read",
        Use::Claim => "claim",
        Use::Write => "write",
    };
    json!({ "name": shown.name.as_str(), "token": shown.token.0, "use": used_to })
}

/// The stale token, from the variables that the procedure has set: an error message of MySQL is too short for two names.
async fn stale(transaction: &mut Transaction<'_>) -> Result<Stale, Error> {
    let select = "SELECT @fencepost_stale_name, @fencepost_stale_token, @fencepost_stale_at, @fencepost_stale_highest";
    let row: Option<(String, u64, String, u64)> = transaction.query_first(select).await.map_err(failed)?;
    let (name, token, at, highest) = row.expect("a select of variables has one row");
    Ok(Stale { name: Name::new(&name)?, token: Token(token), at: Name::new(&at)?, highest: Token(highest) })
}

fn failed(error: mysql_async::Error) -> Error {
    match error {
        mysql_async::Error::Server(error) if error.code == MAY_NOT_CALL => Error::NotInstalled(format!(
            "this account may not use the guard: GRANT EXECUTE ON PROCEDURE fencepost_present, and on fencepost_claim, _write, \
             _read, _once and _try_once if it calls them ({})",
            error.message
        )),
        mysql_async::Error::Server(error) if matches!(error.code, NO_SUCH_TABLE | NO_SUCH_PROCEDURE) => not_installed(),
        error => Error::store(error),
    }
}

fn not_installed() -> Error {
    Error::NotInstalled("no guard in this database: run `fencepost fence init mysql://...`".to_owned())
}
