//! Advisory locks: sessions that end, waits that are cut, and keys that are shared.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{Error, Lost, Refused};
use fencepost_backends::postgres::{Advisory, advisory_key};
use fencepost_backends::{Backend, Mode};

use crate::postgres::database::{
    Database, TTL_LONG, alone, ask, attempt, end_sessions, name, one, run, soon, take, token, until, wait, waiting,
};

/// A TTL that runs out in the test. Long enough for a busy machine to take the lock before.
pub(crate) const TTL_SHORT: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_holder_that_says_nothing_is_thrown_out_by_the_server() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = database.advisory().await;
    let lease = take(&advisory, &ask("a", Mode::Exclusive, TTL_SHORT)).await;
    let next = wait(&advisory, &alone("a")).await;
    assert_eq!(soon("it hears of it", lease.ended()).await, Lost::DeadlinePassed);
    assert!(token(&*next) > token(&*lease));
    for refused in [lease.renew().await.map(drop), lease.release().await, lease.release().await] {
        let refused = refused.expect_err("it is lost");
        assert!(matches!(refused, Error::Refused(Refused::Lost(Lost::DeadlinePassed))), "{refused:?}");
    }
    next.release().await.expect("a stale release takes nothing away");
    let again = next.release().await.expect_err("it was given back");
    assert!(matches!(again, Error::Refused(Refused::NotHeld)), "{again:?}");
}

#[tokio::test]
async fn a_holder_whose_session_is_ended_hears_of_it() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = database.advisory().await;
    let lease = take(&advisory, &alone("a")).await;
    lease.renew().await.expect("it is held");
    end_sessions(&database.open().await).await;
    assert_eq!(soon("it hears of it", lease.ended()).await, Lost::Gone);
    let refused = lease.release().await.expect_err("it is lost");
    assert!(matches!(refused, Error::Refused(Refused::Lost(Lost::Gone))), "{refused:?}");
    take(&advisory, &alone("a")).await.release().await.expect("it was held");
}

/// Two names with the same key wait for each other. Nobody is let in by that.
#[tokio::test]
async fn whoever_has_the_key_of_a_name_is_waited_for() {
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
    lease.renew().await.expect("it is held, and found by its key, negative or not");
}

/// The key of one of these has its highest bit set, so what the server shows of it must be put together with care.
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
async fn a_wait_that_is_dropped_leaves_the_queue_at_once() {
    let Some(database) = Database::fresh().await else { return };
    let advisory = Arc::new(database.advisory().await);
    let lease = take(&*advisory, &alone("a")).await;
    let observer = database.open().await;
    let waiter = advisory.clone();
    let task = tokio::spawn(async move { waiter.acquire(&alone("a")).await });
    until("somebody waits", async || waiting(&observer).await == 1).await;
    task.abort();
    until("nobody waits", async || waiting(&observer).await == 0).await;
    lease.release().await.expect("it was held");
    take(&*advisory, &alone("a")).await.release().await.expect("nobody who left is in the way");
}

#[tokio::test]
async fn a_wait_is_not_cut_by_the_time_outs_of_the_role() {
    let Some(database) = Database::fresh().await else { return };
    let settings = format!(
        "ALTER DATABASE {0} SET statement_timeout = '1 s'; ALTER DATABASE {0} SET lock_timeout = '1 s';
         ALTER DATABASE {0} SET default_transaction_isolation = 'serializable'",
        database.name
    );
    let observer = database.open().await;
    let (advisory, row) = (database.advisory().await, database.row().await);
    // From here on for each new connection, and each lock has one.
    run(&observer, &settings).await;
    for backend in [Arc::new(advisory) as Arc<dyn Backend>, Arc::new(row)] {
        let lease = take(&*backend, &alone("a")).await;
        let waiter = backend.clone();
        let task = tokio::spawn(async move { wait(&*waiter, &alone("a")).await });
        let for_long = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '1.5 s'";
        until("it waits for longer than that", async || one(&observer, for_long).await == 1).await;
        lease.release().await.expect("it was held");
        let next = soon("it is handed over", task).await.expect("no panic");
        next.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asked_first_is_granted_first_and_nobody_jumps_the_queue() {
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
        until("it stands in the queue", async || waiting(&observer).await == place).await;
    }
    // Another reader could share the lock with the first one, but writers wait.
    assert!(attempt(&*advisory, &ask("a", Mode::Shared, TTL_LONG)).await.is_none());
    reader.release().await.expect("it was held");
    let mut tokens = Vec::new();
    for waiter in waiters {
        tokens.push(soon("everybody has had it", waiter).await.expect("no panic"));
    }
    assert!(tokens.is_sorted(), "{tokens:?}");
}
