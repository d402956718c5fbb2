//! The lock table: whose clock decides, the four answers to a release, and the shared connection.

use std::time::Duration;

use fencepost::{Error, Lost, Refused, clock};
use fencepost_backends::Mode;

use crate::postgres::database::{
    Database, TTL_LONG, alone, ask, attempt, end_sessions, run, soon, take, token, until, wait,
};

/// Sets the expiry of all locks relative to the database's clock, instead of moving the clock.
async fn set_expiry(database: &Database, from_now: &str) {
    let update = format!("UPDATE fencepost_lock.locks SET expires_at = clock_timestamp() + interval '{from_now}'");
    run(&database.open().await, &update).await;
}

#[tokio::test]
async fn a_lock_ends_by_the_clock_of_the_database_and_not_by_ours() {
    let Some(database) = Database::fresh().await else { return };
    let table = database.table().await;
    // By the client's clock the first lock ends in ten minutes. `set_expiry` then ends it by the database's clock.
    let first = take(&table, &alone("a")).await;
    assert!(attempt(&table, &alone("a")).await.is_none());
    set_expiry(&database, "-1 s").await;
    let second = take(&table, &ask("a", Mode::Exclusive, Duration::from_millis(1))).await;
    assert!(token(&*second) > token(&*first));
    // By the client's clock the second lock expires. By the database's clock it does not, so no other client gets it.
    set_expiry(&database, "1 h").await;
    until("its TTL has passed by our clock", async || {
        let proof = second.proof();
        clock::now() > proof.sent_at.after(proof.ttl)
    })
    .await;
    assert!(attempt(&table, &alone("a")).await.is_none());
}

#[tokio::test]
async fn a_release_has_four_answers() {
    let Some(database) = Database::fresh().await else { return };
    let table = database.table().await;
    let lease = take(&table, &alone("a")).await;
    lease.release().await.expect("it was held");
    let again = lease.release().await.expect_err("it was released");
    assert!(matches!(again, Error::Refused(Refused::NotHeld)), "{again:?}");

    let lease = take(&table, &alone("a")).await;
    set_expiry(&database, "-1 s").await;
    let late = lease.release().await.expect_err("it had expired");
    assert!(matches!(late, Error::Refused(Refused::Lost(Lost::DeadlinePassed))), "{late:?}");

    let lease = take(&table, &alone("a")).await;
    set_expiry(&database, "-1 s").await;
    let next = take(&table, &alone("a")).await;
    let stale = lease.release().await.expect_err("another holder has it");
    assert!(matches!(stale, Error::Refused(Refused::NotOwner)), "{stale:?}");
    next.release().await.expect("a stale release does not affect the new holder");
    let stale = lease.release().await.expect_err("it had expired long ago");
    assert!(matches!(stale, Error::Refused(Refused::Lost(Lost::DeadlinePassed))), "{stale:?}");
}

#[tokio::test]
async fn a_renewal_moves_the_expiry_and_a_late_one_is_refused() {
    let Some(database) = Database::fresh().await else { return };
    let table = database.table().await;
    let lease = take(&table, &alone("a")).await;
    set_expiry(&database, "1 min").await;
    assert_eq!(lease.renew().await.expect("it is held").ttl, TTL_LONG);
    let left = "SELECT extract(epoch FROM expires_at - clock_timestamp())::bigint FROM fencepost_lock.locks";
    assert!(crate::postgres::database::one(&database.open().await, left).await > 60);

    set_expiry(&database, "-1 s").await;
    let late = lease.renew().await.expect_err("it has expired");
    assert!(matches!(late, Error::Refused(Refused::Lost(Lost::DeadlinePassed))), "{late:?}");
    let next = take(&table, &alone("a")).await;
    let stale = lease.renew().await.expect_err("another holder has it");
    assert!(matches!(stale, Error::Refused(Refused::NotOwner)), "{stale:?}");
    next.renew().await.expect("it is held");
}

#[tokio::test]
async fn a_lock_outlives_the_connection_and_the_next_statement_opens_a_new_one() {
    let Some(database) = Database::fresh().await else { return };
    let table = database.table().await;
    let lease = take(&table, &alone("a")).await;
    end_sessions(&database.open().await).await;
    soon("it connects again", async {
        while let Err(error) = lease.renew().await {
            assert!(!matches!(error, Error::Refused(_)), "the lock stays held: {error:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(attempt(&database.table().await, &alone("a")).await.is_none(), "the first client still holds it");
    lease.release().await.expect("it was held");
}

/// Above READ COMMITTED one of two concurrent upserts fails. The library retries it, so callers do not see that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_is_harmless_where_transactions_are_serializable_by_default() {
    let Some(database) = Database::fresh().await else { return };
    let isolation = format!("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'", database.name);
    run(&database.open().await, &isolation).await;
    let mut contenders = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let table = database.table().await;
        contenders.spawn(async move {
            for _ in 0..10 {
                let lease = wait(&table, &alone("a")).await;
                lease.renew().await.expect("it is held");
                lease.release().await.expect("it was held");
            }
        });
    }
    soon("all contenders are done", contenders.join_all()).await;
    assert_eq!(token(&*take(&database.table().await, &alone("a")).await), 61);
}

#[tokio::test]
async fn a_shared_lock_is_refused() {
    let Some(database) = Database::fresh().await else { return };
    let refused =
        fencepost_backends::Backend::try_acquire(&database.table().await, &ask("a", Mode::Shared, TTL_LONG)).await;
    assert!(matches!(&refused, Err(Error::Refused(Refused::Invalid(_)))), "{refused:?}");
}
