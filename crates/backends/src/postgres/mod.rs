//! Locks in Postgres, in three ways.
//!
//! - [`Table`]: a row for each lock, with a holder and an expiry by the database's clock. Every step is one statement, so it works
//!   through any pooler.
//! - [`Advisory`]: `pg_advisory_lock`, one connection for each lock. The server queues the waiters.
//! - [`Row`]: a locked row in an open transaction; [`Row::lock`] locks it in a transaction of the caller.
//!
//! The three ways do not exclude each other: all clients must lock a name in the same way. Their tokens come from one counter for
//! each name, so tokens keep rising when a team changes its way. The counter is on disk before its token is used. If a rollback or
//! a crash could undo it, a token would be given twice, and the store could not tell two holders apart.

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use fencepost::{Error, Failed, Token, Unknown};
use tokio::time::timeout;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::{Client, Config};

use crate::address::without_password;

mod advisory;
mod link;
mod pinned;
mod row;
mod table;

pub use advisory::{Advisory, advisory_key};
pub use row::{Row, RowLock, Wait};
pub use table::Table;

/// The SQL that creates the tables of the locks. Run it by hand where programs may not create tables. Running it again does no
/// harm.
pub const SETUP_SQL: &str = include_str!("setup.sql");

/// Increases the counter of a name. The token is on disk when the answer comes.
const NEXT_TOKEN: &str = include_str!("token.sql");

/// Timeout of a connection attempt, and of a statement that does not wait for a lock. A commit that waits for a slow disk or for a
/// synchronous standby can take seconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection whose data is not acknowledged for this long counts as dead. A waiter has no other timeout.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// When to retry after "too many connections": another client may have disconnected by then.
const CROWDED_RETRY: Duration = Duration::from_secs(1);
/// The advisory lock of all programs that create the tables: "locks" in ASCII.
const SETUP_LOCK: i64 = 0x6c_6f_63_6b_73;

/// The settings of a connection to an address. The scheme, for example `postgres+table`, is ours and is replaced.
fn config(address: &str) -> Result<Config, crate::Error> {
    let bad = |why: String| crate::Error::BadAddress { address: without_password(address), why };
    let (_, place) = address.split_once("://").ok_or_else(|| bad("it has no `://`".to_owned()))?;
    let mut config: Config = format!("postgres://{place}").parse().map_err(|error| bad(said(&error)))?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CALL_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE_MAX);
    }
    // The default of the library is two hours.
    let idle = config.get_keepalives_idle().min(SILENCE_MAX / 3);
    config.keepalives_idle(idle).keepalives_interval(SILENCE_MAX / 6).keepalives_retries(4);
    if config.get_application_name().is_none() {
        config.application_name("fencepost");
    }
    Ok(config)
}

/// Creates the tables if they are missing.
async fn set_up(client: &Client) -> Result<(), Error> {
    if in_time(are_there(client)).await? {
        return Ok(());
    }
    // Without this lock, two programs that create the tables at the same time collide, even with IF NOT EXISTS.
    let script = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({SETUP_LOCK}); {SETUP_SQL}; COMMIT"
    );
    let Err(error) = in_time(client.batch_execute(&script)).await else { return Ok(()) };
    in_time(client.batch_execute("ROLLBACK")).await?;
    // An operator may have created them by hand at the same time, without `SETUP_LOCK`.
    if in_time(are_there(client)).await? {
        return Ok(());
    }
    let message = format!(
        "the lock tables are missing and cannot be created ({error}). Ask an administrator to run:\n{SETUP_SQL}"
    );
    Err(Failed::NotTaken { message, retry_after: None }.into())
}

async fn are_there(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let select = "SELECT count(*) = 2 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = 'fencepost_lock' AND relname IN ('locks', 'rows')";
    client.query_typed_one(select, &[]).await?.try_get(0)
}

/// The table has a constraint: tokens are at least 1 and below 2^53.
fn token(number: i64) -> Token {
    Token(number.unsigned_abs())
}

/// A TTL as the server counts it: in whole milliseconds, at most about 24 days, and at least 1, because 0 means no TTL.
fn milliseconds(ttl: Duration) -> i32 {
    i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// A TTL after the rounding of [`milliseconds`].
fn kept(ttl: Duration) -> Duration {
    Duration::from_millis(milliseconds(ttl).unsigned_abs().into())
}

/// Runs a statement with a timeout. If no answer comes, the server may still have executed it.
async fn in_time<T>(call: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
    timeout(CALL_TIMEOUT, call).await.map_err(|_| Error::from(Unknown::NoAnswer))?.map_err(|error| failed(&error))
}

fn failed(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        // The session ended during the statement, perhaps after the commit.
        Some(db) if is_fatal(db) => Unknown::BrokeOff(said(error)).into(),
        Some(_) => not_taken(error).into(),
        None => Unknown::BrokeOff(said(error)).into(),
    }
}

/// The server refused, and has done nothing.
fn not_taken(error: &tokio_postgres::Error) -> Failed {
    let mut message = said(error);
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        message += ". The role needs the rights in `postgres::SETUP_SQL`: GRANT USAGE ON SCHEMA fencepost_lock, and \
            GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA fencepost_lock";
    }
    let crowded = error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS);
    Failed::NotTaken { message, retry_after: crowded.then_some(CROWDED_RETRY) }
}

/// The error of a connection attempt: no server answered, or the server rejected the connection.
fn unreachable(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        // The server is starting or shutting down.
        Some(db) if db.code().code().starts_with("57P") => Failed::Unreachable { last: said(error) }.into(),
        Some(_) => not_taken(error).into(),
        None => Failed::Unreachable { last: said(error) }.into(),
    }
}

/// Whether the error ended the session.
fn is_fatal(error: &DbError) -> bool {
    matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

/// The text of an error. The library's own text is only "db error" or similar; the cause says more.
fn said(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => match db.hint() {
            Some(hint) => format!("{}. {hint}", db.message()),
            None => db.message().to_owned(),
        },
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}
