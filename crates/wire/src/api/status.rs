//! The cluster and its members, as one node sees them.

use std::time::Duration;

use fencepost_core::{Counts, Token};

use crate::api::observe::{self, ReadAt};
use crate::error::WireError;
use crate::v1;

/// The cluster as the leader sees it; or as another node sees it, if the leader could not be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStatus {
    /// The cluster's id.
    pub cluster: u128,
    /// The group.
    pub group: u64,
    /// The node that answered.
    pub node: u64,
    /// The version of the node that answered.
    pub version: String,
    /// The term.
    pub term: u64,
    /// The leader, if it is known.
    pub leader: Option<u64>,
    /// The leader's address for clients, if it is known.
    pub leader_address: Option<String>,
    /// The last log entry that was applied.
    pub applied: ReadAt,
    /// The members.
    pub members: Vec<MemberStatus>,
    /// How many grants, sessions and other things there are.
    pub counts: Counts,
    /// The oldest token of a living grant. Stores may forget marks below it.
    pub oldest_live_token: Token,
    /// The node's disk is nearly full.
    pub disk_short: bool,
    /// If the node that answered knows no leader: a sentence for people that says which voters it hears.
    pub without_leader: Option<String>,
    /// The format version that the cluster uses.
    pub format_version: u32,
}

impl ClusterStatus {
    /// Whether the leader answered. Only the leader hears every member and knows the lag of each.
    pub fn is_of_leader(&self) -> bool {
        self.leader == Some(self.node)
    }
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberStatus {
    /// Its id.
    pub node: u64,
    /// Its name.
    pub name: String,
    /// Where the other nodes reach it.
    pub peer_address: String,
    /// Where clients reach it.
    pub client_address: String,
    /// What it may do.
    pub role: MemberRole,
    /// Whether it leads.
    pub leads: bool,
    /// The last log entry that it has, as far as the leader knows.
    pub matched_index: Option<u64>,
    /// Whether the node that answered hears it.
    pub state: MemberState,
    /// How far it is behind the leader. Only the leader knows this; it is `None` for the leader itself.
    pub lag: Option<MemberLag>,
    /// Whether the leader is sending it a snapshot.
    pub gets_snapshot: bool,
    /// The version of its software. `None` if the node that answered has got no hello from this member.
    pub version: Option<String>,
    /// The oldest and the newest format version that it knows. `None` if the node that answered has got no hello from this member.
    pub known_formats: Option<(u32, u32)>,
}

/// Whether a node hears a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberState {
    /// It was heard in the last three seconds.
    Up,
    /// It should have been heard, but has been silent for this long.
    Silent(Duration),
    /// Not known: a follower hears only its leader.
    Unknown,
}

/// How far a member is behind the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberLag {
    /// Entries of the log that it is not known to have.
    pub entries: u64,
    /// How long ago it last had all entries that existed at that moment.
    pub time: Duration,
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberRole {
    /// It votes.
    Voter,
    /// It gets the log without a vote.
    Learner,
    /// It votes until the current change of the members is complete.
    Leaving,
    /// A role that this version does not know.
    Other,
}

/// Reads the status of a cluster.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn status_from_wire(status: v1::GetStatusResponse) -> Result<ClusterStatus, WireError> {
    Ok(ClusterStatus {
        cluster: crate::api::whole(status.cluster_high, status.cluster_low),
        group: status.group,
        node: status.node,
        version: status.version,
        term: status.term,
        leader: status.leader,
        leader_address: status.leader_address,
        applied: observe::read_at_from_wire(status.applied)?,
        members: status.members.into_iter().map(member).collect(),
        counts: observe::counts_from_wire(status.counts)?,
        oldest_live_token: Token(status.oldest_live_token),
        disk_short: status.disk_short,
        without_leader: status.without_leader,
        format_version: status.format_version,
    })
}

fn member(member: v1::MemberView) -> MemberStatus {
    let role = match member.role() {
        v1::MemberRole::Voter => MemberRole::Voter,
        v1::MemberRole::Learner => MemberRole::Learner,
        v1::MemberRole::Leaving => MemberRole::Leaving,
        v1::MemberRole::Unspecified => MemberRole::Other,
    };
    let state = match member.state() {
        v1::MemberState::Up => MemberState::Up,
        v1::MemberState::Silent => MemberState::Silent(Duration::from_millis(member.silent_ms)),
        v1::MemberState::Unspecified => MemberState::Unknown,
    };
    let lag = member.lag_entries.zip(member.lag_ms);
    let v1::MemberView { node, name, peer_address, client_address, leads, matched_index, gets_snapshot, .. } = member;
    MemberStatus {
        node,
        name,
        peer_address,
        client_address,
        role,
        leads,
        matched_index,
        state,
        lag: lag.map(|(entries, ms)| MemberLag { entries, time: Duration::from_millis(ms) }),
        gets_snapshot,
        version: Some(member.version).filter(|version| !version.is_empty()),
        known_formats: Some((member.oldest_format, member.newest_format)).filter(|(_, newest)| *newest > 0),
    }
}
