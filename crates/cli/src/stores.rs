//! Stores that check tokens, by their address: how each is reached, and the few things that an operator does with it.

use std::path::PathBuf;

use anyhow::Context;
use fencepost_fence::{Error, Forgotten, Installed, Status, Token, file, mysql, postgres, redis, sqlite};

use crate::failure::{Failure, Result};
use crate::output;
use crate::settings::STORE_PASSWORD;

const ADDRESSES: &str =
    "write postgres://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE, sqlite:FILE, file:DIRECTORY or redis://HOST/";

/// Where a store is. Its `Debug` shows no password.
#[derive(Clone)]
pub(crate) enum Place {
    File(PathBuf),
    Postgres(Box<tokio_postgres::Config>),
    MySql(mysql_async::Opts),
    Redis(::redis::Client),
    Sqlite(PathBuf),
}

impl std::fmt::Debug for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.shown())
    }
}

/// A store that was reached.
pub(crate) enum Store {
    File(PathBuf),
    Postgres(tokio_postgres::Client),
    MySql(Box<mysql_async::Conn>),
    Redis(::redis::aio::MultiplexedConnection),
    Sqlite(rusqlite::Connection),
}

impl Place {
    /// Understands an address. What is wrong with it never shows a password.
    pub(crate) fn parse(address: &str) -> std::result::Result<Place, String> {
        let password = std::env::var(STORE_PASSWORD).ok();
        let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme);
        match scheme {
            "postgres" | "postgresql" => {
                let mut config: tokio_postgres::Config = address.parse().map_err(|_| ADDRESSES)?;
                if let Some(password) = password {
                    config.password(password);
                }
                Ok(Place::Postgres(Box::new(config)))
            }
            "mysql" | "mariadb" => {
                let address = address.replacen("mariadb:", "mysql:", 1);
                let options = mysql_async::Opts::from_url(&address).map_err(|_| ADDRESSES)?;
                if options.db_name().is_none() {
                    return Err(format!("no database is named: {ADDRESSES}"));
                }
                let password = password.or_else(|| options.pass().map(str::to_owned));
                Ok(Place::MySql(mysql_async::OptsBuilder::from_opts(options).pass(password).into()))
            }
            "redis" => {
                let mut info: ::redis::ConnectionInfo = address.parse().map_err(|_| ADDRESSES)?;
                if let Some(password) = password {
                    let settings = info.redis_settings().clone().set_password(password);
                    info = info.set_redis_settings(settings);
                }
                Ok(Place::Redis(::redis::Client::open(info).map_err(|_| ADDRESSES)?))
            }
            "file" | "sqlite" => {
                let path = address[scheme.len() + 1..].trim_start_matches("//");
                match (scheme, path) {
                    (_, "") => Err(ADDRESSES.to_owned()),
                    ("file", path) => Ok(Place::File(PathBuf::from(path))),
                    (_, path) => Ok(Place::Sqlite(PathBuf::from(path))),
                }
            }
            _ => Err(ADDRESSES.to_owned()),
        }
    }

    pub(crate) async fn open(&self) -> Result<Store> {
        let store = match self {
            Place::File(directory) => Store::File(directory.clone()),
            Place::Postgres(config) => {
                let connected = config.connect(tokio_postgres::NoTls).await;
                let (client, connection) = connected.with_context(|| self.unreachable())?;
                tokio::spawn(connection);
                Store::Postgres(client)
            }
            Place::MySql(options) => {
                let connected = mysql_async::Conn::new(options.clone()).await;
                Store::MySql(Box::new(connected.with_context(|| self.unreachable())?))
            }
            Place::Redis(client) => {
                let connected = client.get_multiplexed_async_connection().await;
                Store::Redis(connected.with_context(|| self.unreachable())?)
            }
            Place::Sqlite(file) => {
                // The guard goes into the database of a program. A file that is not there is a slip of the pen.
                let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
                let opened = rusqlite::Connection::open_with_flags(file, flags);
                Store::Sqlite(opened.with_context(|| self.unreachable())?)
            }
        };
        Ok(store)
    }

    /// The address without secrets.
    pub(crate) fn shown(&self) -> String {
        match self {
            Place::File(directory) => format!("file:{}", directory.display()),
            Place::Postgres(config) => {
                let host = config.get_hosts().first().map(|host| match host {
                    tokio_postgres::config::Host::Tcp(name) => name.clone(),
                    tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
                });
                let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
                format!("postgres://{}/{database}", host.unwrap_or_default())
            }
            Place::MySql(options) => {
                format!("mysql://{}/{}", options.ip_or_hostname(), options.db_name().unwrap_or_default())
            }
            Place::Redis(client) => format!("redis://{}", client.get_connection_info().addr()),
            Place::Sqlite(file) => format!("sqlite:{}", file.display()),
        }
    }

    /// What installing makes there.
    pub(crate) fn makes(&self) -> &'static str {
        match self {
            Place::File(_) => "the file fencepost-marks",
            Place::Postgres(_) => "the schema fencepost, with its tables and functions",
            Place::MySql(_) => "the tables fencepost_base and fencepost_marks, and the procedures fencepost_*",
            Place::Redis(_) => "nothing: the marks come with the first access",
            Place::Sqlite(_) => "the tables fencepost_base and fencepost_marks",
        }
    }

    /// The SQL that installing runs.
    pub(crate) fn script(&self) -> Result<&'static str> {
        match self {
            Place::Postgres(_) => Ok(postgres::SCRIPT),
            Place::MySql(_) => Ok(mysql::SCRIPT),
            Place::Sqlite(_) => Ok(sqlite::SCRIPT),
            Place::File(_) | Place::Redis(_) => Err(Failure::usage("this store needs no SQL: leave --print away")),
        }
    }

    /// Says what this kind of store cannot promise.
    pub(crate) fn caution(&self) {
        if let Place::Redis(_) = self {
            output::say(&format!("fencepost: {}", redis::CAUTION));
        }
    }

    fn unreachable(&self) -> String {
        let what_to_do = match self {
            Place::Sqlite(_) => {
                "the guard goes into the database of a program, so name a file that is there".to_owned()
            }
            _ => format!("check the address, and {STORE_PASSWORD} if it asks for a password"),
        };
        format!("{} cannot be opened: {what_to_do}", self.shown())
    }
}

impl Store {
    pub(crate) async fn install(&mut self) -> Result<Installed> {
        Ok(match self {
            Store::File(directory) => file::install(directory.as_path())?,
            Store::Postgres(client) => postgres::install(client).await?,
            Store::MySql(connection) => mysql::install(connection).await?,
            Store::Redis(connection) => {
                // There is nothing to make, but marks of a newer version may be there.
                redis::Guard::default().status(connection).await?;
                Installed::New
            }
            Store::Sqlite(connection) => sqlite::install(connection)?,
        })
    }

    pub(crate) async fn status(&mut self) -> Result<Status> {
        Ok(match self {
            Store::File(directory) => file::Guard::open(directory.as_path())?.status()?,
            Store::Postgres(client) => postgres::status(client).await?,
            Store::MySql(connection) => mysql::status(connection).await?,
            Store::Redis(connection) => redis::Guard::default().status(connection).await?,
            Store::Sqlite(connection) => sqlite::status(connection)?,
        })
    }

    pub(crate) async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten> {
        Ok(match self {
            Store::File(directory) => file::Guard::open(directory.as_path())?.forget_below(oldest_live)?,
            Store::Postgres(client) => postgres::forget_below(client, oldest_live).await?,
            Store::MySql(connection) => mysql::forget_below(connection, oldest_live).await?,
            Store::Redis(connection) => redis::Guard::default().forget_below(connection, oldest_live).await?,
            Store::Sqlite(connection) => sqlite::forget_below(connection, oldest_live)?,
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::NotInstalled(_) => Failure::refused(error),
            _ => Failure::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_shown_nowhere() {
        for address in ["postgres://app:hush@db/shop", "mysql://app:hush@db/shop", "redis://app:hush@db/"] {
            let place = Place::parse(address).unwrap();
            for seen in [format!("{place:?}"), format!("{place:#?}"), place.shown(), place.unreachable()] {
                assert!(seen.contains("db") && !seen.contains("hush"), "{seen}");
            }
        }
    }
}
