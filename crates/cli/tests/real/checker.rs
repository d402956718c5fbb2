//! Checks that a history keeps the promises. Pure: it takes a history and returns the violations.
//!
//! The log position gives the order of events, so this is one replay of the event log and a few sorts, not a search. Two more checks
//! do not rely on the positions that the cluster reports: the clients' own beliefs by one clock, and the store's record by token.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{
    Answer, Attempt, End, History, Hold, Kind, Lease, LockOperation, LogEvent, Mode, Request, Taken, What,
};

/// How late a lease may end, in logical time.
// Rule: bounded-late
const LATE_MS_MAX: u64 = 500;
/// Allowance for the commit in flight when the deadline passed, on a busy disk. Generous, since a test must not fail because the
/// machine is slow. The run prints how late the latest end was.
const IN_FLIGHT_MS: u64 = 5_000;
/// How much a fail-over may add.
// Rule: failover-grace
const GRACE_MS: u64 = 3_000;

/// The violations, and how much was checked.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) operations: usize,
    pub(crate) events: usize,
    pub(crate) grants: usize,
    /// Grants of several names at once.
    pub(crate) multi_locks: usize,
    /// Grants of permits.
    pub(crate) permits: usize,
    pub(crate) conversions: usize,
    /// Sessions that expired.
    pub(crate) expiries: usize,
    /// Locks that ended at their own TTL.
    pub(crate) lock_expiries: usize,
    /// Expiries of both kinds whose deadline was known to the millisecond.
    pub(crate) expiries_timed: usize,
    /// The longest time from a deadline to the end of its lease, in logical time.
    pub(crate) latest_ms: u64,
    pub(crate) attempts: usize,
    /// Attempts with a token that the store had to refuse.
    pub(crate) stale_attempts: usize,
    /// Requests whose outcome the client does not know.
    pub(crate) unknown: usize,
}

impl Report {
    fn found(&mut self, invariant: &str, what: String) {
        self.violations.push(format!("{invariant}: {what}"));
    }
}

/// Checks everything.
pub(crate) fn check(history: &History) -> Report {
    let mut report = Report {
        operations: history.asks.len(),
        events: history.events.len(),
        attempts: history.attempts.len(),
        unknown: history.asks.iter().filter(|ask| matches!(ask.answer, Answer::Unknown(_))).count(),
        ..Report::default()
    };
    check_order(history, &mut report);
    let log = replay(history, &mut report);
    check_answers(history, &log, &mut report);
    check_beliefs(history, &log, &mut report);
    check_deadlines(history, &mut report);
    check_store(&history.attempts, &mut report);
    report
}

/// How many attempts had a token that the store must refuse.
pub(crate) fn stale_attempts(attempts: &[Attempt]) -> usize {
    let mut report = Report::default();
    check_store(attempts, &mut report);
    report.stale_attempts
}

/// I14: the positions of the watch rise strictly, and a later read gives the same events.
fn check_order(history: &History, report: &mut Report) {
    for pair in history.events.windows(2) {
        let position = |event: &LogEvent| (event.index, event.ordinal);
        if position(&pair[0]) >= position(&pair[1]) {
            report.found("I14", format!("{:?} was watched after {:?}", pair[1], pair[0]));
        }
        if pair[0].stamp_ms > pair[1].stamp_ms {
            report.found("logical-time", format!("the stamp went back: {:?}, then {:?}", pair[0], pair[1]));
        }
    }
    let same = |(one, other): (&LogEvent, &LogEvent)| {
        (one.index, one.ordinal, one.stamp_ms, &one.what) == (other.index, other.ordinal, other.stamp_ms, &other.what)
    };
    for replayed in &history.replayed {
        if let Some((one, other)) = history.events.iter().zip(replayed).find(|pair| !same(*pair)) {
            report.found("I14", format!("the event log reads differently the second time: {one:?} was {other:?}"));
        } else if let Some(lost) = history.events.get(replayed.len()) {
            report.found("I3", format!("an event that was watched is not in the log any more: {lost:?}"));
        } else if let Some(missed) = replayed.get(history.events.len()) {
            report.found("I14", format!("the watch missed {missed:?}"));
        }
    }
}

/// A grant, as the event log describes it.
struct Granted<'a> {
    event: &'a LogEvent,
    request: Request,
    /// What was granted.
    first_taken: &'a Taken,
    /// What it takes now, after conversions.
    taken: Taken,
    first_token: u64,
    token: u64,
    /// The modes that it was converted to, each with the token that it had from then on.
    conversions: Vec<(Mode, u64)>,
    end: Option<(&'a LogEvent, End)>,
}

impl Granted<'_> {
    fn had_token(&self, token: u64) -> bool {
        self.first_token == token || self.conversions.iter().any(|(_, since)| *since == token)
    }
}

/// The grants of the event log, by id.
type Log<'a> = BTreeMap<u64, Granted<'a>>;

/// I1, I2, I4, I7, I12: replays the log, entry by entry.
fn replay<'a>(history: &'a History, report: &mut Report) -> Log<'a> {
    let mut log: Log<'a> = BTreeMap::new();
    let mut live: BTreeSet<u64> = BTreeSet::new();
    let mut sessions: BTreeSet<u128> = BTreeSet::new();
    let mut gone: BTreeSet<u128> = BTreeSet::new();
    // The waiting requests. A conversion has the grant that it would change.
    let mut waits: BTreeMap<Request, Option<u64>> = BTreeMap::new();
    let mut decided: BTreeSet<Request> = BTreeSet::new();
    let mut last_token = 0;
    for entry in history.events.chunk_by(|one, other| one.index == other.index) {
        let mut ended_here: BTreeSet<u128> = BTreeSet::new();
        for event in entry {
            match &event.what {
                What::SessionOpened { session } => {
                    if gone.contains(session) || !sessions.insert(*session) {
                        report.found("I7", format!("a session was opened twice: {event:?}"));
                    }
                }
                What::SessionEnded { session, .. } => {
                    if !sessions.remove(session) {
                        report.found("I7", format!("a session that did not live ended: {event:?}"));
                    }
                    gone.insert(*session);
                    ended_here.insert(*session);
                }
                What::Queued { request, converts } => {
                    if !sessions.contains(&request.0) || waits.insert(*request, *converts).is_some() {
                        report.found("I12", format!("queued twice, or by a dead session: {event:?}"));
                    }
                }
                What::NotGranted { request } => {
                    waits.remove(request);
                    if !decided.insert(*request) {
                        report.found("I12", format!("a request was decided twice: {event:?}"));
                    }
                }
                What::Granted { request, taken, grant, token } => {
                    report.grants += 1;
                    report.multi_locks += usize::from(taken.len() > 1);
                    report.permits += usize::from(taken.iter().any(|(_, mode)| mode.permits() > 0));
                    waits.remove(request);
                    if !decided.insert(*request) {
                        report.found("I12", format!("a request was decided twice: {event:?}"));
                    }
                    if !sessions.contains(&request.0) {
                        report.found("I4", format!("granted to a session that is already dead: {event:?}"));
                    }
                    if *token <= last_token {
                        report.found("I2", format!("token {token} came after {last_token}: {event:?}"));
                    }
                    last_token = last_token.max(*token);
                    let granted = Granted {
                        event,
                        request: *request,
                        first_taken: taken,
                        taken: taken.clone(),
                        first_token: *token,
                        token: *token,
                        conversions: Vec::new(),
                        end: None,
                    };
                    check_alone(*grant, &granted, history, &log, &live, event, report);
                    live.insert(*grant);
                    if log.insert(*grant, granted).is_some() {
                        report.found("I2", format!("a grant's id was used again: {event:?}"));
                    }
                }
                What::Converted { grant, token, mode } => {
                    waits.retain(|_, converts| *converts != Some(*grant));
                    let stands = live.contains(grant);
                    let Some(mut granted) = log.remove(grant).filter(|_| stands) else {
                        report.found("I4", format!("a grant that is not held was converted: {event:?}"));
                        continue;
                    };
                    report.conversions += 1;
                    // Rule: conversion. A stronger mode has a new token, a weaker one keeps it.
                    let is_stronger = granted.taken.iter().any(|(_, before)| mode > before);
                    if is_stronger && *token <= last_token {
                        report.found("I2", format!("token {token} came after {last_token}: {event:?}"));
                    }
                    if !is_stronger && *token != granted.token {
                        report.found("I2", format!("downgraded, but its token {} changed: {event:?}", granted.token));
                    }
                    last_token = last_token.max(*token);
                    granted.token = *token;
                    granted.conversions.push((*mode, *token));
                    granted.taken.iter_mut().for_each(|(_, taken)| *taken = *mode);
                    check_alone(*grant, &granted, history, &log, &live, event, report);
                    log.insert(*grant, granted);
                }
                What::Ended { grant, session, how } => {
                    if !live.remove(grant) {
                        report.found("I3", format!("a grant that is not held ended: {event:?}"));
                    }
                    if let Some(granted) = log.get_mut(grant) {
                        granted.end = Some((event, *how));
                        if granted.request.0 != *session {
                            report.found("I11", format!("ended by a session that does not hold it: {event:?}"));
                        }
                    }
                    if *how == End::Session && !ended_here.contains(session) {
                        report.found("I7", format!("ended with its session, but not where that ended: {event:?}"));
                    }
                }
            }
        }
        for session in ended_here {
            let kept = live.iter().find(|grant| log[*grant].request.0 == session);
            if let Some(grant) = kept {
                report.found("I7", format!("grant {grant} outlived its session {session:x} at {}", entry[0].index));
            }
            if let Some(wait) = waits.keys().find(|wait| wait.0 == session) {
                report.found("I7", format!("wait {wait:?} outlived its session at {}", entry[0].index));
            }
        }
    }
    let at_end: BTreeSet<u64> = history.grants_at_end.iter().copied().collect();
    if at_end != live {
        report.found("I3", format!("held at the end by the log: {live:?}, by a read: {at_end:?}"));
    }
    log
}

/// I1: no other grant holds one of the resources in a conflicting mode, and no more permits are held than there are.
fn check_alone(
    grant: u64,
    granted: &Granted<'_>,
    history: &History,
    log: &Log<'_>,
    live: &BTreeSet<u64>,
    at: &LogEvent,
    report: &mut Report,
) {
    for (name, mode) in &granted.taken {
        let others = live.iter().filter(|other| **other != grant).filter_map(|other| Some((other, log.get(other)?)));
        let mut permits = mode.permits();
        for (other, held) in others {
            for (_, held) in held.taken.iter().filter(|(held, _)| held == name) {
                permits += held.permits();
                if !held.goes_with(*mode) {
                    report.found("I1", format!("{at:?} while grant {other} holds {name} as {held:?}"));
                }
            }
        }
        if let Some(limit) = history.limits.get(name)
            && permits > *limit
        {
            report.found("I1", format!("{at:?}, and with it {permits} permits of {limit} are held"));
        }
    }
}

/// I3, I4, I8, I11, I12: the log agrees with what clients were told, and has nothing else.
fn check_answers(history: &History, log: &Log<'_>, report: &mut Report) {
    // Grants in the log without a matching answer so far, by session and what was taken. Sessions without a recorded request
    // belong to clients that only check whether the cluster serves; they are left out.
    let mut unexplained: BTreeMap<(u128, &Taken), Vec<u64>> = BTreeMap::new();
    let ours: BTreeSet<u128> = history.asks.iter().map(|ask| ask.session).collect();
    let of_ours = || log.iter().filter(|(_, granted)| ours.contains(&granted.request.0));
    for (grant, granted) in of_ours() {
        unexplained.entry((granted.request.0, granted.first_taken)).or_default().push(*grant);
    }
    let conversions = |(grant, granted): (&u64, &Granted<'_>)| {
        let grant = *grant;
        granted.conversions.clone().into_iter().map(move |(mode, token)| (grant, mode, token))
    };
    let mut conversions_unexplained: Vec<(u64, Mode, u64)> = of_ours().flat_map(conversions).collect();
    for ask in &history.asks {
        match (&ask.what, &ask.answer) {
            (LockOperation::Acquire(taken), Answer::Granted { grant, token }) => {
                let Some(granted) = log.get(grant) else {
                    report.found("I3", format!("an acknowledged grant is not in the log: {ask:?}"));
                    continue;
                };
                if granted.request.0 != ask.session || granted.first_token != *token {
                    report.found("I3", format!("the log says {:?}, the client heard {ask:?}", granted.event));
                }
                if granted.first_taken != taken {
                    let invariant = if taken.len() > 1 { "I8" } else { "I3" };
                    report.found(invariant, format!("not what was asked for: {:?}, {ask:?}", granted.event));
                }
                let open = unexplained.entry((ask.session, granted.first_taken)).or_default();
                match open.iter().position(|it| it == grant) {
                    Some(at) => drop(open.swap_remove(at)),
                    None => report.found("I12", format!("one grant answered two requests: {ask:?}")),
                }
            }
            (LockOperation::Convert { grant, mode }, Answer::Granted { token, .. }) => {
                match conversions_unexplained.iter().position(|it| *it == (*grant, *mode, *token)) {
                    Some(at) => _ = conversions_unexplained.swap_remove(at),
                    None => report.found("I3", format!("an acknowledged conversion is not in the log: {ask:?}")),
                }
            }
            (LockOperation::Release { grant }, Answer::Released) => {
                // Only acknowledged releases are checked: the SDK may release a lost lock in the background.
                let end = log.get(grant).and_then(|granted| granted.end);
                if !matches!(end, Some((_, End::Released))) {
                    report.found("I3", format!("an acknowledged release is not in the log ({end:?}): {ask:?}"));
                }
            }
            _ => {}
        }
    }
    // Grants and conversions that are still unexplained must belong to requests whose outcome the client does not know, or that
    // were granted too late.
    let mut open: BTreeMap<(u128, &Taken), usize> = BTreeMap::new();
    for ask in history.asks.iter().filter(|ask| matches!(ask.answer, Answer::Unknown(_) | Answer::TooLate)) {
        match &ask.what {
            LockOperation::Acquire(taken) => *open.entry((ask.session, taken)).or_default() += 1,
            LockOperation::Convert { grant, mode } => {
                if let Some(at) = conversions_unexplained.iter().position(|it| (it.0, it.1) == (*grant, *mode)) {
                    conversions_unexplained.swap_remove(at);
                }
            }
            LockOperation::Release { .. } => {}
        }
    }
    for ((session, taken), grants) in unexplained {
        let allowed = open.get(&(session, taken)).copied().unwrap_or_default();
        if grants.len() > allowed {
            report.found(
                "I11",
                format!(
                    "grants {grants:?} of {taken:?} to {session:x}, which was not told of them and has {allowed} open requests"
                ),
            );
        }
    }
    if !conversions_unexplained.is_empty() {
        report.found("I11", format!("conversions that no client was told of: {conversions_unexplained:?}"));
    }
    for hold in &history.holds {
        let Some(granted) = log.get(&hold.grant) else { continue };
        if granted.request.0 != hold.session || !granted.had_token(hold.token) {
            report.found("I3", format!("the log has another holder, or other tokens: {hold:?}, {:?}", granted.event));
        }
        // After a conversion, the grant is held on in another mode.
        let goes_on = history.holds.iter().any(|other| other.grant == hold.grant && other.from > hold.from);
        if let (false, Some((end, End::Released))) = (goes_on, granted.end)
            && hold.gave_up_at.is_none_or(|gave_up| end.seen_at < gave_up)
            && end.seen_at < hold.believed_until
        {
            report.found("I3", format!("released before its holder asked: {end:?}, {hold:?}"));
        }
    }
}

/// I9, by one clock: no lock ends, or goes to another holder, while the SDK tells its holder that it is certainly held.
fn check_beliefs(history: &History, log: &Log<'_>, report: &mut Report) {
    let mut by_resource: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &history.holds {
        by_resource.entry(&hold.resource).or_default().push(hold);
        let end = log.get(&hold.grant).and_then(|granted| granted.end);
        // The end happened before the watcher saw it.
        if let Some((end, End::Session | End::Ttl | End::Other)) = end
            && end.seen_at < hold.until()
        {
            report.found("I9", format!("ended while its holder was told that it is held: {end:?}, {hold:?}"));
        }
    }
    for holds in by_resource.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        // Only by instants: compares each hold with the earlier holds whose clients still believe.
        let mut believing: Vec<&Hold> = Vec::new();
        for hold in holds.iter() {
            believing.retain(|other| other.until() > hold.from);
            let mut permits = hold.mode.permits();
            for other in believing.iter().filter(|other| other.grant != hold.grant && hold.until() > hold.from) {
                permits += other.mode.permits();
                if !other.mode.goes_with(hold.mode) {
                    report.found(
                        "I9",
                        format!("two clients believe that they hold it at the same time: {other:?} and {hold:?}"),
                    );
                }
            }
            if history.limits.get(&hold.resource).is_some_and(|limit| permits > *limit) {
                report.found("I9", format!("with it, clients believe that they hold {permits} permits: {hold:?}"));
            }
            believing.push(hold);
        }
    }
}

/// I9, I10 by stamps: a session, or a lock with its own TTL, ends at its deadline or a little later. The deadline is that of the
/// last read before the end.
fn check_deadlines(history: &History, report: &mut Report) {
    for event in &history.events {
        let (lease, session) = match event.what {
            What::SessionEnded { session, expired: true } => (Lease::Session(session), session),
            What::Ended { grant, session, how: End::Ttl } => (Lease::Grant(grant), session),
            _ => continue,
        };
        match lease {
            Lease::Session(_) => report.expiries += 1,
            Lease::Grant(_) => report.lock_expiries += 1,
        }
        let of_it = history.samples.iter().filter(|sample| sample.lease == lease);
        let Some(last) = of_it.max_by_key(|sample| (sample.stamp_ms, sample.deadline_ms)) else { continue };
        if event.stamp_ms < last.deadline_ms {
            report.found("I9", format!("expired before its deadline: {event:?}, {last:?}"));
        }
        // Only a client that stood still certainly sent no keep-alive after the read.
        let stood_still = |stall: &&super::history::Stall| {
            stall.session == session && stall.from + 300_000_000 < last.asked_at && last.asked_at < stall.until
        };
        let Some(stall) = history.stalls.iter().find(stood_still) else { continue };
        if event.seen_at > stall.until {
            continue;
        }
        let next_term = history.samples.iter().filter(|sample| sample.asked_at > event.seen_at).map(|it| it.term).min();
        let bound = match next_term == Some(last.term) {
            true => last.deadline_ms,
            // Rule: failover-grace. The deadline may have been extended after the last read.
            false => last.deadline_ms.max(last.renewed_ms + last.ttl_ms + GRACE_MS),
        };
        report.expiries_timed += 1;
        report.latest_ms = report.latest_ms.max(event.stamp_ms.saturating_sub(bound));
        if event.stamp_ms > bound + LATE_MS_MAX + IN_FLIGHT_MS {
            report.found("I10", format!("expired too late, due at {bound} at the latest: {event:?}, {last:?}"));
        }
    }
}

/// I20: the store accepted no token older than one that it had seen, and no update was lost.
fn check_store(attempts: &[Attempt], report: &mut Report) {
    let mut marks: BTreeMap<&str, (u64, i64)> = BTreeMap::new();
    for attempt in attempts {
        let (floor, value) = marks.entry(&attempt.resource).or_default();
        let stale = attempt.token < *floor;
        report.stale_attempts += usize::from(stale);
        if stale == attempt.accepted {
            report.found("I20", format!("floor {floor}, and the store decided {attempt:?}"));
        }
        if !attempt.accepted {
            continue;
        }
        *floor = attempt.token.max(*floor);
        if let Kind::Write(new) = attempt.kind {
            if new != *value + 1 {
                report.found("I20", format!("an update was lost: {value} became {attempt:?}"));
            }
            *value = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{Ask, Sample, Stall};
    use super::*;
    use Mode::{Exclusive, Permits, Shared, Update};

    const A: u128 = 0xA;
    const B: u128 = 0xB;

    fn event(index: u64, what: What) -> LogEvent {
        LogEvent { index, ordinal: 0, stamp_ms: index * 1_000, seen_at: index * 1_000, what }
    }

    fn names(taken: &[(&str, Mode)]) -> Taken {
        taken.iter().map(|(name, mode)| ((*name).to_owned(), *mode)).collect()
    }

    fn granted(index: u64, session: u128, number: u64, token: u64) -> LogEvent {
        granted_as(index, session, number, token, &[("r", Exclusive)])
    }

    fn granted_as(index: u64, session: u128, number: u64, token: u64, taken: &[(&str, Mode)]) -> LogEvent {
        event(index, What::Granted { request: (session, number), taken: names(taken), grant: token, token })
    }

    fn ended(index: u64, session: u128, grant: u64, how: End) -> LogEvent {
        event(index, What::Ended { grant, session, how })
    }

    fn ask(session: u128, what: LockOperation, at: u64, answer: Answer) -> Ask {
        Ask { client: format!("{session:x}"), session, what, asked_at: at, answered_at: at + 10, answer }
    }

    fn hold(session: u128, token: u64, from: u64, believed_until: u64, gave_up_at: Option<u64>) -> Hold {
        let (client, resource, mode) = (format!("{session:x}"), "r".to_owned(), Exclusive);
        Hold { client, session, resource, mode, grant: token, token, from, believed_until, gave_up_at }
    }

    fn attempt(token: u64, kind: Kind, accepted: bool) -> Attempt {
        Attempt { resource: "r".to_owned(), token, kind, accepted }
    }

    fn acquire() -> LockOperation {
        LockOperation::Acquire(names(&[("r", Exclusive)]))
    }

    /// A holds the lock and releases it. B holds it, stands still until its session expires, and writes too late. Then A holds it again.
    fn good() -> History {
        let mut history = History {
            events: vec![
                event(1, What::SessionOpened { session: A }),
                event(2, What::SessionOpened { session: B }),
                granted(3, A, 1, 1),
                event(4, What::Queued { request: (B, 1), converts: None }),
                ended(5, A, 1, End::Released),
                LogEvent { ordinal: 1, ..granted(5, B, 1, 2) },
                event(9, What::SessionEnded { session: B, expired: true }),
                LogEvent { ordinal: 1, ..ended(9, B, 2, End::Session) },
                granted(10, A, 2, 3),
                ended(11, A, 3, End::Released),
            ],
            asks: vec![
                ask(A, acquire(), 2_900, Answer::Granted { grant: 1, token: 1 }),
                ask(A, LockOperation::Release { grant: 1 }, 4_900, Answer::Released),
                ask(B, acquire(), 3_900, Answer::Granted { grant: 2, token: 2 }),
                ask(A, acquire(), 9_100, Answer::Granted { grant: 3, token: 3 }),
                ask(A, LockOperation::Release { grant: 3 }, 10_900, Answer::Released),
                ask(A, acquire(), 11_900, Answer::Refused("busy".into())),
            ],
            holds: vec![
                hold(A, 1, 3_010, 20_000, Some(4_900)),
                hold(B, 2, 5_010, 8_900, None),
                hold(A, 3, 10_010, 20_000, Some(10_900)),
            ],
            stalls: vec![Stall { session: B, from: 5_020, until: 1_000_000_000 }],
            samples: vec![Sample {
                asked_at: 400_000_000,
                lease: Lease::Session(B),
                ttl_ms: 3_500,
                renewed_ms: 5_000,
                deadline_ms: 8_500,
                stamp_ms: 8_000,
                term: 1,
            }],
            attempts: vec![
                attempt(1, Kind::Claim, true),
                attempt(1, Kind::Write(1), true),
                attempt(2, Kind::Claim, true),
                attempt(3, Kind::Claim, true),
                attempt(2, Kind::Write(2), false),
                attempt(3, Kind::Write(2), true),
            ],
            ..History::default()
        };
        history.replayed = vec![history.events.clone()];
        history
    }

    /// Changes the events, and the second read of them alike.
    fn with_events(change: impl FnOnce(&mut Vec<LogEvent>)) -> History {
        let mut history = good();
        change(&mut history.events);
        history.replayed = vec![history.events.clone()];
        history
    }

    fn with(change: impl FnOnce(&mut History)) -> History {
        let mut history = good();
        change(&mut history);
        history
    }

    #[test]
    fn a_history_that_keeps_every_promise_has_no_violation() {
        let report = check(&good());
        assert_eq!(report.violations, Vec::<String>::new());
        let counted = (report.operations, report.grants, report.expiries, report.expiries_timed, report.stale_attempts);
        assert_eq!(counted, (6, 3, 1, 1, 1));
        assert_eq!(report.latest_ms, 500, "the session was due at 8,500 and ended at 9,000");
    }

    #[test]
    fn every_planted_violation_is_found() {
        let planted: Vec<(&str, &str, History)> = vec![
            ("I1", "granted while another holds it", with_events(|events| drop(events.remove(4)))),
            ("I2", "a token is given twice", with_events(|events| events[8] = granted(10, A, 2, 2))),
            ("I3", "an acknowledged grant is missing", with_events(|events| events.truncate(8))),
            ("I3", "the log forgot what was watched", with(|history| history.replayed[0].truncate(8))),
            (
                "I3",
                "a lock is released without a request of its holder",
                with(|history| history.holds[0].gave_up_at = None),
            ),
            ("I3", "held at the end, but was released", with(|history| history.grants_at_end.push(3))),
            ("I3", "an acknowledged release is not in the log", with_events(|events| drop(events.pop()))),
            ("I4", "a grant to a dead session", with_events(|events| events[8] = granted(10, B, 2, 3))),
            ("I7", "a grant outlives its session", with_events(|events| drop(events.remove(7)))),
            ("I7", "a wait outlives its session", with_events(|events| drop(events.remove(5)))),
            ("I9", "expired before its deadline", with(|history| history.samples[0].deadline_ms = 9_001)),
            ("I9", "expired while its holder believes in it", with(|history| history.holds[1].believed_until = 9_001)),
            ("I9", "two holders believe at the same time", with(|history| history.holds[0].gave_up_at = Some(5_011))),
            ("I10", "expired much too late", with(|history| history.samples[0].deadline_ms = 400)),
            (
                "I11",
                "a refused acquire was granted",
                with(|history| history.asks[0].answer = Answer::Refused("no".into())),
            ),
            ("I12", "a request was carried out twice", with_events(|events| events[8] = granted(10, A, 1, 3))),
            ("I12", "two requests got one grant", with(|history| history.asks.push(history.asks[0].clone()))),
            ("I14", "the watch repeats itself", with_events(|events| events.insert(3, events[2].clone()))),
            ("I14", "the watch has a gap", with(|history| drop(history.events.remove(3)))),
            ("I20", "a stale write is let in", with(|history| history.attempts[4].accepted = true)),
            ("I20", "an update is lost", with(|history| history.attempts[5].kind = Kind::Write(1))),
            ("logical-time", "a stamp goes back", with_events(|events| events[9].stamp_ms = 1)),
        ];
        for (invariant, story, history) in planted {
            let found = check(&history).violations;
            assert!(found.iter().any(|it| it.starts_with(&format!("{invariant}:"))), "{story}: {found:#?}");
        }
    }

    /// A history beyond plain locks. A holds three names at once, then an update lock that becomes exclusive and then shared. A and B
    /// share a semaphore of three permits. B holds a lock with its own TTL and stands still, but its session lives on.
    fn rich() -> History {
        let three = [("a", Exclusive), ("b", Shared), ("c", Exclusive)];
        let hold = |session, resource: &str, mode, grant, token, from, until| Hold {
            resource: resource.to_owned(),
            mode,
            grant,
            ..hold(session, token, from, until, Some(until))
        };
        let expired =
            Hold { gave_up_at: None, believed_until: 16_900, ..hold(B, "d", Exclusive, 7, 7, 15_010, 16_900) };
        let convert = |mode, at, token| {
            let what = LockOperation::Convert { grant: 2, mode };
            ask(A, what, at, Answer::Granted { grant: 2, token })
        };
        let taken = |taken: &[(&str, Mode)], session, at, grant| {
            ask(session, LockOperation::Acquire(names(taken)), at, Answer::Granted { grant, token: grant })
        };
        let release = |session, grant, at| ask(session, LockOperation::Release { grant }, at, Answer::Released);
        let mut history = History {
            events: vec![
                event(1, What::SessionOpened { session: A }),
                event(2, What::SessionOpened { session: B }),
                granted_as(3, A, 1, 1, &three),
                ended(4, A, 1, End::Released),
                granted_as(5, A, 2, 2, &[("r", Update)]),
                event(6, What::Queued { request: (A, 3), converts: Some(2) }),
                event(7, What::Converted { grant: 2, token: 3, mode: Exclusive }),
                event(8, What::Converted { grant: 2, token: 3, mode: Shared }),
                granted_as(9, B, 1, 4, &[("r", Shared)]),
                ended(10, A, 2, End::Released),
                ended(11, B, 4, End::Released),
                granted_as(12, A, 5, 5, &[("s", Permits(1))]),
                granted_as(13, B, 2, 6, &[("s", Permits(2))]),
                ended(14, A, 5, End::Released),
                granted_as(15, B, 3, 7, &[("d", Exclusive)]),
                ended(17, B, 7, End::Ttl),
                ended(18, B, 6, End::Released),
            ],
            asks: vec![
                taken(&three, A, 2_900, 1),
                release(A, 1, 3_900),
                taken(&[("r", Update)], A, 4_900, 2),
                convert(Exclusive, 5_900, 3),
                convert(Shared, 7_900, 3),
                release(A, 2, 9_900),
                taken(&[("r", Shared)], B, 8_900, 4),
                release(B, 4, 10_900),
                taken(&[("s", Permits(1))], A, 11_900, 5),
                taken(&[("s", Permits(2))], B, 12_900, 6),
                release(A, 5, 13_900),
                taken(&[("d", Exclusive)], B, 14_900, 7),
                release(B, 6, 17_900),
            ],
            holds: vec![
                hold(A, "a", Exclusive, 1, 1, 3_010, 3_900),
                hold(A, "b", Shared, 1, 1, 3_010, 3_900),
                hold(A, "c", Exclusive, 1, 1, 3_010, 3_900),
                hold(A, "r", Update, 2, 2, 5_010, 7_010),
                hold(A, "r", Exclusive, 2, 3, 7_020, 7_900),
                hold(A, "r", Shared, 2, 3, 8_010, 9_900),
                hold(B, "r", Shared, 4, 4, 9_010, 10_900),
                hold(A, "s", Permits(1), 5, 5, 12_010, 13_900),
                hold(B, "s", Permits(2), 6, 6, 13_010, 17_900),
                expired,
            ],
            samples: vec![Sample {
                asked_at: 400_000_000,
                lease: Lease::Grant(7),
                ttl_ms: 1_500,
                renewed_ms: 15_000,
                deadline_ms: 16_500,
                stamp_ms: 16_000,
                term: 1,
            }],
            stalls: vec![Stall { session: B, from: 15_020, until: 1_000_000_000 }],
            limits: BTreeMap::from([("s".to_owned(), 3)]),
            ..History::default()
        };
        history.replayed = vec![history.events.clone()];
        history
    }

    fn rich_with(change: impl FnOnce(&mut History)) -> History {
        let mut history = rich();
        change(&mut history);
        history.replayed = vec![history.events.clone()];
        history
    }

    #[test]
    fn a_rich_history_that_keeps_every_promise_has_no_violation() {
        let report = check(&rich());
        assert_eq!(report.violations, Vec::<String>::new());
        let counted = (report.grants, report.multi_locks, report.permits, report.conversions, report.lock_expiries);
        assert_eq!(counted, (6, 1, 2, 2, 1));
        assert_eq!((report.expiries, report.expiries_timed, report.latest_ms), (0, 1, 500));
    }

    #[test]
    fn every_violation_planted_in_a_rich_history_is_found() {
        let three = |b| [("a", Exclusive), ("b", b), ("c", Exclusive)];
        let planted: Vec<(&str, &str, History)> = vec![
            (
                "I1",
                "a lock on three names is granted while one of them is held",
                rich_with(|history| {
                    history.events[3] = granted_as(4, B, 9, 9, &[("c", Shared)]);
                }),
            ),
            (
                "I1",
                "a reader is granted before a lock is downgraded",
                rich_with(|history| {
                    history.events.swap(7, 8);
                    (history.events[7].index, history.events[8].index) = (8, 9);
                }),
            ),
            (
                "I1",
                "an upgrade does not wait for a reader",
                rich_with(|history| {
                    history.events[5] = granted_as(6, B, 9, 2_000, &[("r", Shared)]);
                }),
            ),
            (
                "I1",
                "one permit too many",
                rich_with(|history| history.events[12] = granted_as(13, B, 2, 6, &[("s", Permits(3))])),
            ),
            (
                "I9",
                "clients believe in more permits than there are",
                rich_with(|history| history.holds[8].mode = Permits(3)),
            ),
            (
                "I2",
                "an upgrade keeps its token",
                rich_with(|history| {
                    history.events[6] = event(7, What::Converted { grant: 2, token: 2, mode: Exclusive });
                }),
            ),
            (
                "I2",
                "a downgrade changes the token",
                rich_with(|history| {
                    history.events[7] = event(8, What::Converted { grant: 2, token: 4, mode: Shared });
                }),
            ),
            ("I3", "an acknowledged downgrade is not in the log", rich_with(|history| drop(history.events.remove(7)))),
            (
                "I8",
                "one of the three names was not granted",
                rich_with(|history| history.events[2] = granted_as(3, A, 1, 1, &three(Shared)[..2])),
            ),
            (
                "I8",
                "one of the three names was granted in another mode",
                rich_with(|history| history.events[2] = granted_as(3, A, 1, 1, &three(Exclusive))),
            ),
            (
                "I12",
                "the three names were granted one after the other",
                rich_with(|history| {
                    history.events[2] = granted_as(3, A, 1, 1, &three(Shared)[..2]);
                    history.events[3] = granted_as(4, A, 1, 2, &three(Shared)[2..]);
                }),
            ),
            (
                "I11",
                "a lock on three names was refused, and left one of them held",
                rich_with(|history| {
                    history.asks[0].answer = Answer::Refused("not in time".into());
                    history.events[2] = granted_as(3, A, 1, 1, &three(Shared)[2..]);
                }),
            ),
            (
                "I11",
                "a refused conversion was done",
                rich_with(|history| history.asks[3].answer = Answer::Refused("conflict".into())),
            ),
            (
                "I9",
                "two holders believe in one of the three names",
                rich_with(|history| history.holds.push(Hold { grant: 9, ..history.holds[2].clone() })),
            ),
            ("I9", "a TTL ends early", rich_with(|history| history.samples[0].deadline_ms = 17_001)),
            (
                "I9",
                "a TTL ends while the holder believes in the lock",
                rich_with(|history| history.holds[9].believed_until = 17_001),
            ),
            ("I10", "a TTL ends much too late", rich_with(|history| history.samples[0].deadline_ms = 4_000)),
        ];
        for (invariant, story, history) in planted {
            let found = check(&history).violations;
            assert!(found.iter().any(|it| it.starts_with(&format!("{invariant}:"))), "{story}: {found:#?}");
        }
    }

    #[test]
    fn an_unknown_outcome_explains_one_grant_and_no_more() {
        let unknown = with(|history| {
            history.asks[0].answer = Answer::Unknown("no answer".into());
            history.holds.remove(0);
        });
        let report = check(&unknown);
        assert_eq!((report.violations, report.unknown), (Vec::new(), 1));
    }
}
