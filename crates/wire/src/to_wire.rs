//! From the core's types to the generated ones. Nothing is decided here, and nothing can fail.
//!
//! Every structure is destructured without `..`, so a new field of the core does not compile until it is written here.

use fencepost_core::{
    Acquire, Act, Action, Admin, AnswerRecord, Attached, AttachedGrant, AttachedJob, AttachedWait, AttemptEnd,
    AttemptRecord, BadWord, Bound, Busy, BusyWhy, CheckpointRecord, CompletionRecord, Cycle, CycleLink, FreezeRecord,
    GrantEnd, GrantRecord, Header, Held, Holder, JobKey, JobRecord, JobReport, JobTerms, Late, Lock, LockMode, Mode,
    Open, Operation, OwnerName, Permits, Record, Refusal, Renewal, Request, RestRecord, Scope, Seen, SemaphoreRecord,
    SessionEnd, SessionRecord, TakePermits, Takes, Terms, Token, UnseenAnswer, Verdict, Wait, WaiterRecord, Wants,
};
use fencepost_core::{FreezeId, GrantId, Millis, Name, Outcome, SessionId};

use crate::v1 as wire;

// ---- What a log entry carries

pub(crate) fn renewal(renewal: &Renewal) -> wire::Renewal {
    use wire::renewal::Kind;
    let kind = match renewal {
        Renewal::KeepAlive { session, epoch, seen: Seen { mark, ranges } } => {
            let (session_high, session_low) = halves(session.0);
            let seen_ranges = seen_ranges(ranges);
            Kind::KeepAlive(wire::KeepAlive {
                session_high,
                session_low,
                epoch: epoch.0,
                seen_mark: *mark,
                seen_ranges,
            })
        }
        Renewal::Attach { session, secret_hash, seen: Seen { mark, ranges } } => {
            let (session_high, session_low) = halves(session.0);
            let (secret_hash, seen_ranges) = (secret_hash.0.to_vec(), seen_ranges(ranges));
            Kind::Attach(wire::Attach { session_high, session_low, secret_hash, seen_mark: *mark, seen_ranges })
        }
    };
    wire::Renewal { kind: Some(kind) }
}

pub(crate) fn operation(operation: &Operation) -> wire::Operation {
    use wire::operation::Kind;
    let kind = match operation {
        Operation::Open(asked) => Kind::Open(open(asked)),
        Operation::Request(asked) => Kind::Request(request(asked)),
        Operation::Admin(asked) => Kind::Admin(admin(asked)),
        #[cfg(feature = "made-up-version")]
        Operation::MadeUp(_) => unreachable!("the schema does not have it: made_up.rs writes it"),
    };
    wire::Operation { kind: Some(kind) }
}

fn open(Open { session, secret_hash, principal, ttl, metadata }: &Open) -> wire::Open {
    let (session_high, session_low) = halves(session.0);
    wire::Open {
        session_high,
        session_low,
        secret_hash: secret_hash.0.to_vec(),
        principal: principal.as_str().to_owned(),
        ttl_ms: ttl.millis().get(),
        metadata: metadata.as_bytes().to_vec(),
    }
}

pub(crate) fn request(
    Request { session, epoch, number, seen: Seen { mark, ranges }, action: asked }: &Request,
) -> wire::Request {
    let (session_high, session_low) = halves(session.0);
    wire::Request {
        session_high,
        session_low,
        epoch: epoch.0,
        number: number.0,
        seen_mark: *mark,
        seen_ranges: seen_ranges(ranges),
        action: Some(action(asked)),
    }
}

fn action(action: &Action) -> wire::request::Action {
    use wire::request::Action as Wire;
    match action {
        Action::Acquire(Acquire { locks, owner, wait: asked_wait, terms: asked_terms }) => {
            Wire::Acquire(wire::Acquire {
                locks: locks.iter().map(lock).collect(),
                owner: owner_name(owner),
                wait: Some(wait(*asked_wait)),
                terms: terms_unless_default(asked_terms),
            })
        }
        Action::TakePermits(TakePermits { name, permits, limit, wait: asked_wait, terms: asked_terms }) => {
            Wire::TakePermits(wire::TakePermits {
                name: text(name),
                permits: permits.get(),
                limit: limit.map(Permits::get),
                wait: Some(wait(*asked_wait)),
                terms: terms_unless_default(asked_terms),
            })
        }
        Action::Cancel { request, release_if_granted } => {
            Wire::Cancel(wire::Cancel { request: request.0, release_if_granted: *release_if_granted })
        }
        Action::Release { grant, report } => {
            Wire::Release(wire::Release { grant: grant.0, report: report.as_deref().map(job_report) })
        }
        Action::Begin { grant } => Wire::Begin(wire::Begin { grant: grant.0 }),
        Action::Checkpoint { grant, bytes } => {
            Wire::Checkpoint(wire::Checkpoint { grant: grant.0, bytes: bytes.as_bytes().to_vec() })
        }
        Action::Extend { grant, max_hold } => {
            Wire::Extend(wire::Extend { grant: grant.0, max_hold_ms: max_hold.get() })
        }
        Action::Convert { grant, name, mode, wait: asked_wait } => Wire::Convert(wire::Convert {
            grant: grant.0,
            name: text(name),
            mode: lock_mode(*mode),
            wait: Some(wait(*asked_wait)),
        }),
        Action::SetValue { grant, value } => {
            Wire::SetValue(wire::SetValue { grant: grant.0, value: value.as_bytes().to_vec() })
        }
        Action::Close => Wire::Close(wire::Nothing {}),
    }
}

fn job_report(JobReport { verdict, bytes }: &JobReport) -> wire::JobReport {
    let verdict = match verdict {
        Verdict::Succeeded => wire::Verdict::Succeeded,
        Verdict::Failed => wire::Verdict::Failed,
        Verdict::Open => wire::Verdict::Open,
    };
    wire::JobReport { verdict: verdict as i32, bytes: bytes.as_bytes().to_vec() }
}

fn admin(Admin { by, reason, act: done }: &Admin) -> wire::Admin {
    wire::Admin { by: by.as_str().to_owned(), reason: reason.as_str().to_owned(), act: Some(act(done)) }
}

pub(crate) fn act(act: &Act) -> wire::admin::Act {
    use wire::admin::Act as Wire;
    match act {
        Act::Break { grant } => Wire::BreakGrant(grant.0),
        Act::Evict { session } => {
            let (session_high, session_low) = halves(session.0);
            Wire::Evict(wire::Evict { session_high, session_low })
        }
        Act::WaiveRest { grant } => Wire::WaiveRest(grant.0),
        Act::Freeze { freeze: id, scope } => Wire::Freeze(freeze(*id, scope)),
        Act::Thaw { freeze } => {
            let (freeze_high, freeze_low) = halves(freeze.0);
            Wire::Thaw(wire::Thaw { freeze_high, freeze_low })
        }
        Act::SetLimit { name, limit } => Wire::SetLimit(set_limit(name, *limit)),
        Act::CompleteJob { name, key, keep } => Wire::CompleteJob(wire::CompleteJob {
            name: text(name),
            key: key.as_str().to_owned(),
            keep_ms: keep.millis().get(),
        }),
        Act::ForgetJob { name, key } => {
            Wire::ForgetJob(wire::ForgetJob { name: text(name), key: key.as_str().to_owned() })
        }
        Act::AllowJobs => Wire::AllowJobs(wire::Nothing {}),
    }
}

pub(crate) fn freeze(freeze: FreezeId, covers: &Scope) -> wire::Freeze {
    let (freeze_high, freeze_low) = halves(freeze.0);
    wire::Freeze { freeze_high, freeze_low, scope: Some(scope(covers)) }
}

pub(crate) fn set_limit(name: &Name, limit: Option<Permits>) -> wire::SetLimit {
    wire::SetLimit { name: text(name), limit: limit.map(Permits::get) }
}

fn wait(wait: Wait) -> wire::Wait {
    use wire::wait::Kind;
    let kind = match wait {
        Wait::No => Kind::No(wire::Nothing {}),
        Wait::UpTo(duration) => Kind::UpToMs(duration.get()),
        Wait::Forever => Kind::Forever(wire::Nothing {}),
    };
    wire::Wait { kind: Some(kind) }
}

/// A command always has terms, so leaving the default ones out loses nothing and saves two bytes.
fn terms_unless_default(asked: &Terms) -> Option<wire::Terms> {
    (*asked != Terms::default()).then(|| terms(asked))
}

pub(crate) fn terms(Terms { ttl, max_hold, lock_delay, hear_contended, metadata, value, job }: &Terms) -> wire::Terms {
    wire::Terms {
        ttl_ms: ttl.map(|ttl| ttl.millis().get()),
        max_hold_ms: max_hold.map(Millis::get),
        lock_delay_ms: lock_delay.millis().get(),
        hear_contended: *hear_contended,
        metadata: metadata.as_bytes().to_vec(),
        value: value.as_ref().map(|value| value.as_bytes().to_vec()),
        job: job.as_ref().map(|JobTerms { key, keep }| wire::JobTerms {
            key: key.as_str().to_owned(),
            keep_ms: keep.millis().get(),
        }),
    }
}

pub(crate) fn lock(Lock { name, mode }: &Lock) -> wire::Lock {
    wire::Lock { name: text(name), mode: lock_mode(*mode) }
}

fn lock_mode(mode: LockMode) -> i32 {
    let mode = match mode {
        LockMode::Shared => wire::LockMode::Shared,
        LockMode::Update => wire::LockMode::Update,
        LockMode::Exclusive => wire::LockMode::Exclusive,
    };
    mode as i32
}

fn scope(scope: &Scope) -> wire::Scope {
    use wire::scope::Covers;
    let covers = match scope {
        Scope::Name(name) => Covers::Name(text(name)),
        Scope::Prefix(prefix) => Covers::Prefix(prefix.to_vec()),
    };
    wire::Scope { covers: Some(covers) }
}

// ---- Records

pub(crate) fn record(record: &Record) -> wire::Record {
    use wire::record::Kind;
    let kind = match record {
        Record::Header(record) => Kind::Header(header_record(record)),
        Record::Session(record) => Kind::Session(session_record(record)),
        Record::Answer(record) => Kind::Answer(answer_record(record)),
        Record::Grant(record) => Kind::Grant(grant_record(record)),
        Record::Rest(record) => Kind::Rest(rest_record(record)),
        Record::Waiter(record) => Kind::Waiter(waiter_record(record)),
        Record::Semaphore(record) => Kind::Semaphore(semaphore_record(record)),
        Record::Freeze(record) => Kind::Freeze(freeze_record(record)),
        Record::Job(record) => Kind::Job(job_record(record)),
        #[cfg(feature = "made-up-version")]
        Record::Remark(_) => unreachable!("the schema does not have it: made_up.rs writes it"),
    };
    wire::Record { kind: Some(kind) }
}

fn header_record(header: &Header) -> wire::HeaderRecord {
    let Header { version, stamp, last_token, last_arrival, grace_at, jobs_refused } = header;
    wire::HeaderRecord {
        stamp_ms: stamp.0,
        last_token: *last_token,
        last_arrival: *last_arrival,
        grace_at_ms: grace_at.map(|at| at.0),
        format_version: version.get(),
        jobs_refused: *jobs_refused,
    }
}

fn session_record(record: &SessionRecord) -> wire::SessionRecord {
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
        seen_mark,
        seen_ranges: ranges,
        lost,
    } = record;
    let (session_high, session_low) = halves(id.0);
    wire::SessionRecord {
        session_high,
        session_low,
        principal: principal.as_str().to_owned(),
        secret_hash: secret_hash.0.to_vec(),
        ttl_ms: ttl.millis().get(),
        metadata: metadata.as_bytes().to_vec(),
        opened_at_ms: opened_at.0,
        opened_after_token: *opened_after_token,
        epoch: epoch.0,
        renewed_at_ms: renewed_at.0,
        seen_mark: *seen_mark,
        seen_ranges: seen_ranges(ranges),
        lost: lost_grants(lost),
    }
}

fn answer_record(
    AnswerRecord { session, number, answered_at, outcome: said, given_back }: &AnswerRecord,
) -> wire::AnswerRecord {
    let (session_high, session_low) = halves(session.0);
    wire::AnswerRecord {
        session_high,
        session_low,
        number: number.0,
        answered_at_ms: answered_at.0,
        outcome: Some(outcome(said)),
        given_back: *given_back,
    }
}

pub(crate) fn grant_record(record: &GrantRecord) -> wire::GrantRecord {
    let GrantRecord { id, token, session, owner, held: holds, count, granted_at, hold_until, terms: like } = record;
    let (session_high, session_low) = halves(session.0);
    wire::GrantRecord {
        grant: id.0,
        token: token.0,
        session_high,
        session_low,
        held: Some(held(holds)),
        count: *count,
        granted_at_ms: granted_at.0,
        owner: owner_name(owner),
        hold_until_ms: hold_until.map(|at| at.0),
        terms: like.as_deref().map(terms),
    }
}

pub(crate) fn rest_record(RestRecord { grant, token, held: keeps, since, until }: &RestRecord) -> wire::RestRecord {
    wire::RestRecord { grant: grant.0, token: token.0, held: Some(held(keeps)), since_ms: since.0, until_ms: until.0 }
}

pub(crate) fn waiter_record(record: &WaiterRecord) -> wire::WaiterRecord {
    let WaiterRecord { arrival, session, number, owner, wants: asked, queued_at, until, terms: like, unchecked } =
        record;
    let (session_high, session_low) = halves(session.0);
    wire::WaiterRecord {
        arrival: arrival.0,
        session_high,
        session_low,
        number: number.0,
        owner: owner_name(owner),
        wants: Some(wants(asked)),
        queued_at_ms: queued_at.0,
        until_ms: until.map(|at| at.0),
        terms: like.as_deref().map(terms),
        unchecked: *unchecked,
    }
}

fn wants(wants: &Wants) -> wire::waiter_record::Wants {
    use wire::waiter_record::Wants as Wire;
    match wants {
        Wants::Locks(locks) => Wire::Locks(wire::Locks { locks: locks.iter().map(lock).collect() }),
        Wants::Conversion { grant, name, mode } => {
            Wire::Conversion(wire::WantedConversion { grant: grant.0, name: text(name), mode: lock_mode(*mode) })
        }
        Wants::Permits { name, permits } => Wire::Permits(held_permits(name, *permits)),
    }
}

pub(crate) fn semaphore_record(
    SemaphoreRecord { name, limit, administered }: &SemaphoreRecord,
) -> wire::SemaphoreRecord {
    wire::SemaphoreRecord { name: text(name), limit: limit.get(), administered: *administered }
}

pub(crate) fn freeze_record(
    FreezeRecord { id, scope: covers, by, reason, since }: &FreezeRecord,
) -> wire::FreezeRecord {
    let (freeze_high, freeze_low) = halves(id.0);
    wire::FreezeRecord {
        freeze_high,
        freeze_low,
        scope: Some(scope(covers)),
        by: by.as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        since_ms: since.0,
    }
}

pub(crate) fn job_record(record: &JobRecord) -> wire::JobRecord {
    let JobRecord { name, key, attempts, last, checkpoint, completion, until } = record;
    wire::JobRecord {
        name: text(name),
        key: key.as_str().to_owned(),
        attempts: *attempts,
        last: last.as_ref().map(attempt_record),
        checkpoint: checkpoint.as_ref().map(|CheckpointRecord { attempt, at, bytes }| wire::CheckpointRecord {
            attempt: *attempt,
            at_ms: at.0,
            bytes: bytes.as_bytes().to_vec(),
        }),
        completion: completion.as_ref().map(completion_record),
        until_ms: until.map(|until| until.0),
    }
}

fn attempt_record(AttemptRecord { grant, token, session, began_at, ended }: &AttemptRecord) -> wire::AttemptRecord {
    let (session_high, session_low) = halves(session.0);
    wire::AttemptRecord {
        grant: grant.0,
        token: token.0,
        session_high,
        session_low,
        began_at_ms: began_at.0,
        ended: ended.as_ref().map(|AttemptEnd { at, how, error }| wire::AttemptEnd {
            at_ms: at.0,
            how: Some(grant_end(how)),
            error: error.as_bytes().to_vec(),
        }),
    }
}

fn completion_record(
    CompletionRecord { at, succeeded, result, token, by }: &CompletionRecord,
) -> wire::CompletionRecord {
    wire::CompletionRecord {
        at_ms: at.0,
        succeeded: *succeeded,
        result: result.as_bytes().to_vec(),
        token: token.map(|token| token.0),
        by: by.as_ref().map(|by| by.as_str().to_owned()),
    }
}

pub(crate) fn completed(token: Option<Token>, succeeded: bool) -> wire::Completed {
    wire::Completed { token: token.map(|token| token.0), succeeded }
}

pub(crate) fn job_id(name: &Name, key: &JobKey) -> wire::JobId {
    wire::JobId { name: text(name), key: key.as_str().to_owned() }
}

pub(crate) fn held(held: &Held) -> wire::Held {
    use wire::held::Kind;
    let kind = match held {
        Held::Locks(locks) => Kind::Locks(wire::Locks { locks: locks.iter().map(lock).collect() }),
        Held::Permits { name, permits } => Kind::Permits(held_permits(name, *permits)),
    };
    wire::Held { kind: Some(kind) }
}

fn held_permits(name: &Name, permits: Permits) -> wire::HeldPermits {
    wire::HeldPermits { name: text(name), permits: permits.get() }
}

// ---- Outcomes

pub(crate) fn outcome(outcome: &Outcome) -> wire::Outcome {
    use wire::outcome::Kind;
    let kind = match outcome {
        Outcome::Opened { epoch } => Kind::OpenedEpoch(epoch.0),
        Outcome::Renewed => Kind::Renewed(wire::Nothing {}),
        Outcome::Attached(found) => Kind::Attached(attached(found)),
        Outcome::Closed => Kind::Closed(wire::Nothing {}),
        Outcome::Granted { grant, token, count } => {
            Kind::Granted(wire::Granted { grant: grant.0, token: token.0, count: *count })
        }
        Outcome::Queued { arrival, unchecked } => {
            Kind::Queued(wire::Queued { arrival: arrival.0, unchecked: *unchecked })
        }
        Outcome::Busy(found) => Kind::Busy(busy(found)),
        Outcome::TimedOut => Kind::TimedOut(wire::Nothing {}),
        Outcome::Cancelled => Kind::Cancelled(wire::Nothing {}),
        Outcome::Deadlock(found) => Kind::Deadlock(cycle(found)),
        Outcome::SessionEnded(how) => Kind::SessionEnded(session_end(how)),
        Outcome::GrantEnded(how) => Kind::GrantEnded(grant_end(how)),
        Outcome::Converted { grant, token } => Kind::Converted(wire::Converted { grant: grant.0, token: token.0 }),
        Outcome::Completed { token, succeeded } => Kind::Completed(completed(*token, *succeeded)),
        Outcome::Begun { attempt } => Kind::BegunAttempt(*attempt),
        Outcome::Checkpointed { attempt } => Kind::CheckpointedAttempt(*attempt),
        Outcome::Released { count_left } => Kind::ReleasedCountLeft(*count_left),
        Outcome::NotOwner => Kind::NotOwner(wire::Nothing {}),
        Outcome::AlreadyReleased => Kind::AlreadyReleased(wire::Nothing {}),
        Outcome::Expired(how) => Kind::Expired(grant_end(how)),
        Outcome::Extended { until } => Kind::ExtendedUntilMs(until.0),
        Outcome::ValueSet => Kind::ValueSet(wire::Nothing {}),
        Outcome::CancelTooLate(what) => Kind::CancelTooLate(late(*what)),
        Outcome::CancelReleased { grant, count_left } => {
            Kind::CancelReleased(wire::CancelReleased { grant: grant.0, count_left: *count_left })
        }
        Outcome::Done => Kind::Done(wire::Nothing {}),
        Outcome::NotFound => Kind::NotFound(wire::Nothing {}),
        Outcome::Refused(why) => Kind::Refused(refusal(why)),
    };
    wire::Outcome { kind: Some(kind) }
}

fn late(late: Late) -> wire::Late {
    use wire::late::Kind;
    let kind = match late {
        Late::Granted { grant, stands } => Kind::Granted(wire::LateGrant { grant: grant.0, stands }),
        Late::Converted { grant, stands } => Kind::Converted(wire::LateGrant { grant: grant.0, stands }),
        Late::Ended => Kind::Ended(wire::Nothing {}),
    };
    wire::Late { kind: Some(kind) }
}

fn busy(Busy { name, why, holders, holder_count }: &Busy) -> wire::Busy {
    let why = match why {
        BusyWhy::Frozen => wire::BusyWhy::Frozen,
        BusyWhy::Held => wire::BusyWhy::Held,
        BusyWhy::Resting => wire::BusyWhy::Resting,
        BusyWhy::Queued => wire::BusyWhy::Queued,
    };
    wire::Busy {
        name: text(name),
        why: why as i32,
        holders: holders.iter().map(holder).collect(),
        holder_count: *holder_count,
    }
}

pub(crate) fn holder(Holder { grant, takes, token, since, session, owner }: &Holder) -> wire::Holder {
    use wire::holder::Takes as Wire;
    let takes = match takes {
        Takes::Mode(taken) => Wire::Mode(mode(*taken)),
        Takes::Permits(permits) => Wire::Permits(permits.get()),
    };
    wire::Holder {
        grant: grant.0,
        takes: Some(takes),
        token: token.0,
        since_ms: since.0,
        session: session.map(session_id),
        owner: owner_name(owner),
    }
}

pub(crate) fn mode(mode: Mode) -> i32 {
    let mode = match mode {
        Mode::IS => wire::Mode::Is,
        Mode::IX => wire::Mode::Ix,
        Mode::S => wire::Mode::S,
        Mode::U => wire::Mode::U,
        Mode::SIX => wire::Mode::Six,
        Mode::X => wire::Mode::X,
    };
    mode as i32
}

pub(crate) fn cycle(Cycle { links }: &Cycle) -> wire::Cycle {
    wire::Cycle { links: links.iter().map(cycle_link).collect() }
}

fn cycle_link(CycleLink { session, owner, number, waits_for, wants, blocked_by }: &CycleLink) -> wire::CycleLink {
    let (session_high, session_low) = halves(session.0);
    wire::CycleLink {
        session_high,
        session_low,
        owner: owner_name(owner),
        number: number.0,
        waits_for: text(waits_for),
        wants: mode(*wants),
        blocked_by: blocked_by.map(|grant| grant.0),
    }
}

fn attached(Attached { epoch, grants, waits, unseen, lost }: &Attached) -> wire::Attached {
    wire::Attached {
        epoch: epoch.0,
        grants: grants.iter().map(attached_grant).collect(),
        waits: waits.iter().map(attached_wait).collect(),
        unseen: unseen.iter().map(unseen_answer).collect(),
        lost: lost_grants(lost),
    }
}

fn attached_wait(AttachedWait { number, arrival, job_key }: &AttachedWait) -> wire::AttachedWait {
    let job_key = job_key.as_ref().map(|key| key.as_str().to_owned());
    wire::AttachedWait { number: number.0, arrival: arrival.0, job_key }
}

fn attached_grant(AttachedGrant { grant, token, count, held: holds, job }: &AttachedGrant) -> wire::AttachedGrant {
    let job = job
        .as_ref()
        .map(|AttachedJob { key, attempt }| wire::AttachedJob { key: key.as_str().to_owned(), attempt: *attempt });
    wire::AttachedGrant { grant: grant.0, token: token.0, count: *count, held: Some(held(holds)), job }
}

fn unseen_answer(UnseenAnswer { number, answered_at, outcome: said, stands }: &UnseenAnswer) -> wire::UnseenAnswer {
    wire::UnseenAnswer {
        number: number.0,
        answered_at_ms: answered_at.0,
        outcome: Some(outcome(said)),
        stands: *stands,
    }
}

pub(crate) fn lost_grant(grant: GrantId, how: &GrantEnd) -> wire::LostGrant {
    wire::LostGrant { grant: grant.0, how: Some(grant_end(how)) }
}

fn lost_grants(lost: &[(GrantId, GrantEnd)]) -> Vec<wire::LostGrant> {
    lost.iter().map(|(grant, how)| lost_grant(*grant, how)).collect()
}

pub(crate) fn session_end(how: &SessionEnd) -> wire::SessionEnd {
    use wire::session_end::How;
    let how = match how {
        SessionEnd::Closed => How::Closed(wire::Nothing {}),
        SessionEnd::Expired => How::Expired(wire::Nothing {}),
        SessionEnd::Evicted(reason) => How::Evicted(reason.as_str().to_owned()),
        SessionEnd::Restored => How::Restored(wire::Nothing {}),
    };
    wire::SessionEnd { how: Some(how) }
}

pub(crate) fn grant_end(how: &GrantEnd) -> wire::GrantEnd {
    use wire::grant_end::How;
    let how = match how {
        GrantEnd::Released => How::Released(wire::Nothing {}),
        GrantEnd::Session(how) => How::Session(session_end(how)),
        GrantEnd::Ttl => How::Ttl(wire::Nothing {}),
        GrantEnd::MaxHold => How::MaxHold(wire::Nothing {}),
        GrantEnd::Broken(reason) => How::Broken(reason.as_str().to_owned()),
    };
    wire::GrantEnd { how: Some(how) }
}

// ---- Refusals

fn refusal(refusal: &Refusal) -> wire::Refusal {
    use wire::refusal::Kind;
    let nothing = wire::Nothing {};
    let and_grant = |name: &Name, grant: &GrantId| wire::NameAndGrant { name: text(name), grant: grant.0 };
    let and_limit = |name: &Name, limit: &Permits| wire::NameAndLimit { name: text(name), limit: limit.get() };
    let kind = match refusal {
        Refusal::NoSession => Kind::NoSession(nothing),
        Refusal::SessionExists => Kind::SessionExists(nothing),
        Refusal::WrongSecret => Kind::WrongSecret(nothing),
        Refusal::WrongEpoch { current } => Kind::WrongEpochCurrent(current.0),
        Refusal::AlreadySeen => Kind::AlreadySeen(nothing),
        Refusal::SeenWhileWaiting(number) => Kind::SeenWhileWaiting(number.0),
        Refusal::Bound(reached) => Kind::Bound(bound(*reached)),
        Refusal::BadWord(why) => Kind::BadWord(bad_word(*why)),
        Refusal::BadNumber => Kind::BadNumber(nothing),
        Refusal::CancelsItself => Kind::CancelsItself(nothing),
        Refusal::NamedTwice(name) => Kind::NamedTwice(text(name)),
        Refusal::OwnerWaits => Kind::OwnerWaits(nothing),
        Refusal::UseUpgrade { name, grant } => Kind::UseUpgrade(and_grant(name, grant)),
        Refusal::AlreadyHeld { name, grant } => Kind::AlreadyHeld(and_grant(name, grant)),
        Refusal::CountAboveOne => Kind::CountAboveOne(nothing),
        Refusal::NotInGrant(name) => Kind::NotInGrant(text(name)),
        Refusal::UpgradeConflict(name) => Kind::UpgradeConflict(text(name)),
        Refusal::NotALock => Kind::NotALock(nothing),
        Refusal::NotAnElection => Kind::NotAnElection(nothing),
        Refusal::NothingToExtend => Kind::NothingToExtend(nothing),
        Refusal::IsSemaphore(name) => Kind::IsSemaphore(text(name)),
        Refusal::IsLock(name) => Kind::IsLock(text(name)),
        Refusal::PathSemaphore(name) => Kind::PathSemaphore(text(name)),
        Refusal::NoLimit(name) => Kind::NoLimit(text(name)),
        Refusal::LimitDiffers { name, live } => Kind::LimitDiffers(and_limit(name, live)),
        Refusal::MoreThanLimit { name, limit } => Kind::MoreThanLimit(and_limit(name, limit)),
        Refusal::LimitLowered { name, limit, reason } => Kind::LimitLowered(wire::LimitLowered {
            name: text(name),
            limit: limit.get(),
            reason: reason.as_str().to_owned(),
        }),
        Refusal::KeyNeedsExclusive => Kind::KeyNeedsExclusive(nothing),
        Refusal::KeyedReentry { name, grant } => Kind::KeyedReentry(and_grant(name, grant)),
        Refusal::KeyedGrant => Kind::KeyedGrant(nothing),
        Refusal::NoJob => Kind::NoJob(nothing),
        Refusal::JobsNotAllowed => Kind::JobsNotAllowed(nothing),
        Refusal::JobHeld { grant } => Kind::JobHeld(grant.0),
        Refusal::FreezeExists => Kind::FreezeExists(nothing),
        Refusal::NotYet { needs } => Kind::NotYetNeeds(needs.get()),
    };
    wire::Refusal { kind: Some(kind) }
}

fn bad_word(why: BadWord) -> wire::BadWord {
    use wire::bad_word::Kind;
    let kind = match why {
        BadWord::Bound(reached) => Kind::Bound(bound(reached)),
        BadWord::Empty => Kind::Empty(wire::Nothing {}),
        BadWord::ControlCharacter => Kind::ControlCharacter(wire::Nothing {}),
        BadWord::EmptySegment => Kind::EmptySegment(wire::Nothing {}),
        BadWord::Zero => Kind::Zero(wire::Nothing {}),
    };
    wire::BadWord { kind: Some(kind) }
}

fn bound(bound: Bound) -> i32 {
    let bound = match bound {
        Bound::NameBytes => wire::Bound::NameBytes,
        Bound::PathLevels => wire::Bound::PathLevels,
        Bound::MetadataBytes => wire::Bound::MetadataBytes,
        Bound::ValueBytes => wire::Bound::ValueBytes,
        Bound::OwnerBytes => wire::Bound::OwnerBytes,
        Bound::PrincipalBytes => wire::Bound::PrincipalBytes,
        Bound::ReasonBytes => wire::Bound::ReasonBytes,
        Bound::ToldReasonBytes => wire::Bound::ToldReasonBytes,
        Bound::JobKeyBytes => wire::Bound::JobKeyBytes,
        Bound::JobBytes => wire::Bound::JobBytes,
        Bound::JobsPerName => wire::Bound::JobsPerName,
        Bound::JobBytesPerName => wire::Bound::JobBytesPerName,
        Bound::Jobs => wire::Bound::Jobs,
        Bound::JobBytesTotal => wire::Bound::JobBytesTotal,
        Bound::KeepLeast => wire::Bound::KeepLeast,
        Bound::MultiLock => wire::Bound::MultiLock,
        Bound::FootprintNames => wire::Bound::FootprintNames,
        Bound::LocksPerSession => wire::Bound::LocksPerSession,
        Bound::WaitersPerSession => wire::Bound::WaitersPerSession,
        Bound::WaitersPerResource => wire::Bound::WaitersPerResource,
        Bound::SessionsPerPrincipal => wire::Bound::SessionsPerPrincipal,
        Bound::UnseenAnswers => wire::Bound::UnseenAnswers,
        Bound::SeenRanges => wire::Bound::SeenRanges,
        Bound::Reentries => wire::Bound::Reentries,
        Bound::Freezes => wire::Bound::Freezes,
        Bound::Limits => wire::Bound::Limits,
        Bound::TtlLeast => wire::Bound::TtlLeast,
        Bound::LockDelay => wire::Bound::LockDelay,
        Bound::Duration => wire::Bound::Duration,
    };
    bound as i32
}

// ---- Words

pub(crate) fn text(name: &Name) -> String {
    name.as_str().to_owned()
}

pub(crate) fn owner_name(owner: &Option<OwnerName>) -> Option<String> {
    owner.as_ref().map(|owner| owner.as_str().to_owned())
}

pub(crate) fn session_id(session: SessionId) -> wire::SessionId {
    let (high, low) = halves(session.0);
    wire::SessionId { high, low }
}

/// The upper and the lower half of an id.
pub(crate) fn halves(id: u128) -> (u64, u64) {
    ((id >> 64) as u64, id as u64)
}

pub(crate) fn seen_ranges(ranges: &[(u64, u64)]) -> Vec<wire::SeenRange> {
    ranges.iter().map(|(first, last)| wire::SeenRange { first: *first, last: *last }).collect()
}
