//! Stores that check fencing tokens: parses their addresses, connects, and installs, inspects and tidies the guard.
//!
//! One file for each store. The clients of database servers are large, so only the feature `stores` compiles them in. Without it,
//! an address of such a store is refused, and the message says what to install.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use fencepost_fence::{Error, Forgotten, Installed, Status, Token};

use crate::failure::{Failure, Result};
#[cfg(feature = "stores")]
use crate::settings::STORE_PASSWORD;

mod files;
#[cfg(feature = "stores")]
mod mysql;
#[cfg(feature = "stores")]
mod postgres;
#[cfg(feature = "stores")]
mod redis;
mod sqlite;

const ADDRESSES: &str =
    "write postgres://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE, sqlite:FILE, file:DIRECTORY or redis://HOST/";

/// The address of a store, as an argument of a command.
pub(crate) type StoreAddress = Arc<dyn Address>;

/// The address of a store, and what is known without a connection. Invariant: `Debug` shows no password.
#[async_trait]
pub(crate) trait Address: Debug + Send + Sync {
    async fn connect(&self) -> Result<Box<dyn Store>>;

    /// The address without secrets.
    fn shown(&self) -> String;

    /// What `install` creates in the store, for messages.
    fn creates(&self) -> &'static str;

    /// The SQL that `install` runs. `None` if the store needs no SQL.
    fn script(&self) -> Option<&'static str> {
        None
    }

    /// Whether the store records keys of finished work.
    fn has_once(&self) -> bool {
        false
    }

    /// What this kind of store cannot promise.
    fn caution(&self) -> Option<&'static str> {
        None
    }
}

/// A store with a connection.
#[async_trait]
pub(crate) trait Store: Send {
    async fn install(&mut self) -> Result<Installed>;

    async fn status(&mut self) -> Result<Status>;

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten>;

    /// Forgets a key. The token that it was recorded with, or `None` if it was not recorded. A store without `once` has no keys.
    async fn forget(&mut self, _name: &str, _key: &str) -> Result<Option<Token>> {
        Ok(None)
    }
}

/// Parses an address. The error never shows a password.
pub(crate) fn parse(address: &str) -> std::result::Result<StoreAddress, String> {
    let (scheme, rest) = address.split_once(':').unwrap_or_default();
    let path = rest.trim_start_matches("//");
    match scheme {
        "file" if !path.is_empty() => Ok(Arc::new(files::Directory(path.into()))),
        "sqlite" if !path.is_empty() => Ok(Arc::new(sqlite::File(path.into()))),
        "postgres" | "postgresql" | "mysql" | "mariadb" | "redis" => server(scheme, address),
        _ => Err(ADDRESSES.to_owned()),
    }
}

#[cfg(feature = "stores")]
fn server(scheme: &str, address: &str) -> std::result::Result<StoreAddress, String> {
    let password = std::env::var(STORE_PASSWORD).ok();
    match scheme {
        "postgres" | "postgresql" => postgres::parse(address, password),
        "mysql" | "mariadb" => mysql::parse(address, password),
        _ => redis::parse(address, password),
    }
}

#[cfg(not(feature = "stores"))]
fn server(scheme: &str, _: &str) -> std::result::Result<StoreAddress, String> {
    Err(not_compiled_in(scheme))
}

#[cfg(any(test, not(feature = "stores")))]
fn not_compiled_in(scheme: &str) -> String {
    format!(
        "this `fencepost` was built without clients for database servers, so it cannot reach {scheme}://. Install it with them: \
         cargo install --path crates/cli --features stores"
    )
}

/// Advice for a database server that cannot be reached.
#[cfg(feature = "stores")]
fn unreachable(address: &dyn Address) -> String {
    format!("{} cannot be opened: check the address, and {STORE_PASSWORD} if it asks for a password", address.shown())
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::NotInstalled(_) => Failure::refused(error),
            Error::BadKey(_) => Failure::usage(error.to_string()),
            _ => Failure::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "stores")]
    #[test]
    fn a_password_is_shown_nowhere() {
        for address in ["postgres://app:hush@db/shop", "mysql://app:hush@db/shop", "redis://app:hush@db/"] {
            let store = parse(address).expect("a valid address");
            for seen in [format!("{store:?}"), format!("{store:#?}"), store.shown(), unreachable(&*store)] {
                assert!(seen.contains("db") && !seen.contains("hush"), "{seen}");
            }
        }
    }

    #[test]
    fn a_build_without_the_clients_says_what_to_install() {
        let refused = not_compiled_in("postgres");
        assert!(refused.contains("postgres://") && refused.contains("--features stores"), "{refused}");
    }

    #[test]
    fn an_unknown_address_is_refused_with_the_known_forms() {
        for address in ["", "shop", "file:", "sqlite://", "oracle://db"] {
            assert_eq!(parse(address).err().as_deref(), Some(ADDRESSES), "{address}");
        }
    }
}
