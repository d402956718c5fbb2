//! What the made-up version adds to the formats: one operation and one record, for the tests of upgrades.
//!
//! Neither the schema in `proto/` nor a build without the feature `made-up-version` has them. A node of such a build must refuse
//! these bytes as unknown.

use fencepost_core::{FormatVersion, LogicalMs, Operation, Reason, Record, RemarkRecord};
use prost::Message;

use crate::strict;

/// The added operation, which has no `since_ms`, or the added record, which has both fields. No message of the schema uses these field
/// numbers, so a build without the feature refuses the bytes as unknown.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Remark {
    #[prost(string, optional, tag = "1000")]
    text: Option<String>,
    #[prost(uint64, optional, tag = "1001")]
    since_ms: Option<u64>,
}

/// An operation of the made-up version as a message. `None` for other operations.
pub(crate) fn operation_to_wire(operation: &Operation) -> Option<Remark> {
    match operation {
        Operation::MadeUp(text) => Some(Remark { text: Some(text.as_str().to_owned()), since_ms: None }),
        _ => None,
    }
}

/// A record of the made-up version as a message. `None` for other records.
pub(crate) fn record_to_wire(record: &Record) -> Option<Remark> {
    match record {
        Record::Remark(RemarkRecord { text, since }) => {
            Some(Remark { text: Some(text.as_str().to_owned()), since_ms: Some(since.0) })
        }
        _ => None,
    }
}

/// Reads an operation of the made-up version. `None` if the bytes hold none.
pub(crate) fn operation(version: FormatVersion, bytes: &[u8]) -> Option<Operation> {
    match read(version, bytes)? {
        (text, None) => Some(Operation::MadeUp(text)),
        _ => None,
    }
}

/// Reads a record of the made-up version. `None` if the bytes hold none.
pub(crate) fn record(version: FormatVersion, bytes: &[u8]) -> Option<Record> {
    match read(version, bytes)? {
        (text, Some(since)) => Some(Record::Remark(RemarkRecord { text, since: LogicalMs(since) })),
        _ => None,
    }
}

fn read(version: FormatVersion, bytes: &[u8]) -> Option<(Reason, Option<u64>)> {
    let Remark { text, since_ms } =
        strict::message("a remark", bytes).ok().filter(|_| version >= FormatVersion::MADE_UP)?;
    Some((Reason::new(&text?).ok()?, since_ms))
}

#[cfg(test)]
mod tests {
    use fencepost_core::{Batch, KnownVersions};

    use super::*;
    use crate::{Entry, WireError, decode, encode};

    fn entry(version: FormatVersion) -> Entry {
        let operations = vec![Operation::MadeUp(Reason::new("").unwrap())];
        Entry { version, batch: Batch { operations, ..Batch::default() }, ..Entry::default() }
    }

    #[test]
    fn an_operation_of_the_made_up_version_is_read_only_in_it() {
        let bytes = encode(&entry(FormatVersion::MADE_UP));
        assert_eq!(decode(&bytes, KnownVersions::WITH_MADE_UP), Ok(entry(FormatVersion::MADE_UP)));
        assert!(matches!(decode(&bytes, KnownVersions::THIS_BUILD), Err(WireError::NewerFormat { .. })));
        let mut claims_the_first = bytes;
        claims_the_first[1] = 1;
        let unknown = Err(WireError::Unknown { what: "an operation" });
        assert_eq!(decode(&claims_the_first, KnownVersions::WITH_MADE_UP), unknown);
    }

    #[test]
    #[should_panic(expected = "an operation that version 1 does not have")]
    fn an_operation_of_the_made_up_version_is_never_written_in_the_first() {
        encode(&entry(FormatVersion::FIRST));
    }
}
