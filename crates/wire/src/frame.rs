//! Messages on a framed connection: each follows its length, in four bytes, big-endian.
//!
//! gRPC has such frames, too, with much around them that a lock does not need. This file only encodes and decodes. It does no I/O.

use prost::Message;
use prost::bytes::{Buf, BufMut, BytesMut};

use crate::error::WireError;

/// The first bytes of a client's framed connection in plain text. No HTTP connection begins with the same letter, so the first byte tells
/// the two apart. The last byte is the version.
pub const FRAME_GREETING: [u8; 4] = *b"FP/1";
/// The same for a connection between nodes. It differs, so that a node can tell a caller that it came to the wrong port.
pub const PEER_GREETING: [u8; 4] = *b"FN/1";

/// The protocol name (ALPN) of a client's framed connection in TLS.
pub const FRAME_PROTOCOL: &[u8] = b"fencepost/1";
/// The same for a connection between nodes.
pub const PEER_PROTOCOL: &[u8] = b"fencepost-peer/1";

const LENGTH_BYTES: usize = 4;

/// Appends a message with its length.
pub fn put_frame(message: &impl Message, buffer: &mut BytesMut) {
    let start = buffer.len();
    buffer.put_u32(0);
    message.encode(buffer).expect("the buffer grows as needed");
    let length = buffer.len() - start - LENGTH_BYTES;
    let length = u32::try_from(length).expect("all messages are bounded far below 4 GiB");
    buffer[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
}

/// Takes the next message off the front. `None` if it is incomplete.
///
/// # Errors
/// [`WireError`] if its length is above `bytes_max`, or the bytes are not such a message. The length is checked before anything is
/// allocated.
pub fn take_frame<M: Message + Default>(buffer: &mut BytesMut, bytes_max: usize) -> Result<Option<M>, WireError> {
    let Some(length) = buffer.first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > bytes_max {
        return Err(WireError::TooLarge { what: "a message", bytes: length as u64, bytes_max });
    }
    if buffer.len() < LENGTH_BYTES + length {
        buffer.reserve(LENGTH_BYTES + length - buffer.len());
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    let message = M::decode(buffer.split_to(length));
    message.map(Some).map_err(|error| WireError::Damaged { what: "a message", detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{ClientMessage, StreamBegin};

    fn begin(client: &str) -> ClientMessage {
        let begin = StreamBegin { client: client.to_owned(), efficiency: true };
        ClientMessage { begin: Some(begin), ..ClientMessage::default() }
    }

    #[test]
    fn messages_are_read_back_however_the_bytes_are_split() {
        let mut sent = BytesMut::new();
        let messages = [begin("a"), ClientMessage::default(), begin(&"b".repeat(300))];
        messages.iter().for_each(|message| put_frame(message, &mut sent));
        for piece in 1..sent.len() {
            let (mut buffer, mut came) = (BytesMut::new(), Vec::<ClientMessage>::new());
            for bytes in sent.chunks(piece) {
                buffer.extend_from_slice(bytes);
                while let Some(message) = take_frame(&mut buffer, 1_000).unwrap() {
                    came.push(message);
                }
            }
            assert_eq!(came, messages, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_length_above_its_bound_and_random_bytes_are_refused() {
        let mut long = BytesMut::from(&[0, 0, 1, 0][..]);
        let refused = take_frame::<ClientMessage>(&mut long, 255).unwrap_err();
        assert_eq!(refused, WireError::TooLarge { what: "a message", bytes: 256, bytes_max: 255 });
        let mut noise = BytesMut::from(&[0, 0, 0, 2, 0xff, 0xff][..]);
        assert!(matches!(take_frame::<ClientMessage>(&mut noise, 255), Err(WireError::Damaged { .. })));
    }
}
