//! `fencepost fence` with each real store: `init`, `status`, `gc` and `forget`, and what they print.

use crate::harness::{Dev, fencepost};
use fencepost_testbed::{Kind, shared};

/// Runs `init`, `status` and `gc`, with the marks of one write.
fn check_init_status_and_gc(address: &str, created: &str, write_with_token_3: impl FnOnce()) {
    fencepost(&["fence", "init", address]).ok().says(created);
    fencepost(&["fence", "init", address]).ok().says("is already installed; nothing was changed");
    write_with_token_3();
    fencepost(&["fence", "status", address]).ok().says("HIGHEST TOKEN");
    let status = fencepost(&["fence", "status", address, "-o", "json"]).ok().json();
    assert_eq!((&status["names"], &status["writes"]), (&1.into(), &1.into()), "{status}");
    assert_eq!((&status["highest_token"], &status["base_floor"]), (&3.into(), &0.into()), "{status}");

    let dev = Dev::start();
    let early = dev.fencepost(&["fence", "gc", address]).with_code(1).says("has seen token 3");
    assert!(early.stderr.contains("another cluster"), "{}", early.stderr);
    // The cluster gives three tokens, then a fourth to a lock that stays held.
    (0..3).for_each(|_| drop(dev.fencepost(&["run", "other", "--", "true"]).ok()));
    let _holder = dev.hold("wallet:7");
    dev.fencepost(&["fence", "gc", address]).ok().says("forgot the marks of 1 names").says("below 4");
    let again = dev.fencepost(&["fence", "gc", address, "-o", "json"]).ok().json();
    assert_eq!((&again["names_forgotten"], &again["base_floor"]), (&0.into(), &4.into()), "{again}");
}

#[test]
fn init_status_and_gc_with_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let address = format!("sqlite:{}", file.display());
    fencepost(&["fence", "init", &address]).with_code(125).says("name an existing file");
    let mut database = rusqlite::Connection::open(&file).unwrap();
    database.execute_batch("CREATE TABLE wallet (id INTEGER)").unwrap();
    fencepost(&["fence", "status", &address]).with_code(1).says("run `fencepost fence init sqlite:FILE`");
    check_init_status_and_gc(&address, "created the tables fencepost_base, fencepost_marks and fencepost_keys", || {
        let access = fencepost_fence::Access::write("wallet:7", "3".parse().unwrap());
        let transaction = database.transaction().unwrap();
        fencepost_fence::sqlite::admit(&transaction, &access).unwrap();
        transaction.commit().unwrap();
    });
}

#[test]
fn init_status_and_gc_with_a_directory_of_files() {
    let directory = tempfile::tempdir().unwrap();
    let marks = directory.path().join("marks");
    check_init_status_and_gc(&format!("file:{}", marks.display()), "created the file fencepost-marks", || {
        let access = fencepost_fence::Access::write("wallet:7", "3".parse().unwrap());
        fencepost_fence::file::Guard::open(&marks).unwrap().admit(&access, || ()).unwrap();
    });
}

/// `--print` prints the script that `init` runs. A program without Fencepost's library writes with token 3, by a call of
/// the SQL function `fencepost.write`.
#[test]
fn init_status_and_gc_with_postgres() {
    let Some(server) = shared(Kind::Postgres) else { return };
    fencepost(&["fence", "status", &server.url()]).with_code(1).says("run `fencepost fence init postgres://...`");
    let script = fencepost(&["fence", "init", "--print", &server.url()]).ok().stdout;
    assert!(script.contains("CREATE OR REPLACE FUNCTION fencepost.write"), "{script}");
    check_init_status_and_gc(&server.url(), "created the schema fencepost", || {
        on_a_runtime(async {
            let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("SELECT fencepost.write('wallet:7', 3)").await.unwrap();
        });
    });
}

/// An older program installed the guard.
#[test]
fn an_older_guard_in_postgres_is_upgraded_with_a_message() {
    let Some(server) = shared(Kind::Postgres) else { return };
    let address = format!("{}/old_guard", server.url().trim_end_matches("/postgres"));
    on_a_runtime(async {
        let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("CREATE DATABASE old_guard").await.unwrap();
        let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(include_str!("../../../fence/tests/fixtures/postgres-version-1.sql")).await.unwrap();
        client.batch_execute("SELECT fencepost.write('wallet:7', 3)").await.unwrap();
    });
    fencepost(&["fence", "status", &address]).with_code(1).says("run `fencepost fence init postgres://...`");
    fencepost(&["fence", "init", &address]).ok().says("upgraded the schema fencepost").says("from version 1 to 3");
    fencepost(&["fence", "init", &address]).ok().says("is already installed; nothing was changed");
    let status = fencepost(&["fence", "status", &address, "-o", "json"]).ok().json();
    assert_eq!((&status["version"], &status["highest_token"]), (&3.into(), &3.into()), "{status}");
}

/// Runs statements as root of the shared MariaDB, in a separate database with an account that may install the guard. Returns the
/// account's address.
fn in_mariadb(server: &fencepost_testbed::Server, database: &str, statements: &[&str]) -> String {
    use mysql_async::prelude::Queryable;
    on_a_runtime(async {
        let options = mysql_async::Opts::from_url(&server.url()).unwrap();
        let mut connection = mysql_async::Conn::new(options).await.unwrap();
        let rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE ROUTINE, ALTER ROUTINE, EXECUTE";
        for prepare in [
            format!("CREATE DATABASE IF NOT EXISTS {database}"),
            format!("CREATE USER IF NOT EXISTS guard_{database}"),
            format!("GRANT {rights} ON {database}.* TO guard_{database}"),
            format!("USE {database}"),
        ] {
            connection.query_drop(prepare).await.unwrap();
        }
        for statement in statements {
            connection.query_drop(*statement).await.unwrap();
        }
        connection.disconnect().await.unwrap();
    });
    format!("mysql://guard_{database}@127.0.0.1:{}/{database}", server.port())
}

const WRITE_WITH_TOKEN_3: [&str; 3] = ["START TRANSACTION", "CALL fencepost_write('wallet:7', 3)", "COMMIT"];

#[test]
fn init_status_and_gc_with_mariadb() {
    let Some(server) = shared(Kind::MariaDb) else { return };
    let address = in_mariadb(server, "shop", &[]);
    fencepost(&["fence", "status", &address]).with_code(1).says("run `fencepost fence init mysql://...`");
    fencepost(&["fence", "init", &server.url()]).with_code(1).says("as an account of its own").says("CREATE USER");
    check_init_status_and_gc(&address, "created the tables fencepost_base, fencepost_marks and fencepost_keys", || {
        in_mariadb(server, "shop", &WRITE_WITH_TOKEN_3);
    });
}

#[test]
fn an_older_guard_in_mariadb_is_upgraded_with_a_message() {
    let Some(server) = shared(Kind::MariaDb) else { return };
    let script = include_str!("../../../fence/tests/fixtures/mysql-version-1.sql");
    let (_, statements) = script.split_once("\nDELIMITER //\n").unwrap();
    let statements: Vec<&str> = statements.split_terminator("\n//\n").chain(WRITE_WITH_TOKEN_3).collect();
    let address = in_mariadb(server, "old_guard", &statements);
    fencepost(&["fence", "status", &address]).with_code(1).says("run `fencepost fence init mysql://...`");
    fencepost(&["fence", "init", &address]).ok().says("upgraded the tables").says("from version 1 to 3");
    let status = fencepost(&["fence", "status", &address, "-o", "json"]).ok().json();
    assert_eq!((&status["version"], &status["highest_token"]), (&3.into(), &3.into()), "{status}");
}

/// The keys `2026-11` and `2026-12` are recorded under billing, with token 3. `gc` leaves them; `forget` removes one.
fn check_forget(address: &str) {
    let dev = Dev::start();
    (0..4).for_each(|_| drop(dev.fencepost(&["run", "other", "--", "true"]).ok()));
    dev.fencepost(&["fence", "gc", address]).ok().says("forgot the marks of");
    let status = fencepost(&["fence", "status", address, "-o", "json"]).ok().json();
    assert_eq!((&status["names"], &status["keys"]), (&0.into(), &2.into()), "{status}");
    fencepost(&["fence", "status", address]).ok().says("KEYS");

    let forget = ["fence", "forget", address, "billing", "2026-11"];
    fencepost(&forget).with_code(2).says("2026-11").says("be done again").says("pass --yes");
    for (name, key) in [("billing", "2026-10"), ("billing", "2026-11 "), ("Billing", "2026-11")] {
        fencepost(&["fence", "forget", address, name, key, "--yes"]).with_code(1).says("nothing was forgotten");
    }
    for key in ["", &"k".repeat(257), "a\tb"] {
        fencepost(&["fence", "forget", address, "billing", key, "--yes"]).with_code(2).says("the key is not valid");
    }
    fencepost(&[&forget[..], &["--yes"]].concat()).ok().says("forgot the key \"2026-11\"").says("token 3");
    fencepost(&[&forget[..], &["--yes"]].concat()).with_code(1).says("nothing was forgotten");
    let other = fencepost(&["fence", "forget", address, "billing", "2026-12", "-y", "-o", "json"]).ok().json();
    assert_eq!((&other["token"], &other["key"]), (&3.into(), &"2026-12".into()), "{other}");
    assert_eq!(fencepost(&["fence", "status", address, "-o", "json"]).ok().json()["keys"], 0);
}

#[test]
fn forget_with_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let address = format!("sqlite:{}", file.display());
    let mut database = rusqlite::Connection::open(&file).unwrap();
    database.execute_batch("CREATE TABLE bill (id INTEGER)").unwrap();
    fencepost(&["fence", "forget", &address, "billing", "a", "--yes"]).with_code(1).says("run `fencepost fence init");
    fencepost(&["fence", "init", &address]).ok();
    for key in ["2026-11", "2026-12"] {
        let transaction = database.transaction().unwrap();
        fencepost_fence::sqlite::once(&transaction, "billing", key, "3".parse().unwrap()).unwrap();
        transaction.commit().unwrap();
    }
    check_forget(&address);
}

#[test]
fn forget_with_postgres() {
    let Some(server) = shared(Kind::Postgres) else { return };
    let address = format!("{}/forgets", server.url().trim_end_matches("/postgres"));
    on_a_runtime(async {
        let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("CREATE DATABASE forgets").await.unwrap();
    });
    fencepost(&["fence", "init", &address]).ok();
    on_a_runtime(async {
        let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        for key in ["2026-11", "2026-12"] {
            let record = format!("SELECT fencepost.write('billing', 3); SELECT fencepost.once('billing', '{key}')");
            client.batch_execute(&format!("BEGIN; {record}; COMMIT")).await.unwrap();
        }
    });
    check_forget(&address);
}

#[test]
fn forget_with_mariadb() {
    let Some(server) = shared(Kind::MariaDb) else { return };
    let address = in_mariadb(server, "forgets", &[]);
    fencepost(&["fence", "init", &address]).ok();
    for key in ["2026-11", "2026-12"] {
        let once = format!("CALL fencepost_once('billing', '{key}', 3)");
        in_mariadb(server, "forgets", &["START TRANSACTION", &once, "COMMIT"]);
    }
    check_forget(&address);
}

#[test]
fn a_store_without_once_has_no_key_to_forget() {
    for address in ["file:marks", "redis://127.0.0.1:1/"] {
        let refused = fencepost(&["fence", "forget", address, "billing", "2026-11", "--yes"]).with_code(2);
        assert!(refused.stderr.contains("Postgres, MySQL, MariaDB and SQLite"), "{}", refused.stderr);
    }
    let directory = tempfile::tempdir().unwrap();
    let address = format!("file:{}", directory.path().join("marks").display());
    fencepost(&["fence", "init", &address]).ok();
    assert!(fencepost(&["fence", "status", &address, "-o", "json"]).ok().json()["keys"].is_null());
}

#[test]
fn redis_needs_nothing_and_a_message_says_that_it_is_for_efficiency_only() {
    let Some(server) = shared(Kind::Redis) else { return };
    fencepost(&["fence", "init", &server.url()]).ok().says("created nothing").says("for efficiency only");
    fencepost(&["fence", "status", &server.url()]).ok().says("for efficiency only");
}

fn on_a_runtime(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}
