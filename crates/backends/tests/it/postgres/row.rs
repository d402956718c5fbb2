//! Row locks: in a transaction of the caller, and in a transaction of the backend.

use std::sync::Arc;

use fencepost::{Error, Lost, Refused};
use fencepost_backends::postgres::{Row, Wait};
use fencepost_backends::{Backend, Mode};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::postgres::advisory::TTL_SHORT;
use crate::postgres::database::{
    Database, TTL_LONG, alone, ask, attempt, end_sessions, one, run, soon, take, token, until, wait, waiting,
};

async fn begin(client: &mut Client) -> Transaction<'_> {
    client.transaction().await.expect("it serves")
}

/// Locks a name in this transaction, and returns the token. `None` if another transaction holds it.
async fn lock(row: &Row, transaction: &Transaction<'_>, name: &str) -> Option<u64> {
    let lock = row.lock(transaction, name, Wait::NoWait).await.expect("an answer");
    lock.map(|lock| lock.token().get())
}

#[tokio::test]
async fn a_lock_in_a_transaction_of_the_caller_ends_with_it_and_its_token_is_never_reused() {
    let Some(database) = Database::fresh().await else { return };
    let row = database.row().await;
    let (mut one, mut other) = (database.open().await, database.open().await);
    let transaction = begin(&mut one).await;
    let first = lock(&row, &transaction, "a").await.expect("it is free");

    let meanwhile = begin(&mut other).await;
    assert_eq!(lock(&row, &meanwhile, "a").await, None);
    assert!(attempt(&row, &alone("a")).await.is_none(), "both forms lock the same row");
    meanwhile.query_one("SELECT 1", &[]).await.expect("the transaction is still usable");

    transaction.rollback().await.expect("it was open");
    let second = lock(&row, &meanwhile, "a").await.expect("it is free");
    assert!(second > first, "{second} after {first}, which was rolled back");
    meanwhile.commit().await.expect("it was open");

    let lease = take(&row, &alone("a")).await;
    assert!(token(&*lease) > second);
    end_sessions(&database.open().await).await;
    let mut third = None;
    until("it is free", async || {
        third = row.try_acquire(&alone("a")).await.ok().flatten();
        third.is_some()
    })
    .await;
    let third = third.expect("just seen");
    assert!(token(&*third) > token(&*lease), "after a holder was killed");
}

#[tokio::test]
async fn a_lock_in_a_transaction_of_the_caller_can_be_waited_for() {
    let Some(database) = Database::fresh().await else { return };
    let row = Arc::new(database.row().await);
    let (mut one, mut other, observer) = (database.open().await, database.open().await, database.open().await);
    let transaction = begin(&mut one).await;
    let first = lock(&row, &transaction, "a").await.expect("it is free");
    let waiter = row.clone();
    let task = tokio::spawn(async move {
        let transaction = begin(&mut other).await;
        let lock = waiter.lock(&transaction, "a", Wait::Wait).await.expect("an answer").expect("it was waited for");
        lock.token().get()
    });
    until("it waits", async || waiting(&observer).await == 1).await;
    transaction.commit().await.expect("it was open");
    assert!(soon("the waiter is granted", task).await.expect("no panic") > first);
}

#[tokio::test]
async fn readers_share_a_row_and_keep_writers_out() {
    let Some(database) = Database::fresh().await else { return };
    let row = database.row().await;
    let (mut one, mut other) = (database.open().await, database.open().await);
    let (one, other) = (begin(&mut one).await, begin(&mut other).await);
    let first = row.share(&one, "a", Wait::NoWait).await.expect("an answer").expect("it is free").token().get();
    let second = row.share(&other, "a", Wait::NoWait).await.expect("an answer").expect("readers share").token().get();
    assert!(second > first);
    assert!(attempt(&row, &alone("a")).await.is_none());
    one.commit().await.expect("it was open");
    other.commit().await.expect("it was open");
    take(&row, &alone("a")).await.release().await.expect("it was held");
}

/// After the wait, such a transaction would still see the data from before the wait.
#[tokio::test]
async fn a_transaction_above_read_committed_is_refused() {
    let Some(database) = Database::fresh().await else { return };
    let row = database.row().await;
    let mut client = database.open().await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let transaction = client.build_transaction().isolation_level(level).start().await.expect("it serves");
        let refused = row.lock(&transaction, "a", Wait::NoWait).await.expect_err("the level is too high");
        let Error::Refused(Refused::Invalid(why)) = &refused else { panic!("{refused:?}") };
        assert!(why.contains("READ COMMITTED"), "{why}");
    }
}

#[tokio::test]
async fn a_transaction_in_another_database_is_refused() {
    let (Some(database), Some(elsewhere)) = (Database::fresh().await, Database::fresh().await) else { return };
    let row = database.row().await;
    elsewhere.row().await;
    let mut client = elsewhere.open().await;
    let transaction = begin(&mut client).await;
    let refused = row.lock(&transaction, "a", Wait::Wait).await.expect_err("it is in another database");
    let Error::Refused(Refused::Invalid(why)) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("another database"), "{why}");
}

#[tokio::test]
async fn the_server_ends_the_session_of_a_silent_holder() {
    let Some(database) = Database::fresh().await else { return };
    let row = database.row().await;
    let lease = take(&row, &ask("a", Mode::Exclusive, TTL_SHORT)).await;
    let next = wait(&row, &alone("a")).await;
    assert_eq!(soon("it notices the loss", lease.ended()).await, Lost::DeadlinePassed);
    assert!(token(&*next) > token(&*lease));
    for refused in [lease.renew().await.map(drop), lease.release().await, lease.release().await] {
        let refused = refused.expect_err("it is lost");
        assert!(matches!(refused, Error::Refused(Refused::Lost(Lost::DeadlinePassed))), "{refused:?}");
    }
    next.renew().await.expect("it is held");
    next.release().await.expect("a stale release does not affect the new holder");
    let again = next.release().await.expect_err("it was released");
    assert!(matches!(again, Error::Refused(Refused::NotHeld)), "{again:?}");
}

#[tokio::test]
async fn a_dropped_wait_leaves_the_queue_at_once() {
    let Some(database) = Database::fresh().await else { return };
    let row = Arc::new(database.row().await);
    let lease = take(&*row, &alone("a")).await;
    let observer = database.open().await;
    let waiter = row.clone();
    let task = tokio::spawn(async move { waiter.acquire(&alone("a")).await });
    until("one session waits", async || waiting(&observer).await == 1).await;
    task.abort();
    until("no session waits", async || waiting(&observer).await == 0).await;
    lease.release().await.expect("it was held");
    take(&*row, &alone("a")).await.release().await.expect("the dropped waiter does not block it");
}

/// The next holder may already have a token, and a lower one.
#[tokio::test]
async fn a_token_from_after_the_loss_of_the_lock_is_not_used() {
    let Some(database) = Database::fresh().await else { return };
    let row = Arc::new(database.row().await);
    take(&*row, &alone("a")).await.release().await.expect("it was held");
    let (counter, observer) = (database.open().await, database.open().await);
    run(&counter, "BEGIN; UPDATE fencepost_lock.locks SET token = token").await;
    let holder = row.clone();
    let task = tokio::spawn(async move { holder.try_acquire(&alone("a")).await });
    until("it has the row, and waits for its token", async || waiting(&observer).await == 1).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()
        AND state = 'idle in transaction' AND pid <> pg_backend_pid() AND query LIKE '%FOR UPDATE%'";
    assert_eq!(one(&observer, end).await, 1);
    let free = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE '%FOR UPDATE%' AND pid <> pg_backend_pid()";
    until("its session has ended", async || one(&observer, free).await == 0).await;
    run(&counter, "COMMIT").await;
    let refused = soon("the acquire fails", task).await.expect("no panic");
    assert!(refused.is_err(), "{refused:?}");
    take(&*row, &alone("a")).await.release().await.expect("the failed acquire left no lock");
}

/// This is why row locks do not promise "first come, first served".
#[tokio::test]
async fn readers_pass_a_waiting_writer() {
    let Some(database) = Database::fresh().await else { return };
    let row = Arc::new(database.row().await);
    let observer = database.open().await;
    let reading = ask("a", Mode::Shared, TTL_LONG);
    let first = take(&*row, &reading).await;
    let writer = row.clone();
    let task = tokio::spawn(async move { wait(&*writer, &alone("a")).await });
    until("a writer waits", async || waiting(&observer).await == 1).await;
    let second = take(&*row, &reading).await;
    first.release().await.expect("it was held");
    second.release().await.expect("it was held");
    soon("the writer is granted", task).await.expect("no panic").release().await.expect("it was held");
}
