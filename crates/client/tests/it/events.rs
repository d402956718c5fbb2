//! What a client tells its program about itself: one warning through `tracing` for each occurrence, and events for metrics.
//! For the async client, its blocking twin and the efficiency tier.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use fencepost::{AcquireOutcome, Client, ClientBuilder, ClientEvent, Lost, Tier};
use fencepost_testing::TestServer;
use tracing::Level;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::cluster::Cluster;

const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<Found>(what: &str, future: impl Future<Output = Found>) -> Found {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

/// Asks again and again until there is an answer.
async fn until<Found>(what: &str, mut ask: impl FnMut() -> Option<Found>) -> Found {
    soon(what, async {
        loop {
            if let Some(found) = ask() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// A warning: its fields, with the text as `message`.
type Warning = BTreeMap<&'static str, String>;

/// The warnings of the library in this process. All tests share it, so each test looks for its own locks or nodes.
static WARNINGS: Mutex<Vec<Warning>> = Mutex::new(Vec::new());

struct Collect;

impl<S: tracing::Subscriber> Layer<S> for Collect {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Fields(Warning);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
            fn record_str(&mut self, field: &Field, value: &str) {
                self.0.insert(field.name(), value.to_owned());
            }
        }
        let metadata = event.metadata();
        if *metadata.level() == Level::WARN && metadata.target().starts_with("fencepost::") {
            let mut fields = Fields(Warning::new());
            event.record(&mut fields);
            WARNINGS.lock().unwrap().push(fields.0);
        }
    }
}

/// Collects warnings from now on, of all threads.
fn collect_warnings() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::registry().with(Collect).init());
}

/// The warnings up to now whose field has this value and whose text begins like this.
fn warnings(text: &str, field: &str, value: &str) -> Vec<Warning> {
    let matches = |it: &&Warning| it["message"].starts_with(text) && it.get(field).is_some_and(|field| field == value);
    WARNINGS.lock().unwrap().iter().filter(matches).cloned().collect()
}

/// The one warning with this text about these locks. Waits for it.
async fn one_warning(text: &str, field: &str, value: &str) -> Warning {
    until(text, || warnings(text, field, value).pop()).await;
    let found = warnings(text, field, value);
    assert_eq!(found.len(), 1, "once for each occurrence: {found:?}");
    found.into_iter().next().expect("one")
}

/// Events that were heard.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<ClientEvent>>>);

impl Heard {
    fn by(&self, builder: ClientBuilder) -> ClientBuilder {
        collect_warnings();
        let heard = self.0.clone();
        builder.on_event(move |event| heard.lock().unwrap().push(event.clone()))
    }

    fn count(&self, is_one: impl Fn(&ClientEvent) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|event| is_one(event)).count()
    }

    async fn until(&self, what: &str, is_it: impl Fn(&ClientEvent) -> bool) -> ClientEvent {
        until(what, || self.0.lock().unwrap().iter().find(|event| is_it(event)).cloned()).await
    }
}

fn builder_for(address: impl ToString) -> ClientBuilder {
    Client::builder().endpoint(address.to_string())
}

#[tokio::test]
async fn a_broken_lock_is_one_warning_with_its_name_token_and_reason() {
    let heard = Heard::default();
    let (cluster, address) = Cluster::start().await;
    let client = heard.by(builder_for(&address)).connect().await.unwrap();
    let held = client.lock("warned/broken").acquire().await.unwrap();
    cluster.break_grant(held.grant());
    soon("it is told", held.lost()).await;
    let warning = one_warning("locks are lost: stop the work", "locks", "warned/broken").await;
    assert_eq!(warning["tokens"], held.token().to_string());
    assert_eq!(warning["reason"], "an administrator broke it: a test");
    assert_eq!((warning["node"].as_str(), warning["tier"].as_str()), (address.as_str(), "Correctness"));
    let lost = heard.until("a loss", |event| matches!(event, ClientEvent::Lost { .. })).await;
    let ClientEvent::Lost { names, why, tier: Tier::Correctness, .. } = lost else { panic!("{lost:?}") };
    assert_eq!((names[0].as_str(), matches!(why, Lost::Ended(_))), ("warned/broken", true));
    drop(held);
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Released { .. })), 0, "a lost lock is not given back");
}

#[tokio::test]
async fn an_evicted_session_is_one_warning_that_names_its_locks() {
    let heard = Heard::default();
    let server = TestServer::start();
    let client = heard.by(builder_for(server.address())).connect().await.unwrap();
    let names: Vec<String> = (10..22).map(|at| format!("warned/evicted-{at}")).collect();
    let both = client.lock_all(&names[..2]).acquire().await.unwrap();
    let mut others = Vec::new();
    for name in &names[2..] {
        others.push(client.lock(name).acquire().await.unwrap());
    }
    server.client().await.unwrap().admin().reason("a test").evict(both.session()).await.unwrap();
    soon("it is told", both.lost()).await;
    let session = format!("{:032x}", both.session().0);
    let warning = one_warning("a session has ended, and its locks are lost", "session", &session).await;
    assert_eq!(warning["locks"], format!("{} and 4 more", names[..8].join(", ")));
    assert!(warning["tokens"].ends_with(" and 3 more"), "one token for each of 11 grants: {warning:?}");
    assert_eq!(warning["reason"], "evicted by an administrator: a test");
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Lost { .. })), 11);
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::SessionEnded { how: Some(_), .. })), 1);
    assert!(warnings("locks are lost", "session", &session).is_empty(), "the warning about the session tells of them");
}

#[tokio::test]
async fn a_close_and_a_release_warn_of_nothing() {
    let heard = Heard::default();
    let (_cluster, address) = Cluster::start().await;
    let client = heard.by(builder_for(&address)).connect().await.unwrap();
    let released = client.lock("warned/released").acquire().await.unwrap();
    let kept = client.lock("warned/closed").acquire().await.unwrap();
    released.release().await.unwrap();
    client.close().await.unwrap();
    soon("it is told", kept.lost()).await;
    for name in ["warned/released", "warned/closed"] {
        assert!(warnings("", "locks", name).is_empty(), "{name}");
    }
    let is_released = |event: &ClientEvent| matches!(event, ClientEvent::Released { .. });
    until("both count as given back", || (heard.count(is_released) == 2).then_some(())).await;
}

#[tokio::test]
async fn a_connection_that_is_lost_after_a_close_warns_of_nothing() {
    let heard = Heard::default();
    let (cluster, address) = Cluster::start().await;
    let client = heard.by(builder_for(&address)).connect().await.unwrap();
    client.lock("warned/over").acquire().await.unwrap().release().await.unwrap();
    client.close().await.unwrap();
    cluster.cut();
    let again = |event: &ClientEvent| matches!(event, ClientEvent::Connected { after: Some(_), .. });
    heard.until("it is connected again", again).await;
    assert!(warnings("", "node", &address).is_empty());
}

#[tokio::test]
async fn a_cut_connection_is_one_warning_and_the_next_one_another() {
    let heard = Heard::default();
    let (cluster, address) = Cluster::start().await;
    let client = heard.by(builder_for(&address)).connect().await.unwrap();
    let held = client.lock("warned/cut").acquire().await.unwrap();
    cluster.cut();
    let again = |event: &ClientEvent| matches!(event, ClientEvent::Connected { after: Some(_), .. });
    heard.until("it is connected again", again).await;
    let lost = one_warning("the connection to the leader is lost", "node", &address).await;
    assert!(lost["message"].contains("locks stay held until their deadline") && !lost["reason"].is_empty(), "{lost:?}");
    let found = one_warning("connected to the leader again", "node", &address).await;
    assert!(found["after_ms"].parse::<u64>().is_ok(), "{found:?}");
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Connected { after: None, .. })), 1);
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Disconnected { node, .. } if *node == address)), 1);
    held.release().await.unwrap();
    assert!(warnings("", "locks", "warned/cut").is_empty(), "the lock was never in danger");
}

#[tokio::test]
async fn jeopardy_is_one_warning_before_the_loss() {
    let heard = Heard::default();
    let (cluster, address) = Cluster::start().await;
    let builder = heard.by(builder_for(&address)).session_ttl(Duration::from_secs(6));
    let client = builder.connect().await.unwrap();
    let held = client.lock("warned/jeopardy").acquire().await.unwrap();
    let kept_alive = |event: &ClientEvent| matches!(event, ClientEvent::KeptAlive { .. });
    heard.until("a keep-alive is answered", kept_alive).await;
    cluster.fall_silent(true);
    soon("the deadline passes", held.lost()).await;
    let warning = one_warning("locks are in jeopardy: finish or stop", "locks", "warned/jeopardy").await;
    assert_eq!(warning["tokens"], held.token().to_string());
    assert!(warning["reason"].contains("renewal") && warning["remaining_ms"].parse::<u64>().is_ok(), "{warning:?}");
    let warning = one_warning("locks are lost", "locks", "warned/jeopardy").await;
    assert!(warning["reason"].contains("deadline passed"), "{warning:?}");
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Jeopardy { locks: 1, .. })), 1);
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Lost { why: Lost::DeadlinePassed, .. })), 1);
}

#[tokio::test]
async fn a_longest_hold_that_is_nearly_over_says_to_extend_it() {
    let heard = Heard::default();
    let (_cluster, address) = Cluster::start().await;
    let client = heard.by(builder_for(&address)).connect().await.unwrap();
    let held = client.lock("warned/max-hold").max_hold(Duration::from_secs(6)).acquire().await.unwrap();
    soon("it is over", held.lost()).await;
    let warning = one_warning("locks are in jeopardy: finish the work, or extend", "locks", "warned/max-hold").await;
    assert_eq!(warning["reason"], "the longest hold is nearly over");
    one_warning("locks are lost", "locks", "warned/max-hold").await;
}

// Rule: tier-efficiency
#[tokio::test]
async fn the_efficiency_tier_warns_too_and_names_no_token() {
    let heard = Heard::default();
    let server = TestServer::start();
    let builder = heard.by(builder_for(server.address())).session_ttl(Duration::from_secs(1));
    let client = builder.connect().await.unwrap();
    let held = client.lock("warned/efficiency").efficiency().acquire().await.unwrap();
    let address = server.address().to_string();
    drop(server);
    soon("the deadline passes", held.lost()).await;
    let warning = one_warning("locks are lost", "locks", "warned/efficiency").await;
    assert_eq!(warning["tier"], "Efficiency");
    assert_eq!(warning.get("tokens"), None);
    // There is one stream for each tier, and only this tier has a session.
    let lost = one_warning("the connection to the leader is lost", "node", &address).await;
    assert_eq!(lost["tier"], "Efficiency");
    let lost = |event: &ClientEvent| matches!(event, ClientEvent::Lost { tier: Tier::Efficiency, .. });
    assert_eq!(heard.count(lost), 1);
}

#[cfg(feature = "blocking")]
#[test]
fn the_blocking_twin_warns_and_counts_too() {
    let heard = Heard::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (cluster, address) = runtime.block_on(Cluster::start());
    let client = fencepost::blocking::Client::with(heard.by(builder_for(&address))).unwrap();
    let held = client.acquire(client.lock("warned/blocking")).unwrap();
    cluster.break_grant(held.grant());
    client.wait_for(soon("it is told", held.lost()));
    runtime.block_on(one_warning("locks are lost", "locks", "warned/blocking"));
    runtime.block_on(heard.until("a loss", |event| matches!(event, ClientEvent::Lost { .. })));
    drop(client.acquire(client.lock("warned/dropped")).unwrap());
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Lost { .. })), 1);
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Released { .. })), 1, "a dropped guard gives back");
    let granted = |event: &ClientEvent| matches!(event, ClientEvent::Acquired { outcome: AcquireOutcome::Granted, .. });
    assert_eq!(heard.count(granted), 2);
}

#[tokio::test]
async fn a_cluster_that_cannot_be_reached_is_one_warning() {
    unreachable_is_one_warning(|builder| builder).await;
}

#[tokio::test]
async fn a_cluster_that_cannot_be_reached_is_one_warning_when_the_patience_is_over() {
    unreachable_is_one_warning(|builder| builder.connect_timeout(Duration::from_millis(400))).await;
}

async fn unreachable_is_one_warning(patient: impl Fn(ClientBuilder) -> ClientBuilder) {
    let heard = Heard::default();
    // Bound, but not listening: it refuses connections while it lives.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let client = heard.by(patient(builder_for(&address))).connect_in_background().unwrap();
    client.lock("warned/unreachable").acquire().await.expect_err("no node is there");
    let about_it =
        |it: &&Warning| it["message"].starts_with("the cluster cannot be reached") && it["reason"].contains(&address);
    let count = || WARNINGS.lock().unwrap().iter().filter(about_it).count();
    until("a warning", || (count() == 1).then_some(())).await;
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Acquired { outcome: AcquireOutcome::Failed, .. })), 1);
}

#[tokio::test]
async fn every_acquire_is_one_event_with_its_outcome_and_its_wait() {
    let heard = Heard::default();
    let (cluster, address) = Cluster::start().await;
    let (client, other) =
        (heard.by(builder_for(&address)).connect().await.unwrap(), builder_for(&address).connect().await.unwrap());
    let held = other.lock("counted").acquire().await.unwrap();
    assert!(client.lock("counted").try_acquire().await.unwrap().is_none());
    client.lock("counted").wait(Duration::from_millis(50)).acquire().await.expect_err("it is taken");
    client
        .lock("counted")
        .owner("o")
        .shared()
        .wait(Duration::from_millis(50))
        .acquire()
        .await
        .expect_err("it is taken");
    let mut waiting = Box::pin(client.lock("counted").wait_forever().acquire());
    tokio::select! {
        _ = &mut waiting => panic!("it is taken"),
        () = cluster.until("it waits", |counts| counts.waiters == 1) => {}
    }
    drop(waiting);
    cluster.until("the wait is cancelled", |counts| counts.waiters == 0).await;
    let mut waiting = Box::pin(client.lock("counted").acquire());
    tokio::select! {
        _ = &mut waiting => panic!("it is taken"),
        () = cluster.until("it waits", |counts| counts.waiters == 1) => {}
    }
    held.release().await.unwrap();
    let guard = waiting.await.unwrap();
    drop(guard);
    client.semaphore("pool").limit(2).acquire().await.unwrap().release().await.unwrap();
    client.semaphore("pool").acquire().await.expect_err("no limit is known any more");
    let mut outcomes = Vec::new();
    for event in heard.0.lock().unwrap().iter() {
        if let ClientEvent::Acquired { tier: Tier::Correctness, outcome, took, waited } = event {
            assert!(took >= waited, "{event:?}");
            outcomes.push((outcome.as_str(), *waited > Duration::ZERO));
        }
    }
    let expected = [
        ("busy", false),
        ("timed_out", true),
        ("timed_out", true),
        ("cancelled", true),
        ("granted", true),
        ("granted", false),
        ("refused", false),
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(heard.count(|event| matches!(event, ClientEvent::Released { .. })), 2);
}

#[tokio::test]
async fn a_function_that_panics_does_not_harm_the_client() {
    collect_warnings();
    let (_cluster, address) = Cluster::start().await;
    let client = builder_for(&address).on_event(|event| panic!("no good: {event:?}")).connect().await.unwrap();
    for _ in 0..3 {
        client.lock("panics").acquire().await.unwrap().release().await.unwrap();
    }
    let text = "the function given to ClientBuilder::on_event panicked";
    let about = |it: &&Warning| it["message"].starts_with(text) && it["event"].contains(&address);
    assert_eq!(WARNINGS.lock().unwrap().iter().filter(about).count(), 1, "its Connected event");
}

/// The function may use the client: it is called outside of the client's lock.
#[tokio::test]
async fn a_function_may_ask_the_client() {
    let (_cluster, address) = Cluster::start().await;
    let asked: Arc<Mutex<Option<Client>>> = Arc::default();
    let (client, seen) = (asked.clone(), Arc::new(Mutex::new(0)));
    let counted = seen.clone();
    let builder = builder_for(&address).on_event(move |_| {
        let client = client.lock().unwrap().clone();
        *counted.lock().unwrap() += u32::from(client.is_some_and(|client| client.cluster().is_some()));
    });
    let client = builder.connect().await.unwrap();
    *asked.lock().unwrap() = Some(client.clone());
    client.lock("asks").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), 2, "an acquire and a release");
    *asked.lock().unwrap() = None;
}
