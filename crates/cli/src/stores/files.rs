//! The guard for files on this host, with its marks in a directory: `file:DIRECTORY`.

use std::path::PathBuf;

use async_trait::async_trait;
use fencepost_fence::{Forgotten, Installed, Status, Token, file};

use super::{Address, Store};
use crate::failure::Result;

#[derive(Clone, Debug)]
pub(super) struct Directory(pub(super) PathBuf);

#[async_trait]
impl Address for Directory {
    async fn connect(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.clone()))
    }

    fn shown(&self) -> String {
        format!("file:{}", self.0.display())
    }

    fn creates(&self) -> &'static str {
        "the file fencepost-marks"
    }
}

#[async_trait]
impl Store for Directory {
    async fn install(&mut self) -> Result<Installed> {
        Ok(file::install(self.0.as_path())?)
    }

    async fn status(&mut self) -> Result<Status> {
        Ok(file::Guard::open(self.0.as_path())?.status()?)
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten> {
        Ok(file::Guard::open(self.0.as_path())?.forget_below(oldest_live)?)
    }
}
