//! A separate database for each test, and the queries that the tests share.
//!
//! All databases are on one server, unless a test brings its own server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fencepost::Name;
use fencepost_backends::postgres::{Advisory, Row, Table};
use fencepost_backends::{Ask, Backend, Lease, Mode};
use fencepost_testbed::{Kind, Server, shared};
use tokio_postgres::{Client, Config, NoTls};

/// Long enough for anything on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Never expires during a test.
pub(crate) const TTL_LONG: Duration = Duration::from_secs(600);

/// An empty database on a running server.
pub(crate) struct Database {
    port: u16,
    pub(crate) name: String,
    pub(crate) user: String,
}

impl Database {
    /// A database on the server that all tests share; `None` if Postgres is not installed.
    pub(crate) async fn fresh() -> Option<Database> {
        Some(Database::on(shared(Kind::Postgres)?).await)
    }

    pub(crate) async fn on(server: &Server) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("locks_{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let (port, user) = (server.port(), "postgres".to_owned());
        let postgres = Database { port, name: "postgres".to_owned(), user: user.clone() };
        run(&postgres.open().await, &format!("CREATE DATABASE {name}")).await;
        Database { port, name, user }
    }

    /// Its address for one way of locking: `table`, `advisory` or `row`.
    pub(crate) fn address(&self, way: &str) -> String {
        format!("postgres+{way}://{}@127.0.0.1:{}/{}", self.user, self.port, self.name)
    }

    /// The same database for another role.
    pub(crate) fn seen_by(&self, user: &str) -> Database {
        Database { port: self.port, name: self.name.clone(), user: user.to_owned() }
    }

    /// A plain connection, without this library.
    pub(crate) async fn open(&self) -> Client {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user(&self.user).dbname(&self.name);
        let (client, connection) = config.connect(NoTls).await.expect("it serves");
        tokio::spawn(connection);
        client
    }

    pub(crate) async fn table(&self) -> Table {
        Table::connect(&self.address("table")).await.expect("it serves")
    }

    pub(crate) async fn advisory(&self) -> Advisory {
        Advisory::connect(&self.address("advisory")).await.expect("it serves")
    }

    pub(crate) async fn row(&self) -> Row {
        Row::connect(&self.address("row")).await.expect("it serves")
    }

    /// All three ways of locking.
    pub(crate) async fn every_way(&self) -> [Box<dyn Backend>; 3] {
        [Box::new(self.table().await), Box::new(self.advisory().await), Box::new(self.row().await)]
    }
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).expect("a good name")
}

pub(crate) fn ask(what: &str, mode: Mode, ttl: Duration) -> Ask {
    Ask { name: name(what), mode, ttl }
}

/// A request for an exclusive lock with a long TTL.
pub(crate) fn alone(what: &str) -> Ask {
    ask(what, Mode::Exclusive, TTL_LONG)
}

/// Acquires the lock if it is free.
pub(crate) async fn attempt(backend: &dyn Backend, ask: &Ask) -> Option<Box<dyn Lease>> {
    backend.try_acquire(ask).await.expect("an answer")
}

/// Acquires the lock, which must be free.
pub(crate) async fn take(backend: &dyn Backend, ask: &Ask) -> Box<dyn Lease> {
    attempt(backend, ask).await.expect("it is free")
}

/// Waits for the lock.
pub(crate) async fn wait(backend: &dyn Backend, ask: &Ask) -> Box<dyn Lease> {
    soon("it is free", backend.acquire(ask)).await.expect("granted")
}

pub(crate) fn token(lease: &dyn Lease) -> u64 {
    lease.token().expect("Postgres gives tokens").0
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

/// Waits until the condition is true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "it never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The number that a query returns.
pub(crate) async fn one(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// How many sessions of this database wait for a lock.
pub(crate) async fn waiting(client: &Client) -> i64 {
    let select =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    one(client, select).await
}

/// Ends all other sessions of this database, as an administrator does, and waits until they are gone.
pub(crate) async fn end_sessions(client: &Client) {
    let others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    one(client, &format!("SELECT count(pg_terminate_backend(pid)) {others}")).await;
    until("they are gone", async || one(client, &format!("SELECT count(*) {others}")).await == 0).await;
}
