//! The errors of the client, grouped by what the caller may conclude from them.
//!
//! There are three kinds, and callers must not mix them up: the service refused; nothing was done; the outcome is unknown. Only
//! after the second kind may a caller simply ask again.

use std::fmt;
use std::time::Duration;

use fencepost_core::{
    BadWord, Busy, Cycle, CycleLink, Explanation, GrantEnd, LogicalMs, Name, Outcome, Refusal, SessionEnd, Token,
    shortened,
};

use crate::observe::AsOf;
use fencepost_session::client::{Answer, Failure, Lost};
use fencepost_wire::api::observe::ReadAt;

/// Why a request has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service refused the request, and says why. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Nothing was done, and nothing will be. It is safe to ask again.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The outcome is unknown: the request may have been done, or may still be done.
    #[error(transparent)]
    Unknown(#[from] Unknown),
}

/// Why the service refused a request.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The resource is not free, and the request does not wait.
    #[error("{} is busy ({:?}): wait for it, or try again later", .0.name, .0.why)]
    Busy(Box<Busy>),
    /// The lock was not granted within the wait of the request.
    #[error("{}", not_in_time(.names, .obstacle, .suspected.as_deref()))]
    TimedOut {
        /// The names that were asked for.
        names: Vec<Name>,
        /// What was in the way when the wait was over.
        obstacle: Obstacle,
        /// Sessions that waited for each other in a cycle shortly before the wait was over; this session comes first. It is only a
        /// suspicion: a session can do several things at once, and the work that holds may not be the work that waits.
        suspected: Option<Box<Cycle>>,
    },
    /// The request was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// The request would have closed a cycle of owners that wait for each other.
    #[error("waiting would be a deadlock ({} owners wait for each other): release what you hold and start again", .0.links.len())]
    Deadlock(Box<Cycle>),
    /// The session is over, and with it everything that it held and waited for.
    #[error("the session has ended ({}): its locks are gone; ask again to open a new one", ended(.0))]
    SessionEnded(Option<SessionEnd>),
    /// The lock is lost.
    #[error("the lock is lost: {0}. Stop what it protected; fencing tokens keep late writes out")]
    Lost(Lost),
    /// This session does not hold the grant any more: it was given back before.
    #[error("the lock is not held: it was given back before")]
    NotHeld,
    /// The grant does not belong to this session.
    #[error(
        "this session does not hold the lock, and another session may hold it: stop the protected work. Only a store that \
         checks fencing tokens refuses a late write"
    )]
    NotOwner,
    /// The job is completed: nothing is granted for it any more.
    #[error("the job is completed{}", if *.succeeded { "" } else { " as failed" })]
    Completed {
        /// The token of the grant that completed it. `None` if an administrator did.
        token: Option<Token>,
        /// Whether it succeeded. Otherwise it has failed for good.
        succeeded: bool,
    },
    /// A rule of the lock semantics forbids it.
    #[error("{0}")]
    Rule(Refusal),
    /// The name of a resource is not valid.
    #[error("the name {name:?} is not valid: {why}")]
    BadName {
        /// The name. If it is long, its beginning and its length.
        name: String,
        /// Why it is not valid.
        why: BadWord,
    },
    /// An owner, a duration, a number or another value is not valid.
    #[error("a value is not valid: {0}")]
    BadWord(BadWord),
    /// A lock on several names cannot change its mode in one step.
    #[error("this lock holds several names: only a lock on one name changes its mode")]
    SeveralNames,
    /// A session from [`Client::session`](crate::Client::session) belongs to the correctness tier.
    #[error("a separate session has no efficiency tier: use the client itself, with `client.lock(..).efficiency()`")]
    OtherTier,
    /// The grant, session, member or freeze does not exist.
    #[error("not found: it never existed, or no longer exists")]
    NotFound,
    /// The requested events are no longer kept.
    #[error("{0}")]
    Compacted(String),
    /// The caller may not do that.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The service does not accept the call, and says why.
    #[error("{0}")]
    Invalid(String),
}

/// What was in the way of a request that timed out, as far as it is known. The error shows it in a sentence.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Obstacle {
    /// The cluster explained one of the names: the first that is not free.
    Explained(Box<AsOf<Explanation>>),
    /// The cluster did not explain it within half a second.
    NotExplained,
    /// This kind of lock is not explained. The text names the kind.
    NotTold(&'static str),
}

impl Obstacle {
    /// Whether the explained name was free: another name of the request was in the way. Requests that wait for it do not count, because
    /// this request may be one of them.
    pub(crate) fn is_free(&self) -> bool {
        let Obstacle::Explained(explained) = self else { return false };
        let Explanation { freezes, holders, rests, .. } = &explained.what;
        freezes.is_empty() && holders.is_empty() && rests.is_empty()
    }

    /// The sentence, about `it`: a name, or a word for it.
    fn show(&self, it: &str, f: &mut impl fmt::Write) -> fmt::Result {
        let AsOf { at, what: explained } = match self {
            Obstacle::Explained(explained) => &**explained,
            Obstacle::NotExplained => return write!(f, "the cluster did not say in time who holds {it}"),
            Obstacle::NotTold(kind) => return write!(f, "{kind} does not tell who holds {it}"),
        };
        match (explained.freezes.first(), explained.holders.as_slice(), explained.rests.first()) {
            (Some(freeze), ..) => {
                write!(f, "as of now {it} is frozen by {} {}", freeze.by.as_str(), since(at, freeze.since))
            }
            (None, [first, others @ ..], _) => {
                write!(f, "as of now {it} is held by ")?;
                match first.holder.session {
                    Some(session) => write!(f, "session {:.*}", SHOWN_DIGITS, format!("{:032x}", session.0))?,
                    None => f.write_str("a session that has ended")?,
                }
                if let Some(owner) = &first.holder.owner {
                    write!(f, " (owner {:?})", owner.as_str())?;
                }
                write!(f, " {}", since(at, first.holder.since))?;
                match others.len() {
                    0 => Ok(()),
                    others => write!(f, ", and by {others} more"),
                }
            }
            (None, [], Some(rest)) => write!(f, "as of now {it} rests after a lost grant, {}", since(at, rest.since)),
            (None, [], None) => match explained.queue_len {
                0 => write!(f, "as of now {it} is not held"),
                1 => write!(f, "as of now one request waits for {it}"),
                waiting => write!(f, "as of now {waiting} requests wait for {it}"),
            },
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("it", f)
    }
}

/// A request that timed out: its names, what was in the way, and what to do next.
fn not_in_time(names: &[Name], obstacle: &Obstacle, suspected: Option<&Cycle>) -> String {
    let explained = match obstacle {
        Obstacle::Explained(explained) => Some(&explained.what.name),
        Obstacle::NotExplained => names.first(),
        Obstacle::NotTold(_) => None,
    };
    // Of several names, the sentence is about the one that was explained.
    let it = match (names, obstacle) {
        ([_, _, ..], Obstacle::Explained(explained)) => shortened(explained.what.name.as_str()),
        ([_, _, ..], _) => "them".into(),
        _ => "it".into(),
    };
    let mut said = format!("{} not granted in time: ", asked_for(names));
    let _ = obstacle.show(&it, &mut said);
    match explained {
        Some(name) => {
            said += &format!(". Wait longer, or see what is in the way: `fencepost why {name}`");
        }
        None => said += ". Wait longer, or try again later",
    }
    said + &suspicion(suspected)
}

/// How long something has lasted, by the wall clock: `for 4.1s`.
fn since(at: &ReadAt, since: LogicalMs) -> String {
    let Some(age) = at.age(since) else { return "for an unknown time".to_owned() };
    let (seconds, minutes, hours) = (age.as_secs(), age.as_secs() / 60, age.as_secs() / 3_600);
    match minutes {
        0 => format!("for {seconds}.{}s", age.subsec_millis() / 100),
        1..60 => format!("for {minutes}m {}s", seconds % 60),
        _ => format!("for {hours}h {}m", minutes % 60),
    }
}

/// The names of a request as the subject of a sentence.
fn asked_for(names: &[Name]) -> String {
    let shown: Vec<_> = names.iter().take(SHOWN_NAMES_MAX).map(|name| shortened(name.as_str())).collect();
    match names.len() {
        1 => format!("{} was", shown[0]),
        count if count > SHOWN_NAMES_MAX => format!("{} and {} more were", shown.join(", "), count - SHOWN_NAMES_MAX),
        _ => format!("{} were", shown.join(", ")),
    }
}

/// Why nothing was done.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// No node of the cluster could be reached.
    #[error("the cluster cannot be reached ({last}): check the addresses and the network, then ask again")]
    Unreachable {
        /// Why the last try failed.
        last: String,
    },
    /// No program listens at any of the addresses: every host refused the connection, twice.
    #[error(
        "no node runs at {} (connection refused): start one, for example with `fencepost dev`, or correct the address; with a \
         `connect_timeout` the client waits for a node to start",
        addresses.join(", ")
    )]
    NothingListens {
        /// The addresses that the client was given.
        addresses: Vec<String>,
    },
    /// The program at an address is not a node, or it is a node whose port is not for clients, or speaks TLS. It says what to do.
    #[error("{said}")]
    WrongDoor {
        /// The address, and what is wrong there.
        said: String,
    },
    /// A node answered, but it knows no leader. It says which members it hears.
    #[error("{said}")]
    NoLeader {
        /// The message of the node.
        said: String,
    },
    /// The cluster is overloaded, or did not take the request for another reason.
    #[error("the cluster did not take the request: {message}")]
    NotTaken {
        /// The message of the cluster.
        message: String,
        /// When to ask again, if that may help.
        retry_after: Option<Duration>,
    },
    /// The lock was granted, but its deadline had passed when the answer came. It was given back.
    #[error("granted too late to be used, and given back: ask again, or give the lock a longer TTL")]
    GrantedTooLate,
    /// The session has too many pending requests.
    #[error("too many requests of this session are pending: wait for some of them")]
    TooManyPending,
    /// The client was shut down.
    #[error("the client is shut down")]
    ShutDown,
    /// The address is not valid.
    #[error("the address is not valid: {0}")]
    BadAddress(String),
    /// A setting from the environment or from a file is not valid.
    #[error("{0}")]
    BadSetting(String),
    /// The TLS settings cannot work.
    #[error("the TLS settings cannot work: {0}")]
    BadTls(String),
    /// The server sent something that this version of the client does not know.
    #[error("the server sent something that this version does not understand ({0}): use a newer client")]
    NotUnderstood(String),
}

/// Why the outcome is unknown.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unknown {
    /// The request was sent, but no answer came in time.
    #[error(
        "no answer came in time: it may have been done, or may still be. What it is granted is given back in the background"
    )]
    NoAnswer,
    /// The call broke off.
    #[error("the call broke off ({0}): it may have been done. Look at the state before asking again")]
    BrokeOff(String),
}

pub(crate) fn ended(how: &Option<SessionEnd>) -> String {
    let how = match how {
        Some(SessionEnd::Closed) => "closed",
        Some(SessionEnd::Expired) => "expired",
        Some(SessionEnd::Evicted(reason)) => return format!("evicted by an administrator{reason}"),
        Some(SessionEnd::Restored) => "the cluster was restored from a backup",
        None => "the cluster no longer knows the session",
    };
    how.to_owned()
}

/// How many names of a request are shown.
const SHOWN_NAMES_MAX: usize = 4;
/// How many sessions of a cycle are shown, and how many hex digits of each.
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
        ". A deadlock is suspected, since these wait for each other: {}. Ask for the locks in one request, or give each unit \
         of work an owner, so that a deadlock is refused at once",
        shown.join(", ")
    )
}

/// Parses the name of a resource.
pub(crate) fn name(text: &str) -> Result<Name, Error> {
    Name::new(text).map_err(|why| Refused::bad_name(text, why).into())
}

impl Refused {
    /// The refusal of a name that is not valid. It has only the beginning of a long name.
    pub fn bad_name(name: &str, why: BadWord) -> Refused {
        Refused::BadName { name: shortened(name).into_owned(), why }
    }
}

impl From<BadWord> for Error {
    fn from(word: BadWord) -> Error {
        Refused::BadWord(word).into()
    }
}

impl From<fencepost_wire::WireError> for Error {
    fn from(error: fencepost_wire::WireError) -> Error {
        Failed::NotUnderstood(error.problem()).into()
    }
}

impl From<Lost> for Error {
    fn from(why: Lost) -> Error {
        Refused::Lost(why).into()
    }
}

/// The outcome that the cluster decided; an error if there is none, or if it is a refusal.
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

/// The outcome; an error if it is a refusal.
pub(crate) fn refusals(outcome: Outcome) -> Result<Outcome, Error> {
    Err(Error::Refused(match outcome {
        Outcome::Busy(busy) => Refused::Busy(busy),
        Outcome::TimedOut => Refused::TimedOut { names: Vec::new(), obstacle: Obstacle::NotExplained, suspected: None },
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

    /// Whether the outcome is unknown.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Error::Unknown(_))
    }

    /// Whether the lock was not granted in time.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Error::Refused(Refused::TimedOut { .. }))
    }

    /// Sessions that seem to wait for each other, if the lock was not granted in time and a deadlock may be the reason.
    pub fn suspected_deadlock(&self) -> Option<&Cycle> {
        match self {
            Error::Refused(Refused::TimedOut { suspected, .. }) => suspected.as_deref(),
            _ => None,
        }
    }

    /// Why the lock is lost, if it is.
    pub fn lost(&self) -> Option<Lost> {
        match self {
            Error::Refused(Refused::Lost(why)) => Some(why.clone()),
            Error::Refused(Refused::SessionEnded(how)) => {
                Some(how.clone().map_or(Lost::Gone, |how| Lost::Ended(GrantEnd::Session(how))))
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
