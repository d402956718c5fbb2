//! Tokens rise for all three ways of locking, whatever happens to their holders.
//!
//! A token that is given twice fences nothing. So these tests kill holders, crash the server, and reach the end of the numbers.

use fencepost::{Error, Failed};
use fencepost_testbed::{Kind, own};

use crate::postgres::database::{Database, alone, end_sessions, run, take, token, until};

#[tokio::test]
async fn tokens_keep_rising_when_a_team_changes_its_way_of_locking() {
    let Some(database) = Database::fresh().await else { return };
    let mut last = 0;
    for _ in 0..2 {
        for backend in database.every_way().await {
            let lease = take(&*backend, &alone("a")).await;
            assert!(token(&*lease) > last, "{backend:?}: {} after {last}", token(&*lease));
            last = token(&*lease);
            lease.release().await.expect("it was held");
        }
    }
}

#[tokio::test]
async fn tokens_rise_after_a_holder_was_killed() {
    let Some(database) = Database::fresh().await else { return };
    for backend in database.every_way().await {
        let lease = take(&*backend, &alone("a")).await;
        let admin = database.open().await;
        end_sessions(&admin).await;
        // A lock in the table does not end with the connection, so this sets its expiry to now.
        run(&admin, "UPDATE fencepost_lock.locks SET expires_at = clock_timestamp()").await;
        let mut next = None;
        until("it is free", async || {
            next = backend.try_acquire(&alone("a")).await.ok().flatten();
            next.is_some()
        })
        .await;
        let next = next.expect("just seen");
        assert!(token(&*next) > token(&*lease), "{backend:?}");
        next.release().await.expect("it was held");
    }
}

/// The holder may have used its token just before the crash. The database is set not to sync its commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_given_twice_when_the_server_crashes() {
    let Some(mut server) = own(Kind::Postgres) else { return };
    let database = Database::on(&server).await;
    let admin = database.open().await;
    // With these settings, a commit is on the disk before the crash only if the library's own statements sync it.
    run(&admin, "ALTER SYSTEM SET wal_writer_delay = '10 s'").await;
    run(&admin, "ALTER SYSTEM SET synchronous_commit = off").await;
    run(&admin, "SELECT pg_reload_conf()").await;
    let setting = "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'";
    until("the settings are read", async || crate::postgres::database::one(&admin, setting).await == 1).await;
    for (backend, name) in database.every_way().await.into_iter().zip(["a", "b", "c"]) {
        take(&*backend, &alone(name)).await.release().await.expect("it was held");
        let lease = take(&*backend, &alone(name)).await;
        let before = token(&*lease);
        // For a row lock, the holder's transaction is still open. The crash rolls it back, but its token must not be given again.
        tokio::task::block_in_place(|| server.crash_and_restart());
        run(&database.open().await, "UPDATE fencepost_lock.locks SET holder = NULL").await;
        let mut next = None;
        until("the server grants it again", async || {
            next = backend.try_acquire(&alone(name)).await.ok().flatten();
            next.is_some()
        })
        .await;
        let after = token(&*next.expect("just seen"));
        assert!(after > before, "{backend:?}: {after} after {before}");
    }
}

#[tokio::test]
async fn a_token_that_a_double_cannot_hold_is_refused_and_nothing_is_held() {
    let Some(database) = Database::fresh().await else { return };
    for backend in database.every_way().await {
        take(&*backend, &alone("a")).await.release().await.expect("it was held");
        let client = database.open().await;
        run(&client, "UPDATE fencepost_lock.locks SET token = 9007199254740991").await;
        for _ in 0..2 {
            // If the first attempt left a lock, the second attempt would find it busy.
            let refused = backend.try_acquire(&alone("a")).await;
            let Err(Error::Failed(Failed::NotTaken { message, .. })) = &refused else { panic!("{refused:?}") };
            assert!(message.contains("token_is_below_2_to_the_53"), "{message}");
            let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
            until("the server has released it", async || crate::postgres::database::one(&client, held).await == 0)
                .await;
            let open = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND state = 'idle in transaction'";
            until("the server has released it", async || crate::postgres::database::one(&client, open).await == 0)
                .await;
        }
        run(&client, "UPDATE fencepost_lock.locks SET token = 1").await;
        take(&*backend, &alone("a")).await.release().await.expect("it was held");
    }
}
