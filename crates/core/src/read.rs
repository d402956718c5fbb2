//! Queries: who holds what, who waits and why, and whether the grant of a token still stands. Nothing here changes the state.
//!
//! A listing comes in pages. A page looks at a bounded number of rows, whether they match or not, so that a read never
//! stalls the entries behind it. Views show deadlines and the stamp; remaining times are computed by callers that have a
//! clock.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use crate::bounds;
use crate::command::Terms;
use crate::grant::Grant;
use crate::lease;
use crate::mode::{Mode, ModeSet};
use crate::outcome::{Cycle, Holder, Takes};
use crate::record::{
    FreezeRecord, GrantRecord, JobRecord, RestRecord, SemaphoreRecord, SessionRecord, WaiterRecord, Wants,
};
use crate::resource::Stance;
use crate::state::LockState;
use crate::waiter::OwnerId;
use crate::words::{Arrival, GrantId, JobKey, LogicalMs, Name, OwnerName, RequestNumber, SessionId, Token};

/// A page of a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<Row, Key> {
    /// The matching rows.
    pub rows: Vec<Row>,
    /// Pass this as `after` to get the next page; `None` on the last page.
    pub next: Option<Key>,
}

/// A grant as observers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantView {
    /// The grant.
    pub record: GrantRecord,
    /// When it ends unless it is renewed or extended: the earliest of its session's deadline, its own TTL and its
    /// `max_hold`.
    pub deadline: LogicalMs,
}

/// A session as observers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionView {
    /// The session.
    pub record: SessionRecord,
    /// When it ends unless it is renewed.
    pub deadline: LogicalMs,
    /// The number of its grants.
    pub grants: usize,
    /// The number of its waiting requests.
    pub waits: usize,
}

/// Who holds a resource, who waits for it, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The resource.
    pub name: Name,
    /// The present stamp, to compute ages and remaining times.
    pub stamp: LogicalMs,
    /// Its holders, oldest grant first. Includes intentions of locks below it, and locks above that cover it.
    pub holders: Vec<HolderView>,
    /// The rests that keep it busy.
    pub rests: Vec<RestRecord>,
    /// The freezes that cover it.
    pub freezes: Vec<FreezeRecord>,
    /// If it is a semaphore: its record, and the number of permits that are out.
    pub semaphore: Option<(SemaphoreRecord, u64)>,
    /// The first waiters in queue order, at most as many as the caller asked for.
    pub queue: Vec<QueueView>,
    /// The number of all waiters.
    pub queue_len: usize,
    /// What blocks the first waiter, what blocks that one, and so on; empty if no request waits.
    pub chain: Vec<Blocker>,
    /// A circle of sessions that wait for each other; one of the waits is for this resource. Only a suspicion: a session can
    /// run several tasks, and the task that holds need not be the one that waits.
    pub suspected: Option<Cycle>,
}

/// A holder of a resource, with its deadline.
#[derive(Clone, Debug, PartialEq)]
pub struct HolderView {
    /// The holder.
    pub holder: Holder,
    /// The ancestor that it holds, if it covers the resource from there.
    pub covers_from: Option<Name>,
    /// When it ends unless it is renewed or extended.
    pub deadline: LogicalMs,
    /// The terms of its grant, if they are not the default.
    pub terms: Option<Box<Terms>>,
}

/// A waiting request, as one entry of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueView {
    /// Its place in this queue, counted from one.
    pub position: usize,
    /// The request.
    pub waiter: WaiterRecord,
    /// The mode or permits that it needs here.
    pub wants: Takes,
    /// Whether it is a conversion here, which goes ahead of all others.
    pub converts: bool,
}

/// One step of a chain of blockers: a waiting request, and what blocks it.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocker {
    /// The session of the request.
    pub session: SessionId,
    /// The name of the request's owner. `None` if the owner has no name.
    pub owner: Option<OwnerName>,
    /// The number of the request.
    pub number: RequestNumber,
    /// The resource where it is blocked.
    pub name: Name,
    /// What blocks it.
    pub by: BlockedBy,
}

/// What blocks a waiter.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockedBy {
    /// A grant. The chain goes on if its owner waits, too.
    Grant(Holder),
    /// The rest of a grant.
    Rest(Holder),
    /// An earlier request. It is the next step of the chain.
    Waiter(Arrival),
    /// A freeze.
    Freeze(FreezeRecord),
    /// Too few permits.
    Permits,
}

/// A job as observers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// The present stamp, to compute ages and remaining times.
    pub stamp: LogicalMs,
    /// What is remembered of it. `None` if no attempt has begun, or if it was forgotten.
    pub record: Option<JobRecord>,
    /// The grant of the client that works on it now.
    pub holder: Option<Holder>,
    /// The number of requests that wait for it.
    pub waiting: usize,
}

/// The result of a token check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// The grant stands and holds or covers the name.
    Stands {
        /// The grant.
        grant: GrantId,
        /// When it ends unless it is renewed or extended.
        deadline: LogicalMs,
    },
    /// No grant with this token holds or covers the name.
    Gone,
}

/// The number of records of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Living sessions.
    pub sessions: usize,
    /// Grants.
    pub grants: usize,
    /// Rests.
    pub rests: usize,
    /// Waiters.
    pub waiters: usize,
    /// Names that are held, resting or waited for, ancestors included.
    pub resources: usize,
    /// Semaphores in use or with a limit.
    pub semaphores: usize,
    /// Freezes.
    pub freezes: usize,
    /// Remembered jobs.
    pub jobs: u64,
    /// The bytes of their records.
    pub job_bytes: u64,
    /// Jobs that are held.
    pub jobs_held: u64,
    /// Whether acquires with a job key are refused after a restore.
    pub jobs_refused: bool,
    /// The last token given.
    pub last_token: Token,
}

impl LockState {
    /// Whether a grant with this token stands and holds the name, directly or by a lock on an ancestor.
    // Rule: check
    pub fn check(&self, name: &Name, token: Token) -> TokenCheck {
        match self.covering(name).find(|(_, grant)| grant.record.token == token) {
            Some((_, grant)) => {
                TokenCheck::Stands { grant: grant.record.id, deadline: self.grant_deadline(&grant.record) }
            }
            None => TokenCheck::Gone,
        }
    }

    /// Who holds a resource, who waits for it, and why, with the first `queue_max` waiters.
    // Rule: explain
    pub fn explain(&self, name: &Name, queue_max: usize) -> Explanation {
        let resource = self.resources.get(name);
        let semaphore = self.semaphores.get(name);
        let by_mode = resource.into_iter().flat_map(|it| it.holders.iter()).map(|(id, mode)| (id, Takes::Mode(mode)));
        let by_permits =
            semaphore.into_iter().flat_map(|it| it.holders.iter()).map(|(id, n)| (*id, Takes::Permits(*n)));
        let here: Vec<(GrantId, Takes)> = by_mode.chain(by_permits).collect();
        let above = self.covering(name).filter(|(at, _)| at != name).map(|(at, grant)| {
            let mode = grant.asked_mode(&at).expect("a covering grant was asked for on that name").mode();
            (Some(at), grant.record.id, Takes::Mode(mode))
        });
        let holders = (here.iter().map(|(id, takes)| (None, *id, *takes)).chain(above))
            .filter_map(|(covers_from, id, takes)| {
                let record = &self.grants.get(&id)?.record;
                let (holder, deadline) = (self.holder(id, takes), self.grant_deadline(record));
                Some(HolderView { holder, covers_from, deadline, terms: record.terms.clone() })
            })
            .collect();
        let queue_len = resource.and_then(|resource| resource.queue()).map_or(0, |queue| queue.len())
            + semaphore.map_or(0, |semaphore| semaphore.queue.len());
        let first = self.queue_order(name).next();
        let waiting = self.queue_order(name).take(bounds::SUSPECTED_STARTS_MAX).map(|view| view.waiter.arrival);
        Explanation {
            name: name.clone(),
            stamp: self.stamp,
            holders,
            rests: here.iter().filter_map(|(id, _)| Some(self.rests.get(id)?.record.clone())).collect(),
            freezes: self.freezes.iter().map(|it| &it.record).filter(|it| it.scope.covers(name)).cloned().collect(),
            semaphore: semaphore.map(|semaphore| (semaphore.record.clone(), semaphore.out)),
            queue_len,
            chain: first.map_or(Vec::new(), |first| self.blockers(first.waiter.arrival)),
            queue: self.queue_order(name).take(queue_max).collect(),
            suspected: self.suspect_at(waiting, name),
        }
    }

    /// Why a request waits: the chain of blockers from it to the root. `None` if it does not wait.
    // Rule: explain
    pub fn explain_wait(&self, session: SessionId, number: RequestNumber) -> Option<Vec<Blocker>> {
        let waits = &self.sessions.get(&session)?.waits;
        let at = waits.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(self.blockers(waits[at].1))
    }

    /// A session.
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        let session = self.sessions.get(&id)?;
        Some(SessionView {
            record: session.record.clone(),
            deadline: session.deadline(self.grace_at),
            grants: session.grants.len(),
            waits: session.waits.len(),
        })
    }

    /// A grant.
    pub fn grant_view(&self, id: GrantId) -> Option<GrantView> {
        let record = self.grants.get(&id)?.record.clone();
        Some(GrantView { deadline: self.grant_deadline(&record), record })
    }

    /// The grants after an id that hold a name with this prefix, oldest first.
    // Rule: read
    pub fn list_grants(&self, prefix: &str, after: Option<GrantId>, count: usize) -> Page<GrantView, GrantId> {
        let start = after.map_or(Unbounded, Excluded);
        page(self.grants.range((start, Unbounded)), count, |id, grant| {
            let matches = grant.record.held.names().any(|name| name.as_str().starts_with(prefix));
            if matches { self.grant_view(*id) } else { None }
        })
    }

    /// The sessions after an id, by id.
    pub fn list_sessions(&self, after: Option<SessionId>, count: usize) -> Page<SessionView, SessionId> {
        let start = after.map_or(Unbounded, Excluded);
        page(self.sessions.range((start, Unbounded)), count, |id, _| self.session(*id))
    }

    /// The waiters after an arrival that want a name with this prefix, in order of arrival.
    pub fn list_waiters(&self, prefix: &str, after: Option<Arrival>, count: usize) -> Page<WaiterRecord, Arrival> {
        let start = after.map_or(Unbounded, Excluded);
        page(self.waiters.range((start, Unbounded)), count, |_, waiter| {
            let matches = waiter.record.wants.held().names().any(|name| name.as_str().starts_with(prefix));
            matches.then(|| waiter.record.clone())
        })
    }

    /// The rests after an id whose grant held a name with this prefix, oldest grant first.
    pub fn list_rests(&self, prefix: &str, after: Option<GrantId>, count: usize) -> Page<RestRecord, GrantId> {
        let start = after.map_or(Unbounded, Excluded);
        page(self.rests.range((start, Unbounded)), count, |_, rest| {
            let matches = rest.record.held.names().any(|name| name.as_str().starts_with(prefix));
            matches.then(|| rest.record.clone())
        })
    }

    /// The semaphores after a name, in use or with a limit, by name.
    pub fn list_semaphores(&self, after: Option<&Name>, count: usize) -> Page<SemaphoreRecord, Name> {
        let start = after.map_or(Unbounded, Excluded);
        page(self.semaphores.range::<Name, _>((start, Unbounded)), count, |_, semaphore| Some(semaphore.record.clone()))
    }

    /// A job, whether it is remembered or not.
    pub fn job(&self, name: &Name, key: &JobKey) -> JobView {
        let holder = self.jobs.held(name).filter(|(_, held)| held == key);
        JobView {
            stamp: self.stamp,
            record: self.jobs.get(name, key, self.stamp).cloned(),
            holder: holder.map(|(grant, _)| self.holder(*grant, Takes::Mode(Mode::X))),
            waiting: self.jobs.waiting(name, key).count(),
        }
    }

    /// The remembered jobs of names with this prefix, after a job, by name and key.
    // Rule: read
    pub fn list_jobs(
        &self,
        prefix: &str,
        after: Option<&(Name, JobKey)>,
        count: usize,
    ) -> Page<JobRecord, (Name, JobKey)> {
        let mut page = Page { rows: Vec::new(), next: None };
        for (looked_at, job) in self.jobs.range(prefix, after).enumerate() {
            if looked_at == bounds::PAGE_ROWS_MAX || page.rows.len() == count.max(1) {
                return page;
            }
            page.next = Some((job.name.clone(), job.key.clone()));
            if job.until.is_none_or(|until| self.stamp < until) {
                page.rows.push(job.clone());
            }
        }
        page.next = None;
        page
    }

    /// All freezes, by id. There are at most a thousand.
    pub fn freezes(&self) -> impl Iterator<Item = &FreezeRecord> {
        self.freezes.iter().map(|freeze| &freeze.record)
    }

    /// The number of records of each kind.
    pub fn counts(&self) -> Counts {
        let jobs = self.jobs.room();
        Counts {
            sessions: self.sessions.len(),
            grants: self.grants.len(),
            rests: self.rests.len(),
            waiters: self.waiters.len(),
            resources: self.resources.len(),
            semaphores: self.semaphores.len(),
            freezes: self.freezes.len(),
            jobs: jobs.records,
            job_bytes: jobs.bytes,
            jobs_held: jobs.held,
            jobs_refused: self.jobs_refused,
            last_token: Token(self.last_token),
        }
    }

    /// No grant that stands has a token below this one, so a store may drop its marks below it.
    ///
    /// A grant's id never exceeds its token, so the smallest id is such a bound, and it is found at once.
    pub fn oldest_live_token(&self) -> Token {
        Token(self.grants.first_key_value().map_or(self.last_token + 1, |(id, _)| id.0))
    }

    /// When a grant ends unless it is renewed or extended.
    fn grant_deadline(&self, record: &GrantRecord) -> LogicalMs {
        let session = &self.sessions[&record.session];
        let own_ttl = record
            .terms
            .as_ref()
            .and_then(|terms| terms.ttl)
            .map(|ttl| lease::deadline(record.granted_at.max(session.record.renewed_at), ttl, self.grace_at));
        let ends = [Some(session.deadline(self.grace_at)), own_ttl, record.hold_until];
        ends.into_iter().flatten().min().expect("a session has a deadline")
    }

    /// The grants that hold a name or cover it from an ancestor, nearest name first, each with the name that it was asked
    /// for.
    fn covering(&self, name: &Name) -> impl Iterator<Item = (Name, &Grant)> {
        let names: Vec<Name> = std::iter::once(name.clone()).chain(name.ancestors().rev()).collect();
        let permits = self.semaphores.get(name).into_iter().flat_map(|semaphore| semaphore.holders.keys());
        let permits: Vec<_> = permits.filter_map(|id| Some((name.clone(), &**self.grants.get(id)?))).collect();
        let locks = names.into_iter().flat_map(move |at| {
            let holders = self.resources.get(&at).into_iter().flat_map(|resource| resource.holders.iter());
            holders.filter_map(move |(id, _)| {
                let grant = &**self.grants.get(&id)?;
                grant.asked_mode(&at).is_some().then(|| (at.clone(), grant))
            })
        });
        permits.into_iter().chain(locks)
    }

    /// The requests that wait for a name, in queue order: conversions first, then by arrival.
    fn queue_order(&self, name: &Name) -> impl Iterator<Item = QueueView> {
        let queue = self.resources.get(name).and_then(|resource| resource.queue());
        let converting = queue.into_iter().flat_map(|queue| queue.converting().map(|(arrival, _)| arrival));
        let fresh = queue.into_iter().flat_map(|queue| queue.fresh_in(ModeSet::ALL));
        let permits = self.semaphores.get(name).into_iter().flat_map(|semaphore| semaphore.queue.keys().copied());
        (1..).zip(converting.chain(fresh).chain(permits)).map(move |(position, arrival)| {
            let waiter = &self.waiters[&arrival];
            let stance = waiter.stances.iter().find(|(other, _)| other == name).map(|(_, stance)| *stance);
            let wants = match (&waiter.record.wants, stance) {
                (Wants::Permits { permits, .. }, _) => Takes::Permits(*permits),
                (_, Some(stance)) => Takes::Mode(stance.mode()),
                (_, None) => panic!("arrival {} is in the queue of {name} but has no stance there", arrival.0),
            };
            let converts = matches!(stance, Some(Stance::Converting(_)));
            QueueView { position, waiter: waiter.record.clone(), wants, converts }
        })
    }

    /// The chain of blockers that starts at a waiter and ends at something that does not wait.
    fn blockers(&self, start: Arrival) -> Vec<Blocker> {
        let mut chain = Vec::new();
        let mut visited = BTreeSet::new();
        let mut at = Some(start);
        while let Some(arrival) = at {
            // There can be a cycle if a deadlock search gave up. The chain then ends where the cycle closes.
            if !visited.insert(arrival) {
                break;
            }
            let record = &self.waiters[&arrival].record;
            let (name, by, next) = self.first_blocker(arrival);
            chain.push(Blocker {
                session: record.session,
                owner: record.owner.clone(),
                number: record.number,
                name,
                by,
            });
            at = next;
        }
        chain
    }

    /// The first name where a waiter is blocked, what blocks it there, and the waiting request to go on with, if any.
    fn first_blocker(&self, arrival: Arrival) -> (Name, BlockedBy, Option<Arrival>) {
        let waiter = &self.waiters[&arrival];
        let frozen = |name: &Name| self.freezes.over(name).and_then(|id| self.freezes.get(id));
        if let Wants::Permits { name, .. } = &waiter.record.wants {
            let before = self.semaphores[name].queue.range(..arrival).next_back().map(|(before, _)| *before);
            let by = match (frozen(name), before) {
                (Some(freeze), _) => BlockedBy::Freeze(freeze.record.clone()),
                (None, Some(before)) => BlockedBy::Waiter(before),
                (None, None) => BlockedBy::Permits,
            };
            return (name.clone(), by, before);
        }
        let owner: OwnerId = waiter.record.owner_id();
        for (name, stance) in &waiter.stances {
            if let Some(freeze) = frozen(name) {
                return (name.clone(), BlockedBy::Freeze(freeze.record.clone()), None);
            }
            if let Some((id, takes)) = self.conflicting_holders(&owner, name, *stance).next() {
                let holder = self.holder(id, takes);
                return match self.grants.get(&id) {
                    Some(grant) => (name.clone(), BlockedBy::Grant(holder), self.waiting_request(&grant.owner_id())),
                    None => (name.clone(), BlockedBy::Rest(holder), None),
                };
            }
            let queued = self.edges(arrival).find(|edge| edge.name == *name && edge.grant.is_none());
            if let Some(before) = queued.and_then(|edge| edge.next) {
                return (name.clone(), BlockedBy::Waiter(before), Some(before));
            }
        }
        panic!("arrival {} waits for nothing", arrival.0)
    }
}

/// Collects a page of up to `count` matches, looking at no more rows than a read may. A count of zero is taken as one: an
/// empty page could not say where the next one begins.
fn page<'a, Key: Clone + 'a, Stored: 'a, Row>(
    rows: impl Iterator<Item = (&'a Key, &'a Stored)>,
    count: usize,
    row: impl Fn(&Key, &Stored) -> Option<Row>,
) -> Page<Row, Key> {
    let mut page = Page { rows: Vec::new(), next: None };
    for (looked_at, (key, stored)) in rows.enumerate() {
        if looked_at == bounds::PAGE_ROWS_MAX || page.rows.len() == count.max(1) {
            return page;
        }
        page.rows.extend(row(key, stored));
        page.next = Some(key.clone());
    }
    page.next = None;
    page
}
