//! The part of the generator that makes outcomes and refusals.

use fencepost_core::{
    Arrival, Attached, AttachedGrant, AttachedJob, AttachedWait, BadWord, Bound, Busy, BusyWhy, Cycle, CycleLink,
    Epoch, FormatVersion, GrantEnd, Holder, Late, Mode, Outcome, Refusal, RequestNumber, SessionEnd, Takes, Token,
    UnseenAnswer,
};

use super::Generator;
use super::variants::BOUNDS;

impl Generator {
    pub fn outcome(&mut self) -> Outcome {
        // An answer to an attach contains answers. Only one level is generated.
        self.outcome_of(27)
    }

    fn outcome_of(&mut self, kinds: usize) -> Outcome {
        // More often, because there are more refusals than other outcomes.
        let kind = if self.below(4) == 0 { 25 } else { self.below(kinds) };
        let outcome = match kind {
            0 => Outcome::Opened { epoch: Epoch(self.number()) },
            1 => Outcome::Renewed,
            2 => Outcome::Closed,
            3 => Outcome::Granted { grant: self.grant(), token: Token(self.number()), count: self.number() as u32 },
            4 => Outcome::Queued { arrival: Arrival(self.number()), unchecked: self.flag() },
            5 => Outcome::Busy(Box::new(self.busy())),
            6 => Outcome::TimedOut,
            7 => Outcome::Cancelled,
            8 => Outcome::Deadlock(Box::new(Cycle { links: self.some(4, Generator::cycle_link) })),
            9 => Outcome::SessionEnded(self.session_end()),
            10 => Outcome::GrantEnded(self.grant_end()),
            11 => Outcome::Converted { grant: self.grant(), token: Token(self.number()) },
            12 => Outcome::Released { count_left: self.number() as u32 },
            13 => Outcome::NotOwner,
            14 => Outcome::AlreadyReleased,
            15 => Outcome::Expired(self.grant_end()),
            16 => Outcome::Extended { until: self.stamp() },
            17 => Outcome::ValueSet,
            18 => Outcome::CancelTooLate(self.late()),
            19 => Outcome::CancelReleased { grant: self.grant(), count_left: self.number() as u32 },
            20 => Outcome::Done,
            21 => Outcome::NotFound,
            22 => Outcome::Completed { token: self.maybe(|g| Token(g.number())), succeeded: self.flag() },
            23 => Outcome::Begun { attempt: self.number() },
            24 => Outcome::Checkpointed { attempt: self.number() },
            25 => Outcome::Refused(self.refusal()),
            _ => Outcome::Attached(Box::new(self.attached())),
        };
        self.met.outcome(&outcome);
        outcome
    }

    fn attached(&mut self) -> Attached {
        Attached {
            epoch: Epoch(self.number()),
            grants: self.some(2, |g| AttachedGrant {
                grant: g.grant(),
                token: Token(g.number()),
                count: g.number() as u32,
                held: g.held(),
                job: g.maybe(|g| AttachedJob { key: g.job_key(), attempt: g.maybe(Generator::number) }),
            }),
            waits: self.some(2, |g| AttachedWait {
                number: RequestNumber(g.number()),
                arrival: Arrival(g.number()),
                job_key: g.maybe(Generator::job_key),
            }),
            unseen: self.some(2, |g| UnseenAnswer {
                number: RequestNumber(g.number()),
                answered_at: g.stamp(),
                outcome: g.outcome_of(26),
                stands: g.flag(),
            }),
            lost: self.some(2, |g| (g.grant(), g.grant_end())),
        }
    }

    fn busy(&mut self) -> Busy {
        let why = [BusyWhy::Frozen, BusyWhy::Held, BusyWhy::Resting, BusyWhy::Queued][self.below(4)];
        self.met.busy_why(&why);
        Busy { name: self.name(), why, holders: self.some(3, Generator::holder), holder_count: self.number() as u32 }
    }

    pub fn takes(&mut self) -> Takes {
        let takes = match self.flag() {
            true => Takes::Mode(self.mode()),
            false => Takes::Permits(self.permits()),
        };
        self.met.takes(&takes);
        takes
    }

    pub fn holder(&mut self) -> Holder {
        let takes = self.takes();
        Holder {
            grant: self.grant(),
            takes,
            token: Token(self.number()),
            since: self.stamp(),
            session: self.maybe(Generator::session),
            owner: self.owner(),
        }
    }

    fn mode(&mut self) -> Mode {
        let mode = Mode::ALL[self.below(Mode::ALL.len())];
        self.met.mode(&mode);
        mode
    }

    pub(crate) fn cycle_link(&mut self) -> CycleLink {
        CycleLink {
            session: self.session(),
            owner: self.owner(),
            number: RequestNumber(self.number()),
            waits_for: self.name(),
            wants: self.mode(),
            blocked_by: self.maybe(Generator::grant),
        }
    }

    pub fn session_end(&mut self) -> SessionEnd {
        let end = match self.below(4) {
            0 => SessionEnd::Closed,
            1 => SessionEnd::Expired,
            2 => SessionEnd::Evicted(self.told_reason()),
            _ => SessionEnd::Restored,
        };
        self.met.session_end(&end);
        end
    }

    pub fn grant_end(&mut self) -> GrantEnd {
        let end = match self.below(6) {
            0 => GrantEnd::Released,
            1 => GrantEnd::Ttl,
            2 => GrantEnd::MaxHold,
            3 => GrantEnd::Broken(self.told_reason()),
            _ => GrantEnd::Session(self.session_end()),
        };
        self.met.grant_end(&end);
        end
    }

    fn late(&mut self) -> Late {
        let late = match self.below(3) {
            0 => Late::Granted { grant: self.grant(), stands: self.flag() },
            1 => Late::Converted { grant: self.grant(), stands: self.flag() },
            _ => Late::Ended,
        };
        self.met.late(&late);
        late
    }

    fn bound(&mut self) -> Bound {
        let bound = BOUNDS[self.below(BOUNDS.len())];
        self.met.bound(&bound);
        bound
    }

    fn bad_word(&mut self) -> BadWord {
        let bad = match self.below(5) {
            0 => BadWord::Bound(self.bound()),
            1 => BadWord::Empty,
            2 => BadWord::ControlCharacter,
            3 => BadWord::EmptySegment,
            _ => BadWord::Zero,
        };
        self.met.bad_word(&bad);
        bad
    }

    fn refusal(&mut self) -> Refusal {
        // More often, because there are many bounds.
        let kind = if self.below(4) == 0 { 6 + self.below(2) } else { self.below(35) };
        let refusal = match kind {
            0 => Refusal::NoSession,
            1 => Refusal::SessionExists,
            2 => Refusal::WrongSecret,
            3 => Refusal::WrongEpoch { current: Epoch(self.number()) },
            4 => Refusal::AlreadySeen,
            5 => Refusal::SeenWhileWaiting(RequestNumber(self.number())),
            6 => Refusal::Bound(self.bound()),
            7 => Refusal::BadWord(self.bad_word()),
            8 => Refusal::BadNumber,
            9 => Refusal::CancelsItself,
            10 => Refusal::NamedTwice(self.name()),
            11 => Refusal::OwnerWaits,
            12 => Refusal::UseUpgrade { name: self.name(), grant: self.grant() },
            13 => Refusal::AlreadyHeld { name: self.name(), grant: self.grant() },
            14 => Refusal::CountAboveOne,
            15 => Refusal::NotInGrant(self.name()),
            16 => Refusal::UpgradeConflict(self.name()),
            17 => Refusal::NotALock,
            18 => Refusal::NotAnElection,
            19 => Refusal::NothingToExtend,
            20 => Refusal::IsSemaphore(self.name()),
            21 => Refusal::IsLock(self.name()),
            22 => Refusal::PathSemaphore(self.name()),
            23 => Refusal::NoLimit(self.name()),
            24 => Refusal::LimitDiffers { name: self.name(), live: self.permits() },
            25 => Refusal::MoreThanLimit { name: self.name(), limit: self.permits() },
            26 => Refusal::FreezeExists,
            27 => Refusal::LimitLowered { name: self.name(), limit: self.permits(), reason: self.told_reason() },
            28 => Refusal::KeyNeedsExclusive,
            29 => Refusal::KeyedReentry { name: self.name(), grant: self.grant() },
            30 => Refusal::KeyedGrant,
            31 => Refusal::NoJob,
            32 => Refusal::JobsNotAllowed,
            33 => Refusal::JobHeld { grant: self.grant() },
            _ => Refusal::NotYet { needs: FormatVersion::new(self.number() as u32).unwrap_or_default() },
        };
        self.met.refusal(&refusal);
        refusal
    }
}
