//! Connections that carry messages as frames.
//!
//! Incoming messages are bounded before they are allocated, then decoded. Outgoing messages are gathered in a buffer and flushed
//! together. What the messages say is not looked at here.

use std::io;
use std::marker::PhantomData;

use fencepost_wire::{put_frame, take_frame};
use prost::Message;
use prost::bytes::BytesMut;
use tokio_util::codec::{Decoder, Encoder, Framed};

use crate::door::Connection;

/// Bytes that are gathered before the connection must take some: about what a socket takes at once.
const GATHERED_BYTES: usize = 64 << 10;

/// A connection that receives messages of one type, and sends messages of any type.
pub(crate) type Frames<In> = Framed<Connection, Codec<In>>;

/// Frames on this connection. Incoming frames have at most `bytes_max` bytes.
pub(crate) fn frames<In: Message + Default>(connection: Connection, bytes_max: usize) -> Frames<In> {
    let mut frames = Framed::new(connection, Codec::new(bytes_max));
    frames.set_backpressure_boundary(GATHERED_BYTES);
    frames
}

pub(crate) struct Codec<In> {
    bytes_max: usize,
    comes: PhantomData<fn() -> In>,
}

impl<In> Codec<In> {
    pub(crate) fn new(bytes_max: usize) -> Codec<In> {
        Codec { bytes_max, comes: PhantomData }
    }
}

impl<In: Message + Default> Decoder for Codec<In> {
    type Item = In;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<In>> {
        take_frame(buffer, self.bytes_max)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.for_caller()))
    }
}

impl<In, Out: Message> Encoder<Out> for Codec<In> {
    type Error = io::Error;

    fn encode(&mut self, message: Out, buffer: &mut BytesMut) -> io::Result<()> {
        put_frame(&message, buffer);
        Ok(())
    }
}
