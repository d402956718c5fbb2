//! How the ledger follows the log: renewals, events, and the few things that no event reports.
//!
//! Terms, limits and timeouts are only in the request, so an event comes with the operation that caused it. Nothing is judged here: the
//! checkers compare an event with the ledger before the ledger follows it.

use fencepost_core::{
    Act, ActFacts, Action, Admin, Arrival, Event, GrantId, Held, LogicalMs, Millis, Open, Operation, Outcome, Reason,
    Renewal, Request, RequestFacts, SessionId, Token, ToldReason, Wait, bounds,
};

use crate::fact::LoggedEntry;

use super::due::Due;
use super::ledger::{Grant, Lasts, Ledger, Semaphore, Session};
use super::place::needs_of;

/// The part of a request that no event repeats.
#[derive(Default)]
struct Said {
    lasts: Lasts,
    patience: Option<Millis>,
    limit: Option<fencepost_core::Permits>,
}

impl Said {
    fn by(cause: Option<&Operation>) -> Said {
        let Some(Operation::Request(Request { action, .. })) = cause else { return Said::default() };
        let (lasts, wait, limit) = match action {
            Action::Acquire(acquire) => (Lasts::of(&acquire.terms), acquire.wait, None),
            Action::TakePermits(take) => (Lasts::of(&take.terms), take.wait, take.limit),
            Action::Convert { wait, .. } => (Lasts::default(), *wait, None),
            _ => return Said::default(),
        };
        let patience = match wait {
            Wait::UpTo(patience) => Some(patience),
            Wait::No | Wait::Forever => None,
        };
        Said { lasts, patience, limit }
    }
}

impl Ledger {
    /// A new entry begins.
    pub(super) fn begin(&mut self, entry: &LoggedEntry) {
        self.index = entry.position.index;
        self.stamp = entry.stamp;
        self.last_act = None;
        self.arrivals_before = self.last_arrival;
        if entry.batch.failover_grace {
            self.grace_at = Some(entry.stamp);
        }
        if self.is_restored && self.unknown_rests_until.is_none() {
            self.unknown_rests_until = Some(LogicalMs(entry.stamp.0 + bounds::LOCK_DELAY_MS_MAX));
        }
    }

    /// A keep-alive or an attach was answered.
    // Rule: session-ttl
    pub(super) fn renewed(&mut self, renewal: &Renewal, outcome: &Outcome) {
        let (Renewal::KeepAlive { session, .. } | Renewal::Attach { session, .. }) = renewal;
        let stamp = self.stamp;
        let Some(session) = self.sessions.get_mut(session) else { return };
        match outcome {
            Outcome::Renewed => session.renewed_at = stamp,
            Outcome::Attached(attached) => {
                session.renewed_at = stamp;
                session.epoch = attached.epoch;
            }
            _ => {}
        }
    }

    /// The end of a grant's `max_hold` was moved.
    // Rule: max-hold
    pub(super) fn extended(&mut self, id: GrantId, until: LogicalMs) {
        let index = self.index;
        if let Some(grant) = self.grants.get_mut(&id) {
            grant.hold_until = Some(until);
            grant.timed_at_index = index;
            self.will_be_due(until, Due::Grant(id));
        }
    }

    /// Follows an event. `cause` is the operation of the entry that caused it, if any.
    pub(super) fn follow(&mut self, event: &Event, cause: Option<&Operation>, unchecked: bool) {
        match event {
            Event::SessionOpened { session, .. } => self.opened(*session, cause),
            Event::SessionEnded { session, .. } => {
                if let Some(ended) = self.sessions.get_mut(session) {
                    ended.lives = false;
                    self.dying.push(*session);
                }
            }
            Event::Queued { request, arrival } => self.queued(request, *arrival, cause, unchecked),
            Event::Granted { request, grant, token, count } => self.granted(request, *grant, *token, *count, cause),
            Event::NotGranted { request, .. } => {
                if let Some(arrival) = self.waiting(request.session, request.number) {
                    self.remove_waiter(arrival);
                }
                if let Held::Permits { name, .. } = &request.wants {
                    self.forget_unused(name);
                }
            }
            Event::Ended { grant, count_left, rests_until, .. } => match self.grants.get_mut(grant) {
                Some(held) if *count_left > 0 => held.count = *count_left,
                _ => self.remove_grant(*grant, *rests_until),
            },
            Event::RestEnded { grant, .. } => self.remove_rest(*grant),
            Event::Converted { grant, token, held, .. } => self.converted(*grant, *token, held),
            Event::Contended { .. } | Event::ValueSet { .. } | Event::Job { .. } | Event::JobsFill { .. } => {}
            Event::Administered { act, reason, .. } => self.administered(act, reason),
        }
    }

    fn opened(&mut self, id: SessionId, cause: Option<&Operation>) {
        let Some(Operation::Open(Open { ttl, secret_hash, .. })) = cause else { return };
        self.forget_session(id);
        let session = Session {
            lives: true,
            ttl: *ttl,
            secret_hash: *secret_hash,
            renewed_at: self.stamp,
            epoch: fencepost_core::Epoch(1),
            grants: Default::default(),
            waits: Default::default(),
            owners: Default::default(),
        };
        self.sessions.insert(id, session);
        self.will_be_due(self.stamp.after(ttl.millis()), Due::Session(id));
    }

    fn queued(&mut self, request: &RequestFacts, arrival: Arrival, cause: Option<&Operation>, unchecked: bool) {
        let said = Said::by(cause);
        self.learn_limit(request, &said);
        self.last_arrival = self.last_arrival.max(arrival.0);
        let until = said.patience.map(|patience| self.stamp.after(patience));
        self.add_waiter(arrival, request.clone(), until, said.lasts, unchecked);
    }

    fn learn_limit(&mut self, request: &RequestFacts, said: &Said) {
        if let Held::Permits { name, .. } = &request.wants {
            let semaphore = self.semaphores.entry(name.clone()).or_default();
            semaphore.limit = semaphore.limit.or(said.limit);
        }
    }

    fn granted(&mut self, request: &RequestFacts, id: GrantId, token: Token, count: u32, cause: Option<&Operation>) {
        let waiter = self.waiting(request.session, request.number).and_then(|arrival| self.remove_waiter(arrival));
        if let Some(grant) = self.grants.get_mut(&id) {
            grant.count = count;
            return;
        }
        let said = Said::by(cause);
        self.learn_limit(request, &said);
        let lasts = waiter.map_or(said.lasts, |waiter| waiter.lasts);
        self.add_grant(Grant {
            id,
            token,
            session: request.session,
            owner: request.owner.clone(),
            held: request.wants.clone(),
            needs: match &request.wants {
                Held::Locks(locks) => needs_of(locks),
                Held::Permits { .. } => Vec::new(),
            },
            count,
            granted_at: self.stamp,
            hold_until: lasts.max_hold.map(|max_hold| self.stamp.after(max_hold)),
            timed_at_index: self.index,
            lasts,
            converting: None,
        });
    }

    fn converted(&mut self, id: GrantId, token: Token, held: &Held) {
        let Some(grant) = self.grants.get(&id) else { return };
        if is_stronger(&grant.held, held)
            && let Some(arrival) = grant.converting
        {
            self.remove_waiter(arrival);
        }
        self.change_mode(id, token, held);
    }

    fn administered(&mut self, act: &ActFacts, reason: &Reason) {
        match act {
            ActFacts::Froze { freeze, scope } => {
                self.ever_froze = true;
                self.freezes.insert(*freeze, scope.clone());
            }
            ActFacts::Thawed { freeze, .. } => self.thaw(*freeze),
            ActFacts::LimitChanged { name, limit } => {
                let semaphore: &mut Semaphore = self.semaphores.entry(name.clone()).or_default();
                semaphore.administered = limit.is_some();
                semaphore.limit = limit.or(semaphore.limit);
                self.touch_semaphore(name);
                self.forget_unused(name);
            }
            ActFacts::Broke { .. }
            | ActFacts::Evicted(_)
            | ActFacts::WaivedRest { .. }
            | ActFacts::CompletedJob { .. }
            | ActFacts::ForgotJob { .. }
            | ActFacts::AllowedJobs => {}
        }
        self.last_act = Some((act.clone(), ToldReason::from(reason)));
    }
}

/// Whether one of the locks has a stronger mode than before.
pub(super) fn is_stronger(before: &Held, after: &Held) -> bool {
    match (before, after) {
        (Held::Locks(before), Held::Locks(after)) => {
            before.iter().zip(after).any(|(before, after)| after.mode > before.mode)
        }
        _ => false,
    }
}

/// Whether an event reports this administrator's act.
pub(super) fn is_told_by(admin: &Admin, facts: &ActFacts) -> bool {
    match (&admin.act, facts) {
        (Act::Break { grant }, ActFacts::Broke { grant: broke, .. }) => grant == broke,
        (Act::Evict { session }, ActFacts::Evicted(evicted)) => session == evicted,
        (Act::WaiveRest { grant }, ActFacts::WaivedRest { grant: waived, .. }) => grant == waived,
        (Act::Freeze { freeze, .. }, ActFacts::Froze { freeze: froze, .. }) => freeze == froze,
        (Act::Thaw { freeze }, ActFacts::Thawed { freeze: thawed, .. }) => freeze == thawed,
        (Act::SetLimit { name, limit }, ActFacts::LimitChanged { name: changed, limit: to }) => {
            (name, limit) == (changed, to)
        }
        (Act::CompleteJob { name, key, .. }, ActFacts::CompletedJob { name: completed, key: its }) => {
            (name, key) == (completed, its)
        }
        (Act::ForgetJob { name, key }, ActFacts::ForgotJob { name: forgot, key: its }) => (name, key) == (forgot, its),
        (Act::AllowJobs, ActFacts::AllowedJobs) => true,
        _ => false,
    }
}
