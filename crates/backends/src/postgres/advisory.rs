//! Session-level advisory locks: each has its own connection while it is held.
//!
//! The server queues the waiters, and frees the lock when the session ends. It ends a session that idles for the TTL
//! (`idle_session_timeout`), so a paused holder does not block the others.
//!
//! An advisory lock has a key of 64 bits, and two names may share a key. Then they block each other, which costs time. One name
//! still never has two holders. See [`advisory_key`].
//!
//! A pooler gives one session to several clients in turn. Two of them could get the same lock, or a lock could stay when its
//! holder is gone. So this file checks that the session is not shared, and refuses to lock through a pooler.

use async_trait::async_trait;
use fencepost::{Error, Name, Refused, clock};
use sha2::{Digest, Sha256};
use tokio_postgres::Config;
use tokio_postgres::types::Type;

use super::pinned::{Held, Pinned, PinnedLease, nothing_done};
use super::{NEXT_TOKEN, config, failed, in_time, kept, milliseconds, set_up, token};
use crate::backend::{Ask, Backend, Lease, Mode};
use crate::promises::System;

/// How often the server checks whether a waiting client is still connected.
const CHECK_MS: u32 = 2_000;

/// Why locking through a pooler is refused.
const POOLED: &str = "this address is a connection pooler, and an advisory lock belongs to a session: a pooler would give the \
    session with its lock to other clients. Use the address of the Postgres server, or postgres+table://, which works through poolers";

/// Advisory locks.
#[derive(Clone)]
pub struct Advisory {
    config: Config,
}

/// The key of a name's advisory lock: the first eight bytes of its SHA-256. A SQL program locks the same key with
/// `pg_advisory_lock(('x' || left(encode(sha256(convert_to('fencepost:lock:' || name, 'UTF8')), 'hex'), 16))::bit(64)::bigint)`.
pub fn advisory_key(name: &Name) -> i64 {
    let digest = Sha256::digest(format!("fencepost:lock:{}", name.as_str()));
    digest.iter().take(8).fold(0, |key, byte| key << 8 | i64::from(*byte))
}

impl Advisory {
    /// Connects to `postgres+advisory://user@host:port/database`, and creates the tables of the tokens if they are missing.
    ///
    /// # Errors
    /// [`crate::Error::BadAddress`] if the address is not valid, [`fencepost::Failed::Unreachable`] if no server answers,
    /// [`Refused::Invalid`] if it is a pooler. [`fencepost::Failed::NotTaken`] if the tables are missing and the role may not
    /// create them; it contains the SQL to run.
    pub async fn connect(address: &str) -> Result<Advisory, crate::Error> {
        let config = config(address)?;
        let pinned = open(&config).await?;
        set_up(&pinned.client).await?;
        Ok(Advisory { config })
    }

    async fn take(&self, ask: &Ask, wait: bool) -> Result<Option<Box<dyn Lease>>, Error> {
        let pinned = open(&self.config).await?;
        let client = &pinned.client;
        let settings =
            [(&milliseconds(ask.ttl).to_string() as _, Type::TEXT), (&CHECK_MS.to_string() as _, Type::TEXT)];
        nothing_done(in_time(client.query_typed_one(include_str!("session.sql"), &settings)).await)?;
        let lock = AdvisoryLock { key: advisory_key(&ask.name), mode: ask.mode };
        let undo = pinned.cancel_if_dropped();
        let taken = if wait {
            // No timeout here: a caller that stops waiting drops this future.
            let waited = client.query_typed_one(lock.waiting(), &[(&lock.key, Type::INT8)]).await;
            nothing_done(waited.map_err(|error| failed(&error)))?;
            true
        } else {
            let tried = async { client.query_typed_one(lock.trying(), &[(&lock.key, Type::INT8)]).await?.try_get(0) };
            nothing_done(in_time(tried).await)?
        };
        if !taken {
            undo.disarm();
            return Ok(None);
        }
        let granted_at = clock::now();
        // On the connection that holds the lock, so that the counter cannot be increased after the lock is gone.
        let raised =
            async { client.query_typed_one(NEXT_TOKEN, &[(&ask.name.as_str(), Type::TEXT)]).await?.try_get(0) };
        let token = token(nothing_done(in_time(raised).await)?);
        undo.disarm();
        Ok(Some(Box::new(PinnedLease::new(pinned, lock, token, granted_at, kept(ask.ttl)))))
    }
}

/// A connection to the server itself.
async fn open(config: &Config) -> Result<Pinned, Error> {
    let pinned = Pinned::open(config).await?;
    if pinned.is_direct() { Ok(pinned) } else { Err(Refused::Invalid(POOLED.to_owned()).into()) }
}

/// One advisory lock.
#[derive(Debug)]
struct AdvisoryLock {
    key: i64,
    mode: Mode,
}

impl AdvisoryLock {
    fn waiting(&self) -> &'static str {
        match self.mode {
            Mode::Exclusive => "SELECT pg_advisory_lock($1)",
            Mode::Shared => "SELECT pg_advisory_lock_shared($1)",
        }
    }

    fn trying(&self) -> &'static str {
        match self.mode {
            Mode::Exclusive => "SELECT pg_try_advisory_lock($1)",
            Mode::Shared => "SELECT pg_try_advisory_lock_shared($1)",
        }
    }

    fn unlocking(&self) -> &'static str {
        match self.mode {
            Mode::Exclusive => "SELECT pg_advisory_unlock($1)",
            Mode::Shared => "SELECT pg_advisory_unlock_shared($1)",
        }
    }

    /// The mode as `pg_locks` names it.
    fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Exclusive => "ExclusiveLock",
            Mode::Shared => "ShareLock",
        }
    }
}

#[async_trait]
impl Held for AdvisoryLock {
    const ENDS_WITH_AN_ERROR: bool = false;

    async fn is_held(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error> {
        let parameters =
            [(&pinned.process as _, Type::INT4), (&self.key as _, Type::INT8), (&self.mode() as _, Type::TEXT)];
        pinned.client.query_typed_one(include_str!("is_held.sql"), &parameters).await?.try_get(0)
    }

    async fn let_go(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error> {
        pinned.client.query_typed_one(self.unlocking(), &[(&self.key, Type::INT8)]).await?.try_get(0)
    }
}

#[async_trait]
impl Backend for Advisory {
    fn system(&self) -> System {
        System::PostgresAdvisory
    }

    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error> {
        self.take(ask, false).await
    }

    async fn acquire(&self, ask: &Ask) -> Result<Box<dyn Lease>, Error> {
        // With `wait` set, `take` always returns a lock.
        self.take(ask, true).await?.ok_or_else(|| Refused::Cancelled.into())
    }
}

impl std::fmt::Debug for Advisory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Advisory")
    }
}
