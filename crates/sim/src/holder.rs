//! A user for lease runs: it takes one lock, checks its guard now and then, and releases the lock late.
//!
//! It sends few requests, so that the cluster is idle and most log entries exist only because a deadline passed. Faults make it
//! silent: its process is cut off, paused or crashed, and then its leases must end by time.

use std::time::Duration;

use fencepost_core::{
    Acquire, Action, GrantId, Lock, LockDelay, LockMode, Locks, Millis, Name, Nanos, Outcome, SessionId, Terms, Token,
    Ttl, Wait,
};
use fencepost_session::client::{Answer, GrantKey, GrantState, LetGo, RequestKey};

use crate::fact::Fact;
use crate::random::Random;
use crate::user::new_session;
use crate::worker::Hands;

/// Number of lock names. Few, so that holders wait for each other and waits time out, too.
const NAMES: u64 = 2;
/// How long the holder waits for the answer to a release. For an acquire, the time that it may wait in the queue is added.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Debug)]
enum Doing {
    /// Does nothing until then.
    Idle { until: Nanos },
    /// Waits for the answer to a request.
    Asked { request: RequestKey },
    /// Holds a lock until `until`, and checks its guard next at `look_at`.
    Holding { grant: GrantId, token: Token, look_at: Nanos, until: Nanos },
}

/// A user of a lease run.
#[derive(Debug)]
pub(crate) struct Holder {
    ttl: Ttl,
    session: Option<SessionId>,
    doing: Doing,
    random: Random,
}

impl Holder {
    /// A new user.
    pub(crate) fn new(ttl_ms: u64, mut random: Random, now: Nanos) -> Holder {
        let until = now.after(Duration::from_millis(random.below(3_000)));
        Holder { ttl: Ttl::new(ttl_ms).expect("in bounds"), session: None, doing: Doing::Idle { until }, random }
    }

    /// Its session, if it has one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// The process restarted: the user forgets everything.
    pub(crate) fn forget(&mut self, now: Nanos) {
        self.session = None;
        self.rest(now);
    }

    /// When the user acts next, if nothing happens before.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        match &self.doing {
            Doing::Idle { until } => Some(*until),
            Doing::Asked { .. } => None,
            Doing::Holding { look_at, until, .. } => Some(*look_at.min(until)),
        }
    }

    fn rest(&mut self, now: Nanos) {
        self.doing = Doing::Idle { until: self.later(now, 100, 4_000) };
    }

    fn later(&mut self, now: Nanos, least_ms: u64, most_ms: u64) -> Nanos {
        now.after(Duration::from_millis(self.random.between(least_ms, most_ms)))
    }

    /// Does what is due.
    pub(crate) fn handle_time(&mut self, hands: &mut Hands<'_>) {
        match self.doing {
            Doing::Idle { until } if until <= hands.local => self.ask(hands),
            Doing::Holding { grant, until, .. } if until <= hands.local => self.let_go(grant, hands),
            Doing::Holding { grant, token, look_at, until } if look_at <= hands.local => {
                let session = self.session.expect("it holds something");
                let state = hands.machine.grant_state(GrantKey::new(session, grant), hands.local);
                if let GrantState::Lost(_) = state {
                    return self.let_go(grant, hands);
                }
                hands.tell(&Fact::Acts { session, grant, token });
                let look_at = self.later(hands.local, 20, 400);
                self.doing = Doing::Holding { grant, token, look_at, until };
            }
            _ => {}
        }
    }

    /// A request of this user was answered.
    pub(crate) fn handle_answer(&mut self, request: RequestKey, answer: &Answer, hands: &mut Hands<'_>) {
        hands.tell(&Fact::Told { request, answer });
        if !matches!(self.doing, Doing::Asked { request: asked } if asked == request) {
            return;
        }
        match answer {
            Answer::Decided(Outcome::Granted { grant, token, .. }) => {
                let until = self.later(hands.local, 5_000, 40_000);
                self.doing = Doing::Holding { grant: *grant, token: *token, look_at: hands.local, until };
            }
            _ => self.rest(hands.local),
        }
    }

    fn let_go(&mut self, grant: GrantId, hands: &mut Hands<'_>) {
        self.rest(hands.local);
        let Some(session) = self.session else { return };
        let limit = Some(hands.local.after(PATIENCE));
        if let LetGo::Asked(request) = hands.machine.let_go(GrantKey::new(session, grant), limit, true, hands.local) {
            let action = Action::Release { grant, report: None };
            hands.tell(&Fact::Asked { request, action: &action });
        }
    }

    fn ask(&mut self, hands: &mut Hands<'_>) {
        let session = match self.session.filter(|session| hands.machine.is_alive(*session)) {
            Some(session) => session,
            None => {
                let new = new_session(self.ttl, &mut self.random);
                self.session = Some(new.id);
                hands.machine.open_session(new);
                self.session.expect("just opened")
            }
        };
        let wait_ms = if self.random.one_in(3) { 0 } else { self.random.between(1_000, 20_000) };
        let wait = if wait_ms == 0 { Wait::No } else { Wait::UpTo(Millis::new(wait_ms).expect("in bounds")) };
        let mut terms = Terms::default();
        if self.random.one_in(4) {
            terms.ttl = Some(Ttl::new(self.random.between(2_000, 15_000)).expect("in bounds"));
        }
        if self.random.one_in(3) {
            terms.max_hold = Some(Millis::new(self.random.between(1_000, 20_000)).expect("in bounds"));
        }
        if self.random.one_in(4) {
            terms.lock_delay = LockDelay::new(self.random.between(500, 10_000)).expect("in bounds");
        }
        let name = Name::new(&format!("lease-{}", self.random.below(NAMES))).expect("a plain name");
        let locks = Locks::from_buf([Lock { name, mode: LockMode::Exclusive }]);
        let action = Action::Acquire(Acquire { locks, owner: None, wait, terms });
        let limit = hands.local.after(PATIENCE + Duration::from_millis(wait_ms));
        let request = hands.machine.request(session, action.clone(), Some(limit));
        hands.tell(&Fact::Asked { request, action: &action });
        self.doing = Doing::Asked { request };
    }
}
