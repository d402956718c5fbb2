//! One log entry as bytes and back: the message `LogEntry` of `proto/fencepost/v1/log.proto`.
//!
//! Renewals and operations are written and read one at a time. So a batch is in memory once as the core's types and once as bytes, and
//! never as generated types in between. The bytes have no checksum of their own: the log engine has one for every record, and the
//! transport for every message.

use fencepost_core::{Batch, FormatVersion, KnownVersions, LogicalMs, Operation};
use prost::Message;

use crate::bounds::ENTRY_BYTES_MAX;
use crate::cause::Transfer;
use crate::error::WireError;
use crate::v1 as wire;
use crate::{from_wire, strict, to_wire};

/// One log entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The format of the entry: the active version of the leader's state.
    /// Invariant: no operation in the batch needs a newer version.
    pub version: FormatVersion,
    /// The term in which the leader stamped it. An entry that is committed in another term changes nothing.
    pub term: u64,
    /// Logical time.
    pub stamp: LogicalMs,
    /// The leader's wall clock in milliseconds since 1970, for people who read the log. It decides nothing.
    pub wall_clock_ms: Option<u64>,
    /// The commands.
    pub batch: Batch,
    /// The hash of the leader's state at an earlier entry. Replicas compare it with their own.
    pub proof: Option<StateProof>,
    /// The leadership transfer that this entry begins, for people who read the log. It decides nothing.
    pub transfer: Option<Transfer>,
}

/// The hash of the state at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateProof {
    /// The index of the entry.
    pub index: u64,
    /// The hash of the state after it.
    pub state_hash: u64,
}

/// The keys of the fields of `LogEntry`: the number, shifted by three, and the wire type (0 a number, 2 bytes).
const KEY_FORMAT_VERSION: u64 = 1 << 3;
const KEY_TERM: u64 = 2 << 3;
const KEY_STAMP_MS: u64 = 3 << 3;
const KEY_WALL_CLOCK_MS: u64 = 4 << 3;
const KEY_FAILOVER_GRACE: u64 = 5 << 3;
const KEY_RENEWALS: u64 = 6 << 3 | 2;
const KEY_OPERATIONS: u64 = 7 << 3 | 2;
const KEY_PROOF: u64 = 8 << 3 | 2;
const KEY_RAISE_TO: u64 = 9 << 3;
const KEY_TRANSFER: u64 = 10 << 3 | 2;

/// The bytes of an entry.
///
/// # Panics
/// As [`encode_into`] does.
pub fn encode(entry: &Entry) -> Vec<u8> {
    // About the size of an acquire of a short name. With longer commands the buffer grows a few times.
    let mut bytes = Vec::with_capacity(32 + 32 * entry.batch.renewals.len() + 80 * entry.batch.operations.len());
    encode_into(entry, &mut bytes);
    bytes
}

/// Appends the bytes of an entry.
///
/// # Panics
/// If the entry is longer than [`ENTRY_BYTES_MAX`], or an operation needs a newer version than the entry's. In the log, no replica could
/// read such an entry, and none could continue without it. A leader ends a batch long before, and refuses such an operation.
pub fn encode_into(entry: &Entry, bytes: &mut Vec<u8>) {
    let before = bytes.len();
    let Entry { version, term, stamp, wall_clock_ms, batch, proof, transfer } = entry;
    let Batch { raise_to, failover_grace, renewals, operations } = batch;
    let head = wire::LogEntry {
        format_version: version.get(),
        term: *term,
        stamp_ms: stamp.0,
        wall_clock_ms: *wall_clock_ms,
        failover_grace: *failover_grace,
        renewals: Vec::new(),
        operations: Vec::new(),
        proof: None,
        raise_to: None,
        transfer: None,
    };
    // A message is a sequence of fields, so the lists may follow the other fields.
    append(&head, bytes);
    for renewal in renewals {
        bytes.push(KEY_RENEWALS as u8);
        append_with_length(&to_wire::renewal(renewal), bytes);
    }
    for operation in operations {
        assert!(operation.needs() <= *version, "an operation that version {version} does not have: {operation:?}");
        bytes.push(KEY_OPERATIONS as u8);
        append_operation(operation, bytes);
    }
    if let Some(StateProof { index, state_hash }) = *proof {
        bytes.push(KEY_PROOF as u8);
        append_with_length(&wire::StateProof { index, state_hash }, bytes);
    }
    if let Some(raise_to) = raise_to {
        bytes.push(KEY_RAISE_TO as u8);
        prost::encoding::encode_varint(u64::from(raise_to.get()), bytes);
    }
    if let Some(transfer) = transfer {
        bytes.push(KEY_TRANSFER as u8);
        append_with_length(&transfer.to_wire(), bytes);
    }
    let length = bytes.len() - before;
    assert!(length <= ENTRY_BYTES_MAX, "an entry of {length} bytes: no replica can read more than {ENTRY_BYTES_MAX}");
}

/// Decodes an entry.
///
/// Raft writes an entry without bytes at the beginning of each term. The caller must skip it: it is not a lock entry.
///
/// # Errors
/// [`WireError`] if the node does not know the entry's format, the entry holds something that its format does not have, or it is
/// damaged. A node must not continue without the entry.
pub fn decode(bytes: &[u8], known: KnownVersions) -> Result<Entry, WireError> {
    if bytes.len() > ENTRY_BYTES_MAX {
        let (what, bytes) = ("a log entry", bytes.len() as u64);
        return Err(WireError::TooLarge { what, bytes, bytes_max: ENTRY_BYTES_MAX });
    }
    let (version, mut rest) = version_checked(bytes, known)?;
    let mut entry = Entry { version, ..Entry::default() };
    // Field numbers must rise, so no field can appear twice and overwrite the first value.
    let mut last_key = KEY_FORMAT_VERSION;
    while !rest.is_empty() {
        let key = number(&mut rest)?;
        let in_order = key > last_key || (key == last_key && matches!(key, KEY_RENEWALS | KEY_OPERATIONS));
        if !in_order {
            return Err(damaged("a field appears twice or out of order"));
        }
        last_key = key;
        match key {
            KEY_TERM => entry.term = number(&mut rest)?,
            KEY_STAMP_MS => entry.stamp = LogicalMs(number(&mut rest)?),
            KEY_WALL_CLOCK_MS => entry.wall_clock_ms = Some(number(&mut rest)?),
            KEY_FAILOVER_GRACE if number(&mut rest)? == 1 => entry.batch.failover_grace = true,
            KEY_FAILOVER_GRACE => return Err(damaged("a flag is present and not set")),
            KEY_RENEWALS => {
                let renewal = strict::message::<wire::Renewal>("a renewal", part(&mut rest)?)?;
                entry.batch.renewals.push(from_wire::renewal(renewal)?);
            }
            KEY_OPERATIONS => {
                entry.batch.operations.push(read_operation(version, part(&mut rest)?)?);
            }
            KEY_PROOF => {
                let proof = strict::message::<wire::StateProof>("a proof of the state", part(&mut rest)?)?;
                entry.proof = Some(StateProof { index: proof.index, state_hash: proof.state_hash });
            }
            KEY_RAISE_TO => {
                let version = u32::try_from(number(&mut rest)?).ok().and_then(FormatVersion::new);
                entry.batch.raise_to = Some(version.ok_or_else(|| damaged("an impossible format version"))?);
            }
            KEY_TRANSFER => {
                let transfer = strict::message::<wire::Transfer>("a leadership transfer", part(&mut rest)?)?;
                entry.transfer = Some(Transfer::from_wire(&transfer)?);
            }
            _ => return Err(WireError::Unknown { what: "a field of a log entry" }),
        }
    }
    Ok(entry)
}

/// The format version, if the node knows it, and the bytes after it. The version comes first, in every format.
fn version_checked(bytes: &[u8], known: KnownVersions) -> Result<(FormatVersion, &[u8]), WireError> {
    let mut rest = bytes;
    if number(&mut rest)? != KEY_FORMAT_VERSION {
        return Err(damaged("it does not begin with its format version"));
    }
    let found = u32::try_from(number(&mut rest)?).map_err(|_| damaged("an impossible format version"))?;
    Ok((strict::format("a log entry", found, known)?, rest))
}

#[cfg_attr(not(feature = "made-up-version"), allow(unused_variables, reason = "one version has all operations"))]
fn read_operation(version: FormatVersion, bytes: &[u8]) -> Result<Operation, WireError> {
    #[cfg(feature = "made-up-version")]
    if let Some(operation) = crate::made_up::operation(version, bytes) {
        return Ok(operation);
    }
    from_wire::operation(strict::message::<wire::Operation>("an operation", bytes)?)
}

fn append_operation(operation: &Operation, bytes: &mut Vec<u8>) {
    #[cfg(feature = "made-up-version")]
    if let Some(operation) = crate::made_up::operation_to_wire(operation) {
        return append_with_length(&operation, bytes);
    }
    append_with_length(&to_wire::operation(operation), bytes);
}

fn number(rest: &mut &[u8]) -> Result<u64, WireError> {
    let (number, behind) = strict::varint(rest).ok_or_else(|| damaged("a number is incomplete"))?;
    *rest = behind;
    Ok(number)
}

fn part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WireError> {
    let (part, behind) =
        strict::length_delimited(rest).ok_or_else(|| damaged("a part is longer than the remaining bytes"))?;
    *rest = behind;
    Ok(part)
}

fn damaged(detail: &str) -> WireError {
    WireError::Damaged { what: "a log entry", detail: detail.to_owned() }
}

fn append(message: &impl Message, bytes: &mut Vec<u8>) {
    message.encode(bytes).expect("a Vec grows as needed");
}

fn append_with_length(message: &impl Message, bytes: &mut Vec<u8>) {
    message.encode_length_delimited(bytes).expect("a Vec grows as needed");
}

#[cfg(test)]
mod tests {
    use fencepost_core::{
        Action, Epoch, GrantId, Operation, Principal, Reason, Renewal, Request, RequestNumber, Seen, SessionId,
    };

    use super::*;
    use crate::cause::Cause;

    fn decode(bytes: &[u8]) -> Result<Entry, WireError> {
        super::decode(bytes, KnownVersions::THIS_BUILD)
    }

    fn entry() -> Entry {
        let seen = Seen { mark: 3, ranges: [(5, 6)].into_iter().collect() };
        let session = SessionId(1 << 100 | 7);
        let request = |number, action| {
            let (epoch, number, seen) = (Epoch(1), RequestNumber(number), seen.clone());
            Operation::Request(Request { session, epoch, number, seen, action })
        };
        let renewals = vec![Renewal::KeepAlive { session, epoch: Epoch(1), seen: seen.clone() }];
        let operations =
            vec![request(7, Action::Release { grant: GrantId(300), report: None }), request(8, Action::Close)];
        Entry {
            version: FormatVersion::FIRST,
            term: 9,
            stamp: LogicalMs(123_456),
            wall_clock_ms: Some(1_700_000_000_000),
            batch: Batch { raise_to: FormatVersion::new(300), failover_grace: true, renewals, operations },
            proof: Some(StateProof { index: 640, state_hash: u64::MAX }),
            transfer: Some(Transfer {
                to: 3,
                cause: Cause { by: Principal::new("n1").unwrap(), reason: Reason::new("").unwrap() },
            }),
        }
    }

    #[test]
    fn an_entry_is_the_message_of_the_schema() {
        let bytes = encode(&entry());
        let message = wire::LogEntry::decode(bytes.as_slice()).unwrap();
        assert_eq!((message.format_version, message.term, message.stamp_ms), (1, 9, 123_456));
        assert_eq!((message.wall_clock_ms, message.failover_grace), (Some(1_700_000_000_000), true));
        assert_eq!((message.renewals.len(), message.operations.len(), message.raise_to), (1, 2, Some(300)));
        assert_eq!(message.transfer.as_ref().map(|transfer| transfer.to), Some(3));
        assert_eq!(message.encode_to_vec(), bytes);
        assert_eq!(decode(&bytes), Ok(entry()));
    }

    #[test]
    fn an_unknown_format_is_refused_before_anything_else_is_read() {
        let version = |number| FormatVersion::new(number).unwrap();
        let known = KnownVersions::new(version(3), version(4)).unwrap();
        for (number, advice) in [(2, "older release that knows 2"), (3, ""), (4, ""), (5, "upgrade this node")] {
            let mut bytes = encode(&entry());
            bytes[1] = number;
            assert_eq!(super::decode(&bytes, known).is_ok(), advice.is_empty(), "format {number}");
            bytes.truncate(4);
            let text = super::decode(&bytes, known).map_or_else(|error| error.to_string(), |_| String::new());
            assert!(text.contains(advice), "{text}");
        }
        let (what, found, known) = ("a log entry", version(2), KnownVersions::THIS_BUILD);
        let mut bytes = encode(&entry());
        bytes[1] = 2;
        assert_eq!(decode(&bytes), Err(WireError::NewerFormat { what, found, known }));
    }

    #[test]
    fn an_unknown_field_or_operation_is_never_skipped() {
        let unknown_field = |bytes: &mut Vec<u8>| bytes.extend([15 << 3, 1]);
        let mut bytes = encode(&entry());
        unknown_field(&mut bytes);
        assert_eq!(decode(&bytes), Err(WireError::Unknown { what: "a field of a log entry" }));

        let mut operation = to_wire::operation(&entry().batch.operations[0]).encode_to_vec();
        let with_operation = |operation: &[u8]| {
            let mut bytes = encode(&Entry { batch: Batch::default(), proof: None, transfer: None, ..entry() });
            bytes.extend([KEY_OPERATIONS as u8, operation.len() as u8]);
            bytes.extend(operation);
            bytes
        };
        assert!(decode(&with_operation(&operation)).is_ok());
        unknown_field(&mut operation);
        assert_eq!(decode(&with_operation(&operation)), Err(WireError::Unknown { what: "an operation" }));
        assert_eq!(decode(&with_operation(&[])), Err(WireError::Unknown { what: "an operation" }));
    }

    #[test]
    #[should_panic(expected = "no replica can read more than")]
    fn an_entry_that_no_replica_could_read_is_never_written() {
        let operation = entry().batch.operations.swap_remove(0);
        let operations = vec![operation; ENTRY_BYTES_MAX / 30];
        encode(&Entry { batch: Batch { operations, ..Batch::default() }, ..Entry::default() });
    }

    #[test]
    fn fields_that_are_out_of_order_or_repeated_are_damage() {
        let head = [KEY_FORMAT_VERSION as u8, 1];
        for fields in [[KEY_TERM as u8, 1, KEY_TERM as u8, 2], [KEY_STAMP_MS as u8, 1, KEY_TERM as u8, 2]] {
            let bytes = [head.as_slice(), &fields].concat();
            assert!(matches!(decode(&bytes), Err(WireError::Damaged { .. })), "{fields:?}");
        }
        for bytes in [&[][..], &[0], &[KEY_TERM as u8, 1], &[KEY_FORMAT_VERSION as u8, 0]] {
            assert!(matches!(decode(bytes), Err(WireError::Damaged { .. })), "{bytes:?}");
        }
    }
}
