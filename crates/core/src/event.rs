//! The facts that watchers see, and the ring in which a node keeps the recent ones.
//!
//! Events are for looking on. They are made by `apply` but are no part of the state: two nodes with rings of different
//! length are the same replica. Nothing here decides anything.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::command::Scope;
use crate::outcome::{GrantEnd, Held, Outcome, SessionEnd};
use crate::words::{
    Arrival, FreezeId, GrantId, LogicalMs, Name, OwnerName, Permits, Principal, Reason, RequestNumber, SessionId,
    Token, Value,
};

/// Something that happened, at one log position.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A session was opened.
    SessionOpened {
        /// Which.
        session: SessionId,
        /// Whose.
        principal: Principal,
    },
    /// A session ended; what happened to its grants and waits follows as events of their own.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// How.
        how: SessionEnd,
    },
    /// A request began to wait.
    Queued {
        /// Who waits, and for what.
        request: RequestFacts,
        /// Its place.
        arrival: Arrival,
    },
    /// A request was granted.
    Granted {
        /// Who asked, and for what.
        request: RequestFacts,
        /// The grant.
        grant: GrantId,
        /// Its token.
        token: Token,
        /// How often it is entered now.
        count: u32,
    },
    /// A request ended without a grant: timed out, cancelled, refused, deadlock, or with its session or grant.
    NotGranted {
        /// Who asked, and for what.
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
        /// Whose it was.
        session: SessionId,
        /// The owner's name, if it has one.
        owner: Option<OwnerName>,
        /// What it held.
        held: Held,
        /// How many counts are left; above zero the grant goes on.
        count_left: u32,
        /// How.
        how: GrantEnd,
        /// Until when it rests, if it does.
        rests_until: Option<LogicalMs>,
    },
    /// A rest ended.
    RestEnded {
        /// The grant that rested.
        grant: GrantId,
        /// What it kept busy.
        names: Names,
        /// Whether an administrator ended it.
        waived: bool,
    },
    /// A grant has another mode.
    Converted {
        /// Which grant.
        grant: GrantId,
        /// Its token, risen if the mode became stronger.
        token: Token,
        /// Whose.
        session: SessionId,
        /// The owner's name, if it has one.
        owner: Option<OwnerName>,
        /// What it holds now.
        held: Held,
    },
    /// A holder that had asked for it was told that somebody waits.
    Contended {
        /// The holder's grant.
        grant: GrantId,
        /// What it holds.
        names: Names,
    },
    /// The value of an election was set.
    ValueSet {
        /// The election's grant.
        grant: GrantId,
        /// The election.
        name: Name,
        /// The value.
        value: Value,
    },
    /// An administrator did something; what it caused follows as events of its own.
    Administered {
        /// Who.
        by: Principal,
        /// Why.
        reason: Reason,
        /// What.
        act: ActFacts,
    },
}

/// Names that an event is about.
pub type Names = SmallVec<[Name; 1]>;

/// Who asked for what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestFacts {
    /// The session.
    pub session: SessionId,
    /// Its number for the request.
    pub number: RequestNumber,
    /// The owner's name, if it has one.
    pub owner: Option<OwnerName>,
    /// What it wants to hold.
    pub wants: Held,
    /// The grant that it would change, if it is a conversion.
    pub converts: Option<GrantId>,
}

/// What an administrator did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActFacts {
    /// Broke a grant.
    Broke {
        /// Which.
        grant: GrantId,
        /// What it held.
        names: Names,
    },
    /// Evicted a session.
    Evicted(SessionId),
    /// Froze a name or a prefix.
    Froze {
        /// Which freeze.
        freeze: FreezeId,
        /// What it covers.
        scope: Scope,
    },
    /// Thawed it.
    Thawed {
        /// Which freeze.
        freeze: FreezeId,
        /// What it covered.
        scope: Scope,
    },
    /// Changed a semaphore's limit.
    LimitChanged {
        /// The semaphore.
        name: Name,
        /// The new limit, or none.
        limit: Option<Permits>,
    },
    /// Waived a rest.
    WaivedRest {
        /// Whose.
        grant: GrantId,
        /// What it kept busy.
        names: Names,
    },
}

impl Held {
    /// The names in it.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let (locks, semaphore) = match self {
            Held::Locks(locks) => (locks.as_slice(), None),
            Held::Permits { name, .. } => (&[][..], Some(name)),
        };
        locks.iter().map(|lock| &lock.name).chain(semaphore)
    }
}

impl Event {
    /// The word that the specification has for it.
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
                _ => "refused",
            },
            Event::Ended { how, .. } => match how {
                GrantEnd::Released | GrantEnd::Session(SessionEnd::Closed) => "released",
                GrantEnd::Broken | GrantEnd::Session(SessionEnd::Evicted | SessionEnd::Restored) => "broken",
                GrantEnd::Ttl | GrantEnd::MaxHold | GrantEnd::Session(SessionEnd::Expired) => "expired",
            },
            Event::RestEnded { .. } => "rest ended",
            Event::Converted { .. } => "converted",
            Event::Contended { .. } => "contended",
            Event::ValueSet { .. } => "value set",
            Event::Administered { act, .. } => match act {
                ActFacts::Broke { .. } => "broke",
                ActFacts::Evicted(_) => "evicted",
                ActFacts::Froze { .. } => "frozen",
                ActFacts::Thawed { .. } => "thawed",
                ActFacts::LimitChanged { .. } => "limit changed",
                ActFacts::WaivedRest { .. } => "waived",
            },
        }
    }

    /// Whether a watcher of this prefix sees it. Events about no name at all (sessions) are seen by everyone.
    pub fn matches(&self, prefix: &str) -> bool {
        let under = |name: &Name| name.as_str().starts_with(prefix);
        match self {
            Event::SessionOpened { .. } | Event::SessionEnded { .. } => true,
            Event::Queued { request, .. } | Event::Granted { request, .. } | Event::NotGranted { request, .. } => {
                request.wants.names().any(under)
            }
            Event::Ended { held, .. } | Event::Converted { held, .. } => held.names().any(under),
            Event::RestEnded { names, .. } | Event::Contended { names, .. } => names.iter().any(under),
            Event::ValueSet { name, .. } => under(name),
            Event::Administered { act, .. } => match act {
                ActFacts::Broke { names, .. } | ActFacts::WaivedRest { names, .. } => names.iter().any(under),
                ActFacts::Evicted(_) => true,
                ActFacts::Froze { scope, .. } | ActFacts::Thawed { scope, .. } => match scope {
                    Scope::Name(name) => under(name),
                    Scope::Prefix(frozen) => {
                        frozen.starts_with(prefix.as_bytes()) || prefix.as_bytes().starts_with(frozen)
                    }
                },
                ActFacts::LimitChanged { name, .. } => under(name),
            },
        }
    }
}

/// The position of an event in its group: the entry's index in the log, and the event's place among that entry's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The index of the entry.
    pub index: u64,
    /// The place in the entry, from zero.
    pub ordinal: u32,
}

/// An event with its position and the stamp of its entry.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionedEvent {
    /// Its position.
    pub position: Position,
    /// When it happened, in logical time.
    pub stamp: LogicalMs,
    /// What happened.
    pub event: Event,
}

/// The events asked for are no longer kept. The watcher must read the state anew and go on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the events after that position are compacted: read the state and watch from {oldest:?}")]
pub struct Compacted {
    /// Resuming after this position gives everything that is still kept.
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
    /// An empty ring that knows nothing up to and including `complete_after`.
    pub fn new(events_max: usize, complete_after: Position) -> EventRing {
        EventRing { events: VecDeque::new(), events_max, complete_after }
    }

    /// Takes the events of the entry at `index`; the oldest fall out when the ring is full.
    ///
    /// # Panics
    /// If the index does not rise: a repeated entry would repeat its events.
    pub fn push(&mut self, index: u64, stamp: LogicalMs, events: impl IntoIterator<Item = Event>) {
        let newest = self.events.back().map_or(self.complete_after.index, |event| event.position.index);
        assert!(index > newest, "entry {index} pushed after entry {newest}: events would repeat");
        for (ordinal, event) in (0..).zip(events) {
            if self.events.len() == self.events_max
                && let Some(oldest) = self.events.pop_front()
            {
                self.complete_after = oldest.position;
            }
            self.events.push_back(PositionedEvent { position: Position { index, ordinal }, stamp, event });
        }
    }

    /// Up to `count` events after a position, those that a watcher of `prefix` sees.
    ///
    /// # Errors
    /// [`Compacted`] if some of them may have fallen out.
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
