//! MySQL and MariaDB: the marks live in two tables, and a procedure checks them in the transaction that writes.
//!
//! Tested with MariaDB 10.11. The SQL keeps to what MySQL 8.0 has as well, and has not been run there.
//!
//! - **Call the guard first.** A transaction that has read before, and was overtaken since, is refused: under REPEATABLE READ,
//!   the default, it would go on to decide from what it saw then. // Rule: claim-before-read
//! - **Roll back when it is refused.** MySQL keeps a transaction open after an error. Here, dropping the [`Transaction`] does it.
//! - **Keep the transaction short.** A holder that is paused in the middle of it bars the next one. MariaDB ends it after
//!   `idle_seconds` (in the table `fencepost_base`, 5 at first). MySQL cannot: give its connections a short `wait_timeout`.
//! - **Be ready to run it again.** All names are locked in one order, so guarded transactions do not wait for each other in a
//!   circle. Only if several wait for a new name whose first access is rolled back, InnoDB ends all but one: error 1213.
//!
//! The same procedures serve every other language: `CALL fencepost_claim(name, token)`, `fencepost_write`, `fencepost_read`, and
//! `fencepost_present` for several names at once. They fail with SQLSTATE `FP412` if a token is stale.

use fencepost_core::{Name, Token};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Transaction, TxOpts};
use serde_json::json;

use crate::access::Access;
use crate::error::Error;
use crate::rules::{Shown, Stale, Use};
use crate::upkeep::{Forgotten, Installed, SCHEMA_VERSION, Status};

/// What [`install`] runs, to be read, and to be run with `mariadb` or `mysql` where that is how a schema is changed.
pub const SCRIPT: &str = include_str!("mysql.sql");
/// The file separates its statements as the command line clients want it.
const DELIMITER: &str = "\n//\n";

/// MySQL's numbers for a table and for a procedure that does not exist.
const NO_SUCH_TABLE: u16 = 1146;
const NO_SUCH_PROCEDURE: u16 = 1305;

/// Creates the tables and procedures of the guard in the database of this connection, if they are not there.
///
/// # Errors
/// [`Error::NotInstalled`] if a newer version has made them.
pub async fn install(connection: &mut Conn) -> Result<Installed, Error> {
    // Statements that create things commit one by one, so a lock keeps others out. It ends with the connection if nothing else.
    let lock = "SELECT GET_LOCK('fencepost_install', 60)";
    if connection.query_first(lock).await.map_err(failed)? != Some(1) {
        return Err(Error::store("somebody else has been installing the guard for a minute: try again"));
    }
    // Procedures keep the mode that they were created in, and some modes read SQL differently.
    let mode = "SET @fencepost_sql_mode = @@sql_mode, SESSION sql_mode = 'STRICT_TRANS_TABLES'";
    connection.query_drop(mode).await.map_err(failed)?;
    let installed = install_alone(connection).await;
    connection.query_drop("SET SESSION sql_mode = @fencepost_sql_mode").await.map_err(failed)?;
    connection.query_drop("DO RELEASE_LOCK('fencepost_install')").await.map_err(failed)?;
    installed
}

async fn install_alone(connection: &mut Conn) -> Result<Installed, Error> {
    if let Some(row) = base_row(connection, "").await? {
        base(Some(row))?;
        return Ok(Installed::AlreadyThere);
    }
    let (_, statements) = SCRIPT.split_once("\nDELIMITER //\n").expect("the file names its delimiter");
    for statement in statements.split_terminator(DELIMITER) {
        connection.query_drop(statement).await.map_err(failed)?;
    }
    Ok(Installed::New)
}

/// Admits an access into this transaction: what follows in it counts only if it commits, together with the marks.
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
/// [`Error::Stale`] if somebody newer has been there; then roll back. [`Error::NotInstalled`] without [`install`].
/// [`Error::Store`] if the transaction has read before and was overtaken, or lost a deadlock: then run it again from its start.
///
/// # Cancellation
/// The server may have admitted it or not: roll back.
// Rule: same-transaction
pub async fn admit<Kind>(transaction: &mut Transaction<'_>, access: &Access<Kind>) -> Result<(), Error> {
    let shown = access.shown()?.iter().map(shown_as_json).collect::<serde_json::Value>().to_string();
    match transaction.exec_drop("CALL fencepost_present(?)", (shown,)).await {
        Err(mysql_async::Error::Server(error)) if error.state == "FP412" => Err(stale(transaction).await?.into()),
        outcome => outcome.map_err(failed),
    }
}

/// What the marks say.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
pub async fn status(connection: &mut Conn) -> Result<Status, Error> {
    let base = base(base_row(connection, "").await?)?;
    let select = "SELECT count(*), CAST(coalesce(sum(writes), 0) AS UNSIGNED),
        coalesce(max(greatest(write_floor, write_floor_below)), 0) FROM fencepost_marks";
    let row = connection.query_first(select).await.map_err(failed)?;
    let (names, writes, highest) = row.expect("an aggregate has one row");
    Ok(Status { version: SCHEMA_VERSION, base, names, writes, highest: Token(highest).max(base) })
}

/// Forgets every mark that says no more than the oldest living token does, and raises the base floor to it.
///
/// It waits for the guarded transactions under way, and new ones wait for it.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`]. [`Error::Store`] if some transaction stays open for too long: try again.
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

/// Version and base floor; none if nothing is installed.
async fn base_row(connection: &mut impl Queryable, locked: &str) -> Result<Option<(u32, u64)>, Error> {
    match connection.query_first(format!("SELECT version, base FROM fencepost_base {locked}")).await {
        Err(mysql_async::Error::Server(error)) if error.code == NO_SUCH_TABLE => Ok(None),
        outcome => outcome.map_err(failed),
    }
}

/// The base floor, if the tables are there in the form that we know.
fn base(row: Option<(u32, u64)>) -> Result<Token, Error> {
    match row {
        Some((SCHEMA_VERSION, base)) => Ok(Token(base)),
        Some((version, _)) => {
            let why =
                format!("the marks are of version {version} and this guard knows {SCHEMA_VERSION}: use a newer one");
            Err(Error::NotInstalled(why))
        }
        None => Err(not_installed()),
    }
}

fn shown_as_json(shown: &Shown) -> serde_json::Value {
    let used_to = match shown.used_to {
        Use::Read => "read",
        Use::Claim => "claim",
        Use::Write => "write",
    };
    json!({ "name": shown.name.as_str(), "token": shown.token.0, "use": used_to })
}

/// What the procedure has left behind about the stale token: an error message of MySQL is too short for two names.
async fn stale(transaction: &mut Transaction<'_>) -> Result<Stale, Error> {
    let select = "SELECT @fencepost_stale_name, @fencepost_stale_token, @fencepost_stale_at, @fencepost_stale_highest";
    let row: Option<(String, u64, String, u64)> = transaction.query_first(select).await.map_err(failed)?;
    let (name, token, at, highest) = row.expect("a select of variables has one row");
    Ok(Stale { name: Name::new(&name)?, token: Token(token), at: Name::new(&at)?, highest: Token(highest) })
}

fn failed(error: mysql_async::Error) -> Error {
    match error {
        mysql_async::Error::Server(error) if matches!(error.code, NO_SUCH_TABLE | NO_SUCH_PROCEDURE) => not_installed(),
        error => Error::store(error),
    }
}

fn not_installed() -> Error {
    Error::NotInstalled("no guard in this database: run `fencepost fence init mysql://...`".to_owned())
}
