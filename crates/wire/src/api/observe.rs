//! Views for observers: the core's views, to the messages of `observe.proto` and back.
//!
//! A view uses the records of the snapshot where they hold nothing secret. A session is the exception: its record has the hash of its
//! secret, so observers get a message of its own, and readers a type of their own. The server decides which page to read and whether
//! an answer may be stale. Events are in [`watch`](super::watch).

use std::time::Duration;

use fencepost_core::{
    Arrival, BlockedBy, Blocker, Counts, Explanation, FreezeRecord, GrantId, GrantView, HolderView, JobBytes, JobKey,
    JobRecord, JobView, Locks, LogicalMs, Metadata, Name, OwnerName, Principal, QueueView, RequestNumber, RestRecord,
    SemaphoreRecord, SessionId, SessionRecord, SessionView, Takes, Token, TokenCheck, Ttl, WaiterRecord,
};

use crate::error::WireError;
use crate::from_wire::{self, Read, known};
use crate::to_wire;
use crate::v1;
use crate::wall_clock::WallClock;

/// The log entry up to which an answer is current.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadAt {
    /// The index of the entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The logical time of the answer. Compare deadlines with it.
    pub stamp: LogicalMs,
    /// The wall clock of the node that answered, in milliseconds since 1970. Zero if the answer has no wall-clock times.
    pub wall_clock_ms: u64,
    /// Which wall-clock time each stamp in the answer was. For people; decide nothing by it.
    pub wall_clock: WallClock,
}

impl ReadAt {
    /// How long ago a stamp was, by the wall clock. `None` if that is not known any more.
    pub fn age(&self, stamp: LogicalMs) -> Option<Duration> {
        let then_ms = self.wall_clock.at(stamp)?;
        Some(Duration::from_millis(self.wall_clock_ms.saturating_sub(then_ms)))
    }
}

/// A session, as an observer reads it. Unlike the core's view, it has no secret and no state of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub principal: Principal,
    /// How long it lives without a keep-alive.
    pub ttl: Ttl,
    /// What it says about itself.
    pub metadata: Metadata,
    /// When it was opened.
    pub opened_at: LogicalMs,
    /// When it was last renewed.
    pub renewed_at: LogicalMs,
    /// When it ends without another keep-alive.
    pub deadline: LogicalMs,
    /// How many grants it has.
    pub grants: usize,
    /// How many requests of it wait.
    pub waits: usize,
}

/// The log position of an answer.
pub fn read_at_to_wire(ReadAt { index, term, stamp, wall_clock_ms, wall_clock }: ReadAt) -> v1::ReadAt {
    let wall_clock = (wall_clock != WallClock::NONE).then(|| wall_clock.to_wire());
    v1::ReadAt { index, term, stamp_ms: stamp.0, wall_clock_ms, wall_clock }
}

/// The log position of an answer.
///
/// # Errors
/// [`WireError`] if it is missing, or its wall-clock times are not in order.
pub fn read_at_from_wire(at: Option<v1::ReadAt>) -> Result<ReadAt, WireError> {
    let v1::ReadAt { index, term, stamp_ms, wall_clock_ms, wall_clock } = known("the log position of an answer", at)?;
    let wall_clock = WallClock::from_wire("an answer", &wall_clock.unwrap_or_default())?;
    Ok(ReadAt { index, term, stamp: LogicalMs(stamp_ms), wall_clock_ms, wall_clock })
}

/// A session's id, as requests and events carry it.
pub fn session_id_to_wire(session: SessionId) -> v1::SessionId {
    to_wire::session_id(session)
}

/// A session's id.
pub fn session_id_from_wire(session: v1::SessionId) -> SessionId {
    from_wire::session_id(session)
}

// ---- Rows of listings

/// A grant, as observers see it.
pub fn grant_to_wire(GrantView { record, deadline }: &GrantView) -> v1::GrantView {
    v1::GrantView { grant: Some(to_wire::grant_record(record)), deadline_ms: deadline.0 }
}

/// A grant, as observers see it.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn grant_from_wire(v1::GrantView { grant, deadline_ms }: v1::GrantView) -> Result<GrantView, WireError> {
    let record = from_wire::grant_record(known("a grant", grant)?)?;
    Ok(GrantView { record, deadline: LogicalMs(deadline_ms) })
}

/// Without the hash of its secret, and without its seen answers and lost grants.
impl From<&SessionView> for Session {
    fn from(SessionView { record, deadline, grants, waits }: &SessionView) -> Session {
        // Every field that is left out is named, so that a new field of the core does not compile without a decision here.
        let SessionRecord {
            id,
            principal,
            secret_hash: _,
            ttl,
            metadata,
            opened_at,
            opened_after_token: _,
            epoch: _,
            renewed_at,
            seen_mark: _,
            seen_ranges: _,
            lost: _,
        } = record;
        Session {
            id: *id,
            principal: principal.clone(),
            ttl: *ttl,
            metadata: metadata.clone(),
            opened_at: *opened_at,
            renewed_at: *renewed_at,
            deadline: *deadline,
            grants: *grants,
            waits: *waits,
        }
    }
}

/// A session, as observers see it.
pub fn session_to_wire(session: &SessionView) -> v1::SessionView {
    let Session { id, principal, ttl, metadata, opened_at, renewed_at, deadline, grants, waits } = session.into();
    let (session_high, session_low) = to_wire::halves(id.0);
    v1::SessionView {
        session_high,
        session_low,
        principal: principal.as_str().to_owned(),
        ttl_ms: ttl.millis().get(),
        metadata: metadata.as_bytes().to_vec(),
        opened_at_ms: opened_at.0,
        renewed_at_ms: renewed_at.0,
        deadline_ms: deadline.0,
        grants: grants as u64,
        waits: waits as u64,
    }
}

/// Reads a session, as observers see it.
///
/// # Errors
/// [`WireError`] names the value that is not valid.
pub fn session_from_wire(session: v1::SessionView) -> Result<Session, WireError> {
    Ok(Session {
        id: from_wire::session(session.session_high, session.session_low),
        principal: from_wire::principal(&session.principal)?,
        ttl: from_wire::ttl(session.ttl_ms)?,
        metadata: from_wire::metadata(&session.metadata)?,
        opened_at: LogicalMs(session.opened_at_ms),
        renewed_at: LogicalMs(session.renewed_at_ms),
        deadline: LogicalMs(session.deadline_ms),
        grants: count(session.grants),
        waits: count(session.waits),
    })
}

/// A request that waits.
pub fn waiter_to_wire(waiter: &WaiterRecord) -> v1::WaiterRecord {
    to_wire::waiter_record(waiter)
}

/// Reads a request that waits.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn waiter_from_wire(waiter: v1::WaiterRecord) -> Result<WaiterRecord, WireError> {
    from_wire::waiter_record(waiter)
}

/// A freeze.
pub fn freeze_to_wire(freeze: &FreezeRecord) -> v1::FreezeRecord {
    to_wire::freeze_record(freeze)
}

/// Reads a freeze.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn freeze_from_wire(freeze: v1::FreezeRecord) -> Result<FreezeRecord, WireError> {
    from_wire::freeze_record(freeze)
}

/// A job's name and key.
pub fn job_id_to_wire(name: &Name, key: &JobKey) -> v1::JobId {
    to_wire::job_id(name, key)
}

/// A job's name and key.
///
/// # Errors
/// [`WireError`] names what is missing or not valid.
pub fn job_id_from_wire(job: Option<v1::JobId>) -> Result<(Name, JobKey), WireError> {
    from_wire::job_id(&known("a job's name and key", job)?)
}

/// A row in a listing of jobs: without results, checkpoints and error texts, so that a page has a bound.
pub fn listed_job_to_wire(job: &JobRecord) -> v1::JobRecord {
    let mut job = job.clone();
    if let Some(ended) = job.last.as_mut().and_then(|last| last.ended.as_mut()) {
        ended.error = JobBytes::default();
    }
    if let Some(checkpoint) = &mut job.checkpoint {
        checkpoint.bytes = JobBytes::default();
    }
    if let Some(completion) = &mut job.completion {
        completion.result = JobBytes::default();
    }
    to_wire::job_record(&job)
}

/// Reads what is remembered of a job.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn job_record_from_wire(job: v1::JobRecord) -> Result<JobRecord, WireError> {
    from_wire::job_record(job)
}

/// A job, with its result, its checkpoint and the error text of its last attempt.
pub fn job_to_wire(at: ReadAt, JobView { stamp: _, record, holder, waiting }: &JobView) -> v1::GetJobResponse {
    v1::GetJobResponse {
        at: Some(read_at_to_wire(at)),
        job: record.as_ref().map(to_wire::job_record),
        holder: holder.as_ref().map(to_wire::holder),
        waiting: *waiting as u64,
    }
}

/// A job with the log position of the answer. Its stamp is the answer's stamp.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn job_from_wire(response: v1::GetJobResponse) -> Result<(ReadAt, JobView), WireError> {
    let v1::GetJobResponse { at, job, holder, waiting } = response;
    let at = read_at_from_wire(at)?;
    let view = JobView {
        stamp: at.stamp,
        record: job.map(from_wire::job_record).transpose()?,
        holder: holder.map(from_wire::holder).transpose()?,
        waiting: count(waiting),
    };
    Ok((at, view))
}

/// A rest: what is left of a grant after an involuntary end.
pub fn rest_to_wire(rest: &RestRecord) -> v1::RestRecord {
    to_wire::rest_record(rest)
}

/// Reads a rest: what is left of a grant after an involuntary end.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn rest_from_wire(rest: v1::RestRecord) -> Result<RestRecord, WireError> {
    from_wire::rest_record(rest)
}

/// A semaphore.
pub fn semaphore_to_wire(semaphore: &SemaphoreRecord) -> v1::SemaphoreRecord {
    to_wire::semaphore_record(semaphore)
}

/// Reads a semaphore.
///
/// # Errors
/// [`WireError`] names the value that is not valid.
pub fn semaphore_from_wire(semaphore: v1::SemaphoreRecord) -> Result<SemaphoreRecord, WireError> {
    from_wire::semaphore_record(semaphore)
}

// ---- Explanations

/// An explanation, as an observer receives it. The answer's only stamp is the stamp of `at`; the explanation's own is left out.
pub fn explanation_to_wire(at: ReadAt, explanation: &Explanation) -> v1::ExplainResponse {
    let Explanation { name, stamp: _, holders, rests, freezes, semaphore, queue, queue_len, chain, suspected } =
        explanation;
    v1::ExplainResponse {
        at: Some(read_at_to_wire(at)),
        name: to_wire::text(name),
        holders: holders.iter().map(holder_to_wire).collect(),
        rests: rests.iter().map(to_wire::rest_record).collect(),
        freezes: freezes.iter().map(to_wire::freeze_record).collect(),
        semaphore: semaphore.as_ref().map(|(record, _)| to_wire::semaphore_record(record)),
        permits_out: semaphore.as_ref().map_or(0, |(_, out)| *out),
        queue: queue.iter().map(queued_to_wire).collect(),
        queue_len: *queue_len as u64,
        chain: chain.iter().map(blocker_to_wire).collect(),
        suspected: suspected.as_ref().map(to_wire::cycle),
    }
}

/// An explanation with its log position. Its stamp is the answer's stamp.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn explanation_from_wire(response: v1::ExplainResponse) -> Result<(ReadAt, Explanation), WireError> {
    let at = read_at_from_wire(response.at)?;
    let semaphore = response.semaphore.map(from_wire::semaphore_record).transpose()?;
    let explanation = Explanation {
        name: from_wire::name(&response.name)?,
        stamp: at.stamp,
        holders: all(response.holders, holder_from_wire)?,
        rests: all(response.rests, from_wire::rest_record)?,
        freezes: all(response.freezes, from_wire::freeze_record)?,
        semaphore: semaphore.map(|record| (record, response.permits_out)),
        queue: all(response.queue, queued_from_wire)?,
        queue_len: count(response.queue_len),
        chain: all(response.chain, blocker_from_wire)?,
        suspected: response.suspected.map(from_wire::cycle).transpose()?,
    };
    Ok((at, explanation))
}

/// A wait that a caller asks about.
pub fn explained_wait_to_wire(session: SessionId, owner: &Option<OwnerName>, locks: &Locks) -> v1::ExplainedWait {
    let (session, owner) = (Some(session_id_to_wire(session)), to_wire::owner_name(owner));
    v1::ExplainedWait { session, owner, locks: locks.iter().map(to_wire::lock).collect() }
}

/// A wait that a caller asks about.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn explained_wait_from_wire(wait: v1::ExplainedWait) -> Result<(SessionId, Option<OwnerName>, Locks), WireError> {
    let session = session_id_from_wire(known("a session", wait.session)?);
    Ok((session, from_wire::owner_name(wait.owner)?, from_wire::locks(wait.locks)?))
}

fn holder_to_wire(HolderView { holder, covers_from, deadline, terms }: &HolderView) -> v1::HolderView {
    v1::HolderView {
        holder: Some(to_wire::holder(holder)),
        covers_from: covers_from.as_ref().map(to_wire::text),
        deadline_ms: deadline.0,
        terms: terms.as_deref().map(to_wire::terms),
    }
}

fn holder_from_wire(view: v1::HolderView) -> Read<HolderView> {
    let v1::HolderView { holder, covers_from, deadline_ms, terms } = view;
    Ok(HolderView {
        holder: from_wire::holder(known("a holder", holder)?)?,
        covers_from: covers_from.as_deref().map(from_wire::name).transpose()?,
        deadline: LogicalMs(deadline_ms),
        terms: terms.map(from_wire::terms).transpose()?.map(Box::new),
    })
}

fn queued_to_wire(QueueView { position, waiter, wants, converts }: &QueueView) -> v1::QueueView {
    use v1::queue_view::Wants;
    let wants = match wants {
        Takes::Mode(mode) => Wants::Mode(to_wire::mode(*mode)),
        Takes::Permits(permits) => Wants::Permits(permits.get()),
    };
    v1::QueueView {
        position: *position as u64,
        waiter: Some(to_wire::waiter_record(waiter)),
        wants: Some(wants),
        converts: *converts,
    }
}

fn queued_from_wire(v1::QueueView { position, waiter, wants, converts }: v1::QueueView) -> Read<QueueView> {
    use v1::queue_view::Wants;
    let wants = match known("the mode or permits of a waiting request", wants)? {
        Wants::Mode(mode) => Takes::Mode(from_wire::mode(mode)?),
        Wants::Permits(permits) => Takes::Permits(from_wire::permits(permits)?),
    };
    let waiter = from_wire::waiter_record(known("a waiting request", waiter)?)?;
    Ok(QueueView { position: count(position), waiter, wants, converts })
}

fn blocker_to_wire(Blocker { session, owner, number, name, by }: &Blocker) -> v1::Blocker {
    use v1::blocker::By;
    let by = match by {
        BlockedBy::Grant(holder) => By::Grant(to_wire::holder(holder)),
        BlockedBy::Rest(holder) => By::Rest(to_wire::holder(holder)),
        BlockedBy::Waiter(arrival) => By::WaiterArrival(arrival.0),
        BlockedBy::Freeze(freeze) => By::Freeze(to_wire::freeze_record(freeze)),
        BlockedBy::Permits => By::Permits(v1::Nothing {}),
    };
    let (session_high, session_low) = to_wire::halves(session.0);
    v1::Blocker {
        session_high,
        session_low,
        owner: to_wire::owner_name(owner),
        number: number.0,
        name: to_wire::text(name),
        by: Some(by),
    }
}

fn blocker_from_wire(blocker: v1::Blocker) -> Read<Blocker> {
    use v1::blocker::By;
    let by = match known("the blocker of a request", blocker.by)? {
        By::Grant(holder) => BlockedBy::Grant(from_wire::holder(holder)?),
        By::Rest(holder) => BlockedBy::Rest(from_wire::holder(holder)?),
        By::WaiterArrival(arrival) => BlockedBy::Waiter(Arrival(arrival)),
        By::Freeze(freeze) => BlockedBy::Freeze(from_wire::freeze_record(freeze)?),
        By::Permits(v1::Nothing {}) => BlockedBy::Permits,
    };
    Ok(Blocker {
        session: from_wire::session(blocker.session_high, blocker.session_low),
        owner: from_wire::owner_name(blocker.owner)?,
        number: RequestNumber(blocker.number),
        name: from_wire::name(&blocker.name)?,
        by,
    })
}

// ---- Checks and counts

/// The name and the token of a check.
///
/// # Errors
/// [`WireError`] if the name is not valid.
pub fn check_request_from_wire(request: &v1::CheckRequest) -> Result<(Name, Token), WireError> {
    Ok((from_wire::name(&request.name)?, Token(request.token)))
}

/// The request of a store for a check.
pub fn check_request_to_wire(name: &Name, token: Token) -> v1::CheckRequest {
    v1::CheckRequest { name: to_wire::text(name), token: token.0 }
}

/// The result of a check.
pub fn check_to_wire(at: ReadAt, check: TokenCheck) -> v1::CheckResponse {
    let at = Some(read_at_to_wire(at));
    match check {
        TokenCheck::Stands { grant, deadline } => {
            v1::CheckResponse { at, grant: Some(grant.0), deadline_ms: deadline.0 }
        }
        TokenCheck::Gone => v1::CheckResponse { at, grant: None, deadline_ms: 0 },
    }
}

/// The result of a check, with its log position.
///
/// # Errors
/// [`WireError`] if the log position is missing.
pub fn check_from_wire(response: v1::CheckResponse) -> Result<(ReadAt, TokenCheck), WireError> {
    let v1::CheckResponse { at, grant, deadline_ms } = response;
    let stands = |grant| TokenCheck::Stands { grant: GrantId(grant), deadline: LogicalMs(deadline_ms) };
    Ok((read_at_from_wire(at)?, grant.map_or(TokenCheck::Gone, stands)))
}

/// The counts of a state.
pub fn counts_to_wire(counts: &Counts) -> v1::StateCounts {
    let Counts {
        sessions,
        grants,
        rests,
        waiters,
        resources,
        semaphores,
        freezes,
        last_token,
        jobs,
        job_bytes,
        jobs_held,
        jobs_refused,
    } = *counts;
    v1::StateCounts {
        sessions: sessions as u64,
        grants: grants as u64,
        rests: rests as u64,
        waiters: waiters as u64,
        resources: resources as u64,
        semaphores: semaphores as u64,
        freezes: freezes as u64,
        last_token: last_token.0,
        jobs,
        job_bytes,
        jobs_held,
        jobs_refused,
    }
}

/// The counts of a state.
///
/// # Errors
/// [`WireError`] if they are missing.
pub fn counts_from_wire(counts: Option<v1::StateCounts>) -> Result<Counts, WireError> {
    let counts = known("the counts", counts)?;
    Ok(Counts {
        sessions: count(counts.sessions),
        grants: count(counts.grants),
        rests: count(counts.rests),
        waiters: count(counts.waiters),
        resources: count(counts.resources),
        semaphores: count(counts.semaphores),
        freezes: count(counts.freezes),
        last_token: Token(counts.last_token),
        jobs: counts.jobs,
        job_bytes: counts.job_bytes,
        jobs_held: counts.jobs_held,
        jobs_refused: counts.jobs_refused,
    })
}

/// A count for people. On a 32-bit machine, a larger count becomes the largest that fits.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn all<Wire, T>(rows: Vec<Wire>, read: impl Fn(Wire) -> Read<T>) -> Read<Vec<T>> {
    rows.into_iter().map(read).collect()
}
