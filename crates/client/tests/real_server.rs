//! The library against the real server in the process, where a fake one would prove little: administration, limits, and what
//! observers are told.

use std::time::Duration;

use fencepost::testing::TestServer;
use fencepost::{Error, GrantState, NewMember, Refused};

const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<Found>(what: &str, future: impl Future<Output = Found>) -> Found {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

#[tokio::test]
async fn a_waiter_is_seen_and_handed_the_lock() {
    let server = TestServer::start();
    let (first, second) = (server.client().await.unwrap(), server.client().await.unwrap());
    let held = first.lock("report").acquire().await.unwrap();
    assert!(second.lock("report").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { second.lock("report").wait(PATIENCE).acquire().await });
    let waiter = soon("it waits", async {
        loop {
            let page = first.waiters("report", None).await.unwrap();
            if let Some(waiter) = page.rows.first() {
                break waiter.clone();
            }
        }
    })
    .await;
    let session = first.find_session(waiter.session).await.unwrap();
    assert_eq!(session.as_ref().expect("it lives").waits, 1);
    assert_eq!(first.explain("report").await.unwrap().queue_len, 1);
    let older = held.token();
    held.release().await.unwrap();
    let granted = soon("it is handed over", waiting).await.unwrap().unwrap();
    assert!(granted.token() > older);
}

#[tokio::test]
async fn an_evicted_session_loses_its_locks_and_says_so() {
    let server = TestServer::start();
    let (client, operator) = (server.client().await.unwrap(), server.client().await.unwrap());
    let held = client.lock("job").acquire().await.unwrap();
    let admin = operator.admin().reason("the host is gone");
    admin.evict(held.session()).await.unwrap();
    soon("it is told", held.lost()).await;
    assert!(matches!(held.state(), GrantState::Lost(_)));
    // It may open another session, and gets a higher token.
    let again = client.lock("job").acquire().await.unwrap();
    assert!(again.token() > held.token());
    let gone = admin.evict(held.session()).await.expect_err("it is gone already");
    assert!(matches!(gone, Error::Refused(_)), "{gone}");
}

#[tokio::test]
async fn an_administrators_limit_holds_and_its_rest_can_be_waived() {
    let server = TestServer::start();
    let (client, operator) = (server.client().await.unwrap(), server.client().await.unwrap());
    let admin = operator.admin().reason("two licences");
    admin.set_limit("licences", Some(2)).await.unwrap();
    let _one = client.semaphore("licences").acquire().await.unwrap();
    let _two = client.semaphore("licences").acquire().await.unwrap();
    assert!(client.semaphore("licences").try_acquire().await.unwrap().is_none());
    let refused = client.semaphore("licences").permits(3).acquire().await.expect_err("there are only two");
    assert!(refused.to_string().contains("only 2"), "{refused}");

    let held = client.lock("machine").lock_delay(Duration::from_secs(60)).acquire().await.unwrap();
    admin.break_grant(held.grant()).await.unwrap();
    let busy = client.lock("machine").try_acquire_or_busy().await.unwrap().expect_err("it rests");
    assert_eq!(busy.why, fencepost::BusyWhy::Resting);
    admin.waive_rest(held.grant()).await.unwrap();
    let free = client.lock("machine").try_acquire().await.unwrap();
    assert!(free.is_some(), "nothing is in the way any more");
}

#[tokio::test]
async fn members_that_cannot_be_are_refused_with_the_reason() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let me = client.status().await.unwrap();
    let admin = client.admin();
    let last = admin.remove_member(me.node).await.expect_err("nobody would be left");
    assert!(last.to_string().contains("no voter would be left"), "{last}");
    let unknown = admin.promote_member(42, None).await.expect_err("it is no member");
    assert!(matches!(unknown, Error::Refused(Refused::NotFound)), "{unknown}");
    let address = "127.0.0.1:1".to_owned();
    let namesake =
        NewMember { node: 42, name: "test".to_owned(), peer_address: address.clone(), client_address: address.clone() };
    let taken = admin.add_member(namesake).await.expect_err("the name is taken");
    assert!(taken.to_string().contains("remove it first"), "{taken}");
    let learner =
        NewMember { node: 42, name: "spare".to_owned(), peer_address: address.clone(), client_address: address };
    assert_eq!(admin.add_member(learner).await.unwrap().learners, [42]);
    assert!(admin.remove_member(42).await.unwrap().learners.is_empty());
}

#[tokio::test]
async fn a_deadlock_is_refused_with_its_cycle() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let _a = client.lock("a").owner("one").acquire().await.unwrap();
    let _b = client.lock("b").owner("two").acquire().await.unwrap();
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.lock("b").owner("one").wait(PATIENCE).acquire().await }
    });
    let refused = soon("the cycle is found", async {
        loop {
            // Until the other one waits there is no cycle, and this one would wait in vain.
            if client.waiters("b", None).await.unwrap().rows.len() == 1 {
                break client.lock("a").owner("two").wait(PATIENCE).acquire().await.err();
            }
        }
    })
    .await;
    match refused.expect("it would close a cycle") {
        Error::Refused(Refused::Deadlock(cycle)) => assert_eq!(cycle.links.len(), 2),
        other => panic!("not a deadlock: {other}"),
    }
    waits.abort();
}
