//! The ledger: the state as a watcher derives it from events alone, with the invariants that are checked at each event.
//!
//! It is a third version of the state, besides the records of the state machine and the model. Each event has its own
//! position, so exclusion, token order and the order of grants are checked at every event, not only between entries.

use fencepost_core::*;

use super::Model;
use super::asking::{footprint_names, held_mode_at, permits_at};

#[derive(Clone, Debug, PartialEq)]
struct Holding {
    grant: GrantId,
    token: Token,
    session: SessionId,
    owner: Option<OwnerName>,
    held: Held,
    count: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct Resting {
    grant: GrantId,
    token: Token,
    held: Held,
    until: LogicalMs,
}

#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    arrival: Arrival,
    request: RequestFacts,
}

#[derive(Clone, Debug, PartialEq)]
struct Limit {
    name: Name,
    limit: Permits,
    administered: bool,
}

/// Sessions, holders, rests, waiters and limits, derived from events.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    sessions: Vec<SessionId>,
    holdings: Vec<Holding>,
    rests: Vec<Resting>,
    waiting: Vec<Waiting>,
    limits: Vec<Limit>,
    last_token: u64,
    last_arrival: u64,
}

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
pub(super) use ensure;

impl Ledger {
    /// The ledger of a state whose earlier events are unknown.
    pub fn of(state: &Model) -> Ledger {
        let mut ledger = Ledger {
            sessions: state.sessions.iter().map(|session| session.id).collect(),
            holdings: state.grants.iter().map(holding).collect(),
            rests: state.rests.iter().map(resting).collect(),
            waiting: state.waiters.iter().map(waiting).collect(),
            limits: state.semaphores.iter().map(limit).collect(),
            last_token: state.header.last_token,
            last_arrival: state.header.last_arrival,
        };
        ledger.sort();
        ledger
    }

    /// Applies the events of one entry. The batch is needed for limits that came with a request.
    pub fn follow(&mut self, batch: &Batch, effects: &Effects) -> Result<(), String> {
        for (ordinal, event) in effects.events.iter().enumerate() {
            self.event(event, batch, effects).map_err(|why| format!("{why}\nat event {ordinal}: {event:?}"))?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, batch: &Batch, effects: &Effects) -> Result<(), String> {
        match event {
            Event::SessionOpened { session, .. } => {
                ensure!(!self.sessions.contains(session), "session opened twice");
                self.sessions.push(*session);
            }
            Event::SessionEnded { session, .. } => {
                ensure!(self.sessions.contains(session), "an unknown session ended");
                self.sessions.retain(|other| other != session);
            }
            Event::Queued { request, arrival } => {
                self.i4_session_lives(request.session)?;
                ensure!(arrival.0 > self.last_arrival, "I5: arrival numbers do not rise");
                self.last_arrival = arrival.0;
                self.learn_limit(request, batch, effects);
                self.waiting.push(Waiting { arrival: *arrival, request: request.clone() });
            }
            Event::Granted { request, grant, token, count } => {
                self.learn_limit(request, batch, effects);
                self.granted(request, *grant, *token, *count)?;
            }
            Event::NotGranted { request, .. } => {
                self.waiting.retain(|other| !same_request(&other.request, request));
                self.forget_unused_limits();
            }
            Event::Ended { grant, token, session, owner, held, count_left, how, rests_until } => {
                let Some(at) = self.holdings.iter().position(|holding| holding.grant == *grant) else {
                    return Err("I3: a grant ended that was not held".to_string());
                };
                let before = self.holdings[at].clone();
                let count = before.count;
                let ended = Holding {
                    grant: *grant,
                    token: *token,
                    session: *session,
                    owner: owner.clone(),
                    held: held.clone(),
                    count,
                };
                ensure!(before == ended, "I3: the ended grant is not the one that was held: {before:?}");
                ensure!(*count_left == 0 || *how == GrantEnd::Released, "only a release can leave counts");
                if *count_left > 0 {
                    ensure!(*count_left + 1 == count, "I11: a release takes one count away, not {count}");
                    self.holdings[at].count = *count_left;
                    return Ok(());
                }
                ensure!(*how != GrantEnd::Released || count == 1, "I11: one release ended {count} counts");
                self.holdings.remove(at);
                ensure!(rests_until.is_none() || how.involuntary(), "lock-delay: a grant rests after a voluntary end");
                if let Some(until) = rests_until {
                    self.rests.push(Resting { grant: *grant, token: *token, held: held.clone(), until: *until });
                }
                self.forget_unused_limits();
            }
            Event::RestEnded { grant, .. } => {
                ensure!(self.rests.iter().any(|rest| rest.grant == *grant), "a rest ended that did not exist");
                self.rests.retain(|rest| rest.grant != *grant);
                self.forget_unused_limits();
            }
            Event::Converted { grant, token, held, .. } => self.converted(*grant, *token, held)?,
            Event::Contended { grant, .. } => {
                ensure!(self.holdings.iter().any(|holding| holding.grant == *grant), "contended but not held");
            }
            Event::ValueSet { grant, name, .. } => {
                let of = self.holdings.iter().find(|holding| holding.grant == *grant);
                let exclusive = of.is_some_and(|holding| held_mode_at(&holding.held, name) == Some(Mode::X));
                ensure!(exclusive, "I11: a value was set without the exclusive lock");
            }
            Event::Administered { act: ActFacts::LimitChanged { name, limit }, .. } => {
                let known = self.limits.iter_mut().find(|other| other.name == *name);
                match (known, limit) {
                    (Some(known), Some(limit)) => (known.limit, known.administered) = (*limit, true),
                    (Some(known), None) => known.administered = false,
                    (None, Some(limit)) => {
                        self.limits.push(Limit { name: name.clone(), limit: *limit, administered: true })
                    }
                    (None, None) => return Err("a limit was taken away that did not exist".to_string()),
                }
                self.forget_unused_limits();
            }
            Event::Administered { .. } | Event::JobsFill { .. } => {}
            // Followed in `job_book`.
            Event::Job { .. } => {}
        }
        Ok(())
    }

    fn granted(&mut self, request: &RequestFacts, id: GrantId, token: Token, count: u32) -> Result<(), String> {
        self.i4_session_lives(request.session)?;
        self.i7_nothing_of_ended_sessions()?;
        if let Some(holding) = self.holdings.iter_mut().find(|holding| holding.grant == id) {
            let same_owner = holding.session == request.session && holding.owner == request.owner;
            ensure!(same_owner && request.owner.is_some(), "I1: re-entry into another owner's grant");
            ensure!(holding.token == token && holding.count + 1 == count, "re-entry: wrong token or count");
            holding.count = count;
            return Ok(());
        }
        ensure!(count == 1 && id.0 == token.0, "a first grant has count one and its token as its id");
        self.i2_token_rises(token)?;
        let arrival = self.waiting.iter().find(|waiting| same_request(&waiting.request, request)).map(|w| w.arrival);
        self.waiting.retain(|waiting| !same_request(&waiting.request, request));
        self.i5_keeps_the_order(request, arrival)?;
        self.holdings.push(Holding {
            grant: id,
            token,
            session: request.session,
            owner: request.owner.clone(),
            held: request.wants.clone(),
            count,
        });
        self.i1_compatible(id, None)
    }

    fn converted(&mut self, id: GrantId, token: Token, held: &Held) -> Result<(), String> {
        let Some(at) = self.holdings.iter().position(|holding| holding.grant == id) else {
            return Err("converted but not held".to_string());
        };
        let (Held::Locks(before), Held::Locks(after)) = (self.holdings[at].held.clone(), held) else {
            return Err("permits were converted".to_string());
        };
        let pairs = || before.iter().zip(after);
        let same_names = before.len() == after.len() && pairs().all(|(a, b)| a.name == b.name);
        ensure!(same_names, "I8: a conversion changed which names are held");
        if token == self.holdings[at].token {
            ensure!(pairs().all(|(a, b)| b.mode <= a.mode), "I2: a stronger mode without a new token");
            self.holdings[at].held = held.clone();
            return Ok(());
        }
        self.i2_token_rises(token)?;
        ensure!(pairs().all(|(a, b)| b.mode >= a.mode), "a weakening with a new token");
        let upgrade = self.waiting.iter().find(|waiting| waiting.request.converts == Some(id)).cloned();
        self.waiting.retain(|waiting| waiting.request.converts != Some(id));
        if let Some(upgrade) = upgrade {
            self.i5_keeps_the_order(&upgrade.request, Some(upgrade.arrival))?;
        }
        let before = std::mem::replace(&mut self.holdings[at].held, held.clone());
        self.holdings[at].token = token;
        self.i1_compatible(id, Some(&before))
    }

    fn same_owner(a: &Holding, b: &Holding) -> bool {
        a.grant == b.grant || (a.session == b.session && a.owner.is_some() && a.owner == b.owner)
    }

    /// I1: a new grant, or a converted one, is compatible with everything that other owners hold, and permits stay within the
    /// limit. `before` is what a converted grant held.
    fn i1_compatible(&self, id: GrantId, before: Option<&Held>) -> Result<(), String> {
        let new = self.holdings.iter().find(|holding| holding.grant == id).expect("the caller has just added it");
        let (own, others): (Vec<_>, Vec<_>) =
            self.holdings.iter().partition(|other| Ledger::same_owner(new, other) && other.grant != id);
        let others = others.into_iter().filter(|other| other.grant != id).map(|other| &other.held);
        let others = others.chain(self.rests.iter().map(|rest| &rest.held));
        match &new.held {
            Held::Locks(locks) => {
                let names = footprint_names(locks).into_iter().filter(|name| {
                    // A name is not checked if the owner already held it in a sufficient mode. There, a rest of another grant of the
                    // same owner may overlap, and that is allowed.
                    let own = own.iter().map(|other| &other.held).chain(before);
                    let held = own.filter_map(|held| held_mode_at(held, name)).reduce(Mode::merge);
                    let mine = held_mode_at(&new.held, name).expect("a name of the footprint");
                    !held.is_some_and(|held| held.covers(mine))
                });
                let names: Vec<Name> = names.collect();
                for other in others {
                    for name in &names {
                        let (mine, theirs) = (held_mode_at(&new.held, name), held_mode_at(other, name));
                        let overlap = mine.zip(theirs).is_some_and(|(mine, theirs)| !mine.compatible(theirs));
                        ensure!(!overlap, "I1: {mine:?} granted on {name} beside {theirs:?} of {other:?}");
                        ensure!(permits_at(other, name).is_none(), "I1: lock and permits on {name}");
                    }
                }
            }
            Held::Permits { name, permits } => {
                let out: u64 = others.filter_map(|other| permits_at(other, name)).map(|n| u64::from(n.get())).sum();
                let out = out + u64::from(permits.get());
                let limit = self.limits.iter().find(|limit| limit.name == *name);
                let Some(limit) = limit.map(|limit| u64::from(limit.limit.get())) else {
                    return Err(format!("I1: permits of {name} without a limit"));
                };
                ensure!(out <= limit, "I1: {out} permits of {name} are out, the limit is {limit}");
            }
        }
        Ok(())
    }

    /// I2: tokens rise strictly, so none comes twice.
    fn i2_token_rises(&mut self, token: Token) -> Result<(), String> {
        ensure!(token.0 > self.last_token, "I2: token {} after {}", token.0, self.last_token);
        self.last_token = token.0;
        Ok(())
    }

    /// I4: nothing is granted to a session that has ended.
    fn i4_session_lives(&self, session: SessionId) -> Result<(), String> {
        ensure!(self.sessions.contains(&session), "I4: {session:?} has ended before this event");
        Ok(())
    }

    /// I7: when something is granted, everything that belonged to an ended session is gone.
    fn i7_nothing_of_ended_sessions(&self) -> Result<(), String> {
        let holders = self.holdings.iter().map(|holding| holding.session);
        let left = holders.chain(self.waiting.iter().map(|w| w.request.session)).find(|s| !self.sessions.contains(s));
        ensure!(left.is_none(), "I7: something is granted while the ended {left:?} still holds or waits");
        Ok(())
    }

    /// The mode that the owner of a request holds on a name.
    fn own_mode(&self, request: &RequestFacts, name: &Name) -> Option<Mode> {
        let own = self.holdings.iter().filter(|holding| match (&request.owner, request.converts) {
            (Some(_), _) => holding.session == request.session && holding.owner == request.owner,
            (None, converts) => converts == Some(holding.grant),
        });
        own.filter_map(|holding| held_mode_at(&holding.held, name)).reduce(Mode::merge)
    }

    /// I5: a grant passes no earlier request that it conflicts with, and a fresh request passes no waiting upgrade that it
    /// conflicts with.
    fn i5_keeps_the_order(&self, request: &RequestFacts, arrival: Option<Arrival>) -> Result<(), String> {
        let earlier = |other: &Waiting| arrival.is_none_or(|arrival| other.arrival < arrival);
        let locks = match &request.wants {
            Held::Locks(locks) => locks,
            Held::Permits { name, .. } => {
                let passed = self.waiting.iter().find(|w| earlier(w) && permits_at(&w.request.wants, name).is_some());
                ensure!(passed.is_none(), "I5: permits granted past {passed:?}");
                return Ok(());
            }
        };
        for name in footprint_names(locks) {
            let need = held_mode_at(&request.wants, &name).expect("a name of the footprint");
            let own = self.own_mode(request, &name);
            if own.is_some_and(|own| own.covers(need)) {
                continue;
            }
            for other in &self.waiting {
                let Some(theirs) = held_mode_at(&other.request.wants, &name) else { continue };
                let passed = match (own, self.own_mode(&other.request, &name)) {
                    (_, Some(holds)) if holds.covers(theirs) => false,
                    (None, Some(holds)) => !need.compatible(holds.merge(theirs)),
                    (None, None) => earlier(other) && !need.compatible(theirs),
                    (Some(own), Some(_)) => earlier(other) && !own.merge(need).compatible(Mode::U),
                    (Some(_), None) => false,
                };
                ensure!(!passed, "I5: granted on {name} past {other:?}");
            }
        }
        Ok(())
    }

    /// I3, I8: the records are exactly what follows from the events.
    pub fn i3_i8_records_agree(&mut self, after: &Model) -> Result<(), String> {
        self.sort();
        let records = Ledger::of(after);
        ensure!(self.sessions == records.sessions, "I4: sessions: {:?}\nevents: {:?}", records.sessions, self.sessions);
        ensure!(self.holdings == records.holdings, "I3: grants: {:#?}\nevents: {:#?}", records.holdings, self.holdings);
        ensure!(self.rests == records.rests, "I3: rests: {:#?}\nevents: {:#?}", records.rests, self.rests);
        ensure!(self.waiting == records.waiting, "I8: waiters: {:#?}\nevents: {:#?}", records.waiting, self.waiting);
        ensure!(self.limits == records.limits, "I1: limits: {:#?}\nevents: {:#?}", records.limits, self.limits);
        ensure!(
            self.last_token == records.last_token,
            "I2: last token {}, by events {}",
            records.last_token,
            self.last_token
        );
        // A refused deadlock uses up an arrival number without an event.
        self.last_arrival = records.last_arrival;
        Ok(())
    }

    fn sort(&mut self) {
        self.sessions.sort();
        self.holdings.sort_by_key(|holding| holding.grant);
        self.rests.sort_by_key(|rest| rest.grant);
        self.waiting.sort_by_key(|waiting| waiting.arrival);
        self.limits.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Notes the limit that came with a request, for a semaphore without one.
    fn learn_limit(&mut self, request: &RequestFacts, batch: &Batch, effects: &Effects) {
        let Held::Permits { name, .. } = &request.wants else { return };
        if self.limits.iter().any(|limit| limit.name == *name) {
            return;
        }
        for (at, operation) in batch.operations.iter().enumerate() {
            let is_new = effects.replies[batch.renewals.len() + at].repeat.is_none();
            if let Operation::Request(Request { session, number, action: Action::TakePermits(take), .. }) = operation
                && (*session, *number) == (request.session, request.number)
                && let Some(limit) = take.limit
                && is_new
            {
                self.limits.push(Limit { name: name.clone(), limit, administered: false });
                return;
            }
        }
    }

    fn forget_unused_limits(&mut self) {
        let held = self.holdings.iter().map(|holding| &holding.held).chain(self.rests.iter().map(|rest| &rest.held));
        let used: Vec<&Held> = held.chain(self.waiting.iter().map(|waiting| &waiting.request.wants)).collect();
        self.limits
            .retain(|limit| limit.administered || used.iter().any(|held| permits_at(held, &limit.name).is_some()));
    }
}

fn same_request(a: &RequestFacts, b: &RequestFacts) -> bool {
    (a.session, a.number) == (b.session, b.number)
}

fn holding(grant: &GrantRecord) -> Holding {
    Holding {
        grant: grant.id,
        token: grant.token,
        session: grant.session,
        owner: grant.owner.clone(),
        held: grant.held.clone(),
        count: grant.count,
    }
}

fn resting(rest: &RestRecord) -> Resting {
    Resting { grant: rest.grant, token: rest.token, held: rest.held.clone(), until: rest.until }
}

fn waiting(waiter: &WaiterRecord) -> Waiting {
    Waiting { arrival: waiter.arrival, request: Model::facts(waiter) }
}

fn limit(semaphore: &SemaphoreRecord) -> Limit {
    Limit { name: semaphore.name.clone(), limit: semaphore.limit, administered: semaphore.administered }
}
