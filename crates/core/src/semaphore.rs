//! Semaphores: names with a limit, of which requests take permits.
//!
//! Semaphores are kept apart from the lock table. They share the names, the token counter and the order of arrival with it,
//! and have no modes, no hierarchy, no owners and no fencing. Only the first request of a queue is considered for a grant,
//! so that small requests cannot starve a large one.

use std::collections::BTreeMap;

use crate::bounds::{self, Bound};
use crate::command::{TakePermits, Wait};
use crate::digest::Term;
use crate::event::RequestFacts;
use crate::once::Asker;
use crate::outcome::{Held, Outcome, Refusal};
use crate::planted;
use crate::record::{SemaphoreRecord, Wants};
use crate::state::LockState;
use crate::waiter::{Freed, NewWaiter};
use crate::words::{Arrival, GrantId, Name, Permits, ToldReason};

/// A semaphore that is in use or has an administrator's limit.
#[derive(Clone, Debug)]
pub(crate) struct Semaphore {
    pub(crate) record: SemaphoreRecord,
    /// The number of permits that are out, those of rests included. Exceeds a lowered limit until enough come back.
    pub(crate) out: u64,
    pub(crate) holders: BTreeMap<GrantId, Permits>,
    pub(crate) queue: BTreeMap<Arrival, Permits>,
    pub(crate) term: Term,
}

impl Semaphore {
    /// Whether this many permits are free.
    // Rule: semaphore
    pub(crate) fn fits(&self, permits: Permits) -> bool {
        planted::permits_out(self.out) + u64::from(permits.get()) <= u64::from(self.record.limit.get())
    }

    pub(crate) fn take(&mut self, grant: GrantId, permits: Permits) {
        self.out += u64::from(permits.get());
        self.holders.insert(grant, permits);
    }

    pub(crate) fn put_back(&mut self, grant: GrantId) {
        let permits = self.holders.remove(&grant).expect("permits are put back once");
        self.out -= u64::from(permits.get());
    }

    fn is_in_use(&self) -> bool {
        !self.holders.is_empty() || !self.queue.is_empty()
    }
}

impl LockState {
    pub(crate) fn take_permits(&mut self, asker: Asker, take: TakePermits) -> Outcome {
        let facts = RequestFacts {
            session: asker.session,
            number: asker.number,
            owner: None,
            wants: Held::Permits { name: take.name.clone(), permits: take.permits },
            converts: None,
        };
        self.try_take(asker, take, &facts).unwrap_or_else(|refusal| {
            let outcome = Outcome::Refused(refusal);
            self.effects.announce_not_granted(facts, &outcome);
            outcome
        })
    }

    fn try_take(&mut self, asker: Asker, take: TakePermits, facts: &RequestFacts) -> Result<Outcome, Refusal> {
        let TakePermits { name, permits, limit, wait, terms } = take;
        self.may_be_semaphore(&name)?;
        if terms.value.is_some() {
            return Err(Refusal::NotALock);
        }
        if terms.job.is_some() {
            return Err(Refusal::KeyNeedsExclusive);
        }
        let live = self.semaphores.get(&name).map(|semaphore| semaphore.record.limit);
        let limit = match (live, limit) {
            (Some(live), Some(limit)) if live != limit => return Err(Refusal::LimitDiffers { name, live }),
            (None, None) => return Err(Refusal::NoLimit(name)),
            (Some(limit), _) | (None, Some(limit)) => limit,
        };
        if permits > limit {
            return Err(Refusal::MoreThanLimit { name, limit });
        }
        self.may_hold_more(asker.session, 1)?;

        let passes = self.freezes.over(&name).is_none()
            && (self.semaphores.get(&name))
                .is_none_or(|semaphore| semaphore.queue.is_empty() && semaphore.fits(permits));
        if passes {
            self.use_semaphore(&name, limit);
            let outcome = self.grant(asker, None, Held::Permits { name, permits }, terms.boxed());
            self.effects.announce_granted(facts.clone(), &outcome);
            return Ok(outcome);
        }
        let Some(wait) = wait.patience() else { return Ok(self.permits_busy(name, permits)) };
        self.may_wait(asker.session, &Default::default())?;
        if self.semaphores.get(&name).is_some_and(|it| it.queue.len() >= bounds::WAITERS_PER_RESOURCE_MAX) {
            return Err(Refusal::Bound(Bound::WaitersPerResource));
        }
        self.use_semaphore(&name, limit);
        Ok(self.enqueue(NewWaiter { asker, owner: None, wants: Wants::Permits { name, permits }, wait, terms }))
    }

    /// Refuses a name that cannot be a semaphore: a path, or a name in use as a lock.
    pub(crate) fn may_be_semaphore(&self, name: &Name) -> Result<(), Refusal> {
        if name.is_path() {
            return Err(Refusal::PathSemaphore(name.clone()));
        }
        if self.resources.get(name).is_some() {
            return Err(Refusal::IsLock(name.clone()));
        }
        Ok(())
    }

    /// Creates the semaphore with the limit of the request, unless it exists.
    fn use_semaphore(&mut self, name: &Name, limit: Permits) {
        if !self.semaphores.contains_key(name) {
            self.insert_semaphore(SemaphoreRecord { name: name.clone(), limit, administered: false });
        }
    }

    /// Puts a semaphore into the state, new or from a snapshot.
    pub(crate) fn insert_semaphore(&mut self, record: SemaphoreRecord) {
        self.limit_count += usize::from(record.administered);
        let name = record.name.clone();
        let mut semaphore =
            Semaphore { record, out: 0, holders: BTreeMap::new(), queue: BTreeMap::new(), term: Term::default() };
        self.digest.put(&mut semaphore.term, &("semaphore", &semaphore.record));
        self.semaphores.insert(name, semaphore);
    }

    /// Forgets a semaphore that is not in use. A limit that an administrator set stays.
    // Rule: free-names
    pub(crate) fn forget_semaphore_if_free(&mut self, name: &Name) {
        if let Some(semaphore) = self.semaphores.get(name)
            && !semaphore.record.administered
            && !semaphore.is_in_use()
        {
            self.digest.take(semaphore.term);
            self.semaphores.remove(name);
        }
    }

    /// Sets, changes or takes away an administrator's limit. A lower limit revokes no permits: nothing new is granted until
    /// enough have come back.
    pub(crate) fn set_limit(&mut self, name: &Name, limit: Option<Permits>) -> Result<(), Outcome> {
        let Some(limit) = limit else {
            return match self.semaphores.get_mut(name) {
                Some(semaphore) if semaphore.record.administered => {
                    semaphore.record.administered = false;
                    self.digest.put(&mut semaphore.term, &("semaphore", &semaphore.record));
                    self.limit_count -= 1;
                    self.freed.push(Freed::Semaphore(name.clone()));
                    Ok(())
                }
                _ => Err(Outcome::NotFound),
            };
        };
        self.may_be_semaphore(name).map_err(Outcome::Refused)?;
        let is_administered = self.semaphores.get(name).is_some_and(|semaphore| semaphore.record.administered);
        if !is_administered && self.limit_count >= bounds::LIMITS_MAX {
            return Err(Outcome::Refused(Refusal::Bound(Bound::Limits)));
        }
        match self.semaphores.get_mut(name) {
            Some(semaphore) => {
                semaphore.record.limit = limit;
                semaphore.record.administered = true;
                self.digest.put(&mut semaphore.term, &("semaphore", &semaphore.record));
                self.limit_count += usize::from(!is_administered);
            }
            None => self.insert_semaphore(SemaphoreRecord { name: name.clone(), limit, administered: true }),
        }
        self.freed.push(Freed::Semaphore(name.clone()));
        Ok(())
    }

    /// Refuses the waiters that want more permits than the limit in force, which an administrator has just set.
    pub(crate) fn refuse_unservable(&mut self, name: &Name, reason: &ToldReason) {
        let Some(semaphore) = self.semaphores.get(name) else { return };
        let limit = semaphore.record.limit;
        let unservable: Vec<Arrival> =
            semaphore.queue.iter().filter(|(_, permits)| **permits > limit).map(|(arrival, _)| *arrival).collect();
        for arrival in unservable {
            let (name, reason) = (name.clone(), reason.clone());
            self.end_wait(arrival, Outcome::Refused(Refusal::LimitLowered { name, limit, reason }));
        }
    }
}

impl Wait {
    /// How long to wait; `None` if the request would not wait. A wait of zero is no wait.
    pub(crate) fn patience(self) -> Option<Wait> {
        match self {
            Wait::No => None,
            Wait::UpTo(limit) if limit.get() == 0 => None,
            wait => Some(wait),
        }
    }
}
