//! The triggers for many rows: they refuse every write without a token.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use fencepost_fence::{Access, Error, postgres};
use tokio_postgres::Client;

use crate::postgres::{Database, balance, begin, code, done, one, run};
use crate::suite::{block_on, stale, writer};

const GUARD: &str = "SELECT fencepost.guard_rows('wallet', 'wallet:', 'id')";

/// Runs a statement in a new transaction, after statements that prepare it. Rolls back. Returns the SQLSTATE of a failure.
async fn after(client: &Client, before: &str, statement: &str) -> Result<(), String> {
    run(client, &format!("BEGIN; {before}")).await;
    let outcome =
        client.batch_execute(statement).await.map_err(|error| error.code().expect("it says why").code().to_owned());
    run(client, "ROLLBACK").await;
    outcome
}

#[test]
fn a_write_is_refused_until_its_transaction_has_shown_a_token_for_the_row() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, GUARD).await;
        for (write, row) in [
            ("UPDATE wallet SET balance = 1 WHERE id = 7", 7),
            ("DELETE FROM wallet WHERE id = 7", 7),
            ("INSERT INTO wallet VALUES (8, 1)", 8),
            ("INSERT INTO wallet VALUES (7, 1) ON CONFLICT (id) DO UPDATE SET balance = 1", 7),
        ] {
            let missing = Err(postgres::MISSING.to_owned());
            assert_eq!(after(&client, "", write).await, missing, "{write}");
            let shown = |shown: &str| format!("SELECT fencepost.{shown}");
            for not_enough in
                ["claim('wallet:7', 5)", "read('wallet:7', 5)", "write('wallet:70', 5)", "write('wallet:', 5)"]
            {
                assert_eq!(after(&client, &shown(not_enough), write).await, missing, "{not_enough}: {write}");
            }
            assert_eq!(after(&client, &shown(&format!("write('wallet:{row}', 5)")), write).await, Ok(()), "{write}");
            // A token that an earlier transaction has shown does not count.
            run(&client, &shown(&format!("write('wallet:{row}', 5)"))).await;
            assert_eq!(after(&client, "", write).await, missing, "{write}");
        }
        let truncate = after(&client, "SELECT fencepost.write('wallet:7', 5)", "TRUNCATE wallet").await;
        assert_eq!(truncate, Err(postgres::MISSING.to_owned()));
        let error = client.batch_execute("UPDATE wallet SET balance = 1").await.expect_err("nothing was shown");
        assert!(Error::from(error).to_string().contains("SELECT fencepost.write('wallet:7', "), "it says what to do");
        run(&client, "SELECT fencepost.unguard_rows('wallet'); TRUNCATE wallet; INSERT INTO wallet VALUES (7, 1)")
            .await;
    });
}

#[test]
fn each_row_needs_its_own_token_and_a_new_key_needs_both() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, &format!("INSERT INTO wallet VALUES (8, 1); {GUARD}")).await;
        let (seven, eight) = ("SELECT fencepost.write('wallet:7', 5);", "SELECT fencepost.write('wallet:8', 5);");
        let (both, missing) = (format!("{seven} {eight}"), Err(postgres::MISSING.to_owned()));
        let all = "UPDATE wallet SET balance = 1";
        assert_eq!(after(&client, seven, all).await, missing);
        assert_eq!(after(&client, eight, all).await, missing);
        assert_eq!(after(&client, &both, all).await, Ok(()));
        let renamed = "UPDATE wallet SET id = 9 WHERE id = 7";
        let nine = "SELECT fencepost.write('wallet:9', 5);";
        assert_eq!(after(&client, seven, renamed).await, missing);
        assert_eq!(after(&client, nine, renamed).await, missing);
        assert_eq!(after(&client, &format!("{seven} {nine}"), renamed).await, Ok(()));
    });
}

#[test]
fn rolling_back_to_a_savepoint_takes_back_what_was_shown() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, GUARD).await;
        let (write, update) = ("SELECT fencepost.write('wallet:7', 5)", "UPDATE wallet SET balance = 1");
        let undone = format!("SAVEPOINT s; {write}; {update}; ROLLBACK TO s");
        assert_eq!(after(&client, &undone, update).await, Err(postgres::MISSING.to_owned()));
        assert_eq!(after(&client, &format!("SAVEPOINT s; {write}; RELEASE s"), update).await, Ok(()));
        assert_eq!(after(&client, &format!("{write}; SAVEPOINT s; {update}; ROLLBACK TO s"), update).await, Ok(()));
    });
}

#[test]
fn a_token_for_a_path_covers_the_rows_below_it() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, "SELECT fencepost.guard_rows('wallet', '/bank/wallet/', 'id')").await;
        let update = "UPDATE wallet SET balance = 1 WHERE id = 7";
        for (name, outcome) in [
            ("/bank/wallet/7", Ok(())),
            ("/bank/wallet", Ok(())),
            ("/bank", Ok(())),
            ("/bank/wallet/7/purse", Err(postgres::MISSING.to_owned())),
            ("/bank/wall", Err(postgres::MISSING.to_owned())),
            ("bank", Err(postgres::MISSING.to_owned())),
        ] {
            assert_eq!(
                after(&client, &format!("SELECT fencepost.write('{name}', 5)"), update).await,
                outcome,
                "{name}"
            );
        }
    });
}

#[test]
fn keys_may_be_any_text_and_tables_may_have_any_name() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        run(
            &client,
            r#"CREATE SCHEMA "it's"; CREATE TABLE "it's"."a ""table""" ("the 'key'" text, number integer);
               SELECT fencepost.guard_rows('"it''s"."a ""table"""', 'it''s:', 'the ''key''')"#,
        )
        .await;
        let insert = r#"INSERT INTO "it's"."a ""table""" VALUES ($1, 1)"#;
        for key in ["plain", "it's \"quoted\"", "%_\\", "ü"] {
            let transaction = begin(&mut client).await;
            let refused = transaction.execute(insert, &[&key]).await.expect_err("nothing was shown");
            assert_eq!(refused.code().map(|code| code.code()), Some(postgres::MISSING), "{key}");
            done(transaction.rollback().await);
            let transaction = begin(&mut client).await;
            postgres::admit(&transaction, &Access::write(&format!("it's:{key}"), writer(5))).await.expect("the first");
            done(transaction.execute(insert, &[&key]).await);
            done(transaction.commit().await);
        }
        // A key that gives no valid name cannot have a lock.
        for key in [None, Some("line\nbreak")] {
            let refused = client.execute(insert, &[&key]).await.expect_err("no valid name");
            assert_eq!(refused.code().map(|code| code.code()), Some("FP400"), "{key:?}");
        }
        assert_eq!(code(&client, "SELECT fencepost.guard_rows('wallet', 'wallet:', 'no_column')").await, "FP400");
        assert_eq!(code(&client, "SELECT fencepost.guard_rows('wallet', NULL, 'id')").await, "FP400");
    });
}

/// The guard looks at the row as it will be written, not as it was before another trigger changed it.
#[test]
fn a_key_that_another_trigger_changes_is_seen() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, GUARD).await;
        run(
            &client,
            "CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 8; RETURN NEW; END';
             CREATE TRIGGER moved BEFORE UPDATE ON wallet FOR EACH ROW EXECUTE FUNCTION moved()",
        )
        .await;
        let outcome = after(&client, "SELECT fencepost.write('wallet:7', 5)", "UPDATE wallet SET balance = 1").await;
        assert_eq!(outcome, Err(postgres::MISSING.to_owned()));
    });
}

/// The role of an application has USAGE on the schema, and no other right on the guard.
#[test]
fn a_plain_role_writes_through_the_guard_and_cannot_touch_the_marks() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let owner = database.open().await;
        let role = format!("app_of_{}", database.name());
        run(&owner, &format!("{GUARD}; CREATE ROLE {role} LOGIN; GRANT SELECT, UPDATE ON wallet TO {role}")).await;
        let mut app = database.open_as(&role).await;
        let update = "UPDATE wallet SET balance = 70 WHERE id = 7";
        run(&owner, &format!("GRANT USAGE ON SCHEMA fencepost TO {role}")).await;
        let transaction = begin(&mut app).await;
        postgres::admit(&transaction, &Access::write("wallet:7", writer(7))).await.expect("the first");
        let row = done(transaction.query_one("SHOW idle_in_transaction_session_timeout", &[]).await);
        assert_eq!(row.get::<_, String>(0), "1min", "the bound holds after the function that set it has returned");
        run(&transaction, update).await;
        done(transaction.commit().await);
        assert_eq!(balance(&app).await, 70);
        for forbidden in [
            "UPDATE fencepost.marks SET write_floor = 0",
            "DELETE FROM fencepost.marks",
            "UPDATE fencepost.store SET base = 0",
            "SELECT fencepost.forget_below(1)",
            "SELECT fencepost.set_idle_timeout('1 h')",
            "SELECT fencepost.guard_rows('wallet', 'other:', 'id')",
            "SELECT fencepost.unguard_rows('wallet')",
        ] {
            assert_eq!(code(&app, forbidden).await, "42501", "{forbidden}");
        }
    });
}

/// The functions must not use operators or types of the caller.
#[test]
fn operators_of_the_caller_do_not_reach_into_the_guard() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, GUARD).await;
        run(
            &client,
            "SELECT fencepost.claim('wallet:7', 7);
             CREATE SCHEMA own;
             CREATE FUNCTION own.never(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false';
             CREATE OPERATOR own.< (FUNCTION = own.never, LEFTARG = bigint, RIGHTARG = bigint);
             CREATE FUNCTION own.always(xid8, xid8) RETURNS boolean LANGUAGE sql AS 'SELECT true';
             CREATE OPERATOR own.= (FUNCTION = own.always, LEFTARG = xid8, RIGHTARG = xid8);
             CREATE TEMPORARY TABLE text (nothing integer);
             SET search_path = own, public, pg_catalog",
        )
        .await;
        assert_eq!(
            one(&client, "SELECT (1::bigint < 2::bigint)::integer::bigint").await,
            0,
            "the operator is used outside of the guard"
        );
        assert_eq!(code(&client, "SELECT fencepost.write('wallet:7', 5)").await, postgres::STALE);
        assert_eq!(code(&client, "UPDATE wallet SET balance = 1 WHERE id = 7").await, postgres::MISSING);
        run(&client, "SELECT fencepost.write('wallet:7', 8)").await;
    });
}

/// Each round has a new token, claims, reads, and adds one in another transaction. Between the two it tries to write without a
/// token.
#[test]
fn racing_writers_of_a_guarded_table_lose_no_update() {
    const WRITERS: u64 = 6;
    const ROUNDS: u64 = 60;
    let Some(database) = Database::fresh() else { return };
    block_on(async { run(&database.open().await, GUARD).await });
    let (tokens, admitted) = (AtomicU64::new(1), AtomicI64::new(0));
    let round = async |client: &mut Client| {
        let token = writer(tokens.fetch_add(1, SeqCst));
        let claim = begin(client).await;
        postgres::admit(&claim, &Access::claim("wallet:7", token)).await?;
        let update = format!("UPDATE wallet SET balance = {} WHERE id = 7", balance(&claim).await + 1);
        claim.commit().await?;
        assert_eq!(code(client, &update).await, postgres::MISSING);
        let write = begin(client).await;
        postgres::admit(&write, &Access::write("wallet:7", token)).await?;
        write.batch_execute(&update).await?;
        Ok::<(), Error>(write.commit().await?)
    };
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                block_on(async {
                    let mut client = database.open().await;
                    for _ in 0..ROUNDS {
                        match round(&mut client).await {
                            Ok(()) => _ = admitted.fetch_add(1, SeqCst),
                            Err(Error::Stale(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            });
        }
    });
    block_on(async {
        let mut client = database.open().await;
        let admitted = admitted.into_inner();
        assert_eq!(balance(&client).await, 100 + admitted, "every update that was admitted builds on the one before");
        assert!(admitted > 0, "the newest is always admitted");
        let late = begin(&mut client).await;
        stale(postgres::admit(&late, &Access::write("wallet:7", writer(1))).await, 1, WRITERS * ROUNDS);
    });
}
