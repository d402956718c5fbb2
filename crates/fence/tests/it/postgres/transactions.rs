//! Several transactions at once: old views, waits, pauses, and the traps of guard and write in one statement.

use std::time::Duration;

use fencepost_fence::{Access, Error, Token, postgres};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::postgres::{Database, a_session_waits, balance, begin, code, code_of, done, one, run};
use crate::suite::{AnyAccess, Connection, block_on, reader, stale, writer};

/// Much longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const OLD_VIEW: &str = "40001";

fn each_use(token: u64) -> [AnyAccess; 3] {
    [
        AnyAccess::Reads(Access::read("wallet:7", reader(token))),
        AnyAccess::Claims(Access::claim("wallet:7", writer(token))),
        AnyAccess::Writes(Access::write("wallet:7", writer(token))),
    ]
}

async fn admit(transaction: &Transaction<'_>, access: &AnyAccess) -> Result<(), Error> {
    match access {
        AnyAccess::Reads(access) => postgres::admit(transaction, access).await,
        AnyAccess::Claims(access) => postgres::admit(transaction, access).await,
        AnyAccess::Writes(access) => postgres::admit(transaction, access).await,
    }
}

/// A transaction above READ COMMITTED sees the database as it was at its first statement. If another access was admitted
/// since, even the newest token does not pass the guard: the transaction would decide from its old view.
// Rule: claim-before-read
#[test]
fn a_transaction_with_an_old_view_is_not_let_in() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let (mut early, mut other) = (database.open().await, database.open().await);
        let mut token = 1;
        for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
            for marks_are_there in [false, true] {
                for mine in 0..3 {
                    for theirs in 0..3 {
                        run(&other, "DELETE FROM fencepost.marks").await;
                        if marks_are_there {
                            other.admit(&each_use(token)[2]).await.expect("the first");
                        }
                        let transaction = done(early.build_transaction().isolation_level(level).start().await);
                        balance(&transaction).await;
                        other.admit(&each_use(token + 1)[theirs]).await.expect("newer");
                        let refused =
                            admit(&transaction, &each_use(token + 2)[mine]).await.expect_err("it has an old view");
                        assert_eq!(code_of(&refused), OLD_VIEW, "{refused}");
                        token += 2;
                    }
                }
            }
        }
    });
}

/// The marks that would have refused the transaction are forgotten, and the new base is not in its view.
// Rule: fence-gc
#[test]
fn a_transaction_with_a_view_of_an_older_base_is_not_let_in() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let (mut early, mut other) = (database.open().await, database.open().await);
        for (level, name) in [(IsolationLevel::RepeatableRead, "first"), (IsolationLevel::Serializable, "second")] {
            let transaction = done(early.build_transaction().isolation_level(level).start().await);
            balance(&transaction).await;
            other.write(name, writer(70), 1).await.expect("newer");
            other.forget_below(Token(70)).await.expect("it serves");
            let refused =
                postgres::admit(&transaction, &Access::write(name, writer(5))).await.expect_err("an old view");
            assert_eq!(code_of(&refused), OLD_VIEW, "{refused}");
            drop(transaction);
            run(&other, "UPDATE fencepost.store SET base = 0; DELETE FROM fencepost.marks").await;
        }
    });
}

#[test]
fn a_transaction_that_begins_with_the_guard_is_let_in_at_every_level() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        for level in [IsolationLevel::ReadUncommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
            let transaction = done(client.build_transaction().isolation_level(level).start().await);
            postgres::admit(&transaction, &Access::write("wallet:7", writer(5))).await.expect("its token is good");
            run(&transaction, "UPDATE wallet SET balance = balance + 1 WHERE id = 7").await;
            done(transaction.commit().await);
        }
        assert_eq!(balance(&client).await, 103);
    });
}

/// A transaction that forgets marks has raised the base and has not committed yet. No token below the base passes meanwhile.
// Rule: fence-gc
#[test]
fn an_access_while_marks_are_forgotten_waits_for_the_new_base() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let (mut operator, mut late, observer) = (database.open().await, database.open().await, database.open().await);
        late.write("old", writer(5), 50).await.expect("the first");
        for name in ["old", "never seen"] {
            let forgetting = begin(&mut operator).await;
            run(&forgetting, "SELECT fencepost.forget_below(8)").await;
            let commit = async {
                a_session_waits(&observer).await;
                done(forgetting.commit().await);
            };
            let (refused, ()) = tokio::join!(late.write(name, writer(7), 70), commit);
            stale(refused, 7, 8);
        }
    });
}

#[test]
fn forgetting_waits_for_transactions_that_have_passed_the_guard() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let (mut writing, mut operator, observer) =
            (database.open().await, database.open().await, database.open().await);
        let transaction = begin(&mut writing).await;
        postgres::admit(&transaction, &Access::write("wallet:7", writer(5))).await.expect("the first");
        let commit = async {
            a_session_waits(&observer).await;
            done(transaction.commit().await);
        };
        let (forgotten, ()) = tokio::join!(operator.forget_below(Token(8)), commit);
        assert_eq!(forgotten.expect("it serves").names, 1, "what was committed in the meantime is seen");
    });
}

/// Without a bound, a holder that is paused inside its transaction would block its successor for ever.
#[test]
fn a_paused_holder_is_ended_by_the_server_and_leaves_nothing() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let (mut paused, mut successor) = (database.open().await, database.open().await);
        run(&successor, "SELECT fencepost.set_idle_timeout('100 ms')").await;
        let transaction = begin(&mut paused).await;
        let access = Access::write("wallet:7", writer(5));
        let write = async { Ok(transaction.batch_execute("UPDATE wallet SET balance = 50 WHERE id = 7").await?) };
        // Sent together, so that the session does not idle before both are done, even on a slow machine.
        tokio::try_join!(biased; postgres::admit(&transaction, &access), write).expect("the first");
        run(&successor, "SELECT fencepost.set_idle_timeout('1 min')").await;

        let claim = begin(&mut successor).await;
        let access = Access::claim("wallet:7", writer(7));
        let admitted = tokio::time::timeout(PATIENCE, postgres::admit(&claim, &access)).await;
        admitted.expect("the paused holder does not block it for ever").expect("newer");
        assert_eq!(balance(&claim).await, 100, "the write of the paused holder is undone");
        done(claim.commit().await);

        transaction
            .batch_execute("UPDATE wallet SET balance = 49 WHERE id = 7")
            .await
            .expect_err("its session was ended");
        transaction.commit().await.expect_err("its session was ended");
        assert_eq!(balance(&successor).await, 100);
    });
}

#[test]
fn the_idle_time_is_bounded_for_the_transaction_alone_and_never_lengthened() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        let shown =
            async || -> String { done(client.query_one("SHOW idle_in_transaction_session_timeout", &[]).await).get(0) };
        for (own, bounded) in [("0", "1min"), ("61s", "1min"), ("1d", "1min"), ("59s", "59s"), ("40500ms", "40500ms")] {
            for guard in
                ["SELECT fencepost.read('w', 5)", "SELECT fencepost.claim('w', 5)", "SELECT fencepost.write('w', 5)"]
            {
                run(&client, &format!("SET idle_in_transaction_session_timeout = '{own}'; BEGIN; {guard}")).await;
                assert_eq!(shown().await, bounded, "{own}");
                run(&client, "COMMIT").await;
                assert_eq!(shown().await, own, "the session's own setting is back");
            }
        }
        run(&client, "SELECT fencepost.set_idle_timeout('30.7 s'); BEGIN; SELECT fencepost.claim('w', 5)").await;
        assert_eq!(shown().await, "30700ms");
    });
}

/// A holder has written, and commits when the next holder already waits for the marks. Returns what the next holder reads.
async fn read_after_waiting(database: &Database, claim_and_read: impl AsyncFnOnce(&Transaction<'_>) -> i64) -> i64 {
    let (mut ahead, mut behind, observer) = (database.open().await, database.open().await, database.open().await);
    let transaction = begin(&mut ahead).await;
    postgres::admit(&transaction, &Access::write("wallet:7", writer(5))).await.expect("the first");
    run(&transaction, "UPDATE wallet SET balance = balance - 50 WHERE id = 7").await;
    let next = begin(&mut behind).await;
    let commit = async {
        a_session_waits(&observer).await;
        done(transaction.commit().await);
    };
    let (read, ()) = tokio::join!(claim_and_read(&next), commit);
    read
}

// Rule: claim-before-read
#[test]
fn a_claim_and_the_read_after_it_see_what_the_holder_ahead_has_written() {
    let Some(database) = Database::fresh() else { return };
    let two_statements = async |transaction: &Transaction<'_>| {
        postgres::admit(transaction, &Access::claim("wallet:7", writer(7))).await.expect("newer");
        balance(transaction).await
    };
    assert_eq!(block_on(read_after_waiting(&database, two_statements)), 50);
}

/// A trap. If Postgres ever changes this, our documentation need not warn of it any more.
#[test]
fn trap_in_one_statement_with_the_guard_the_read_has_an_old_view() {
    let Some(database) = Database::fresh() else { return };
    let one_statement = async |transaction: &Transaction<'_>| {
        let sql =
            "WITH guard AS (SELECT fencepost.claim('wallet:7', 7)) SELECT balance FROM wallet, guard WHERE id = 7";
        one(transaction, sql).await
    };
    assert_eq!(
        block_on(read_after_waiting(&database, one_statement)),
        100,
        "the claim is admitted, and the 50 are lost"
    );
}

/// A trap. A SELECT in WITH that nothing refers to does not run. The triggers notice that nothing was shown.
#[test]
fn trap_a_guard_in_with_that_nothing_refers_to_does_not_run() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, "SELECT fencepost.claim('wallet:7', 7)").await;
        let sql = "WITH guard AS (SELECT fencepost.write('wallet:7', 5)) UPDATE wallet SET balance = 5 WHERE id = 7";
        run(&client, sql).await;
        assert_eq!(balance(&client).await, 5, "a stale write was not refused");
        run(&client, "SELECT fencepost.guard_rows('wallet', 'wallet:', 'id')").await;
        assert_eq!(code(&client, sql).await, postgres::MISSING);
    });
}

/// Guard and write go in one round trip, the guard first: the trigger would refuse a write before the guard.
#[test]
fn a_write_that_is_sent_with_the_guard_fails_with_it() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        run(&client, "SELECT fencepost.guard_rows('wallet', 'wallet:', 'id')").await;
        together(&mut client, 7, 70).await.expect("the first");
        assert_eq!(balance(&client).await, 70);
        stale(together(&mut client, 5, 50).await, 5, 7);
        assert_eq!(balance(&client).await, 70);
        together(&mut client, 7, 71).await.expect("the connection can still be used");
        assert_eq!(balance(&client).await, 71);
    });
}

async fn together(client: &mut Client, token: u64, balance: i64) -> Result<(), Error> {
    let update = client.prepare("UPDATE wallet SET balance = $1 WHERE id = 7").await?;
    let transaction = client.transaction().await?;
    let access = Access::write("wallet:7", writer(token));
    let write = async { Ok(transaction.execute(&update, &[&balance]).await?) };
    let ((), rows) = tokio::try_join!(biased; postgres::admit(&transaction, &access), write)?;
    assert_eq!(rows, 1);
    Ok(transaction.commit().await?)
}

/// Even a client that goes on after the refusal, and commits, changes nothing.
#[test]
fn after_a_refusal_the_transaction_is_over() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        run(&client, "SELECT fencepost.claim('wallet:7', 7); BEGIN").await;
        assert_eq!(code(&client, "SELECT fencepost.write('wallet:7', 5)").await, postgres::STALE);
        assert_eq!(code(&client, "UPDATE wallet SET balance = 5 WHERE id = 7").await, "25P02");
        run(&client, "COMMIT").await;
        assert_eq!(balance(&client).await, 100);
    });
}

#[test]
fn transactions_that_show_the_same_names_in_another_order_do_not_deadlock() {
    const ROUNDS: u64 = 200;
    let Some(database) = Database::fresh() else { return };
    std::thread::scope(|scope| {
        for forth in [true, false] {
            let database = &database;
            scope.spawn(move || {
                block_on(async {
                    let mut client = database.open().await;
                    for round in 0..ROUNDS {
                        // Two names that always exist, and three that the first access of the round creates.
                        let mut names =
                            vec!["a".to_owned(), "b".to_owned(), format!("c{round}"), format!("/d{round}/e/f")];
                        names.push(format!("/d{round}/e"));
                        if !forth {
                            names.reverse();
                        }
                        let access = Access::write(&names[0], writer(5));
                        let access = names[1..].iter().fold(access, |access, name| access.and_write(name, writer(5)));
                        client
                            .admit(&AnyAccess::Writes(access))
                            .await
                            .expect("all tokens are good, and there is no deadlock");
                    }
                });
            });
        }
    });
}
