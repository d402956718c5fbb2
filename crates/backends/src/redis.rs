//! Locks in one Redis: a key with a value that only its holder knows, and an expiry.
//!
//! `SET key value NX PX ttl` takes it. Renewing and giving back compare the value and act in one script, so that nobody touches a
//! lock that has expired and was given on. There is no token: a fail-over may promote a replica that never heard of the lock, or
//! of a counter. So this is for efficiency alone, and [`crate::System::Redis`] says so.

use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Failed, Lost, Name, Nanos, Refused, Token, Unknown, clock};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Script, ScriptInvocation};

use crate::backend::{Ask, Backend, Lease, Proof, Undo, unique};
use crate::promises::System;

/// How long one command may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Before the name, so that a lock on `a` is not the key `a` of somebody's data.
const KEY_PREFIX: &str = "fencepost:lock:";

/// Gives the lock another TTL if it is ours: 1. Otherwise 0 if it is nobody's, and -1 if it is somebody else's.
const RENEW: &str = r"
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if value then return -1 else return 0 end
";
/// Deletes the lock if it is ours, with the same answers.
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

/// Whose a lock is, as a script says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Nobodys,
    SomebodyElses,
}

impl Redis {
    /// Connects to `redis://host:port/database`.
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if nobody answers there.
    pub async fn connect(address: &str) -> Result<Redis, Error> {
        let redis = Redis::connect_later(address)?;
        redis.ping().await?;
        Ok(redis)
    }

    /// Connects when it is used.
    pub(crate) fn connect_later(address: &str) -> Result<Redis, Error> {
        let unusable = |error: redis::RedisError| Error::from(Failed::Unreachable { last: error.to_string() });
        let client = redis::Client::open(address).map_err(unusable)?;
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CALL_TIMEOUT))
            .set_response_timeout(Some(CALL_TIMEOUT))
            .set_number_of_retries(1);
        Ok(Redis { connection: ConnectionManager::new_lazy_with_config(client, config).map_err(unusable)? })
    }

    /// Whether it answers.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        let ping = redis::cmd("PING");
        let pong = ping.query_async::<String>(&mut self.connection.clone()).await;
        pong.map(drop).map_err(|error| Failed::Unreachable { last: error.to_string() }.into())
    }

    /// Takes the lock for this value, if nobody has it.
    pub(crate) async fn set(&self, name: &Name, value: &str, ttl: Duration) -> Result<bool, Error> {
        let mut command = redis::cmd("SET");
        command.arg(key(name)).arg(value).arg("NX").arg("PX").arg(milliseconds(ttl));
        let answer: Option<String> = command.query_async(&mut self.connection.clone()).await.map_err(failed)?;
        Ok(answer.is_some())
    }

    /// Gives the lock another TTL, if this value has it.
    pub(crate) async fn extend(&self, name: &Name, value: &str, ttl: Duration) -> Result<Whose, Error> {
        self.invoke(Script::new(RENEW).key(key(name)).arg(value).arg(milliseconds(ttl))).await
    }

    /// Deletes the lock, if this value has it.
    pub(crate) async fn delete(&self, name: &Name, value: &str) -> Result<Whose, Error> {
        self.invoke(Script::new(RELEASE).key(key(name)).arg(value)).await
    }

    async fn invoke(&self, script: &ScriptInvocation<'_>) -> Result<Whose, Error> {
        let answer: i64 = script.invoke_async(&mut self.connection.clone()).await.map_err(failed)?;
        Ok(match answer {
            1 => Whose::Ours,
            0 => Whose::Nobodys,
            _ => Whose::SomebodyElses,
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
            // Nobody waits for the answer any more, or there was none: whatever came of it, it is not to stay.
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
            Whose::Nobodys => Err(Lost::DeadlinePassed.into()),
            Whose::SomebodyElses => Err(Refused::NotOwner.into()),
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
            Whose::Nobodys => Err(Lost::DeadlinePassed.into()),
            Whose::SomebodyElses => Err(Refused::NotOwner.into()),
        }
    }
}

fn key(name: &Name) -> String {
    format!("{KEY_PREFIX}{}", name.as_str())
}

/// Redis counts in whole milliseconds, and none is no expiry.
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
