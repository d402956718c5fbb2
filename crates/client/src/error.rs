//! What can go wrong, by what the caller may conclude from it.
//!
//! There are three answers, and they must not be mixed up: the service said no; nothing was done; nobody knows. Only after the
//! second may a caller simply ask again.

use std::time::Duration;

use fencepost_core::{BadWord, Busy, Cycle, CycleLink, GrantEnd, Name, Outcome, Refusal, SessionEnd};

use fencepost_session::client::{Answer, Failure, Lost};

/// Why there is no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service said no, and why. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Nothing was done, and nothing will be. It is safe to ask again.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The outcome could not be learnt: it may have been done, or may yet be.
    #[error(transparent)]
    Unknown(#[from] Unknown),
}

/// Why the service said no.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Somebody is in the way, and the request would not wait.
    #[error("{} is busy ({:?}): wait for it, or try again later", .0.name, .0.why)]
    Busy(Box<Busy>),
    /// The wait was longer than was asked for.
    #[error("not granted in time: wait longer, or ask `explain` who is in the way{}", suspicion(.suspected.as_deref()))]
    TimedOut {
        /// Sessions that waited for each other in a circle, this one first, shortly before the wait was over. Suspected only: a session
        /// can do several things at once, and the one that holds need not be the one that waits.
        suspected: Option<Box<Cycle>>,
    },
    /// The request was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// The request would have closed a cycle of owners that wait for each other.
    #[error("waiting would be a deadlock ({} owners wait for each other): release what you hold and begin anew", .0.links.len())]
    Deadlock(Box<Cycle>),
    /// The session is over, and with it everything that it held and waited for.
    #[error("the session has ended ({}): its locks are gone; ask again to open a new one", ended(.0))]
    SessionEnded(Option<SessionEnd>),
    /// The lock is lost.
    #[error("the lock is lost: {0}. Stop what it protected; fencing tokens keep late writes out")]
    Lost(Lost),
    /// The grant belongs to nobody here: it was given back before.
    #[error("the lock is not held: it was given back before")]
    NotHeld,
    /// The grant belongs to somebody else.
    #[error("the lock is somebody else's: it had ended, and was given on. Fencing tokens keep late writes out")]
    NotOwner,
    /// A rule of the lock semantics.
    #[error("{0}")]
    Rule(Refusal),
    /// The name of a resource is none.
    #[error("the name {name:?} is not valid: {why}")]
    BadName {
        /// What was said, or the beginning of it.
        name: String,
        /// Why it is no name.
        why: BadWord,
    },
    /// An owner, a duration, a number or the like is not valid.
    #[error("a value is not valid: {0}")]
    BadWord(BadWord),
    /// A lock on several names cannot change its mode in one step.
    #[error("this lock holds several names: only a lock on one name changes its mode")]
    SeveralNames,
    /// A session that somebody opened for itself belongs to the correctness tier.
    #[error("a session of its own has no efficiency tier: ask the client itself, with `client.lock(..).efficiency()`")]
    OtherTier,
    /// What was named is not there.
    #[error("there is no such thing: it never was, or is no longer")]
    NotFound,
    /// The events that were asked for are no longer kept.
    #[error("the events after that position are no longer kept: read the state, then watch from now on ({0})")]
    Compacted(String),
    /// The caller may not do that.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The service does not accept the call as it is, and says why in a sentence of its own.
    #[error("{0}")]
    Invalid(String),
}

/// Why nothing was done.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// No node of the cluster could be reached.
    #[error("the cluster cannot be reached ({last}): check the addresses and the network, then ask again")]
    Unreachable {
        /// What the last try said.
        last: String,
    },
    /// A node answered, and knows of no leader. It says whom it hears.
    #[error("{said}")]
    NoLeader {
        /// What it says.
        said: String,
    },
    /// The cluster has too much to do, or did not take it for another reason.
    #[error("the cluster did not take it: {message}")]
    NotTaken {
        /// What it says.
        message: String,
        /// When to ask again, if that may help.
        retry_after: Option<Duration>,
    },
    /// The lock was granted, but its time was over when the answer came. It was given back.
    #[error("granted too late to be used, and given back: ask again, or give the lock a longer TTL")]
    GrantedTooLate,
    /// Too many requests of this session are not over.
    #[error("too many requests of this session are under way: wait for some of them")]
    TooManyPending,
    /// The client was shut down.
    #[error("the client is shut down")]
    ShutDown,
    /// The address is none.
    #[error(
        "{0:?} is no address: say fencepost://host:port,host:port (for Redis, etcd and others there is fencepost-backends)"
    )]
    BadAddress(String),
    /// What was said about TLS cannot work.
    #[error("TLS cannot be used so: {0}")]
    BadTls(String),
    /// The server speaks a language that this version does not know.
    #[error("the server sent what this version does not understand ({0}): use a newer client")]
    NotUnderstood(String),
}

/// Why nobody knows.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unknown {
    /// It was sent, and no answer came in time.
    #[error(
        "no answer came in time: it may have been done, or may yet be. What it got is given back in the background"
    )]
    NoAnswer,
    /// The call broke off.
    #[error("the call broke off ({0}): it may have been done. Look at the state before asking again")]
    BrokeOff(String),
}

fn ended(how: &Option<SessionEnd>) -> &'static str {
    match how {
        Some(SessionEnd::Closed) => "closed",
        Some(SessionEnd::Expired) => "expired",
        Some(SessionEnd::Evicted) => "evicted by an administrator",
        Some(SessionEnd::Restored) => "the cluster was restored from a backup",
        None => "the cluster no longer knows it",
    }
}

/// Sessions of a circle that are named, and hex digits of each.
const SHOWN_SESSIONS_MAX: usize = 4;
const SHOWN_DIGITS: usize = 12;

/// A suspected deadlock, as the end of a sentence.
fn suspicion(cycle: Option<&Cycle>) -> String {
    let Some(Cycle { links }) = cycle else { return String::new() };
    let link = |link: &CycleLink| {
        format!("session {:.*} waits for {}", SHOWN_DIGITS, format!("{:032x}", link.session.0), link.waits_for)
    };
    let mut shown: Vec<String> = links.iter().take(SHOWN_SESSIONS_MAX).map(link).collect();
    if links.len() > SHOWN_SESSIONS_MAX {
        shown.push(format!("and {} more", links.len() - SHOWN_SESSIONS_MAX));
    }
    format!(
        ". A deadlock is suspected, since these wait for each other: {}. Ask for the locks in one request (`lock_all`), or give each unit \
         of work an owner, so that a deadlock is refused at once",
        shown.join(", ")
    )
}

/// How much of a name that is none is shown.
const BAD_NAME_CHARS_MAX: usize = 64;

/// The name of a resource.
pub(crate) fn name(text: &str) -> Result<Name, Error> {
    let name = || text.chars().take(BAD_NAME_CHARS_MAX).collect();
    Name::new(text).map_err(|why| Refused::BadName { name: name(), why }.into())
}

impl From<BadWord> for Error {
    fn from(word: BadWord) -> Error {
        Refused::BadWord(word).into()
    }
}

impl From<fencepost_wire::WireError> for Error {
    fn from(error: fencepost_wire::WireError) -> Error {
        Failed::NotUnderstood(error.to_string()).into()
    }
}

impl From<Lost> for Error {
    fn from(why: Lost) -> Error {
        Refused::Lost(why).into()
    }
}

/// What the cluster decided, unless it is a way of saying no.
pub(crate) fn decided(answer: Answer, failed: impl FnOnce() -> Failed) -> Result<Outcome, Error> {
    let outcome = match answer {
        Answer::Decided(outcome) => outcome,
        Answer::Unknown => return Err(Unknown::NoAnswer.into()),
        Answer::SessionEnded { how, .. } => return Err(Refused::SessionEnded(how).into()),
        Answer::Failed(failure) => {
            return Err(Error::Failed(match failure {
                Failure::Unreachable => failed(),
                Failure::NotTaken { message, retry_after: None } => return Err(Refused::Invalid(message).into()),
                Failure::NotTaken { message, retry_after } => Failed::NotTaken { message, retry_after },
                Failure::GrantedTooLate => Failed::GrantedTooLate,
                Failure::TooManyPending => Failed::TooManyPending,
                Failure::ShutDown => Failed::ShutDown,
            }));
        }
    };
    refusals(outcome)
}

/// An outcome, unless it is a way of saying no.
pub(crate) fn refusals(outcome: Outcome) -> Result<Outcome, Error> {
    Err(Error::Refused(match outcome {
        Outcome::Busy(busy) => Refused::Busy(busy),
        Outcome::TimedOut => Refused::TimedOut { suspected: None },
        Outcome::Cancelled => Refused::Cancelled,
        Outcome::Deadlock(cycle) => Refused::Deadlock(cycle),
        Outcome::SessionEnded(how) => Refused::SessionEnded(Some(how)),
        Outcome::GrantEnded(how) | Outcome::Expired(how) => Refused::Lost(Lost::Ended(how)),
        Outcome::NotOwner => Refused::NotOwner,
        Outcome::AlreadyReleased => Refused::NotHeld,
        Outcome::NotFound => Refused::NotFound,
        Outcome::Refused(refusal) => Refused::Rule(refusal),
        good => return Ok(good),
    }))
}

impl Error {
    /// Whether nothing was done, so that it is safe to ask again.
    pub fn is_failed(&self) -> bool {
        matches!(self, Error::Failed(_))
    }

    /// Whether nobody knows what came of it.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Error::Unknown(_))
    }

    /// Whether the wait was too short.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Error::Refused(Refused::TimedOut { .. }))
    }

    /// Sessions that seem to wait for each other, if the wait was too short and that may be why.
    pub fn suspected_deadlock(&self) -> Option<&Cycle> {
        match self {
            Error::Refused(Refused::TimedOut { suspected }) => suspected.as_deref(),
            _ => None,
        }
    }

    /// Why the lock is lost, if it is.
    pub fn lost(&self) -> Option<Lost> {
        match self {
            Error::Refused(Refused::Lost(why)) => Some(*why),
            Error::Refused(Refused::SessionEnded(how)) => {
                Some(how.map_or(Lost::Gone, |how| Lost::Ended(GrantEnd::Session(how))))
            }
            _ => None,
        }
    }

    /// The name that is busy, if that is the reason.
    pub fn busy(&self) -> Option<&Name> {
        match self {
            Error::Refused(Refused::Busy(busy)) => Some(&busy.name),
            _ => None,
        }
    }
}
