//! The cluster and its members.

use std::time::Duration;

use fencepost_wire::api::status::{ClusterStatus, MemberRole, MemberState, MemberStatus};
use serde_json::{Value, json};

use crate::words::node_id;

/// What a member may do, in a word.
pub fn member_role(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Voter => "voter",
        MemberRole::Learner => "learner",
        MemberRole::Leaving => "leaving",
        _ => "unknown",
    }
}

fn state(member: &MemberStatus) -> &'static str {
    match member.state {
        MemberState::Up => "up",
        MemberState::Silent(_) => "silent",
        _ => "unknown",
    }
}

/// For how long a member is silent, if it is.
pub fn silent_ms(member: &MemberStatus) -> Option<u64> {
    match member.state {
        MemberState::Silent(silent) => Some(millis(silent)),
        _ => None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The cluster, as the node sees it that answered.
pub fn cluster(status: &ClusterStatus) -> Value {
    let member = |member: &MemberStatus| {
        json!({
            "node": node_id(member.node),
            "name": member.name,
            "role": member_role(member.role),
            "leads": member.leads,
            "client_address": member.client_address,
            "peer_address": member.peer_address,
            "matched_index": member.matched_index,
            "state": state(member),
            "silent_ms": silent_ms(member),
            "lag_entries": member.lag.map(|lag| lag.entries),
            "lag_ms": member.lag.map(|lag| millis(lag.time)),
            "gets_snapshot": member.gets_snapshot,
            "version": member.version,
            "oldest_format": member.known_formats.map(|(oldest, _)| oldest),
            "newest_format": member.known_formats.map(|(_, newest)| newest),
        })
    };
    json!({
        "cluster": format!("{:032x}", status.cluster),
        "term": status.term,
        "leader": status.leader.map(node_id),
        "seen_by": node_id(status.node),
        "without_leader": status.without_leader,
        "applied_index": status.applied.index,
        "version": status.version,
        "format_version": status.format_version,
        "members": status.members.iter().map(member).collect::<Vec<Value>>(),
    })
}
