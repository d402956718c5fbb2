//! The lock table: for each lock its holder, its expiry by the database's clock, and the counter of its tokens.
//!
//! Every step is one statement that compares before it acts, so an old holder never touches a lock that has expired and has a new
//! holder. Our own clock does not decide who holds a lock. Waiters are not notified: they poll.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Failed, Lost, Name, Nanos, Refused, Token, clock};
use tokio_postgres::types::Type;

use super::link::Link;
use super::{config, kept, milliseconds, token};
use crate::backend::{Ask, Backend, Lease, Mode, Proof, Undo, unique};
use crate::promises::System;

/// Locks in a table.
#[derive(Clone, Debug)]
pub struct Table {
    link: Link,
}

impl Table {
    /// Connects to `postgres+table://user@host:port/database`, and creates the tables if they are missing.
    ///
    /// # Errors
    /// [`crate::Error::BadAddress`] if the address is not valid, [`Failed::Unreachable`] if no server answers. [`Failed::NotTaken`]
    /// if the tables are missing and the role may not create them; it contains the SQL to run.
    pub async fn connect(address: &str) -> Result<Table, crate::Error> {
        Ok(Table { link: Link::open(config(address)?).await? })
    }
}

/// One holder's claim to a lock in the table.
#[derive(Clone, Debug)]
struct Claim {
    link: Link,
    name: Name,
    /// A unique value.
    holder: String,
    ttl: Duration,
}

#[derive(Debug)]
struct TableLease {
    claim: Claim,
    token: Token,
    granted_at: Nanos,
    released: AtomicBool,
}

impl Claim {
    /// Acquires the lock, and returns its token. `None` if another holder has it.
    async fn take(&self) -> Result<Option<Token>, Error> {
        let ttl = i64::from(milliseconds(self.ttl));
        let parameters =
            [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT), (&ttl as _, Type::INT8)];
        match self.link.row(include_str!("acquire.sql"), &parameters).await? {
            Some(row) => Ok(Some(token(row.try_get(0).map_err(misread)?))),
            None => Ok(None),
        }
    }

    /// Renews the lock. False if it is not ours any more.
    async fn renew(&self) -> Result<bool, Error> {
        let ttl = i64::from(milliseconds(self.ttl));
        let parameters =
            [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT), (&ttl as _, Type::INT8)];
        Ok(self.link.row(include_str!("renew.sql"), &parameters).await?.is_some())
    }

    /// Releases the lock, and returns whether it had expired. `None` if it is not ours any more.
    async fn clear(&self) -> Result<Option<bool>, Error> {
        let parameters = [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT)];
        match self.link.row(include_str!("release.sql"), &parameters).await? {
            Some(row) => Ok(Some(row.try_get(0).map_err(misread)?)),
            None => Ok(None),
        }
    }

    /// Why the lock is not ours any more. It cannot become ours again, so a separate statement is safe.
    async fn why_lost(&self) -> Error {
        let select = "SELECT FROM fencepost_lock.locks
            WHERE name = $1 AND holder <> $2 AND expires_at > clock_timestamp()";
        let parameters = [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT)];
        match self.link.row(select, &parameters).await {
            Ok(Some(_)) => Refused::NotOwner.into(),
            // The lock is certainly lost, even if the database cannot say who holds it.
            Ok(None) | Err(_) => Lost::DeadlinePassed.into(),
        }
    }
}

#[async_trait]
impl Backend for Table {
    fn system(&self) -> System {
        System::PostgresTable
    }

    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error> {
        if ask.mode == Mode::Shared {
            let why =
                "a row of the lock table names one holder: ask for an exclusive lock, or use postgres+advisory://";
            return Err(Refused::Invalid(why.to_owned()).into());
        }
        let claim = Claim { link: self.link.clone(), name: ask.name.clone(), holder: unique()?, ttl: kept(ask.ttl) };
        let undo = {
            let claim = claim.clone();
            // The caller stopped waiting, or no answer came. Clear the lock in case it was granted.
            Undo::new(async move { drop(claim.clear().await) })
        };
        let granted_at = clock::now();
        let taken = claim.take().await?;
        undo.disarm();
        Ok(taken.map(|token| Box::new(TableLease { claim, token, granted_at, released: AtomicBool::new(false) }) as _))
    }
}

#[async_trait]
impl Lease for TableLease {
    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    fn proof(&self) -> Proof {
        Proof { sent_at: self.granted_at, ttl: self.claim.ttl }
    }

    async fn renew(&self) -> Result<Proof, Error> {
        let sent_at = clock::now();
        match self.claim.renew().await? {
            true => Ok(Proof { sent_at, ttl: self.claim.ttl }),
            false => Err(self.claim.why_lost().await),
        }
    }

    async fn release(&self) -> Result<(), Error> {
        match self.claim.clear().await? {
            Some(expired) => {
                self.released.store(true, Ordering::Release);
                if expired { Err(Lost::DeadlinePassed.into()) } else { Ok(()) }
            }
            None if self.released.load(Ordering::Acquire) => Err(Refused::NotHeld.into()),
            None => Err(self.claim.why_lost().await),
        }
    }
}

fn misread(error: tokio_postgres::Error) -> Error {
    Failed::NotUnderstood(super::said(&error)).into()
}
