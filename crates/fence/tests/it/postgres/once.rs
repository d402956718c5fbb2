//! `once`: a key and its work commit together, at every isolation level, and only in a transaction that has shown its token.

use fencepost_fence::{Access, Error, FencingToken, Installed, Once, Status, Token, postgres};
use tokio_postgres::{Client, Config, IsolationLevel, Transaction};

use crate::postgres::{Database, a_session_waits, balance, begin, code, code_of, done, number, one, open, run, set};
use crate::suite::{Connection, Lost, Records, before, block_on, done_before, stale, writer};

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];
const OLD_VIEW: &str = "40001";
const BAD: &str = "FP400";
/// The database as it was at first.
const CLEAN: &str = "TRUNCATE fencepost.keys, fencepost.marks, numbers; UPDATE wallet SET balance = 100";

impl Records for Client {
    async fn once(&mut self, name: &str, key: &str, token: FencingToken) -> Result<(), Error> {
        let transaction = begin(self).await;
        postgres::once(&transaction, name, key, token).await?;
        let now = number(&transaction, name).await;
        set(&transaction, name, now + 1).await;
        Ok(transaction.commit().await?)
    }

    async fn batch(&mut self, name: &str, keys: &[&str], token: FencingToken) -> Result<Vec<Once>, Error> {
        let transaction = begin(self).await;
        let mut found = Vec::new();
        for key in keys {
            found.push(postgres::try_once(&transaction, name, key, token).await?);
        }
        transaction.commit().await?;
        Ok(found)
    }

    async fn once_and_crash(mut self, name: &str, key: &str, token: FencingToken) {
        let transaction = begin(&mut self).await;
        postgres::once(&transaction, name, key, token).await.expect("the first");
        let now = number(&transaction, name).await;
        set(&transaction, name, now + 1).await;
        std::mem::forget(transaction);
    }

    async fn forget(&mut self, name: &str, key: &str) -> Result<Option<Token>, Error> {
        postgres::forget(self, name, key).await
    }

    async fn status(&mut self) -> Status {
        postgres::status(self).await.expect("it is there")
    }
}

crate::suite::once_suite!(Database::fresh());

const EACH: [&str; 4] = ["once", "try_once", "record_once", "record"];

// Rule: once
#[test]
fn without_a_token_of_this_name_shown_in_this_transaction_it_is_refused() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        for function in EACH {
            let once = format!("SELECT fencepost.{function}('billing', '2026-11')");
            assert_eq!(code(&client, &once).await, postgres::MISSING, "in autocommit: {function}");
            // In autocommit the token belongs to another transaction, although it is the same session.
            run(&client, "SELECT fencepost.write('billing', 5)").await;
            assert_eq!(code(&client, &once).await, postgres::MISSING, "in autocommit: {function}");
            for not_enough in [
                "",
                "SELECT fencepost.write('shipping', 5)",
                "SELECT fencepost.write('/billing', 5)",
                "SELECT fencepost.claim('billing', 5)",
                "SELECT fencepost.read('billing', 5)",
                "SAVEPOINT s; SELECT fencepost.write('billing', 5); ROLLBACK TO s",
                "SAVEPOINT s; SELECT fencepost.write('billing', 5); SAVEPOINT t; RELEASE t; ROLLBACK TO s; RELEASE s",
                "SELECT fencepost.write('billing', 5); COMMIT; BEGIN",
                "SELECT fencepost.write('billing', 5); ROLLBACK; BEGIN",
            ] {
                run(&client, &format!("BEGIN; {not_enough}")).await;
                assert_eq!(code(&client, &once).await, postgres::MISSING, "{not_enough}: {function}");
                run(&client, "ROLLBACK").await;
            }
            let enough = "SELECT fencepost.write('billing', 5); SAVEPOINT s; RELEASE s; SAVEPOINT t; ROLLBACK TO t";
            run(&client, &format!("BEGIN; {enough}; {once}; ROLLBACK")).await;
        }
        assert_eq!(one(&client, "SELECT count(*) FROM fencepost.keys").await, 0);
        let error = client.batch_execute("SELECT fencepost.once('billing', 'a')").await.expect_err("nothing was shown");
        assert!(Error::from(error).to_string().contains("SELECT fencepost.write('billing', "), "it says what to do");
    });
}

/// A lock on a path covers the names below it.
#[test]
fn a_token_for_a_path_records_keys_below_it_and_the_nearest_token_counts() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, "BEGIN; SELECT fencepost.write('/jobs', 5); SELECT fencepost.once('/jobs/billing', 'a')").await;
        run(&client, "SELECT fencepost.write('/jobs/billing', 7); SELECT fencepost.once('/jobs/billing', 'b')").await;
        assert_eq!(code(&client, "SELECT fencepost.once('/job', 'c')").await, postgres::MISSING);
        run(&client, "ROLLBACK; BEGIN; SELECT fencepost.write('/jobs', 5)").await;
        run(&client, "SELECT fencepost.once('/jobs/billing', 'a'); SELECT fencepost.write('/jobs/billing', 7)").await;
        run(&client, "SELECT fencepost.once('/jobs/billing', 'b'); COMMIT").await;
        let tokens = "SELECT sum(token * CASE job_key WHEN 'a' THEN 1 ELSE 100 END)::bigint FROM fencepost.keys";
        assert_eq!(one(&client, tokens).await, 705);
    });
}

/// A key that a savepoint has undone is not recorded. The proof and the work stay.
#[test]
fn rolling_back_to_a_savepoint_takes_the_key_back() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        let once = "SELECT fencepost.once('billing', 'a')";
        run(&client, &format!("BEGIN; SELECT fencepost.write('billing', 5); SAVEPOINT s; {once}; ROLLBACK TO s")).await;
        run(&client, &format!("{once}; COMMIT")).await;
        assert_eq!(one(&client, "SELECT count(*) FROM fencepost.keys").await, 1);
    });
}

/// Nothing is committed yet, so it must not look like a commit of the same holder.
// Rule: once
#[test]
fn a_key_that_the_transaction_itself_has_recorded_does_not_count_as_done() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        let transaction = begin(&mut client).await;
        postgres::once(&transaction, "billing", "a", writer(5)).await.expect("the first");
        let refused = postgres::once(&transaction, "billing", "a", writer(5)).await.expect_err("it is a mistake");
        assert_eq!(code_of(&refused), BAD, "{refused}");
        drop(transaction);
        assert_eq!(one(&client, "SELECT count(*) FROM fencepost.keys").await, 0);
        // Also from within a savepoint, and after one.
        let twice = "SAVEPOINT s; SELECT fencepost.once('billing', 'a'); RELEASE s; SAVEPOINT t";
        run(&client, &format!("BEGIN; SELECT fencepost.write('billing', 5); {twice}")).await;
        assert_eq!(one(&client, "SELECT fencepost.record_once('billing', 'a')").await, 0);
        assert_eq!(one(&client, "SELECT fencepost.try_once('billing', 'a')::integer::bigint").await, 0);
        assert_eq!(code(&client, "SELECT fencepost.once('billing', 'a')").await, BAD);
    });
}

/// Begins a transaction that has an old view, unless it is READ COMMITTED, and then tries the work with the key.
async fn work(transaction: &Transaction<'_>, token: u64) -> Result<(), Error> {
    postgres::once(transaction, "billing", "2026-11", writer(token)).await?;
    run(transaction, "UPDATE wallet SET balance = balance - 1").await;
    Ok(())
}

async fn at(client: &mut Client, level: IsolationLevel) -> Transaction<'_> {
    done(client.build_transaction().isolation_level(level).start().await)
}

/// The first transaction is over before the second begins.
// Rule: once
#[test]
fn a_later_transaction_is_refused_at_every_level() {
    let Some(database) = Database::fresh() else { return };
    for level in LEVELS {
        block_on(async {
            let mut client = database.open().await;
            run(&client, CLEAN).await;
            let transaction = at(&mut client, level).await;
            work(&transaction, 5).await.expect("the first");
            done(transaction.commit().await);
            for token in [5, 6] {
                let transaction = at(&mut client, level).await;
                let refused = work(&transaction, token).await;
                done_before(refused, &before("billing", "2026-11", 5, token == 5));
                // A program that commits all the same has done nothing.
                let _ = transaction.batch_execute("UPDATE wallet SET balance = 0").await;
                done(transaction.commit().await);
            }
            assert_eq!(balance(&client).await, 99, "{level:?}");
        });
    }
}

/// The second transaction begins while the first is open, and waits for it. Above READ COMMITTED it then has an old view, and runs
/// again from its start.
// Rule: once
#[test]
fn a_transaction_at_the_same_time_is_refused_at_every_level() {
    let Some(database) = Database::fresh() else { return };
    for level in LEVELS {
        for (token, commits) in [(5, true), (6, true), (5, false), (6, false)] {
            for has_read in [false, true] {
                block_on(async {
                    let (mut ahead, mut behind, observer) =
                        (database.open().await, database.open().await, database.open().await);
                    run(&observer, CLEAN).await;
                    let first = at(&mut ahead, level).await;
                    work(&first, 5).await.expect("the first");
                    let second = at(&mut behind, level).await;
                    if has_read {
                        balance(&second).await;
                    }
                    let end = async {
                        a_session_waits(&observer).await;
                        done(if commits { first.commit().await } else { first.rollback().await });
                    };
                    let (mut outcome, ()) = tokio::join!(work(&second, token), end);
                    let case = format!("{level:?} {token} {commits} {has_read}: {outcome:?}");
                    if commits && !matches!(level, IsolationLevel::ReadCommitted) {
                        assert_eq!(code_of(&outcome.expect_err("it has an old view")), OLD_VIEW, "{case}");
                        drop(second);
                        let again = at(&mut behind, level).await;
                        outcome = work(&again, token).await;
                        done(again.commit().await);
                    } else {
                        done(second.commit().await);
                    }
                    if commits {
                        done_before(outcome, &before("billing", "2026-11", 5, token == 5));
                    } else {
                        outcome.expect("the first has left nothing");
                    }
                    assert_eq!(balance(&observer).await, 99, "{case}");
                    assert_eq!(one(&observer, "SELECT count(*) FROM fencepost.keys").await, 1, "{case}");
                });
            }
        }
    }
}

/// The marks that would have made the second transaction fail are gone: an operator has repaired them. The row decides.
// Rule: once
#[test]
fn without_marks_the_row_of_the_key_decides() {
    let Some(database) = Database::fresh() else { return };
    for level in LEVELS {
        block_on(async {
            let (mut early, mut other) = (database.open().await, database.open().await);
            run(&other, CLEAN).await;
            let transaction = at(&mut early, level).await;
            balance(&transaction).await;
            other.once("billing", "2026-11", writer(5)).await.expect("the first");
            run(&other, "DELETE FROM fencepost.marks").await;
            let refused = work(&transaction, 4).await;
            if matches!(level, IsolationLevel::ReadCommitted) {
                done_before(refused, &before("billing", "2026-11", 5, false));
            } else {
                assert_eq!(code_of(&refused.expect_err("it has an old view")), OLD_VIEW);
            }
            drop(transaction);
            assert_eq!(balance(&other).await, 100);
        });
    }
}

/// An operator has forgotten the key and has not committed yet.
#[test]
fn a_key_that_is_being_forgotten_is_waited_for() {
    let Some(database) = Database::fresh() else { return };
    for commits in [true, false] {
        block_on(async {
            let (mut operator, mut client, observer) =
                (database.open().await, database.open().await, database.open().await);
            run(&observer, CLEAN).await;
            client.once("billing", "2026-11", writer(5)).await.expect("the first");
            let forgetting = begin(&mut operator).await;
            assert_eq!(one(&forgetting, "SELECT fencepost.forget('billing', '2026-11')").await, 5);
            let end = async {
                a_session_waits(&observer).await;
                done(if commits { forgetting.commit().await } else { forgetting.rollback().await });
            };
            let (outcome, ()) = tokio::join!(client.once("billing", "2026-11", writer(6)), end);
            if commits {
                outcome.expect("it was forgotten");
            } else {
                done_before(outcome, &before("billing", "2026-11", 5, false));
            }
        });
    }
}

/// For callers in any language: the state, and the detail as JSON.
#[test]
fn the_refusal_says_in_json_who_did_the_work() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        let (name, key) = ("it's \"a\"", "k 'q' \"d\" \\ {}");
        client.once(name, key, writer(5)).await.expect("the first");
        for (token, own) in [(5_i64, true), (6, false)] {
            let transaction = begin(&mut client).await;
            done(transaction.execute("SELECT fencepost.write($1, $2)", &[&name, &token]).await);
            let before = transaction.query_one("SELECT fencepost.try_once($1, $2)", &[&name, &key]).await;
            assert!(!done(before).get::<_, bool>(0));
            let said = transaction.execute("SELECT fencepost.once($1, $2)", &[&name, &key]).await.expect_err("again");
            let said = said.as_db_error().expect("the database refuses it").clone();
            assert_eq!(said.code().code(), postgres::BEFORE);
            let detail: serde_json::Value = serde_json::from_str(said.detail().expect("a detail")).expect("JSON");
            assert_eq!(detail, serde_json::json!({ "name": name, "key": key, "token": 5, "own": own }));
        }
    });
}

#[test]
fn from_plain_sql_keys_that_are_not_valid_are_refused() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        for function in EACH {
            for (arguments, expected) in [
                ("'billing', NULL", BAD),
                ("'billing', ''", BAD),
                ("'billing', repeat('k', 257)", BAD),
                ("'billing', repeat('ü', 128) || 'k'", BAD),
                (r"'billing', E'a\n'", BAD),
                (r"'billing', E'\u0085'", BAD),
                ("NULL, 'k'", BAD),
                ("'', 'k'", BAD),
                ("'/a//b', 'k'", BAD),
                // The server's own error for a NUL, which no text has.
                (r"'billing', E'a\000b'", "22021"),
            ] {
                run(&client, "BEGIN; SELECT fencepost.write('billing', 5)").await;
                let call = format!("SELECT fencepost.{function}({arguments})");
                assert_eq!(code(&client, &call).await, expected, "{call}");
                run(&client, "ROLLBACK").await;
            }
            let longest = format!("SELECT fencepost.{function}('billing', repeat('ü', 128))");
            run(&client, &format!("BEGIN; SELECT fencepost.write('billing', 5); {longest}; ROLLBACK")).await;
        }
    });
}

/// A database without durable commits. The job tells the lock service that the work is done, so this commit must be durable.
#[test]
fn the_commit_of_a_key_is_durable() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        let shown = async || -> String { done(client.query_one("SHOW synchronous_commit", &[]).await).get(0) };
        for (function, key) in [("once", "a"), ("try_once", "b"), ("record_once", "c")] {
            for (own, raised) in
                [("off", "on"), ("local", "local"), ("remote_write", "remote_write"), ("remote_apply", "remote_apply")]
            {
                run(&client, &format!("SET synchronous_commit = {own}; BEGIN; SELECT fencepost.write('w', 5)")).await;
                assert_eq!(shown().await, own);
                run(&client, &format!("SELECT fencepost.{function}('w', '{key} {own}')")).await;
                assert_eq!(shown().await, raised, "{function}");
                run(&client, "COMMIT").await;
                assert_eq!(shown().await, own, "the session's own setting is back");
            }
        }
        run(&client, "SET synchronous_commit = off; BEGIN; SELECT fencepost.write('w', 5)").await;
        run(&client, "SELECT fencepost.try_once('w', 'a off')").await;
        assert_eq!(shown().await, "off", "a transaction that records nothing keeps its setting");
    });
}

#[test]
fn a_connection_lost_at_commit_runs_again() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let server = database.0.get_ports()[0];
        for lost in [Lost::Commit, Lost::Answer] {
            run(&database.open().await, CLEAN).await;
            let port = crate::suite::cut_at_commit(server, lost).await;
            let mut config = Config::new();
            config.host("127.0.0.1").port(port).dbname(database.name());
            config.user(database.0.get_user().expect("the address has one"));
            crate::suite::a_commit_without_an_answer_is_recognised(async || open(&config).await, lost).await;
        }
    });
}

/// Sent with the key, the work fails with it.
#[test]
fn key_and_work_can_be_sent_together() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        let update = done(client.prepare("UPDATE wallet SET balance = balance - 1").await);
        for token in [5, 5, 6, 4] {
            let transaction = begin(&mut client).await;
            let write = async { Ok(transaction.execute(&update, &[]).await?) };
            let once = postgres::once(&transaction, "billing", "2026-11", writer(token));
            match tokio::try_join!(biased; once, write) {
                Ok(_) => done(transaction.commit().await),
                Err(Error::Before(_)) if token >= 5 => {}
                refused => stale(refused, 4, 5),
            }
        }
        assert_eq!(balance(&client).await, 99);
    });
}

/// Rows with triggers know the token that `once` has shown.
#[test]
fn guarded_rows_can_be_written_after_once() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        run(&client, "SELECT fencepost.guard_rows('wallet', 'wallet:', 'id')").await;
        let transaction = begin(&mut client).await;
        postgres::once(&transaction, "wallet:7", "2026-11", writer(5)).await.expect("the first");
        run(&transaction, "UPDATE wallet SET balance = 90 WHERE id = 7").await;
        done(transaction.commit().await);
        assert_eq!(balance(&client).await, 90);
    });
}

/// A role that has the right which the guide gives to an application, and no other.
#[test]
fn a_role_records_keys_through_the_functions_alone() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let (owner, role) = (database.open().await, format!("worker_of_{}", database.name()));
        run(&owner, &format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencepost TO {role}")).await;
        let mut worker = database.open_as(&role).await;
        let transaction = begin(&mut worker).await;
        postgres::once(&transaction, "billing", "a", writer(5)).await.expect("the first");
        assert_eq!(postgres::try_once(&transaction, "billing", "b", writer(5)).await.expect("it goes on"), Once::First);
        done(transaction.commit().await);
        for forbidden in [
            "INSERT INTO fencepost.keys (name, job_key, token, recorded_by) VALUES ('billing', 'c', 5, '1')",
            "UPDATE fencepost.keys SET token = 9",
            "DELETE FROM fencepost.keys",
            "SELECT * FROM fencepost.keys",
            "TRUNCATE fencepost.keys",
            "SELECT fencepost.forget('billing', 'a')",
            "ALTER FUNCTION fencepost.record SECURITY INVOKER",
        ] {
            assert_eq!(code(&worker, forbidden).await, "42501", "{forbidden}");
        }
        // It could not delete the row either way. The function is closed as well.
        let may = format!(
            "SELECT has_function_privilege('{role}', 'fencepost.forget(text, text)', 'EXECUTE')::integer::bigint"
        );
        assert_eq!(one(&owner, &may).await, 0);
        // Tables of the role with the names of the guard's tables.
        run(
            &worker,
            "CREATE TEMPORARY TABLE keys (name text, job_key text, token bigint, recorded_by xid8);
             CREATE TEMPORARY TABLE marks (name text, read_floor bigint, written_by xid8);
             SET search_path = pg_temp, public",
        )
        .await;
        let refused = format!(
            "BEGIN; INSERT INTO marks VALUES ('x', 5, pg_current_xact_id()); {}",
            "SELECT fencepost.record('x', 'a')"
        );
        assert_eq!(code(&worker, &refused).await, postgres::MISSING);
        run(&worker, "ROLLBACK; BEGIN; SELECT fencepost.write('billing', 5)").await;
        assert_eq!(code(&worker, "SELECT fencepost.once('billing', 'a')").await, postgres::BEFORE);
        run(&worker, "ROLLBACK").await;
        // Not prevented: a key of work that was not done. The owner of the schema forgets it.
        run(
            &worker,
            "BEGIN; SELECT fencepost.write('billing', 5); SELECT fencepost.once('billing', 'made up'); COMMIT",
        )
        .await;
        assert_eq!(postgres::forget(&owner, "billing", "made up").await.expect("it is there"), Some(Token(5)));
        assert_eq!(postgres::status(&owner).await.expect("it is there").keys, Some(2));
    });
}

#[test]
fn a_version_without_keys_is_upgraded() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        client.write("billing", writer(5), 50).await.expect("the first");
        // As version 2 was.
        run(
            &client,
            "DROP FUNCTION fencepost.once, fencepost.try_once, fencepost.record_once, fencepost.record, fencepost.forget;
             DROP TABLE fencepost.keys; UPDATE fencepost.store SET version = 2",
        )
        .await;
        let transaction = begin(&mut client).await;
        let missing = postgres::once(&transaction, "billing", "a", writer(5)).await.expect_err("it has no keys");
        assert!(matches!(&missing, Error::NotInstalled(why) if why.contains("fencepost fence init")), "{missing}");
        drop(transaction);
        let missing = postgres::forget(&client, "billing", "a").await.expect_err("it has no keys");
        assert!(missing.to_string().contains("run `fencepost fence init"), "{missing}");
        let upgraded = postgres::install(&mut client).await.expect("it is older");
        assert_eq!(upgraded, Installed::Upgraded { from: 2, to: postgres::VERSION });
        client.once("billing", "a", writer(5)).await.expect("the first");
        run(&client, postgres::SCRIPT).await;
        assert_eq!(postgres::status(&client).await.expect("it is there").keys, Some(1), "keys are kept");
        // A plain access still works, and a write is counted for each.
        postgres::admit(&begin(&mut client).await, &Access::write("billing", writer(5))).await.expect("as before");
    });
}
