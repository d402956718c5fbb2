//! The invariants that are checked after every entry, one function each.
//!
//! I1 to I5, I7 and I8 are checked at each event, in `ledger`, and I26, about jobs, in `job_book`. The invariants here compare whole entries: the state before,
//! the batch, the effects, and the state after. I15 and I16 are checked in `runner`; later invariants need a cluster.

use std::collections::BTreeMap;

use fencepost_core::*;

use super::Model;
use super::deadlock::{Asker, check_cycle};
use super::job_book::JobBook;
use super::ledger::{Ledger, ensure};

/// One entry with the states before and after it. Deadlock cycles are removed from `effects` and the states; `raw` has them.
pub struct Step<'a> {
    pub stamp: LogicalMs,
    pub batch: &'a Batch,
    pub effects: &'a Effects,
    pub raw: &'a Effects,
    pub before: &'a Model,
    pub after: &'a Model,
}

/// What the checks remember from entry to entry.
pub struct Invariants {
    ledger: Ledger,
    jobs: JobBook,
    /// The final answer to each request.
    answers: BTreeMap<Asker, Outcome>,
    watch: Watch,
}

impl Invariants {
    pub fn of(state: &Model) -> Invariants {
        Invariants {
            ledger: Ledger::of(state),
            jobs: JobBook::of(state),
            answers: BTreeMap::new(),
            watch: Watch::new(),
        }
    }

    pub fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        one_reply_each(step)?;
        self.ledger.follow(step.batch, step.effects)?;
        self.ledger.i3_i8_records_agree(step.after)?;
        self.jobs.follow(step)?;
        i6_no_grantable_waiter_waits(step)?;
        i7_nothing_is_left_of_ended_sessions(step)?;
        i9_nothing_expires_early(step)?;
        i10_nothing_expires_late(step)?;
        i11_refused_changes_nothing(step)?;
        self.i12_the_same_answer_each_time(step)?;
        i13_reported_cycles_are_real(step)?;
        i13_no_cycle_is_left(step)?;
        self.watch.i14_streams_without_gap_or_repeat(step)
    }

    /// I12: one effect for each request number, and the same answer each time.
    fn i12_the_same_answer_each_time(&mut self, step: &Step<'_>) -> Result<(), String> {
        // A session id that ended in this entry may have been opened again in it, and replies do not tell the two apart.
        let ended = |id: SessionId| {
            step.effects.events.iter().any(|e| matches!(e, Event::SessionEnded { session, .. } if *session == id))
        };
        self.answers.retain(|(session, _), _| !ended(*session));
        for answer in step.after.answers.iter().filter(|answer| ended(answer.session)) {
            self.answers.insert((answer.session, answer.number), answer.outcome.clone());
        }
        let requests = || {
            let operations = step.batch.operations.iter().zip(&step.effects.replies[step.batch.renewals.len()..]);
            operations.filter_map(|(operation, reply)| match operation {
                Operation::Request(request) if !ended(request.session) => Some((request, reply)),
                _ => None,
            })
        };
        let mut queued: Vec<Asker> = step.before.waiters.iter().map(|waiter| (waiter.session, waiter.number)).collect();
        for (request, reply) in requests() {
            let asker = (request.session, request.number);
            // A cancel can get the same refusal in two ways: without being carried out, or as its result. Only a result is
            // remembered. If an answer with this number was remembered before this entry, it belongs to an earlier reply.
            let is_new = step.before.answer(asker.0, asker.1).is_none();
            let in_records = step.after.answer(asker.0, asker.1).is_some_and(|answer| answer.outcome == reply.outcome);
            let remembered = (is_new && in_records)
                || requests().any(|(other, again)| {
                    (other.session, other.number) == asker && again.repeat.is_some() && again.outcome == reply.outcome
                });
            if reply.repeat.is_some() || (is_given_without_carrying_out(&reply.outcome) && !remembered) {
                continue;
            }
            ensure!(!self.answers.contains_key(&asker), "I12: {request:?} was carried out twice: {reply:?}");
            if matches!(reply.outcome, Outcome::Queued { .. }) {
                ensure!(!queued.contains(&asker), "I12: {request:?} was queued twice");
                queued.push(asker);
                continue;
            }
            self.answers.insert(asker, reply.outcome.clone());
        }
        // A cancel makes the number of a request void that has not arrived. Checked only now, because cancels of waits are
        // carried out before other operations.
        for (request, reply) in requests().filter(|(_, reply)| reply.repeat.is_none()) {
            if let (Action::Cancel { request: target, .. }, Outcome::Cancelled) = (&request.action, &reply.outcome) {
                self.answers.entry((request.session, *target)).or_insert(Outcome::Cancelled);
            }
        }
        for push in &step.effects.pushes {
            if let Push::Ended { session, number, outcome } = push
                && !ended(*session)
            {
                ensure!(queued.contains(&(*session, *number)), "I12: {push:?} to a request that did not wait");
                let before = self.answers.insert((*session, *number), outcome.clone());
                // A cancel in this entry may have recorded the end already.
                ensure!(before.is_none() || before.as_ref() == Some(outcome), "I12: {push:?} after {before:?}");
            }
        }
        for (request, reply) in requests().filter(|(_, reply)| reply.repeat.is_some()) {
            let asker = (request.session, request.number);
            let same = match (&reply.outcome, self.answers.get(&asker)) {
                (Outcome::Queued { .. }, _) => queued.contains(&asker),
                (outcome, Some(answer)) => outcome == answer,
                (_, None) => false,
            };
            ensure!(same, "I12: {request:?} is answered {reply:?}, was answered {:?}", self.answers.get(&asker));
        }
        Ok(())
    }
}

/// Whether a request can get this outcome without being carried out. A repeat is not carried out either; the caller checks it by
/// `Reply::repeat`.
fn is_given_without_carrying_out(outcome: &Outcome) -> bool {
    use Refusal::*;
    matches!(
        outcome,
        Outcome::Closed
            | Outcome::Refused(
                NoSession
                    | WrongEpoch { .. }
                    | AlreadySeen
                    | SeenWhileWaiting(_)
                    | BadNumber
                    | Bound(fencepost_core::Bound::SeenRanges | fencepost_core::Bound::UnseenAnswers)
            )
    )
}

fn one_reply_each(step: &Step<'_>) -> Result<(), String> {
    let renewals = (0..step.batch.renewals.len()).map(ReplyTo::Renewal);
    let expected: Vec<ReplyTo> = renewals.chain((0..step.batch.operations.len()).map(ReplyTo::Operation)).collect();
    let replies: Vec<ReplyTo> = step.effects.replies.iter().map(|reply| reply.to).collect();
    ensure!(replies == expected, "there must be one reply for each command, in order: {replies:?}");
    Ok(())
}

/// I6: after each entry, no request waits that could be granted.
fn i6_no_grantable_waiter_waits(step: &Step<'_>) -> Result<(), String> {
    let grantable = step.after.next_successor();
    ensure!(grantable.is_none(), "I6: {grantable:?} waits although it could be granted");
    Ok(())
}

/// I7: the end of a session removes everything that belongs to it.
fn i7_nothing_is_left_of_ended_sessions(step: &Step<'_>) -> Result<(), String> {
    let after = step.after;
    for grant in &after.grants {
        let session = after.session(grant.session);
        let own = session.is_some_and(|session| grant.id.0 > session.opened_after_token);
        ensure!(own, "I7: {grant:?} outlived its session");
    }
    let waiters = after.waiters.iter().map(|waiter| waiter.session);
    let left = waiters.chain(after.answers.iter().map(|answer| answer.session)).find(|s| after.session(*s).is_none());
    ensure!(left.is_none(), "I7: {left:?} has ended and still has a waiter or an answer");
    Ok(())
}

/// The deadline of a lease that was last renewed at `renewed`: after a fail-over at least the grace from then, and at most the
/// grace more than without it.
fn lease_ends(renewed: LogicalMs, ttl: Ttl, grace_at: Option<LogicalMs>) -> u64 {
    let plain = renewed.0 + ttl.millis().get();
    let Some(grace) = grace_at.filter(|grace| *grace >= renewed) else {
        return plain;
    };
    let least = grace.0 + ttl.millis().get().min(bounds::FAILOVER_GRACE_MS);
    least.clamp(plain, plain + bounds::FAILOVER_GRACE_MS)
}

/// I9: nothing expires early: what ended by time was due, and its session was not renewed in this entry.
fn i9_nothing_expires_early(step: &Step<'_>) -> Result<(), String> {
    let now = step.stamp.0;
    let grace_at = if step.batch.failover_grace { Some(step.stamp) } else { step.before.header.grace_at };
    let renewed = |id: SessionId| {
        step.batch.renewals.iter().zip(&step.effects.replies).any(|(renewal, reply)| {
            let (Renewal::KeepAlive { session, .. } | Renewal::Attach { session, .. }) = renewal;
            *session == id && matches!(reply.outcome, Outcome::Renewed | Outcome::Attached(_))
        })
    };
    for event in &step.effects.events {
        match event {
            Event::SessionEnded { session: id, how: SessionEnd::Expired } => {
                let session = step.before.session(*id).ok_or("I9: a session expired as it was opened")?;
                let earliest = lease_ends(session.renewed_at, session.ttl, grace_at);
                ensure!(earliest <= now && !renewed(*id), "I9: {id:?} expired at {now}, due at {earliest}");
            }
            Event::Ended { grant: id, how: how @ (GrantEnd::Ttl | GrantEnd::MaxHold), .. } => {
                let grant = step.before.grant(*id).ok_or("I9: a grant expired as it was made")?;
                let deadline = match how {
                    GrantEnd::MaxHold => grant.hold_until.map(|until| until.0),
                    _ => grant.terms.as_ref().and_then(|terms| terms.ttl).map(|ttl| {
                        let session = step.before.session(grant.session).expect("a grant has a session");
                        lease_ends(grant.granted_at.max(session.renewed_at), ttl, grace_at)
                    }),
                };
                let due = deadline.is_some_and(|deadline| deadline <= now);
                ensure!(due, "I9: {grant:?} ended by {how:?} at {now}, due {deadline:?}");
                ensure!(*how == GrantEnd::MaxHold || !renewed(grant.session), "I9: {grant:?} ended though renewed");
            }
            Event::NotGranted { request, outcome: Outcome::TimedOut } => {
                let waiter = step.before.waiter(request.session, request.number);
                let due = waiter.and_then(|waiter| waiter.until).is_some_and(|until| until.0 <= now);
                ensure!(due, "I9: {waiter:?} timed out at {now}");
            }
            Event::RestEnded { grant, waived: false, .. } => {
                let rest = step.before.rests.iter().find(|rest| rest.grant == *grant);
                ensure!(rest.is_some_and(|rest| rest.until.0 <= now), "I9: {rest:?} ended at {now}");
            }
            _ => {}
        }
    }
    Ok(())
}

/// I10: nothing expires late: what existed before the entry and is due at its stamp is gone after it.
fn i10_nothing_expires_late(step: &Step<'_>) -> Result<(), String> {
    let (now, after) = (step.stamp.0, step.after);
    let old = step.before.header.last_token;
    for session in after.sessions.iter() {
        let latest = lease_ends(session.renewed_at, session.ttl, after.header.grace_at);
        ensure!(latest > now, "I10: {session:?} lives at {now}");
        ensure!(session.renewed_at.0 + session.ttl.millis().get() + bounds::FAILOVER_GRACE_MS > now, "I10: grace");
    }
    for grant in after.grants.iter().filter(|grant| grant.id.0 <= old) {
        let extended = step.batch.operations.iter().any(|operation| {
            matches!(operation, Operation::Request(Request { action: Action::Extend { grant: id, .. }, .. })
                if *id == grant.id)
        });
        let held_too_long = grant.hold_until.is_some_and(|until| until.0 <= now);
        ensure!(extended || !held_too_long, "I10: {grant:?} is held at {now}");
        if let Some(ttl) = grant.terms.as_ref().and_then(|terms| terms.ttl) {
            let session = after.session(grant.session).expect("I7");
            let renewed = grant.granted_at.max(session.renewed_at);
            let latest = lease_ends(renewed, ttl, after.header.grace_at);
            ensure!(latest > now, "I10: {grant:?} lives at {now}");
        }
    }
    let waiter = after.waiters.iter().find(|waiter| waiter.until.is_some_and(|until| until.0 <= now));
    ensure!(waiter.is_none(), "I10: {waiter:?} waits at {now}");
    let rest = after.rests.iter().find(|rest| rest.until.0 <= now);
    ensure!(rest.is_none(), "I10: {rest:?} rests at {now}");
    Ok(())
}

/// I11: a refused command changes nothing: without an event, an extension or a renewal, only answers are remembered.
fn i11_refused_changes_nothing(step: &Step<'_>) -> Result<(), String> {
    let quiet = step.effects.events.is_empty()
        && !step.effects.replies.iter().any(|reply| matches!(reply.outcome, Outcome::Extended { .. }));
    if !quiet {
        return Ok(());
    }
    let (before, after) = (step.before, step.after);
    let jobs = |model: &Model| {
        // The time of some may be over at this stamp.
        let mut live: Vec<JobRecord> = model.jobs.clone();
        live.retain(|job| job.until.is_none_or(|until| until > step.stamp));
        live.sort_by(|a, b| (&a.name, &a.key).cmp(&(&b.name, &b.key)));
        live
    };
    let same = before.grants == after.grants
        && jobs(before) == jobs(after)
        && before.rests == after.rests
        && before.waiters == after.waiters
        && before.semaphores == after.semaphores
        && before.freezes == after.freezes
        && before.header.last_token == after.header.last_token
        && before.header.last_arrival == after.header.last_arrival;
    ensure!(same, "I11: something changed without an event");
    ensure!(before.sessions.len() == after.sessions.len(), "I11: a session was opened or ended without an event");
    for (old, new) in before.sessions.iter().zip(&after.sessions) {
        let mut old = old.clone();
        old.seen_mark = new.seen_mark;
        old.seen_ranges = new.seen_ranges.clone();
        if step.effects.replies.iter().any(|r| matches!(r.outcome, Outcome::Renewed | Outcome::Attached(_))) {
            old.renewed_at = new.renewed_at;
            old.epoch = new.epoch;
        }
        ensure!(old == *new, "I11: {old:?} became {new:?} without an event");
    }
    Ok(())
}

/// I13: a request that was refused as a deadlock was on a real cycle.
fn i13_reported_cycles_are_real(step: &Step<'_>) -> Result<(), String> {
    for event in &step.raw.events {
        // The cycle is empty if the model runs alone; then there is nothing to check.
        if let Event::NotGranted { request, outcome: Outcome::Deadlock(cycle) } = event
            && !cycle.links.is_empty()
        {
            let scene = step.after.deadlocks.iter().find(|scene| scene.refused == (request.session, request.number));
            let scene = scene.ok_or("I13: a deadlock that the model does not see")?;
            check_cycle(scene, cycle).map_err(|why| format!("I13: {why}"))?;
        }
    }
    Ok(())
}

/// I13: no detectable cycle is left after an entry.
fn i13_no_cycle_is_left(step: &Step<'_>) -> Result<(), String> {
    for waiter in step.after.waiters.iter().filter(|waiter| !waiter.unchecked) {
        ensure!(!step.after.closes_a_cycle(waiter), "I13: {waiter:?} waits on a cycle");
    }
    Ok(())
}

/// Watchers that read at different intervals, each resuming from its last position.
struct Watch {
    ring: EventRing,
    index: u64,
    /// Every event of the run, to compare with.
    all: Vec<PositionedEvent>,
    watchers: Vec<Watcher>,
}

struct Watcher {
    prefix: &'static str,
    every: u64,
    count: usize,
    at: Position,
}

impl Watch {
    const RING_EVENTS: usize = 48;

    fn new() -> Watch {
        let watcher = |prefix, every, count| Watcher { prefix, every, count, at: Position::default() };
        Watch {
            ring: EventRing::new(Watch::RING_EVENTS, Position::default()),
            index: 0,
            all: Vec::new(),
            watchers: vec![watcher("", 1, usize::MAX), watcher("/a", 3, 5), watcher("p", 29, 7)],
        }
    }

    /// I14: positions rise strictly, without gap or repeat. A watcher that resumes gets the next events, or *compacted*.
    fn i14_streams_without_gap_or_repeat(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.index += 1;
        self.ring.push(self.index, step.stamp, None, step.effects.events.iter().cloned());
        for (ordinal, event) in (0..).zip(&step.effects.events) {
            let position = Position { index: self.index, ordinal };
            self.all.push(PositionedEvent { position, stamp: step.stamp, wall_clock_ms: None, event: event.clone() });
        }
        let kept_from = self.all.len().saturating_sub(Watch::RING_EVENTS);
        for watcher in self.watchers.iter_mut().filter(|watcher| self.index.is_multiple_of(watcher.every)) {
            let start = self.all.partition_point(|event| event.position <= watcher.at);
            match self.ring.after(watcher.at, watcher.prefix, watcher.count) {
                Ok(events) => {
                    ensure!(start >= kept_from, "I14: a gap after {:?} was not reported", watcher.at);
                    let expected = self.all[start..].iter().filter(|event| event.event.matches(watcher.prefix));
                    let (mut expected, mut last) = (expected.take(watcher.count), watcher.at);
                    for event in events {
                        ensure!(expected.next() == Some(event), "I14: {event:?} does not follow {last:?}");
                        last = event.position;
                    }
                    ensure!(expected.next().is_none(), "I14: events after {last:?} are missing");
                    watcher.at = last;
                }
                Err(Compacted { oldest }) => {
                    ensure!(start < kept_from, "I14: compacted, but the ring has all events after {:?}", watcher.at);
                    ensure!(
                        oldest == self.all[kept_from - 1].position,
                        "I14: {oldest:?} is not the oldest position of the ring"
                    );
                    watcher.at = oldest;
                }
            }
        }
        Ok(())
    }
}
