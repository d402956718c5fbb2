//! The guard in Redis, for efficiency only: `redis://HOST/`. A fail-over can lose its marks, so `fence` prints a caution.

use std::fmt;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use fencepost_fence::redis::{CAUTION, Guard};
use fencepost_fence::{Forgotten, Installed, Status, Token};
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionInfo};

use super::{ADDRESSES, Address, Store, StoreAddress, unreachable};
use crate::failure::Result;

struct Server(Client);

pub(super) fn parse(address: &str, password: Option<String>) -> std::result::Result<StoreAddress, String> {
    let mut info: ConnectionInfo = address.parse().map_err(|_| ADDRESSES)?;
    if let Some(password) = password {
        let settings = info.redis_settings().clone().set_password(password);
        info = info.set_redis_settings(settings);
    }
    Ok(Arc::new(Server(Client::open(info).map_err(|_| ADDRESSES)?)))
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.shown())
    }
}

#[async_trait]
impl Address for Server {
    async fn connect(&self) -> Result<Box<dyn Store>> {
        let connected = self.0.get_multiplexed_async_connection().await;
        Ok(Box::new(connected.with_context(|| unreachable(self))?))
    }

    fn shown(&self) -> String {
        format!("redis://{}", self.0.get_connection_info().addr())
    }

    fn creates(&self) -> &'static str {
        "nothing: the first access creates the marks"
    }

    fn caution(&self) -> Option<&'static str> {
        Some(CAUTION)
    }
}

#[async_trait]
impl Store for MultiplexedConnection {
    async fn install(&mut self) -> Result<Installed> {
        // Nothing to create. `status` fails if a newer version wrote the marks.
        Guard::default().status(self).await?;
        Ok(Installed::New)
    }

    async fn status(&mut self) -> Result<Status> {
        Ok(Guard::default().status(self).await?)
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten> {
        Ok(Guard::default().forget_below(self, oldest_live).await?)
    }
}
