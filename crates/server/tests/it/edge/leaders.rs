//! How a stream ends, or does not begin, at a node that does not lead: another node leads, no node leads, or it was removed.

use std::net::SocketAddr;

use fencepost_server::Begin as Start;
use fencepost_wire::v1;
use tonic::Status;

use super::open_session;
use super::story::{Story, golden};
use super::stream::Stream;
use crate::client::{AdminServiceClient, Client, Running, channel, config, run_node, soon, status_of, until};

/// Two voting members, of which the first leads. Neither can lead without the other.
pub(crate) struct Pair {
    pub(crate) leader: Running,
    pub(crate) follower: Running,
}

impl Pair {
    pub(crate) async fn start(story: &Story) -> Pair {
        let leader = run_node(config("n1", Start::Found)).await;
        let known = vec![leader.config.client_listen.to_string()];
        let follower = run_node(config("n2", Start::Join(known))).await;
        let pair = Pair { leader, follower };
        story.call(pair.leader(), "ADDRESS-OF-N1");
        story.call(pair.follower(), "ADDRESS-OF-N2");
        until("both know two members with a vote, and n1 leads", async || {
            let leader = status_of(pair.leader()).await.ok()?;
            let follower = status_of(pair.follower()).await.ok()?;
            let votes = |it: &v1::MemberView| it.role() == v1::MemberRole::Voter && !it.name.is_empty();
            for status in [&leader, &follower] {
                (status.members.iter().filter(|it| votes(it)).count() == 2).then_some(())?;
            }
            if leader.leader != Some(leader.node) {
                // On a slow machine the other node may have been elected meanwhile.
                let back = v1::TransferLeadRequest { node: leader.node, ..Default::default() };
                drop(AdminServiceClient::new(channel(pair.follower())).transfer_lead(back).await);
                return None;
            }
            (follower.leader == Some(leader.node) && Client::connect(pair.leader()).await.is_ok()).then_some(())
        })
        .await;
        pair
    }

    pub(crate) fn leader(&self) -> SocketAddr {
        self.leader.config.client_listen
    }

    pub(crate) fn follower(&self) -> SocketAddr {
        self.follower.config.client_listen
    }

    /// Ends the follower as a crash would. Waits until the other node reports it as silent, and no longer leads.
    pub(crate) async fn lose_follower(&self) {
        self.follower.ended.abort();
        until("n1 finds n2 silent", async || {
            status_of(self.leader()).await.ok()?.without_leader.filter(|said| said.contains("silent"))
        })
        .await;
    }
}

pub(crate) async fn remove(at: SocketAddr, node: SocketAddr) {
    let node = status_of(node).await.expect("it answers").node;
    let mut admin = AdminServiceClient::new(channel(at));
    soon("the node is removed", admin.remove_member(v1::RemoveMemberRequest { node, ..Default::default() }))
        .await
        .expect("the node leads");
}

#[tokio::test]
async fn a_follower_names_the_leader() {
    let about = ["A follower serves no stream, and names the leader."];
    golden("follower", &about, async |story| {
        let pair = Pair::start(&story).await;
        Stream::connect(&story, "client", pair.follower()).await;
        Stream::connect_efficiency(&story, "efficient", pair.follower()).await;
    })
    .await;
}

#[tokio::test]
async fn the_lead_is_handed_over() {
    let about = [
        "When the lead is handed over, the streams of the old leader end at once, before it knows the new one. A later stream",
        "is told the new leader's address.",
    ];
    golden("lead-handed-over", &about, async |story| {
        let pair = Pair::start(&story).await;
        let mut client = Stream::connect(&story, "client", pair.leader()).await;
        let mut efficient = Stream::connect_efficiency(&story, "efficient", pair.leader()).await;
        client.says("opens session 1", open_session(1), 1).await;
        let mut admin = AdminServiceClient::new(channel(pair.leader()));
        soon("n2 leads", admin.transfer_lead(v1::TransferLeadRequest { node: 0, ..Default::default() }))
            .await
            .expect("n2 takes the lead");
        client.hears_end("waits while n1 hands the lead over").await;
        efficient.hears_end("waits while n1 hands the lead over").await;
        Stream::connect(&story, "client", pair.leader()).await;
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_shuts_down_beside_another_node() {
    let about = [
        "A leader that shuts down hands the lead over first. Its streams end with NOT_LEADER, not with SHUTTING_DOWN.",
    ];
    golden("leader-shuts-down", &about, async |story| {
        let pair = Pair::start(&story).await;
        let mut client = Stream::connect(&story, "client", pair.leader()).await;
        pair.leader.end.send(()).expect("the node runs");
        client.hears_end("waits while n1 shuts down").await;
        drop(client);
        soon("the node ends", pair.leader.ended).await.expect("in good order");
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_loses_its_majority() {
    let about = [
        "A leader that hears no majority stops leading, and its streams end. Which nodes it reports as silent depends on timing,",
        "so the sentence is cut.",
    ];
    golden("majority-lost", &about, async |story| {
        let pair = Pair::start(&story).await;
        story.cut_behind("no node leads");
        let mut client = Stream::connect(&story, "client", pair.leader()).await;
        client.says("opens session 1", open_session(1), 1).await;
        pair.follower.ended.abort();
        client.hears_end("waits while n2 is dead").await;
    })
    .await;
}

#[tokio::test]
async fn a_node_that_knows_of_no_leader() {
    let about = ["A stream that comes while no node leads is told which nodes are silent."];
    golden("no-leader", &about, async |story| {
        let pair = Pair::start(&story).await;
        pair.lose_follower().await;
        Stream::connect(&story, "client", pair.leader()).await;
        Stream::connect_efficiency(&story, "efficient", pair.leader()).await;
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_is_removed() {
    let about =
        ["A leader that is removed from the cluster says so on its streams, and to every stream that comes later."];
    golden("leader-removed", &about, async |story| {
        let pair = Pair::start(&story).await;
        let mut client = Stream::connect(&story, "client", pair.leader()).await;
        remove(pair.leader(), pair.leader()).await;
        client.hears_end("waits while n1 is removed").await;
        Stream::connect(&story, "client", pair.leader()).await;
    })
    .await;
}

#[tokio::test]
async fn a_follower_that_is_removed() {
    let about = ["A follower that is removed from the cluster says so, and names no leader."];
    golden("follower-removed", &about, async |story| {
        let pair = Pair::start(&story).await;
        remove(pair.leader(), pair.follower()).await;
        let is_removal = |status: &Status| status.message().contains("was removed");
        until("n2 knows that it was removed", async || status_of(pair.follower()).await.err().filter(is_removal)).await;
        Stream::connect(&story, "client", pair.follower()).await;
    })
    .await;
}
