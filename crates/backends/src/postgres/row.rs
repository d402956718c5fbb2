//! Row locks: `SELECT ... FOR UPDATE`, held by a transaction.
//!
//! Prefer [`Row::lock`], in the transaction that also does the work: lock and work end together. As a [`Backend`] it keeps a
//! connection with an open transaction for each lock. The server ends a transaction that idles for the TTL
//! (`idle_in_transaction_session_timeout`). An open transaction stops VACUUM from cleaning up after all later ones, in the whole
//! database. So such a lock must be short; for long work use `postgres+advisory://`.
//!
//! A transaction may be rolled back after its holder has used the token elsewhere, and that would also undo a counter in it. So the
//! counter is increased and committed on another connection while the row is locked. After that we check that the row is still
//! locked: a token that we got after the loss of the lock might be higher than the token of the next holder.

use std::fmt;
use std::marker::PhantomData;

use async_trait::async_trait;
use fencepost::{Error, Exclusive, Failed, FencingToken, Lost, Name, ReadToken, Refused, Shared, Token, clock};
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::link::Link;
use super::pinned::{Held, Pinned, PinnedLease, nothing_done};
use super::{config, failed, in_time, kept, milliseconds};
use crate::backend::{Ask, Backend, Lease, Mode};
use crate::promises::System;

/// How often the server checks whether a waiting client is still connected.
const CHECK_MS: u32 = 2_000;

/// Row locks.
#[derive(Clone, Debug)]
pub struct Row {
    /// For statements that must be committed while a row is locked.
    link: Link,
}

/// What to do when another transaction holds the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for it, as long as the settings of the transaction allow.
    Wait,
    /// Return `None`. The transaction stays usable.
    NoWait,
}

/// A row that a transaction of the caller has locked. Using it after the end of the transaction does not compile:
///
/// ```compile_fail,E0505
/// # use fencepost_backends::postgres::{Row, Wait};
/// # async fn example(row: Row, transaction: tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// let lock = row.lock(&transaction, "wallet:7", Wait::NoWait).await?.expect("it is free");
/// transaction.commit().await?;
/// println!("{}", lock.token());
/// # Ok(())
/// # }
/// ```
#[must_use = "the row stays locked until the transaction ends"]
pub struct RowLock<'t, M> {
    token: Token,
    held_by: PhantomData<&'t ()>,
    mode: PhantomData<fn() -> M>,
}

impl RowLock<'_, Exclusive> {
    /// The fencing token, for stores outside the transaction.
    pub fn token(&self) -> FencingToken {
        FencingToken::of_exclusive(self.token)
    }
}

impl RowLock<'_, Shared> {
    /// The token for reads.
    pub fn token(&self) -> ReadToken {
        ReadToken::of_grant(self.token)
    }
}

impl Row {
    /// Connects to `postgres+row://user@host:port/database`, and creates the tables if they are missing.
    ///
    /// # Errors
    /// [`crate::Error::BadAddress`] if the address is not valid, [`Failed::Unreachable`] if no server answers. [`Failed::NotTaken`]
    /// if the tables are missing and the role may not create them; it contains the SQL to run.
    pub async fn connect(address: &str) -> Result<Row, crate::Error> {
        Ok(Row { link: Link::open(config(address)?).await? })
    }

    /// Locks a name exclusively in a transaction of the caller. `None` if another transaction holds it and `wait` says not to wait.
    ///
    /// The lock ends with the transaction, by commit or rollback. Writes of this transaction need no token: they are committed only
    /// if the lock was held to the end. The token is for writes to other stores. It is never given again, even if this transaction
    /// is rolled back.
    ///
    /// ```no_run
    /// # use fencepost_backends::postgres::{Row, Wait};
    /// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let rows = Row::connect("postgres+row://app@127.0.0.1/app").await?;
    /// let transaction = client.transaction().await?;
    /// if let Some(lock) = rows.lock(&transaction, "wallet:7", Wait::NoWait).await? {
    ///     transaction.execute("UPDATE wallet SET balance = 400 WHERE id = 7", &[]).await?;
    ///     println!("write to the other stores with token {}", lock.token());
    /// }
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the isolation level is above READ COMMITTED: the transaction would still see the database as it was
    /// before the wait. Also if the transaction is in another database than this connection. After an error of the database the
    /// transaction can only be rolled back.
    ///
    /// # Cancellation
    /// The row may or may not be locked. Roll the transaction back.
    pub async fn lock<'t>(
        &self,
        transaction: &'t Transaction<'_>,
        name: &str,
        wait: Wait,
    ) -> Result<Option<RowLock<'t, Exclusive>>, Error> {
        self.lock_in(transaction, name, Mode::Exclusive, wait).await
    }

    /// As [`Row::lock`], for a lock that several readers may hold together.
    ///
    /// # Errors
    /// As [`Row::lock`].
    ///
    /// # Cancellation
    /// As [`Row::lock`].
    pub async fn share<'t>(
        &self,
        transaction: &'t Transaction<'_>,
        name: &str,
        wait: Wait,
    ) -> Result<Option<RowLock<'t, Shared>>, Error> {
        self.lock_in(transaction, name, Mode::Shared, wait).await
    }

    async fn lock_in<'t, M>(
        &self,
        transaction: &'t Transaction<'_>,
        name: &str,
        mode: Mode,
        wait: Wait,
    ) -> Result<Option<RowLock<'t, M>>, Error> {
        let bad_name = |why| Refused::BadName { name: name.chars().take(64).collect(), why };
        let name = Name::new(name).map_err(bad_name)?;
        let parameters = [(&name.as_str() as _, Type::TEXT)];
        self.make(&name).await?;
        let select = "SELECT current_setting('transaction_isolation') = 'read committed',
            EXISTS (SELECT FROM fencepost_lock.rows WHERE name = $1)";
        let row = in_time(transaction.query_typed_one(select, &parameters)).await?;
        let is = |column: usize| row.try_get::<_, bool>(column).map_err(|error| failed(&error));
        if !is(0)? {
            let why = "a row lock needs READ COMMITTED: at a higher level the transaction sees old data after the wait";
            return Err(Refused::Invalid(why.to_owned()).into());
        }
        if !is(1)? {
            let why = "the transaction is in another database than these row locks: connect both to the same database";
            return Err(Refused::Invalid(why.to_owned()).into());
        }
        let locked = transaction.query_typed_opt(locking(mode, wait), &parameters).await;
        if locked.map_err(|error| failed(&error))?.is_none() {
            return Ok(None);
        }
        let token = self.link.next_token(&name).await?;
        in_time(transaction.query_typed_one("SELECT 1", &[])).await?;
        Ok(Some(RowLock { token, held_by: PhantomData, mode: PhantomData }))
    }

    /// Creates the row of a name and commits it at once. While it is not committed, other clients would wait for it, even with
    /// `NoWait`.
    async fn make(&self, name: &Name) -> Result<(), Error> {
        let insert = "INSERT INTO fencepost_lock.rows (name) VALUES ($1) ON CONFLICT (name) DO NOTHING";
        self.link.row(insert, &[(&name.as_str(), Type::TEXT)]).await?;
        Ok(())
    }

    async fn take(&self, ask: &Ask, wait: Wait) -> Result<Option<Box<dyn Lease>>, Error> {
        let pinned = Pinned::open(self.link.config()).await?;
        self.make(&ask.name).await?;
        let begin = include_str!("begin.sql")
            .replace("TTL_MS", &milliseconds(ask.ttl).to_string())
            .replace("CHECK_MS", &CHECK_MS.to_string());
        nothing_done(in_time(pinned.client.batch_execute(&begin)).await)?;
        let undo = pinned.cancel_if_dropped();
        // No timeout here: a caller that stops waiting drops this future.
        let locking = locking(ask.mode, wait);
        let locked = pinned.client.query_typed_opt(locking, &[(&ask.name.as_str(), Type::TEXT)]).await;
        let Some(row) = nothing_done(locked.map_err(|error| failed(&error)))? else {
            undo.disarm();
            return Ok(None);
        };
        let transaction = nothing_done(row.try_get(0).map_err(|error| failed(&error)))?;
        let locked = LockedRow { transaction };
        let token = nothing_done(self.link.next_token(&ask.name).await)?;
        let granted_at = clock::now();
        if !nothing_done(in_time(locked.is_held(&pinned)).await)? {
            return Err(Lost::Gone.into());
        }
        undo.disarm();
        Ok(Some(Box::new(PinnedLease::new(pinned, locked, token, granted_at, kept(ask.ttl)))))
    }
}

/// The SQL that locks the row of a name and returns the id of the transaction. It uses SKIP LOCKED, which leaves the transaction
/// usable; NOWAIT would abort it.
fn locking(mode: Mode, wait: Wait) -> &'static str {
    match (mode, wait) {
        (Mode::Exclusive, Wait::Wait) => {
            "SELECT pg_current_xact_id()::text FROM fencepost_lock.rows WHERE name = $1 FOR UPDATE"
        }
        (Mode::Exclusive, Wait::NoWait) => {
            "SELECT pg_current_xact_id()::text FROM fencepost_lock.rows WHERE name = $1 FOR UPDATE SKIP LOCKED"
        }
        (Mode::Shared, Wait::Wait) => {
            "SELECT pg_current_xact_id()::text FROM fencepost_lock.rows WHERE name = $1 FOR SHARE"
        }
        (Mode::Shared, Wait::NoWait) => {
            "SELECT pg_current_xact_id()::text FROM fencepost_lock.rows WHERE name = $1 FOR SHARE SKIP LOCKED"
        }
    }
}

/// A row that our own transaction has locked.
#[derive(Debug)]
struct LockedRow {
    transaction: String,
}

#[async_trait]
impl Held for LockedRow {
    /// An error aborts the transaction, which releases the row at once.
    const ENDS_WITH_AN_ERROR: bool = true;

    async fn is_held(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error> {
        let select = "SELECT pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM $1";
        pinned.client.query_typed_one(select, &[(&self.transaction, Type::TEXT)]).await?.try_get(0)
    }

    async fn let_go(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error> {
        // A successful rollback proves nothing, because an aborted transaction can also be rolled back. So check first.
        let was_held = self.is_held(pinned).await?;
        // The transaction has written nothing.
        pinned.client.batch_execute("ROLLBACK").await?;
        Ok(was_held)
    }
}

#[async_trait]
impl Backend for Row {
    fn system(&self) -> System {
        System::PostgresRow
    }

    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error> {
        self.take(ask, Wait::NoWait).await
    }

    async fn acquire(&self, ask: &Ask) -> Result<Box<dyn Lease>, Error> {
        let gone = "the row was deleted during the wait: do not delete rows of fencepost_lock.rows";
        let gone = Failed::NotTaken { message: gone.to_owned(), retry_after: None };
        self.take(ask, Wait::Wait).await?.ok_or_else(|| gone.into())
    }
}

impl<M> fmt::Debug for RowLock<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowLock").field("token", &self.token).finish()
    }
}
