//! The guard in an SQLite database: `sqlite:FILE`. It never creates the database.

use std::path::PathBuf;

use anyhow::Context;
use async_trait::async_trait;
use fencepost_fence::{Forgotten, Installed, Status, Token, sqlite};
use rusqlite::{Connection, OpenFlags};

use super::{Address, Store};
use crate::failure::Result;

#[derive(Debug)]
pub(super) struct File(pub(super) PathBuf);

#[async_trait]
impl Address for File {
    async fn connect(&self) -> Result<Box<dyn Store>> {
        // The guard goes into the database of a program. So a missing file is probably a typing error, and is not created.
        let opened = Connection::open_with_flags(&self.0, OpenFlags::SQLITE_OPEN_READ_WRITE);
        let opened = opened.with_context(|| {
            let advice = "the guard goes into the database of a program, so name an existing file";
            format!("{} cannot be opened: {advice}", self.shown())
        })?;
        Ok(Box::new(opened))
    }

    fn shown(&self) -> String {
        format!("sqlite:{}", self.0.display())
    }

    fn creates(&self) -> &'static str {
        "the tables fencepost_base, fencepost_marks and fencepost_keys"
    }

    fn script(&self) -> Option<&'static str> {
        Some(sqlite::SCRIPT)
    }

    fn has_once(&self) -> bool {
        true
    }
}

#[async_trait]
impl Store for Connection {
    async fn install(&mut self) -> Result<Installed> {
        Ok(sqlite::install(self)?)
    }

    async fn status(&mut self) -> Result<Status> {
        Ok(sqlite::status(self)?)
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten> {
        Ok(sqlite::forget_below(self, oldest_live)?)
    }

    async fn forget(&mut self, name: &str, key: &str) -> Result<Option<Token>> {
        Ok(sqlite::forget(self, name, key)?)
    }
}
