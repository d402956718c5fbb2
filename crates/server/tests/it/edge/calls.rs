//! The refusals of the services that exist over gRPC only: reads, acts of administrators, changes of the members. The same code makes
//! them as the ends of streams.

use std::fmt::Display;

use fencepost_wire::{ShownNode, v1};
use tonic::{Response, Status};

use super::leaders::{Pair, remove};
use super::story::{Door, Line, Story, golden_at};
use super::stream::end_of_call;
use crate::client::{AdminServiceClient, ObserveServiceClient, channel, status_of};

/// Records the refusal of a call.
fn refused<Answer>(story: &Story, done: &str, called: Result<Response<Answer>, Status>) {
    let status = called.err().unwrap_or_else(|| panic!("client {done}, and it is refused"));
    let line = Line { about: "call".to_owned(), number: None, text: end_of_call(&status) };
    story.record(format!("client {done}"), &[line]);
}

/// One call of each kind that only a leader answers.
async fn ask_everything(story: &Story, address: impl Display) {
    let mut observe = ObserveServiceClient::new(channel(&address));
    let mut admin = AdminServiceClient::new(channel(&address));
    refused(story, "lists sessions", observe.list_sessions(v1::ListSessionsRequest::default()).await);
    let act = Some(v1::act_request::Act::BreakGrant(1));
    let asked = v1::ActRequest { reason: "the test says so".to_owned(), act };
    refused(story, "breaks a grant", admin.act(asked).await);
    refused(
        story,
        "removes node 77",
        admin.remove_member(v1::RemoveMemberRequest { node: 0x77, ..Default::default() }).await,
    );
    refused(
        story,
        "hands the lead over",
        admin.transfer_lead(v1::TransferLeadRequest { node: 0, ..Default::default() }).await,
    );
    refused(story, "takes a backup", admin.backup(v1::BackupRequest {}).await);
}

#[tokio::test]
async fn calls_to_a_follower() {
    let about = ["Calls that only a leader answers, made to a follower."];
    golden_at(&[Door::Grpc], "calls-to-follower", &about, async |story| {
        let pair = Pair::start(&story).await;
        ask_everything(&story, pair.follower()).await;
    })
    .await;
}

#[tokio::test]
async fn calls_without_a_leader() {
    let about = ["Calls that only a leader answers, made to a node that hears no majority."];
    golden_at(&[Door::Grpc], "calls-without-leader", &about, async |story| {
        let pair = Pair::start(&story).await;
        pair.lose_follower().await;
        ask_everything(&story, pair.leader()).await;
    })
    .await;
}

#[tokio::test]
async fn calls_to_a_removed_node() {
    let about = ["Calls made to a node that was removed. It answers no read, not even a stale one."];
    golden_at(&[Door::Grpc], "calls-to-removed-node", &about, async |story| {
        let pair = Pair::start(&story).await;
        remove(pair.leader(), pair.leader()).await;
        ask_everything(&story, pair.leader()).await;
        let mut observe = ObserveServiceClient::new(channel(pair.leader()));
        let stale = v1::ListSessionsRequest { stale: true, ..Default::default() };
        refused(&story, "lists sessions, stale", observe.list_sessions(stale).await);
        refused(&story, "asks for the status", observe.get_status(v1::GetStatusRequest {}).await);
        refused(&story, "watches", observe.watch(v1::WatchRequest::default()).await);
    })
    .await;
}

#[tokio::test]
async fn calls_that_a_leader_refuses() {
    let about =
        ["Calls that a leader refuses, because they are not valid or because the members cannot be changed like that."];
    golden_at(&[Door::Grpc], "calls-refused-by-leader", &about, async |story| {
        let pair = Pair::start(&story).await;
        let follower = status_of(pair.follower()).await.expect("it answers").node;
        story.call(ShownNode(follower), "ID-OF-N2");
        let mut observe = ObserveServiceClient::new(channel(pair.leader()));
        let mut admin = AdminServiceClient::new(channel(pair.leader()));
        let explain = v1::ExplainRequest { name: String::new(), ..Default::default() };
        refused(&story, "explains a lock without a name", observe.explain(explain).await);
        let act = Some(v1::act_request::Act::BreakGrant(1));
        let wordy = v1::ActRequest { reason: "x".repeat(1_025), act };
        refused(&story, "acts with a reason of 1,025 bytes", admin.act(wordy).await);
        let nothing = v1::ActRequest { reason: "the test says so".to_owned(), act: None };
        refused(&story, "acts without an act", admin.act(nothing).await);
        refused(
            &story,
            "removes node 77",
            admin.remove_member(v1::RemoveMemberRequest { node: 0x77, ..Default::default() }).await,
        );
        let promote = |node| v1::PromoteMemberRequest { node, ..Default::default() };
        refused(&story, "gives a vote to node 77", admin.promote_member(promote(0x77)).await);
        refused(&story, "gives a vote to n2, which has one", admin.promote_member(promote(follower)).await);
        let add = |name: &str| v1::AddMemberRequest {
            node: 0x77,
            name: name.to_owned(),
            peer_address: "127.0.0.1:1".to_owned(),
            client_address: "127.0.0.1:1".to_owned(),
            oldest_format: 1,
            newest_format: 1,
            reason: String::new(),
        };
        refused(&story, "adds another node named n2", admin.add_member(add("n2")).await);
        refused(&story, "adds a node without a name", admin.add_member(add("")).await);
        let newer = v1::AddMemberRequest { oldest_format: 9, newest_format: 9, ..add("n3") };
        refused(&story, "adds a node that knows format 9 alone", admin.add_member(newer).await);
        let nowhere = v1::TransferLeadRequest { node: 0x77, ..Default::default() };
        refused(&story, "hands the lead to node 77", admin.transfer_lead(nowhere).await);
    })
    .await;
}
