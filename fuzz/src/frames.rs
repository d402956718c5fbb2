//! A connection's bytes as frames. The server's and the client's codecs call the same two functions and add nothing.
//!
//! Input: one byte that says how the connection cuts the bytes, then the bytes.

use fencepost_session::bounds::CLIENT_MESSAGE_BYTES_MAX;
use fencepost_wire::v1::ClientMessage;
use fencepost_wire::{WireError, put_frame, take_frame};
use prost::bytes::BytesMut;

/// The messages are the same however the bytes are cut, the buffer stays bounded, and each message survives being written again.
pub fn check(input: &[u8]) {
    let Some((cut, bytes)) = input.split_first() else { return };
    let (messages, error) = read(bytes, bytes.len().max(1));
    let in_pieces = read(bytes, usize::from(*cut) + 1);
    assert_eq!(in_pieces, (messages.clone(), error.clone()), "the cuts of a connection change nothing");

    let mut written = BytesMut::new();
    messages.iter().for_each(|message| put_frame(message, &mut written));
    assert_eq!(read(&written, usize::MAX), (messages, None), "written again, each message is the same");

    if let Some(error) = error {
        assert!(!error.for_caller().is_empty(), "the sender is told what is wrong");
    }
}

/// The messages in these bytes, and what was wrong with the next one.
fn read(bytes: &[u8], piece_bytes: usize) -> (Vec<ClientMessage>, Option<WireError>) {
    let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        buffer.extend_from_slice(piece);
        loop {
            match take_frame(&mut buffer, CLIENT_MESSAGE_BYTES_MAX) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
        // A buffer grows by doubling, so it may have twice what the largest message needs.
        let bytes_max = 2 * (CLIENT_MESSAGE_BYTES_MAX + bytes.len()) + 64;
        assert!(buffer.capacity() <= bytes_max, "a length that was only claimed is not believed");
    }
    (messages, None)
}
