//! Postgres: the marks live in the schema `fencepost` of the database, and are checked in the transaction that writes.
//!
//! What decides is in the database, in SQL that can be read and installed by hand ([`SCRIPT`]), and that serves every
//! language alike. This file installs it, calls it and understands its refusals. Triggers that refuse whoever shows no
//! token are there too: `fencepost.guard_rows` for many rows, `fencepost.guard_column` for rows that keep their own
//! token.

use fencepost_core::{Name, Token};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, IsolationLevel, Transaction};

use crate::access::Access;
use crate::error::Error;
use crate::rules::{Stale, Use};
use crate::upkeep::{Forgotten, Installed, Status};

/// What [`install`] runs, to be read, and to be run with `psql -1 -f` where that is how a schema is changed.
pub const SCRIPT: &str = include_str!("postgres.sql");

/// The version of [`SCRIPT`]. In version 1 a role with USAGE could run code with the rights of the installer: upgrade it.
pub const VERSION: u32 = 2;

/// The SQLSTATE of a stale token.
pub const STALE: &str = "FP412";
/// The SQLSTATE where no token was shown.
pub const MISSING: &str = "FP428";

/// One number for all who install into a database: "fence".
const INSTALL_LOCK: i64 = 0x66_65_6e_63_65;

/// Creates the schema `fencepost` with its tables and functions, or upgrades it.
///
/// Two small functions run with the rights of the role that installs them, all others with those of their caller. Roles that
/// write, and owners of guarded tables, need `GRANT USAGE ON SCHEMA fencepost`. What such a role can do, and what it cannot,
/// stands at the top of [`SCRIPT`].
///
/// # Errors
/// [`Error::NotInstalled`] if a newer version has made it, or if the schema belongs to another role.
pub async fn install(client: &mut Client) -> Result<Installed, Error> {
    // A view from before the wait for somebody else who installs would miss what they have made.
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    transaction.batch_execute("SET LOCAL search_path = pg_catalog, pg_temp").await?;
    transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&INSTALL_LOCK, Type::INT8)]).await?;
    // Before anything in the schema is looked at: a view there would run its owner's functions as this role.
    let owner = "SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = 'fencepost'
        AND pg_get_userbyid(nspowner) <> current_user";
    if let Some(other) = transaction.query_typed_opt(owner, &[]).await? {
        let owner: String = other.try_get(0)?;
        let why = format!("the schema fencepost belongs to {owner}: install as that role, or drop the schema");
        return Err(Error::NotInstalled(why));
    }
    let there = "SELECT to_regclass('fencepost.store') IS NOT NULL";
    let there = transaction.query_typed_one(there, &[]).await?.try_get(0)?;
    let before = if there { Some(version_and_base(&transaction).await?.0) } else { None };
    match before {
        Some(version) if version > VERSION => return Err(other_version(version)),
        Some(VERSION) => return Ok(Installed::AlreadyThere),
        _ => transaction.batch_execute(SCRIPT).await?,
    }
    transaction.commit().await?;
    Ok(before.map_or(Installed::New, |from| Installed::Upgraded { from, to: VERSION }))
}

/// Admits an access into this transaction: what follows in it counts only if it commits, together with the marks.
///
/// The check is sent before anything is waited for, so that a write can go with it, in one round trip. If the guard
/// refuses, the transaction is aborted, and the write fails with it:
///
/// ```no_run
/// # use fencepost_fence::{Access, FencingToken, Error, postgres};
/// # async fn example(client: &mut tokio_postgres::Client, token: FencingToken) -> Result<(), Error> {
/// let update = client.prepare("UPDATE wallet SET balance = 400 WHERE id = 7").await?;
/// let transaction = client.transaction().await?;
/// let access = Access::write("wallet:7", token);
/// let write = async { Ok(transaction.execute(&update, &[]).await?) };
/// let ((), _rows) = tokio::try_join!(biased; postgres::admit(&transaction, &access), write)?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// Guard and write are two statements, always. In one (`WITH guard AS (SELECT fencepost.claim(...)) SELECT ...`) the
/// database is seen as it was before the guard waited for the holder ahead, and what that one wrote is missing from the
/// view. A claim is admitted, and then what it is for is read by the next statement.
///
/// From here to the end of the transaction the server ends the session if it idles for longer than
/// `fencepost.set_idle_timeout` says, 5 seconds at first: a holder that is paused in its transaction would bar its
/// successor. Keep that below the time to live of the locks.
///
/// # Errors
/// [`Error::Stale`] if somebody newer has been there; then roll back. [`Error::NotInstalled`] without [`install`], or
/// if the role may not use it. [`Error::Store`] with the [`DbError`] of a serialization failure in a transaction above
/// READ COMMITTED whose view is older than what others have done under these names; then begin it again.
///
/// # Cancellation
/// The check may have been made or not. Roll back.
// Rule: same-transaction
pub async fn admit<Kind>(transaction: &Transaction<'_>, access: &Access<Kind>) -> Result<(), Error> {
    let shown = access.shown()?;
    let names: Vec<&str> = shown.iter().map(|one| one.name.as_str()).collect();
    let tokens: Vec<i64> = shown.iter().map(|one| number(one.token)).collect();
    let uses: Vec<&str> = shown.iter().map(|one| use_of(one.used_to)).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&names, Type::TEXT_ARRAY), (&tokens, Type::INT8_ARRAY), (&uses, Type::TEXT_ARRAY)];
    // With the types said, it is sent at once: nothing is prepared first.
    transaction.execute_typed("SELECT fencepost.present($1, $2, $3)", &parameters).await?;
    Ok(())
}

/// What the marks say.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
pub async fn status(client: &impl GenericClient) -> Result<Status, Error> {
    let (version, base) = version_and_base(client).await?;
    if version != VERSION {
        return Err(other_version(version));
    }
    let select = "SELECT count(*), coalesce(sum(writes), 0)::bigint,
        coalesce(max(greatest(write_floor, write_floor_below)), 0) FROM fencepost.marks";
    let row = client.query_typed_one(select, &[]).await?;
    let highest = Token(count(row.try_get(2)?)).max(base);
    Ok(Status { version, base, names: count(row.try_get(0)?), writes: count(row.try_get(1)?), highest })
}

/// Forgets every mark that says no more than the oldest living token does, and raises the base floor to it.
///
/// It waits for the transactions that have passed the guard, and bars new ones until it is done.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
// Rule: fence-gc
pub async fn forget_below(client: &mut Client, oldest_live: Token) -> Result<Forgotten, Error> {
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    let select = "SELECT names, base FROM fencepost.forget_below($1)";
    let row = transaction.query_typed_one(select, &[(&number(oldest_live), Type::INT8)]).await?;
    transaction.commit().await?;
    Ok(Forgotten { names: count(row.try_get(0)?), base: Token(count(row.try_get(1)?)) })
}

/// What the database says, understood: also what the triggers say to a write.
impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        // The library's own error says no more than "db error".
        let Some(said) = error.as_db_error() else { return Error::store(error) };
        if let Some(stale) = stale(said) {
            return Error::Stale(stale);
        }
        let code = said.code();
        let names_us = said.message().contains("fencepost");
        if names_us && *code == SqlState::INSUFFICIENT_PRIVILEGE {
            let why = format!("this role may not use the guard: GRANT USAGE ON SCHEMA fencepost ({})", said.message());
            return Error::NotInstalled(why);
        }
        let missing = [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE];
        if names_us && missing.contains(code) {
            let why = "no marks in this database: run `fencepost fence init postgres://...`";
            return Error::NotInstalled(why.to_owned());
        }
        Error::store(said.clone())
    }
}

/// The refusal that the detail tells as JSON; none if it is something else.
fn stale(said: &DbError) -> Option<Stale> {
    if said.code().code() != STALE {
        return None;
    }
    let detail: serde_json::Value = serde_json::from_str(said.detail()?).ok()?;
    let name = |key: &str| Name::new(detail.get(key)?.as_str()?).ok();
    let token = |key: &str| detail.get(key)?.as_u64().map(Token);
    Some(Stale { name: name("name")?, token: token("token")?, at: name("at")?, highest: token("highest")? })
}

async fn version_and_base(client: &impl GenericClient) -> Result<(u32, Token), Error> {
    let row = client.query_typed_one("SELECT version::bigint, base FROM fencepost.store", &[]).await?;
    let version = u32::try_from(row.try_get::<_, i64>(0)?).map_err(Error::store)?;
    Ok((version, Token(count(row.try_get(1)?))))
}

fn other_version(version: u32) -> Error {
    let what_to_do = if version > VERSION { "use a newer one" } else { "run `fencepost fence init postgres://...`" };
    Error::NotInstalled(format!("the marks are of version {version} and this guard knows {VERSION}: {what_to_do}"))
}

fn use_of(used_to: Use) -> &'static str {
    match used_to {
        Use::Read => "read",
        Use::Claim => "claim",
        Use::Write => "write",
    }
}

/// A number that is too great is none of the lock service's tokens, and the database refuses it.
fn number(token: Token) -> i64 {
    i64::try_from(token.0).unwrap_or(i64::MAX)
}

/// Tokens and counts are never negative there.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
