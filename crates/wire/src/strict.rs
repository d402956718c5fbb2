//! Reading one generated message so that nothing in it is skipped.
//!
//! Protobuf readers pass over fields that they do not know. For a replica that would be a command half carried out. What is
//! passed over is missing when the message is measured again, so comparing two lengths finds it. And the format version that stands
//! before everything else is one that the node knows, or nothing behind it is read.

use fencepost_core::{FormatVersion, KnownVersions};
use prost::Message;

use crate::error::WireError;

/// The message that these bytes are, if this version knows all of it.
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

/// The number that these bytes begin with, and the bytes behind it. None if there is no whole one.
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

/// A number, and so many bytes as it says, and the bytes behind them. None if they are not all there.
pub(crate) fn length_delimited(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = varint(bytes)?;
    rest.split_at_checked(usize::try_from(length).ok()?)
}
