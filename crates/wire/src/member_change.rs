//! The entries with which the consensus library changes the members, read without the library's own parser.
//!
//! The library writes these entries itself, in its own schema. Its parser has a known flaw on hostile input, so what comes
//! out of a log that peers have filled is read here, strictly, by the reader that everything else goes through.

use prost::Message;

use crate::error::WireError;
use crate::strict;

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

/// The changes that an entry makes, node by node; none at all ends a change that took two steps.
///
/// # Errors
/// [`WireError`] if the bytes are damaged or say something that this version does not know.
pub fn decode_member_changes(bytes: &[u8]) -> Result<Vec<(u64, MemberStep)>, WireError> {
    const WHAT: &str = "a change of the members";
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
    entry.changes.iter().map(step).collect()
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
        let mut entry = ConfChangeV2 { changes: vec![single(0, 7), single(1, 8), single(2, 9)], ..Default::default() };
        let expected = vec![(7, MemberStep::Voter), (8, MemberStep::Gone), (9, MemberStep::Learner)];
        assert_eq!(decode_member_changes(&entry.encode_to_vec()), Ok(expected));
        assert_eq!(decode_member_changes(&[]), Ok(Vec::new()));

        entry.changes.push(single(3, 1));
        assert!(matches!(decode_member_changes(&entry.encode_to_vec()), Err(WireError::Unknown { .. })));
        let mut longer = ConfChangeV2::default().encode_to_vec();
        longer.extend([0x20, 1]);
        assert!(matches!(decode_member_changes(&longer), Err(WireError::Unknown { .. })), "a field that nobody knows");
    }
}
