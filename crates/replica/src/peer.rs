//! Messages between nodes as bytes and back, field by field.
//!
//! The consensus library's own parser never sees the bytes of a peer: it has a known flaw on hostile input. Some kinds of message
//! are not for peers: a proposal, and the messages that the library sends to itself. They have no encoding here, so they can be
//! neither written nor read.

use fencepost_wire::bounds::PEER_MESSAGE_BYTES_MAX;
use fencepost_wire::{WireError, read_strictly, v1 as wire};
use prost::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

const WHAT: &str = "a message of a peer";

/// A message of consensus, and the group that it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerMessage {
    /// The sender's cluster.
    pub cluster: u128,
    /// The group in it.
    pub group: u64,
    /// The message. The bytes of a snapshot travel beside it.
    pub message: Message,
}

/// The bytes of a message to a peer.
///
/// # Errors
/// [`WireError::Unknown`] if its kind is not for peers.
// Rule: one-proposer
pub fn encode_peer(peer_message: &PeerMessage) -> Result<Vec<u8>, WireError> {
    let PeerMessage { cluster, group, message } = peer_message;
    let snapshot = (!message.get_snapshot().is_empty()).then(|| to_snapshot(message.get_snapshot()));
    Ok(wire::PeerMessage {
        cluster_high: (cluster >> 64) as u64,
        cluster_low: *cluster as u64,
        group: *group,
        kind: to_kind(message.msg_type)? as i32,
        from: message.from,
        to: message.to,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.iter().map(to_entry).collect::<Result<_, _>>()?,
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot,
        request_snapshot: message.request_snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context.to_vec(),
        priority: message.priority,
    }
    .encode_to_vec())
}

/// Reads a message of a peer.
///
/// # Errors
/// [`WireError`] if the bytes are damaged, too long, or hold something that this version does not know.
pub fn decode_peer(bytes: &[u8]) -> Result<PeerMessage, WireError> {
    if bytes.len() > PEER_MESSAGE_BYTES_MAX {
        let (bytes, bytes_max) = (bytes.len() as u64, PEER_MESSAGE_BYTES_MAX);
        return Err(WireError::TooLarge { what: WHAT, bytes, bytes_max });
    }
    let peer: wire::PeerMessage = read_strictly(WHAT, bytes)?;
    let mut message = Message {
        msg_type: from_kind(peer.kind)?,
        from: peer.from,
        to: peer.to,
        term: peer.term,
        log_term: peer.log_term,
        index: peer.index,
        entries: peer.entries.into_iter().map(from_entry).collect::<Result<Vec<_>, _>>()?.into(),
        commit: peer.commit,
        commit_term: peer.commit_term,
        request_snapshot: peer.request_snapshot,
        reject: peer.reject,
        reject_hint: peer.reject_hint,
        context: peer.context.into(),
        priority: peer.priority,
        ..Message::default()
    };
    if let Some(snapshot) = peer.snapshot {
        message.set_snapshot(from_snapshot(snapshot));
    }
    let cluster = u128::from(peer.cluster_high) << 64 | u128::from(peer.cluster_low);
    Ok(PeerMessage { cluster, group: peer.group, message })
}

fn to_kind(kind: MessageType) -> Result<wire::PeerMessageKind, WireError> {
    use wire::PeerMessageKind as Kind;
    Ok(match kind {
        MessageType::MsgAppend => Kind::Append,
        MessageType::MsgAppendResponse => Kind::AppendResponse,
        MessageType::MsgRequestVote => Kind::RequestVote,
        MessageType::MsgRequestVoteResponse => Kind::RequestVoteResponse,
        MessageType::MsgSnapshot => Kind::Snapshot,
        MessageType::MsgHeartbeat => Kind::Heartbeat,
        MessageType::MsgHeartbeatResponse => Kind::HeartbeatResponse,
        MessageType::MsgTransferLeader => Kind::TransferLeader,
        MessageType::MsgTimeoutNow => Kind::TimeoutNow,
        MessageType::MsgReadIndex => Kind::ReadIndex,
        MessageType::MsgReadIndexResp => Kind::ReadIndexResponse,
        MessageType::MsgRequestPreVote => Kind::RequestPreVote,
        MessageType::MsgRequestPreVoteResponse => Kind::RequestPreVoteResponse,
        MessageType::MsgPropose
        | MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum => return Err(WireError::Unknown { what: WHAT }),
    })
}

fn from_kind(kind: i32) -> Result<MessageType, WireError> {
    use wire::PeerMessageKind as Kind;
    Ok(match Kind::try_from(kind) {
        Ok(Kind::Append) => MessageType::MsgAppend,
        Ok(Kind::AppendResponse) => MessageType::MsgAppendResponse,
        Ok(Kind::RequestVote) => MessageType::MsgRequestVote,
        Ok(Kind::RequestVoteResponse) => MessageType::MsgRequestVoteResponse,
        Ok(Kind::Snapshot) => MessageType::MsgSnapshot,
        Ok(Kind::Heartbeat) => MessageType::MsgHeartbeat,
        Ok(Kind::HeartbeatResponse) => MessageType::MsgHeartbeatResponse,
        Ok(Kind::TransferLeader) => MessageType::MsgTransferLeader,
        Ok(Kind::TimeoutNow) => MessageType::MsgTimeoutNow,
        Ok(Kind::ReadIndex) => MessageType::MsgReadIndex,
        Ok(Kind::ReadIndexResponse) => MessageType::MsgReadIndexResp,
        Ok(Kind::RequestPreVote) => MessageType::MsgRequestPreVote,
        Ok(Kind::RequestPreVoteResponse) => MessageType::MsgRequestPreVoteResponse,
        Ok(Kind::Unspecified) | Err(_) => return Err(WireError::Unknown { what: WHAT }),
    })
}

fn to_entry(entry: &Entry) -> Result<wire::PeerEntry, WireError> {
    let kind = match entry.entry_type {
        EntryType::EntryNormal => wire::PeerEntryKind::Locks,
        EntryType::EntryConfChangeV2 => wire::PeerEntryKind::Members,
        // The library's older form. A replica never writes it.
        EntryType::EntryConfChange => return Err(WireError::Unknown { what: WHAT }),
    };
    Ok(wire::PeerEntry { kind: kind as i32, term: entry.term, index: entry.index, data: entry.data.to_vec() })
}

fn from_entry(entry: wire::PeerEntry) -> Result<Entry, WireError> {
    let entry_type = match wire::PeerEntryKind::try_from(entry.kind) {
        Ok(wire::PeerEntryKind::Locks) => EntryType::EntryNormal,
        Ok(wire::PeerEntryKind::Members) => EntryType::EntryConfChangeV2,
        Ok(wire::PeerEntryKind::Unspecified) | Err(_) => return Err(WireError::Unknown { what: WHAT }),
    };
    let (term, index, data) = (entry.term, entry.index, entry.data.into());
    Ok(Entry { entry_type, term, index, data, ..Entry::default() })
}

/// Only the position: the members are in the snapshot's own bytes.
fn to_snapshot(snapshot: &Snapshot) -> wire::PeerSnapshot {
    let metadata = snapshot.get_metadata();
    wire::PeerSnapshot { index: metadata.index, term: metadata.term }
}

fn from_snapshot(peer: wire::PeerSnapshot) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = peer.index;
    metadata.term = peer.term;
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with every field set, of every kind in turn.
    fn messages() -> impl Iterator<Item = PeerMessage> {
        (1..=13).map(|kind| {
            let entry = |entry_type, index| Entry {
                entry_type,
                term: 7,
                index,
                data: vec![kind as u8; 300].into(),
                ..Entry::default()
            };
            let mut message = Message {
                msg_type: from_kind(kind).unwrap(),
                from: 1,
                to: 2,
                term: 3,
                log_term: 4,
                index: u64::MAX,
                entries: vec![entry(EntryType::EntryNormal, 8), entry(EntryType::EntryConfChangeV2, 9)].into(),
                commit: 5,
                commit_term: 6,
                request_snapshot: 7,
                reject: true,
                reject_hint: 8,
                context: vec![1, 2, 3].into(),
                priority: -9,
                ..Message::default()
            };
            let metadata = message.mut_snapshot().mut_metadata();
            (metadata.index, metadata.term) = (10, 11);
            PeerMessage { cluster: u128::MAX - 5, group: 12, message }
        })
    }

    #[test]
    fn every_kind_of_message_survives_a_round_trip() {
        for message in messages() {
            let bytes = encode_peer(&message).unwrap();
            assert_eq!(decode_peer(&bytes), Ok(message));
        }
        let empty = PeerMessage {
            cluster: 0,
            group: 0,
            message: Message { msg_type: MessageType::MsgHeartbeat, ..Message::default() },
        };
        assert_eq!(decode_peer(&encode_peer(&empty).unwrap()), Ok(empty));
    }

    #[test]
    fn a_proposal_and_the_messages_of_the_library_to_itself_have_no_encoding() {
        for msg_type in [MessageType::MsgPropose, MessageType::MsgHup, MessageType::MsgCheckQuorum] {
            let message = Message { msg_type, ..Message::default() };
            assert!(encode_peer(&PeerMessage { cluster: 1, group: 1, message }).is_err());
        }
        for kind in [0, 14, -1, i32::MAX] {
            let bytes = wire::PeerMessage { kind, ..Default::default() }.encode_to_vec();
            assert_eq!(decode_peer(&bytes), Err(WireError::Unknown { what: WHAT }), "kind {kind}");
        }
    }

    #[test]
    fn hostile_bytes_are_an_error_and_never_a_panic() {
        let mut random = 1_u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let good: Vec<Vec<u8>> = messages().map(|message| encode_peer(&message).unwrap()).collect();
        let mut refused = 0;
        for _ in 0..50_000 {
            let mut bytes = good[draw(good.len())].clone();
            for _ in 0..=draw(4) {
                let at = draw(bytes.len());
                match draw(3) {
                    0 => bytes[at] = draw(256) as u8,
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, draw(256) as u8),
                }
            }
            refused += u32::from(decode_peer(&bytes).is_err());
        }
        assert!(refused > 10_000, "most damage is found: {refused}");
        let too_long = vec![0; PEER_MESSAGE_BYTES_MAX + 1];
        assert!(matches!(decode_peer(&too_long), Err(WireError::TooLarge { .. })));
    }
}
