//! Advisory locks: sessions that end, waits that are dropped, and keys that two names share.
//!
//! `tests/known_failures_postgres.rs` covers advisory locks through a pooler.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{Error, Lost, Refused};
use fencepost_backends::postgres::{Advisory, advisory_key};
use fencepost_backends::{Backend, Mode};

use crate::postgres::database::{
    Database, TTL_LONG, alone, ask, attempt, end_sessions, name, one, run, soon, take, token, until, wait, waiting,
};

/// A TTL that expires during the test. Long enough for a busy machine to acquire the lock before that.
pub(crate) const TTL_SHORT: Duration = Duration::from_secs(3);

#[tokio::test]
async fn the_server_ends_the_session_of_a_silent_holder() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = database.advisory().await;
    let lease = take(&advisory, &ask("a", Mode::Exclusive, TTL_SHORT)).await;
    let next = wait(&advisory, &alone("a")).await;
    assert_eq!(soon("it notices the loss", lease.ended()).await, Lost::DeadlinePassed);
    assert!(token(&*next) > token(&*lease));
    for refused in [lease.renew().await.map(drop), lease.release().await, lease.release().await] {
        let refused = refused.expect_err("it is lost");
        assert!(matches!(refused, Error::Refused(Refused::Lost(Lost::DeadlinePassed))), "{refused:?}");
    }
    next.release().await.expect("a stale release does not affect the new holder");
    let again = next.release().await.expect_err("it was released");
    assert!(matches!(again, Error::Refused(Refused::NotHeld)), "{again:?}");
}

#[tokio::test]
async fn a_holder_notices_that_its_session_was_ended() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = database.advisory().await;
    let lease = take(&advisory, &alone("a")).await;
    lease.renew().await.expect("it is held");
    end_sessions(&database.open().await).await;
    assert_eq!(soon("it notices the loss", lease.ended()).await, Lost::Gone);
    let refused = lease.release().await.expect_err("it is lost");
    assert!(matches!(refused, Error::Refused(Refused::Lost(Lost::Gone))), "{refused:?}");
    take(&advisory, &alone("a")).await.release().await.expect("it was held");
}

/// Two names with the same key block each other. That never admits a second holder.
#[tokio::test]
async fn a_holder_of_the_same_key_blocks_the_name() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = database.advisory().await;
    let other = database.open().await;
    let in_sql = "SELECT ('x' || left(encode(sha256(convert_to('fencepost:lock:' || 'wallet:ü', 'UTF8')), 'hex'), 16))
        ::bit(64)::bigint";
    assert_eq!(one(&other, in_sql).await, advisory_key(&name("wallet:ü")), "the documentation says how to compute it");
    run(&other, &format!("SELECT pg_advisory_lock({})", advisory_key(&name("wallet:ü")))).await;
    assert!(attempt(&advisory, &alone("wallet:ü")).await.is_none());
    take(&advisory, &alone("wallet:u")).await.release().await.expect("another name is free");
    run(&other, "SELECT pg_advisory_unlock_all()").await;
    let lease = take(&advisory, &alone("wallet:ü")).await;
    lease.renew().await.expect("it is held, and found by its key, even if the key is negative");
}

/// Some of these keys are negative. `pg_locks` shows a key as two halves, and they must be combined with the right sign.
#[tokio::test]
async fn renewal_finds_locks_of_every_key_and_mode() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = database.advisory().await;
    let names: Vec<String> = (0..8).map(|number| format!("lock {number}")).collect();
    let keys: Vec<i64> = names.iter().map(|text| advisory_key(&name(text))).collect();
    assert!(keys.iter().any(|key| *key < 0) && keys.iter().any(|key| *key > 0), "{keys:?}");
    for name in &names {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let lease = take(&advisory, &ask(name, mode, TTL_LONG)).await;
            lease.renew().await.expect("it is held");
            lease.release().await.expect("it was held");
        }
    }
}

#[tokio::test]
async fn a_dropped_wait_leaves_the_queue_at_once() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = Arc::new(database.advisory().await);
    let lease = take(&*advisory, &alone("a")).await;
    let observer = database.open().await;
    let waiter = advisory.clone();
    let task = tokio::spawn(async move { waiter.acquire(&alone("a")).await });
    until("one session waits", async || waiting(&observer).await == 1).await;
    task.abort();
    until("no session waits", async || waiting(&observer).await == 0).await;
    lease.release().await.expect("it was held");
    take(&*advisory, &alone("a")).await.release().await.expect("the dropped waiter does not block it");
}

#[tokio::test]
async fn the_timeouts_of_the_role_do_not_end_a_wait() {
    let Some(database) = Database::fresh().await else { return };
    let settings = format!(
        "ALTER DATABASE {0} SET statement_timeout = '1 s'; ALTER DATABASE {0} SET lock_timeout = '1 s';
         ALTER DATABASE {0} SET default_transaction_isolation = 'serializable'",
        database.name
    );
    let observer = database.open().await;
    let (advisory, row) = (database.advisory().await, database.row().await);
    // The settings apply to new connections, and each lock opens one.
    run(&observer, &settings).await;
    for backend in [Arc::new(advisory) as Arc<dyn Backend>, Arc::new(row)] {
        let lease = take(&*backend, &alone("a")).await;
        let waiter = backend.clone();
        let task = tokio::spawn(async move { wait(&*waiter, &alone("a")).await });
        let for_long = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '1.5 s'";
        until("it waits for longer than the timeouts", async || one(&observer, for_long).await == 1).await;
        lease.release().await.expect("it was held");
        let next = soon("the waiter is granted", task).await.expect("no panic");
        next.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_granted_in_order_and_readers_do_not_pass_waiting_writers() {
    let Some(database) = Database::fresh().await else { return };
    let advisory: Arc<Advisory> = Arc::new(database.advisory().await);
    let observer = database.open().await;
    let reader = take(&*advisory, &ask("a", Mode::Shared, TTL_LONG)).await;
    let mut waiters = Vec::new();
    for place in 1..=5 {
        let advisory = advisory.clone();
        waiters.push(tokio::spawn(async move {
            let lease = wait(&*advisory, &alone("a")).await;
            let token = token(&*lease);
            lease.release().await.expect("it was held");
            token
        }));
        until("it is in the queue", async || waiting(&observer).await == place).await;
    }
    // Another reader could share the lock with the first reader, but writers wait before it.
    assert!(attempt(&*advisory, &ask("a", Mode::Shared, TTL_LONG)).await.is_none());
    reader.release().await.expect("it was held");
    let mut tokens = Vec::new();
    for waiter in waiters {
        tokens.push(soon("all waiters are granted", waiter).await.expect("no panic"));
    }
    assert!(tokens.is_sorted(), "{tokens:?}");
}
