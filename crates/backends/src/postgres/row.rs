//! Locked rows: `SELECT ... FOR UPDATE`, held by a transaction.
//!
//! The natural form is [`Row::lock`], in the transaction of the caller that also does the work: lock and work end together. As a
//! [`Backend`] it keeps a connection with an open transaction for each lock. The server ends a transaction that idles for the TTL
//! (`idle_in_transaction_session_timeout`). An open transaction keeps VACUUM from cleaning up after all later ones, in the whole
//! database, so such a lock should be short; for long ones there is `postgres+advisory://`.
//!
//! A transaction may be rolled back after its holder has used its token elsewhere, and a counter that it had raised would fall
//! back with it. So the counter is raised and committed on another connection while the row is locked. Then we look once more
//! whether the row is locked still: a token that was drawn after the lock had gone might be higher than that of the next holder.

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

/// How often the server looks whether somebody still waits.
const CHECK_MS: u32 = 2_000;

/// Row locks.
#[derive(Clone, Debug)]
pub struct Row {
    /// For what must be committed while a row is locked.
    link: Link,
}

/// What to do when somebody else has the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for it, for as long as the transaction's own settings allow.
    Wait,
    /// Go without it. The transaction stays usable.
    NoWait,
}

/// A row that a transaction of the caller has locked. It cannot be used when the transaction is over:
///
/// ```compile_fail,E0505
/// # use fencepost_backends::postgres::{Row, Wait};
/// # async fn example(row: Row, transaction: tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// let lock = row.lock(&transaction, "wallet:7", Wait::NoWait).await?.expect("nobody has it");
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
    /// The fencing token, for stores that the transaction knows nothing of.
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
    /// Connects to `postgres+row://user@host:port/database`, and makes the tables if they are missing.
    ///
    /// # Errors
    /// [`crate::Error::BadAddress`] if it is none, [`Failed::Unreachable`] if nobody answers there, [`Failed::NotTaken`] with what
    /// to run if the tables are missing and may not be made.
    pub async fn connect(address: &str) -> Result<Row, crate::Error> {
        Ok(Row { link: Link::open(config(address)?).await? })
    }

    /// Locks a name in a transaction of the caller, alone. None if somebody else has it and we do not wait.
    ///
    /// The lock ends with the transaction, whether it is committed or rolled back. What the transaction itself writes needs no
    /// token: it counts only if the lock was held to the end. The token is for what is written elsewhere, and it is never given
    /// again, even if this transaction is rolled back.
    ///
    /// ```no_run
    /// # use fencepost_backends::postgres::{Row, Wait};
    /// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let rows = Row::connect("postgres+row://app@127.0.0.1/app").await?;
    /// let transaction = client.transaction().await?;
    /// if let Some(lock) = rows.lock(&transaction, "wallet:7", Wait::NoWait).await? {
    ///     transaction.execute("UPDATE wallet SET balance = 400 WHERE id = 7", &[]).await?;
    ///     println!("tell the others, with token {}", lock.token());
    /// }
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the transaction is above READ COMMITTED: it would go on seeing the database as it was before it waited for
    /// the lock. Also if it is not in the database that this was connected to. After an error of the database the transaction can
    /// only be rolled back.
    ///
    /// # Cancellation
    /// The row may be locked or not. Roll back.
    pub async fn lock<'t>(
        &self,
        transaction: &'t Transaction<'_>,
        name: &str,
        wait: Wait,
    ) -> Result<Option<RowLock<'t, Exclusive>>, Error> {
        self.lock_in(transaction, name, Mode::Exclusive, wait).await
    }

    /// As [`Row::lock`], together with other readers.
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
            let why =
                "a row lock needs a transaction at READ COMMITTED: above that it sees what was there before it waited";
            return Err(Refused::Invalid(why.to_owned()).into());
        }
        if !is(1)? {
            let why = "the transaction is in another database than the one that these row locks were connected to";
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

    /// Makes the row of a name. On its own, because those who come while it is not committed would wait for us, wanted or not.
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
        // Without a time-out: whoever waits no longer drops this.
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

/// Locks the row of a name, and says which transaction has it. A row that is skipped leaves the transaction usable; NOWAIT would
/// abort it.
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

/// A row that a transaction of ours has locked.
#[derive(Debug)]
struct LockedRow {
    transaction: String,
}

#[async_trait]
impl Held for LockedRow {
    /// An error aborts the transaction, and that frees the row at once.
    const ENDS_WITH_AN_ERROR: bool = true;

    async fn is_held(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error> {
        let select = "SELECT pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM $1";
        pinned.client.query_typed_one(select, &[(&self.transaction, Type::TEXT)]).await?.try_get(0)
    }

    async fn let_go(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error> {
        // An aborted transaction can be rolled back all the same, so that says nothing.
        let was_held = self.is_held(pinned).await?;
        // It has written nothing.
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
        let gone = "the row was deleted while we waited for it: rows of fencepost_lock.rows must stay";
        let gone = Failed::NotTaken { message: gone.to_owned(), retry_after: None };
        self.take(ask, Wait::Wait).await?.ok_or_else(|| gone.into())
    }
}

impl<M> fmt::Debug for RowLock<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowLock").field("token", &self.token).finish()
    }
}
