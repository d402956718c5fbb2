//! The glossary as types: names, ids, numbers and durations that are valid from the moment they exist.
//!
//! The constructors check the bounds, so `apply` never gets a name that is too long or a TTL of zero. Nothing here knows
//! what a lock is.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::bounds::{self, Bound};

/// Why a word is invalid. The sender must correct it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadWord {
    /// It exceeds a bound of [`crate::bounds`].
    #[error("{0}")]
    Bound(Bound),
    /// A name, owner or principal is empty.
    #[error("empty: say at least one character")]
    Empty,
    /// A name, owner or principal contains a control character.
    #[error("control characters are not allowed")]
    ControlCharacter,
    /// A path has an empty segment.
    #[error("a name that begins with '/' is a path: no empty segment, so neither '//' nor a '/' at the end")]
    EmptySegment,
    /// A number that must be at least one is zero.
    #[error("zero: say at least one")]
    Zero,
}

/// A text for a message: whole if it is short, else its beginning and how long it is. A message must not grow with what a caller sends.
///
/// ```
/// use fencepost_core::shortened;
/// assert_eq!(shortened("orders/42"), "orders/42");
/// assert!(shortened(&"n".repeat(5_000)).ends_with("nnn... (5000 bytes)"));
/// ```
pub fn shortened(text: &str) -> Cow<'_, str> {
    match text.len() {
        0..=bounds::SHOWN_BYTES_MAX => Cow::Borrowed(text),
        bytes => {
            let end = text.floor_char_boundary(bounds::SHOWN_BYTES_MAX);
            Cow::Owned(format!("{}... ({bytes} bytes)", &text[..end]))
        }
    }
}

fn plain_text(text: &str, bytes_max: usize, bound: Bound) -> Result<Arc<str>, BadWord> {
    match text {
        "" => Err(BadWord::Empty),
        _ if text.len() > bytes_max => Err(BadWord::Bound(bound)),
        _ if text.chars().any(char::is_control) => Err(BadWord::ControlCharacter),
        _ => Ok(Arc::from(text)),
    }
}

/// The name of a resource: 1 to 512 bytes of UTF-8 without control characters. Cloning it is cheap.
///
/// A name that begins with `/` is a path in a hierarchy, for every client. No other name is.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// A resource name, if the text is valid.
    ///
    /// # Errors
    /// [`BadWord`] if the text is empty, too long or has control characters, or is a path with an empty segment or too many
    /// levels.
    ///
    /// ```
    /// use fencepost_core::Name;
    /// assert!(Name::new("orders/42").is_ok());
    /// assert!(Name::new("/orders//42").is_err());
    /// ```
    pub fn new(text: &str) -> Result<Name, BadWord> {
        let name = Name(plain_text(text, bounds::NAME_BYTES_MAX, Bound::NameBytes)?);
        if let Some(path) = text.strip_prefix('/') {
            if path.split('/').any(str::is_empty) {
                return Err(BadWord::EmptySegment);
            }
            if path.split('/').count() > bounds::PATH_LEVELS_MAX {
                return Err(BadWord::Bound(Bound::PathLevels));
            }
        }
        Ok(name)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name is a path in a hierarchy.
    pub fn is_path(&self) -> bool {
        self.0.starts_with('/')
    }

    /// The names above a path, from the top: `/a` and `/a/b` for `/a/b/c`. Empty for a name that is not a path.
    pub fn ancestors(&self) -> impl DoubleEndedIterator<Item = Name> + '_ {
        let slashes = if self.is_path() { &self.0[1..] } else { "" };
        slashes.match_indices('/').map(|(at, _)| Name(Arc::from(&self.0[..at + 1])))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Names are ordered and hashed as their texts are, so a map finds one by a text that need not be a valid name.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of an owner: a unit of work inside a session. Re-entry and deadlock detection compare owners by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerName(Arc<str>);

impl OwnerName {
    /// An owner's name, if the text is valid.
    ///
    /// # Errors
    /// [`BadWord`] if the text is empty, too long or has control characters.
    pub fn new(text: &str) -> Result<OwnerName, BadWord> {
        plain_text(text, bounds::OWNER_BYTES_MAX, Bound::OwnerBytes).map(OwnerName)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The user or service behind a session, or the author of an administrative act. The edge decides which: there is no access
/// control yet, so it may be only what a client says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal(Arc<str>);

impl Principal {
    /// A principal's name, if the text is valid.
    ///
    /// # Errors
    /// [`BadWord`] if the text is empty, too long or has control characters.
    pub fn new(text: &str) -> Result<Principal, BadWord> {
        plain_text(text, bounds::PRINCIPAL_BYTES_MAX, Bound::PrincipalBytes).map(Principal)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The reason of an administrative act, for the log, for watchers, and for the clients that the act hits. May be empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reason(Arc<str>);

impl Reason {
    /// A reason, if the text is short enough.
    ///
    /// # Errors
    /// [`BadWord`] if the text is too long.
    pub fn new(text: &str) -> Result<Reason, BadWord> {
        if text.len() > bounds::REASON_BYTES_MAX {
            return Err(BadWord::Bound(Bound::ReasonBytes));
        }
        Ok(Reason(Arc::from(text)))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the clients that an administrator's act hits are told of its reason: the beginning of it, at most 128 bytes, on one
/// line. Empty if there is no reason. It is a thin pointer, so that outcomes and losses stay small; all effects of an act
/// share one text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToldReason(Arc<String>);

impl ToldReason {
    /// A text that clients may be told as it stands.
    ///
    /// # Errors
    /// [`BadWord`] if the text is too long or has control characters.
    pub fn new(text: &str) -> Result<ToldReason, BadWord> {
        match text {
            _ if text.len() > bounds::TOLD_REASON_BYTES_MAX => Err(BadWord::Bound(Bound::ToldReasonBytes)),
            _ if text.chars().any(char::is_control) => Err(BadWord::ControlCharacter),
            _ => Ok(ToldReason(Arc::new(text.to_owned()))),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&Reason> for ToldReason {
    /// The beginning of the reason, cut at a whole character. Control characters become spaces.
    // Rule: break
    fn from(reason: &Reason) -> ToldReason {
        let line: String = reason.0.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        ToldReason(Arc::new(line[..line.floor_char_boundary(bounds::TOLD_REASON_BYTES_MAX)].to_owned()))
    }
}

/// The end of a sentence: `: ticket 7`, or nothing if there is no reason.
impl fmt::Display for ToldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

/// Information for people about a session or a grant: opaque bytes, at most 4 KiB, empty by default.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Metadata(Arc<[u8]>);

impl Metadata {
    /// Metadata, if it is small enough.
    ///
    /// # Errors
    /// [`BadWord`] if there are too many bytes.
    pub fn new(bytes: &[u8]) -> Result<Metadata, BadWord> {
        if bytes.len() > bounds::METADATA_BYTES_MAX {
            return Err(BadWord::Bound(Bound::MetadataBytes));
        }
        Ok(Metadata(Arc::from(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metadata({:?})", String::from_utf8_lossy(&self.0))
    }
}

/// The value of an election, set by its holder and seen by observers: opaque bytes, at most 4 KiB.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// A value, if it is small enough.
    ///
    /// # Errors
    /// [`BadWord`] if there are too many bytes.
    pub fn new(bytes: &[u8]) -> Result<Value, BadWord> {
        if bytes.len() > bounds::VALUE_BYTES_MAX {
            return Err(BadWord::Bound(Bound::ValueBytes));
        }
        Ok(Value(Arc::from(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({:?})", String::from_utf8_lossy(&self.0))
    }
}

/// The key of a job under its name, such as `2026-11`: 1 to 256 bytes of UTF-8 without control characters. Keys have no order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey(Arc<str>);

impl JobKey {
    /// A job's key, if the text is valid.
    ///
    /// # Errors
    /// [`BadWord`] if the text is empty, too long or has control characters.
    pub fn new(text: &str) -> Result<JobKey, BadWord> {
        plain_text(text, bounds::JOB_KEY_BYTES_MAX, Bound::JobKeyBytes).map(JobKey)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobKey({})", self.0)
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a job stores about itself: a checkpoint, a result, or the text of an error. Opaque bytes, at most 4 KiB, empty by
/// default. Never printed, because they are the application's.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct JobBytes(Arc<[u8]>);

impl JobBytes {
    /// The bytes, if there are not too many.
    ///
    /// # Errors
    /// [`BadWord`] if there are too many bytes.
    pub fn new(bytes: &[u8]) -> Result<JobBytes, BadWord> {
        if bytes.len() > bounds::JOB_BYTES_MAX {
            return Err(BadWord::Bound(Bound::JobBytes));
        }
        Ok(JobBytes(Arc::from(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for JobBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobBytes({} bytes)", self.0.len())
    }
}

/// The SHA-256 of a session's 256-bit secret. The secret itself never reaches the core or the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(pub [u8; 32]);

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

/// A session's id: 128 random bits, drawn by the client that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u128);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:x})", self.0)
    }
}

/// A freeze's id: 128 random bits, drawn by the administrator, so that a repeat is the same freeze and each freeze is thawed
/// alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FreezeId(pub u128);

impl fmt::Debug for FreezeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FreezeId({:x})", self.0)
    }
}

/// The number of the connection that may act for a session. It is 1 at the open, and each attach adds one. Commands with an
/// older epoch are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// A session's number for one of its requests, from 1 upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestNumber(pub u64);

/// A grant's id: its first token. The id never changes; an upgrade gives the grant a new token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

/// A fencing token: greater than every token that the group gave out before. The default, zero, is below every token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A waiter's place in the order of the whole group. A smaller number came earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arrival(pub u64);

/// A number of permits of a semaphore, or its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Permits(NonZeroU32);

impl Permits {
    /// A number of permits, at least one.
    ///
    /// # Errors
    /// [`BadWord::Zero`] if it is zero.
    pub fn new(permits: u32) -> Result<Permits, BadWord> {
        NonZeroU32::new(permits).map(Permits).ok_or(BadWord::Zero)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

/// A stamp: logical time in milliseconds. Only log entries move it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogicalMs(pub u64);

impl LogicalMs {
    /// The stamp `duration` later.
    pub fn after(self, duration: Millis) -> LogicalMs {
        LogicalMs(self.0.saturating_add(duration.0))
    }
}

/// A duration in milliseconds, at most a year.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Millis(u64);

impl Millis {
    /// No time at all.
    pub const ZERO: Millis = Millis(0);

    /// A duration of at most a year.
    ///
    /// # Errors
    /// [`BadWord`] if it is longer than a year.
    pub fn new(ms: u64) -> Result<Millis, BadWord> {
        if ms > bounds::DURATION_MS_MAX {
            return Err(BadWord::Bound(Bound::Duration));
        }
        Ok(Millis(ms))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A time to live, of a session or of one lock: at least one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ttl(Millis);

impl Ttl {
    /// A time to live of at least a second and at most a year.
    ///
    /// # Errors
    /// [`BadWord`] if it is under a second or over a year.
    pub fn new(ms: u64) -> Result<Ttl, BadWord> {
        if ms < bounds::TTL_MS_MIN {
            return Err(BadWord::Bound(Bound::TtlLeast));
        }
        Millis::new(ms).map(Ttl)
    }

    /// The duration.
    pub fn millis(self) -> Millis {
        self.0
    }
}

/// How long a grant rests after an involuntary end: at most a minute, zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockDelay(Millis);

impl LockDelay {
    /// A lock delay of at most a minute.
    ///
    /// # Errors
    /// [`BadWord`] if it is over a minute.
    pub fn new(ms: u64) -> Result<LockDelay, BadWord> {
        if ms > bounds::LOCK_DELAY_MS_MAX {
            return Err(BadWord::Bound(Bound::LockDelay));
        }
        Millis::new(ms).map(LockDelay)
    }

    /// The duration.
    pub fn millis(self) -> Millis {
        self.0
    }
}

/// How long the record of a job is kept after the end of its last grant: a minute to a year, 30 days by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keep(Millis);

impl Keep {
    /// A time to keep of at least a minute and at most a year.
    ///
    /// # Errors
    /// [`BadWord`] if it is under a minute or over a year.
    pub fn new(ms: u64) -> Result<Keep, BadWord> {
        if ms < bounds::KEEP_MS_MIN {
            return Err(BadWord::Bound(Bound::KeepLeast));
        }
        Millis::new(ms).map(Keep)
    }

    /// The duration.
    pub fn millis(self) -> Millis {
        self.0
    }
}

impl Default for Keep {
    fn default() -> Keep {
        Keep::new(bounds::KEEP_MS_DEFAULT).expect("the default is in its range")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_of_a_path_from_the_top() {
        let names = |text: &str| Name::new(text).unwrap().ancestors().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names("/a/bc/d"), ["/a", "/a/bc"]);
        assert!(names("/a").is_empty());
        assert!(names("a/b/c").is_empty());
    }

    #[test]
    fn clients_are_told_the_beginning_of_a_reason_on_one_line() {
        let told = |reason: &str| ToldReason::from(&Reason::new(reason).unwrap());
        assert_eq!(told("ticket 7\nsee the wiki\u{9b}").as_str(), "ticket 7 see the wiki ");
        assert_eq!((told("ticket 7").to_string(), told("").to_string()), (": ticket 7".to_owned(), String::new()));
        assert_eq!(told(&"r".repeat(1024)).as_str(), "r".repeat(128));
        // The 43rd of these characters would end at byte 129.
        assert_eq!(told(&"€".repeat(50)).as_str(), "€".repeat(42));
        for reason in ["", "ticket 7", "a\tb", &"€".repeat(50), &"\u{80}".repeat(90)] {
            assert!(ToldReason::new(told(reason).as_str()).is_ok(), "{reason:?}");
        }
        assert_eq!(ToldReason::new(&"r".repeat(129)), Err(BadWord::Bound(Bound::ToldReasonBytes)));
        assert_eq!(ToldReason::new("a\nb"), Err(BadWord::ControlCharacter));
    }

    #[test]
    fn words_are_valid_or_refused_with_the_bound() {
        assert!(Name::new(&"n".repeat(512)).is_ok());
        assert_eq!(Name::new(&"n".repeat(513)), Err(BadWord::Bound(Bound::NameBytes)));
        assert!(Name::new(&"/n".repeat(16)).is_ok());
        assert_eq!(Name::new(&"/n".repeat(17)), Err(BadWord::Bound(Bound::PathLevels)));
        assert_eq!(Name::new(""), Err(BadWord::Empty));
        assert_eq!(Name::new("a\nb"), Err(BadWord::ControlCharacter));
        for path in ["/", "/a/", "//a", "/a//b"] {
            assert_eq!(Name::new(path), Err(BadWord::EmptySegment), "{path}");
        }
        assert!(OwnerName::new(&"o".repeat(128)).is_ok());
        assert_eq!(OwnerName::new(&"o".repeat(129)), Err(BadWord::Bound(Bound::OwnerBytes)));
        assert_eq!(Principal::new(&"p".repeat(257)), Err(BadWord::Bound(Bound::PrincipalBytes)));
        assert_eq!(Reason::new(&"r".repeat(1025)), Err(BadWord::Bound(Bound::ReasonBytes)));
        assert!(Metadata::new(&[0; 4096]).is_ok());
        assert_eq!(Metadata::new(&[0; 4097]), Err(BadWord::Bound(Bound::MetadataBytes)));
        assert_eq!(Value::new(&[0; 4097]), Err(BadWord::Bound(Bound::ValueBytes)));
        assert!(Ttl::new(1_000).is_ok());
        assert_eq!(Ttl::new(999), Err(BadWord::Bound(Bound::TtlLeast)));
        assert!(LockDelay::new(60_000).is_ok());
        assert_eq!(LockDelay::new(60_001), Err(BadWord::Bound(Bound::LockDelay)));
        assert_eq!(Millis::new(u64::MAX), Err(BadWord::Bound(Bound::Duration)));
        assert_eq!(Permits::new(0), Err(BadWord::Zero));
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_its_length_is_told() {
        let whole = "n".repeat(bounds::SHOWN_BYTES_MAX);
        assert_eq!(shortened(&whole), whole);
        // Each of these characters has three bytes, so the bound is in the middle of one.
        let long = "€".repeat(2_000);
        assert_eq!(shortened(&long), format!("{}... (6000 bytes)", "€".repeat(bounds::SHOWN_BYTES_MAX / 3)));
    }
}
