//! `once` in MySQL and MariaDB: a key and its work commit together, at every isolation level.

use std::time::{Duration, Instant};

use fencepost_fence::{Error, FencingToken, Installed, Once, Status, Token, mysql};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, IsolationLevel, Transaction, TxOpts};

use crate::mysql::{Client, MySql, begin, commit, number, set, state_of, with_store};
use crate::suite::{Connection, Lost, Records, Store, before, block_on, done_before, writer};

/// Ends the transaction at once. One that is only dropped stays open until its connection is used again, and blocks others.
async fn end<Done>(transaction: Transaction<'_>, outcome: Result<Done, Error>) -> Result<Done, Error> {
    match outcome {
        Ok(done) => commit(transaction).await.map(|()| done),
        Err(refused) => {
            let _ = transaction.rollback().await;
            Err(refused)
        }
    }
}

impl Records for Client {
    async fn once(&mut self, name: &str, key: &str, token: FencingToken) -> Result<(), Error> {
        let mut transaction = begin(&mut self.0).await;
        let outcome = mysql::once(&mut transaction, name, key, token).await;
        if outcome.is_ok() {
            let now = number(&mut transaction, name).await;
            set(&mut transaction, name, now + 1).await;
        }
        end(transaction, outcome).await
    }

    async fn batch(&mut self, name: &str, keys: &[&str], token: FencingToken) -> Result<Vec<Once>, Error> {
        let mut transaction = begin(&mut self.0).await;
        let mut found = Vec::new();
        for key in keys {
            match mysql::try_once(&mut transaction, name, key, token).await {
                Ok(once) => found.push(once),
                Err(refused) => return end(transaction, Err(refused)).await,
            }
        }
        end(transaction, Ok(found)).await
    }

    async fn once_and_crash(mut self, name: &str, key: &str, token: FencingToken) {
        let mut transaction = begin(&mut self.0).await;
        mysql::once(&mut transaction, name, key, token).await.expect("the first");
        let now = number(&mut transaction, name).await;
        set(&mut transaction, name, now + 1).await;
        drop(transaction);
    }

    async fn forget(&mut self, name: &str, key: &str) -> Result<Option<Token>, Error> {
        mysql::forget(&mut self.0, name, key).await
    }

    async fn status(&mut self) -> Status {
        mysql::status(&mut self.0).await.expect("it is there")
    }
}

crate::suite::once_suite!(MySql::fresh());

const LEVELS: [IsolationLevel; 4] = [
    IsolationLevel::ReadUncommitted,
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

async fn run(connection: &mut impl Queryable, sql: &str) {
    connection.query_drop(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn one(connection: &mut impl Queryable, sql: &str) -> Option<i64> {
    connection.query_first(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")).expect("a row")
}

// Rule: once
#[test]
fn outside_of_a_transaction_it_is_refused() {
    with_store(async |store| {
        let mut connection = store.open().await;
        for call in ["fencepost_once('billing', 'a', 5)", "fencepost_try_once('billing', 'a', 5, @first)"] {
            assert_eq!(state_of(&mut connection, &format!("CALL {call}")).await, "FP428", "{call}");
            // A token that an earlier transaction has shown does not help.
            run(&mut connection, "START TRANSACTION").await;
            run(&mut connection, "CALL fencepost_write('billing', 5)").await;
            run(&mut connection, "COMMIT").await;
            assert_eq!(state_of(&mut connection, &format!("CALL {call}")).await, "FP428", "{call}");
        }
        assert_eq!(one(&mut connection, "SELECT count(*) FROM fencepost_keys").await, Some(0));
    });
}

/// The token is shown by the call itself. So a rollback to a savepoint takes back both, the key and the mark.
#[test]
fn rolling_back_to_a_savepoint_takes_the_key_and_the_token_back() {
    with_store(async |store| {
        let mut connection = store.open().await;
        let mut transaction = begin(&mut connection).await;
        run(&mut transaction, "SAVEPOINT s").await;
        mysql::once(&mut transaction, "billing", "a", writer(7)).await.expect("the first");
        run(&mut transaction, "ROLLBACK TO SAVEPOINT s").await;
        mysql::once(&mut transaction, "billing", "a", writer(5)).await.expect("the mark of 7 is gone as well");
        commit(transaction).await.expect("it serves");
        let token = "SELECT token FROM fencepost_keys WHERE name = 'billing' AND job_key = 'a'";
        assert_eq!(one(&mut connection, token).await, Some(5));
    });
}

async fn at(connection: &mut Conn, level: IsolationLevel) -> Transaction<'_> {
    connection.start_transaction(TxOpts::default().with_isolation_level(level).clone()).await.expect("it serves")
}

async fn work(transaction: &mut Transaction<'_>, token: u64) -> Result<(), Error> {
    mysql::once(transaction, "billing", "2026-11", writer(token)).await?;
    run(transaction, "UPDATE numbers SET number = number + 1 WHERE name = 'billing'").await;
    Ok(())
}

/// One transaction after the other, and at the same time: the second begins while the first is open, and waits for it.
// Rule: once
#[test]
fn the_second_transaction_is_refused_at_every_level() {
    for level in LEVELS {
        with_store(async |store| {
            let (mut ahead, mut behind) = (store.open().await, store.open().await);
            run(&mut ahead, "INSERT INTO numbers VALUES ('billing', 0)").await;
            for (commits, token) in [(false, 5), (true, 5), (true, 6)] {
                run(&mut ahead, "DELETE FROM fencepost_keys").await;
                run(&mut ahead, "DELETE FROM fencepost_marks").await;
                run(&mut ahead, "UPDATE numbers SET number = 0").await;
                let mut first = at(&mut ahead, level).await;
                work(&mut first, 5).await.expect("the first");
                let mut second = at(&mut behind, level).await;
                let mut observer = store.open().await;
                let end = async {
                    a_transaction_waits(&mut observer).await;
                    if commits { first.commit().await } else { first.rollback().await }.expect("it serves");
                };
                let (outcome, ()) = tokio::join!(work(&mut second, token), end);
                if commits {
                    done_before(outcome, &before("billing", "2026-11", 5, token == 5));
                    second.rollback().await.expect("it serves");
                } else {
                    outcome.expect("the first has left nothing");
                    commit(second).await.expect("it serves");
                }
                let mut later = at(&mut behind, level).await;
                done_before(
                    work(&mut later, 7).await,
                    &before("billing", "2026-11", if commits { 5 } else { token }, false),
                );
                later.rollback().await.expect("it serves");
                let left = one(&mut observer, "SELECT number FROM numbers WHERE name = 'billing'").await;
                assert_eq!(left, Some(1), "{level:?} {commits} {token}");
            }
        });
    }
}

/// Waits until a statement in this database has been running for so long that it must be waiting for a lock. (The table of the
/// transactions that wait is not refreshed while several tests read it.)
async fn a_transaction_waits(observer: &mut Conn) {
    let waiting = "SELECT count(*) FROM information_schema.processlist
        WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command IN ('Query', 'Execute') AND time_ms > 100";
    let deadline = Instant::now() + Duration::from_secs(60);
    while one(observer, waiting).await == Some(0) {
        assert!(Instant::now() < deadline, "no transaction waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Transactions of one name wait for each other at its mark, so the keys of batches in any order do not deadlock.
#[test]
fn batches_in_another_order_do_not_deadlock() {
    const ROUNDS: usize = 40;
    let Some(store) = MySql::fresh() else { return };
    std::thread::scope(|scope| {
        for forth in [true, false, true, false] {
            let store = &store;
            scope.spawn(move || {
                block_on(async {
                    let mut client = store.connect().await;
                    for round in 0..ROUNDS {
                        let mut keys: Vec<String> = (0..8).map(|item| format!("{round}/{item}")).collect();
                        if !forth {
                            keys.reverse();
                        }
                        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                        client.batch("billing", &keys, writer(5)).await.expect("there is no deadlock");
                    }
                });
            });
        }
    });
    block_on(async { assert_eq!(store.connect().await.status().await.keys, Some(8 * ROUNDS as u64)) });
}

#[test]
fn from_plain_sql_keys_that_are_not_valid_are_refused_in_every_mode() {
    with_store(async |store| {
        let mut connection = store.open().await;
        for mode in ["", "STRICT_TRANS_TABLES", "ANSI_QUOTES,PIPES_AS_CONCAT", "PAD_CHAR_TO_FULL_LENGTH"] {
            run(&mut connection, &format!("SET SESSION sql_mode = '{mode}'")).await;
            let mut transaction = begin(&mut connection).await;
            for key in [
                "NULL",
                "''",
                "REPEAT('k', 257)",
                "REPEAT('ü', 129)",
                "CONCAT(REPEAT('k', 256), ' ')",
                r"'a\0b'",
                r"'line\nbreak'",
                "CONVERT(x'C285' USING utf8mb4)",
            ] {
                for call in ["fencepost_once('billing', KEY, 5)", "fencepost_try_once('billing', KEY, 5, @first)"] {
                    let call = format!("CALL {}", call.replace("KEY", key));
                    assert_eq!(state_of(&mut transaction, &call).await, "FP400", "{mode}: {call}");
                }
            }
            for (name, token) in
                [("NULL", "5"), ("''", "5"), ("'/a//b'", "5"), ("'a'", "NULL"), ("'a'", "0"), ("'a'", "'x'")]
            {
                let call = format!("CALL fencepost_once({name}, 'k', {token})");
                assert_eq!(state_of(&mut transaction, &call).await, "FP400", "{mode}: {call}");
            }
            drop(transaction);
        }
        assert_eq!(one(&mut connection, "SELECT count(*) FROM fencepost_keys").await, Some(0));
    });
}

/// Whatever the connection's character set and collation are.
#[test]
fn from_plain_sql_keys_are_compared_byte_by_byte() {
    with_store(async |store| {
        let mut connection = store.open().await;
        for (names, token) in [("utf8mb4 COLLATE utf8mb4_general_ci", 5), ("latin1", 6)] {
            run(&mut connection, &format!("SET NAMES {names}")).await;
            let mut transaction = begin(&mut connection).await;
            for key in ["'a'", "'A'", "'a '", "_utf8mb4'ä'", "'  a'"] {
                run(&mut transaction, &format!("CALL fencepost_try_once('billing', {key}, {token}, @first)")).await;
                assert_eq!(one(&mut transaction, "SELECT @first").await, Some(i64::from(token == 5)), "{names} {key}");
            }
            commit(transaction).await.expect("it serves");
        }
        let lengths = "SELECT GROUP_CONCAT(LENGTH(job_key) ORDER BY job_key) FROM fencepost_keys";
        let lengths: Option<String> = connection.query_first(lengths).await.expect("valid SQL");
        assert_eq!(lengths.as_deref(), Some("3,1,1,2,2"));
    });
}

#[test]
fn a_connection_lost_at_commit_runs_again() {
    with_store(async |store| {
        let mut root = store.open().await;
        let server = mysql_async::Opts::from(store.options.clone()).tcp_port();
        for lost in [Lost::Commit, Lost::Answer] {
            for table in ["fencepost_keys", "fencepost_marks", "numbers"] {
                run(&mut root, &format!("DELETE FROM {table}")).await;
            }
            let port = crate::suite::cut_at_commit(server, lost).await;
            let options = store
                .options
                .clone()
                .ip_or_hostname("127.0.0.1")
                .tcp_port(port)
                .prefer_socket(false)
                .max_allowed_packet(Some(1 << 20));
            let open = async || Client(Conn::new(options.clone()).await.expect("it serves"));
            crate::suite::a_commit_without_an_answer_is_recognised(open, lost).await;
        }
    });
}

/// MySQL keeps the transaction open after the refusal: dropping it rolls back.
#[test]
fn after_the_refusal_a_drop_undoes_the_transaction() {
    with_store(async |store| {
        let mut client = store.connect().await;
        client.once("billing", "a", writer(5)).await.expect("the first");
        let mut transaction = begin(&mut client.0).await;
        set(&mut transaction, "log", 1).await;
        let refused = mysql::once(&mut transaction, "billing", "a", writer(6)).await;
        done_before(refused, &before("billing", "a", 5, false));
        drop(transaction);
        assert_eq!(client.peek("log").await, 0);
        client.write("billing", writer(5), 9).await.expect("the mark of 6 is gone as well");
    });
}

/// Two traps. The documentation warns of them.
#[test]
fn trap_a_change_of_a_table_commits_the_key_alone() {
    with_store(async |store| {
        let mut client = store.connect().await;
        let mut transaction = begin(&mut client.0).await;
        mysql::once(&mut transaction, "billing", "a", writer(5)).await.expect("the first");
        run(&mut transaction, "CREATE TABLE unrelated (id INT)").await;
        set(&mut transaction, "billing", 1).await;
        drop(transaction);
        assert_eq!(client.status().await.keys, Some(1), "the key is there although the transaction was rolled back");
    });
}

#[test]
fn trap_a_key_that_the_transaction_itself_has_recorded_looks_like_done() {
    with_store(async |store| {
        let mut client = store.connect().await;
        let mut transaction = begin(&mut client.0).await;
        mysql::once(&mut transaction, "billing", "a", writer(5)).await.expect("the first");
        let refused = mysql::once(&mut transaction, "billing", "a", writer(5)).await;
        done_before(refused, &before("billing", "a", 5, true));
    });
}

#[test]
fn a_version_without_keys_is_upgraded() {
    with_store(async |store| {
        let mut root = store.open().await;
        for as_version_2_was in [
            "DROP PROCEDURE fencepost_once",
            "DROP PROCEDURE fencepost_try_once",
            "DROP PROCEDURE fencepost_record",
            "DROP TABLE fencepost_keys",
            "UPDATE fencepost_base SET version = 2",
        ] {
            run(&mut root, as_version_2_was).await;
        }
        let mut client = store.connect().await;
        let missing = [
            client.once("billing", "a", writer(5)).await,
            client.forget("billing", "a").await.map(drop),
            mysql::status(&mut client.0).await.map(drop),
        ];
        for missing in missing {
            let missing = missing.expect_err("it has no keys");
            assert!(missing.to_string().contains("run `fencepost fence init"), "{missing}");
        }
        let mut installer = store.open_as(&store.installer().await).await;
        let upgraded = mysql::install(&mut installer).await.expect("it is older");
        assert_eq!(upgraded, Installed::Upgraded { from: 2, to: mysql::VERSION });
        client.once("billing", "a", writer(5)).await.expect("the first");
        run(&mut root, "UPDATE fencepost_base SET version = 2").await;
        mysql::install(&mut installer).await.expect("it is older");
        assert_eq!(client.status().await.keys, Some(1), "keys are kept");
    });
}
