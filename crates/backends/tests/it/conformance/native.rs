//! The native promises, one function each: what Fencepost's own client does if its system keeps the promise.
//!
//! Each takes two clients of the same cluster and a name that no other test uses. `behaviours.rs` calls them for the promises that
//! the table says are kept.

use std::time::Duration;

use fencepost::{Client, Error, Event, Guard, LockRequest, Lost, Once, Refused};
use fencepost_backends::{Promise, System};

/// Shorter than the TTL of a session, so that only the longest hold can end the lock.
const HOLD_SHORT: Duration = Duration::from_secs(1);
const HOLD_LONG: Duration = Duration::from_secs(600);

pub(crate) async fn keeps(promise: Promise, system: System, first: Client, second: Client, name: &str) {
    match promise {
        Promise::Semaphores => semaphores(&first, &second, name).await,
        Promise::Elections => elections(&first, &second, name).await,
        Promise::Events => events(&first, &second, name).await,
        Promise::Explain => explain(&first, &second, name).await,
        Promise::Once => once(&first, &second, name).await,
        Promise::Update => update(&first, &second, name).await,
        Promise::LongestHold if system == System::Memory => {
            longest_hold(|held| first.lock(held).efficiency(), second.lock(name).efficiency(), name).await;
        }
        Promise::LongestHold => longest_hold(|held| first.lock(held), second.lock(name), name).await,
        other => panic!("{other:?} is not native"),
    }
}

async fn semaphores(first: &Client, second: &Client, name: &str) {
    let one = first.semaphore(name).limit(2).acquire().await.expect("two are free");
    let two = second.semaphore(name).limit(2).acquire().await.expect("one is free");
    assert!(first.semaphore(name).limit(2).try_acquire().await.expect("an answer").is_none(), "none is free");
    one.release().await.expect("it was held");
    two.release().await.expect("it was held");
}

async fn elections(first: &Client, second: &Client, name: &str) {
    let leadership = first.election(name).campaign("10.0.0.7:9000").await.expect("there is no leader");
    let leader = second.election(name).leader().await.expect("an answer").expect("it is elected");
    assert_eq!(leader.epoch, leadership.epoch());
    assert_eq!(leader.value.expect("it has a value").as_bytes(), b"10.0.0.7:9000");
    leadership.resign().await.expect("it leads");
}

async fn events(first: &Client, second: &Client, name: &str) {
    let mut watch = second.watch(name).start().await.expect("an answer");
    let lock = first.lock(name).acquire().await.expect("it is free");
    loop {
        let event = watch.next().await.expect("the watch goes on").expect("an event").event;
        if matches!(event, Event::Granted { grant, .. } if grant == lock.grant()) {
            break;
        }
    }
    lock.release().await.expect("it was held");
}

async fn explain(first: &Client, second: &Client, name: &str) {
    let lock = first.lock(name).acquire().await.expect("it is free");
    let explained = second.explain(name).await.expect("an answer");
    let holders: Vec<_> = explained.holders.iter().map(|view| view.holder.grant).collect();
    assert_eq!(holders, [lock.grant()]);
    lock.release().await.expect("it was held");
}

async fn once(first: &Client, second: &Client, name: &str) {
    let ran = first.lock(name).once("2026-11").run(|_| async { Ok::<_, Error>("billed") }).await;
    assert!(matches!(&ran, Ok(Once::Ran(done)) if done.result == b"billed"), "{ran:?}");
    let before = second.lock(name).once("2026-11").run(|_| async { Ok::<_, Error>("billed again") }).await;
    assert!(matches!(&before, Ok(Once::Before(done)) if done.result == b"billed"), "{before:?}");
}

async fn update(first: &Client, second: &Client, name: &str) {
    let reader = second.lock(name).shared().acquire().await.expect("it is free");
    let lock = first.lock(name).update().acquire().await.expect("beside a reader");
    assert!(second.lock(name).update().try_acquire().await.expect("an answer").is_none(), "one client at a time");
    reader.release().await.expect("it was held");
    let lock = lock.upgrade(HOLD_LONG).await.expect("no reader is left");
    assert!(second.lock(name).shared().try_acquire().await.expect("an answer").is_none(), "it is exclusive");
    lock.release().await.expect("it was held");
}

/// The lock ends while its client is alive and renews its session. Another one is extended, and lives on.
async fn longest_hold<M>(lock: impl Fn(&str) -> LockRequest<M>, next: LockRequest<M>, name: &str) {
    let ends = lock(name).max_hold(HOLD_SHORT).acquire().await.expect("it is free");
    let extended: Guard<M> =
        lock(&format!("{name}/extended")).max_hold(HOLD_SHORT).acquire().await.expect("it is free");
    let is_extended = extended.extend(HOLD_LONG).await;
    let why = ends.lost().await;
    assert_ne!(why, Lost::Released);
    assert!(!ends.is_held());
    next.acquire().await.expect("it is free again").release().await.expect("it was held");
    // On a machine that stalls for longer than the short hold, the extension comes too late. The client says so.
    match is_extended {
        Ok(()) => assert!(extended.is_held(), "{:?}", extended.state()),
        Err(error) => assert!(error.lost().is_some(), "{error:?}"),
    }
    let endless = lock(&format!("{name}/endless")).acquire().await.expect("it is free");
    let refused = endless.extend(HOLD_LONG).await.expect_err("it has no longest hold");
    assert!(matches!(refused, Error::Refused(Refused::Rule(_))), "{refused:?}");
}
