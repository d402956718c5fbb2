//! The code of `docs/guides/fencing.md` runs here, against the real stores.
//!
//! SQL is taken from the text of the guide. Rust code is here, between two marker comments, and the guide must show the same text.
#![cfg(feature = "full")]

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::{Extension, Router, routing};
use fencepost_fence::http::{FencingLayer, Presented, Refused};
use fencepost_fence::{Access, Error, FencingToken, Once, ReadToken, file, mysql, object, postgres, redis, sqlite};
use fencepost_testbed::{Kind, own, shared};
use http::StatusCode;
use mysql_async::TxOpts;
use mysql_async::prelude::Queryable;
use rusqlite::TransactionBehavior;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GUIDE: &str = include_str!("../../../../docs/guides/fencing.md");
const HERE: &str = include_str!("guide.rs");

type Outcome = Result<(), Box<dyn std::error::Error>>;

const WALLET: &str =
    "CREATE TABLE wallet (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, version BIGINT NOT NULL DEFAULT 3);
    INSERT INTO wallet (id, balance) VALUES (7, 500);";

/// The code in the guide under `<!-- runs: name -->`.
fn shown(name: &str) -> &'static str {
    let (_, from_here) = GUIDE.split_once(&format!("<!-- runs: {name} -->")).unwrap_or_else(|| panic!("no {name}"));
    let (_, code) = from_here.split_once("```").and_then(|(_, rest)| rest.split_once('\n')).expect("code follows");
    code.split_once("```").expect("the code ends").0
}

/// The code in this file under `// guide: name`, without its indentation.
fn run_here(name: &str) -> String {
    let (_, from_here) =
        HERE.split_once(&format!("// guide: {name}\n")).unwrap_or_else(|| panic!("{name} does not run"));
    let (code, _) = from_here.split_once("// guide end").expect("it ends");
    let margin = code.len() - code.trim_start().len();
    code.lines().map(|line| line.get(margin..).unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_guide_shows_what_runs_here() {
    let names = GUIDE.lines().filter_map(|line| line.strip_prefix("<!-- runs: ")?.strip_suffix(" -->"));
    let names: Vec<&str> = names.collect();
    assert!(names.len() >= 21, "{names:?}");
    for name in names {
        if HERE.contains(&format!("(\"{name}\")")) {
            continue;
        }
        assert_eq!(shown(name).trim_end(), run_here(name).trim_end(), "{name}");
    }
}

fn token() -> FencingToken {
    "42".parse().expect("a token")
}

fn on_a_runtime(work: impl Future<Output = Outcome>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work).expect("it runs");
}

fn balance_in(database: &rusqlite::Connection) -> i64 {
    database.query_row("SELECT balance FROM wallet WHERE id = 7", [], |row| row.get(0)).expect("valid SQL")
}

fn bank() -> rusqlite::Connection {
    let mut database = rusqlite::Connection::open_in_memory().expect("memory");
    database.execute_batch(WALLET).expect("valid SQL");
    sqlite::install(&mut database).expect("a database of our own");
    database
}

#[test]
fn without_a_lock() {
    let database = bank();
    database.execute_batch(shown("transaction")).expect("valid SQL");
    assert_eq!(balance_in(&database), 400);
    database.execute_batch("UPDATE wallet SET balance = 500").expect("valid SQL");
    for rows in [1, 0] {
        assert_eq!(database.execute(shown("compare-and-swap"), []), Ok(rows), "the second is too late");
    }
    database.execute_batch("CREATE TABLE withdrawals (request TEXT PRIMARY KEY, wallet, amount)").expect("valid SQL");
    for rows in [1, 0] {
        assert_eq!(database.execute(shown("idempotency"), []), Ok(rows), "the second changes nothing");
    }
}

#[test]
fn decided_from_two() {
    struct Lock<Token>(Token);
    impl<Token: Copy> Lock<Token> {
        fn token(&self) -> Token {
            self.0
        }
    }
    let (order, price) = (Lock(token()), Lock::<ReadToken>("17".parse().expect("a token")));
    // guide: decided-from-two
    let access = Access::write("order:42", order.token()).and_read("price:3", price.token());
    // guide end
    assert_eq!(access.shown().expect("valid names").len(), 2);
}

#[test]
fn postgres_runs() {
    let Some(server) = own(Kind::Postgres) else { return };
    on_a_runtime(async {
        let (mut database, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        postgres::install(&mut database).await?;
        database.batch_execute(WALLET).await?;
        database.batch_execute(shown("postgres-sql")).await?;
        let token = token();
        let update = database.prepare("UPDATE wallet SET balance = $1 WHERE id = 7").await?;
        // guide: postgres
        let transaction = database.transaction().await?;
        let access = Access::write("wallet:7", token);
        let write = async { Ok(transaction.execute(&update, &[&400_i64]).await?) };
        tokio::try_join!(biased; postgres::admit(&transaction, &access), write)?;
        transaction.commit().await?;
        // guide end
        assert_eq!(postgres::status(&database).await?.writes, 2, "by SQL, and by Rust");

        database.batch_execute(shown("postgres-rows")).await?;
        let refused = database.batch_execute("UPDATE wallet SET balance = 300").await.expect_err("it shows no token");
        assert_eq!(refused.code().map(|code| code.code()), Some("FP428"));
        database.batch_execute("CREATE ROLE app LOGIN; GRANT SELECT, UPDATE ON wallet TO app").await?;
        database.batch_execute(shown("postgres-rights")).await?;
        let as_app = "SET ROLE app; BEGIN; SELECT fencepost.write('wallet:7', 42); UPDATE wallet SET balance = 300; COMMIT; RESET ROLE";
        database.batch_execute(as_app).await?;
        database.batch_execute("SELECT fencepost.unguard_rows('wallet')").await?;
        database.batch_execute(shown("postgres-column")).await?;
        let late = "UPDATE wallet SET fencing_token = 41, balance = 0 WHERE id = 7 AND fencing_token <= 41";
        assert_eq!(database.execute(late, &[]).await?, 0, "an older token changes nothing");
        Ok(())
    });
}

#[test]
fn mysql_runs() {
    let Some(server) = own(Kind::MariaDb) else { return };
    on_a_runtime(async {
        let options = mysql_async::OptsBuilder::from_opts(mysql_async::Opts::from_url(&server.url())?);
        let mut root = mysql_async::Conn::new(options.clone()).await?;
        let statements = |sql: &'static str| sql.split_inclusive(';').filter(|statement| statement.contains(';'));
        root.query_drop("CREATE DATABASE shop").await?;
        let options = options.db_name(Some("shop"));
        for statement in statements(shown("mysql-install")) {
            root.query_drop(statement).await?;
        }
        let installer = options.clone().user(Some("guard")).pass(Some("a password"));
        mysql::install(&mut mysql_async::Conn::new(installer).await?).await?;
        root.query_drop("CREATE USER app").await?;
        root.query_drop("USE shop").await?;
        for statement in statements(WALLET).chain(["GRANT SELECT, UPDATE ON shop.wallet TO app;"]) {
            root.query_drop(statement).await?;
        }
        for statement in statements(shown("mysql-rights")) {
            root.query_drop(statement).await?;
        }
        let mut database = mysql_async::Conn::new(options.user(Some("app"))).await?;
        for statement in statements(shown("mysql-sql")) {
            database.query_drop(statement).await?;
        }
        let token = token();
        // guide: mysql
        let mut transaction = database.start_transaction(TxOpts::default()).await?;
        mysql::admit(&mut transaction, &Access::write("wallet:7", token)).await?;
        transaction.exec_drop("UPDATE wallet SET balance = ? WHERE id = 7", (400,)).await?;
        transaction.commit().await?;
        // guide end
        assert_eq!(mysql::status(&mut root).await?.writes, 2, "by SQL, and by Rust");
        database.disconnect().await?;
        Ok(())
    });
}

const BILLS: &str = "CREATE TABLE account (id BIGINT PRIMARY KEY, due BIGINT NOT NULL);
    CREATE TABLE bill (id BIGINT NOT NULL, due BIGINT NOT NULL);
    INSERT INTO account VALUES (1, 10), (2, 20);";

// guide: once-postgres
async fn bill(database: &mut tokio_postgres::Client, token: FencingToken) -> Result<(), Error> {
    let transaction = database.transaction().await?;
    postgres::once(&transaction, "billing", "2026-11", token).await?;
    transaction.execute("INSERT INTO bill SELECT id, due FROM account", &[]).await?;
    Ok(transaction.commit().await?)
}
// guide end

// guide: once-batch
async fn bill_each(database: &mut tokio_postgres::Client, token: FencingToken) -> Result<(), Error> {
    let transaction = database.transaction().await?;
    for account in [1_i64, 2] {
        let key = format!("2026-12/{account}");
        if postgres::try_once(&transaction, "billing", &key, token).await? == Once::First {
            transaction.execute("INSERT INTO bill SELECT id, due FROM account WHERE id = $1", &[&account]).await?;
        }
    }
    Ok(transaction.commit().await?)
}
// guide end

#[test]
fn once_runs_in_postgres() {
    let Some(server) = own(Kind::Postgres) else { return };
    on_a_runtime(async {
        let (mut database, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        postgres::install(&mut database).await?;
        database.batch_execute(BILLS).await?;
        let bills = async |database: &tokio_postgres::Client| -> Result<i64, Box<dyn std::error::Error>> {
            Ok(database.query_one("SELECT count(*) FROM bill", &[]).await?.get(0))
        };
        database.batch_execute(shown("once-postgres-sql")).await?;
        let again = database.batch_execute(shown("once-postgres-sql")).await.expect_err("it was done before");
        assert_eq!(again.code().map(|code| code.code()), Some(postgres::BEFORE));
        database.batch_execute("ROLLBACK").await?;
        let token = token();
        // guide: once-outcome
        match bill(&mut database, token).await {
            Ok(()) => println!("billed"),
            Err(Error::Before(before)) if before.own => println!("billed by this holder: its commit took effect"),
            Err(Error::Before(before)) => println!("billed before, with token {}", before.token.0),
            Err(Error::Stale(_)) => println!("the lock is lost: another holder bills"),
            // A serialization failure, a deadlock, a lost connection: run it again from its start, on a new connection.
            Err(error) => return Err(error.into()),
        }
        // guide end
        assert_eq!(bills(&database).await?, 2, "the work was left out");
        for rows in [4, 4] {
            bill_each(&mut database, token).await?;
            assert_eq!(bills(&database).await?, rows, "the second batch finds nothing left");
        }
        postgres::forget(&database, "billing", "2026-11").await?;
        bill(&mut database, token).await?;
        assert_eq!(bills(&database).await?, 6);
        Ok(())
    });
}

#[test]
fn once_runs_in_mysql() {
    let Some(server) = own(Kind::MariaDb) else { return };
    on_a_runtime(async {
        let options = mysql_async::OptsBuilder::from_opts(mysql_async::Opts::from_url(&server.url())?);
        let mut root = mysql_async::Conn::new(options.clone()).await?;
        let statements = |sql: &'static str| sql.split_inclusive(';').filter(|statement| statement.contains(';'));
        root.query_drop("CREATE DATABASE shop").await?;
        for statement in statements(shown("mysql-install")).chain(["USE shop;"]).chain(statements(BILLS)) {
            root.query_drop(statement).await?;
        }
        let installer = options.db_name(Some("shop")).user(Some("guard")).pass(Some("a password"));
        mysql::install(&mut mysql_async::Conn::new(installer).await?).await?;
        for statement in statements(shown("once-mysql-sql")) {
            root.query_drop(statement).await?;
        }
        let mut refused = 0;
        for statement in statements(shown("once-mysql-sql")) {
            if let Err(mysql_async::Error::Server(error)) = root.query_drop(statement).await {
                assert_eq!(error.state, mysql::BEFORE);
                refused += 1;
                // A program that stops here, as it should.
                root.query_drop("ROLLBACK").await?;
                break;
            }
        }
        let bills: Option<i64> = root.query_first("SELECT count(*) FROM bill").await?;
        assert_eq!((refused, bills), (1, Some(2)));
        root.disconnect().await?;
        Ok(())
    });
}

#[test]
fn once_runs_in_sqlite() -> Outcome {
    let (mut database, token) = (bank(), token());
    database.execute_batch(BILLS)?;
    // guide: once-sqlite
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    sqlite::once(&transaction, "billing", "2026-11", token)?;
    transaction.execute("INSERT INTO bill SELECT id, due FROM account", [])?;
    transaction.commit()?;
    // guide end
    let again = database.transaction()?;
    assert!(sqlite::once(&again, "billing", "2026-11", token).is_err_and(|error| error.before().is_some()));
    Ok(())
}

#[test]
fn sqlite_runs() -> Outcome {
    let (mut database, token) = (bank(), token());
    // guide: sqlite
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    sqlite::admit(&transaction, &Access::write("wallet:7", token))?;
    transaction.execute("UPDATE wallet SET balance = ?1 WHERE id = 7", [400])?;
    transaction.commit()?;
    // guide end
    assert_eq!(balance_in(&database), 400);
    Ok(())
}

#[test]
fn file_runs() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (marks, report) = (directory.path().join("marks"), directory.path().join("report.txt"));
    file::install(&marks)?;
    let token = token();
    // guide: file
    let guard = file::Guard::open(&marks)?;
    let before = guard.admit(&Access::claim("report", token), || std::fs::read(&report).ok())?;
    guard.write(&Access::write("report", token), &report, b"all is well")?;
    // guide end
    assert_eq!((before, std::fs::read(&report)?), (None, b"all is well".to_vec()));
    Ok(())
}

#[test]
fn object_runs() {
    on_a_runtime(async {
        let (store, token) = (Arc::new(object_store::memory::InMemory::new()), token());
        // guide: object
        let guard = object::Guard::open(store).await?;
        let before = guard.claim(&Access::claim("reports/today", token)).await?;
        guard.write(&Access::write("reports/today", token), "all is well".into()).await?;
        // guide end
        assert_eq!(before, None);
        let now = guard.claim(&Access::claim("reports/today", token)).await?;
        assert_eq!(now.as_deref(), Some(&b"all is well"[..]));
        Ok(())
    });
}

#[test]
fn redis_runs() {
    let Some(server) = shared(Kind::Redis) else { return };
    on_a_runtime(async {
        let mut connection = ::redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
        let () = ::redis::cmd("SET").arg("wallet:7").arg(500).query_async(&mut connection).await?;
        let token = token();
        // guide: redis
        let guard = redis::Guard::default();
        let claim = Access::claim("wallet:7", token);
        let (balance,): (i64,) = guard.claim(&mut connection, &claim, ::redis::pipe().get("wallet:7")).await?;
        let write = Access::write("wallet:7", token);
        let () = guard.write(&mut connection, &write, ::redis::pipe().set("wallet:7", balance - 100)).await?;
        // guide end
        let left: i64 = ::redis::cmd("GET").arg("wallet:7").query_async(&mut connection).await?;
        assert_eq!(left, 400);
        Ok(())
    });
}

type Bank = Arc<Mutex<rusqlite::Connection>>;

// guide: http
async fn pay(State(bank): State<Bank>, presented: Extension<Presented>) -> Result<StatusCode, Refused> {
    let mut database = bank.lock().expect("no thread panics with it");
    let transaction = database.transaction().map_err(failed)?;
    sqlite::admit(&transaction, &presented.write("wallet:7"))?;
    transaction.execute("UPDATE wallet SET balance = 400 WHERE id = 7", []).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(StatusCode::NO_CONTENT)
}
// guide end

fn failed(error: rusqlite::Error) -> fencepost_fence::Error {
    fencepost_fence::Error::Store(error.into())
}

#[test]
fn http_runs() {
    on_a_runtime(async {
        let bank: Bank = Arc::new(Mutex::new(bank()));
        let service = Router::new().route("/pay", routing::post(pay)).with_state(bank).layer(FencingLayer::new());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async { axum::serve(listener, service).await });
        for (header, answer) in [("", "428"), ("Fencing-Token: 42\r\n", "204"), ("Fencing-Token: 41\r\n", "412")] {
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            let request = format!("POST /pay HTTP/1.1\r\nHost: bank\r\nConnection: close\r\n{header}\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut said = String::new();
            stream.read_to_string(&mut said).await?;
            assert!(said.starts_with(&format!("HTTP/1.1 {answer}")), "{header:?}: {said}");
        }
        Ok(())
    });
}
