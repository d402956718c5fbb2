//! The guard in Postgres: `postgres://USER@HOST/DATABASE`. Its `Debug` shows no password.

use std::fmt;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use fencepost_fence::{Forgotten, Installed, Status, Token, postgres};
use tokio_postgres::config::{Config, Host};
use tokio_postgres::{Client, NoTls};

use super::{ADDRESSES, Address, Store, StoreAddress, unreachable};
use crate::failure::Result;

struct Database(Config);

pub(super) fn parse(address: &str, password: Option<String>) -> std::result::Result<StoreAddress, String> {
    let mut config: Config = address.parse().map_err(|_| ADDRESSES)?;
    if let Some(password) = password {
        config.password(password);
    }
    Ok(Arc::new(Database(config)))
}

impl fmt::Debug for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.shown())
    }
}

#[async_trait]
impl Address for Database {
    async fn connect(&self) -> Result<Box<dyn Store>> {
        let (client, connection) = self.0.connect(NoTls).await.with_context(|| unreachable(self))?;
        tokio::spawn(connection);
        Ok(Box::new(client))
    }

    fn shown(&self) -> String {
        let host = self.0.get_hosts().first().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let database = self.0.get_dbname().or(self.0.get_user()).unwrap_or_default();
        format!("postgres://{}/{database}", host.unwrap_or_default())
    }

    fn creates(&self) -> &'static str {
        "the schema fencepost, with its tables and functions"
    }

    fn script(&self) -> Option<&'static str> {
        Some(postgres::SCRIPT)
    }

    fn has_once(&self) -> bool {
        true
    }
}

#[async_trait]
impl Store for Client {
    async fn install(&mut self) -> Result<Installed> {
        Ok(postgres::install(self).await?)
    }

    async fn status(&mut self) -> Result<Status> {
        Ok(postgres::status(self).await?)
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten> {
        Ok(postgres::forget_below(self, oldest_live).await?)
    }

    async fn forget(&mut self, name: &str, key: &str) -> Result<Option<Token>> {
        Ok(postgres::forget(self, name, key).await?)
    }
}
