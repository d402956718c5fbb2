//! What a message of a client costs a whole server, in counts and not in time: entries, syncs and bytes of the log, messages back to
//! the client, messages among the nodes. The counts are those of `/metrics`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::client::{Client, Heard, Running, TestDirectory, config, lock, metric, request, run_node, status_of, until};
use fencepost_core::{Action, Outcome, RequestNumber, Wait};
use fencepost_server::{Begin, Config};
use fencepost_wire::v1;

/// Operations in one message, and the bytes that one of them adds to the log today.
const LOG_BYTES: &[(u64, f64)] = &[(1, 156.0), (64, 50.7), (1_024, 50.0)];
/// How much the bytes may grow before the test fails.
const SLACK: f64 = 1.05;

/// Messages that the leader of three nodes sends for one commit.
const LEADER_MESSAGES: u64 = 2;
/// Messages that each follower sends for one commit.
const FOLLOWER_MESSAGES: u64 = 1;
/// The interval of heartbeats, which are sent also when nothing is committed. Each follower answers each heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Entries that carry only time and may have been written since `since`, and their bytes at most. There is one for each second without
/// another entry, so none unless the machine is slow.
fn time_entries(since: Instant) -> (u64, f64) {
    let entries = since.elapsed().as_secs();
    (entries, entries as f64 * 200.0)
}

/// A node with its log in a directory. It joins the others, or founds a cluster if there are none.
async fn start(directory: &TestDirectory, name: &str, others: &[&Running]) -> Running {
    let addresses: Vec<String> = others.iter().map(|node| node.config.client_listen.to_string()).collect();
    let begin = if addresses.is_empty() { Begin::Found } else { Begin::Join(addresses) };
    run_node(Config { directory: Some(directory.path().join(name)), ..config(name, begin) }).await
}

async fn wait_for_voters(nodes: &[&Running]) {
    until("all vote, and one leads", async || {
        for node in nodes {
            let status = status_of(node.config.client_listen).await.ok()?;
            let voters =
                status.members.iter().filter(|it| it.role == v1::MemberRole::Voter as i32 && !it.name.is_empty());
            (status.leader.is_some() && voters.count() == nodes.len()).then_some(())?;
        }
        Some(())
    })
    .await;
}

/// The index of the leader, and a stream to it with this many sessions.
async fn connect(nodes: &[&Running], sessions: u64) -> (usize, Client) {
    let (leader, mut client) = until("a node leads", async || {
        for (at, node) in nodes.iter().enumerate() {
            if let Ok(client) = Client::connect(node.config.client_listen).await {
                return Some((at, client));
            }
        }
        None
    })
    .await;
    for session in 1..=sessions {
        client.open(session.into(), 600_000).await;
    }
    (leader, client)
}

/// Acquires this many locks for a session with one message, and waits until it has them.
async fn take_locks(client: &mut Client, session: u64, locks: u64) {
    let one = |number| request(session.into(), 1, number, lock(&format!("orders/{session:06}-{number:06}"), Wait::No));
    client.say(v1::ClientMessage { requests: (1..=locks).map(one).collect(), ..Default::default() }).await;
    let mut entries = Vec::new();
    for _ in 0..locks {
        match client.hear().await.expect("the stream is open") {
            Heard::Answer { index, answer, .. } if matches!(answer.outcome, Outcome::Granted { .. }) => {
                entries.push(index);
            }
            other => panic!("not granted: {other:?}"),
        }
    }
    entries.dedup();
    assert_eq!(entries.len(), 1, "all requests of one message are in one entry");
}

async fn log(node: SocketAddr) -> (u64, u64, u64) {
    let entries = metric(node, "fencepost_log_entries_total").await;
    let syncs = metric(node, "fencepost_log_syncs_total").await;
    (entries, syncs, metric(node, "fencepost_log_bytes_total").await)
}

#[tokio::test]
async fn a_message_of_a_client_is_one_entry_one_sync_and_one_message_back() {
    let directory = TestDirectory::new("counts-one");
    let node = start(&directory, "alone", &[]).await;
    wait_for_voters(&[&node]).await;
    let mut last_entry = Instant::now();
    let (_, mut client) = connect(&[&node], LOG_BYTES.len() as u64).await;
    for (session, (operations, bytes_today)) in (1..).zip(LOG_BYTES) {
        let (before, messages) = (log(node.config.http_listen).await, client.messages);
        let asked = Instant::now();
        take_locks(&mut client, session, *operations).await;
        let after = log(node.config.http_listen).await;
        let (time_entries, time_bytes) = time_entries(last_entry);
        last_entry = asked;
        let one = 1..=1 + time_entries;
        assert!(one.contains(&(after.0 - before.0)), "{} entries for {operations} operations", after.0 - before.0);
        assert!(one.contains(&(after.1 - before.1)), "{} syncs for {operations} operations", after.1 - before.1);
        assert_eq!(client.messages - messages, 1, "messages back for {operations} operations");
        let bytes = ((after.2 - before.2) as f64 - time_bytes) / *operations as f64;
        println!("{operations} operations in a message: {bytes:.1} bytes of the log for each");
        assert!(
            bytes <= bytes_today * SLACK,
            "with {operations} in a message, an operation takes {bytes:.1} bytes of the log, and took {bytes_today}"
        );
    }
}

#[tokio::test]
async fn a_commit_of_three_nodes_is_one_entry_and_one_sync_at_each_and_one_message_to_and_from_each() {
    const COMMITS: u64 = 50;
    let directory = TestDirectory::new("counts-three");
    let first = start(&directory, "n1", &[]).await;
    let second = start(&directory, "n2", &[&first]).await;
    let third = start(&directory, "n3", &[&first]).await;
    let running = [&first, &second, &third];
    wait_for_voters(&running).await;
    let (leader, mut client) = connect(&running, COMMITS + 1).await;
    let nodes = running.map(|node| node.config.http_listen);
    // Followers learn the commit index with the leader's next heartbeat.
    let wait_until_level = async || {
        until("all have applied the same", async || {
            let leads = metric(nodes[leader], "fencepost_applied_index").await;
            for node in nodes {
                (metric(node, "fencepost_applied_index").await == leads).then_some(())?;
            }
            Some(())
        })
        .await;
    };
    let count = async || {
        let mut counts = Vec::new();
        for node in nodes {
            let (entries, syncs, _) = log(node).await;
            counts.push((entries, syncs, metric(node, "fencepost_peer_messages_total").await));
        }
        counts
    };
    wait_until_level().await;
    let mut last_entry = Instant::now();
    take_locks(&mut client, COMMITS + 1, 1).await;
    wait_until_level().await;
    let (before, started) = (count().await, Instant::now());
    for session in 1..=COMMITS {
        take_locks(&mut client, session, 64).await;
    }
    wait_until_level().await;
    let (time_entries, _) = time_entries(last_entry);
    let (after, heartbeats) = (count().await, started.elapsed().div_duration_f64(HEARTBEAT).ceil() as u64 + 1);
    for (at, (before, after)) in before.iter().zip(&after).enumerate() {
        let (entries, syncs, messages) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        let each = if at == leader { LEADER_MESSAGES } else { FOLLOWER_MESSAGES };
        // Each heartbeat goes to two followers, and each answers. If the answer shows that the follower is behind, the leader sends it
        // the missing entries, which the follower answers again. So a heartbeat causes at most 4 messages of the leader and 2 of a
        // follower.
        let idle = heartbeats * if at == leader { 4 } else { 2 };
        println!("node {at}: {entries} entries, {syncs} syncs, {messages} messages, at most {idle} of them heartbeats");
        assert!(
            (COMMITS..=COMMITS + time_entries).contains(&entries),
            "node {at}: {entries} entries for {COMMITS} commits"
        );
        // Two of three nodes are enough for a commit. The third may receive two entries at once, and writes them together.
        assert!(
            syncs <= entries && (at != leader || syncs == entries),
            "node {at}: {syncs} syncs for {entries} entries"
        );
        assert!(messages <= entries * each + idle, "node {at} sent {messages} messages for {entries} entries");
    }

    // A hand-over of a lock is one entry and one push: every node applies it, and only the leader sends the push.
    let Outcome::Granted { grant, .. } = client.ask(1, 1, 65, lock("hot", Wait::No)).await else {
        panic!("the lock was free");
    };
    last_entry = Instant::now();
    assert!(matches!(client.ask(2, 1, 65, lock("hot", Wait::Forever)).await, Outcome::Queued { .. }));
    let pushes = async || {
        let mut pushes = 0;
        for node in nodes {
            pushes += metric(node, "fencepost_pushes_total").await;
        }
        pushes
    };
    wait_until_level().await;
    let (entries, before) = (log(nodes[leader]).await.0, pushes().await);
    assert_eq!(
        client.ask(1, 1, 66, Action::Release { grant, report: None }).await,
        Outcome::Released { count_left: 0 }
    );
    assert!(matches!(client.wait_end().await, (RequestNumber(65), Outcome::Granted { .. })));
    wait_until_level().await;
    let entries = log(nodes[leader]).await.0 - entries;
    assert!((1..=1 + self::time_entries(last_entry).0).contains(&entries), "{entries} entries");
    assert_eq!(pushes().await - before, 1);
}
