//! The entries with which the consensus library changes the members, read without the library's own parser.
//!
//! The library writes these entries itself, in its own schema. Its parser has a known flaw on hostile input, so what comes
//! out of a log that peers have filled is read here, strictly, by the reader that everything else goes through.

use prost::Message;

use crate::error::WireError;
use crate::member::Member;
use crate::{strict, v1 as wire};

const WHAT: &str = "a change of the members";

/// What happens to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberStep {
    /// It gets a vote.
    Voter,
    /// It goes.
    Gone,
    /// It gets the log without a vote.
    Learner,
}

/// What one entry changes about the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChanges {
    /// What happens, node by node; nothing at all ends a change that took two steps.
    pub steps: Vec<(u64, MemberStep)>,
    /// Names and addresses of nodes that the steps add or keep.
    pub described: Vec<Member>,
}

/// What stands beside the steps in the library's entry: names and addresses.
pub fn encode_described(members: &[Member]) -> Vec<u8> {
    wire::MembersDescribed { members: members.iter().map(Member::to_wire).collect() }.encode_to_vec()
}

/// The changes that an entry makes.
///
/// # Errors
/// [`WireError`] if the bytes are damaged or say something that this version does not know.
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
    // The consensus library passes over node 0, and a description without a step would be one that nobody looks at.
    let stays = |node| steps.iter().any(|(stepping, step)| *stepping == node && *step != MemberStep::Gone);
    if steps.iter().any(|(node, _)| *node == 0) || !described.iter().all(|member| stays(member.node())) {
        let detail = "a step of nobody, or a description of somebody who does not come or stay".to_owned();
        return Err(WireError::Damaged { what: WHAT, detail });
    }
    Ok(MemberChanges { steps, described })
}

/// As the library declares it.
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
    use super::*;

    #[test]
    fn changes_are_read_and_nothing_is_skipped() {
        let single = |change_type, node_id| ConfChangeSingle { change_type, node_id };
        let member = |node| Member::new(node, "n", "peer:1", "client:2").unwrap();
        let changes = vec![single(0, 7), single(1, 8), single(2, 9)];
        let good = ConfChangeV2 { changes, context: encode_described(&[member(9)]), ..Default::default() };
        let steps = vec![(7, MemberStep::Voter), (8, MemberStep::Gone), (9, MemberStep::Learner)];
        let expected = MemberChanges { steps, described: vec![member(9)] };
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
        assert!(matches!(decode_member_changes(&longer), Err(WireError::Unknown { .. })), "a field that nobody knows");

        let of_nobody = ConfChangeV2 { changes: vec![single(0, 0)], ..Default::default() };
        let described_and_gone = ConfChangeV2 { context: encode_described(&[member(8)]), ..good.clone() };
        let described_alone = ConfChangeV2 { context: encode_described(&[member(1)]), ..good };
        for bad in [of_nobody, described_and_gone, described_alone] {
            assert!(matches!(decode_member_changes(&bad.encode_to_vec()), Err(WireError::Damaged { .. })), "{bad:?}");
        }
    }
}
