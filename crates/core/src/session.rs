//! Sessions: how they open, are renewed, move to another connection, and end.
//!
//! Everything that a client holds or waits for belongs to its session, so the end of a session is a walk over its grants and
//! waits. Requests of a session are answered in `once.rs` and dispatched in `state.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::bounds::{self, Bound};
use crate::command::{Open, Renewal};
use crate::deadlines::Due;
use crate::digest::{Digest, Term};
use crate::lease::{self, LockTtls};
use crate::once::{Answer, Asker};
use crate::outcome::{
    Attached, AttachedGrant, AttachedJob, AttachedWait, GrantEnd, Outcome, Refusal, Repeat, SessionEnd, UnseenAnswer,
};
use crate::planted;
use crate::record::SessionRecord;
use crate::resource::ModeCounts;
use crate::state::LockState;
use crate::words::{Arrival, Epoch, GrantId, LogicalMs, Name, OwnerName, RequestNumber, SessionId};

/// A living session: the record, and what is derived from other records.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) record: SessionRecord,
    /// Answers that the client has not acknowledged, by number. A plain vector, because they are usually added at the end
    /// and removed at the front.
    pub(crate) answers: Vec<Answer>,
    /// The waiting requests, by number.
    pub(crate) waits: Vec<(RequestNumber, Arrival)>,
    pub(crate) grants: BTreeSet<GrantId>,
    /// The number of resources that it holds and waits for, for the bound.
    pub(crate) locks: usize,
    /// The named owners that hold something or wait.
    pub(crate) owners: BTreeMap<OwnerName, Box<Owner>>,
    /// Its locks with a TTL. Invariant: `None` if there are none.
    pub(crate) ttls: Option<Box<LockTtls>>,
    /// The stamp of the session's entry in the deadlines.
    pub(crate) timer: LogicalMs,
    pub(crate) term: Term,
    /// The seen numbers have a term of their own, because they change with every message.
    pub(crate) seen_term: Term,
}

/// A unit of work inside a session that has a name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owner {
    /// What its grants take on each name, ancestors included.
    pub(crate) held: BTreeMap<Name, OwnerHolding>,
    /// Its waiting request. An owner waits for one request at a time.
    pub(crate) waits: Option<Arrival>,
}

/// What an owner holds on one name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnerHolding {
    pub(crate) counts: ModeCounts,
    /// The grant that was asked for on exactly this name. There is at most one: a second acquire enters it or is refused.
    pub(crate) asked: Option<GrantId>,
}

impl Session {
    pub(crate) fn new(record: SessionRecord) -> Session {
        Session {
            record,
            answers: Vec::new(),
            waits: Vec::new(),
            grants: BTreeSet::new(),
            locks: 0,
            owners: BTreeMap::new(),
            ttls: None,
            timer: LogicalMs(0),
            term: Term::default(),
            seen_term: Term::default(),
        }
    }

    /// When the session ends unless it is renewed.
    // Rule: session-ttl
    pub(crate) fn deadline(&self, grace_at: Option<LogicalMs>) -> LogicalMs {
        lease::deadline(self.record.renewed_at, self.record.ttl, grace_at)
    }

    /// The earliest deadline of the session and of its locks with a TTL.
    pub(crate) fn earliest_deadline(&self, grace_at: Option<LogicalMs>) -> LogicalMs {
        let locks = self.ttls.as_ref().and_then(|ttls| ttls.earliest(self.record.renewed_at, grace_at));
        let session = self.deadline(grace_at);
        locks.map_or(session, |locks| locks.min(session))
    }

    /// Refuses an epoch that is not the current one.
    // Rule: attach
    pub(crate) fn check_epoch(&self, epoch: Epoch) -> Result<(), Refusal> {
        let current = self.record.epoch;
        if epoch != current && planted::old_epoch_is_refused() {
            return Err(Refusal::WrongEpoch { current });
        }
        Ok(())
    }

    pub(crate) fn digest(&mut self, digest: &mut Digest) {
        // Destructured without `..`, so that the compiler finds a new field. The seen numbers have a term of their own.
        let SessionRecord {
            id,
            principal,
            secret_hash,
            ttl,
            metadata,
            opened_at,
            opened_after_token,
            epoch,
            renewed_at,
            seen_mark: _,
            seen_ranges: _,
            lost,
        } = &self.record;
        let identity = (id, principal, secret_hash, ttl, metadata, opened_at, opened_after_token);
        digest.put(&mut self.term, &("session", identity, epoch, renewed_at, lost));
    }

    pub(crate) fn digest_seen(&mut self, digest: &mut Digest) {
        let seen = (self.record.id, self.record.seen_mark, &self.record.seen_ranges);
        digest.put(&mut self.seen_term, &("seen", seen));
    }
}

impl LockState {
    pub(crate) fn open(&mut self, open: Open) -> (Outcome, Option<Repeat>) {
        if let Some(session) = self.sessions.get(&open.session) {
            return if session.record.secret_hash == open.secret_hash {
                let opened = Outcome::Opened { epoch: session.record.epoch };
                (opened, Some(Repeat { answered_at: session.record.opened_at, stands: false }))
            } else {
                (Outcome::Refused(Refusal::SessionExists), None)
            };
        }
        let of_principal = self.principals.get(&open.principal).copied().unwrap_or(0);
        if of_principal >= bounds::SESSIONS_PER_PRINCIPAL_MAX {
            return (Outcome::Refused(Refusal::Bound(Bound::SessionsPerPrincipal)), None);
        }
        let opened = SessionRecord {
            id: open.session,
            principal: open.principal,
            secret_hash: open.secret_hash,
            ttl: open.ttl,
            metadata: open.metadata,
            opened_at: self.stamp,
            opened_after_token: self.last_token,
            epoch: Epoch(1),
            renewed_at: self.stamp,
            seen_mark: 0,
            seen_ranges: Vec::new(),
            lost: Vec::new(),
        };
        self.effects.announce_session_opened(&opened);
        self.insert_session(opened);
        (Outcome::Opened { epoch: Epoch(1) }, None)
    }

    /// Puts a session into the state, new or from a snapshot.
    pub(crate) fn insert_session(&mut self, record: SessionRecord) {
        let id = record.id;
        *self.principals.entry(record.principal.clone()).or_default() += 1;
        let mut session = Session::new(record);
        session.digest(&mut self.digest);
        session.digest_seen(&mut self.digest);
        session.timer = session.earliest_deadline(self.grace_at);
        self.deadlines.insert(session.timer, Due::Session(id));
        self.sessions.insert(session);
    }

    pub(crate) fn renew(&mut self, renewal: Renewal) -> Result<Outcome, Refusal> {
        let (id, seen) = match &renewal {
            Renewal::KeepAlive { session, seen, .. } | Renewal::Attach { session, seen, .. } => (*session, seen),
        };
        let session = self.sessions.get_mut(&id).ok_or(Refusal::NoSession)?;
        match renewal {
            Renewal::KeepAlive { epoch, .. } => session.check_epoch(epoch)?,
            Renewal::Attach { secret_hash, .. } if session.record.secret_hash != secret_hash => {
                return Err(Refusal::WrongSecret);
            }
            Renewal::Attach { .. } => {}
        }
        session.acknowledge(seen, &mut self.digest)?;

        session.record.renewed_at = self.stamp;
        if let Some(ttls) = &mut session.ttls
            && planted::keep_alive_renews_locks()
        {
            ttls.renew();
        }
        let attaches = matches!(renewal, Renewal::Attach { .. });
        if attaches {
            session.record.epoch.0 += 1;
        }
        session.digest(&mut self.digest);
        self.move_session_timer(id);
        Ok(if attaches { Outcome::Attached(Box::new(self.attached(id))) } else { Outcome::Renewed })
    }

    /// Moves the session's entry in the deadlines to its present earliest deadline.
    pub(crate) fn move_session_timer(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(&id).expect("only a living session has a timer");
        let earliest = session.earliest_deadline(self.grace_at);
        if earliest != session.timer {
            self.deadlines.remove(session.timer, Due::Session(id));
            self.deadlines.insert(earliest, Due::Session(id));
            session.timer = earliest;
        }
    }

    fn attached(&self, id: SessionId) -> Attached {
        let session = &self.sessions[&id];
        Attached {
            epoch: session.record.epoch,
            grants: (session.grants.iter().map(|id| &self.grants[id].record))
                .map(|grant| AttachedGrant {
                    grant: grant.id,
                    token: grant.token,
                    count: grant.count,
                    held: grant.held.clone(),
                    job: grant.job().map(|(name, terms)| {
                        let record = self.jobs.get(name, &terms.key, self.stamp);
                        AttachedJob {
                            key: terms.key.clone(),
                            attempt: record.and_then(|record| record.attempt_of(grant.id)),
                        }
                    }),
                })
                .collect(),
            waits: (session.waits.iter())
                .map(|(number, arrival)| AttachedWait {
                    number: *number,
                    arrival: *arrival,
                    job_key: self.waiters[arrival].record.job().map(|(_, terms)| terms.key.clone()),
                })
                .collect(),
            unseen: (session.answers.iter())
                .map(|answer| UnseenAnswer {
                    number: answer.number,
                    answered_at: answer.answered_at,
                    outcome: answer.outcome.clone(),
                    stands: self.grant_stands(&answer.outcome),
                })
                .collect(),
            lost: session.record.lost.clone(),
        }
    }

    /// Ends a session at its own request.
    pub(crate) fn close(&mut self, asker: Asker) -> Outcome {
        self.end_session(asker.session, &SessionEnd::Closed);
        Outcome::Closed
    }

    /// Ends a session with everything that it holds and waits for, at one log position. The requests that it blocked are
    /// granted later, by `grant_successors`.
    // Rule: session-end
    pub(crate) fn end_session(&mut self, id: SessionId, how: &SessionEnd) {
        self.effects.announce_session_ended(id, how.clone());
        let session = &self.sessions[&id];
        let mut waits: Vec<Arrival> = session.waits.iter().map(|(_, arrival)| *arrival).collect();
        waits.sort_unstable();
        let grants: Vec<GrantId> = session.grants.iter().copied().collect();
        for arrival in waits {
            self.end_wait(arrival, Outcome::SessionEnded(how.clone()));
        }
        for grant in grants {
            self.end_grant(grant, &GrantEnd::Session(how.clone()));
        }

        let session = self.sessions.remove(&id).expect("a session ends once");
        self.deadlines.remove(session.timer, Due::Session(id));
        self.digest.take(session.term);
        self.digest.take(session.seen_term);
        for answer in &session.answers {
            self.digest.take(answer.term);
        }
        let of_principal = self.principals.get_mut(&session.record.principal).expect("a living session is counted");
        *of_principal -= 1;
        if *of_principal == 0 {
            self.principals.remove(&session.record.principal);
        }
        self.effects.tell_session_ended(id, how.clone());
    }
}
