//! What an administrator can do: break a grant, evict a session, waive a rest, freeze, thaw, set limits, and act on jobs.
//!
//! Every act names its target by id, so a repeat finds it done and cannot hit a successor. An act tells the clients that it
//! hits, with the beginning of its reason; it does not stop a holder. Only fencing stops its writes.

use crate::bounds::{self, Bound};
use crate::command::{Act, Admin, Scope};
use crate::digest::Term;
use crate::event::ActFacts;
use crate::outcome::{GrantEnd, Outcome, Refusal, SessionEnd};
use crate::planted;
use crate::record::FreezeRecord;
use crate::state::LockState;
use crate::waiter::{Freed, Parked};
use crate::words::{FreezeId, ToldReason};

impl LockState {
    pub(crate) fn administer(&mut self, admin: Admin) -> Outcome {
        match self.act(admin) {
            Ok(()) => Outcome::Done,
            Err(outcome) => outcome,
        }
    }

    fn act(&mut self, admin: Admin) -> Result<(), Outcome> {
        let Admin { by, reason, act } = admin;
        match act {
            // Rule: break
            Act::Break { grant } => {
                let record = &self.grants.get(&grant).ok_or(Outcome::NotFound)?.record;
                let names = record.held.cloned_names();
                self.effects.announce_act(&by, &reason, ActFacts::Broke { grant, names });
                self.end_grant(grant, &GrantEnd::Broken(ToldReason::from(&reason)));
            }
            Act::Evict { session } => {
                self.sessions.get(&session).ok_or(Outcome::NotFound)?;
                self.effects.announce_act(&by, &reason, ActFacts::Evicted(session));
                self.end_session(session, &SessionEnd::Evicted(ToldReason::from(&reason)));
            }
            Act::WaiveRest { grant } => {
                let names = self.rests.get(&grant).ok_or(Outcome::NotFound)?.record.held.cloned_names();
                self.effects.announce_act(&by, &reason, ActFacts::WaivedRest { grant, names });
                self.end_rest(grant, true);
            }
            // Rule: freeze
            Act::Freeze { freeze, scope } => {
                if let Some(existing) = self.freezes.get(freeze) {
                    let is_same = existing.record.scope == scope;
                    return if is_same { Ok(()) } else { Err(Outcome::Refused(Refusal::FreezeExists)) };
                }
                if matches!(&scope, Scope::Prefix(prefix) if prefix.len() > bounds::NAME_BYTES_MAX) {
                    return Err(Outcome::Refused(Refusal::Bound(Bound::NameBytes)));
                }
                if self.freezes.len() >= bounds::FREEZES_MAX {
                    return Err(Outcome::Refused(Refusal::Bound(Bound::Freezes)));
                }
                self.effects.announce_act(&by, &reason, ActFacts::Froze { freeze, scope: scope.clone() });
                self.insert_freeze(FreezeRecord { id: freeze, scope, by, reason, since: self.stamp });
            }
            Act::Thaw { freeze } => {
                let scope = self.freezes.get(freeze).ok_or(Outcome::NotFound)?.record.scope.clone();
                self.effects.announce_act(&by, &reason, ActFacts::Thawed { freeze, scope });
                self.thaw(freeze);
            }
            // Rule: semaphore
            Act::SetLimit { name, limit } => {
                self.set_limit(&name, limit)?;
                self.effects.announce_act(&by, &reason, ActFacts::LimitChanged { name: name.clone(), limit });
                self.refuse_unservable(&name, &ToldReason::from(&reason));
            }
            Act::CompleteJob { name, key, keep } => self.complete_job(&by, &reason, name, key, keep)?,
            Act::ForgetJob { name, key } => self.forget_job(&by, &reason, name, key)?,
            // Rule: restore
            Act::AllowJobs => {
                if self.jobs_refused {
                    self.jobs_refused = false;
                    self.effects.announce_act(&by, &reason, ActFacts::AllowedJobs);
                }
            }
        }
        Ok(())
    }

    /// Puts a freeze into the state, new or from a snapshot. Requests that wait already notice it
    /// when they are looked at again.
    pub(crate) fn insert_freeze(&mut self, record: FreezeRecord) {
        let mut term = Term::default();
        self.digest.put(&mut term, &("freeze", &record));
        self.freezes.insert(record, term);
    }

    fn thaw(&mut self, id: FreezeId) {
        let freeze = self.freezes.remove(id).expect("a freeze is thawed once");
        self.digest.take(freeze.term);
        for arrival in freeze.parked {
            let waiter = self.waiters.get_mut(&arrival).expect("a parked request waits");
            waiter.parked = Parked::Nowhere;
            if planted::thaw_wakes_waiters() {
                self.freed.push(Freed::Waiter(arrival));
            }
        }
        let semaphores = self.semaphores.keys().filter(|name| freeze.record.scope.covers(name));
        self.freed.extend(semaphores.cloned().map(Freed::Semaphore));
    }
}
