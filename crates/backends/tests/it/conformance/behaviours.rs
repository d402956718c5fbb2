//! The behaviours that every system must show, one function each.
//!
//! Each function takes a test bed and a lock name that no other test uses. If the system does not promise the behaviour, the
//! function checks that the request is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::{GrantState, Lost, Refused};
use fencepost_backends::{Client, Error, Promise, System, Tier};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::conformance::bed::{Bed, PATIENCE, TTL_SHORT, lock};
use crate::conformance::frozen::Frozen;
use crate::conformance::native;
use crate::conformance::proxy::Proxy;

/// A wait that must time out. The test never depends on its length, because the lock stays held.
const IN_VAIN: Duration = Duration::from_millis(150);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

pub(crate) async fn at_most_one_holds_it_under_contention(bed: &Bed, name: &str) {
    const CLIENTS: u32 = 6;
    const ROUNDS: u32 = 15;
    let (inside, times) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut contenders = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, name, inside, times) = (bed.client().await, name.to_owned(), inside.clone(), times.clone());
        contenders.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = lock(&client, &name).acquire().await.expect("its turn comes");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at the same time");
                tokio::task::yield_now().await;
                times.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("it was held");
            }
        });
    }
    soon("all contenders are done", contenders.join_all()).await;
    assert_eq!(times.load(Ordering::SeqCst), CLIENTS * ROUNDS);
}

pub(crate) async fn a_wait_ends_when_the_holder_releases(bed: &Bed, name: &str) {
    let (first, second) = (bed.client().await, bed.client().await);
    let guard = lock(&first, name).acquire().await.expect("it is free");
    assert!(guard.is_held() && guard.remaining() > Duration::ZERO);
    let waits = lock(&second, name);
    let waiting = tokio::spawn(async move { waits.acquire().await });
    let hold = guard.hold();
    guard.release().await.expect("it was held");
    assert_eq!(hold.state(), GrantState::Lost(Lost::Released));
    let next = soon("the waiter is granted", waiting).await.expect("no panic").expect("granted");
    assert!(next.is_held());
    next.release().await.expect("it was held");
}

pub(crate) async fn a_wait_that_is_too_short_times_out_and_leaves_nothing_behind(bed: &Bed, name: &str) {
    let (first, second) = (bed.client().await, bed.client().await);
    let guard = lock(&first, name).acquire().await.expect("it is free");
    assert!(lock(&second, name).try_acquire().await.expect("an answer").is_none(), "it is held");
    let late = lock(&second, name).wait(IN_VAIN).acquire().await;
    assert!(matches!(&late, Err(error) if error.is_timed_out()), "{late:?}");
    assert!(guard.is_held(), "a wait of another client does not end it");
    guard.release().await.expect("it was held");
    // If the waiter that timed out still blocked the lock, this would wait for its TTL, which is the default of 30 s.
    let after = timeout(PATIENCE / 4, lock(&first, name).acquire()).await.expect("the old waiter does not block it");
    after.expect("granted").release().await.expect("it was held");
}

pub(crate) async fn a_wait_that_is_dropped_leaves_nothing_behind(bed: &Bed, name: &str) {
    let (first, second) = (bed.client().await, bed.client().await);
    let guard = lock(&first, name).acquire().await.expect("it is free");
    // Drops the wait at many different moments.
    for step in 0..12 {
        let dropped = timeout(Duration::from_millis(step * 5), lock(&second, name).acquire()).await;
        assert!(dropped.is_err(), "it is held: {dropped:?}");
    }
    guard.release().await.expect("it was held");
    for step in 0..12 {
        // Now the lock is free, so it may be granted to a request that was dropped.
        let _ = timeout(Duration::from_micros(step * 300), lock(&second, name).acquire()).await;
    }
    let after = timeout(PATIENCE / 4, lock(&first, name).acquire()).await.expect("no dropped request blocks it");
    after.expect("granted").release().await.expect("it was held");
}

pub(crate) async fn a_dropped_guard_releases_the_lock(bed: &Bed, name: &str) {
    let (first, second) = (bed.client().await, bed.client().await);
    drop(lock(&first, name).acquire().await.expect("it is free"));
    let after = timeout(PATIENCE / 4, lock(&second, name).acquire()).await.expect("it was released");
    after.expect("granted").release().await.expect("it was held");
}

// Rule: holder-stops-first
pub(crate) async fn a_paused_holder_loses_the_lock_and_notices_it(bed: &Bed, name: &str) {
    let builder = bed.builder(&bed.ports).ttl(TTL_SHORT);
    let held = name.to_owned();
    let frozen = tokio::task::spawn_blocking(move || Frozen::holding(builder, &held)).await.expect("no panic");
    let next = soon("it expires", lock(&bed.client().await, name).acquire()).await.expect("granted");
    let woken = tokio::task::spawn_blocking(move || frozen.thaw()).await.expect("no panic");
    assert!(!woken.believed_held, "two holders believe that they hold it");
    let refused = woken.released.expect_err("a stale release is refused");
    let is_refusal = refused.lost().is_some() || matches!(refused, fencepost::Error::Refused(Refused::NotOwner));
    assert!(is_refusal, "{refused:?}");
    assert!(next.is_held(), "a stale release does not affect the new holder");
    assert!(lock(&bed.client().await, name).try_acquire().await.expect("an answer").is_none(), "it is still held");
    next.release().await.expect("it was held");
}

pub(crate) async fn a_holder_whose_connection_is_cut_notices_the_loss(bed: &Bed, name: &str) {
    let mut proxies = Vec::new();
    for port in &bed.ports {
        proxies.push(Proxy::to(*port).await);
    }
    let ports: Vec<u16> = proxies.iter().map(|proxy| proxy.port).collect();
    let client = bed.builder(&ports).ttl(TTL_SHORT).connect().await.expect("the proxies are up");
    let guard = lock(&client, name).acquire().await.expect("it is free");
    drop(proxies);
    let why = soon("it notices the loss", guard.lost()).await;
    assert_ne!(why, Lost::Released);
    assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
    let next = soon("it is free again", lock(&bed.client().await, name).acquire()).await.expect("granted");
    next.release().await.expect("it was held");
    guard.release().await.expect_err("it was lost");
}

pub(crate) async fn a_holder_notices_that_the_server_is_gone(bed: &Bed, name: &str) {
    let Some(mut own) = Bed::own(bed.system) else { return };
    let client = own.client_with_short_ttl().await;
    let guard = lock(&client, name).acquire().await.expect("it is free");
    own.end_servers();
    assert!(!own.is_up());
    let why = soon("it notices the loss", guard.lost()).await;
    assert_ne!(why, Lost::Released);
    assert!(!guard.is_held());
}

pub(crate) async fn a_held_lock_is_renewed_for_longer_than_its_ttl(bed: &Bed, name: &str) {
    let client = bed.client_with_short_ttl().await;
    let guard = lock(&client, name).acquire().await.expect("it is free");
    let until = std::time::Instant::now() + TTL_SHORT * 3 / 2;
    let mut grew = false;
    let mut last = guard.remaining();
    while std::time::Instant::now() < until {
        tokio::time::sleep(TTL_SHORT / 40).await;
        let remaining = guard.remaining();
        grew |= remaining > last;
        last = remaining;
    }
    assert!(grew, "nothing was renewed");
    // If the machine stalled for longer than the TTL, the lock may be lost. Another test covers that.
    if guard.is_held() {
        let other = lock(&bed.client().await, name).try_acquire().await.expect("an answer");
        assert!(other.is_none() || !guard.is_held(), "it was granted to another client");
    }
}

pub(crate) async fn tokens_rise_or_are_refused(bed: &Bed, name: &str) {
    let client = bed.client().await;
    if bed.system.check(Promise::FencingToken).is_err() {
        if bed.system == System::Memory {
            // The same cluster gives tokens in the correctness tier, so the request would succeed.
            return;
        }
        let refused = client.lock(name).acquire().await.expect_err("no tokens");
        assert!(matches!(&refused, Error::NotPromised(not) if not.promise == Promise::FencingToken), "{refused:?}");
        return;
    }
    let mut last = 0;
    let mut rises = |token: u64, what: &str| {
        assert!(token > last, "{what}: {token} after {last}");
        last = token;
    };
    for _ in 0..5 {
        for client in [&client, &bed.client().await] {
            let guard = client.lock(name).wait(PATIENCE).acquire().await.expect("it is free");
            rises(guard.token().get(), "after a release");
            guard.release().await.expect("it was held");
        }
    }
    let builder = bed.builder(&bed.ports).ttl(TTL_SHORT);
    let held = name.to_owned();
    let frozen = tokio::task::spawn_blocking(move || Frozen::holding(builder, &held)).await.expect("no panic");
    let guard = soon("it expires", client.lock(name).wait(PATIENCE).acquire()).await.expect("granted");
    rises(guard.token().get(), "after a holder was lost");
    guard.release().await.expect("it was held");
    let _ = tokio::task::spawn_blocking(move || frozen.thaw()).await.expect("no panic");
}

pub(crate) async fn readers_share_and_keep_writers_out_or_are_refused(bed: &Bed, name: &str) {
    let (first, second) = (bed.client().await, bed.client().await);
    let shared = |client: &Client| client.lock(name).shared().efficiency().wait(PATIENCE);
    if bed.system.check(Promise::Shared).is_err() {
        let refused = shared(&first).acquire().await.expect_err("not shared");
        assert!(matches!(&refused, Error::NotPromised(not) if not.promise == Promise::Shared), "{refused:?}");
        return;
    }
    let one = shared(&first).acquire().await.expect("it is free");
    let two = shared(&second).acquire().await.expect("readers share");
    assert!(lock(&second, name).try_acquire().await.expect("an answer").is_none(), "readers keep a writer out");
    let writer = lock(&second, name);
    let waiting = tokio::spawn(async move { writer.acquire().await });
    one.release().await.expect("it was held");
    two.release().await.expect("it was held");
    let alone = soon("the writer is granted", waiting).await.expect("no panic").expect("granted");
    assert!(shared(&first).try_acquire().await.expect("an answer").is_none(), "a writer keeps readers out");
    alone.release().await.expect("it was held");
}

pub(crate) async fn what_is_not_promised_is_refused_before_anything_is_sent(bed: &Bed, name: &str) {
    // The servers are gone. So a refusal for any other reason comes before anything is sent.
    let Some(mut own) = Bed::own(bed.system) else { return };
    let client = own.client().await;
    own.end_servers();
    for promise in Promise::ALL {
        let promised = client.promised(name, Tier::Efficiency, promise);
        match bed.system.check(promise) {
            Ok(()) => promised.expect("it is promised"),
            Err(not) => assert!(matches!(promised, Err(Error::NotPromised(refused)) if refused == not), "{promise:?}"),
        }
        let plan = client.lock(name).efficiency().needs(promise).plan();
        match bed.system.check(promise) {
            Ok(()) => assert_eq!(plan.expect("it is promised").system, bed.system),
            Err(not) => {
                let refused = client.lock(name).efficiency().needs(promise).acquire().await;
                let refused = refused.expect_err("it is not promised");
                assert!(matches!(&refused, Error::NotPromised(refused) if *refused == not), "{refused:?}");
                assert!(refused.to_string().contains("Systems that do: "), "{refused}");
            }
        }
    }
    let path = client.lock("/a/path").efficiency().plan();
    assert_eq!(path.is_ok(), bed.system.check(Promise::Paths).is_ok(), "{path:?}");
}

/// The refusals are in the test above. This one shows that the native client of the name keeps each native promise.
pub(crate) async fn what_only_fencepost_has_is_kept_or_has_no_client(bed: &Bed, name: &str) {
    let (client, other) = (bed.client().await, bed.client().await);
    for promise in Promise::ALL.into_iter().filter(|promise| promise.is_native()) {
        if client.promised(name, Tier::Efficiency, promise).is_err() {
            assert!(bed.system == System::Memory || client.native(name).is_none(), "{promise:?}");
            continue;
        }
        let name = format!("{name}/{promise:?}");
        let native = |client: &Client| client.native(&name).unwrap_or_else(|| panic!("a client for {name}"));
        soon(promise.name(), native::keeps(promise, bed.system, native(&client), native(&other), &name)).await;
    }
}

// Rule: re-entry
pub(crate) async fn the_same_owner_enters_again(bed: &Bed, name: &str) {
    let (client, other) = (bed.client().await, bed.client().await);
    let once = lock(&client, name).owner("job-7").acquire().await.expect("it is free");
    let twice =
        soon("it does not wait for itself", lock(&client, name).owner("job-7").acquire()).await.expect("entered");
    assert!(lock(&client, name).owner("job-8").try_acquire().await.expect("an answer").is_none(), "another owner");
    assert_eq!(once.release().await.expect("it was held").count_left, 1);
    assert!(twice.is_held(), "it is held until its owner has left as often as it entered");
    assert!(lock(&other, name).try_acquire().await.expect("an answer").is_none(), "it is still held");
    assert_eq!(twice.release().await.expect("it was held").count_left, 0);
    let after = soon("it is free", lock(&other, name).acquire()).await.expect("granted");
    after.release().await.expect("it was held");
}

pub(crate) async fn several_locks_are_taken_without_deadlock(bed: &Bed, name: &str) {
    let client = bed.client().await;
    let names = ["c", "a", "b"].map(|part| format!("{name}/{part}"));
    if bed.system.is_for_correctness() {
        let all = client.lock_all(&names).acquire().await.expect("they are free");
        assert!(names.iter().all(|name| all.token(name).is_some()) && all.token("another").is_none());
        all.release().await.expect("they were held");
    } else if bed.system != System::Memory {
        let refused = client.lock_all(&names).acquire().await.expect_err("no tokens");
        assert!(matches!(refused, Error::NotPromised(_)), "{refused:?}");
    }
    let mut contenders = JoinSet::new();
    for turn in 0..3 {
        let (client, mut names) = (bed.client().await, names.clone());
        names.rotate_left(turn);
        contenders.spawn(async move {
            for _ in 0..5 {
                let all = client.lock_all(&names).efficiency().wait(PATIENCE).acquire();
                let all = all.await.expect("no deadlock");
                assert!(all.is_held() && all.names().count() == names.len());
                all.release().await.expect("it was held");
            }
        });
    }
    soon("all contenders are done", contenders.join_all()).await;
    let none: [&str; 0] = [];
    let refused = client.lock_all(none).efficiency().acquire().await.expect_err("no name at all");
    assert!(matches!(refused, Error::Lock(fencepost::Error::Refused(Refused::BadWord(_)))), "{refused}");
    let plans = client.lock_all(&names).efficiency().plan().expect("the system accepts it");
    let order: Vec<String> = plans.iter().map(|plan| plan.name.as_str().to_owned()).collect();
    assert!(order.is_sorted(), "all clients use the same order: {order:?}");
}

pub(crate) async fn work_is_stopped_when_the_lock_is_lost(bed: &Bed, name: &str) {
    let Some(mut own) = Bed::own(bed.system) else { return };
    let client = own.client_with_short_ttl().await;
    let done = lock(&client, name).run(|hold| async move { hold.is_held() }).await.expect("it is held to the end");
    assert!(done);
    let (begin, begun) = tokio::sync::oneshot::channel();
    let work = lock(&client, name).run(|_| async move {
        begin.send(()).expect("the test waits for it");
        std::future::pending::<()>().await
    });
    let work = async { work.await.expect_err("the lock is lost") };
    let end = async {
        begun.await.expect("the work has begun");
        own.end_servers();
    };
    let (error, ()) = soon("the work is stopped", async { tokio::join!(work, end) }).await;
    assert!(error.lost().is_some(), "{error:?}");
}

pub(crate) async fn requests_to_a_dead_server_fail_at_once(bed: &Bed, name: &str) {
    let Some(mut own) = Bed::own(bed.system) else { return };
    let client = own.client().await;
    lock(&client, name).acquire().await.expect("it is free").release().await.expect("it was held");
    own.end_servers();
    // After some failures the breaker opens, and requests fail without being sent.
    soon("the breaker opens", async {
        loop {
            match lock(&client, name).wait(IN_VAIN).acquire().await {
                Ok(_) => panic!("no server is there to grant it"),
                Err(Error::Lock(fencepost::Error::Failed(fencepost::Failed::Unreachable { last }))) => {
                    if bed.system == System::Fencepost || bed.system == System::Memory {
                        // The Fencepost client has its own breaker.
                        break;
                    }
                    if last.contains("next attempt is in") {
                        break;
                    }
                }
                Err(_) => {}
            }
        }
    })
    .await;
}
