//! Tests of what the client does itself, independent of a lock system: rules by prefix, promises by name, and dry runs.
//!
//! They need one Redis and one Fencepost node. What the locks of each system do is in `tests/conformance`.

use std::io::Write;
use std::sync::{Arc, Mutex};

use fencepost_backends::{Client, ClientBuilder, Error, Promise, Rules, System, Tier};
use fencepost_testbed::{Kind, shared};
use fencepost_testing::TestServer;
use tracing_subscriber::fmt::MakeWriter;

#[tokio::test]
async fn rules_from_a_file_send_each_name_where_it_belongs() {
    let Some(redis) = shared(Kind::Redis) else { return };
    let node = TestServer::start();
    let file = format!(
        r#"
        [[rules]]
        prefix = ""
        address = "fencepost://{}"

        [[rules]]
        prefix = "thumbnails/"
        address = "{}"
        tier = "efficiency"

        [[rules]]
        prefix = "thumbnails/paid/"
        address = "fencepost://{}"
        tier = "correctness"
        "#,
        node.address(),
        redis.url(),
        node.address(),
    );
    let rules: Rules = toml::from_str(&file).expect("as in the guide");
    let client = Client::builder().rules(rules).connect().await.expect("both are up");

    let system = |name, tier| client.system(name, tier).expect("one rule matches all names");
    assert_eq!(system("wallet:7", Tier::Correctness), System::Fencepost);
    assert_eq!(system("thumbnails/7", Tier::Efficiency), System::Redis, "the longer prefix decides");
    assert_eq!(system("thumbnails/paid/7", Tier::Correctness), System::Fencepost, "and a longer one still");

    let wallet = client.lock("wallet:7").acquire().await.expect("it is free");
    let thumbnail = client.lock("thumbnails/7").efficiency().acquire().await.expect("it is free");
    assert!(wallet.is_held() && thumbnail.is_held());
    let there = Client::connect(&redis.url()).await.expect("it is up");
    let taken = there.lock("thumbnails/7").efficiency().try_acquire().await.expect("an answer");
    assert!(taken.is_none(), "Redis granted it");

    // A request for a token is refused where the rule says efficiency. A request for efficiency where the rule says correctness
    // uses the tier of the rule, so that all clients exclude each other.
    let refused = client.lock("thumbnails/7").acquire().await.expect_err("the rule says efficiency");
    assert!(matches!(&refused, Error::AgainstTheRule { prefix, .. } if prefix == "thumbnails/"), "{refused:?}");
    let token = client.lock("thumbnails/paid/7").acquire().await.expect("it is free");
    let same = client.lock("thumbnails/paid/7").efficiency().try_acquire().await.expect("an answer");
    assert!(same.is_none(), "the two requests exclude each other");
    assert!(client.native("wallet:7").is_some() && client.native("thumbnails/7").is_none());
    token.release().await.expect("it was held");
}

#[tokio::test]
async fn a_rule_that_cannot_be_kept_and_a_name_without_one_are_refused() {
    let Some(redis) = shared(Kind::Redis) else { return };
    let refused = Client::builder().rule("", &redis.url(), Some(Tier::Correctness)).connect().await;
    let refused = refused.expect_err("Redis has no tokens");
    assert!(matches!(&refused, Error::NotPromised(not) if not.promise == Promise::Linearizable), "{refused:?}");
    let client = Client::builder().rule("a/", &redis.url(), None).connect().await.expect("it is up");
    let refused = client.lock("b/1").efficiency().acquire().await.expect_err("no rule matches it");
    assert!(refused.to_string().contains("no rule matches the name \"b/1\""), "{refused}");
    let unknown: Result<Rules, _> =
        toml::from_str("[[rules]]\nprefix = \"\"\naddress = \"redis://a/\"\nteir = \"efficiency\"");
    assert!(unknown.is_err(), "a mistyped key is an error");
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no other test uses it").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[tokio::test]
async fn a_promise_is_asked_of_the_system_and_the_tier_that_the_locks_of_a_name_use() {
    let node = TestServer::start();
    let address = format!("fencepost://{}", node.address());
    let rules = |builder: ClientBuilder| {
        builder
            .rule("wallet:", &address, Some(Tier::Correctness))
            .rule("cache/", &address, Some(Tier::Efficiency))
            .rule("free/", &address, None)
    };
    let client = rules(Client::builder()).connect().await.expect("it is up");
    let refused_by = |client: &Client, name, tier| match client.promised(name, tier, Promise::Semaphores) {
        Ok(()) => None,
        Err(Error::NotPromised(not)) => Some(not.system),
        Err(other) => panic!("{other:?}"),
    };
    let cases = [
        ("wallet:7", Tier::Efficiency, None),
        ("wallet:7", Tier::Correctness, None),
        ("cache/7", Tier::Efficiency, Some(System::Memory)),
        ("cache/7", Tier::Correctness, Some(System::Memory)),
        ("free/7", Tier::Efficiency, Some(System::Memory)),
        ("free/7", Tier::Correctness, None),
    ];
    for (name, tier, refusing) in cases {
        assert_eq!(refused_by(&client, name, tier), refusing, "{name}, {tier:?}");
        assert_eq!(client.system(name, tier).expect("it has a rule"), refusing.unwrap_or(System::Fencepost), "{name}");
    }
    let unknown = client.promised("report", Tier::Correctness, Promise::Semaphores);
    assert!(matches!(unknown, Err(Error::BadAddress { .. })), "{unknown:?}");

    // A dry run promises locks as the system would, but has no client for the rest.
    let dry = rules(Client::builder().dry_run(true)).connect().await.expect("nothing is sent");
    assert_eq!(refused_by(&dry, "free/7", Tier::Efficiency), Some(System::Memory));
    dry.promised("free/7", Tier::Correctness, Promise::FencingToken).expect("as the system does");
    let refused = dry.promised("free/7", Tier::Correctness, Promise::Semaphores);
    assert!(matches!(refused, Err(Error::AgainstTheRule { rule: "dry run", .. })), "{refused:?}");
    assert!(dry.native("free/7").is_none());
}

#[tokio::test]
async fn a_dry_run_locks_nothing_and_logs_what_it_would_have_locked() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _log = tracing::subscriber::set_default(subscriber);
    // No server runs at this address. A dry run does not need one.
    let client = Client::builder().rule("", "redis://127.0.0.1:1/", None).dry_run(true).connect().await;
    let client = client.expect("nothing is sent");
    let one = client.lock("nightly").efficiency().acquire().await.expect("nothing is sent");
    let two = client.lock("nightly").efficiency().acquire().await.expect("nothing is locked");
    assert!(one.is_held() && two.is_held());
    one.release().await.expect("nothing is sent");
    let refused = client.lock("nightly").acquire().await.expect_err("a dry run has no token");
    assert!(matches!(refused, Error::AgainstTheRule { .. }), "{refused:?}");
    let said = String::from_utf8(log.0.lock().expect("no other test uses it").clone()).expect("text");
    let lines = said.lines().filter(|line| line.contains("would have locked") && line.contains("nightly"));
    assert_eq!(lines.count(), 2, "{said}");
}
