//! The guard of MySQL and MariaDB, against a real MariaDB.
#![cfg(feature = "mysql")]

mod once;
mod rights;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use crate::suite::{AnyAccess, Connection, Store, block_on, stale, writer};
use fencepost_fence::{Access, Error, FencingToken, Forgotten, Installed, ReadToken, Status, Token, mysql};
use fencepost_testbed::{Kind, shared};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, IsolationLevel, OptsBuilder, Transaction, TxOpts};

/// A database of its own.
struct MySql {
    options: OptsBuilder,
    database: String,
}

impl MySql {
    fn empty() -> Option<MySql> {
        static DATABASES: AtomicU32 = AtomicU32::new(0);
        let server = shared(Kind::MariaDb)?;
        let options = OptsBuilder::from_opts(mysql_async::Opts::from_url(&server.url()).expect("a valid address"));
        let database = format!("fence_{}", DATABASES.fetch_add(1, SeqCst));
        block_on(async {
            let mut connection = Conn::new(options.clone()).await.expect("it serves");
            // These tests do not need to survive a power failure.
            connection.query_drop("SET GLOBAL innodb_flush_log_at_trx_commit = 0").await.expect("a valid setting");
            connection.query_drop(format!("CREATE DATABASE {database}")).await.expect("a name of our own");
        });
        Some(MySql { options: options.db_name(Some(database.clone())), database })
    }

    fn fresh() -> Option<MySql> {
        let store = MySql::empty()?;
        block_on(async {
            let mut connection = store.open_as(&store.installer().await).await;
            assert_eq!(mysql::install(&mut connection).await.expect("a database of our own"), Installed::New);
            let create = "CREATE TABLE numbers (name VARBINARY(512) PRIMARY KEY, number BIGINT NOT NULL)";
            connection.query_drop(create).await.expect("valid SQL");
        });
        Some(store)
    }

    /// Connects as root.
    async fn open(&self) -> Conn {
        Conn::new(self.options.clone()).await.expect("it serves")
    }

    async fn open_as(&self, account: &str) -> Conn {
        Conn::new(self.options.clone().user(Some(account))).await.expect("it serves")
    }

    /// Creates an account that has only these rights, on this database alone. Its name contains the name of the database, so it
    /// is different in every test.
    async fn account(&self, name: &str, rights: &str) -> String {
        let (database, account) = (&self.database, format!("{name}_{}", self.database));
        let mut root = self.open().await;
        root.query_drop(format!("CREATE USER IF NOT EXISTS {account}")).await.expect("valid SQL");
        root.query_drop(format!("GRANT {rights} ON {database}.* TO {account}")).await.expect("valid SQL");
        account
    }

    /// The account with which the guide installs the guard.
    async fn installer(&self) -> String {
        let rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE ROUTINE, ALTER ROUTINE, EXECUTE";
        self.account("guard", rights).await
    }
}

struct Client(Conn);

impl Store for MySql {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = true;

    async fn connect(&self) -> Client {
        Client(self.open().await)
    }
}

/// With the default isolation, REPEATABLE READ.
async fn begin(connection: &mut Conn) -> Transaction<'_> {
    connection.start_transaction(TxOpts::default()).await.expect("it serves")
}

/// A plain read. Under REPEATABLE READ all plain reads of a transaction have the view of the first one.
async fn number(connection: &mut impl Queryable, name: &str) -> i64 {
    let select = "SELECT number FROM numbers WHERE name = ?";
    connection.exec_first(select, (name,)).await.expect("valid SQL").unwrap_or(0)
}

async fn set(connection: &mut impl Queryable, name: &str, number: i64) {
    let upsert = "INSERT INTO numbers VALUES (?, ?) ON DUPLICATE KEY UPDATE number = VALUES(number)";
    connection.exec_drop(upsert, (name, number)).await.expect("valid SQL");
}

async fn commit(transaction: Transaction<'_>) -> Result<(), Error> {
    transaction.commit().await.map_err(|error| Error::Store(error.into()))
}

impl Connection for Client {
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error> {
        let mut transaction = begin(&mut self.0).await;
        mysql::admit(&mut transaction, &Access::claim(name, token)).await?;
        let number = number(&mut transaction, name).await;
        commit(transaction).await?;
        Ok(number)
    }

    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error> {
        let mut transaction = begin(&mut self.0).await;
        mysql::admit(&mut transaction, &Access::read(name, token)).await?;
        let number = number(&mut transaction, name).await;
        commit(transaction).await?;
        Ok(number)
    }

    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error> {
        let mut transaction = begin(&mut self.0).await;
        mysql::admit(&mut transaction, &Access::write(name, token)).await?;
        set(&mut transaction, name, number).await;
        commit(transaction).await
    }

    async fn peek(&mut self, name: &str) -> i64 {
        number(&mut self.0, name).await
    }

    async fn write_unguarded(&mut self, name: &str, number: i64) {
        set(&mut self.0, name, number).await;
    }

    async fn admit(&mut self, access: &AnyAccess) -> Result<(), Error> {
        let mut transaction = begin(&mut self.0).await;
        match access {
            AnyAccess::Reads(access) => mysql::admit(&mut transaction, access).await?,
            AnyAccess::Claims(access) => mysql::admit(&mut transaction, access).await?,
            AnyAccess::Writes(access) => mysql::admit(&mut transaction, access).await?,
        }
        commit(transaction).await
    }

    async fn write_and_crash(mut self, name: &str, token: FencingToken, number: i64) {
        let mut transaction = begin(&mut self.0).await;
        mysql::admit(&mut transaction, &Access::write(name, token)).await.expect("its token is good");
        set(&mut transaction, name, number).await;
        // The connection ends without a commit, as if the process were killed.
        drop(transaction);
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten, Error> {
        mysql::forget_below(&mut self.0, oldest_live).await
    }
}

crate::suite::suite!(MySql::fresh());

/// Runs a test with a fresh database, if there is a server.
fn with_store(test: impl AsyncFnOnce(&MySql)) {
    if let Some(store) = MySql::fresh() {
        block_on(test(&store));
    }
}

/// The SQLSTATE with which a statement fails.
async fn state_of(connection: &mut impl Queryable, statement: &str) -> String {
    match connection.query_drop(statement).await {
        Err(mysql_async::Error::Server(error)) => error.state,
        other => panic!("{statement} ends with {other:?}"),
    }
}

#[test]
fn installing_again_changes_nothing_and_a_newer_form_is_refused() {
    with_store(async |store| {
        let mut connection = store.open_as(&store.installer().await).await;
        assert_eq!(mysql::install(&mut connection).await.expect("it is there"), Installed::AlreadyThere);
        let expected =
            Status { version: mysql::VERSION, base: Token(0), names: 0, writes: 0, highest: Token(0), keys: Some(0) };
        assert_eq!(mysql::status(&mut connection).await.expect("it is there"), expected);
        connection.query_drop("UPDATE fencepost_base SET version = 4").await.expect("valid SQL");
        let refused = mysql::install(&mut connection).await.expect_err("a newer version has created it");
        assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("version 4")), "{refused}");
    });
}

#[test]
fn of_many_installations_at_once_only_one_installs() {
    let Some(store) = MySql::empty() else { return };
    let installer = block_on(store.installer());
    let install = || {
        block_on(async { mysql::install(&mut store.open_as(&installer).await).await.expect("they wait their turn") })
    };
    let outcomes: Vec<Installed> = std::thread::scope(|scope| {
        let installing: Vec<_> = (0..8).map(|_| scope.spawn(install)).collect();
        installing.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Installed::New).count(), 1, "{outcomes:?}");
    block_on(async { store.connect().await.admit(&AnyAccess::Writes(Access::write("wallet", writer(1)))).await })
        .expect("it is completely there");
}

#[test]
fn without_the_tables_it_says_what_to_run() {
    let Some(store) = MySql::empty() else { return };
    block_on(async {
        let mut connection = store.open().await;
        let status = mysql::status(&mut connection).await.map(drop);
        let mut transaction = begin(&mut connection).await;
        let admitted = mysql::admit(&mut transaction, &Access::write("wallet", writer(1))).await;
        for refused in [status, admitted] {
            let refused = refused.expect_err("there is nothing");
            assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("fencepost fence init")), "{refused}");
        }
    });
}

#[test]
fn the_status_counts_names_and_writes() {
    with_store(async |store| {
        let mut client = store.connect().await;
        client.write("/wallets/7", writer(5), 50).await.expect("the first");
        client.write("/wallets/7", writer(5), 51).await.expect("one holder writes many times");
        client.claim("order", writer(7)).await.expect("the first");
        let expected =
            Status { version: mysql::VERSION, base: Token(0), names: 3, writes: 2, highest: Token(7), keys: Some(0) };
        assert_eq!(mysql::status(&mut client.0).await.expect("it is there"), expected);
    });
}

/// A flag of the connection decides whether the affected rows of an update are those that it found or those that it changed.
#[test]
fn the_meaning_of_affected_rows_does_not_matter() {
    let Some(store) = MySql::fresh() else { return };
    block_on(async {
        let mut affected = Vec::new();
        for found_rows in [false, true] {
            let options = store.options.clone().client_found_rows(found_rows);
            let mut client = Client(Conn::new(options).await.expect("it serves"));
            let name = format!("wallet {found_rows}");
            client.write(&name, writer(7), 70).await.expect("the first");
            client.write(&name, writer(7), 71).await.expect("one holder writes many times");
            stale(client.write(&name, writer(6), 60).await, 6, 7);
            let again =
                format!("UPDATE fencepost_marks SET write_floor = 7 WHERE name = '{name}' AND write_floor <= 7");
            client.0.query_drop(again).await.expect("valid SQL");
            affected.push(client.0.affected_rows());
        }
        assert_eq!(affected, [0, 1], "a guard that relied on this number would depend on the flag");
    });
}

/// Unless the transaction is READ COMMITTED, a plain read after the guard has the view of its first plain read.
// Rule: claim-before-read
#[test]
fn a_transaction_that_has_read_before_it_claims_is_not_let_in_with_its_old_view() {
    with_store(async |store| {
        let (mut early, mut other) = (store.open().await, store.connect().await);
        for (name, had_marks) in [("new", false), ("known", true)] {
            if had_marks {
                other.claim(name, writer(5)).await.expect("the first");
            }
            let mut transaction = begin(&mut early).await;
            assert_eq!(number(&mut transaction, name).await, 0);
            other.write(name, writer(5), 50).await.expect("no newer token was seen");
            assert_eq!(number(&mut transaction, name).await, 0, "it has an old view");
            let refused =
                mysql::admit(&mut transaction, &Access::claim(name, writer(7))).await.expect_err("an old view");
            assert!(matches!(&refused, Error::Store(why) if why.to_string().contains("read before")), "{refused}");
        }
        let mut options = TxOpts::default();
        options.with_isolation_level(IsolationLevel::ReadCommitted);
        let mut transaction = early.start_transaction(options).await.expect("it serves");
        assert_eq!(number(&mut transaction, "known").await, 50);
        other.write("known", writer(5), 51).await.expect("no newer token was seen");
        mysql::admit(&mut transaction, &Access::claim("known", writer(7))).await.expect("it sees the newest data");
        assert_eq!(number(&mut transaction, "known").await, 51);
    });
}

/// Marks that were forgotten and created again may look the same as before.
// Rule: claim-before-read, fence-gc
#[test]
fn an_old_view_does_not_pass_because_marks_were_forgotten_in_between() {
    with_store(async |store| {
        let (mut early, mut other) = (store.open().await, store.connect().await);
        other.write("wallet", writer(8), 80).await.expect("the first");
        let mut transaction = begin(&mut early).await;
        assert_eq!(number(&mut transaction, "wallet").await, 80);
        assert_eq!(other.forget_below(Token(8)).await.expect("it serves").names, 1);
        other.write("wallet", writer(8), 81).await.expect("as old as the oldest living token");
        assert_eq!(number(&mut transaction, "wallet").await, 80, "it has an old view");
        mysql::admit(&mut transaction, &Access::claim("wallet", writer(9))).await.expect_err("an old view");
    });
}

/// A holder that is paused in its transaction blocks its successor until the server ends the transaction.
#[test]
fn the_server_ends_a_transaction_that_stays_open_and_undoes_it() {
    with_store(async |store| {
        let mut paused = store.open().await;
        paused.query_drop("UPDATE fencepost_base SET idle_seconds = 1").await.expect("valid SQL");
        let mut transaction = begin(&mut paused).await;
        mysql::admit(&mut transaction, &Access::write("wallet", writer(5))).await.expect("the first");
        set(&mut transaction, "wallet", 50).await;
        let mut successor = store.connect().await;
        assert_eq!(successor.claim("wallet", writer(7)).await.expect("the server has ended the other"), 0);
        transaction.commit().await.expect_err("its transaction is gone");
        assert_eq!(successor.peek("wallet").await, 0, "nothing that it wrote is there");
        successor.write("wallet", writer(7), 70).await.expect("it holds the lock");
    });
}

/// MySQL does not end a transaction after an error: the client rolls it back, or drops it.
#[test]
fn after_a_refusal_a_rollback_or_a_drop_undoes_the_transaction() {
    with_store(async |store| {
        let mut client = store.connect().await;
        client.write("wallet", writer(7), 70).await.expect("the first");
        let before = mysql::status(&mut client.0).await.expect("it is there");
        let mut transaction = begin(&mut client.0).await;
        set(&mut transaction, "log", 1).await;
        let access = Access::write("never seen", writer(9)).and_write("wallet", writer(5));
        stale(mysql::admit(&mut transaction, &access).await, 5, 7);
        transaction.rollback().await.expect("it is still open");
        assert_eq!(client.peek("log").await, 0);
        let mut transaction = begin(&mut client.0).await;
        set(&mut transaction, "log", 2).await;
        stale(mysql::admit(&mut transaction, &access).await, 5, 7);
        drop(transaction);
        assert_eq!(client.peek("log").await, 0);
        let mut transaction = begin(&mut client.0).await;
        set(&mut transaction, "log", 3).await;
        stale(mysql::admit(&mut transaction, &access).await, 5, 7);
        transaction.commit().await.expect("MySQL allows it");
        assert_eq!(client.peek("log").await, 3, "so a client that commits after a refusal writes unguarded");
        assert_eq!(mysql::status(&mut client.0).await.expect("it is there"), before, "it left no marks");
    });
}

const CROSSERS: usize = 4;
const CROSSINGS: usize = 100;

/// Each thread shows all names but one. Half of the threads show them in order, half in reverse. Some names are new in each round.
/// If two transactions waited for each other, InnoDB would end one of them, and that would be a failure here.
#[test]
fn transactions_that_show_the_same_names_in_another_order_do_not_deadlock() {
    let Some(store) = MySql::fresh() else { return };
    let failures = Mutex::new(Vec::new());
    let cross = async |crosser: usize| {
        let mut client = store.connect().await;
        for round in 0..CROSSINGS {
            // In byte order, "/t-u/x" is between "/t" and "/t/u", which is below "/t".
            let mut names = ["/t", "/t-u/x", "/t/u", "q", "r", "s"].map(str::to_owned).to_vec();
            names.extend(["new ", "/z/"].map(|name| format!("{name}{round}")));
            names.remove(crosser);
            if crosser.is_multiple_of(2) {
                names.reverse();
            }
            let first = Access::write(&names[0], writer(1));
            let access = names[1..].iter().fold(first, |access, name| access.and_write(name, writer(1)));
            if let Err(error) = client.admit(&AnyAccess::Writes(access)).await {
                failures.lock().expect("no thread panics").push(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for crosser in 0..CROSSERS {
            let cross = &cross;
            scope.spawn(move || block_on(cross(crosser)));
        }
    });
    let failures = failures.into_inner().expect("no thread panics");
    assert!(failures.is_empty(), "{} of {} failed: {:?}", failures.len(), CROSSERS * CROSSINGS, failures[0]);
}

// Rule: same-transaction
#[test]
fn from_plain_sql_the_guard_refuses_to_run_outside_of_a_transaction() {
    with_store(async |store| {
        let mut connection = store.open().await;
        assert_eq!(state_of(&mut connection, "CALL fencepost_write('wallet', 5)").await, "FP428");
        connection.query_drop("SET autocommit = 0").await.expect("a valid setting");
        connection.query_drop("CALL fencepost_write('wallet', 5)").await.expect("it is inside a transaction");
        connection.query_drop("ROLLBACK").await.expect("it serves");
        assert_eq!(mysql::status(&mut connection).await.expect("it is there").names, 0);
    });
}

#[test]
fn from_plain_sql_names_and_tokens_that_are_not_valid_are_refused() {
    with_store(async |store| {
        let mut connection = store.open().await;
        let mut transaction = begin(&mut connection).await;
        let long = format!("'{}'", "ü".repeat(257));
        let deep = format!("'{}'", "/a".repeat(17));
        for name in ["NULL", "''", r"'line\nbreak'", "'/'", "'/a/'", "'/a//b'", &long, &deep] {
            assert_eq!(
                state_of(&mut transaction, &format!("CALL fencepost_claim({name}, 5)")).await,
                "FP400",
                "{name}"
            );
        }
        for token in ["NULL", "0", "-1", "1.5", "'x'", "'5x'", "''", "9007199254740992"] {
            assert_eq!(
                state_of(&mut transaction, &format!("CALL fencepost_read('a', {token})")).await,
                "FP400",
                "{token}"
            );
        }
        for access in ["NULL", "'[]'", "'{}'", "'[{}]'", r#"'[{"name": "a", "token": 5, "use": "WRITE"}]'"#] {
            assert_eq!(
                state_of(&mut transaction, &format!("CALL fencepost_present({access})")).await,
                "FP400",
                "{access}"
            );
        }
    });
}

/// A text collation would treat some of these as equal.
#[test]
fn names_are_compared_byte_by_byte() {
    with_store(async |store| {
        let mut client = store.connect().await;
        for (number, name) in ["a", "a ", "A", "ä", "a\u{308}", "/a", "／a", "😀"].into_iter().enumerate() {
            client.write(name, writer(10 - number as u64), 1).await.expect("each name has marks of its own");
        }
        let long = "/".to_owned() + &"ü".repeat(255);
        client.write(&long, writer(5), 1).await.expect("the longest possible name");
        let refused = client.write(&long, writer(4), 1).await.expect_err("it is stale");
        assert_eq!(
            refused.stale().map(|stale| stale.at.as_str()),
            Some(long.as_str()),
            "the refusal has the whole name"
        );
    });
}
