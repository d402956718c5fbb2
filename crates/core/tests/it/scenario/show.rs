//! Prints the state: one line for each name with its holders, rests and waiters; or one session.
//!
//! Everything comes from the records. Intentions on ancestors are computed here, independently of the core, so that the
//! output cannot repeat a mistake of the core.

use std::collections::BTreeMap;

use fencepost_core::{
    Held, JobBytes, JobRecord, JobView, Locks, Mode, Name, Record, SessionId, SessionRecord, Terms, WaiterRecord, Wants,
};

use super::print::{Spelling, completed, grant_end, held, quoted, token_of};
use super::words::time;

/// The line of one name, in parts.
#[derive(Default)]
struct Picture {
    limit: Option<String>,
    holders: Vec<String>,
    rests: Vec<String>,
    waiters: Vec<String>,
}

/// One line for each name that is held, resting, waited for or limited, one for each freeze and one for each job.
pub(crate) fn names(records: &[Record], spelling: &Spelling) -> Vec<String> {
    let mut pictures: BTreeMap<Name, Picture> = BTreeMap::new();
    let mut others = Vec::new();
    for record in records {
        match record {
            Record::Grant(grant) => {
                let who = spelling.owner(grant.session, grant.owner.as_ref());
                let count = if grant.count == 1 { String::new() } else { format!(" count {}", grant.count) };
                let job = key_of(&grant.terms);
                let value = grant.terms.as_ref().and_then(|terms| terms.value.as_ref());
                let value =
                    value.map_or(String::new(), |value| format!(" \"{}\"", String::from_utf8_lossy(value.as_bytes())));
                for (name, takes) in footprint(&grant.held) {
                    let line = format!("{who} {takes} {}{count}{job}{value}", token_of(grant.id, grant.token));
                    pictures.entry(name).or_default().holders.push(line);
                }
            }
            Record::Rest(rest) => {
                for (name, takes) in footprint(&rest.held) {
                    let line = format!("{takes} {} until {}", token_of(rest.grant, rest.token), time(rest.until.0));
                    pictures.entry(name).or_default().rests.push(line);
                }
            }
            Record::Waiter(waiter) => {
                for (name, takes) in footprint(&waiter.wants.held()) {
                    pictures.entry(name).or_default().waiters.push(wait(waiter, &takes, spelling));
                }
            }
            Record::Semaphore(semaphore) => {
                let by = if semaphore.administered { " by admin" } else { "" };
                pictures.entry(semaphore.name.clone()).or_default().limit =
                    Some(format!("limit {}{by}", semaphore.limit.get()));
            }
            Record::Freeze(freeze) => {
                others.push(format!("freeze {}: {}", spelling.freeze(freeze.id), spelling.scope(&freeze.scope)));
            }
            Record::Job(job) => others.push(job_line(job, spelling)),
            Record::Header(header) if header.jobs_refused => others.push("jobs are refused".to_string()),
            #[cfg(feature = "made-up-version")]
            Record::Remark(_) => {}
            Record::Header(_) | Record::Session(_) | Record::Answer(_) => {}
        }
    }
    let line = |(name, picture): (Name, Picture)| {
        let part = |what: &str, list: Vec<String>| (!list.is_empty()).then(|| format!("{what} {}", list.join(", ")));
        let parts = [
            picture.limit,
            part("held by", picture.holders),
            part("resting", picture.rests),
            part("waiting", picture.waiters),
        ];
        format!("{name}: {}", parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    };
    pictures.into_iter().map(line).chain(others).collect()
}

/// What is remembered of a job, who works on it and how many wait for it.
pub(crate) fn job(view: &JobView, spelling: &Spelling) -> Vec<String> {
    let mut lines = vec![view.record.as_ref().map_or("not remembered".to_string(), |job| job_line(job, spelling))];
    lines.extend(view.holder.as_ref().map(|holder| format!("held by {}", spelling.holder(holder))));
    if view.waiting > 0 {
        lines.push(format!("{} waiting", view.waiting));
    }
    lines
}

/// The record of a job in one line.
pub(crate) fn job_line(job: &JobRecord, spelling: &Spelling) -> String {
    let mut parts = vec![format!("{} attempt{}", job.attempts, if job.attempts == 1 { "" } else { "s" })];
    if let Some(last) = &job.last {
        let who = spelling.session(last.session);
        let token = token_of(last.grant, last.token);
        parts.push(format!("the last by {who} {token} at {}", time(last.began_at.0)));
        if let Some(ended) = &last.ended {
            parts.push(format!("ended at {}: {}{}", time(ended.at.0), grant_end(&ended.how), text(&ended.error)));
        }
    }
    if let Some(checkpoint) = &job.checkpoint {
        let at = time(checkpoint.at.0);
        parts.push(format!("checkpoint of attempt {} at {at}{}", checkpoint.attempt, text(&checkpoint.bytes)));
    }
    if let Some(completion) = &job.completion {
        let by = completion.by.as_ref().map_or(String::new(), |by| format!(" {}", by.as_str()));
        let how = completed(completion.token, completion.succeeded);
        parts.push(format!("{how}{by} at {}{}", time(completion.at.0), text(&completion.result)));
    }
    parts.extend(job.until.map(|until| format!("until {}", time(until.0))));
    format!("job {} {}: {}", job.name, quoted(&job.key), parts.join("; "))
}

fn text(bytes: &JobBytes) -> String {
    if bytes.as_bytes().is_empty() {
        return String::new();
    }
    format!(" \"{}\"", String::from_utf8_lossy(bytes.as_bytes()))
}

/// The key of the job that a grant or a request is for.
fn key_of(terms: &Option<Box<Terms>>) -> String {
    let job = terms.as_ref().and_then(|terms| terms.job.as_ref());
    job.map_or(String::new(), |job| format!(" for {}", quoted(&job.key)))
}

/// A session with its grants, waits, answers that are not acknowledged, and losses.
pub(crate) fn session(records: &[Record], id: SessionId, spelling: &Spelling) -> Vec<String> {
    let mut lines = Vec::new();
    for record in records {
        match record {
            Record::Session(session) if session.id == id => lines.extend(session_lines(session)),
            Record::Answer(answer) if answer.session == id => {
                let outcome = spelling.outcome(&answer.outcome).replace('\n', ";");
                let given_back = if answer.given_back { ", given back" } else { "" };
                lines.push(format!(
                    "unseen #{}: {outcome} (said at {}){given_back}",
                    answer.number.0,
                    time(answer.answered_at.0)
                ));
            }
            Record::Grant(grant) if grant.session == id => {
                let job = key_of(&grant.terms);
                lines.push(format!("holds {}, {}{job}", held(&grant.held), token_of(grant.id, grant.token)));
            }
            Record::Waiter(waiter) if waiter.session == id => {
                lines.push(format!(
                    "waits #{} {}{}, arrival {}",
                    waiter.number.0,
                    held(&waiter.wants.held()),
                    key_of(&waiter.terms),
                    waiter.arrival.0
                ));
            }
            _ => {}
        }
    }
    if lines.is_empty() { vec!["no session".to_string()] } else { lines }
}

fn session_lines(session: &SessionRecord) -> Vec<String> {
    let mut lines = vec![format!(
        "session of {}, ttl {}, epoch {}, renewed at {}",
        session.principal.as_str(),
        time(session.ttl.millis().get()),
        session.epoch.0,
        time(session.renewed_at.0)
    )];
    if session.seen_mark > 0 || !session.seen_ranges.is_empty() {
        let ranges = session.seen_ranges.iter().map(|(first, last)| format!(", {first}..{last}"));
        lines.push(format!("seen up to {}{}", session.seen_mark, ranges.collect::<String>()));
    }
    lines.extend(session.lost.iter().map(|(grant, how)| format!("lost grant {}: {}", grant.0, grant_end(how))));
    lines
}

fn wait(waiter: &WaiterRecord, takes: &str, spelling: &Spelling) -> String {
    let who = spelling.owner(waiter.session, waiter.owner.as_ref());
    let converts = match &waiter.wants {
        Wants::Conversion { grant, .. } => format!(" for grant {}", grant.0),
        _ => String::new(),
    };
    let until = waiter.until.map_or(String::new(), |until| format!(" until {}", time(until.0)));
    let job = key_of(&waiter.terms);
    format!("{who}#{} {takes}{job}{converts}{until}", waiter.number.0)
}

// Rule: hierarchy
fn footprint(held: &Held) -> Vec<(Name, String)> {
    match held {
        Held::Locks(locks) => modes(locks).into_iter().map(|(name, mode)| (name, format!("{mode:?}"))).collect(),
        Held::Permits { name, permits } => vec![(name.clone(), permits.get().to_string())],
    }
}

fn modes(locks: &Locks) -> BTreeMap<Name, Mode> {
    let mut modes = BTreeMap::new();
    let mut take = |name: Name, mode: Mode| {
        modes.entry(name).and_modify(|has: &mut Mode| *has = has.merge(mode)).or_insert(mode);
    };
    for lock in locks {
        take(lock.name.clone(), lock.mode.mode());
        lock.name.ancestors().for_each(|ancestor| take(ancestor, lock.mode.intention()));
    }
    modes
}
