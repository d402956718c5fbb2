//! One shared connection for independent statements. When it breaks, the next statement opens a new one.
//!
//! It keeps no state in the session, because a pooler may send every statement to a different session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost::{Error, Failed, Name, Token, Unknown};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::{CALL_TIMEOUT, NEXT_TOKEN, failed, set_up, token, unreachable};

/// The pause after a serialization failure, so that the other transaction can finish.
const COLLISION_PAUSE: Duration = Duration::from_millis(1);

/// A parameter with its type. With explicit types no statement is prepared, and one round trip is enough.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The shared connection. Cloning it is cheap.
#[derive(Clone)]
pub(super) struct Link {
    config: Arc<Config>,
    current: Arc<Mutex<Option<Arc<Client>>>>,
}

impl Link {
    /// Connects, and creates the tables if they are missing.
    pub(super) async fn open(config: Config) -> Result<Link, Error> {
        let link = Link { config: Arc::new(config), current: Arc::default() };
        set_up(&*link.client().await?).await?;
        Ok(link)
    }

    /// The settings of the connection.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Runs a statement, and returns its row if it has one.
    ///
    /// # Errors
    /// [`Error::Failed`] if the statement was not executed, [`Error::Unknown`] if that is unknown.
    pub(super) async fn row(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Option<Row>, Error> {
        let client = self.client().await?;
        let done = timeout(CALL_TIMEOUT, async {
            loop {
                match client.query_typed_opt(sql, parameters).await {
                    // Where REPEATABLE READ or higher is the default, one of two concurrent statements fails and does nothing.
                    Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                        tokio::time::sleep(COLLISION_PAUSE).await;
                    }
                    done => return done,
                }
            }
        });
        match done.await {
            Ok(done) => done.map_err(|error| failed(&error)),
            Err(_) => {
                self.forget(&client).await;
                Err(Unknown::NoAnswer.into())
            }
        }
    }

    /// The next token of a name. It is on disk when this returns.
    pub(super) async fn next_token(&self, name: &Name) -> Result<Token, Error> {
        match self.row(NEXT_TOKEN, &[(&name.as_str(), Type::TEXT)]).await? {
            Some(row) => Ok(token(row.try_get(0).map_err(|error| failed(&error))?)),
            None => Err(Failed::NotUnderstood("Postgres returned no token".to_owned()).into()),
        }
    }

    /// The connection, or a new one if it is closed.
    async fn client(&self) -> Result<Arc<Client>, Error> {
        let open = async {
            let mut current = self.current.lock().await;
            if let Some(client) = current.as_ref().filter(|client| !client.is_closed()) {
                return Ok(client.clone());
            }
            let (client, connection) = self.config.connect(NoTls).await.map_err(|error| unreachable(&error))?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "the connection to Postgres ended; the next statement opens a new one");
                }
            });
            Ok(current.insert(Arc::new(client)).clone())
        };
        // The timeout also covers callers that wait for another caller's connection attempt.
        let late = |_| Failed::Unreachable { last: format!("no connection within {} s", CALL_TIMEOUT.as_secs()) };
        timeout(CALL_TIMEOUT, open).await.map_err(late)?
    }

    /// Stops using a connection that gave no answer.
    async fn forget(&self, silent: &Arc<Client>) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|client| Arc::ptr_eq(client, silent)) {
            *current = None;
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
