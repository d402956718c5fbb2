//! The guard in MySQL and MariaDB: `mysql://USER@HOST/DATABASE`. Its `Debug` shows no password.

use std::fmt;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use fencepost_fence::{Forgotten, Installed, Status, Token, mysql};
use mysql_async::{Conn, Opts, OptsBuilder};

use super::{ADDRESSES, Address, Store, StoreAddress, unreachable};
use crate::failure::Result;

struct Database(Opts);

pub(super) fn parse(address: &str, password: Option<String>) -> std::result::Result<StoreAddress, String> {
    let address = address.replacen("mariadb:", "mysql:", 1);
    let options = Opts::from_url(&address).map_err(|_| ADDRESSES)?;
    if options.db_name().is_none() {
        return Err(format!("no database is named: {ADDRESSES}"));
    }
    let password = password.or_else(|| options.pass().map(str::to_owned));
    Ok(Arc::new(Database(OptsBuilder::from_opts(options).pass(password).into())))
}

impl fmt::Debug for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.shown())
    }
}

#[async_trait]
impl Address for Database {
    async fn connect(&self) -> Result<Box<dyn Store>> {
        let connected = Conn::new(self.0.clone()).await;
        Ok(Box::new(connected.with_context(|| unreachable(self))?))
    }

    fn shown(&self) -> String {
        format!("mysql://{}/{}", self.0.ip_or_hostname(), self.0.db_name().unwrap_or_default())
    }

    fn creates(&self) -> &'static str {
        "the tables fencepost_base, fencepost_marks and fencepost_keys, and the procedures fencepost_*"
    }

    fn script(&self) -> Option<&'static str> {
        Some(mysql::SCRIPT)
    }

    fn has_once(&self) -> bool {
        true
    }
}

#[async_trait]
impl Store for Conn {
    async fn install(&mut self) -> Result<Installed> {
        Ok(mysql::install(self).await?)
    }

    async fn status(&mut self) -> Result<Status> {
        Ok(mysql::status(self).await?)
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten> {
        Ok(mysql::forget_below(self, oldest_live).await?)
    }

    async fn forget(&mut self, name: &str, key: &str) -> Result<Option<Token>> {
        Ok(mysql::forget(self, name, key).await?)
    }
}
