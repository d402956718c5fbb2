//! Reads the entries with which the consensus library changes the members, without the library's own parser.
//!
//! The library writes these entries itself, in its own schema. Its parser has a known flaw on hostile input, and the bytes come from
//! peers. So they are read here, strictly, like all other entries.

use prost::Message;

use crate::cause::Cause;
use crate::error::WireError;
use crate::member::Member;
use crate::{strict, v1 as wire};

const WHAT: &str = "a change of the members";

/// What happens to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberStep {
    /// It becomes a voter.
    Voter,
    /// It is removed.
    Gone,
    /// It becomes a learner: it gets the log and has no vote.
    Learner,
}

/// What one entry changes about the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChanges {
    /// What happens to each node. An empty list ends a change in two steps.
    pub steps: Vec<(u64, MemberStep)>,
    /// Names and addresses of nodes that the steps add or keep.
    pub described: Vec<Member>,
    /// Who ordered the change, and why. `None` in the entry with which consensus ends a change in two steps.
    pub cause: Option<Cause>,
}

/// The bytes that the library's entry carries beside the steps: names and addresses, and the cause.
pub fn encode_beside(members: &[Member], cause: &Cause) -> Vec<u8> {
    let (members, cause) = (members.iter().map(Member::to_wire).collect(), Some(cause.to_wire()));
    wire::MembersDescribed { members, cause }.encode_to_vec()
}

/// Reads the changes in an entry.
///
/// # Errors
/// [`WireError`] if the bytes are damaged or hold something that this version does not know.
pub fn decode_member_changes(bytes: &[u8]) -> Result<MemberChanges, WireError> {
    let entry: ConfChangeV2 = strict::message(WHAT, bytes)?;
    if entry.transition != 0 {
        return Err(WireError::Unknown { what: WHAT });
    }
    let step = |change: &ConfChangeSingle| match change.change_type {
        0 => Ok((change.node_id, MemberStep::Voter)),
        1 => Ok((change.node_id, MemberStep::Gone)),
        2 => Ok((change.node_id, MemberStep::Learner)),
        _ => Err(WireError::Unknown { what: WHAT }),
    };
    let steps = entry.changes.iter().map(step).collect::<Result<Vec<_>, _>>()?;
    let beside: wire::MembersDescribed = strict::message(WHAT, &entry.context)?;
    let described = beside.members.iter().map(|member| Member::from_wire(WHAT, member));
    let described = described.collect::<Result<Vec<_>, _>>()?;
    // The consensus library skips node 0. A description without a step would be ignored.
    let stays = |node| steps.iter().any(|(stepping, step)| *stepping == node && *step != MemberStep::Gone);
    if steps.iter().any(|(node, _)| *node == 0) || !described.iter().all(|member| stays(member.node())) {
        let detail = "a step for node 0, or a description of a node that is not added or kept".to_owned();
        return Err(WireError::Damaged { what: WHAT, detail });
    }
    let cause = beside.cause.as_ref().map(Cause::from_wire).transpose()?;
    Ok(MemberChanges { steps, described, cause })
}

/// As the library's schema declares it.
#[derive(Clone, PartialEq, Message)]
struct ConfChangeV2 {
    #[prost(int32, tag = "1")]
    transition: i32,
    #[prost(message, repeated, tag = "2")]
    changes: Vec<ConfChangeSingle>,
    #[prost(bytes = "vec", tag = "3")]
    context: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfChangeSingle {
    #[prost(int32, tag = "1")]
    change_type: i32,
    #[prost(uint64, tag = "2")]
    node_id: u64,
}

#[cfg(test)]
mod tests {
    use fencepost_core::{Principal, Reason};

    use super::*;

    #[test]
    fn changes_are_read_and_nothing_is_skipped() {
        let single = |change_type, node_id| ConfChangeSingle { change_type, node_id };
        let member = |node| Member::new(node, "n", "peer:1", "client:2").unwrap();
        let changes = vec![single(0, 7), single(1, 8), single(2, 9)];
        let cause = || Cause {
            by: Principal::new("unverified ann@db-1").unwrap(),
            reason: Reason::new("a larger disk").unwrap(),
        };
        let beside = |node| encode_beside(&[member(node)], &cause());
        let good = ConfChangeV2 { changes, context: beside(9), ..Default::default() };
        let steps = vec![(7, MemberStep::Voter), (8, MemberStep::Gone), (9, MemberStep::Learner)];
        let expected = MemberChanges { steps, described: vec![member(9)], cause: Some(cause()) };
        assert_eq!(decode_member_changes(&good.encode_to_vec()), Ok(expected));
        assert_eq!(decode_member_changes(&[]), Ok(MemberChanges::default()));

        let mut unknown_step = good.clone();
        unknown_step.changes.push(single(3, 1));
        let mut unknown_beside = good.clone();
        unknown_beside.context.extend([0x20, 1]);
        for bad in [unknown_step, unknown_beside] {
            assert!(matches!(decode_member_changes(&bad.encode_to_vec()), Err(WireError::Unknown { .. })), "{bad:?}");
        }
        let mut longer = ConfChangeV2::default().encode_to_vec();
        longer.extend([0x20, 1]);
        assert!(matches!(decode_member_changes(&longer), Err(WireError::Unknown { .. })), "an unknown field");

        let of_node_zero = ConfChangeV2 { changes: vec![single(0, 0)], ..Default::default() };
        let described_and_gone = ConfChangeV2 { context: beside(8), ..good.clone() };
        let described_alone = ConfChangeV2 { context: beside(1), ..good };
        for bad in [of_node_zero, described_and_gone, described_alone] {
            assert!(matches!(decode_member_changes(&bad.encode_to_vec()), Err(WireError::Damaged { .. })), "{bad:?}");
        }
    }
}
