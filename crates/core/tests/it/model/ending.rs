//! How things end in the model: by time, by release or cancel, with their session, or by an administrator.
//!
//! Also the other acts of holders and administrators: extend, set a value, freeze, set a limit.

use fencepost_core::*;

use super::Model;
use super::asking::{boxed_unless_default, names_of, permits_at};

/// The deadline of a lease that was last renewed at `renewed`.
// Rule: failover-grace
pub fn lease_deadline(renewed: LogicalMs, ttl: Ttl, grace_at: Option<LogicalMs>) -> LogicalMs {
    let plain = renewed.0 + ttl.millis().get();
    let lifted = match grace_at {
        Some(grace) if grace >= renewed => {
            let least = grace.0 + ttl.millis().get().min(bounds::FAILOVER_GRACE_MS);
            least.min(plain + bounds::FAILOVER_GRACE_MS)
        }
        _ => 0,
    };
    LogicalMs(plain.max(lifted))
}

impl Model {
    pub fn session_deadline(&self, session: &SessionRecord) -> LogicalMs {
        lease_deadline(session.renewed_at, session.ttl, self.header.grace_at)
    }

    // Rule: ttl
    pub fn ttl_deadline(&self, grant: &GrantRecord) -> Option<LogicalMs> {
        let ttl = grant.terms.as_ref()?.ttl?;
        let renewed_at = self.session(grant.session).expect("a grant ends with its session").renewed_at;
        Some(lease_deadline(grant.granted_at.max(renewed_at), ttl, self.header.grace_at))
    }

    /// The earliest stamp at which something is due.
    pub fn next_deadline(&self) -> Option<LogicalMs> {
        let sessions = self.sessions.iter().map(|session| self.session_deadline(session));
        let leases = self.grants.iter().filter_map(|grant| self.ttl_deadline(grant));
        let holds = self.grants.iter().filter_map(|grant| grant.hold_until);
        let waits = self.waiters.iter().filter_map(|waiter| waiter.until);
        let rests = self.rests.iter().map(|rest| rest.until);
        sessions.chain(leases).chain(holds).chain(waits).chain(rests).min()
    }

    /// Ends everything that is due, as one set: what is due is decided before anything ends.
    // Rule: within-an-entry, never-early
    pub fn end_what_is_due(&mut self) {
        let now = self.now();
        let due = |deadline: Option<LogicalMs>| deadline.is_some_and(|deadline| deadline <= now);
        let mut sessions: Vec<SessionId> = (self.sessions.iter())
            .filter(|session| due(Some(self.session_deadline(session))))
            .map(|session| session.id)
            .collect();
        sessions.sort();
        let mut grants: Vec<(GrantId, GrantEnd)> = Vec::new();
        for grant in &self.grants {
            if due(self.ttl_deadline(grant)) {
                grants.push((grant.id, GrantEnd::Ttl));
            } else if due(grant.hold_until) {
                grants.push((grant.id, GrantEnd::MaxHold));
            }
        }
        grants.sort_by_key(|(id, _)| *id);
        let mut waits: Vec<Arrival> =
            self.waiters.iter().filter(|waiter| due(waiter.until)).map(|waiter| waiter.arrival).collect();
        waits.sort();
        let mut rests: Vec<GrantId> =
            self.rests.iter().filter(|rest| due(Some(rest.until))).map(|rest| rest.grant).collect();
        rests.sort();

        for session in sessions {
            self.end_session(session, SessionEnd::Expired);
        }
        for (grant, how) in grants {
            if self.grant(grant).is_some() {
                self.end_grant(grant, how);
            }
        }
        for arrival in waits {
            if self.waiters.iter().any(|waiter| waiter.arrival == arrival) {
                self.end_wait(arrival, Outcome::TimedOut);
            }
        }
        for rest in rests {
            self.end_rest(rest, false);
        }
    }

    // Rule: session-end
    pub fn end_session(&mut self, id: SessionId, how: SessionEnd) {
        self.event(Event::SessionEnded { session: id, how: how.clone() });
        let mut waits: Vec<Arrival> =
            self.waiters.iter().filter(|waiter| waiter.session == id).map(|waiter| waiter.arrival).collect();
        waits.sort();
        for arrival in waits {
            self.end_wait(arrival, Outcome::SessionEnded(how.clone()));
        }
        let mut grants: Vec<GrantId> =
            self.grants.iter().filter(|grant| grant.session == id).map(|grant| grant.id).collect();
        grants.sort();
        for grant in grants {
            self.end_grant(grant, GrantEnd::Session(how.clone()));
        }
        self.answers.retain(|answer| answer.session != id);
        self.sessions.retain(|session| session.id != id);
        self.push(Push::SessionEnded { session: id, how });
    }

    pub fn end_wait(&mut self, arrival: Arrival, outcome: Outcome) {
        let at = self
            .waiters
            .iter()
            .position(|waiter| waiter.arrival == arrival)
            .expect("the caller has checked that it exists");
        let waiter = self.waiters.remove(at);
        let now = self.now();
        self.record_answer(waiter.session, waiter.number, now, outcome.clone());
        let (session, number) = (waiter.session, waiter.number);
        self.push(Push::Ended { session, number, outcome: outcome.clone() });
        self.event(Event::NotGranted { request: Model::facts(&waiter), outcome });
    }

    pub fn end_grant(&mut self, id: GrantId, how: GrantEnd) {
        let upgrade = self.waiters.iter().find(|waiter| match waiter.wants {
            Wants::Conversion { grant, .. } => grant == id,
            _ => false,
        });
        if let Some(arrival) = upgrade.map(|waiter| waiter.arrival) {
            self.end_wait(arrival, Outcome::GrantEnded(how.clone()));
        }
        let at = self.grants.iter().position(|grant| grant.id == id).expect("the caller has checked that it exists");
        let grant = self.grants.remove(at);
        self.note_loosened(&grant);
        let now = self.now();
        // Rule: lock-delay
        let delay = grant.terms.as_ref().map_or(Millis::ZERO, |terms| terms.lock_delay.millis());
        let rests_until = (how.involuntary() && delay > Millis::ZERO).then(|| now.after(delay));
        if let Some(until) = rests_until {
            self.rests.push(RestRecord { grant: id, token: grant.token, held: grant.held.clone(), since: now, until });
        }
        self.end_job(&grant, &how);
        let (session, token) = (grant.session, grant.token);
        let (owner, held) = (grant.owner, grant.held);
        let (count_left, ended) = (0, how.clone());
        self.event(Event::Ended { grant: id, token, session, owner, held, count_left, how: ended, rests_until });
        if how.involuntary() && !matches!(how, GrantEnd::Session(_)) {
            let lost = &mut self.session_mut(session).expect("a grant ends with its session").lost;
            lost.push((id, how.clone()));
            lost.sort_by_key(|(id, _)| *id);
            if lost.len() > bounds::LOST_GRANTS_REMEMBERED_MAX {
                lost.remove(0);
            }
            self.push(Push::Lost { session, grant: id, how });
        }
    }

    fn end_rest(&mut self, id: GrantId, waived: bool) {
        let at = self.rests.iter().position(|rest| rest.grant == id).expect("the caller has checked that it exists");
        let rest = self.rests.remove(at);
        self.event(Event::RestEnded { grant: id, names: names_of(&rest.held), waived });
    }

    pub fn grant_of(&self, session: SessionId, id: GrantId) -> Option<&GrantRecord> {
        self.grant(id).filter(|grant| grant.session == session)
    }

    /// The answer to a session that names a grant that it does not hold.
    // Rule: owner-only
    pub fn why_not_held(&self, session: SessionId, id: GrantId) -> Outcome {
        let session = self.session(session).expect("the request was admitted");
        if self.grant(id).is_some() || id.0 > self.header.last_token || id.0 <= session.opened_after_token {
            return Outcome::NotOwner;
        }
        match session.lost.iter().find(|(lost, _)| *lost == id) {
            Some((_, how)) => Outcome::Expired(how.clone()),
            None => Outcome::AlreadyReleased,
        }
    }

    pub fn release(&mut self, session: SessionId, id: GrantId) -> Outcome {
        if self.grant_of(session, id).is_none() {
            return self.why_not_held(session, id);
        }
        Outcome::Released { count_left: self.give_back(id) }
    }

    /// Gives one count back and returns how many are left.
    fn give_back(&mut self, id: GrantId) -> u32 {
        let grant = self.grant_mut(id).expect("the caller has checked that it exists");
        if grant.count == 1 {
            self.end_grant(id, GrantEnd::Released);
            return 0;
        }
        grant.count -= 1;
        let GrantRecord { token, session, owner, held, count: count_left, .. } = grant.clone();
        let how = GrantEnd::Released;
        self.event(Event::Ended { grant: id, token, session, owner, held, count_left, how, rests_until: None });
        count_left
    }

    // Rule: max-hold
    pub fn extend(&mut self, session: SessionId, id: GrantId, max_hold: Millis) -> Outcome {
        let until = self.now().after(max_hold);
        if self.grant_of(session, id).is_none() {
            return self.why_not_held(session, id);
        }
        let grant = self.grant_mut(id).expect("just found");
        if grant.hold_until.is_none() {
            return Outcome::Refused(Refusal::NothingToExtend);
        }
        grant.hold_until = Some(until);
        Outcome::Extended { until }
    }

    // Rule: election
    pub fn set_value(&mut self, session: SessionId, id: GrantId, value: &Value) -> Outcome {
        let Some(grant) = self.grant_of(session, id) else {
            return self.why_not_held(session, id);
        };
        let Held::Locks(locks) = &grant.held else {
            return Outcome::Refused(Refusal::NotALock);
        };
        if locks.len() != 1 || locks[0].mode != LockMode::Exclusive {
            return Outcome::Refused(Refusal::NotAnElection);
        }
        let name = locks[0].name.clone();
        let mut terms = grant.terms.as_deref().cloned().unwrap_or_default();
        terms.value = Some(value.clone());
        self.grant_mut(id).expect("just found").terms = boxed_unless_default(&terms);
        self.event(Event::ValueSet { grant: id, name, value: value.clone() });
        Outcome::ValueSet
    }

    // Rule: cancel
    pub fn cancel(
        &mut self,
        session: SessionId,
        own_number: RequestNumber,
        target: RequestNumber,
        release_if_granted: bool,
    ) -> Outcome {
        if target == own_number {
            return Outcome::Refused(Refusal::CancelsItself);
        }
        if target.0 == 0 {
            return Outcome::Refused(Refusal::BadNumber);
        }
        if self.is_seen(session, target) {
            return Outcome::Refused(Refusal::AlreadySeen);
        }
        if let Some(arrival) = self.waiter(session, target).map(|waiter| waiter.arrival) {
            self.end_wait(arrival, Outcome::Cancelled);
            return Outcome::Cancelled;
        }
        let Some(answer) = self.answer(session, target).cloned() else {
            // When the request arrives, it finds this answer and is not carried out.
            let now = self.now();
            self.record_answer(session, target, now, Outcome::Cancelled);
            return Outcome::Cancelled;
        };
        let stands = self.grant_stands(&answer.outcome);
        match answer.outcome {
            Outcome::Granted { grant, .. } if release_if_granted && stands && !answer.given_back => {
                let count_left = self.give_back(grant);
                let given = self.answers.iter_mut().find(|other| other.session == session && other.number == target);
                given.expect("just found").given_back = true;
                Outcome::CancelReleased { grant, count_left }
            }
            Outcome::Granted { grant, .. } => Outcome::CancelTooLate(Late::Granted { grant, stands }),
            Outcome::Converted { grant, .. } => Outcome::CancelTooLate(Late::Converted { grant, stands }),
            Outcome::Cancelled => Outcome::Cancelled,
            _ => Outcome::CancelTooLate(Late::Ended),
        }
    }

    pub fn administer(&mut self, admin: &Admin) -> Outcome {
        match &admin.act {
            Act::Break { grant } => {
                let Some(names) = self.grant(*grant).map(|grant| names_of(&grant.held)) else {
                    return Outcome::NotFound;
                };
                self.announce(admin, ActFacts::Broke { grant: *grant, names });
                self.end_grant(*grant, GrantEnd::Broken(told(&admin.reason)));
            }
            Act::Evict { session } => {
                if self.session(*session).is_none() {
                    return Outcome::NotFound;
                }
                self.announce(admin, ActFacts::Evicted(*session));
                self.end_session(*session, SessionEnd::Evicted(told(&admin.reason)));
            }
            Act::WaiveRest { grant } => {
                let Some(rest) = self.rests.iter().find(|rest| rest.grant == *grant) else {
                    return Outcome::NotFound;
                };
                let names = names_of(&rest.held);
                self.announce(admin, ActFacts::WaivedRest { grant: *grant, names });
                self.end_rest(*grant, true);
            }
            Act::Freeze { freeze, scope } => return self.freeze(admin, *freeze, scope),
            Act::Thaw { freeze } => {
                let Some(at) = self.freezes.iter().position(|other| other.id == *freeze) else {
                    return Outcome::NotFound;
                };
                let scope = self.freezes.remove(at).scope;
                self.announce(admin, ActFacts::Thawed { freeze: *freeze, scope });
            }
            Act::SetLimit { name, limit } => return self.set_limit(admin, name, *limit),
            Act::CompleteJob { name, key, keep } => return self.complete_job(admin, name, key, *keep),
            Act::ForgetJob { name, key } => return self.forget_job(admin, name, key),
            Act::AllowJobs => return self.allow_jobs(admin),
        }
        Outcome::Done
    }

    pub fn announce(&mut self, admin: &Admin, act: ActFacts) {
        self.event(Event::Administered { by: admin.by.clone(), reason: admin.reason.clone(), act });
    }

    // Rule: freeze
    fn freeze(&mut self, admin: &Admin, id: FreezeId, scope: &Scope) -> Outcome {
        if let Some(freeze) = self.freezes.iter().find(|freeze| freeze.id == id) {
            return if freeze.scope == *scope { Outcome::Done } else { Outcome::Refused(Refusal::FreezeExists) };
        }
        if matches!(scope, Scope::Prefix(prefix) if prefix.len() > bounds::NAME_BYTES_MAX) {
            return Outcome::Refused(Refusal::Bound(Bound::NameBytes));
        }
        if self.freezes.len() >= bounds::FREEZES_MAX {
            return Outcome::Refused(Refusal::Bound(Bound::Freezes));
        }
        self.freezes.push(FreezeRecord {
            id,
            scope: scope.clone(),
            by: admin.by.clone(),
            reason: admin.reason.clone(),
            since: self.now(),
        });
        self.announce(admin, ActFacts::Froze { freeze: id, scope: scope.clone() });
        Outcome::Done
    }

    fn set_limit(&mut self, admin: &Admin, name: &Name, limit: Option<Permits>) -> Outcome {
        let known = self.semaphores.iter().position(|semaphore| semaphore.name == *name);
        let administered = known.is_some_and(|at| self.semaphores[at].administered);
        let facts = ActFacts::LimitChanged { name: name.clone(), limit };
        let Some(limit) = limit else {
            if !administered {
                return Outcome::NotFound;
            }
            self.semaphores[known.expect("it is administered")].administered = false;
            self.announce(admin, facts);
            return Outcome::Done;
        };
        if name.is_path() {
            return Outcome::Refused(Refusal::PathSemaphore(name.clone()));
        }
        if self.in_use_as_lock(name) {
            return Outcome::Refused(Refusal::IsLock(name.clone()));
        }
        let administered_count = self.semaphores.iter().filter(|semaphore| semaphore.administered).count();
        if !administered && administered_count >= bounds::LIMITS_MAX {
            return Outcome::Refused(Refusal::Bound(Bound::Limits));
        }
        let record = SemaphoreRecord { name: name.clone(), limit, administered: true };
        match known {
            Some(at) => self.semaphores[at] = record,
            None => self.semaphores.push(record),
        }
        self.announce(admin, facts);
        // Waiters that want more than the new limit are refused.
        let unservable = |waiter: &&WaiterRecord| permits_at(&waiter.wants.held(), name).is_some_and(|n| n > limit);
        let mut waits: Vec<Arrival> = self.waiters.iter().filter(unservable).map(|waiter| waiter.arrival).collect();
        waits.sort();
        for arrival in waits {
            let (name, reason) = (name.clone(), told(&admin.reason));
            self.end_wait(arrival, Outcome::Refused(Refusal::LimitLowered { name, limit, reason }));
        }
        Outcome::Done
    }
}

/// The beginning of a reason, as the clients that the act hits are told it.
// Rule: break
pub fn told(reason: &Reason) -> ToldReason {
    let mut line = String::new();
    for character in reason.as_str().chars() {
        if line.len() + character.len_utf8() > bounds::TOLD_REASON_BYTES_MAX {
            break;
        }
        line.push(if character.is_control() { ' ' } else { character });
    }
    ToldReason::new(&line).expect("short, and without control characters")
}
