//! Postgres: the marks live in the schema `fencepost` of the database, and are checked in the transaction that writes.
//!
//! The database itself decides, in SQL that can be read and installed by hand ([`SCRIPT`]) and that serves every language.
//! This file installs the SQL, calls it and parses its refusals. It decides nothing.
//!
//! [`once`] records the key of a piece of work in the transaction of the work, and refuses the second.
//!
//! The SQL also has triggers that refuse a write without a token: `fencepost.guard_rows` for many rows,
//! `fencepost.guard_column` for rows that keep their own token.

use fencepost_core::{FencingToken, Name, Token};
use futures_util::future;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, IsolationLevel, Transaction};

use crate::access::Access;
use crate::error::Error;
use crate::once::{Before, Once, check_key};
use crate::rules::{Stale, Use};
use crate::upkeep::{Forgotten, Installed, Status};

/// The SQL that [`install`] runs: for reviews, and for teams that change schemas by hand, with `psql -1 -f`.
pub const SCRIPT: &str = include_str!("postgres.sql");

/// The version of [`SCRIPT`]. In version 1 a role with USAGE could run code with the rights of the installer: upgrade it.
pub const VERSION: u32 = 3;

/// The SQLSTATE of a stale token.
pub const STALE: &str = "FP412";
/// The SQLSTATE if the work of a key was done before.
pub const BEFORE: &str = "FP208";
/// The SQLSTATE if no token was shown.
pub const MISSING: &str = "FP428";

/// The advisory lock that every installation into a database takes. The number spells "fence".
const INSTALL_LOCK: i64 = 0x66_65_6e_63_65;

/// Creates the schema `fencepost` with its tables and functions, or upgrades it.
///
/// Three small functions run with the rights of the role that installs them. All others run with the rights of their caller.
/// Roles that write, and owners of guarded tables, need `GRANT USAGE ON SCHEMA fencepost`. The top of [`SCRIPT`] says what
/// such a role can and cannot do.
///
/// # Errors
/// [`Error::NotInstalled`] if a newer version has created it, or if the schema belongs to another role.
pub async fn install(client: &mut Client) -> Result<Installed, Error> {
    // READ COMMITTED: a view from before the wait for another installation would miss what that one has created.
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    transaction.batch_execute("SET LOCAL search_path = pg_catalog, pg_temp").await?;
    transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&INSTALL_LOCK, Type::INT8)]).await?;
    // Check the owner before reading anything in the schema: a view there would run its owner's functions as this role.
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

/// Admits an access into this transaction. The marks and the writes that follow take effect together, when it commits.
///
/// The check is sent without waiting first, so a write can go with it in the same round trip. If the guard refuses, the
/// transaction is aborted, and the write fails with it:
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
/// Guard and write are always two statements. A single statement (`WITH guard AS (SELECT fencepost.claim(...)) SELECT ...`)
/// sees the database as it was before the guard waited for the holder ahead, so it misses what that holder wrote. For the
/// same reason, first admit a claim, and read with the next statement.
///
/// From here to the end of the transaction, the server ends the session if it idles for longer than
/// `fencepost.set_idle_timeout` allows, 5 seconds by default: a holder that is paused in its transaction would block its
/// successor. Keep that time below the TTL of the locks.
///
/// # Errors
/// [`Error::Stale`] if the store has seen a newer token; then roll back. [`Error::NotInstalled`] without [`install`], or
/// if the role may not use the guard. [`Error::Store`] with the [`DbError`] of a serialization failure, if the transaction
/// is above READ COMMITTED and its view is older than what others have done under these names; then start it again.
///
/// # Cancellation
/// The check may or may not have run. Roll back.
// Rule: same-transaction
pub async fn admit<Kind>(transaction: &Transaction<'_>, access: &Access<Kind>) -> Result<(), Error> {
    let shown = access.shown()?;
    let names: Vec<&str> = shown.iter().map(|one| one.name.as_str()).collect();
    let tokens: Vec<i64> = shown.iter().map(|one| number(one.token)).collect();
    let uses: Vec<&str> = shown.iter().map(|one| use_of(one.used_to)).collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&names, Type::TEXT_ARRAY), (&tokens, Type::INT8_ARRAY), (&uses, Type::TEXT_ARRAY)];
    // With explicit types nothing is prepared first, so the statement is sent at once.
    transaction.execute_typed("SELECT fencepost.present($1, $2, $3)", &parameters).await?;
    Ok(())
}

/// Records in this transaction that the work of a key is done, and shows the token of the lock that it is done under.
///
/// The row and the work commit together. If the key was recorded before, the transaction is aborted: whatever it did is undone.
/// So give each transaction a key of its own. A job that commits after each of its items has keys such as `2026-11/40`.
///
/// ```no_run
/// # use fencepost_fence::{FencingToken, Error, postgres};
/// # async fn example(client: &mut tokio_postgres::Client, token: FencingToken) -> Result<(), Error> {
/// let transaction = client.transaction().await?;
/// postgres::once(&transaction, "billing", "2026-11", token).await?;
/// transaction.execute("INSERT INTO bill SELECT id, due FROM account", &[]).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// It shows the token as [`admit`] does with [`Access::write`], so that call is not needed for this name. If the work was decided
/// from several locks, admit all of them first. Its two statements are sent without waiting, so the work can go with them in the
/// same round trip, as with [`admit`].
///
/// If `synchronous_commit` is off, it is turned on for this transaction.
///
/// Only the token of an exclusive lock records work. A reader's token does not compile,
///
/// ```compile_fail,E0308
/// # use fencepost_fence::{Error, ReadToken, postgres};
/// # async fn example(transaction: &tokio_postgres::Transaction<'_>) -> Result<(), Error> {
/// let reader: ReadToken = "42".parse().unwrap();
/// postgres::once(transaction, "billing", "2026-11", reader).await
/// # }
/// ```
///
/// nor does a plain number, nor a connection without a transaction:
///
/// ```compile_fail,E0308
/// # use fencepost_fence::{Error, FencingToken, postgres};
/// # async fn example(client: &tokio_postgres::Client, token: FencingToken) -> Result<(), Error> {
/// postgres::once(client, "billing", "2026-11", token).await
/// # }
/// ```
///
/// # Errors
/// [`Error::Before`] if the work was done before. Its `own` tells whether with this same token: then a commit of this holder, whose
/// answer was lost, took effect. [`Error::BadKey`] if the key is not valid. [`Error::Store`] with SQLSTATE `FP400` if this
/// transaction itself has recorded the key: it has not committed anything yet. All others as [`admit`]. After a serialization
/// failure, a deadlock or a lost connection, run the transaction again from its start.
///
/// # Cancellation
/// The key may or may not be recorded in the transaction. Roll back.
// Rule: once
pub async fn once(transaction: &Transaction<'_>, name: &str, key: &str, token: FencingToken) -> Result<(), Error> {
    check_key(key)?;
    let access = Access::write(name, token);
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&key, Type::TEXT)];
    let record = async {
        transaction.execute_typed("SELECT fencepost.once($1, $2)", &parameters).await?;
        Ok(())
    };
    // The answer to the first statement comes first, so a stale token is reported as such.
    future::try_join(admit(transaction, &access), record).await?;
    Ok(())
}

/// As [`once`], but the transaction goes on if the key was recorded before: for batches, which leave out what was done.
///
/// ```no_run
/// # use fencepost_fence::{FencingToken, Error, Once, postgres};
/// # async fn example(client: &mut tokio_postgres::Client, token: FencingToken) -> Result<(), Error> {
/// let transaction = client.transaction().await?;
/// for account in 1..=40_i64 {
///     let key = format!("2026-11/{account}");
///     if postgres::try_once(&transaction, "billing", &key, token).await? == Once::First {
///         transaction.execute("INSERT INTO bill SELECT id, due FROM account WHERE id = $1", &[&account]).await?;
///     }
/// }
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`once`], but for [`Error::Before`]. A key that this transaction itself has recorded counts as recorded before, with the
/// caller's own token.
///
/// # Cancellation
/// As [`once`].
// Rule: once
pub async fn try_once(
    transaction: &Transaction<'_>,
    name: &str,
    key: &str,
    token: FencingToken,
) -> Result<Once, Error> {
    check_key(key)?;
    let (named, access) = (Name::new(name)?, Access::write(name, token));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&key, Type::TEXT)];
    let record = async { Ok(transaction.query_typed_one("SELECT fencepost.record_once($1, $2)", &parameters).await?) };
    let ((), row) = future::try_join(admit(transaction, &access), record).await?;
    let own = Token::from(token);
    Ok(match row.try_get::<_, Option<i64>>(0)?.map(count) {
        None => Once::First,
        // Zero: this transaction itself has recorded it.
        Some(before) => {
            let before = if before == 0 { own } else { Token(before) };
            Once::Before(Before { name: named, key: key.to_owned(), token: before, own: before == own })
        }
    })
}

/// Forgets a key, so that its work can be done again. Returns the token with which it was recorded; `None` if it was not.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`]. [`Error::BadName`] and [`Error::BadKey`].
pub async fn forget(client: &impl GenericClient, name: &str, key: &str) -> Result<Option<Token>, Error> {
    check_key(key)?;
    Name::new(name)?;
    let (version, _) = version_and_base(client).await?;
    if version != VERSION {
        return Err(other_version(version));
    }
    let forget = "SELECT fencepost.forget($1, $2)";
    let row = client.query_typed_one(forget, &[(&name, Type::TEXT), (&key, Type::TEXT)]).await?;
    Ok(row.try_get::<_, Option<i64>>(0)?.map(|token| Token(count(token))))
}

/// The state of the marks.
///
/// # Errors
/// [`Error::NotInstalled`] without [`install`].
pub async fn status(client: &impl GenericClient) -> Result<Status, Error> {
    let (version, base) = version_and_base(client).await?;
    if version != VERSION {
        return Err(other_version(version));
    }
    let select = "SELECT count(*), coalesce(sum(writes), 0)::bigint,
        coalesce(max(greatest(write_floor, write_floor_below)), 0), (SELECT count(*) FROM fencepost.keys)
        FROM fencepost.marks";
    let row = client.query_typed_one(select, &[]).await?;
    let highest = Token(count(row.try_get(2)?)).max(base);
    let (names, writes, keys) = (count(row.try_get(0)?), count(row.try_get(1)?), count(row.try_get(3)?));
    Ok(Status { version, base, names, writes, highest, keys: Some(keys) })
}

/// Forgets every mark that is not above the oldest living token, and raises the base floor to that token.
///
/// It waits for the transactions that have passed the guard, and blocks new ones until it is done.
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

/// Recognises the refusals of the functions, those of the triggers to a write, and that of [`once`].
impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        // The library's own error text is only "db error".
        let Some(said) = error.as_db_error() else { return Error::store(error) };
        if let Some(stale) = stale(said) {
            return Error::Stale(stale);
        }
        if let Some(before) = before(said) {
            return Error::Before(before);
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

/// The refusal from the JSON in the error's detail; `None` if the error is not about a stale token.
fn stale(said: &DbError) -> Option<Stale> {
    if said.code().code() != STALE {
        return None;
    }
    let detail: serde_json::Value = serde_json::from_str(said.detail()?).ok()?;
    let name = |key: &str| Name::new(detail.get(key)?.as_str()?).ok();
    let token = |key: &str| detail.get(key)?.as_u64().map(Token);
    Some(Stale { name: name("name")?, token: token("token")?, at: name("at")?, highest: token("highest")? })
}

/// The refusal from the JSON in the error's detail; `None` if the error is not about a key that was recorded before.
fn before(said: &DbError) -> Option<Before> {
    if said.code().code() != BEFORE {
        return None;
    }
    let detail: serde_json::Value = serde_json::from_str(said.detail()?).ok()?;
    let text = |key: &str| detail.get(key)?.as_str();
    let token = Token(detail.get("token")?.as_u64()?);
    Some(Before {
        name: Name::new(text("name")?).ok()?,
        key: text("key")?.to_owned(),
        token,
        own: detail.get("own")?.as_bool()?,
    })
}

async fn version_and_base(client: &impl GenericClient) -> Result<(u32, Token), Error> {
    let row = client.query_typed_one("SELECT version::bigint, base FROM fencepost.store", &[]).await?;
    let version = u32::try_from(row.try_get::<_, i64>(0)?).map_err(Error::store)?;
    Ok((version, Token(count(row.try_get(1)?))))
}

fn other_version(version: u32) -> Error {
    let what_to_do = if version > VERSION {
        "use a newer release of Fencepost"
    } else {
        "run `fencepost fence init postgres://...`"
    };
    Error::NotInstalled(format!(
        "the guard's marks have format version {version}, and this release knows {VERSION}: {what_to_do}"
    ))
}

fn use_of(used_to: Use) -> &'static str {
    match used_to {
        Use::Read => "read",
        Use::Claim => "claim",
        Use::Write => "write",
    }
}

/// A number that is too large for the database becomes its largest. No token is that large, so the database refuses it.
fn number(token: Token) -> i64 {
    i64::try_from(token.0).unwrap_or(i64::MAX)
}

/// Tokens and counts in the database are never negative.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
