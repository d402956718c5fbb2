//! How a node becomes a member, and keeps its name and addresses in the list of members up to date.
//!
//! A new node chooses its id, finds the cluster, asks the leader to add it as a learner, and then asks for a vote until it has one. A
//! node that starts again with other addresses asks the leader to change them. Both are the same loop: it calls the leader until the
//! list of members describes this node correctly.
//!
//! All calls go to the port for clients. So does the question for the list of members, when a peer with a valid certificate calls
//! that this node has not heard of. Which changes are allowed is decided by the replica.

use std::time::Duration;

use fencepost_core::{FormatVersion, KnownVersions};
use fencepost_replica::{Hears, MemberChange, MemberView, Replica, Role};
use fencepost_wire::{Member, api, v1};
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::caller;
use crate::engine::{Engine, Shared};
use crate::error::StartError;
use crate::peers;
use crate::status;
use crate::tls::Calling;
use fencepost_wire::grpc::admin_service_client::AdminServiceClient;
use fencepost_wire::grpc::observe_service_client::ObserveServiceClient;

const ASK_TIMEOUT: Duration = Duration::from_secs(3);
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// Several tries, because the cluster may start at the same time as the node that wants to join it.
const FIND_TRIES: u32 = 30;

/// The pause between two questions for the list of members, however many unknown peers call.
const ASK_ABOUT_STRANGERS_AGAIN: Duration = Duration::from_secs(1);

/// What a node says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Introduction {
    pub(crate) member: Member,
    /// Addresses of nodes that can name the leader, besides the known members.
    pub(crate) ask: Vec<String>,
    /// The TLS of the calls. `None` calls in plain text.
    pub(crate) calling: Option<Calling>,
}

/// The cluster that one of these addresses belongs to.
pub(crate) async fn find_cluster(addresses: &[String], calling: Option<&Calling>) -> Result<u128, StartError> {
    let mut reason = String::new();
    for _ in 0..FIND_TRIES {
        let mut wrong_doors = 0;
        for address in addresses {
            match status_of(address, calling).await {
                Ok(status) => {
                    check_version(status.format_version)?;
                    return Ok(api::whole(status.cluster_high, status.cluster_low));
                }
                Err(status) => {
                    let told = told_at_the_door(&status);
                    wrong_doors += usize::from(told.is_some());
                    let said = told.unwrap_or_else(|| {
                        format!("{}; check that a node runs there and can be reached", peers::reason(&status))
                    });
                    reason = format!("{address}: {said}");
                }
            }
        }
        // Waiting does not help.
        if wrong_doors == addresses.len() {
            break;
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
    Err(StartError::Join { addresses: addresses.join(", "), reason })
}

/// What is wrong if the port is another one, or if only one side speaks TLS. `None` for every other failure.
fn told_at_the_door(status: &Status) -> Option<String> {
    if status.code() == Code::Unimplemented {
        return Some(status.message().to_owned());
    }
    let text = peers::reason(status);
    // A node says it in the debug data of a GOAWAY, which the library prints as bytes.
    if let Some((said, _)) = text.split_once("(b\"").and_then(|(_, rest)| rest.split_once("\")")) {
        return Some(said.to_owned());
    }
    let by_alert = [
        (
            "ProtocolVersion",
            "the node there speaks plain text: start this one without --peer-cert and --tls-cert, or give the other one certificates, too",
        ),
        ("NoApplicationProtocol", "this is not the port for clients, which is 7420 by default: check the port"),
    ];
    by_alert.iter().find(|(alert, _)| text.contains(alert)).map(|(_, said)| (*said).to_owned())
}

/// Checks that this release knows the format version of a cluster.
fn check_version(version: u32) -> Result<(), StartError> {
    let known = KnownVersions::THIS_BUILD;
    match FormatVersion::new(version).filter(|version| !known.contains(*version)) {
        Some(version) => Err(StartError::VersionUnknown { version, known }),
        None => Ok(()),
    }
}

/// Makes sure that the list of members has this node with its name, addresses and vote. Returns when it has, or when the node ends.
pub(crate) async fn introduce(shared: Shared, introduction: Introduction, mut closed: watch::Receiver<bool>) {
    let mut said = String::new();
    let mut progress = shared.progress();
    loop {
        match step(&shared, &introduction).await {
            Ok(true) => return,
            Ok(false) => {}
            // Each reason is logged once.
            Err(status) if status.message() != said => {
                status.message().clone_into(&mut said);
                tracing::warn!(reason = said, "this node is not a full member yet: it asks again");
            }
            Err(_) => {}
        }
        // A founder leads at once, and should describe itself as soon as it does.
        let leads = progress.borrow().serves_in.is_some();
        let begins_to_lead = progress.wait_for(|now| now.serves_in.is_some());
        tokio::select! {
            () = tokio::time::sleep(ASK_AGAIN) => {}
            _ = begins_to_lead, if !leads => {}
            _ = closed.wait_for(|closed| *closed) => return,
        }
    }
}

/// One step towards membership. Returns whether nothing is left to do.
async fn step(shared: &Shared, introduction: &Introduction) -> Result<bool, Status> {
    let member = &introduction.member;
    let (is_described, votes, was_removed, leads, leader, others, known) = {
        let engine = shared.engine();
        let replica = engine.replica();
        let votes = replica.members().iter().any(|it| it.node == member.node() && it.role == Role::Voter);
        // The others may not know this node's new address, so this node calls them at their last known addresses.
        let others = others(replica);
        let (is_described, was_removed) = (replica.member(member.node()) == Some(member), replica.was_removed());
        (is_described, votes, was_removed, replica.serves(), engine.leader_address(), others, replica.known())
    };
    if is_described && votes {
        return Ok(true);
    }
    if was_removed {
        tracing::warn!(
            "this node was removed from the cluster, and its id never comes back: stop it and delete its directory"
        );
        return Ok(true);
    }
    if leads {
        let cause = caller::by_node(member, "its name and its addresses");
        is_done(shared.change_members(vec![MemberChange::Describe(member.clone())], cause).await.map_err(status::of))?;
        return Ok(false);
    }
    let ask = introduction.ask.iter().chain(&others);
    let calling = introduction.calling.as_ref();
    let Some(leader) = find_leader(leader, ask, calling).await else { return Ok(false) };
    let mut admin = AdminServiceClient::new(channel(&leader, calling)?);
    if !is_described {
        let described = v1::AddMemberRequest {
            node: member.node(),
            name: member.name().to_owned(),
            peer_address: member.peer_address().to_owned(),
            client_address: member.client_address().to_owned(),
            oldest_format: known.oldest().get(),
            newest_format: known.newest().get(),
            reason: "it joins, or has another name or address".to_owned(),
        };
        if !is_done(admin.add_member(caller::call_of_node(member, described)).await)? {
            return Ok(false);
        }
    }
    if !votes {
        // Refused while this node catches up, and if it has a vote by an entry that it has not applied yet.
        let reason = "it joins as a voter".to_owned();
        let promoted = v1::PromoteMemberRequest { node: member.node(), replaces: None, reason };
        is_done(admin.promote_member(caller::call_of_node(member, promoted)).await)?;
    }
    Ok(false)
}

/// Whether the leader did what this node asked. That it cannot do it yet is no error: another node may join at the same time.
fn is_done<T>(answer: Result<T, Status>) -> Result<bool, Status> {
    match answer {
        Ok(_) => Ok(true),
        Err(status) if is_not_yet(&status) => Ok(false),
        Err(status) => Err(status),
    }
}

/// The addresses for clients of the other members.
fn others(replica: &Replica) -> Vec<String> {
    let others = replica.members().into_iter().filter(|it| it.node != replica.id()).filter_map(|it| it.member);
    others.map(|other| other.client_address().to_owned()).collect()
}

/// Asks for the list of members whenever a peer was refused because this node has not heard of it: this node may have no list yet, or
/// may have been down while members joined. It asks only nodes that are on its list or in its configuration.
pub(crate) async fn ask_about_strangers(shared: Shared, introduction: Introduction, mut closed: watch::Receiver<bool>) {
    let strangers = shared.engine().peers.strangers();
    let ask = async {
        loop {
            strangers.notified().await;
            ask_for_members(&shared, &introduction).await;
            tokio::time::sleep(ASK_ABOUT_STRANGERS_AGAIN).await;
        }
    };
    tokio::select! {
        () = ask => {}
        _ = closed.wait_for(|closed| *closed) => {}
    }
}

/// Takes the list of the first node that answers, is in this cluster, and is not behind.
async fn ask_for_members(shared: &Shared, introduction: &Introduction) {
    let (others, cluster) = {
        let engine = shared.engine();
        (others(engine.replica()), engine.replica().group().cluster)
    };
    for address in others.iter().chain(&introduction.ask) {
        let Ok(status) = status_of(address, introduction.calling.as_ref()).await else { continue };
        let applied_index = status.applied.map_or(0, |applied| applied.index);
        let is_ours = api::whole(status.cluster_high, status.cluster_low) == cluster;
        let peers = &mut shared.engine().peers;
        if is_ours && !status.members.is_empty() && peers.may_vouch(applied_index) {
            return peers.vouch(applied_index, status.members.into_iter().map(|member| (member.node, member.name)));
        }
    }
}

/// The members as observers see them.
pub(crate) fn views(engine: &Engine) -> Vec<v1::MemberView> {
    let view = |view: MemberView| {
        let role = match view.role {
            Role::Voter => v1::MemberRole::Voter,
            Role::Learner => v1::MemberRole::Learner,
            Role::Leaving => v1::MemberRole::Leaving,
        };
        let described = view.member.as_ref();
        let (state, silent_ms) = match view.hears {
            Hears::Yes => (v1::MemberState::Up, 0),
            Hears::Silent { ms } => (v1::MemberState::Silent, ms),
            Hears::Unknown => (v1::MemberState::Unspecified, 0),
        };
        v1::MemberView {
            node: view.node,
            name: described.map(|member| member.name().to_owned()).unwrap_or_default(),
            peer_address: described.map(|member| member.peer_address().to_owned()).unwrap_or_default(),
            client_address: described.map(|member| member.client_address().to_owned()).unwrap_or_default(),
            role: role.into(),
            leads: view.is_leader,
            matched_index: view.matched,
            state: state.into(),
            silent_ms,
            lag_entries: view.lag.map(|lag| lag.entries),
            lag_ms: view.lag.map(|lag| lag.ms),
            gets_snapshot: view.gets_snapshot,
            version: engine.peers.version(view.node).unwrap_or_default().to_owned(),
            oldest_format: view.known.map_or(0, |known| known.oldest().get()),
            newest_format: view.known.map_or(0, |known| known.newest().get()),
        }
    };
    engine.replica().members().into_iter().map(view).collect()
}

fn is_not_yet(status: &Status) -> bool {
    let reason = status.get_details_error_info().map(|info| info.reason);
    matches!(reason.as_deref(), Some("NOT_CAUGHT_UP" | "ALREADY_MEMBER" | "CHANGE_UNDER_WAY" | "NOT_LEADER"))
}

/// The leader's address for clients: the known one, or the one that another node names.
async fn find_leader(
    known: Option<String>,
    ask: impl Iterator<Item = &String>,
    calling: Option<&Calling>,
) -> Option<String> {
    if known.is_some() {
        return known;
    }
    for address in ask {
        if let Ok(status) = status_of(address, calling).await
            && let Some(leader) = status.leader_address
        {
            return Some(leader);
        }
    }
    None
}

async fn status_of(address: &str, calling: Option<&Calling>) -> Result<v1::GetStatusResponse, Status> {
    let mut observe = ObserveServiceClient::new(channel(address, calling)?);
    Ok(observe.get_status(v1::GetStatusRequest {}).await?.into_inner())
}

fn channel(address: &str, calling: Option<&Calling>) -> Result<tonic::transport::Channel, Status> {
    let scheme = if calling.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(|_| Status::new(Code::InvalidArgument, format!("{address:?} is not an address: say HOST:PORT")))?;
    let endpoint = match calling {
        Some(calling) => calling.host(endpoint).map_err(|why| Status::new(Code::Unavailable, why))?,
        None => endpoint,
    };
    Ok(endpoint.connect_timeout(ASK_TIMEOUT).timeout(ASK_TIMEOUT).connect_lazy())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal that passes by itself is asked again without a warning.
    #[test]
    fn a_change_of_the_members_that_is_under_way_is_waited_for_and_a_name_that_is_taken_is_an_error() {
        let refused = |reason: &str| is_done::<()>(Err(status::reason(Code::Unavailable, reason, "")));
        for reason in ["NOT_CAUGHT_UP", "ALREADY_MEMBER", "CHANGE_UNDER_WAY", "NOT_LEADER"] {
            assert!(matches!(refused(reason), Ok(false)), "{reason}");
        }
        assert!(matches!(is_done(Ok(())), Ok(true)));
        assert!(refused("NAME_TAKEN").is_err());
    }

    #[test]
    fn a_node_joins_only_a_cluster_whose_format_version_it_knows() {
        assert!(check_version(KnownVersions::THIS_BUILD.newest().get()).is_ok());
        let refused =
            check_version(KnownVersions::THIS_BUILD.newest().get() + 1).expect_err("newer than known").to_string();
        assert!(
            refused.contains("the cluster uses format version 2, and this node knows 1: start it with"),
            "{refused}"
        );
    }
}
