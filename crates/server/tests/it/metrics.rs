//! What `/metrics` shows: every metric moves when its event happens, follows the conventions of Prometheus, and stands in
//! `docs/operating.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use fencepost_core::{
    Acquire, Action, Epoch, GrantId, Lock, LockMode, Locks, Millis, Name, Outcome, OwnerName, RequestNumber, Terms,
    Wait,
};
use fencepost_server::{Begin, Config};
use fencepost_wire::{api, v1};

use crate::client::{
    AdminServiceClient, Client, Running, TestDirectory, channel, config, get, lock, open, request, run_node, until,
};

/// The labels that metrics may have. Each has a few values, which the code names.
const LABELS: &[&str] = &["tier", "outcome", "how", "why", "le", "version", "oldest_format", "newest_format"];

/// The metrics of a node at one moment.
struct Scrape {
    text: String,
    /// By name with labels.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    async fn of(node: SocketAddr) -> Scrape {
        let answer = get(node, "/metrics").await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        let samples = body.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a number"))
        });
        Scrape { text: body.to_owned(), samples: samples.collect() }
    }

    fn value(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or_else(|| panic!("{sample} is missing in {}", self.text))
    }

    /// The families: name, type and help.
    fn families(&self) -> Vec<(String, String, String)> {
        let comment = |kind: &str| {
            let begins = format!("# {kind} ");
            let lines = self.text.lines().filter_map(move |line| line.strip_prefix(&begins)?.split_once(' '));
            lines.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect::<Vec<_>>()
        };
        let (helps, types) = (comment("HELP"), comment("TYPE"));
        assert_eq!(helps.len(), types.len(), "each metric has a help and a type");
        helps
            .into_iter()
            .zip(types)
            .map(|((name, help), (typed, kind))| {
                assert_eq!(name, typed);
                (name, kind, help)
            })
            .collect()
    }
}

/// A node with its log on disk, which leads.
async fn node_on_disk(directory: &TestDirectory) -> Running {
    let begin = Config { directory: Some(directory.path().join("alone")), ..config("alone", Begin::Found) };
    let node = run_node(begin).await;
    until("it leads", async || Client::connect(node.config.client_listen).await.ok()).await;
    node
}

fn owned(name: &str, owner: &str) -> Action {
    let lock = Lock { name: Name::new(name).expect("a plain name"), mode: LockMode::Exclusive };
    let owner = Some(OwnerName::new(owner).expect("a plain name"));
    Action::Acquire(Acquire { locks: Locks::from_buf([lock]), owner, wait: Wait::Forever, terms: Terms::default() })
}

fn grant(outcome: &Outcome) -> GrantId {
    match outcome {
        Outcome::Granted { grant, .. } => *grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Waits until every one of these samples has risen by this much since `before`, and checks that no sample of the same metrics rose
/// otherwise.
async fn assert_rises(node: &Running, before: &Scrape, what: &str, rises: &[(&str, f64)]) {
    let rise = |now: &Scrape, sample: &str| now.value(sample) - before.value(sample);
    let now = until(what, async || {
        let now = Scrape::of(node.config.http_listen).await;
        rises.iter().all(|(sample, by)| rise(&now, sample) >= *by).then_some(now)
    })
    .await;
    let metric = |sample: &str| sample.split('{').next().unwrap_or_default().to_owned();
    let metrics: BTreeSet<String> = rises.iter().map(|(sample, _)| metric(sample)).collect();
    for sample in now.samples.keys().filter(|sample| metrics.contains(&metric(sample))) {
        let expected = rises.iter().find(|(name, _)| name == sample).map_or(0.0, |(_, by)| *by);
        assert_eq!(rise(&now, sample), expected, "{what}: {sample}");
    }
}

#[tokio::test]
async fn grants_waits_time_outs_expiries_and_losses_are_counted_by_how_they_ended() {
    let directory = TestDirectory::new("metrics-ends");
    let node = node_on_disk(&directory).await;
    for tier in ["correctness", "efficiency"] {
        let connect = async || match tier {
            "correctness" => Client::connect(node.config.client_listen).await.unwrap(),
            _ => Client::connect_efficiency(node.config.client_listen).await.unwrap(),
        };
        let scrape = async || Scrape::of(node.config.http_listen).await;
        let requests = |outcome: &str| format!("fencepost_requests_total{{tier=\"{tier}\",outcome=\"{outcome}\"}}");
        let grants = |how: &str| format!("fencepost_grants_ended_total{{tier=\"{tier}\",how=\"{how}\"}}");
        let sessions = |how: &str| format!("fencepost_sessions_ended_total{{tier=\"{tier}\",how=\"{how}\"}}");
        let acquires = format!("fencepost_acquire_seconds_count{{tier=\"{tier}\"}}");
        let waits = format!("fencepost_wait_seconds_count{{tier=\"{tier}\"}}");
        let (mut holder, mut waiter) = (connect().await, connect().await);
        holder.open(1, 60_000).await;
        waiter.open(2, 60_000).await;

        let before = scrape().await;
        let held = grant(&holder.ask(1, 1, 1, lock("hot", Wait::No)).await);
        assert!(matches!(waiter.ask(2, 1, 1, lock("hot", Wait::No)).await, Outcome::Busy(_)));
        let rises = [(&*requests("granted"), 1.0), (&requests("busy"), 1.0), (&acquires, 2.0), (&waits, 0.0)];
        assert_rises(&node, &before, "a grant and a busy answer", &rises).await;

        let before = scrape().await;
        let short = Wait::UpTo(Millis::new(50).unwrap());
        assert!(matches!(waiter.ask(2, 1, 2, lock("hot", short)).await, Outcome::Queued { .. }));
        assert_eq!(waiter.wait_end().await, (RequestNumber(2), Outcome::TimedOut));
        let rises = [(&*requests("timed_out"), 1.0), (&acquires, 1.0), (&waits, 0.0)];
        assert_rises(&node, &before, "a wait that timed out", &rises).await;

        let before = scrape().await;
        assert!(matches!(waiter.ask(2, 1, 3, lock("hot", Wait::Forever)).await, Outcome::Queued { .. }));
        let cancel = Action::Cancel { request: RequestNumber(3), release_if_granted: true };
        let cancel = request(2, 1, 4, cancel);
        waiter.say(v1::ClientMessage { requests: vec![cancel], ..Default::default() }).await;
        assert_rises(&node, &before, "a cancelled wait", &[(&requests("cancelled"), 1.0), (&waits, 0.0)]).await;
        let _both = (waiter.hear().await.unwrap(), waiter.hear().await.unwrap());

        let before = scrape().await;
        assert!(matches!(waiter.ask(2, 1, 5, lock("hot", Wait::Forever)).await, Outcome::Queued { .. }));
        assert_eq!(
            holder.ask(1, 1, 2, Action::Release { grant: held, report: None }).await,
            Outcome::Released { count_left: 0 }
        );
        let (_, handed_over) = waiter.wait_end().await;
        let rises = [(&*requests("granted"), 1.0), (&grants("released"), 1.0), (&waits, 1.0), (&acquires, 1.0)];
        assert_rises(&node, &before, "a hand-over", &rises).await;

        let before = scrape().await;
        assert_eq!(
            waiter.ask(2, 1, 6, Action::Release { grant: grant(&handed_over), report: None }).await,
            Outcome::Released { count_left: 0 }
        );
        grant(&holder.ask(1, 1, 3, owned("a", "one")).await);
        grant(&holder.ask(1, 1, 4, owned("b", "two")).await);
        assert!(matches!(holder.ask(1, 1, 5, owned("b", "one")).await, Outcome::Queued { .. }));
        assert!(matches!(holder.ask(1, 1, 6, owned("a", "two")).await, Outcome::Deadlock(_)));
        assert_rises(&node, &before, "a deadlock", &[(&requests("deadlock"), 1.0), (&requests("granted"), 2.0)]).await;

        let before = scrape().await;
        let mut silent = connect().await;
        silent.open(3, 1_000).await;
        grant(&silent.ask(3, 1, 1, lock("forgotten", Wait::No)).await);
        let rises = [(&*sessions("expired"), 1.0), (&grants("expired"), 1.0)];
        assert_rises(&node, &before, "a session that is not renewed", &rises).await;

        let before = scrape().await;
        assert_eq!(waiter.ask(2, 1, 7, Action::Close).await, Outcome::Closed);
        assert_rises(&node, &before, "a close", &[(&sessions("closed"), 1.0)]).await;
    }
}

#[tokio::test]
async fn what_an_administrator_takes_away_is_counted() {
    let directory = TestDirectory::new("metrics-admin");
    let node = node_on_disk(&directory).await;
    let mut client = Client::connect(node.config.client_listen).await.unwrap();
    client.open(1, 60_000).await;
    let broken = grant(&client.ask(1, 1, 1, lock("one", Wait::No)).await);
    grant(&client.ask(1, 1, 2, lock("two", Wait::No)).await);
    let mut admin = AdminServiceClient::new(channel(node.config.client_listen));
    let (session_high, session_low) = api::halves(1);
    let acts = [
        (v1::act_request::Act::BreakGrant(broken.0), "broken", 0.0),
        (v1::act_request::Act::Evict(v1::Evict { session_high, session_low }), "evicted", 1.0),
    ];
    for (act, how, sessions) in acts {
        let before = Scrape::of(node.config.http_listen).await;
        admin.act(v1::ActRequest { reason: "the test says so".into(), act: Some(act) }).await.unwrap();
        let grants = format!("fencepost_grants_ended_total{{tier=\"correctness\",how=\"{how}\"}}");
        let evicted = "fencepost_sessions_ended_total{tier=\"correctness\",how=\"evicted\"}";
        assert_rises(&node, &before, how, &[(&grants, 1.0), (evicted, sessions)]).await;
    }
}

#[tokio::test]
async fn a_commit_is_timed_from_the_proposal_over_the_sync_to_apply() {
    let directory = TestDirectory::new("metrics-times");
    let node = node_on_disk(&directory).await;
    let mut client = Client::connect(node.config.client_listen).await.unwrap();
    let before = Scrape::of(node.config.http_listen).await;
    client.open(1, 60_000).await;
    for number in 1..=10 {
        grant(&client.ask(1, 1, number, lock(&format!("lock-{number}"), Wait::No)).await);
    }
    let after = Scrape::of(node.config.http_listen).await;
    for stage in ["commit", "sync", "apply"] {
        let rise = |part: &str| {
            let sample = format!("fencepost_{stage}_seconds_{part}");
            after.value(&sample) - before.value(&sample)
        };
        assert!(rise("count") >= 11.0, "{stage}: each of 11 commands was an entry of its own");
        assert!(rise("sum") > 0.0, "{stage} takes time");
    }
    let sum = |stage: &str| {
        let sample = format!("fencepost_{stage}_seconds_sum");
        after.value(&sample) - before.value(&sample)
    };
    assert!(sum("commit") >= sum("sync") * 0.9, "a commit waits for the sync: {} and {}", sum("commit"), sum("sync"));
    let acquire = after.value("fencepost_acquire_seconds_sum{tier=\"correctness\"}");
    assert!(acquire > 0.0 && after.value("fencepost_acquire_seconds_count{tier=\"correctness\"}") == 10.0);
}

/// A node that reads its log again after a restart has not led meanwhile, so nothing that ended before is counted again.
#[tokio::test]
async fn a_restarted_node_counts_nothing_twice() {
    let directory = TestDirectory::new("metrics-restart");
    let node = node_on_disk(&directory).await;
    let mut client = Client::connect(node.config.client_listen).await.unwrap();
    client.open(1, 60_000).await;
    grant(&client.ask(1, 1, 1, lock("one", Wait::No)).await);
    let granted = "fencepost_requests_total{tier=\"correctness\",outcome=\"granted\"}";
    assert_eq!(Scrape::of(node.config.http_listen).await.value(granted), 1.0);
    let again = Config { begin: Begin::Never, ..node.config.clone() };
    drop(client);
    let _ = node.end.send(());
    node.ended.await.unwrap();
    let node = run_node(again).await;
    let scrape = until("it leads again", async || {
        let scrape = Scrape::of(node.config.http_listen).await;
        (scrape.value("fencepost_leads") == 1.0).then_some(scrape)
    })
    .await;
    assert_eq!((scrape.value("fencepost_grants"), scrape.value(granted)), (1.0, 0.0));
}

#[tokio::test]
async fn names_units_and_labels_follow_the_conventions() {
    let directory = TestDirectory::new("metrics-names");
    let node = node_on_disk(&directory).await;
    let mut client = Client::connect_as("a-client-name", channel(node.config.client_listen)).await.unwrap();
    let mut asked = open(1, 60_000);
    asked.metadata = b"some-metadata".to_vec();
    client.say(v1::ClientMessage { opens: vec![asked], ..Default::default() }).await;
    assert_eq!(client.outcome().await, Outcome::Opened { epoch: Epoch(1) });
    grant(&client.ask(1, 1, 1, lock("a-lock-name", Wait::No)).await);
    let scrape = Scrape::of(node.config.http_listen).await;
    for private in ["a-lock-name", "a-client-name", "some-metadata", "alone"] {
        assert!(!scrape.text.contains(private), "{private} must not be shown:\n{}", scrape.text);
    }
    let families = scrape.families();
    let names: BTreeSet<&str> = families.iter().map(|(name, _, _)| name.as_str()).collect();
    assert_eq!(names.len(), families.len(), "each metric is described once");
    for (name, kind, help) in &families {
        assert!(name.starts_with("fencepost_") || name.starts_with("process_"), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: only counters end in _total");
        assert!(kind != "histogram" || name.ends_with("_seconds"), "{name}: durations are in seconds");
        assert!(!["_ms", "_us", "_ns", "_kb", "_minutes"].iter().any(|unit| name.contains(unit)), "{name}: base units");
        assert!(help.len() > 5 && !help.ends_with('.'), "{name}: {help}");
    }
    for (sample, value) in &scrape.samples {
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        assert!(names.contains(name) || part.is_some_and(|family| names.contains(family)), "{sample} is not described");
        for label in labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            let key = label.split('=').next().unwrap_or_default();
            assert!(LABELS.contains(&key), "{sample}: {key} is not a known label");
        }
        assert!(*value >= 0.0, "{sample}");
    }
    for (name, _, _) in families.iter().filter(|(_, kind, _)| kind == "histogram") {
        assert_buckets_add_up(&scrape, name);
    }
    assert_eq!(scrape.value("fencepost_leads"), 1.0);
    let build = format!(
        "fencepost_build_info{{version=\"{}\",oldest_format=\"1\",newest_format=\"1\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(scrape.value(&build), 1.0);
    #[cfg(target_os = "linux")]
    for process in [
        "resident_memory_bytes",
        "virtual_memory_bytes",
        "open_fds",
        "max_fds",
        "start_time_seconds",
        "cpu_seconds_total",
    ] {
        assert!(scrape.value(&format!("process_{process}")) > 0.0, "{process}");
    }
}

/// In each histogram of a family, no bucket counts less than the one before, and the last counts everything.
fn assert_buckets_add_up(scrape: &Scrape, family: &str) {
    let mut histograms: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in scrape.text.lines() {
        let Some((labels, value)) =
            line.strip_prefix(&format!("{family}_bucket{{")).and_then(|rest| rest.rsplit_once("} "))
        else {
            continue;
        };
        let others: Vec<&str> = labels.split(',').filter(|label| !label.starts_with("le=")).collect();
        histograms.entry(others.join(",")).or_default().push(value.parse().expect("a number"));
    }
    assert!(!histograms.is_empty(), "{family} has no buckets");
    for (labels, buckets) in histograms {
        let count = if labels.is_empty() { format!("{family}_count") } else { format!("{family}_count{{{labels}}}") };
        assert!(buckets.is_sorted(), "{family} {labels}: {buckets:?}");
        assert_eq!(buckets.last(), Some(&scrape.value(&count)), "{family} {labels}");
    }
}

/// The table of metrics in the guide for operators has a row for each metric, and no other rows.
#[tokio::test]
async fn every_metric_stands_in_the_guide_for_operators_and_every_one_there_is_served() {
    let directory = TestDirectory::new("metrics-guide");
    let node = node_on_disk(&directory).await;
    let served = Scrape::of(node.config.http_listen).await.families();
    let served: BTreeMap<String, String> = served.into_iter().map(|(name, kind, _)| (name, kind)).collect();
    let guide = include_str!("../../../../docs/operating.md");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let name = cells.next()?.trim_end_matches('`').to_owned();
        (name.starts_with("fencepost_") || name.starts_with("process_"))
            .then(|| (name, cells.next().unwrap_or_default().to_owned()))
    };
    let listed: Vec<(String, String)> = guide.lines().filter_map(row).collect();
    assert_eq!(listed.len(), listed.iter().cloned().collect::<BTreeMap<_, _>>().len(), "a metric is listed twice");
    let listed: BTreeMap<String, String> = listed.into_iter().collect();
    if cfg!(target_os = "linux") {
        assert_eq!(listed, served, "left: docs/operating.md, right: /metrics");
    }
}

/// What `promtool` says about a text, and whether it is satisfied.
fn promtool(path: &Path, arguments: &[&str], text: &str) -> (bool, String) {
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = command.spawn().expect("promtool starts");
    check.stdin.take().expect("piped").write_all(text.as_bytes()).expect("promtool reads");
    let checked = check.wait_with_output().expect("promtool ends");
    let said = [checked.stdout, checked.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    (checked.status.success(), said)
}

#[tokio::test]
async fn promtool_finds_nothing_to_complain_about() {
    let Some(path) = fencepost_testbed::tool("promtool", "the Debian package prometheus") else { return };
    let directory = TestDirectory::new("metrics-promtool");
    let node = node_on_disk(&directory).await;
    let mut client = Client::connect(node.config.client_listen).await.unwrap();
    client.open(1, 60_000).await;
    grant(&client.ask(1, 1, 1, lock("orders/42", Wait::No)).await);
    let text = Scrape::of(node.config.http_listen).await.text;
    assert_eq!(promtool(&path, &["check", "metrics"], &text), (true, String::new()), "of\n{text}");
    let (is_satisfied, said) = promtool(&path, &["check", "metrics"], "# TYPE turns counter\nturns 1\n");
    assert!(!is_satisfied && said.contains("_total"), "the check finds what is wrong: {said}");

    let guide = include_str!("../../../../docs/operating.md");
    let mut blocks = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let rules = blocks.find(|block| block.starts_with("groups:")).expect("the guide has rules for alerts");
    let file = directory.path().join("rules.yml");
    std::fs::write(&file, rules).expect("the directory is ours");
    let (is_satisfied, said) = promtool(&path, &["check", "rules", file.to_str().expect("text")], "");
    assert!(is_satisfied && said.contains("4 rules found"), "{said}");
    let names: Vec<String> = Scrape::of(node.config.http_listen).await.families().into_iter().map(|it| it.0).collect();
    let is_word = |symbol: char| symbol.is_ascii_alphanumeric() || symbol == '_';
    let expressions = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    for word in expressions.flat_map(|expression| expression.split(|symbol| !is_word(symbol))) {
        let is_served = |name: &String| word == name || word.strip_suffix("_bucket") == Some(name);
        assert!(!word.starts_with("fencepost_") || names.iter().any(is_served), "an alert uses {word}");
    }
}
