//! Turns an address into a connected system.
//!
//! This is the only file that knows all backends and their features. It also removes passwords from addresses before an error
//! shows them. It decides nothing about locks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::Failed;

use crate::backend::{Ask, Backend, Lease};
use crate::client::{Other, Way};
use crate::error::Error;
use crate::promises::System;

/// Connects to the system at an address. A dry run connects to nothing and only remembers which system it is.
pub(crate) async fn connect(address: &str, ttl: Duration, dry_run: bool) -> Result<Way, Error> {
    let system = system(address)?;
    if dry_run {
        return Ok(Way::Other(Arc::new(Other::new(Box::new(Absent(system))))));
    }
    match system {
        System::Fencepost | System::Memory => {
            let builder = fencepost::Client::builder().address(address)?.session_ttl(ttl);
            Ok(Way::Native(builder.connect().await?))
        }
        _ => Ok(Way::Other(Arc::new(Other::new(backend(address, ttl).await?)))),
    }
}

/// The bare backend at an address. It neither renews locks nor limits waits; most callers want [`crate::Client`]. `ttl` is for
/// systems whose locks all share one TTL.
///
/// # Errors
/// [`Error::BadAddress`] if the address names no backend, [`Failed::Unreachable`] if no server answers.
#[allow(unused_variables, unreachable_code, reason = "without any feature there is no backend")]
pub async fn backend(address: &str, ttl: Duration) -> Result<Box<dyn Backend>, Error> {
    Ok(match system(address)? {
        System::Fencepost | System::Memory => {
            return Err(bad(address, "Fencepost renews its own locks and is not a backend".to_owned()));
        }
        #[cfg(feature = "redis")]
        System::Redis => Box::new(crate::redis::Redis::connect(address).await?),
        #[cfg(feature = "postgres")]
        System::PostgresAdvisory => Box::new(crate::postgres::Advisory::connect(address).await?),
        #[cfg(feature = "postgres")]
        System::PostgresTable => Box::new(crate::postgres::Table::connect(address).await?),
        #[cfg(feature = "postgres")]
        System::PostgresRow => Box::new(crate::postgres::Row::connect(address).await?),
        #[cfg(feature = "etcd")]
        System::Etcd => Box::new(crate::etcd::Etcd::connect(address).await?),
        #[cfg(feature = "redis")]
        System::Redlock => Box::new(crate::redlock::Redlock::connect(address).await?),
        #[cfg(feature = "zookeeper")]
        System::Zookeeper => Box::new(crate::zookeeper::Zookeeper::connect(address, ttl).await?),
        #[allow(unreachable_patterns, reason = "with all features on, every system has an arm above")]
        other => return Err(bad(address, format!("this program was built without the feature for {}", other.name()))),
    })
}

/// Which system an address names.
///
/// # Errors
/// [`Error::BadAddress`] if the scheme is missing or unknown.
pub fn system(address: &str) -> Result<System, Error> {
    let Some((scheme, _)) = address.split_once("://") else {
        return Err(bad(address, "it has no `://`".to_owned()));
    };
    Ok(match scheme {
        "fencepost" | "http" | "https" => System::Fencepost,
        "redis" => System::Redis,
        "redlock" => System::Redlock,
        "etcd" => System::Etcd,
        "zookeeper" => System::Zookeeper,
        "postgres+advisory" => System::PostgresAdvisory,
        "postgres+table" => System::PostgresTable,
        "postgres+row" => System::PostgresRow,
        "postgres" | "postgresql" => {
            let why = "choose how Postgres locks: postgres+table://, postgres+advisory:// or postgres+row://";
            return Err(bad(address, why.to_owned()));
        }
        other => return Err(bad(address, format!("{other}:// is unknown"))),
    })
}

pub(crate) fn bad(address: &str, why: String) -> Error {
    Error::BadAddress { address: without_password(address), why }
}

/// The address with `...` in place of its password, so that it may be shown.
pub(crate) fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let Some((login, place)) = rest.rsplit_once('@') else { return address.to_owned() };
    match login.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:...@{place}"),
        None => address.to_owned(),
    }
}

/// Stands for a system in a dry run. It is never connected, and grants nothing.
#[derive(Debug)]
struct Absent(System);

#[async_trait]
impl Backend for Absent {
    fn system(&self) -> System {
        self.0
    }

    async fn try_acquire(&self, _: &Ask) -> Result<Option<Box<dyn Lease>>, fencepost::Error> {
        Err(Failed::ShutDown.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_is_found_by_its_own_address() {
        for known in System::ALL {
            let expected = if known == System::Memory { System::Fencepost } else { known };
            assert_eq!(system(known.address()).expect("its own address"), expected);
        }
    }

    #[test]
    fn a_bad_address_says_what_to_do_and_shows_no_password() {
        let said = |address| system(address).expect_err("a bad address").to_string();
        assert!(said("127.0.0.1:6379").contains("fencepost backends"));
        assert!(said("postgres://app:hunter2@db/app").contains("postgres+table://"));
        assert!(!said("postgres://app:hunter2@db/app").contains("hunter2"));
        assert!(said("memcached://a").contains("memcached:// is unknown"));
    }
}
