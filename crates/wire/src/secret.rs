//! A session's secret. A client that knows it may attach the session on any stream.
//!
//! The secret is in one place on the heap, which is wiped when it is dropped. `Debug` does not show it, so neither a log line nor a
//! panic message can. The only way to the bytes is [`SessionSecret::expose`]. The messages that carry it to a node are wiped, too,
//! and their `Debug` leaves the secret out. Not wiped: the buffers of sockets and of TLS.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::v1;

/// Bytes of a secret.
pub(crate) const SECRET_BYTES: usize = 32;

/// 256 random bits that only the client knows. The log holds their hash.
#[derive(Clone)]
pub struct SessionSecret(Box<Zeroizing<[u8; SECRET_BYTES]>>);

impl SessionSecret {
    /// Lets the caller fill the secret with random bytes in place, without a copy.
    ///
    /// # Errors
    /// The error of the caller's source.
    pub fn draw<Failure>(fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>) -> Result<SessionSecret, Failure> {
        let mut secret = SessionSecret(Box::new(Zeroizing::new([0; 32])));
        fill(secret.0.as_mut_slice())?;
        Ok(secret)
    }

    /// The bytes, to hash them or to send them. Keep no copy.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

/// For tests and simulations, whose secrets need no protection: the caller's own copy is not wiped.
impl From<[u8; 32]> for SessionSecret {
    fn from(bytes: [u8; 32]) -> SessionSecret {
        SessionSecret(Box::new(Zeroizing::new(bytes)))
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SessionSecret(..)")
    }
}

impl ZeroizeOnDrop for SessionSecret {}

impl fmt::Debug for v1::AttachSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v1::AttachSession { session_high, session_low, secret: _, seen_mark, seen_ranges } = self;
        let mut shown = formatter.debug_struct("AttachSession");
        shown.field("session_high", session_high).field("session_low", session_low);
        shown.field("seen_mark", seen_mark).field("seen_ranges", seen_ranges).finish_non_exhaustive()
    }
}

impl Drop for v1::AttachSession {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl ZeroizeOnDrop for v1::AttachSession {}

impl fmt::Debug for v1::OpenSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v1::OpenSession { session_high, session_low, secret: _, ttl_ms, metadata } = self;
        let mut shown = formatter.debug_struct("OpenSession");
        shown.field("session_high", session_high).field("session_low", session_low);
        shown.field("ttl_ms", ttl_ms).field("metadata", metadata).finish_non_exhaustive()
    }
}

impl Drop for v1::OpenSession {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl ZeroizeOnDrop for v1::OpenSession {}

#[cfg(test)]
mod tests {
    use fencepost_core::{Seen, SessionId};

    use super::*;
    use crate::api;

    /// Checks that the text shows no byte of the secret: as a number, as hexadecimal or as text.
    fn shows_nothing(seen: &str) {
        for part in ["171", "0xab", "abab", "ABAB", "\\xab", "\u{ab}"] {
            assert!(!seen.contains(part), "{seen}");
        }
    }

    #[test]
    fn nothing_that_carries_a_secret_shows_it() {
        let secret = SessionSecret::from([171; 32]);
        let attach = api::attach_to_wire(SessionId(7), &secret, &Seen::default());
        assert_eq!(attach.secret, [171; 32], "it is sent");
        let ttl = fencepost_core::Ttl::new(5_000).unwrap();
        let open = api::open_to_wire(SessionId(7), &secret, ttl, &fencepost_core::Metadata::default());
        assert_eq!(open.secret, [171; 32], "it is sent");
        let (opens, attaches) = (vec![open.clone()], vec![attach.clone()]);
        let message = v1::ClientMessage { opens, attaches, ..v1::ClientMessage::default() };
        for seen in [format!("{secret:?}"), format!("{open:?} {attach:?}"), format!("{message:?} {message:#?}")] {
            shows_nothing(&seen);
        }
        assert!(format!("{message:?}").contains("session_low: 7"), "other fields are shown");
    }

    #[test]
    fn types_that_hold_a_secret_are_wiped_when_they_are_dropped() {
        fn is_wiped<Kind: ZeroizeOnDrop>() {}
        is_wiped::<SessionSecret>();
        is_wiped::<v1::AttachSession>();
        is_wiped::<v1::OpenSession>();
        let drawn = SessionSecret::draw(|bytes| {
            bytes.fill(5);
            Ok::<(), ()>(())
        });
        assert_eq!(drawn.map(|secret| *secret.expose()), Ok([5; 32]));
    }
}
