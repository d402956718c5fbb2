//! The part of the generator that makes the service's messages: pushes, views of the state, events.

use fencepost_core::{
    ActFacts, Arrival, BlockedBy, Blocker, Counts, Cycle, Event, Explanation, FreezeId, GrantView, HolderView, JobFact,
    JobView, LogicalMs, Names, Position, PositionedEvent, Push, QueueView, RequestFacts, RequestNumber, SessionView,
    Token, TokenCheck,
};
use fencepost_wire::WallClock;
use fencepost_wire::api::observe::ReadAt;

use super::Generator;

impl Generator {
    pub fn push(&mut self) -> Push {
        let session = self.session();
        let push = match self.below(4) {
            0 => Push::Ended { session, number: RequestNumber(self.number()), outcome: self.outcome() },
            1 => Push::Lost { session, grant: self.grant(), how: self.grant_end() },
            2 => Push::Contended { session, grant: self.grant() },
            _ => Push::SessionEnded { session, how: self.session_end() },
        };
        self.met.push(&push);
        push
    }

    pub fn read_at(&mut self) -> ReadAt {
        let (index, term, stamp) = (self.number(), self.number(), self.stamp());
        ReadAt { index, term, stamp, wall_clock_ms: self.number(), wall_clock: self.wall_clock() }
    }

    pub fn wall_clock(&mut self) -> WallClock {
        let mut clock = WallClock::NONE;
        let mut before = LogicalMs(0);
        for _ in 0..self.below(5) {
            let stamp = LogicalMs(before.0 + self.below(10_000) as u64);
            clock.note(before, stamp, self.below(1 << 40) as u64);
            before = stamp;
        }
        clock
    }

    fn count(&mut self) -> usize {
        self.number() as usize
    }

    pub fn grant_view(&mut self) -> GrantView {
        GrantView { record: self.grant_record(), deadline: self.stamp() }
    }

    pub fn session_view(&mut self) -> SessionView {
        SessionView { record: self.session_record(), deadline: self.stamp(), grants: self.count(), waits: self.count() }
    }

    pub fn counts(&mut self) -> Counts {
        Counts {
            sessions: self.count(),
            grants: self.count(),
            rests: self.count(),
            waiters: self.count(),
            resources: self.count(),
            semaphores: self.count(),
            freezes: self.count(),
            last_token: Token(self.number()),
            jobs: self.number(),
            job_bytes: self.number(),
            jobs_held: self.number(),
            jobs_refused: self.flag(),
        }
    }

    pub fn token_check(&mut self) -> TokenCheck {
        let check = match self.flag() {
            true => TokenCheck::Stands { grant: self.grant(), deadline: self.stamp() },
            false => TokenCheck::Gone,
        };
        self.met.token_check(&check);
        check
    }

    pub fn explanation(&mut self, stamp: LogicalMs) -> Explanation {
        Explanation {
            name: self.name(),
            stamp,
            holders: self.some(3, Generator::holder_view),
            rests: self.some(2, Generator::rest_record),
            freezes: self.some(2, Generator::freeze_record),
            semaphore: self.maybe(|g| (g.semaphore_record(), g.number())),
            queue: self.some(3, Generator::queue_view),
            queue_len: self.count(),
            chain: self.some(3, Generator::blocker),
            suspected: self.maybe(|g| Cycle { links: g.some(3, Generator::cycle_link) }),
        }
    }

    fn holder_view(&mut self) -> HolderView {
        HolderView {
            holder: self.holder(),
            covers_from: self.maybe(Generator::name),
            deadline: self.stamp(),
            terms: self.maybe(|g| Box::new(g.terms())),
        }
    }

    fn queue_view(&mut self) -> QueueView {
        QueueView { position: self.count(), waiter: self.waiter_record(), wants: self.takes(), converts: self.flag() }
    }

    fn blocker(&mut self) -> Blocker {
        let by = match self.below(5) {
            0 => BlockedBy::Grant(self.holder()),
            1 => BlockedBy::Rest(self.holder()),
            2 => BlockedBy::Waiter(Arrival(self.number())),
            3 => BlockedBy::Freeze(self.freeze_record()),
            _ => BlockedBy::Permits,
        };
        self.met.blocked_by(&by);
        Blocker {
            session: self.session(),
            owner: self.owner(),
            number: RequestNumber(self.number()),
            name: self.name(),
            by,
        }
    }

    pub fn position(&mut self) -> Position {
        Position { index: self.number(), ordinal: self.number() as u32 }
    }

    pub fn positioned_event(&mut self) -> PositionedEvent {
        let (position, stamp) = (self.position(), self.stamp());
        PositionedEvent { position, stamp, wall_clock_ms: self.maybe(Generator::number), event: self.event() }
    }

    fn event(&mut self) -> Event {
        let event = match self.below(15) {
            0 => {
                let (session, principal, metadata) = (self.session(), self.principal(), self.metadata());
                Event::SessionOpened { session, principal, metadata }
            }
            1 => Event::SessionEnded { session: self.session(), how: self.session_end() },
            2 => Event::Queued { request: self.request_facts(), arrival: Arrival(self.number()) },
            3 => Event::Granted {
                request: self.request_facts(),
                grant: self.grant(),
                token: Token(self.number()),
                count: self.number() as u32,
            },
            4 => Event::NotGranted { request: self.request_facts(), outcome: self.outcome() },
            5 => Event::Ended {
                grant: self.grant(),
                token: Token(self.number()),
                session: self.session(),
                owner: self.owner(),
                held: self.held(),
                count_left: self.number() as u32,
                how: self.grant_end(),
                rests_until: self.maybe(Generator::stamp),
            },
            6 => Event::RestEnded { grant: self.grant(), names: self.names(), waived: self.flag() },
            7 => Event::Converted {
                grant: self.grant(),
                token: Token(self.number()),
                session: self.session(),
                owner: self.owner(),
                held: self.held(),
            },
            8 => Event::Contended { grant: self.grant(), names: self.names() },
            9 => Event::ValueSet { grant: self.grant(), name: self.name(), value: self.value() },
            10 => Event::Job { name: self.name(), key: self.job_key(), what: self.job_fact() },
            11 => Event::JobsFill { name: self.maybe(Generator::name), records: self.number(), bytes: self.number() },
            // More often, because there are several acts.
            _ => Event::Administered { by: self.principal(), reason: self.reason(), act: self.act_facts() },
        };
        self.met.event(&event);
        event
    }

    fn job_fact(&mut self) -> JobFact {
        let fact = match self.below(3) {
            0 => JobFact::Begun { grant: self.grant(), attempt: self.number() },
            1 => JobFact::Checkpointed { grant: self.grant(), attempt: self.number() },
            _ => JobFact::Completed { token: self.maybe(|g| Token(g.number())), succeeded: self.flag() },
        };
        self.met.job_fact(&fact);
        fact
    }

    /// A job as it is read alone, with its bytes.
    pub fn job_view(&mut self, stamp: LogicalMs) -> JobView {
        JobView {
            stamp,
            record: self.maybe(Generator::job_record),
            holder: self.maybe(Generator::holder),
            waiting: self.count(),
        }
    }

    fn act_facts(&mut self) -> ActFacts {
        let act = match self.below(9) {
            0 => ActFacts::Broke { grant: self.grant(), names: self.names() },
            1 => ActFacts::Evicted(self.session()),
            2 => ActFacts::Froze { freeze: FreezeId(self.id()), scope: self.scope() },
            3 => ActFacts::Thawed { freeze: FreezeId(self.id()), scope: self.scope() },
            4 => ActFacts::LimitChanged { name: self.name(), limit: self.maybe(Generator::permits) },
            5 => ActFacts::CompletedJob { name: self.name(), key: self.job_key() },
            6 => ActFacts::ForgotJob { name: self.name(), key: self.job_key() },
            7 => ActFacts::AllowedJobs,
            _ => ActFacts::WaivedRest { grant: self.grant(), names: self.names() },
        };
        self.met.act_facts(&act);
        act
    }

    fn request_facts(&mut self) -> RequestFacts {
        RequestFacts {
            session: self.session(),
            number: RequestNumber(self.number()),
            owner: self.owner(),
            wants: self.held(),
            converts: self.maybe(Generator::grant),
        }
    }

    fn names(&mut self) -> Names {
        self.some(3, Generator::name).into_iter().collect()
    }
}
