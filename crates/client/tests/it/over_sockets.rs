//! The whole client over real sockets, against the core's own lock state.

use std::time::Duration;

use crate::cluster::Cluster;
use fencepost::{Client, Error, Event, GrantEnd, GrantState, LockMode, Lost, Refused, TokenCheck, ToldReason};

const SECOND: Duration = Duration::from_secs(1);

async fn start() -> (Cluster, Client) {
    let (cluster, address) = Cluster::start().await;
    let client = Client::connect(&format!("fencepost://{address}")).await.expect("the cluster is up");
    (cluster, client)
}

async fn another(address: &str) -> Client {
    Client::builder().endpoint(address).session_ttl(2 * SECOND).connect().await.expect("the cluster is up")
}

#[tokio::test]
async fn a_lock_is_taken_and_given_back_and_tokens_rise() {
    let (cluster, client) = start().await;
    let first = client.lock("a").acquire().await.unwrap();
    assert!(first.is_held() && first.remaining() > 25 * SECOND);
    assert_eq!(first.state(), GrantState::Held);
    let token = first.token();
    assert_eq!(first.release().await.unwrap().count_left, 0);
    let second = client.lock("a").acquire().await.unwrap();
    assert!(second.token() > token);
    drop(second);
    cluster.until("free", |counts| counts.grants == 0).await;
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_its_holder_lets_go() {
    let (cluster, client) = start().await;
    let first = client.lock("a").acquire().await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    let busy = client.lock("a").try_acquire_or_busy().await.unwrap().unwrap_err();
    assert_eq!(busy.holders[0].grant, first.grant());
    let waits = tokio::spawn(client.lock("a").wait(10 * SECOND).acquire());
    cluster.until("queued", |counts| counts.waiters == 1).await;
    first.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_wait_ends_in_time_and_says_so() {
    let (_cluster, client) = start().await;
    let _held = client.lock("a").acquire().await.unwrap();
    let error = client.lock("a").wait(Duration::from_millis(50)).acquire().await.unwrap_err();
    assert!(error.is_timed_out(), "{error}");
    assert!(error.to_string().starts_with("a was not granted in time: "), "{error}");
    let error = client.lock("").acquire().await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refused::BadName { .. })), "{error}");
}

#[tokio::test]
async fn a_dropped_acquire_is_cancelled_at_the_server() {
    let (cluster, client) = start().await;
    let held = client.lock("a").acquire().await.unwrap();
    let waits = tokio::spawn(client.lock("a").wait_forever().acquire());
    cluster.until("queued", |counts| counts.waiters == 1).await;
    waits.abort();
    cluster.until("cancelled", |counts| counts.waiters == 0).await;
    drop(held);
    cluster.until("free", |counts| counts.grants == 0).await;
}

#[tokio::test]
async fn a_broken_connection_does_not_lose_the_lock() {
    let (cluster, client) = start().await;
    let held = client.lock("a").acquire().await.unwrap();
    let waits = tokio::spawn(client.lock("a").wait(20 * SECOND).acquire());
    cluster.until("queued", |counts| counts.waiters == 1).await;
    for _ in 0..3 {
        cluster.cut();
        // A request without a stream waits for the next stream.
        let other = client.lock("b").acquire().await.unwrap();
        other.release().await.unwrap();
    }
    assert!(held.is_held());
    cluster.cut();
    held.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().is_held());
    assert_eq!(cluster.counts().sessions, 1);
}

#[tokio::test]
async fn the_leader_is_followed() {
    let (cluster, leader) = Cluster::start().await;
    let follower = cluster.follower(&leader).await;
    let client = Client::connect(&format!("fencepost://{follower}")).await.unwrap();
    let lock = client.lock("a").acquire().await.unwrap();
    let check = client.check("a", lock.token()).await.unwrap().what;
    assert!(matches!(check, TokenCheck::Stands { grant, .. } if grant == lock.grant()));
    assert_eq!(client.explain("a").await.unwrap().what.holders.len(), 1);
    assert_eq!(client.grants("", None).await.unwrap().what.rows.len(), 1);
}

#[tokio::test]
async fn with_a_silent_cluster_the_lock_is_lost_before_it_is_given_to_another() {
    let (cluster, address) = Cluster::start().await;
    let client = another(&address).await;
    let held = client.lock("a").acquire().await.unwrap();
    cluster.fall_silent(true);
    assert_eq!(held.state_other_than(GrantState::Held).await, GrantState::Jeopardy);
    assert_eq!(tokio::time::timeout(3 * SECOND, held.lost()).await.unwrap(), Lost::DeadlinePassed);
    assert_eq!(cluster.counts().grants, 1, "the cluster has not ended it yet");
    assert!(matches!(held.release().await, Err(Error::Refused(Refused::Lost(_)))));
    // When the cluster answers again, the client opens a new session without an error.
    cluster.fall_silent(false);
    assert!(client.lock("b").acquire().await.unwrap().is_held());
}

#[tokio::test]
async fn work_is_stopped_when_its_lock_is_lost() {
    let (cluster, client) = start().await;
    let done = client.lock("a").run(|lock| async move { lock.token().get() }).await.unwrap();
    assert!(done > 0);
    cluster.until("free", |counts| counts.grants == 0).await;
    let breaks = cluster.clone();
    let error = client
        .lock("a")
        .run(|lock| async move {
            breaks.break_grant(lock.grant());
            std::future::pending::<()>().await
        })
        .await
        .unwrap_err();
    let reason = ToldReason::new("a test").unwrap();
    assert_eq!(error.lost(), Some(Lost::Ended(GrantEnd::Broken(reason))), "{error}");
    assert!(error.to_string().contains("an administrator broke it: a test"), "{error}");
}

#[tokio::test]
async fn modes_change_and_only_exclusive_tokens_write() {
    let (_cluster, client) = start().await;
    let reader = client.lock("a").shared().acquire().await.unwrap();
    let update = client.lock("a").update().acquire().await.unwrap();
    let not = update.upgrade(Duration::from_millis(20)).await.unwrap_err();
    assert!(not.error.is_timed_out());
    let update = not.guard.expect("the lock has not changed");
    drop(reader);
    let before = update.token().get();
    let exclusive = update.upgrade(SECOND).await.unwrap();
    assert!(exclusive.token().get() > before, "an upgrade raises the token");
    let shared = exclusive.downgrade().await.unwrap();
    assert!(client.lock("a").shared().try_acquire().await.unwrap().is_some());
    drop(shared);
}

#[tokio::test]
async fn several_names_are_taken_together() {
    let (cluster, client) = start().await;
    let all = client.lock_all(["a", "b"]).acquire().await.unwrap();
    assert_eq!(all.names().count(), 2);
    assert!(client.lock("b").try_acquire().await.unwrap().is_none());
    all.release().await.unwrap();
    let mixed = client.lock_each([("a", LockMode::Exclusive), ("b", LockMode::Shared)]).acquire().await.unwrap();
    assert!(mixed.token("a").is_some() && mixed.token("b").is_none());
    drop(mixed);
    cluster.until("free", |counts| counts.grants == 0).await;
}

#[tokio::test]
async fn permits_are_counted() {
    let (_cluster, client) = start().await;
    let permits = client.semaphore("s").limit(3).permits(2).acquire().await.unwrap();
    assert!(client.semaphore("s").limit(3).permits(2).try_acquire().await.unwrap().is_none());
    assert!(client.semaphore("s").limit(3).try_acquire().await.unwrap().is_some());
    permits.release().await.unwrap();
    let error = client.semaphore("s").limit(0).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refused::BadWord(_))), "{error}");
}

#[tokio::test]
async fn a_leader_is_elected_seen_and_followed_by_the_next() {
    let (cluster, client) = start().await;
    let mut observer = client.election("e").observe().await.unwrap();
    assert_eq!(observer.next().await.unwrap(), None);
    let first = client.election("e").campaign("one").await.unwrap();
    let seen = observer.next().await.unwrap().unwrap();
    assert_eq!((seen.value.unwrap().as_bytes(), seen.epoch), (&b"one"[..], first.epoch()));
    let second = tokio::spawn(client.election("e").campaign("two"));
    cluster.until("a candidate waits", |counts| counts.waiters == 1).await;
    first.set_value("one and a half").await.unwrap();
    assert_eq!(observer.next().await.unwrap().unwrap().value.unwrap().as_bytes(), b"one and a half");
    let epoch = first.epoch();
    first.resign().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.epoch() > epoch);
    assert_eq!(observer.next().await.unwrap().unwrap().epoch, second.epoch());
}

#[tokio::test]
async fn a_watch_sees_everything_once_across_broken_streams() {
    let (_cluster, client) = start().await;
    let mut watch = client.watch("w").start().await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let lock = client.lock("w").acquire().await.unwrap();
        tokens.push(lock.token().get());
        lock.release().await.unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        if let Event::Granted { token, .. } = watch.next().await.unwrap().unwrap().event {
            seen.push(token.0);
        }
    }
    let mut rest = client.watch("w").after(watch.position()).start().await.unwrap();
    while seen.len() < 3 {
        if let Event::Granted { token, .. } = rest.next().await.unwrap().unwrap().event {
            seen.push(token.0);
        }
    }
    assert_eq!(seen, tokens);
}

#[tokio::test]
async fn the_holder_is_notified_when_another_client_waits() {
    let (_cluster, client) = start().await;
    let held = client.lock("a").hear_contended().acquire().await.unwrap();
    let waits = tokio::spawn(client.lock("a").wait(10 * SECOND).acquire());
    tokio::time::timeout(5 * SECOND, held.contended()).await.unwrap().unwrap();
    held.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn sessions_of_one_connection_end_alone() {
    let (cluster, client) = start().await;
    let session = client.session().ttl(5 * SECOND).open().unwrap();
    let (mine, its) = (client.lock("a").acquire().await.unwrap(), session.lock("b").acquire().await.unwrap());
    cluster.until("two sessions", |counts| counts.sessions == 2).await;
    session.close().await.unwrap();
    assert!(mine.is_held() && !its.is_held());
    drop((mine, its, session));
    drop(client);
    cluster.until("everything closed", |counts| counts.sessions == 0).await;
}

#[tokio::test]
async fn re_entry_needs_as_many_releases() {
    let (cluster, client) = start().await;
    let outer = client.lock("a").owner("job").acquire().await.unwrap();
    let inner = client.lock("a").owner("job").acquire().await.unwrap();
    assert_eq!(outer.grant(), inner.grant());
    assert_eq!(inner.release().await.unwrap().count_left, 1);
    assert!(outer.is_held());
    assert_eq!(outer.release().await.unwrap().count_left, 0);
    assert_eq!(cluster.counts().grants, 0);
}

#[tokio::test]
async fn a_dead_cluster_fails_fast() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let client = Client::builder().endpoint(&address).connect_in_background().unwrap();
    let error = client.lock("a").wait_forever().acquire().await.unwrap_err();
    assert!(error.is_failed(), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(matches!(Client::connect("http://x").await, Err(Error::Failed(_))));
}

#[tokio::test]
async fn thousands_of_requests_share_one_stream() {
    let (cluster, client) = start().await;
    let started = std::time::Instant::now();
    let workers: Vec<_> = (0..64)
        .map(|worker| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    client.lock(format!("name {worker}")).acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let rate = 64.0 * 400.0 / started.elapsed().as_secs_f64();
    println!("{rate:.0} operations a second");
    assert_eq!(cluster.counts().grants, 0);
}
