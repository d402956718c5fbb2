//! Events: the facts that watchers see, and the ring in which a node keeps the recent ones.
//!
//! `apply` makes the events, but they are not part of the replicated state: two nodes may keep rings of different lengths.
//! Events are for observation only. Nothing here decides anything.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::command::Scope;
use crate::outcome::{GrantEnd, Held, Outcome, SessionEnd};
use crate::words::{
    Arrival, FreezeId, GrantId, JobKey, LogicalMs, Metadata, Name, OwnerName, Permits, Principal, Reason,
    RequestNumber, SessionId, Token, Value,
};

/// Something that happened at one log position.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A session was opened.
    SessionOpened {
        /// The session.
        session: SessionId,
        /// Its principal.
        principal: Principal,
        /// What it says about itself, so that a watcher can show who acts.
        metadata: Metadata,
    },
    /// A session ended. The ends of its grants and waits follow as separate events.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// How it ended.
        how: SessionEnd,
    },
    /// A request began to wait.
    Queued {
        /// The request.
        request: RequestFacts,
        /// Its place in the order of the whole group.
        arrival: Arrival,
    },
    /// A request was granted.
    Granted {
        /// The request.
        request: RequestFacts,
        /// The grant.
        grant: GrantId,
        /// Its token.
        token: Token,
        /// How many times the grant is entered now.
        count: u32,
    },
    /// A request ended without a grant: it timed out, was cancelled or refused, closed a deadlock, or its session or grant
    /// ended.
    NotGranted {
        /// The request.
        request: RequestFacts,
        /// How it ended.
        outcome: Outcome,
    },
    /// A grant, or one count of it, ended.
    Ended {
        /// The grant.
        grant: GrantId,
        /// Its token.
        token: Token,
        /// The session that held it.
        session: SessionId,
        /// The owner's name, if it has one.
        owner: Option<OwnerName>,
        /// What it held.
        held: Held,
        /// How many times the grant is still entered. Above zero, the grant goes on.
        count_left: u32,
        /// How it ended.
        how: GrantEnd,
        /// The end of its rest, if it rests.
        rests_until: Option<LogicalMs>,
    },
    /// A rest ended.
    RestEnded {
        /// The grant that rested.
        grant: GrantId,
        /// The names that it kept busy.
        names: Names,
        /// Whether an administrator ended it early.
        waived: bool,
    },
    /// A grant changed its mode.
    Converted {
        /// The grant.
        grant: GrantId,
        /// Its token: a new one if the mode became stronger.
        token: Token,
        /// The session that holds it.
        session: SessionId,
        /// The owner's name, if it has one.
        owner: Option<OwnerName>,
        /// What it holds now.
        held: Held,
    },
    /// A holder that asked for it was told that a conflicting request waits.
    Contended {
        /// The holder's grant.
        grant: GrantId,
        /// The names that it holds.
        names: Names,
    },
    /// The value of an election was set.
    ValueSet {
        /// The election's grant.
        grant: GrantId,
        /// The resource that is the election.
        name: Name,
        /// The new value.
        value: Value,
    },
    /// Something happened to a job.
    Job {
        /// Its name.
        name: Name,
        /// Its key.
        key: JobKey,
        /// What happened.
        what: JobFact,
    },
    /// The records of jobs take more than four fifths of a bound. At the bound, acquires with a job key are refused.
    JobsFill {
        /// The name whose bound it is. `None` for the bound of the group.
        name: Option<Name>,
        /// The records that count for the bound.
        records: u64,
        /// The bytes that count for the bound.
        bytes: u64,
    },
    /// An administrator acted. What the act caused follows as separate events.
    Administered {
        /// The administrator.
        by: Principal,
        /// The reason.
        reason: Reason,
        /// The act.
        act: ActFacts,
    },
}

/// The names that an event is about.
pub type Names = SmallVec<[Name; 1]>;

/// A request, as events describe it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestFacts {
    /// The session that asked.
    pub session: SessionId,
    /// Its number for the request.
    pub number: RequestNumber,
    /// The owner's name, if it has one.
    pub owner: Option<OwnerName>,
    /// What it wants to hold.
    pub wants: Held,
    /// The grant that it converts, if it is a conversion.
    pub converts: Option<GrantId>,
}

/// Something that happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobFact {
    /// An attempt began.
    Begun {
        /// Its grant.
        grant: GrantId,
        /// Its number.
        attempt: u64,
    },
    /// An attempt stored a checkpoint.
    Checkpointed {
        /// Its grant.
        grant: GrantId,
        /// Its number.
        attempt: u64,
    },
    /// The job was completed.
    Completed {
        /// The token of the grant that completed it. `None` if an administrator did.
        token: Option<Token>,
        /// Whether it succeeded.
        succeeded: bool,
    },
}

/// An administrator's act, as events describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActFacts {
    /// Broke a grant.
    Broke {
        /// The grant.
        grant: GrantId,
        /// The names that it held.
        names: Names,
    },
    /// Evicted a session.
    Evicted(SessionId),
    /// Froze a name or a prefix.
    Froze {
        /// The freeze.
        freeze: FreezeId,
        /// The names that it covers.
        scope: Scope,
    },
    /// Thawed a freeze.
    Thawed {
        /// The freeze.
        freeze: FreezeId,
        /// The names that it covered.
        scope: Scope,
    },
    /// Changed a semaphore's limit.
    LimitChanged {
        /// The semaphore.
        name: Name,
        /// The new limit; `None` if it was taken away.
        limit: Option<Permits>,
    },
    /// Waived a rest.
    WaivedRest {
        /// The grant that rested.
        grant: GrantId,
        /// The names that it kept busy.
        names: Names,
    },
    /// Completed a job.
    CompletedJob {
        /// Its name.
        name: Name,
        /// Its key.
        key: JobKey,
    },
    /// Forgot a job.
    ForgotJob {
        /// Its name.
        name: Name,
        /// Its key.
        key: JobKey,
    },
    /// Allowed jobs after a backup was restored.
    AllowedJobs,
}

impl Held {
    /// The names that are held.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let (locks, semaphore) = match self {
            Held::Locks(locks) => (locks.as_slice(), None),
            Held::Permits { name, .. } => (&[][..], Some(name)),
        };
        locks.iter().map(|lock| &lock.name).chain(semaphore)
    }
}

impl Event {
    /// The kind of event, in the specification's words.
    pub fn kind(&self) -> &'static str {
        match self {
            Event::SessionOpened { .. } => "session opened",
            Event::SessionEnded { .. } => "session ended",
            Event::Queued { .. } => "queued",
            Event::Granted { .. } => "granted",
            Event::NotGranted { outcome, .. } => match outcome {
                Outcome::TimedOut => "timed out",
                Outcome::Cancelled => "cancelled",
                Outcome::Deadlock(_) => "deadlock",
                Outcome::SessionEnded(_) => "session ended",
                Outcome::GrantEnded(_) => "grant ended",
                Outcome::Completed { .. } => "job was completed",
                _ => "refused",
            },
            Event::Ended { how, .. } => match how {
                GrantEnd::Released | GrantEnd::Session(SessionEnd::Closed) => "released",
                GrantEnd::Broken(_) | GrantEnd::Session(SessionEnd::Evicted(_) | SessionEnd::Restored) => "broken",
                GrantEnd::Ttl | GrantEnd::MaxHold | GrantEnd::Session(SessionEnd::Expired) => "expired",
            },
            Event::RestEnded { .. } => "rest ended",
            Event::Converted { .. } => "converted",
            Event::Contended { .. } => "contended",
            Event::ValueSet { .. } => "value set",
            Event::Job { what, .. } => match what {
                JobFact::Begun { .. } => "job begun",
                JobFact::Checkpointed { .. } => "job checkpointed",
                JobFact::Completed { .. } => "job completed",
            },
            Event::JobsFill { .. } => "jobs fill their bound",
            Event::Administered { act, .. } => match act {
                ActFacts::Broke { .. } => "broke",
                ActFacts::Evicted(_) => "evicted",
                ActFacts::Froze { .. } => "frozen",
                ActFacts::Thawed { .. } => "thawed",
                ActFacts::LimitChanged { .. } => "limit changed",
                ActFacts::WaivedRest { .. } => "waived",
                ActFacts::CompletedJob { .. } => "job completed by an administrator",
                ActFacts::ForgotJob { .. } => "job forgotten",
                ActFacts::AllowedJobs => "jobs allowed",
            },
        }
    }

    /// Whether a watcher of this prefix sees the event. Every watcher sees the events that are about no name (sessions).
    pub fn matches(&self, prefix: &str) -> bool {
        let under = |name: &Name| name.as_str().starts_with(prefix);
        match self {
            Event::SessionOpened { .. } | Event::SessionEnded { .. } => true,
            Event::Queued { request, .. } | Event::Granted { request, .. } | Event::NotGranted { request, .. } => {
                request.wants.names().any(under)
            }
            Event::Ended { held, .. } | Event::Converted { held, .. } => held.names().any(under),
            Event::RestEnded { names, .. } | Event::Contended { names, .. } => names.iter().any(under),
            Event::ValueSet { name, .. } | Event::Job { name, .. } => under(name),
            Event::JobsFill { name, .. } => name.as_ref().is_none_or(under),
            Event::Administered { act, .. } => match act {
                ActFacts::Broke { names, .. } | ActFacts::WaivedRest { names, .. } => names.iter().any(under),
                ActFacts::Evicted(_) | ActFacts::AllowedJobs => true,
                ActFacts::Froze { scope, .. } | ActFacts::Thawed { scope, .. } => match scope {
                    Scope::Name(name) => under(name),
                    Scope::Prefix(frozen) => {
                        frozen.starts_with(prefix.as_bytes()) || prefix.as_bytes().starts_with(frozen)
                    }
                },
                ActFacts::LimitChanged { name, .. }
                | ActFacts::CompletedJob { name, .. }
                | ActFacts::ForgotJob { name, .. } => under(name),
            },
        }
    }
}

/// The position of an event in its group: the index of its log entry, and its place among the events of that entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The index of the entry.
    pub index: u64,
    /// The place in the entry, from zero.
    pub ordinal: u32,
}

/// An event with its position, and the stamp and the wall clock of its entry.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionedEvent {
    /// Its position.
    pub position: Position,
    /// When it happened, in logical time.
    pub stamp: LogicalMs,
    /// The leader's wall clock when it wrote the entry, in milliseconds since 1970. For people.
    pub wall_clock_ms: Option<u64>,
    /// What happened.
    pub event: Event,
}

/// The ring no longer has the requested events. The watcher must read the state again and watch from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the events up to entry {} are no longer kept: read the state, then watch from now on, or after {}.{}",
    oldest.index,
    oldest.index,
    oldest.ordinal
)]
pub struct Compacted {
    /// A watch after this position gets everything that the ring still has.
    pub oldest: Position,
}

/// The recent events of one node, bounded by count.
#[derive(Clone, Debug)]
pub struct EventRing {
    events: VecDeque<PositionedEvent>,
    events_max: usize,
    /// Invariant: every event after this position, up to the newest pushed, is in `events`.
    complete_after: Position,
}

impl EventRing {
    /// An empty ring. It has no event up to and including `complete_after`.
    pub fn new(events_max: usize, complete_after: Position) -> EventRing {
        EventRing { events: VecDeque::new(), events_max, complete_after }
    }

    /// Adds the events of the entry at `index`. A full ring drops its oldest events.
    ///
    /// # Panics
    /// If the index is not above the last one: a repeated entry would repeat its events.
    pub fn push(
        &mut self,
        index: u64,
        stamp: LogicalMs,
        wall_clock_ms: Option<u64>,
        events: impl IntoIterator<Item = Event>,
    ) {
        let newest = self.events.back().map_or(self.complete_after.index, |event| event.position.index);
        assert!(index > newest, "entry {index} pushed after entry {newest}: events would repeat");
        for (ordinal, event) in (0..).zip(events) {
            if self.events.len() == self.events_max
                && let Some(oldest) = self.events.pop_front()
            {
                self.complete_after = oldest.position;
            }
            let position = Position { index, ordinal };
            self.events.push_back(PositionedEvent { position, stamp, wall_clock_ms, event });
        }
    }

    /// The next events after a position that a watcher of `prefix` sees, at most `count` of them.
    ///
    /// # Errors
    /// [`Compacted`] if the ring may have dropped some of them.
    // Rule: watch
    pub fn after<'a>(
        &'a self,
        position: Position,
        prefix: &'a str,
        count: usize,
    ) -> Result<impl Iterator<Item = &'a PositionedEvent>, Compacted> {
        if position < self.complete_after {
            return Err(Compacted { oldest: self.complete_after });
        }
        let start = self.events.partition_point(|event| event.position <= position);
        Ok(self.events.range(start..).filter(move |event| event.event.matches(prefix)).take(count))
    }
}
