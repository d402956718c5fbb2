//! Reads one generated message without skipping anything in it.
//!
//! Protobuf readers skip fields that they do not know. In a replica, that would be a command half carried out. A skipped field is
//! missing when the message is measured again, so comparing two lengths finds it. The format version comes before everything else: if
//! the node does not know it, the reader stops there.

use fencepost_core::{FormatVersion, KnownVersions};
use prost::Message;

use crate::error::WireError;

/// Decodes a message, if this version knows all of it.
///
/// # Errors
/// [`WireError`] if the bytes are damaged, or hold a field that this version does not know.
pub fn message<M: Message + Default>(what: &'static str, bytes: &[u8]) -> Result<M, WireError> {
    let message = M::decode(bytes).map_err(|error| WireError::Damaged { what, detail: error.to_string() })?;
    match message.encoded_len() == bytes.len() {
        true => Ok(message),
        false => Err(WireError::Unknown { what }),
    }
}

/// The format version with this number, if the node knows it.
pub(crate) fn format(what: &'static str, number: u32, known: KnownVersions) -> Result<FormatVersion, WireError> {
    let damaged = || WireError::Damaged { what, detail: "there is no format 0".to_owned() };
    let found = FormatVersion::new(number).ok_or_else(damaged)?;
    match known.contains(found) {
        true => Ok(found),
        false if found > known.newest() => Err(WireError::NewerFormat { what, found, known }),
        false => Err(WireError::OlderFormat { what, found, known }),
    }
}

/// The number at the start of the bytes, and the bytes after it. `None` if the number is incomplete.
pub(crate) fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    for (place, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7F);
        let shift = 7 * place as u32;
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some((number, &bytes[place + 1..]));
        }
    }
    None
}

/// The bytes of a length-delimited part, and the bytes after it. `None` if the part is incomplete.
pub(crate) fn length_delimited(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = varint(bytes)?;
    rest.split_at_checked(usize::try_from(length).ok()?)
}
