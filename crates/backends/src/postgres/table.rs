//! A table of locks: who holds each, until when by the database's clock, and the counter of its tokens.
//!
//! Every step is one statement that compares before it acts, so nobody touches a lock that has expired and was given on. Our own
//! clock plays no part in who holds it. Nobody is told when a lock is free: those who wait ask again.

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
    /// Connects to `postgres+table://user@host:port/database`, and makes the tables if they are missing.
    ///
    /// # Errors
    /// [`crate::Error::BadAddress`] if it is none, [`Failed::Unreachable`] if nobody answers there, [`Failed::NotTaken`] with what
    /// to run if the tables are missing and may not be made.
    pub async fn connect(address: &str) -> Result<Table, crate::Error> {
        Ok(Table { link: Link::open(config(address)?).await? })
    }
}

/// A lock in the table.
#[derive(Clone, Debug)]
struct Claim {
    link: Link,
    name: Name,
    /// Nobody else has it.
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
    /// The token, if nobody was in the way.
    async fn take(&self) -> Result<Option<Token>, Error> {
        let ttl = i64::from(milliseconds(self.ttl));
        let parameters =
            [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT), (&ttl as _, Type::INT8)];
        match self.link.row(include_str!("acquire.sql"), &parameters).await? {
            Some(row) => Ok(Some(token(row.try_get(0).map_err(misread)?))),
            None => Ok(None),
        }
    }

    /// Whether it was still ours, and goes on.
    async fn renew(&self) -> Result<bool, Error> {
        let ttl = i64::from(milliseconds(self.ttl));
        let parameters =
            [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT), (&ttl as _, Type::INT8)];
        Ok(self.link.row(include_str!("renew.sql"), &parameters).await?.is_some())
    }

    /// Whether it had expired, if it was still ours.
    async fn clear(&self) -> Result<Option<bool>, Error> {
        let parameters = [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT)];
        match self.link.row(include_str!("release.sql"), &parameters).await? {
            Some(row) => Ok(Some(row.try_get(0).map_err(misread)?)),
            None => Ok(None),
        }
    }

    /// Why it is not ours any more. It will not be again, so it does not matter that this is another statement.
    async fn why_lost(&self) -> Error {
        let select = "SELECT FROM fencepost_lock.locks
            WHERE name = $1 AND holder <> $2 AND expires_at > clock_timestamp()";
        let parameters = [(&self.name.as_str() as _, Type::TEXT), (&self.holder as _, Type::TEXT)];
        match self.link.row(select, &parameters).await {
            Ok(Some(_)) => Refused::NotOwner.into(),
            // That it is lost is certain, even if nobody can be asked to whom.
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
            // Nobody waits for the answer any more, or there was none: whatever came of it, it is not to stay.
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
