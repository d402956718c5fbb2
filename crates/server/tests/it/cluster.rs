//! Several nodes: joining, leader changes, restarts, removal, silent nodes, and the errors of nodes that cannot start.

use std::collections::BTreeMap;

use crate::client::{
    AdminServiceClient, Client, Running, TestDirectory, attach, channel, config, get, lock, metric, one_node, run_node,
    soon, status_of, token, until,
};
use fencepost_core::{Action, GrantId, KnownVersions, Outcome, Wait};
use fencepost_server::{Begin, Config, Server, StartError};
use fencepost_wire::v1;

/// Nodes that run until a test ends or drops them.
struct Cluster {
    directory: TestDirectory,
    nodes: BTreeMap<String, Running>,
}

impl Cluster {
    async fn new(name: &str, size: usize) -> Cluster {
        let mut cluster = Cluster { directory: TestDirectory::new(name), nodes: BTreeMap::new() };
        cluster.start("n1", Begin::Found).await;
        for node in 2..=size {
            cluster.join(&format!("n{node}")).await;
        }
        cluster.wait_for_voters(size).await;
        cluster
    }

    async fn join(&mut self, name: &str) {
        let known = self.addresses();
        self.start(name, Begin::Join(known)).await;
    }

    async fn start(&mut self, name: &str, begin: Begin) {
        let directory = Some(self.directory.path().join(name));
        let mut config = Config { directory, ..config(name, begin) };
        if let Some(before) = self.nodes.remove(name) {
            // At its old addresses, so that the others find it.
            config = Config { begin: config.begin, ..before.config };
        }
        self.nodes.insert(name.to_owned(), run_node(config).await);
    }

    /// Shuts a node down, and waits until it has ended.
    async fn end(&mut self, name: &str) -> Config {
        let Running { config, end, ended } = self.nodes.remove(name).expect("the node runs");
        end.send(()).expect("the node runs");
        soon("the node ends", ended).await.expect("in good order");
        config
    }

    fn addresses(&self) -> Vec<String> {
        self.nodes.values().map(|node| node.config.client_listen.to_string()).collect()
    }

    async fn leader(&self) -> String {
        until("a node leads", async || {
            for address in self.addresses() {
                if let Ok(status) = status_of(&address).await
                    && status.leader == Some(status.node)
                    && Client::connect(&address).await.is_ok()
                {
                    return Some(address);
                }
            }
            None
        })
        .await
    }

    async fn wait_for_voters(&self, count: usize) {
        until("all vote", async || {
            for address in self.addresses() {
                let status = status_of(&address).await.ok()?;
                let voters =
                    status.members.iter().filter(|it| it.role == v1::MemberRole::Voter as i32 && !it.name.is_empty());
                (voters.count() == count && status.leader.is_some()).then_some(())?;
            }
            Some(())
        })
        .await;
    }

    fn name_of(&self, address: &str) -> String {
        let found = self.nodes.iter().find(|(_, node)| node.config.client_listen.to_string() == address);
        found.expect("a node of this cluster").0.clone()
    }
}

#[tokio::test]
async fn a_read_over_http_is_the_leaders_unless_a_stale_one_is_asked_for() {
    let cluster = Cluster::new("http-reads", 2).await;
    let leader = cluster.leader().await;
    let mut nodes = cluster.nodes.values().map(|node| &node.config);
    let follower = nodes.find(|config| config.client_listen.to_string() != leader).expect("two nodes");
    let refused = get(follower.http_listen, "/v1/locks").await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("\"type\":\"not-leader\""), "{refused}");
    assert!(refused.contains(&format!("\"leader\":\"{leader}\"")), "{refused}");
    assert!(get(follower.http_listen, "/v1/locks?stale=true").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_cluster_grows_while_it_serves_and_survives_its_leader() {
    let mut cluster = Cluster::new("grows", 1).await;
    let leader = cluster.leader().await;
    let mut client = Client::connect(&leader).await.unwrap();
    client.open(1, 60_000).await;
    let first = client.ask(1, 1, 1, lock("kept", Wait::No)).await;
    for node in ["n2", "n3"] {
        cluster.join(node).await;
    }
    cluster.wait_for_voters(3).await;
    let again = client.ask(1, 1, 2, lock("another", Wait::No)).await;
    assert!(token(&again) > token(&first));

    // A node that does not lead says who does.
    for address in cluster.addresses().into_iter().filter(|address| *address != leader) {
        let refused = Client::connect(&address).await.err().expect("it does not lead");
        assert!(refused.message().contains(&leader), "{refused}");
    }

    // The leader shuts down. The session continues at the new leader, with its locks.
    let gone = cluster.name_of(&leader);
    cluster.end(&gone).await;
    let leader = cluster.leader().await;
    let mut client = Client::connect(&leader).await.unwrap();
    client.say(v1::ClientMessage { attaches: vec![attach(1, 0)], ..Default::default() }).await;
    let Outcome::Attached(attached) = client.outcome().await else { panic!("not attached") };
    let tokens: Vec<_> = attached.grants.iter().map(|grant| grant.token).collect();
    assert_eq!(tokens, [token(&first), token(&again)]);
    let later = client.ask(1, attached.epoch.0, 3, lock("later", Wait::No)).await;
    assert!(token(&later) > token(&again));

    // The old leader comes back.
    cluster.start(&gone, Begin::Never).await;
    cluster.wait_for_voters(3).await;
}

#[tokio::test]
async fn acknowledged_locks_survive_a_restart_of_all_nodes() {
    let mut cluster = Cluster::new("all-at-once", 3).await;
    let leader = cluster.leader().await;
    let mut client = Client::connect(&leader).await.unwrap();
    client.open(1, 60_000).await;
    let mut tokens = Vec::new();
    for number in 1..=50 {
        tokens.push(token(&client.ask(1, 1, number, lock(&format!("lock-{number}"), Wait::No)).await));
    }
    let names: Vec<String> = cluster.nodes.keys().cloned().collect();
    let mut configs = Vec::new();
    for name in &names {
        configs.push(cluster.end(name).await);
    }
    for (name, config) in names.iter().zip(configs) {
        let server = Config { begin: Begin::Never, ..config };
        let (end, _) = tokio::sync::oneshot::channel();
        cluster.nodes.insert(name.clone(), Running { config: server, end, ended: tokio::spawn(async {}) });
        cluster.start(name, Begin::Never).await;
    }
    let leader = cluster.leader().await;
    let mut client = Client::connect(&leader).await.unwrap();
    client.say(v1::ClientMessage { attaches: vec![attach(1, 0)], ..Default::default() }).await;
    let Outcome::Attached(attached) = client.outcome().await else { panic!("not attached") };
    assert_eq!(attached.grants.iter().map(|grant| grant.token).collect::<Vec<_>>(), tokens);
}

#[tokio::test]
async fn the_lead_is_handed_over_when_asked() {
    let cluster = Cluster::new("hand-over", 3).await;
    let leader = cluster.leader().await;
    let mut client = Client::connect(&leader).await.unwrap();
    client.open(1, 60_000).await;
    let mut admin = AdminServiceClient::new(channel(&leader));
    let answer =
        soon("the lead is handed over", admin.transfer_lead(v1::TransferLeadRequest { node: 0, ..Default::default() }))
            .await
            .unwrap();
    let status = client.hear().await.expect_err("the old leader ends its streams");
    assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
    let new = cluster.leader().await;
    assert_eq!(status_of(&new).await.unwrap().node, answer.into_inner().leader);
    assert_ne!(new, leader);
    let unknown = AdminServiceClient::new(channel(&new))
        .transfer_lead(v1::TransferLeadRequest { node: 99, ..Default::default() })
        .await;
    assert!(unknown.unwrap_err().message().contains("no such member"));
}

#[tokio::test]
async fn a_member_that_lost_its_disk_is_refused_under_its_name_until_it_is_removed() {
    let mut cluster = Cluster::new("wiped", 3).await;
    let leader = cluster.leader().await;
    let wiped = cluster.nodes.keys().find(|name| **name != cluster.name_of(&leader)).cloned().unwrap();
    let old_id = status_of(cluster.nodes[&wiped].config.client_listen).await.unwrap().node;
    let config = cluster.end(&wiped).await;
    std::fs::remove_dir_all(config.directory.as_ref().unwrap()).unwrap();

    // Without `Begin::Found` or `Begin::Join`, an empty directory is an error.
    let error = Server::start(Config { begin: Begin::Never, ..config.clone() }).await.err().expect("there is no log");
    assert!(matches!(error, StartError::NoLog { .. }), "{error}");
    // It may join under another id, but not while the old id has its name.
    cluster.join(&wiped).await;
    let mut admin = AdminServiceClient::new(channel(&leader));
    let ask = v1::AddMemberRequest {
        node: 77,
        name: wiped.clone(),
        peer_address: "127.0.0.1:1".into(),
        client_address: "127.0.0.1:1".into(),
        ..Default::default()
    };
    let refused = admin.add_member(ask).await.expect_err("the name is taken");
    assert!(refused.message().contains("remove it first"), "{refused}");
    assert_eq!(status_of(&leader).await.unwrap().members.len(), 3, "the new id is not a member");
    admin.remove_member(v1::RemoveMemberRequest { node: old_id, ..Default::default() }).await.unwrap();
    cluster.wait_for_voters(3).await;
    let members = status_of(&leader).await.unwrap().members;
    assert!(members.iter().all(|member| member.node != old_id), "{members:?}");
}

#[tokio::test]
async fn a_node_that_was_removed_says_so_and_does_not_come_back() {
    let mut cluster = Cluster::new("removed", 3).await;
    // First the leader, then a follower.
    for leads in [true, false] {
        let leader = cluster.leader().await;
        let addresses = cluster.addresses();
        let gone = addresses.into_iter().find(|address| (*address == leader) == leads).expect("there are several");
        let node = status_of(&gone).await.unwrap().node;
        let mut observe = crate::client::ObserveServiceClient::new(channel(&gone));
        let mut watch = observe.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
        let mut admin = AdminServiceClient::new(channel(&leader));
        let left = soon("it is removed", admin.remove_member(v1::RemoveMemberRequest { node, ..Default::default() }))
            .await
            .unwrap();
        assert!(!left.into_inner().voters.contains(&node));

        let told = soon("its watchers are told", watch.message()).await.expect_err("no event comes any more");
        let stale = v1::ListSessionsRequest { stale: true, ..Default::default() };
        let errors = [
            told,
            observe.list_sessions(stale).await.expect_err("the node was removed"),
            observe.list_sessions(v1::ListSessionsRequest::default()).await.expect_err("the node was removed"),
            observe.watch(v1::WatchRequest::default()).await.map(drop).expect_err("the node was removed"),
            status_of(&gone).await.expect_err("the node was removed"),
            Client::connect(&gone).await.err().expect("the node was removed"),
        ];
        for error in errors {
            assert!(error.message().contains("removed from the cluster"), "{error}");
        }
        let name = cluster.name_of(&gone);
        let http = cluster.nodes[&name].config.http_listen;
        let ready = get(http, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("removed from the cluster"), "{ready}");

        // It does not ask to become a member again when it is restarted.
        let config = cluster.end(&name).await;
        let members = status_of(cluster.leader().await).await.unwrap().members.len();
        let again = Server::start(Config { begin: Begin::Never, ..config }).await.unwrap();
        until("it knows that it was removed", async || {
            get(again.http_address(), "/readyz").await.contains("removed from the cluster").then_some(())
        })
        .await;
        // It would ask at once, and again every 300 ms.
        let leader = cluster.leader().await;
        for _ in 0..10 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            assert_eq!(status_of(&leader).await.unwrap().members.len(), members);
        }
        drop(again);
    }
}

#[tokio::test]
async fn a_node_far_behind_catches_up_by_a_snapshot() {
    let directory = TestDirectory::new("behind");
    let often = |name: &str, begin| Config {
        directory: Some(directory.path().join(name)),
        snapshot_every_entries: 50,
        ..config(name, begin)
    };
    let first = Server::start(often("n1", Begin::Found)).await.unwrap();
    soon("it leads", first.wait_until_ready()).await;
    let mut client = Client::connect(first.client_address()).await.unwrap();
    client.open(1, 60_000).await;
    for number in 1..=300 {
        client.ask(1, 1, number, lock(&format!("lock-{number}"), Wait::No)).await;
        if number % 10 == 0 {
            // Acknowledges the answers, so that the session may send more requests.
            let keep_alive = fencepost_wire::api::keep_alive_to_wire(
                fencepost_core::SessionId(1),
                fencepost_core::Epoch(1),
                &fencepost_core::Seen { mark: number, ..Default::default() },
            );
            client.say(v1::ClientMessage { keep_alives: vec![keep_alive], ..Default::default() }).await;
            assert_eq!(client.outcome().await, Outcome::Renewed);
        }
    }
    let join = Begin::Join(vec![first.client_address().to_string()]);
    let second = Server::start(often("n2", join)).await.unwrap();
    let (here, there) = (first.client_address(), second.client_address());
    until("the new node has the same state", async || {
        let (here, there) = (status_of(here).await.ok()?, status_of(there).await.ok()?);
        (here.state_hash == there.state_hash && there.counts?.grants == 300).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_backup_taken_while_serving_is_a_readable_snapshot() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    client.open(1, 60_000).await;
    client.ask(1, 1, 1, lock("backed up", Wait::No)).await;
    let mut admin = AdminServiceClient::new(channel(server.client_address()));
    let mut chunks = soon("it begins", admin.backup(v1::BackupRequest {})).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = soon("it goes on", chunks.message()).await.unwrap() {
        bytes.extend(chunk.data);
    }
    let group = fencepost_replica::GroupId { cluster: 5, group: 1 };
    let restored =
        fencepost_replica::restore_backup(&bytes, group, 1_000, 9, KnownVersions::THIS_BUILD).expect("a sound backup");
    let restored = fencepost_replica::read_snapshot(group, &restored, 0, KnownVersions::THIS_BUILD).unwrap();
    assert_eq!(restored.state.counts().sessions, 0);
    assert!(restored.state.counts().last_token.0 >= 1_001);
    let held = client.ask(1, 1, 2, Action::Release { grant: GrantId(1), report: None }).await;
    assert_eq!(held, Outcome::Released { count_left: 0 }, "the node still serves");
}

#[tokio::test]
async fn a_node_that_does_not_know_the_format_version_of_the_cluster_is_not_added() {
    let server = one_node().await;
    let admin = AdminServiceClient::new(channel(server.client_address()));
    let asked = |oldest_format, newest_format| v1::AddMemberRequest {
        node: 0x77,
        name: "b".to_owned(),
        peer_address: "127.0.0.1:1".to_owned(),
        client_address: "127.0.0.1:1".to_owned(),
        oldest_format,
        newest_format,
        reason: String::new(),
    };
    // A refusal because the node still describes itself is retried.
    let answer = async |oldest, newest| {
        until("it answers", async || match admin.clone().add_member(asked(oldest, newest)).await {
            Err(status) if status.message().contains("ask again") => None,
            Err(status) => Some(status.message().to_owned()),
            Ok(_) => Some(String::new()),
        })
        .await
    };
    let said = "node 000000000077 knows format versions 2 to 3, and the cluster uses 1: start that node with a release that knows 1";
    assert!(answer(2, 3).await.contains(said));
    assert!(answer(3, 2).await.contains("the oldest comes first"));
    assert_eq!(answer(1, 3).await, "", "it knows version 1");
    assert_eq!(answer(1, 9).await, "", "a member may describe itself again");
    let status = status_of(server.client_address()).await.expect("it answers");
    let added = status.members.iter().find(|it| it.node == 0x77).expect("it was added");
    assert_eq!(added.newest_format, 3, "a caller cannot change what a member knows");
    assert_eq!(status.format_version, 1);
}

#[tokio::test]
async fn a_node_that_cannot_start_says_what_to_do() {
    let test_directory = TestDirectory::new("refused");
    let cases = [
        (Config { directory: Some(test_directory.path().join("none")), ..config("a", Begin::Never) }, "--new-cluster"),
        (Config { client_listen: ([0, 0, 0, 0], 0).into(), ..config("a", Begin::Found) }, "--insecure"),
        (
            Config { client_listen: ([0, 0, 0, 0], 0).into(), insecure: true, ..config("a", Begin::Found) },
            "--advertise-client",
        ),
        (config("a", Begin::Never), "found a cluster, or join one"),
        (config("", Begin::Found), "name"),
    ];
    for (config, expected) in cases {
        let error = Server::start(config.clone()).await.err().unwrap_or_else(|| panic!("{config:?} should be refused"));
        assert!(error.to_string().contains(expected), "{error} should say {expected}");
    }
    let server = one_node().await;
    let taken = Config { client_listen: server.client_address(), ..config("b", Begin::Found) };
    let error = Server::start(taken).await.err().expect("the port is taken").to_string();
    assert!(error.contains("another process has it"), "{error}");

    let directory = Some(test_directory.path().join("used"));
    drop(Server::start(Config { directory: directory.clone(), ..config("a", Begin::Found) }).await.unwrap());
    let again = Config { directory, ..config("a", Begin::Found) };
    let error = until("the first one is gone", async || match Server::start(again.clone()).await.err()? {
        StartError::LogExists { directory } => Some(directory),
        _ => None,
    });
    assert!(error.await.contains("used"));
}

#[tokio::test]
async fn a_node_that_ends_tells_its_watchers_to_ask_another_node() {
    let mut cluster = Cluster::new("ends", 3).await;
    let leader = cluster.leader().await;
    let mut observe = crate::client::ObserveServiceClient::new(channel(&leader));
    let mut watch = observe.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let name = cluster.name_of(&leader);
    let (_, told) = tokio::join!(cluster.end(&name), watch.message());
    let told = told.expect_err("the watch ends");
    assert!(told.message().contains("ask another one"), "{told}");
}

/// A member, as a node reports it.
fn shown(status: &v1::GetStatusResponse, name: &str) -> v1::MemberView {
    status.members.iter().find(|it| it.name == name).expect("a member").clone()
}

#[tokio::test]
async fn a_dead_node_is_seen_to_be_silent_and_found_when_it_is_back() {
    let mut cluster = Cluster::new("silent", 3).await;
    let leader = cluster.leader().await;
    let leads = cluster.name_of(&leader);
    let http = cluster.nodes[&leads].config.http_listen;
    let [dead, living] = ["n1", "n2", "n3"].into_iter().filter(|it| *it != leads).collect::<Vec<_>>()[..] else {
        panic!("three nodes")
    };
    let all_up = async |status: v1::GetStatusResponse| {
        let is_up = |it: &v1::MemberView| it.state() == v1::MemberState::Up && it.version == env!("CARGO_PKG_VERSION");
        status.members.iter().all(is_up).then_some(())
    };
    until("the leader hears all of them, and knows their versions", async || {
        all_up(status_of(&leader).await.ok()?).await
    })
    .await;

    let config = cluster.end(dead).await;
    let seen = until("the leader calls it silent", async || {
        let status = status_of(&leader).await.ok()?;
        (shown(&status, dead).state() == v1::MemberState::Silent).then_some(status)
    })
    .await;
    let of_dead = shown(&seen, dead);
    assert!(of_dead.silent_ms >= 3_000 && of_dead.lag_entries.is_some() && !of_dead.gets_snapshot, "{of_dead:?}");
    assert_eq!(shown(&seen, living).state(), v1::MemberState::Up);
    assert_eq!(shown(&seen, &leads).state(), v1::MemberState::Up);
    // The other follower hears its leader, and reports nothing about the node that it never hears.
    let other = status_of(cluster.nodes[living].config.client_listen).await.unwrap();
    assert_eq!(shown(&other, dead).state(), v1::MemberState::Unspecified);
    assert_eq!(shown(&other, &leads).state(), v1::MemberState::Up);
    assert_eq!(other.without_leader, None);
    assert_eq!(metric(http, "fencepost_peers_silent").await, 1);
    assert_eq!(metric(http, "fencepost_peers_lost_total").await, 1);
    assert_eq!(metric(http, "fencepost_peers_found_total").await, 0);

    cluster.nodes.insert(dead.to_owned(), run_node(Config { begin: Begin::Never, ..config }).await);
    until("the leader hears it again", async || all_up(status_of(&leader).await.ok()?).await).await;
    until("that is counted", async || (metric(http, "fencepost_peers_found_total").await == 1).then_some(())).await;
    assert_eq!(metric(http, "fencepost_peers_lost_total").await, 1, "each change is counted once");
    assert_eq!(metric(http, "fencepost_peers_silent").await, 0);
}

#[tokio::test]
async fn a_node_without_a_leader_says_which_nodes_it_hears() {
    let mut cluster = Cluster::new("unheard", 3).await;
    let leader = cluster.leader().await;
    let left = cluster.name_of(&leader);
    let mut configs = Vec::new();
    for dead in ["n1", "n2", "n3"].into_iter().filter(|it| *it != left) {
        configs.push((dead, cluster.nodes.remove(dead).expect("it runs")));
    }
    // Both at the same time, as a crash would end them.
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for (name, Running { config, end, ended }) in configs {
        names.push(name);
        ports.push(config);
        ended.abort();
        drop(end);
    }
    let sentence = format!("node {left} hears 1 of 3: {} and {} silent for ", names[0], names[1]);
    let http = cluster.nodes[&left].config.http_listen;
    let ready = until("it is not ready, and says why", async || {
        Some(get(http, "/readyz").await).filter(|ready| ready.contains(&sentence))
    })
    .await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    let status = status_of(&leader).await.unwrap();
    assert!(status.without_leader.as_ref().is_some_and(|said| said.contains(&sentence)), "{status:?}");
    for name in &names {
        assert_eq!(shown(&status, name).state(), v1::MemberState::Silent);
    }
    let turned_away = Client::connect(&leader).await.err().expect("it does not lead");
    assert!(turned_away.message().contains(&sentence), "{turned_away}");
    let mut observe = crate::client::ObserveServiceClient::new(channel(&leader));
    let read = observe.list_sessions(v1::ListSessionsRequest::default()).await;
    assert!(read.expect_err("it does not lead").message().contains(&sentence));

    // One node comes back: two of three elect a leader.
    let back = Config { begin: Begin::Never, ..ports.remove(0) };
    cluster.nodes.insert(names[0].to_owned(), run_node(back).await);
    cluster.leader().await;
    until("it is ready", async || get(http, "/readyz").await.starts_with("HTTP/1.1 200").then_some(())).await;
}
