//! Shows how plain locks of Postgres fail, and that this library avoids these failures.
//!
//! If one of the tests of plain locks fails, Postgres or PgBouncer no longer has that failure, and the code that guards against it
//! may be removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost_backends::postgres::Advisory;
use fencepost_backends::{Client, Error};
use fencepost_testbed::{Kind, Server, own, pooler};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

/// Long enough for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn open(server: &Server) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("it serves");
    tokio::spawn(connection);
    client
}

/// The boolean that a query returns. Uses no prepared statement, because a pooler would lose it.
async fn is(client: &tokio_postgres::Client, sql: &str) -> bool {
    client.query_typed_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// Several clients read and write a counter under a lock. Returns the counter, and what it must be.
async fn count_under_a_lock(address: &str) -> (u32, u32) {
    const CLIENTS: u32 = 4;
    const ROUNDS: u32 = 10;
    let (inside, counted) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut contenders = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = Client::connect(address).await.expect("it serves");
        let (inside, counted) = (inside.clone(), counted.clone());
        contenders.spawn(async move {
            for _ in 0..ROUNDS {
                let lock = client.lock("nightly").wait(PATIENCE).acquire().await.expect("its turn comes");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at the same time");
                let seen = counted.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counted.store(seen + 1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                lock.release().await.expect("it was held");
            }
        });
    }
    contenders.join_all().await;
    (counted.load(Ordering::SeqCst), CLIENTS * ROUNDS)
}

/// The pooler gives both clients the same session. The server sees one holder that locks twice.
#[tokio::test]
async fn a_plain_advisory_lock_through_a_pooler_is_granted_to_two() {
    let Some(postgres) = own(Kind::Postgres) else { return };
    let Some(pooler) = pooler(&postgres, 1) else { return };
    let (one, other) = (open(&pooler).await, open(&pooler).await);
    assert!(is(&one, "SELECT pg_try_advisory_lock(7)").await);
    assert!(is(&other, "SELECT pg_try_advisory_lock(7)").await, "two holders, and both believe that they hold it");
    // On a direct connection to the server, the same call is refused.
    assert!(!is(&open(&postgres).await, "SELECT pg_try_advisory_lock(7)").await);
}

/// The session goes back to the pool with the lock.
#[tokio::test]
async fn a_plain_advisory_lock_through_a_pooler_stays_when_its_holder_is_gone() {
    let Some(postgres) = own(Kind::Postgres) else { return };
    let Some(pooler) = pooler(&postgres, 1) else { return };
    let holder = open(&pooler).await;
    assert!(is(&holder, "SELECT pg_try_advisory_lock(7)").await);
    drop(holder);
    // Another client uses the session, so the pooler has noticed that the holder is gone.
    let other = open(&pooler).await;
    assert!(is(&other, "SELECT true").await);
    assert!(
        !is(&open(&postgres).await, "SELECT pg_try_advisory_lock(7)").await,
        "no holder is left, but it is not free"
    );
}

#[tokio::test]
async fn advisory_locks_are_refused_through_a_pooler() {
    let Some(postgres) = own(Kind::Postgres) else { return };
    let Some(pooler) = pooler(&postgres, 8) else { return };
    let address = format!("postgres+advisory://postgres@127.0.0.1:{}/postgres", pooler.port());
    let refused = Advisory::connect(&address).await.expect_err("it is a pooler");
    let Error::Lock(fencepost::Error::Refused(fencepost::Refused::Invalid(why))) = &refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("pooler") && why.contains("postgres+table://"), "{why}");
    Advisory::connect(&address.replace(&pooler.port().to_string(), &postgres.port().to_string()))
        .await
        .expect("this is the server itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_and_row_locks_are_exclusive_through_a_pooler() {
    let Some(postgres) = own(Kind::Postgres) else { return };
    let Some(pooler) = pooler(&postgres, 8) else { return };
    for way in ["table", "row"] {
        let address = format!("postgres+{way}://postgres@127.0.0.1:{}/postgres", pooler.port());
        let (counted, expected) = tokio::time::timeout(PATIENCE, count_under_a_lock(&address)).await.expect("in time");
        assert_eq!(counted, expected, "{way}");
    }
    // A dropped guard leaves no lock behind.
    let address = format!("postgres+row://postgres@127.0.0.1:{}/postgres", pooler.port());
    let client = Client::connect(&address).await.expect("it serves");
    drop(client.lock("nightly").acquire().await.expect("it is free"));
    let next = client.lock("nightly").wait(PATIENCE).acquire().await.expect("it was released");
    next.release().await.expect("it was held");
}

/// A counter in the transaction that holds the row gives the same number to two holders.
#[tokio::test]
async fn a_rollback_also_undoes_a_counter_in_the_transaction() {
    let Some(postgres) = own(Kind::Postgres) else { return };
    let client = open(&postgres).await;
    client.batch_execute("CREATE TABLE lock (version bigint); INSERT INTO lock VALUES (1)").await.expect("a table");
    let raise = "UPDATE lock SET version = version + 1 RETURNING version";
    let mut numbers: Vec<i64> = Vec::new();
    for _ in 0..2 {
        client.batch_execute("BEGIN").await.expect("it serves");
        // From here on the holder may use the number in another store.
        numbers.push(client.query_typed_one(raise, &[]).await.expect("it serves").get(0));
        client.batch_execute("ROLLBACK").await.expect("it serves");
    }
    assert_eq!(numbers, [2, 2], "two holders, and the store cannot tell them apart");
}
