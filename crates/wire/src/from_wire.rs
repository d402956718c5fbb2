//! From the generated types to the core's. Every word goes through the core's own constructor, so the result is valid by type. An
//! unknown choice is an error and never skipped.
//!
//! The core decides whether a command is allowed, and whether records fit together.

use fencepost_core::{
    Acquire, Act, Action, Admin, AnswerRecord, Arrival, Attached, AttachedGrant, AttachedJob, AttachedWait, AttemptEnd,
    AttemptRecord, BadWord, Bound, Busy, BusyWhy, CheckpointRecord, CompletionRecord, Cycle, CycleLink, Epoch,
    FormatVersion, FreezeId, FreezeRecord, GrantEnd, GrantId, GrantRecord, Header, Held, Holder, JobBytes, JobKey,
    JobRecord, JobReport, JobTerms, Keep, Late, Lock, LockDelay, LockMode, Locks, LogicalMs, Metadata, Millis, Mode,
    Name, Open, Operation, Outcome, OwnerName, Permits, Principal, Reason, Record, Refusal, Renewal, Request,
    RequestNumber, RestRecord, Scope, SecretHash, Seen, SemaphoreRecord, SessionEnd, SessionId, SessionRecord,
    TakePermits, Takes, Terms, Token, ToldReason, Ttl, UnseenAnswer, Value, Verdict, Wait, WaiterRecord, Wants,
};

use crate::error::WireError;
use crate::v1 as wire;

pub(crate) type Read<T> = Result<T, WireError>;

// ---- What a log entry carries

pub(crate) fn renewal(renewal: wire::Renewal) -> Read<Renewal> {
    use wire::renewal::Kind;
    Ok(match known("a renewal", renewal.kind)? {
        Kind::KeepAlive(wire::KeepAlive { session_high, session_low, epoch, seen_mark, seen_ranges }) => {
            Renewal::KeepAlive {
                session: session(session_high, session_low),
                epoch: Epoch(epoch),
                seen: seen(seen_mark, &seen_ranges),
            }
        }
        Kind::Attach(wire::Attach { session_high, session_low, secret_hash: hash, seen_mark, seen_ranges }) => {
            Renewal::Attach {
                session: session(session_high, session_low),
                secret_hash: secret_hash(&hash)?,
                seen: seen(seen_mark, &seen_ranges),
            }
        }
    })
}

pub(crate) fn operation(operation: wire::Operation) -> Read<Operation> {
    use wire::operation::Kind;
    Ok(match known("an operation", operation.kind)? {
        Kind::Request(asked) => Operation::Request(request(asked)?),
        Kind::Open(asked) => Operation::Open(open(asked)?),
        Kind::Admin(asked) => Operation::Admin(admin(asked)?),
    })
}

fn open(open: wire::Open) -> Read<Open> {
    let wire::Open { session_high, session_low, secret_hash: hash, principal: whose, ttl_ms, metadata: about } = open;
    Ok(Open {
        session: session(session_high, session_low),
        secret_hash: secret_hash(&hash)?,
        principal: principal(&whose)?,
        ttl: ttl(ttl_ms)?,
        metadata: metadata(&about)?,
    })
}

pub(crate) fn request(request: wire::Request) -> Read<Request> {
    let wire::Request { session_high, session_low, epoch, number, seen_mark, seen_ranges, action: asked } = request;
    Ok(Request {
        session: session(session_high, session_low),
        epoch: Epoch(epoch),
        number: RequestNumber(number),
        seen: seen(seen_mark, &seen_ranges),
        action: action(known("a request", asked)?)?,
    })
}

fn action(action: wire::request::Action) -> Read<Action> {
    use wire::request::Action as Wire;
    Ok(match action {
        Wire::Acquire(wire::Acquire { locks: asked, owner, wait: how_long, terms: like }) => Action::Acquire(Acquire {
            locks: locks(asked)?,
            owner: owner_name(owner)?,
            wait: wait(how_long)?,
            terms: like.map(terms).transpose()?.unwrap_or_default(),
        }),
        Wire::Release(wire::Release { grant, report }) => {
            Action::Release { grant: GrantId(grant), report: report.map(job_report).transpose()?.map(Box::new) }
        }
        Wire::Begin(wire::Begin { grant }) => Action::Begin { grant: GrantId(grant) },
        Wire::Checkpoint(wire::Checkpoint { grant, bytes }) => {
            Action::Checkpoint { grant: GrantId(grant), bytes: job_bytes(&bytes)? }
        }
        Wire::TakePermits(wire::TakePermits { name: of, permits: count, limit, wait: how_long, terms: like }) => {
            Action::TakePermits(TakePermits {
                name: name(&of)?,
                permits: permits(count)?,
                limit: limit.map(permits).transpose()?,
                wait: wait(how_long)?,
                terms: like.map(terms).transpose()?.unwrap_or_default(),
            })
        }
        Wire::Cancel(wire::Cancel { request, release_if_granted }) => {
            Action::Cancel { request: RequestNumber(request), release_if_granted }
        }
        Wire::Extend(wire::Extend { grant, max_hold_ms }) => {
            Action::Extend { grant: GrantId(grant), max_hold: millis(max_hold_ms)? }
        }
        Wire::Convert(wire::Convert { grant, name: of, mode: wanted, wait: how_long }) => {
            Action::Convert { grant: GrantId(grant), name: name(&of)?, mode: lock_mode(wanted)?, wait: wait(how_long)? }
        }
        Wire::SetValue(wire::SetValue { grant, value: new }) => {
            Action::SetValue { grant: GrantId(grant), value: value(&new)? }
        }
        Wire::Close(wire::Nothing {}) => Action::Close,
    })
}

fn job_report(wire::JobReport { verdict, bytes }: wire::JobReport) -> Read<JobReport> {
    let verdict = match named("a verdict on a job", verdict)? {
        wire::Verdict::Unspecified => return Err(WireError::Unknown { what: "a verdict on a job" }),
        wire::Verdict::Succeeded => Verdict::Succeeded,
        wire::Verdict::Failed => Verdict::Failed,
        wire::Verdict::Open => Verdict::Open,
    };
    Ok(JobReport { verdict, bytes: job_bytes(&bytes)? })
}

fn admin(wire::Admin { by, reason: why, act: done }: wire::Admin) -> Read<Admin> {
    Ok(Admin { by: principal(&by)?, reason: reason(&why)?, act: act(known("an administrator's act", done)?)? })
}

pub(crate) fn act(act: wire::admin::Act) -> Read<Act> {
    use wire::admin::Act as Wire;
    Ok(match act {
        Wire::BreakGrant(grant) => Act::Break { grant: GrantId(grant) },
        Wire::Evict(wire::Evict { session_high, session_low }) => {
            Act::Evict { session: session(session_high, session_low) }
        }
        Wire::WaiveRest(grant) => Act::WaiveRest { grant: GrantId(grant) },
        Wire::Freeze(asked) => {
            let (freeze, scope) = freeze(asked)?;
            Act::Freeze { freeze, scope }
        }
        Wire::Thaw(wire::Thaw { freeze_high, freeze_low }) => {
            Act::Thaw { freeze: FreezeId(whole(freeze_high, freeze_low)) }
        }
        Wire::SetLimit(asked) => {
            let (name, limit) = set_limit(asked)?;
            Act::SetLimit { name, limit }
        }
        Wire::CompleteJob(wire::CompleteJob { name: of, key, keep_ms }) => {
            Act::CompleteJob { name: name(&of)?, key: job_key(&key)?, keep: keep(keep_ms)? }
        }
        Wire::ForgetJob(wire::ForgetJob { name: of, key }) => Act::ForgetJob { name: name(&of)?, key: job_key(&key)? },
        Wire::AllowJobs(wire::Nothing {}) => Act::AllowJobs,
    })
}

pub(crate) fn freeze(freeze: wire::Freeze) -> Read<(FreezeId, Scope)> {
    Ok((FreezeId(whole(freeze.freeze_high, freeze.freeze_low)), scope(freeze.scope)?))
}

pub(crate) fn set_limit(wire::SetLimit { name: of, limit }: wire::SetLimit) -> Read<(Name, Option<Permits>)> {
    Ok((name(&of)?, limit.map(permits).transpose()?))
}

fn wait(wait: Option<wire::Wait>) -> Read<Wait> {
    use wire::wait::Kind;
    Ok(match known("a wait", wait.and_then(|wait| wait.kind))? {
        Kind::No(wire::Nothing {}) => Wait::No,
        Kind::UpToMs(ms) => Wait::UpTo(millis(ms)?),
        Kind::Forever(wire::Nothing {}) => Wait::Forever,
    })
}

pub(crate) fn terms(terms: wire::Terms) -> Read<Terms> {
    let wire::Terms { ttl_ms, max_hold_ms, lock_delay_ms, hear_contended, metadata: about, value: first, job } = terms;
    Ok(Terms {
        ttl: ttl_ms.map(ttl).transpose()?,
        max_hold: max_hold_ms.map(millis).transpose()?,
        lock_delay: LockDelay::new(lock_delay_ms).map_err(bad("a lock delay"))?,
        hear_contended,
        metadata: metadata(&about)?,
        value: first.map(|first| value(&first)).transpose()?,
        job: job.map(job_terms).transpose()?,
    })
}

fn job_terms(wire::JobTerms { key, keep_ms }: wire::JobTerms) -> Read<JobTerms> {
    Ok(JobTerms { key: job_key(&key)?, keep: keep(keep_ms)? })
}

pub(crate) fn locks(locks: Vec<wire::Lock>) -> Read<Locks> {
    let lock = |wire::Lock { name: of, mode }| Ok(Lock { name: name(&of)?, mode: lock_mode(mode)? });
    locks.into_iter().map(lock).collect()
}

fn lock_mode(mode: i32) -> Read<LockMode> {
    match named("a lock mode", mode)? {
        wire::LockMode::Unspecified => Err(WireError::Unknown { what: "a lock mode" }),
        wire::LockMode::Shared => Ok(LockMode::Shared),
        wire::LockMode::Update => Ok(LockMode::Update),
        wire::LockMode::Exclusive => Ok(LockMode::Exclusive),
    }
}

fn scope(scope: Option<wire::Scope>) -> Read<Scope> {
    use wire::scope::Covers;
    Ok(match known("the scope of a freeze", scope.and_then(|scope| scope.covers))? {
        Covers::Name(of) => Scope::Name(name(&of)?),
        Covers::Prefix(prefix) => Scope::Prefix(prefix.into()),
    })
}

// ---- Records

pub(crate) fn record(record: wire::Record) -> Read<Record> {
    use wire::record::Kind;
    Ok(match known("a record", record.kind)? {
        Kind::Grant(record) => Record::Grant(grant_record(record)?),
        Kind::Waiter(record) => Record::Waiter(waiter_record(record)?),
        Kind::Answer(record) => Record::Answer(answer_record(record)?),
        Kind::Session(record) => Record::Session(session_record(record)?),
        Kind::Rest(record) => Record::Rest(rest_record(record)?),
        Kind::Semaphore(record) => Record::Semaphore(semaphore_record(record)?),
        Kind::Freeze(record) => Record::Freeze(freeze_record(record)?),
        Kind::Job(record) => Record::Job(job_record(record)?),
        Kind::Header(record) => Record::Header(header_record(record)?),
    })
}

fn header_record(record: wire::HeaderRecord) -> Read<Header> {
    let wire::HeaderRecord { stamp_ms, last_token, last_arrival, grace_at_ms, format_version, jobs_refused } = record;
    let (version, grace_at) = (version(format_version)?, grace_at_ms.map(LogicalMs));
    Ok(Header { version, stamp: LogicalMs(stamp_ms), last_token, last_arrival, grace_at, jobs_refused })
}

fn version(number: u32) -> Read<FormatVersion> {
    let detail = || "there is no version 0".to_owned();
    FormatVersion::new(number).ok_or_else(|| WireError::Damaged { what: "a format version", detail: detail() })
}

fn session_record(record: wire::SessionRecord) -> Read<SessionRecord> {
    Ok(SessionRecord {
        id: session(record.session_high, record.session_low),
        principal: principal(&record.principal)?,
        secret_hash: secret_hash(&record.secret_hash)?,
        ttl: ttl(record.ttl_ms)?,
        metadata: metadata(&record.metadata)?,
        opened_at: LogicalMs(record.opened_at_ms),
        opened_after_token: record.opened_after_token,
        epoch: Epoch(record.epoch),
        renewed_at: LogicalMs(record.renewed_at_ms),
        seen_mark: record.seen_mark,
        seen_ranges: seen_ranges(&record.seen_ranges).collect(),
        lost: lost_grants(record.lost)?,
    })
}

fn answer_record(record: wire::AnswerRecord) -> Read<AnswerRecord> {
    Ok(AnswerRecord {
        session: session(record.session_high, record.session_low),
        number: RequestNumber(record.number),
        answered_at: LogicalMs(record.answered_at_ms),
        outcome: outcome(record.outcome)?,
        given_back: record.given_back,
    })
}

pub(crate) fn grant_record(record: wire::GrantRecord) -> Read<GrantRecord> {
    Ok(GrantRecord {
        id: GrantId(record.grant),
        token: Token(record.token),
        session: session(record.session_high, record.session_low),
        owner: owner_name(record.owner)?,
        held: held(record.held)?,
        count: record.count,
        granted_at: LogicalMs(record.granted_at_ms),
        hold_until: record.hold_until_ms.map(LogicalMs),
        terms: record.terms.map(terms).transpose()?.map(Box::new),
    })
}

pub(crate) fn rest_record(record: wire::RestRecord) -> Read<RestRecord> {
    Ok(RestRecord {
        grant: GrantId(record.grant),
        token: Token(record.token),
        held: held(record.held)?,
        since: LogicalMs(record.since_ms),
        until: LogicalMs(record.until_ms),
    })
}

pub(crate) fn waiter_record(record: wire::WaiterRecord) -> Read<WaiterRecord> {
    Ok(WaiterRecord {
        arrival: Arrival(record.arrival),
        session: session(record.session_high, record.session_low),
        number: RequestNumber(record.number),
        owner: owner_name(record.owner)?,
        wants: wants(known("the target of a waiting request", record.wants)?)?,
        queued_at: LogicalMs(record.queued_at_ms),
        until: record.until_ms.map(LogicalMs),
        terms: record.terms.map(terms).transpose()?.map(Box::new),
        unchecked: record.unchecked,
    })
}

fn wants(wants: wire::waiter_record::Wants) -> Read<Wants> {
    use wire::waiter_record::Wants as Wire;
    Ok(match wants {
        Wire::Locks(wanted) => Wants::Locks(locks(wanted.locks)?),
        Wire::Conversion(wire::WantedConversion { grant, name: of, mode }) => {
            Wants::Conversion { grant: GrantId(grant), name: name(&of)?, mode: lock_mode(mode)? }
        }
        Wire::Permits(wire::HeldPermits { name: of, permits: count }) => {
            Wants::Permits { name: name(&of)?, permits: permits(count)? }
        }
    })
}

pub(crate) fn semaphore_record(record: wire::SemaphoreRecord) -> Read<SemaphoreRecord> {
    let wire::SemaphoreRecord { name: of, limit, administered } = record;
    Ok(SemaphoreRecord { name: name(&of)?, limit: permits(limit)?, administered })
}

pub(crate) fn freeze_record(record: wire::FreezeRecord) -> Read<FreezeRecord> {
    Ok(FreezeRecord {
        id: FreezeId(whole(record.freeze_high, record.freeze_low)),
        scope: scope(record.scope)?,
        by: principal(&record.by)?,
        reason: reason(&record.reason)?,
        since: LogicalMs(record.since_ms),
    })
}

pub(crate) fn job_record(record: wire::JobRecord) -> Read<JobRecord> {
    let wire::JobRecord { name: of, key, attempts, last, checkpoint, completion, until_ms } = record;
    let checkpoint = checkpoint.map(|wire::CheckpointRecord { attempt, at_ms, bytes }| {
        Ok(CheckpointRecord { attempt, at: LogicalMs(at_ms), bytes: job_bytes(&bytes)? })
    });
    Ok(JobRecord {
        name: name(&of)?,
        key: job_key(&key)?,
        attempts,
        last: last.map(attempt_record).transpose()?,
        checkpoint: checkpoint.transpose()?,
        completion: completion.map(completion_record).transpose()?,
        until: until_ms.map(LogicalMs),
    })
}

fn attempt_record(record: wire::AttemptRecord) -> Read<AttemptRecord> {
    let ended = record.ended.map(|wire::AttemptEnd { at_ms, how, error }| {
        Ok(AttemptEnd { at: LogicalMs(at_ms), how: grant_end(how)?, error: job_bytes(&error)? })
    });
    Ok(AttemptRecord {
        grant: GrantId(record.grant),
        token: Token(record.token),
        session: session(record.session_high, record.session_low),
        began_at: LogicalMs(record.began_at_ms),
        ended: ended.transpose()?,
    })
}

fn completion_record(record: wire::CompletionRecord) -> Read<CompletionRecord> {
    let wire::CompletionRecord { at_ms, succeeded, result, token, by } = record;
    Ok(CompletionRecord {
        at: LogicalMs(at_ms),
        succeeded,
        result: job_bytes(&result)?,
        token: token.map(Token),
        by: by.map(|by| principal(&by)).transpose()?,
    })
}

pub(crate) fn job_id(wire::JobId { name: of, key }: &wire::JobId) -> Read<(Name, JobKey)> {
    Ok((name(of)?, job_key(key)?))
}

pub(crate) fn held(held: Option<wire::Held>) -> Read<Held> {
    use wire::held::Kind;
    Ok(match known("the locks or permits of a grant", held.and_then(|held| held.kind))? {
        Kind::Locks(held) => Held::Locks(locks(held.locks)?),
        Kind::Permits(wire::HeldPermits { name: of, permits: count }) => {
            Held::Permits { name: name(&of)?, permits: permits(count)? }
        }
    })
}

// ---- Outcomes

pub(crate) fn outcome(outcome: Option<wire::Outcome>) -> Read<Outcome> {
    use wire::outcome::Kind;
    let nothing = |wire::Nothing {}, outcome| outcome;
    Ok(match known("an outcome", outcome.and_then(|outcome| outcome.kind))? {
        Kind::Granted(wire::Granted { grant, token, count }) => {
            Outcome::Granted { grant: GrantId(grant), token: Token(token), count }
        }
        Kind::Queued(wire::Queued { arrival, unchecked }) => Outcome::Queued { arrival: Arrival(arrival), unchecked },
        Kind::ReleasedCountLeft(count_left) => Outcome::Released { count_left },
        Kind::Busy(found) => Outcome::Busy(Box::new(busy(found)?)),
        Kind::TimedOut(rest) => nothing(rest, Outcome::TimedOut),
        Kind::Cancelled(rest) => nothing(rest, Outcome::Cancelled),
        Kind::Converted(wire::Converted { grant, token }) => {
            Outcome::Converted { grant: GrantId(grant), token: Token(token) }
        }
        Kind::ExtendedUntilMs(until) => Outcome::Extended { until: LogicalMs(until) },
        Kind::ValueSet(rest) => nothing(rest, Outcome::ValueSet),
        Kind::Expired(how) => Outcome::Expired(grant_end(Some(how))?),
        Kind::CancelTooLate(what) => Outcome::CancelTooLate(late(what)?),
        Kind::CancelReleased(wire::CancelReleased { grant, count_left }) => {
            Outcome::CancelReleased { grant: GrantId(grant), count_left }
        }
        Kind::Refused(why) => Outcome::Refused(refusal(why)?),
        Kind::NotOwner(rest) => nothing(rest, Outcome::NotOwner),
        Kind::AlreadyReleased(rest) => nothing(rest, Outcome::AlreadyReleased),
        Kind::Deadlock(found) => Outcome::Deadlock(Box::new(cycle(found)?)),
        Kind::SessionEnded(how) => Outcome::SessionEnded(session_end(Some(how))?),
        Kind::GrantEnded(how) => Outcome::GrantEnded(grant_end(Some(how))?),
        Kind::OpenedEpoch(epoch) => Outcome::Opened { epoch: Epoch(epoch) },
        Kind::Renewed(rest) => nothing(rest, Outcome::Renewed),
        Kind::Attached(found) => Outcome::Attached(Box::new(attached(found)?)),
        Kind::Closed(rest) => nothing(rest, Outcome::Closed),
        Kind::Done(rest) => nothing(rest, Outcome::Done),
        Kind::NotFound(rest) => nothing(rest, Outcome::NotFound),
        Kind::Completed(wire::Completed { token, succeeded }) => {
            Outcome::Completed { token: token.map(Token), succeeded }
        }
        Kind::BegunAttempt(attempt) => Outcome::Begun { attempt },
        Kind::CheckpointedAttempt(attempt) => Outcome::Checkpointed { attempt },
    })
}

fn late(late: wire::Late) -> Read<Late> {
    use wire::late::Kind;
    Ok(match known("the outcome that a cancel came too late for", late.kind)? {
        Kind::Granted(wire::LateGrant { grant, stands }) => Late::Granted { grant: GrantId(grant), stands },
        Kind::Converted(wire::LateGrant { grant, stands }) => Late::Converted { grant: GrantId(grant), stands },
        Kind::Ended(wire::Nothing {}) => Late::Ended,
    })
}

fn busy(wire::Busy { name: of, why, holders, holder_count }: wire::Busy) -> Read<Busy> {
    let why = match named("the reason of a busy answer", why)? {
        wire::BusyWhy::Unspecified => return Err(WireError::Unknown { what: "the reason of a busy answer" }),
        wire::BusyWhy::Frozen => BusyWhy::Frozen,
        wire::BusyWhy::Held => BusyWhy::Held,
        wire::BusyWhy::Resting => BusyWhy::Resting,
        wire::BusyWhy::Queued => BusyWhy::Queued,
    };
    let holders = holders.into_iter().map(holder).collect::<Read<Vec<_>>>()?;
    Ok(Busy { name: name(&of)?, why, holders, holder_count })
}

pub(crate) fn holder(holder: wire::Holder) -> Read<Holder> {
    use wire::holder::Takes as Wire;
    let takes = match known("the mode or permits of a holder", holder.takes)? {
        Wire::Mode(taken) => Takes::Mode(mode(taken)?),
        Wire::Permits(count) => Takes::Permits(permits(count)?),
    };
    Ok(Holder {
        grant: GrantId(holder.grant),
        takes,
        token: Token(holder.token),
        since: LogicalMs(holder.since_ms),
        session: holder.session.map(session_id),
        owner: owner_name(holder.owner)?,
    })
}

pub(crate) fn mode(mode: i32) -> Read<Mode> {
    match named("a mode", mode)? {
        wire::Mode::Unspecified => Err(WireError::Unknown { what: "a mode" }),
        wire::Mode::Is => Ok(Mode::IS),
        wire::Mode::Ix => Ok(Mode::IX),
        wire::Mode::S => Ok(Mode::S),
        wire::Mode::U => Ok(Mode::U),
        wire::Mode::Six => Ok(Mode::SIX),
        wire::Mode::X => Ok(Mode::X),
    }
}

pub(crate) fn cycle(wire::Cycle { links }: wire::Cycle) -> Read<Cycle> {
    Ok(Cycle { links: links.into_iter().map(cycle_link).collect::<Read<_>>()? })
}

fn cycle_link(link: wire::CycleLink) -> Read<CycleLink> {
    Ok(CycleLink {
        session: session(link.session_high, link.session_low),
        owner: owner_name(link.owner)?,
        number: RequestNumber(link.number),
        waits_for: name(&link.waits_for)?,
        wants: mode(link.wants)?,
        blocked_by: link.blocked_by.map(GrantId),
    })
}

fn attached(wire::Attached { epoch, grants, waits, unseen, lost }: wire::Attached) -> Read<Attached> {
    let wait = |wire::AttachedWait { number, arrival, job_key: key }| {
        let job_key = key.map(|key| job_key(&key)).transpose()?;
        Ok(AttachedWait { number: RequestNumber(number), arrival: Arrival(arrival), job_key })
    };
    Ok(Attached {
        epoch: Epoch(epoch),
        grants: grants.into_iter().map(attached_grant).collect::<Read<Vec<_>>>()?,
        waits: waits.into_iter().map(wait).collect::<Read<Vec<_>>>()?,
        unseen: unseen.into_iter().map(unseen_answer).collect::<Read<Vec<_>>>()?,
        lost: lost_grants(lost)?,
    })
}

fn attached_grant(grant: wire::AttachedGrant) -> Read<AttachedGrant> {
    let wire::AttachedGrant { grant, token, count, held: holds, job } = grant;
    let job = job.map(|wire::AttachedJob { key, attempt }| Ok(AttachedJob { key: job_key(&key)?, attempt }));
    Ok(AttachedGrant { grant: GrantId(grant), token: Token(token), count, held: held(holds)?, job: job.transpose()? })
}

fn unseen_answer(answer: wire::UnseenAnswer) -> Read<UnseenAnswer> {
    Ok(UnseenAnswer {
        number: RequestNumber(answer.number),
        answered_at: LogicalMs(answer.answered_at_ms),
        outcome: outcome(answer.outcome)?,
        stands: answer.stands,
    })
}

fn lost_grants(lost: Vec<wire::LostGrant>) -> Read<Vec<(GrantId, GrantEnd)>> {
    lost.into_iter().map(lost_grant).collect()
}

pub(crate) fn lost_grant(wire::LostGrant { grant, how }: wire::LostGrant) -> Read<(GrantId, GrantEnd)> {
    Ok((GrantId(grant), grant_end(how)?))
}

pub(crate) fn session_end(end: Option<wire::SessionEnd>) -> Read<SessionEnd> {
    use wire::session_end::How;
    let nothing = |wire::Nothing {}, end| end;
    Ok(match known("the reason why a session ended", end.and_then(|end| end.how))? {
        How::Closed(rest) => nothing(rest, SessionEnd::Closed),
        How::Expired(rest) => nothing(rest, SessionEnd::Expired),
        How::Evicted(reason) => SessionEnd::Evicted(told_reason(&reason)?),
        How::Restored(rest) => nothing(rest, SessionEnd::Restored),
    })
}

pub(crate) fn grant_end(end: Option<wire::GrantEnd>) -> Read<GrantEnd> {
    use wire::grant_end::How;
    let nothing = |wire::Nothing {}, end| end;
    Ok(match known("the reason why a grant ended", end.and_then(|end| end.how))? {
        How::Released(rest) => nothing(rest, GrantEnd::Released),
        How::Session(how) => GrantEnd::Session(session_end(Some(how))?),
        How::Ttl(rest) => nothing(rest, GrantEnd::Ttl),
        How::MaxHold(rest) => nothing(rest, GrantEnd::MaxHold),
        How::Broken(reason) => GrantEnd::Broken(told_reason(&reason)?),
    })
}

// ---- Refusals

fn refusal(refusal: wire::Refusal) -> Read<Refusal> {
    use wire::refusal::Kind;
    let nothing = |wire::Nothing {}, refusal| refusal;
    Ok(match known("a refusal", refusal.kind)? {
        Kind::NoSession(rest) => nothing(rest, Refusal::NoSession),
        Kind::SessionExists(rest) => nothing(rest, Refusal::SessionExists),
        Kind::WrongSecret(rest) => nothing(rest, Refusal::WrongSecret),
        Kind::WrongEpochCurrent(current) => Refusal::WrongEpoch { current: Epoch(current) },
        Kind::AlreadySeen(rest) => nothing(rest, Refusal::AlreadySeen),
        Kind::SeenWhileWaiting(number) => Refusal::SeenWhileWaiting(RequestNumber(number)),
        Kind::Bound(reached) => Refusal::Bound(bound(reached)?),
        Kind::BadWord(why) => Refusal::BadWord(bad_word(why)?),
        Kind::BadNumber(rest) => nothing(rest, Refusal::BadNumber),
        Kind::CancelsItself(rest) => nothing(rest, Refusal::CancelsItself),
        Kind::NamedTwice(of) => Refusal::NamedTwice(name(&of)?),
        Kind::OwnerWaits(rest) => nothing(rest, Refusal::OwnerWaits),
        Kind::UseUpgrade(wire::NameAndGrant { name: of, grant }) => {
            Refusal::UseUpgrade { name: name(&of)?, grant: GrantId(grant) }
        }
        Kind::AlreadyHeld(wire::NameAndGrant { name: of, grant }) => {
            Refusal::AlreadyHeld { name: name(&of)?, grant: GrantId(grant) }
        }
        Kind::CountAboveOne(rest) => nothing(rest, Refusal::CountAboveOne),
        Kind::NotInGrant(of) => Refusal::NotInGrant(name(&of)?),
        Kind::UpgradeConflict(of) => Refusal::UpgradeConflict(name(&of)?),
        Kind::NotALock(rest) => nothing(rest, Refusal::NotALock),
        Kind::NotAnElection(rest) => nothing(rest, Refusal::NotAnElection),
        Kind::NothingToExtend(rest) => nothing(rest, Refusal::NothingToExtend),
        Kind::IsSemaphore(of) => Refusal::IsSemaphore(name(&of)?),
        Kind::IsLock(of) => Refusal::IsLock(name(&of)?),
        Kind::PathSemaphore(of) => Refusal::PathSemaphore(name(&of)?),
        Kind::NoLimit(of) => Refusal::NoLimit(name(&of)?),
        Kind::LimitDiffers(wire::NameAndLimit { name: of, limit }) => {
            Refusal::LimitDiffers { name: name(&of)?, live: permits(limit)? }
        }
        Kind::MoreThanLimit(wire::NameAndLimit { name: of, limit }) => {
            Refusal::MoreThanLimit { name: name(&of)?, limit: permits(limit)? }
        }
        Kind::LimitLowered(wire::LimitLowered { name: of, limit, reason }) => {
            Refusal::LimitLowered { name: name(&of)?, limit: permits(limit)?, reason: told_reason(&reason)? }
        }
        Kind::KeyNeedsExclusive(rest) => nothing(rest, Refusal::KeyNeedsExclusive),
        Kind::KeyedReentry(wire::NameAndGrant { name: of, grant }) => {
            Refusal::KeyedReentry { name: name(&of)?, grant: GrantId(grant) }
        }
        Kind::KeyedGrant(rest) => nothing(rest, Refusal::KeyedGrant),
        Kind::NoJob(rest) => nothing(rest, Refusal::NoJob),
        Kind::JobsNotAllowed(rest) => nothing(rest, Refusal::JobsNotAllowed),
        Kind::JobHeld(grant) => Refusal::JobHeld { grant: GrantId(grant) },
        Kind::FreezeExists(rest) => nothing(rest, Refusal::FreezeExists),
        Kind::NotYetNeeds(needs) => Refusal::NotYet { needs: version(needs)? },
    })
}

fn bad_word(why: wire::BadWord) -> Read<BadWord> {
    use wire::bad_word::Kind;
    Ok(match known("the reason why a value was refused", why.kind)? {
        Kind::Bound(reached) => BadWord::Bound(bound(reached)?),
        Kind::Empty(wire::Nothing {}) => BadWord::Empty,
        Kind::ControlCharacter(wire::Nothing {}) => BadWord::ControlCharacter,
        Kind::EmptySegment(wire::Nothing {}) => BadWord::EmptySegment,
        Kind::Zero(wire::Nothing {}) => BadWord::Zero,
    })
}

fn bound(bound: i32) -> Read<Bound> {
    Ok(match named("a bound", bound)? {
        wire::Bound::Unspecified => return Err(WireError::Unknown { what: "a bound" }),
        wire::Bound::NameBytes => Bound::NameBytes,
        wire::Bound::PathLevels => Bound::PathLevels,
        wire::Bound::MetadataBytes => Bound::MetadataBytes,
        wire::Bound::ValueBytes => Bound::ValueBytes,
        wire::Bound::OwnerBytes => Bound::OwnerBytes,
        wire::Bound::PrincipalBytes => Bound::PrincipalBytes,
        wire::Bound::ReasonBytes => Bound::ReasonBytes,
        wire::Bound::ToldReasonBytes => Bound::ToldReasonBytes,
        wire::Bound::JobKeyBytes => Bound::JobKeyBytes,
        wire::Bound::JobBytes => Bound::JobBytes,
        wire::Bound::JobsPerName => Bound::JobsPerName,
        wire::Bound::JobBytesPerName => Bound::JobBytesPerName,
        wire::Bound::Jobs => Bound::Jobs,
        wire::Bound::JobBytesTotal => Bound::JobBytesTotal,
        wire::Bound::KeepLeast => Bound::KeepLeast,
        wire::Bound::MultiLock => Bound::MultiLock,
        wire::Bound::FootprintNames => Bound::FootprintNames,
        wire::Bound::LocksPerSession => Bound::LocksPerSession,
        wire::Bound::WaitersPerSession => Bound::WaitersPerSession,
        wire::Bound::WaitersPerResource => Bound::WaitersPerResource,
        wire::Bound::SessionsPerPrincipal => Bound::SessionsPerPrincipal,
        wire::Bound::UnseenAnswers => Bound::UnseenAnswers,
        wire::Bound::SeenRanges => Bound::SeenRanges,
        wire::Bound::Reentries => Bound::Reentries,
        wire::Bound::Freezes => Bound::Freezes,
        wire::Bound::Limits => Bound::Limits,
        wire::Bound::TtlLeast => Bound::TtlLeast,
        wire::Bound::LockDelay => Bound::LockDelay,
        wire::Bound::Duration => Bound::Duration,
    })
}

// ---- Words

/// The choice of a oneof, if this version knows it. Protobuf reads an unknown choice as absent.
pub(crate) fn known<T>(what: &'static str, choice: Option<T>) -> Read<T> {
    choice.ok_or(WireError::Unknown { what })
}

/// The value of an enumeration, if this version knows it.
fn named<T: TryFrom<i32>>(what: &'static str, number: i32) -> Read<T> {
    T::try_from(number).map_err(|_| WireError::Unknown { what })
}

fn bad(what: &'static str) -> impl Fn(BadWord) -> WireError {
    move |source| WireError::BadWord { what, source }
}

pub(crate) fn name(text: &str) -> Read<Name> {
    Name::new(text).map_err(bad("a resource name"))
}

pub(crate) fn owner_name(owner: Option<String>) -> Read<Option<OwnerName>> {
    owner.map(|text| OwnerName::new(&text).map_err(bad("an owner's name"))).transpose()
}

pub(crate) fn principal(text: &str) -> Read<Principal> {
    Principal::new(text).map_err(bad("a principal"))
}

pub(crate) fn reason(text: &str) -> Read<Reason> {
    Reason::new(text).map_err(bad("a reason"))
}

pub(crate) fn told_reason(text: &str) -> Read<ToldReason> {
    ToldReason::new(text).map_err(bad("a reason that clients are told"))
}

pub(crate) fn metadata(bytes: &[u8]) -> Read<Metadata> {
    // The default shares one allocation, and most values are the default.
    if bytes.is_empty() { Ok(Metadata::default()) } else { Metadata::new(bytes).map_err(bad("metadata")) }
}

pub(crate) fn value(bytes: &[u8]) -> Read<Value> {
    Value::new(bytes).map_err(bad("an election's value"))
}

pub(crate) fn job_key(text: &str) -> Read<JobKey> {
    JobKey::new(text).map_err(bad("a job's key"))
}

fn job_bytes(bytes: &[u8]) -> Read<JobBytes> {
    // As for metadata: most values are empty.
    if bytes.is_empty() { Ok(JobBytes::default()) } else { JobBytes::new(bytes).map_err(bad("a job's bytes")) }
}

fn keep(ms: u64) -> Read<Keep> {
    Keep::new(ms).map_err(bad("the time that a job is kept"))
}

pub(crate) fn permits(count: u32) -> Read<Permits> {
    Permits::new(count).map_err(bad("a number of permits"))
}

fn millis(ms: u64) -> Read<Millis> {
    Millis::new(ms).map_err(bad("a duration"))
}

pub(crate) fn ttl(ms: u64) -> Read<Ttl> {
    Ttl::new(ms).map_err(bad("a time to live"))
}

pub(crate) fn secret_hash(bytes: &[u8]) -> Read<SecretHash> {
    let hash = bytes.try_into().map_err(|_| WireError::Damaged {
        what: "the hash of a secret",
        detail: format!("it has {} bytes instead of 32", bytes.len()),
    })?;
    Ok(SecretHash(hash))
}

pub(crate) fn whole(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

pub(crate) fn session(high: u64, low: u64) -> SessionId {
    SessionId(whole(high, low))
}

pub(crate) fn session_id(wire::SessionId { high, low }: wire::SessionId) -> SessionId {
    session(high, low)
}

pub(crate) fn seen(mark: u64, ranges: &[wire::SeenRange]) -> Seen {
    Seen { mark, ranges: seen_ranges(ranges).collect() }
}

fn seen_ranges(ranges: &[wire::SeenRange]) -> impl Iterator<Item = (u64, u64)> {
    ranges.iter().map(|wire::SeenRange { first, last }| (*first, *last))
}
