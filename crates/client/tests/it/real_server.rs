//! The library against the real server in the process, for tests where a fake server would prove little: administration, limits, and
//! what observers see.

use std::time::Duration;

use fencepost::{Client, Error, GrantState, NewMember, Obstacle, Refused};
use fencepost_testing::TestServer;

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

/// A program that logs its client or a session does not log the secret, although the output includes the session. A guard shows
/// less.
#[tokio::test]
async fn a_client_that_is_printed_shows_no_secret() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let session = client.session().open().unwrap();
    let lock = session.lock("job").acquire().await.unwrap();
    for seen in [format!("{client:?}"), format!("{session:#?}")] {
        let secrets = seen.matches("secret: ").count();
        assert!(secrets > 0 && secrets == seen.matches("secret: SessionSecret(..)").count(), "{seen}");
    }
    let seen = format!("{lock:?}");
    assert!(!seen.contains("secret"), "{seen}");
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
    // The client opens another session, and gets a higher token.
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
async fn impossible_changes_of_members_are_refused_with_the_reason() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let me = client.status().await.unwrap();
    let admin = client.admin();
    let last = admin.remove_member(me.node).await.expect_err("no member would be left");
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

/// A node that hangs: it accepts connections and never answers.
fn silent() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[tokio::test]
async fn a_node_that_hangs_costs_a_call_only_a_share_of_its_time() {
    let server = TestServer::start();
    let (_hangs, silent) = silent();
    let (call_timeout, began) = (Duration::from_secs(20), std::time::Instant::now());
    let client = Client::builder().endpoint(&silent).endpoint(server.address().to_string()).call_timeout(call_timeout);
    // The stream has not found the leader when the calls are made.
    let client = client.connect_timeout(call_timeout).connect_in_background().unwrap();
    let admin = client.admin();
    let calls = (client.status(), admin.set_limit("pool", Some(3)), admin.promote_member(42, None));
    let (status, limit, members) = tokio::join!(calls.0, calls.1, calls.2);
    status.unwrap();
    limit.unwrap();
    // The change was sent only to a node that answers, so its outcome is known.
    let members = members.expect_err("it is no member");
    assert!(matches!(members, Error::Refused(Refused::NotFound)), "{members}");
    assert!(began.elapsed() < call_timeout / 2, "it took {:?}", began.elapsed());
}

#[tokio::test]
async fn where_every_node_hangs_a_call_fails_and_changes_nothing() {
    let ((_one, one), (_other, other)) = (silent(), silent());
    let client = Client::builder().endpoint(one).endpoint(other).call_timeout(Duration::from_millis(200));
    let client = client.connect_in_background().unwrap();
    let admin = client.admin();
    let (read, changed) = tokio::join!(client.status(), admin.remove_member(1));
    assert!(read.as_ref().is_err_and(Error::is_failed), "{read:?}");
    assert!(changed.as_ref().is_err_and(Error::is_failed), "{changed:?}");
}

#[tokio::test]
async fn an_invalid_value_is_explained_in_one_sentence() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let refused = async |name: &str| client.lock(name).try_acquire().await.expect_err("no name").to_string();
    assert_eq!(refused("").await, "the name \"\" is not valid: empty: say at least one character");
    assert_eq!(refused("a\nb").await, "the name \"a\\nb\" is not valid: control characters are not allowed");
    let huge = "n".repeat(10_000);
    let long = refused(&huge).await;
    assert!(long.len() < 256 && long.contains("512") && long.contains("... (10000 bytes)"), "{long}");
    let fast = client.lock(&huge).efficiency().try_acquire().await.map(drop).expect_err("no name").to_string();
    assert_eq!(fast, long);
    #[cfg(feature = "blocking")]
    {
        let address = format!("fencepost://{}", server.address());
        let blocking = tokio::task::spawn_blocking(move || {
            let client = fencepost::blocking::Client::connect(&address).unwrap();
            client.try_acquire(client.lock(&huge)).map(drop).expect_err("no name").to_string()
        });
        assert_eq!(blocking.await.unwrap(), long);
    }
    let ttl = client.lock("a").ttl(Duration::from_millis(1)).acquire().await.expect_err("too short").to_string();
    assert!(ttl.starts_with("a value is not valid: "), "{ttl}");
    // An error of the service is passed on unchanged.
    let last =
        client.admin().remove_member(client.status().await.unwrap().node).await.expect_err("no member would be left");
    assert_eq!(last.to_string(), "no voter would be left: add another first");
}

/// What a request that timed out says about its lock.
fn says_who_holds(error: &Error, names: &str) {
    let said = error.to_string();
    let expected = format!("{names} not granted in time: as of now it is held by session ");
    assert!(
        error.is_timed_out() && said.starts_with(&expected) && said.contains(" for ") && !said.contains("unknown"),
        "{said}"
    );
    assert!(said.contains("`fencepost why "), "{said}");
}

#[tokio::test]
async fn a_request_that_times_out_names_the_lock_and_its_holder() {
    let server = TestServer::start();
    let (holder, client) = (server.client().await.unwrap(), server.client().await.unwrap());
    let soon = Duration::from_millis(50);
    let _held = holder.lock_all(["a", "b"]).owner("nightly").acquire().await.unwrap();
    let error = client.lock("a").wait(soon).acquire().await.map(drop).expect_err("it is held");
    says_who_holds(&error, "a was");
    assert!(error.to_string().contains("(owner \"nightly\")"), "{error}");
    let Error::Refused(Refused::TimedOut { names, obstacle: Obstacle::Explained(explained), .. }) = &error else {
        panic!("{error:?}")
    };
    assert_eq!((names.len(), explained.what.holders.len()), (1, 1));
    // A session that holds something asks before the end of its wait, whether this is a deadlock. That answer is used.
    let _mine = client.lock("mine").acquire().await.unwrap();
    let error = client.lock_all(["b", "c"]).wait(soon).acquire().await.map(drop).expect_err("it is held");
    assert!(error.to_string().starts_with("b, c were not granted in time: as of now b is held by session "), "{error}");
    let _permit = holder.semaphore("s").limit(1).acquire().await.unwrap();
    let error = client.semaphore("s").wait(soon).acquire().await.map(drop).expect_err("no permit is left");
    says_who_holds(&error, "s was");
    let (_reader, update) =
        (holder.lock("u").shared().acquire().await.unwrap(), client.lock("u").update().acquire().await.unwrap());
    let error = update.upgrade(soon).await.map(drop).expect_err("a reader is left");
    says_who_holds(&error.error, "u was");
    assert!(!error.error.to_string().contains("more"), "its own lock is not in its way: {}", error.error);
}

/// Of several names, the error is about one that is not free, whichever stands first. It would say "not held" otherwise.
#[tokio::test]
async fn a_request_for_several_names_that_times_out_is_told_about_one_that_is_in_the_way() {
    let server = TestServer::start();
    let (holder, idle, busy) =
        (server.client().await.unwrap(), server.client().await.unwrap(), server.client().await.unwrap());
    let _held = holder.lock("b").acquire().await.unwrap();
    // This session holds something, so it asks before the end of its wait, too.
    let _mine = busy.lock("mine").acquire().await.unwrap();
    for client in [idle, busy] {
        let request = client.lock_all(["a", "b"]).wait(Duration::from_millis(300));
        let error = request.acquire().await.map(drop).expect_err("b is held").to_string();
        assert!(
            error.starts_with("a, b were not granted in time: as of now b is held by session ")
                && error.contains("`fencepost why b`"),
            "{error}"
        );
    }
}

#[cfg(feature = "blocking")]
#[test]
fn the_blocking_twin_names_the_lock_and_its_holder() {
    let server = TestServer::start();
    let client = fencepost::blocking::Client::connect(&format!("fencepost://{}", server.address())).unwrap();
    let soon = Duration::from_millis(50);
    let _held = client.acquire(client.lock("a")).unwrap();
    let error = client.acquire(client.lock("a").wait(soon)).map(drop).expect_err("it is held");
    says_who_holds(&error, "a was");
    let _fast = client.acquire(client.lock("a").efficiency()).unwrap();
    let error = client.acquire(client.lock("a").efficiency().wait(soon)).map(drop).expect_err("it is held");
    assert_eq!(error.to_string(), crate::efficiency::TIMED_OUT.replace("NAME", "a"));
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
            // Before the other one waits there is no cycle, and this request would just wait.
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

/// Two clients take two locks in opposite order and wait equally long. They name no owners.
#[tokio::test]
async fn a_wait_that_times_out_says_that_a_deadlock_is_suspected() {
    let server = TestServer::start();
    let (first, second) = (server.client().await.unwrap(), server.client().await.unwrap());
    let wait = Duration::from_millis(1_500);
    let a = first.lock("a").acquire().await.unwrap();
    let b = second.lock("b").acquire().await.unwrap();
    let (one, other) = tokio::join!(
        soon("the first gives up", first.lock("b").wait(wait).acquire()),
        soon("the second gives up", second.lock_all(["a", "free"]).wait(wait).acquire()),
    );
    let errors = [one.expect_err("the second holds it"), other.expect_err("the first holds it")];
    for (error, (waits, is_waited_for)) in errors.iter().zip([(&a, &b), (&b, &a)]) {
        assert!(error.is_timed_out(), "{error}");
        let cycle = error.suspected_deadlock().unwrap_or_else(|| panic!("nothing is suspected: {error}"));
        let sessions: Vec<_> = cycle.links.iter().map(|link| link.session).collect();
        assert_eq!(sessions, [waits.session(), is_waited_for.session()], "the client that asked comes first");
        assert_eq!(cycle.links[0].blocked_by, Some(is_waited_for.grant()));
        assert!(
            error.to_string().contains("A deadlock is suspected") && error.to_string().contains("in one request"),
            "{error}"
        );
    }
    // Observers see the deadlock while it lasts.
    let waits = tokio::join!(
        async { first.lock("b").wait(PATIENCE).acquire().await.map(drop) },
        async { second.lock("a").wait(PATIENCE).acquire().await.map(drop) },
        soon("it is seen", async {
            let looks_on = server.client().await.unwrap();
            loop {
                if let Some(cycle) = looks_on.explain("a").await.unwrap().what.suspected {
                    assert_eq!(cycle.links.len(), 2, "{cycle:?}");
                    break;
                }
            }
            drop((a, b));
        }),
    );
    assert!(waits.0.is_ok() && waits.1.is_ok(), "{waits:?}");
}

#[tokio::test]
async fn a_wait_that_times_out_without_a_circle_suspects_nothing() {
    let server = TestServer::start();
    let (first, second) = (server.client().await.unwrap(), server.client().await.unwrap());
    let _a = first.lock("a").acquire().await.unwrap();
    let _b = second.lock("b").acquire().await.unwrap();
    let error = soon("it gives up", second.lock("a").wait(Duration::from_millis(300)).acquire()).await.err().unwrap();
    assert!(error.is_timed_out() && error.suspected_deadlock().is_none(), "{error}");
    // Two requests of the same session do not count as a deadlock.
    let error = soon("it gives up", second.lock("b").wait(Duration::from_millis(300)).acquire()).await.err().unwrap();
    assert!(error.is_timed_out() && error.suspected_deadlock().is_none(), "{error}");
}
