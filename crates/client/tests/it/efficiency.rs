//! The efficiency tier with the real server in the process: the same kinds of locks, with separate names, without a log and without
//! tokens.
//!
//! What happens when the leader changes is tested with real processes, in `crates/cli/tests/real/efficiency.rs`.

use std::time::Duration;

use fencepost::{Error, Refused};
use fencepost_testing::TestServer;

const PATIENCE: Duration = Duration::from_secs(20);

/// What a request of this tier says that timed out. The command `fencepost why` would explain the lock of the other tier.
pub(crate) const TIMED_OUT: &str =
    "NAME was not granted in time: the efficiency tier does not tell who holds it. Wait longer, or try again later";

async fn soon<Found>(what: &str, future: impl Future<Output = Found>) -> Found {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

// Rule: tier-efficiency
#[tokio::test]
async fn it_excludes_waits_shares_and_gives_back() {
    let server = TestServer::start();
    let (first, second) = (server.client().await.unwrap(), server.client().await.unwrap());
    let held = first.lock("thumbnails").efficiency().acquire().await.unwrap();
    assert!(held.is_held() && held.remaining() > Duration::ZERO);
    assert!(second.lock("thumbnails").efficiency().try_acquire().await.unwrap().is_none(), "it is taken");
    let refused = second.lock("thumbnails").efficiency().wait(Duration::from_millis(50)).acquire().await;
    let refused = refused.map(drop).expect_err("it is held");
    assert!(matches!(refused, Error::Refused(Refused::TimedOut { .. })), "{refused:?}");
    assert_eq!(refused.to_string(), TIMED_OUT.replace("NAME", "thumbnails"));

    let waiting = tokio::spawn(async move { second.lock("thumbnails").efficiency().wait(PATIENCE).acquire().await });
    held.release().await.unwrap();
    let next = soon("it is handed over", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();

    let readers = [(); 2].map(|()| first.lock("list").shared().efficiency());
    for reader in readers {
        let held = reader.try_acquire().await.unwrap().expect("readers share");
        assert!(held.is_held());
        std::mem::forget(held);
    }
    assert!(first.lock("list").efficiency().try_acquire().await.unwrap().is_none(), "readers keep a writer out");
    let both = first.lock_all(["a", "b"]).efficiency().acquire().await.unwrap();
    assert!(first.lock("b").efficiency().try_acquire().await.unwrap().is_none(), "several at once");
    both.release().await.unwrap();
}

// Rule: tier-efficiency
#[tokio::test]
async fn its_names_are_separate_and_it_writes_no_log() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let correct = client.lock("report").acquire().await.unwrap();
    let before = client.status().await.unwrap().applied;
    for _ in 0..200 {
        let fast = client.lock("report").efficiency().acquire().await.unwrap();
        fast.release().await.unwrap();
    }
    let after = client.status().await.unwrap();
    assert_eq!(after.counts.grants, 1, "observers see only the other tier");
    // Keep-alives of the other tier may add a few entries.
    let entries = after.applied.index - before.index;
    assert!(entries < 100, "200 locks in memory made {entries} entries in the log");
    correct.release().await.unwrap();
}

#[tokio::test]
async fn a_client_that_is_closed_leaves_no_lock_behind() {
    let server = TestServer::start();
    let (first, second) = (server.client().await.unwrap(), server.client().await.unwrap());
    let held = first.lock("job").efficiency().acquire().await.unwrap();
    let lost = held.hold();
    first.close().await.unwrap();
    soon("it is told", lost.lost()).await;
    let next = soon("it is free", second.lock("job").efficiency().acquire()).await.unwrap();
    assert!(next.is_held());
}

#[tokio::test]
async fn a_separate_session_has_no_efficiency_tier() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let session = client.session().open().unwrap();
    let refused = session.lock("job").efficiency().acquire().await.expect_err("it is of the other tier");
    assert!(matches!(refused, Error::Refused(Refused::OtherTier)), "{refused}");
}
