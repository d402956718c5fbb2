//! Locks in one Redis: a key with an expiry and with a value that only its holder knows.
//!
//! `SET key value NX PX ttl` acquires a lock. Renewal and release compare the value and act in one script, so that an old holder
//! never touches a lock that has expired and has a new holder. There is no token: a fail-over may promote a replica that does not
//! know the lock or a counter. So these locks are only for efficiency, as [`crate::System::Redis`] says.

use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Failed, Lost, Name, Nanos, Refused, Token, Unknown, clock};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Script, ScriptInvocation};

use crate::backend::{Ask, Backend, Lease, Proof, Undo, unique};
use crate::promises::System;

/// Timeout of one command.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Prefix of all keys, so that a lock on `a` does not touch a user's key `a`.
const KEY_PREFIX: &str = "fencepost:lock:";

/// Sets a new TTL if the lock is ours, and returns 1. Returns 0 if the lock is free, and -1 if another holder has it.
const RENEW: &str = r"
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if value then return -1 else return 0 end
";
/// Deletes the lock if it is ours. Returns the same numbers as `RENEW`.
const RELEASE: &str = r"
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then return redis.call('DEL', KEYS[1]) end
if value then return -1 else return 0 end
";

/// One Redis.
#[derive(Clone)]
pub struct Redis {
    connection: ConnectionManager,
}

/// The holder of a lock, as a script reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Free,
    Theirs,
}

impl Redis {
    /// Connects to `redis://host:port/database`.
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if no server answers.
    pub async fn connect(address: &str) -> Result<Redis, Error> {
        let redis = Redis::connect_later(address)?;
        redis.ping().await?;
        Ok(redis)
    }

    /// Connects at the first command.
    pub(crate) fn connect_later(address: &str) -> Result<Redis, Error> {
        let unusable = |error: redis::RedisError| Error::from(Failed::Unreachable { last: error.to_string() });
        let client = redis::Client::open(address).map_err(unusable)?;
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CALL_TIMEOUT))
            .set_response_timeout(Some(CALL_TIMEOUT))
            .set_number_of_retries(1);
        Ok(Redis { connection: ConnectionManager::new_lazy_with_config(client, config).map_err(unusable)? })
    }

    /// Checks that the server answers.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        let ping = redis::cmd("PING");
        let pong = ping.query_async::<String>(&mut self.connection.clone()).await;
        pong.map(drop).map_err(|error| Failed::Unreachable { last: error.to_string() }.into())
    }

    /// Acquires the lock for this value, if it is free.
    pub(crate) async fn set(&self, name: &Name, value: &str, ttl: Duration) -> Result<bool, Error> {
        let mut command = redis::cmd("SET");
        command.arg(key(name)).arg(value).arg("NX").arg("PX").arg(milliseconds(ttl));
        let answer: Option<String> = command.query_async(&mut self.connection.clone()).await.map_err(failed)?;
        Ok(answer.is_some())
    }

    /// Sets a new TTL, if this value holds the lock.
    pub(crate) async fn extend(&self, name: &Name, value: &str, ttl: Duration) -> Result<Whose, Error> {
        self.invoke(Script::new(RENEW).key(key(name)).arg(value).arg(milliseconds(ttl))).await
    }

    /// Deletes the lock, if this value holds it.
    pub(crate) async fn delete(&self, name: &Name, value: &str) -> Result<Whose, Error> {
        self.invoke(Script::new(RELEASE).key(key(name)).arg(value)).await
    }

    async fn invoke(&self, script: &ScriptInvocation<'_>) -> Result<Whose, Error> {
        let answer: i64 = script.invoke_async(&mut self.connection.clone()).await.map_err(failed)?;
        Ok(match answer {
            1 => Whose::Ours,
            0 => Whose::Free,
            _ => Whose::Theirs,
        })
    }
}

/// A lock in one Redis.
#[derive(Debug)]
struct RedisLease {
    redis: Redis,
    name: Name,
    value: String,
    ttl: Duration,
    granted_at: Nanos,
    released: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl Backend for Redis {
    fn system(&self) -> System {
        System::Redis
    }

    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error> {
        let value = unique()?;
        let undo = {
            let (redis, name, value) = (self.clone(), ask.name.clone(), value.clone());
            // The caller stopped waiting, or no answer came. Delete the lock in case it was granted.
            Undo::new(async move { drop(redis.delete(&name, &value).await) })
        };
        let granted_at = clock::now();
        let taken = self.set(&ask.name, &value, ask.ttl).await?;
        undo.disarm();
        let (redis, name, ttl) = (self.clone(), ask.name.clone(), ask.ttl);
        let lease = RedisLease { redis, name, value, ttl, granted_at, released: Default::default() };
        Ok(taken.then(|| Box::new(lease) as Box<dyn Lease>))
    }
}

#[async_trait]
impl Lease for RedisLease {
    fn token(&self) -> Option<Token> {
        None
    }

    fn proof(&self) -> Proof {
        Proof { sent_at: self.granted_at, ttl: self.ttl }
    }

    async fn renew(&self) -> Result<Proof, Error> {
        let sent_at = clock::now();
        match self.redis.extend(&self.name, &self.value, self.ttl).await? {
            Whose::Ours => Ok(Proof { sent_at, ttl: self.ttl }),
            Whose::Free => Err(Lost::DeadlinePassed.into()),
            Whose::Theirs => Err(Refused::NotOwner.into()),
        }
    }

    async fn release(&self) -> Result<(), Error> {
        use std::sync::atomic::Ordering;
        match self.redis.delete(&self.name, &self.value).await? {
            Whose::Ours => {
                self.released.store(true, Ordering::Release);
                Ok(())
            }
            _ if self.released.load(Ordering::Acquire) => Err(Refused::NotHeld.into()),
            Whose::Free => Err(Lost::DeadlinePassed.into()),
            Whose::Theirs => Err(Refused::NotOwner.into()),
        }
    }
}

fn key(name: &Name) -> String {
    format!("{KEY_PREFIX}{}", name.as_str())
}

/// Redis counts in whole milliseconds. Zero is not a valid expiry.
fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn failed(error: redis::RedisError) -> Error {
    if error.is_connection_refusal() {
        Failed::Unreachable { last: error.to_string() }.into()
    } else if error.is_timeout() || error.is_io_error() || error.is_connection_dropped() {
        Unknown::BrokeOff(error.to_string()).into()
    } else {
        Failed::NotTaken { message: error.to_string(), retry_after: None }.into()
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redis")
    }
}
