//! Prints the state: one line for each name with its holders, rests and waiters; or one session.
//!
//! Everything comes from the records. Intentions on ancestors are computed here, independently of the core, so that the
//! output cannot repeat a mistake of the core.

use std::collections::BTreeMap;

use fencepost_core::{Held, Locks, Mode, Name, Record, SessionId, SessionRecord, WaiterRecord, Wants};

use super::print::{Spelling, grant_end, held, token_of};
use super::words::time;

/// The line of one name, in parts.
#[derive(Default)]
struct Picture {
    limit: Option<String>,
    holders: Vec<String>,
    rests: Vec<String>,
    waiters: Vec<String>,
}

/// One line for each name that is held, resting, waited for or limited, and one for each freeze.
pub(crate) fn names(records: &[Record], spelling: &Spelling) -> Vec<String> {
    let mut pictures: BTreeMap<Name, Picture> = BTreeMap::new();
    let mut freezes = Vec::new();
    for record in records {
        match record {
            Record::Grant(grant) => {
                let who = spelling.owner(grant.session, grant.owner.as_ref());
                let count = if grant.count == 1 { String::new() } else { format!(" count {}", grant.count) };
                let value = grant.terms.as_ref().and_then(|terms| terms.value.as_ref());
                let value =
                    value.map_or(String::new(), |value| format!(" \"{}\"", String::from_utf8_lossy(value.as_bytes())));
                for (name, takes) in footprint(&grant.held) {
                    let line = format!("{who} {takes} {}{count}{value}", token_of(grant.id, grant.token));
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
                freezes.push(format!("freeze {}: {}", spelling.freeze(freeze.id), spelling.scope(&freeze.scope)));
            }
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
    pictures.into_iter().map(line).chain(freezes).collect()
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
                lines.push(format!("holds {}, {}", held(&grant.held), token_of(grant.id, grant.token)));
            }
            Record::Waiter(waiter) if waiter.session == id => {
                lines.push(format!(
                    "waits #{} {}, arrival {}",
                    waiter.number.0,
                    held(&waiter.wants.held()),
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
    format!("{who}#{} {takes}{converts}{until}", waiter.number.0)
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
