//! Snapshots: the state as records, and the state from records.
//!
//! A snapshot holds no derived data. A restore builds it again, with the same functions that `apply` uses. Records come
//! from a file that may be damaged, so each is checked before it is inserted. The bytes of a snapshot are `fencepost-wire`'s.

use crate::acquire::is_election;
use crate::bounds;
use crate::command::Terms;
use crate::event::Event;
use crate::footprint::checked_footprint;
use crate::once::Known;
use crate::outcome::{Effects, Held, SessionEnd};
use crate::planted;
use crate::record::{AnswerRecord, Record, Wants};
use crate::state::LockState;
use crate::words::{GrantId, LogicalMs, OwnerName, RequestNumber, SessionId};

/// Records that do not form a lock state: damaged, or written by another program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these records do not form a lock state: {what}")]
pub struct BadRecords {
    what: String,
}

impl LockState {
    /// The state as records in canonical order: equal states give equal lists.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let sessions = self.sessions.range(..).flat_map(|(_, session)| {
            let answers = session.answers.iter().map(|answer| Record::Answer(answer.record(session.record.id)));
            std::iter::once(Record::Session(session.record.clone())).chain(answers)
        });
        let waiters = self.waiters.values().filter(planted::is_in_snapshot);
        #[cfg(feature = "made-up-version")]
        let made_up = self.remark.iter().map(|remark| Record::Remark(remark.record.clone()));
        #[cfg(not(feature = "made-up-version"))]
        let made_up = std::iter::empty();
        std::iter::once(Record::Header(self.header()))
            .chain(made_up)
            .chain(sessions)
            .chain(self.semaphores.values().map(|semaphore| Record::Semaphore(semaphore.record.clone())))
            .chain(self.freezes.iter().map(|freeze| Record::Freeze(freeze.record.clone())))
            .chain(self.grants.values().map(|grant| Record::Grant(grant.record.clone())))
            .chain(self.rests.values().map(|rest| Record::Rest(rest.record.clone())))
            .chain(self.jobs.records().filter(|_| planted::jobs_are_in_snapshot()).cloned().map(Record::Job))
            .chain(waiters.map(|waiter| Record::Waiter(waiter.record.clone())))
    }

    /// The state with these records. They must be in the order of [`LockState::records`].
    ///
    /// # Errors
    /// [`BadRecords`] if they do not fit together.
    pub fn restore(hash_seed: u64, records: impl IntoIterator<Item = Record>) -> Result<LockState, BadRecords> {
        let bad = |what: String| BadRecords { what };
        let mut records = records.into_iter();
        let Some(Record::Header(header)) = records.next() else { return Err(bad("no header at the beginning".into())) };
        let mut state = LockState::new(hash_seed);
        state.version = header.version;
        state.stamp = header.stamp;
        state.last_token = header.last_token;
        state.last_arrival = header.last_arrival;
        state.grace_at = header.grace_at;
        state.jobs_refused = header.jobs_refused;
        for record in records {
            state.check_record(&record).map_err(bad)?;
            match record {
                Record::Header(_) => return Err(bad("a second header".into())),
                Record::Session(session) => state.insert_session(session),
                Record::Answer(answer) => state.insert_answer(answer),
                Record::Semaphore(semaphore) => state.insert_semaphore(semaphore),
                Record::Freeze(freeze) => state.insert_freeze(freeze),
                #[cfg(feature = "made-up-version")]
                Record::Remark(remark) => state.insert_remark(remark),
                Record::Grant(grant) => state.insert_grant(grant),
                Record::Rest(rest) => state.restore_rest(rest),
                Record::Job(job) => state.jobs.insert(job, &mut state.digest),
                Record::Waiter(waiter) => state.insert_waiter(waiter),
            }
        }
        // A grant that fills a bound said so when it was made.
        state.effects.events.retain(|event| !matches!(event, Event::JobsFill { .. }));
        state.grant_successors();
        if state.effects != Effects::default() {
            return Err(bad("a request waits although it could be granted".into()));
        }
        Ok(state)
    }

    /// The state of a new group from a backup. It has no sessions; what they held rests for its lock delay. Acquires with a job
    /// key are refused until an administrator allows them, because completions since the backup are forgotten. The token counter is raised by `token_jump`, so that no token that was given out since the backup is given out again.
    ///
    /// # Errors
    /// [`BadRecords`] if the records do not fit together, or if the counter would leave the range of tokens.
    // Rule: token-order
    pub fn restore_backup(
        hash_seed: u64,
        records: impl IntoIterator<Item = Record>,
        token_jump: u64,
    ) -> Result<LockState, BadRecords> {
        let mut state = LockState::restore(hash_seed, records)?;
        let raised = state.last_token.checked_add(planted::token_jump(token_jump));
        let raised = raised.filter(|raised| *raised < bounds::TOKEN_MAX);
        state.last_token =
            raised.ok_or(BadRecords { what: "the token counter would leave its range, below 2^53".into() })?;
        let sessions: Vec<SessionId> = state.sessions.range(..).map(|(id, _)| *id).collect();
        for session in sessions {
            state.end_session(session, &SessionEnd::Restored);
        }
        state.grant_successors();
        // Rule: restore
        state.jobs_refused = planted::restore_refuses_jobs();
        state.effects = Effects::default();
        Ok(state)
    }

    fn insert_answer(&mut self, record: AnswerRecord) {
        let session = self.sessions.get_mut(&record.session).expect("the record was checked");
        session.remember(record, &mut self.digest);
    }

    /// Checks that a record fits the records before it, so that inserting it breaks no invariant.
    fn check_record(&self, record: &Record) -> Result<(), String> {
        let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{what}: {record:?}")) };
        let lives = |session: &SessionId| check(self.sessions.contains_key(session), "no such session");
        match record {
            Record::Header(_) => Ok(()),
            Record::Session(session) => check(!self.sessions.contains_key(&session.id), "a session twice"),
            Record::Answer(answer) => {
                lives(&answer.session)?;
                check(
                    self.is_new(answer.session, answer.number),
                    "an answer to a number that is answered, seen or waits",
                )
            }
            Record::Semaphore(semaphore) => {
                check(!self.semaphores.contains_key(&semaphore.name), "a semaphore twice")?;
                check(!semaphore.name.is_path(), "a path cannot be a semaphore")
            }
            #[cfg(feature = "made-up-version")]
            Record::Remark(_) => {
                check(self.remark.is_none(), "a remark twice")?;
                check(self.version >= crate::FormatVersion::MADE_UP, "a record of a newer version than the header's")
            }
            Record::Freeze(freeze) => check(self.freezes.get(freeze.id).is_none(), "a freeze twice"),
            Record::Grant(grant) => {
                lives(&grant.session)?;
                check(self.is_free_id(grant.id), "a grant with an id that is used twice or was never given out")?;
                check(grant.count > 0, "a grant with a count of zero")?;
                let owner_holds = |owner: &OwnerName, name| {
                    let owner = self.sessions[&grant.session].owners.get(owner);
                    owner.and_then(|owner| owner.held.get(name)?.asked).is_some()
                };
                let held_twice =
                    grant.owner.as_ref().is_some_and(|owner| grant.held.names().any(|name| owner_holds(owner, name)));
                check(!held_twice, "an owner holds a name twice")?;
                let job_held = grant.job().and_then(|(name, _)| self.jobs.held(name)).is_some();
                check(!job_held, "two grants for jobs of one name")?;
                check_job(&grant.terms, &grant.held).map_err(|what| format!("{what}: {record:?}"))?;
                self.check_held(&grant.held)
            }
            Record::Rest(rest) => {
                check(self.is_free_id(rest.grant), "a rest with an id that is used twice or was never given out")?;
                self.check_held(&rest.held)
            }
            Record::Job(job) => {
                check(self.jobs.get(&job.name, &job.key, LogicalMs(0)).is_none(), "a job twice")?;
                let is_held = self.jobs.held(&job.name).is_some_and(|(_, key)| *key == job.key);
                check(job.until.is_none() == is_held, "a held job has no end, and every other one has")?;
                check((job.attempts == 0) == job.last.is_none(), "attempts are counted wrongly")?;
                check(!(is_held && job.completion.is_some()), "a completed job is held")
            }
            Record::Waiter(waiter) => {
                lives(&waiter.session)?;
                check_job(&waiter.terms, &waiter.wants.held()).map_err(|what| format!("{what}: {record:?}"))?;
                let completed =
                    waiter.job().and_then(|(name, terms)| self.jobs.get(name, &terms.key, self.stamp)?.completed());
                check(completed.is_none(), "a request waits for a completed job")?;
                check(waiter.arrival.0 <= self.last_arrival, "an arrival number that was never given out")?;
                check(!self.waiters.contains_key(&waiter.arrival), "an arrival number twice")?;
                check(
                    self.is_new(waiter.session, waiter.number),
                    "a wait of a number that is answered, seen or waits",
                )?;
                let session = &self.sessions[&waiter.session];
                let owner = waiter.owner.as_ref().and_then(|owner| session.owners.get(owner));
                check(owner.is_none_or(|owner| owner.waits.is_none()), "an owner waits twice")?;
                match &waiter.wants {
                    Wants::Conversion { grant, name, .. } => {
                        let grant = self.grants.get(grant).filter(|grant| grant.record.session == waiter.session);
                        let has_name = grant.is_some_and(|grant| {
                            grant.converting.is_none()
                                && grant.asked_mode(name).is_some()
                                && grant.record.owner == waiter.owner
                        });
                        check(has_name, "a conversion of something that is not held")
                    }
                    Wants::Locks(_) | Wants::Permits { .. } => self.check_held(&waiter.wants.held()),
                }
            }
        }
    }

    fn is_new(&self, session: SessionId, number: RequestNumber) -> bool {
        matches!(self.sessions[&session].known(number), Known::New)
    }

    fn is_free_id(&self, id: GrantId) -> bool {
        id.0 <= self.last_token && !self.grants.contains_key(&id) && !self.rests.contains_key(&id)
    }

    fn check_held(&self, held: &Held) -> Result<(), String> {
        match held {
            Held::Locks(locks) => {
                let needs = checked_footprint(locks).map_err(|refusal| refusal.to_string())?;
                match needs.iter().find(|(name, _)| self.semaphores.contains_key(name)) {
                    Some((name, _)) => Err(format!("{name} is a lock and a semaphore")),
                    None => Ok(()),
                }
            }
            Held::Permits { name, .. } if !self.semaphores.contains_key(name) => {
                Err(format!("permits of {name}, which is not a semaphore"))
            }
            Held::Permits { .. } => Ok(()),
        }
    }
}

/// Checks that only an exclusive lock on one resource carries a job key.
fn check_job(terms: &Option<Box<Terms>>, held: &Held) -> Result<(), &'static str> {
    let keyed = terms.as_ref().is_some_and(|terms| terms.job.is_some());
    let may_be_keyed = matches!(held, Held::Locks(locks) if is_election(locks));
    if keyed && !may_be_keyed { Err("a job key with anything but an exclusive lock on one resource") } else { Ok(()) }
}
