//! Locks in the Postgres that is there already, in three ways.
//!
//! - [`Table`]: a row for each lock, with a holder and an expiry by the database's clock. One statement each, so that it works
//!   through any pooler.
//! - [`Advisory`]: `pg_advisory_lock` on a connection of its own. Those who wait are queued by the server.
//! - [`Row`]: a locked row in an open transaction; [`Row::lock`] takes it in a transaction of the caller.
//!
//! The three do not see each other: everybody who locks a name must go one way. Their tokens come from one counter for each
//! name, so that a team can change its way and tokens go on rising. A counter is raised and on disk before its token is used:
//! one that a rollback or a crash takes back would be given twice, and then the store could not tell two holders apart.

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

/// What makes the tables of the locks, to be read, and to be run by hand where programs may not create any. Running it again does
/// no harm.
pub const SETUP_SQL: &str = include_str!("setup.sql");

/// Raises the counter of a name. The token is on disk when the answer comes.
const NEXT_TOKEN: &str = include_str!("token.sql");

/// How long one statement may take that waits for nobody's lock, and how long a connection. A commit that waits for a slow disk
/// or for a synchronous standby takes seconds now and then.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Data that nobody acknowledges for so long, and the connection is taken for dead: who waits for a lock has no other time-out.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// When too many are connected, somebody may be gone soon.
const CROWDED_RETRY: Duration = Duration::from_secs(1);
/// One number for all who make the tables: "locks".
const SETUP_LOCK: i64 = 0x6c_6f_63_6b_73;

/// What is to be connected to. `postgres+table` and its siblings are names of ours.
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
    // Two hours stand there if nobody said anything.
    let idle = config.get_keepalives_idle().min(SILENCE_MAX / 3);
    config.keepalives_idle(idle).keepalives_interval(SILENCE_MAX / 6).keepalives_retries(4);
    if config.get_application_name().is_none() {
        config.application_name("fencepost");
    }
    Ok(config)
}

/// Makes the tables, unless they are there.
async fn set_up(client: &Client) -> Result<(), Error> {
    if in_time(are_there(client)).await? {
        return Ok(());
    }
    // Two who create the same thing at the same time collide, IF NOT EXISTS or not.
    let script = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({SETUP_LOCK}); {SETUP_SQL}; COMMIT"
    );
    let Err(error) = in_time(client.batch_execute(&script)).await else { return Ok(()) };
    in_time(client.batch_execute("ROLLBACK")).await?;
    // Somebody may have made them by hand, who knows nothing of our number.
    if in_time(are_there(client)).await? {
        return Ok(());
    }
    let message =
        format!("the tables of the locks are missing and cannot be made ({error}). Have this run:\n{SETUP_SQL}");
    Err(Failed::NotTaken { message, retry_after: None }.into())
}

async fn are_there(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let select = "SELECT count(*) = 2 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = 'fencepost_lock' AND relname IN ('locks', 'rows')";
    client.query_typed_one(select, &[]).await?.try_get(0)
}

/// The table takes no others than those from 1 to below 2^53.
fn token(number: i64) -> Token {
    Token(number.unsigned_abs())
}

/// A TTL as the server counts it: in whole milliseconds, and at most about 24 days. Nothing would be no TTL at all.
fn milliseconds(ttl: Duration) -> i32 {
    i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// A TTL as the server keeps it.
fn kept(ttl: Duration) -> Duration {
    Duration::from_millis(milliseconds(ttl).unsigned_abs().into())
}

/// A statement that may have been done when no answer comes.
async fn in_time<T>(call: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
    timeout(CALL_TIMEOUT, call).await.map_err(|_| Error::from(Unknown::NoAnswer))?.map_err(|error| failed(&error))
}

fn failed(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        // It ended in the middle of the statement, and perhaps after the commit.
        Some(db) if is_fatal(db) => Unknown::BrokeOff(said(error)).into(),
        Some(_) => not_taken(error).into(),
        None => Unknown::BrokeOff(said(error)).into(),
    }
}

/// The server said no, and has done nothing.
fn not_taken(error: &tokio_postgres::Error) -> Failed {
    let mut message = said(error);
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        message += ". What a role needs stands in `postgres::SETUP_SQL`: GRANT USAGE ON SCHEMA fencepost_lock, and \
            GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA fencepost_lock";
    }
    let crowded = error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS);
    Failed::NotTaken { message, retry_after: crowded.then_some(CROWDED_RETRY) }
}

/// Nobody was reached, or we were not let in.
fn unreachable(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        // It starts, or goes.
        Some(db) if db.code().code().starts_with("57P") => Failed::Unreachable { last: said(error) }.into(),
        Some(_) => not_taken(error).into(),
        None => Failed::Unreachable { last: said(error) }.into(),
    }
}

/// Whether the session ended with it.
fn is_fatal(error: &DbError) -> bool {
    matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

/// What an error says. The library's own text is "db error" and the like; the cause says more.
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
