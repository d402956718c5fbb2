//! Redis: one server, with the lock that its documentation describes. `SET name value NX PX` takes it, and a script deletes it if the
//! value is still that of the contender. Redis does not tell waiters that a lock is free, so they retry after a short random pause.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use fencepost_testbed::{Kind, Server};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, Script};

use super::servers;
use fencepost_load::contender::Contender;

use crate::system::{Program, System};

/// TTL of a lock. No contender holds a lock for that long.
pub(super) const TTL: Duration = Duration::from_secs(60);
/// The pause before a retry: the least, and the width of the random part that is added.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(9));
/// Time limit for an answer. The client's default of half a second is meant for caches; under full load, answers queue up.
const ANSWER: Duration = Duration::from_secs(30);

/// Deletes the lock if it still has the value of the contender.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// One Redis.
pub struct Redis {
    name: &'static str,
    how: &'static str,
    servers: Vec<Server>,
}

impl Redis {
    /// Starts a server that writes nothing to disk: when it ends, all locks are lost.
    ///
    /// # Errors
    /// If Redis is not installed, or does not start.
    pub async fn start_in_memory() -> anyhow::Result<Redis> {
        let how = "one server; SET NX PX and a compare-and-delete script on one multiplexed connection, waiters retry after \
                   1 to 10 ms; nothing is replicated, written or synced";
        Redis::start("Redis", how, Kind::RedisInMemory).await
    }

    /// Starts a server that syncs each change before it answers.
    ///
    /// # Errors
    /// As [`Redis::start_in_memory`].
    pub async fn start_synced() -> anyhow::Result<Redis> {
        let how = "one server; SET NX PX and a compare-and-delete script on one multiplexed connection, waiters retry after \
                   1 to 10 ms; every change is synced before it is answered (appendfsync always), nothing is replicated";
        Redis::start("Redis synced", how, Kind::RedisSynced).await
    }

    async fn start(name: &'static str, how: &'static str, kind: Kind) -> anyhow::Result<Redis> {
        Ok(Redis { name, how, servers: servers::independent(kind, 1).await? })
    }
}

#[async_trait]
impl System for Redis {
    fn name(&self) -> &str {
        self.name
    }

    fn how(&self) -> &str {
        self.how
    }

    async fn program(&self) -> anyhow::Result<Box<dyn Program>> {
        Ok(Box::new(Master::connect(&self.servers[0]).await?))
    }

    fn processes(&self) -> Vec<u32> {
        servers::processes(&self.servers)
    }
}

#[async_trait]
impl Program for Master {
    async fn contender(&self) -> anyhow::Result<Box<dyn Contender>> {
        Ok(Box::new(RedisContender { master: self.clone(), held: None }))
    }
}

struct RedisContender {
    master: Master,
    /// The name of the lock that was taken last, and the value that identifies its holder.
    held: Option<(String, String)>,
}

#[async_trait]
impl Contender for RedisContender {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        let value = unique()?;
        while !self.master.take(name, &value).await? {
            tokio::time::sleep(pause()?).await;
        }
        self.held = Some((name.to_owned(), value));
        Ok(())
    }

    async fn acquire_shared(&mut self, _: &str) -> anyhow::Result<()> {
        anyhow::bail!("a lock in Redis is not shared")
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let (name, value) = self.held.take().context("the contender holds no lock")?;
        anyhow::ensure!(self.master.give_back(&name, &value).await?, "the contender had already lost {name}");
        Ok(())
    }
}

/// The connection to one server, which all contenders of a program share.
#[derive(Clone)]
pub(super) struct Master {
    connection: MultiplexedConnection,
    release: Arc<Script>,
}

impl Master {
    pub(super) async fn connect(server: &Server) -> anyhow::Result<Master> {
        // The client does not set TCP_NODELAY by default, and then small commands are delayed.
        let at = server.url().into_connection_info()?.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER));
        let connection = redis::Client::open(at)?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Master { connection, release: Arc::new(Script::new(RELEASE)) })
    }

    /// Takes the lock. `false` if it is not free.
    pub(super) async fn take(&mut self, name: &str, value: &str) -> redis::RedisResult<bool> {
        let mut set = redis::cmd("SET");
        set.arg(name).arg(value).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        Ok(set.query_async::<Option<String>>(&mut self.connection).await?.is_some())
    }

    /// Releases the lock. `false` if it does not have this value.
    pub(super) async fn give_back(&mut self, name: &str, value: &str) -> redis::RedisResult<bool> {
        self.release.key(name).arg(value).invoke_async(&mut self.connection).await
    }
}

/// A value that no other contender uses.
pub(super) fn unique() -> anyhow::Result<String> {
    Ok(format!("{:016x}{:016x}", random()?, random()?))
}

/// The random pause before a retry.
pub(super) fn pause() -> anyhow::Result<Duration> {
    let (least, spread) = PAUSE;
    Ok(least + Duration::from_nanos(random()? % spread.as_nanos() as u64))
}

fn random() -> anyhow::Result<u64> {
    getrandom::u64().map_err(|error| anyhow::anyhow!("the operating system gives no random numbers: {error}"))
}
