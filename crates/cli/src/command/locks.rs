//! `fencepost locks`: lists the held locks, their holders, and how many requests wait.
//!
//! For one lock with all details there is `describe`.

use std::collections::{BTreeMap, BTreeSet};

use fencepost::{GrantId, GrantView, ReadAt, WaiterRecord};
use serde_json::{Value, json};

use crate::connect::ServerArgs;
use crate::failure::Result;
use crate::listing::{self, job_of};
use crate::output::{self, Format, OutputArgs};
use crate::shown::{self, People};

/// List the locks that are held or waited for
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only names with this prefix
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    let client = args.server.connect().await?;
    let (grants, at) = listing::grants(&client, &args.prefix).await?;
    let waiters = listing::waiters(&client, &args.prefix, usize::MAX).await?;
    let sessions = grants.iter().map(|grant| grant.record.session);
    let attempts = listing::attempts_of(&client, &grants).await?;
    if args.output.output == Format::Json {
        let people = listing::people(&client, sessions.chain(waiters.iter().map(|waiter| waiter.session))).await?;
        let grants: Vec<Value> = grants.iter().map(|grant| grant_json(grant, &attempts, &people, &at)).collect();
        let waiters: Vec<Value> = waiters.iter().map(|waiter| waiter_json(waiter, &people, &at)).collect();
        return output::json(&json!({ "held": grants, "waiting": waiters }));
    }
    let people = listing::people(&client, sessions).await?;
    let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
    for waiter in &waiters {
        for name in waiter.wants.held().names() {
            *waiting.entry(name.to_string()).or_default() += 1;
        }
    }
    let mut rows = Vec::new();
    let mut held_names = BTreeSet::new();
    for GrantView { record, deadline } in &grants {
        let (names, mode) = shown::held(&record.held);
        let count: usize = record.held.names().filter_map(|name| waiting.get(name.as_str())).sum();
        held_names.extend(record.held.names().map(ToString::to_string));
        rows.push([
            names,
            mode,
            record.token.0.to_string(),
            people.who(record.session, record.owner.as_ref())
                + &shown::job(job_of(&record.terms), attempts.get(&record.id).copied()),
            shown::age(&at, record.granted_at),
            shown::left(*deadline, at.stamp),
            count.to_string(),
        ]);
    }
    // Names with waiters but without a holder: frozen, resting, or covered by a lock on a path above.
    for (name, count) in waiting.iter().filter(|(name, _)| !held_names.contains(*name)) {
        let dash = || "-".to_owned();
        rows.push([name.clone(), dash(), dash(), dash(), dash(), dash(), count.to_string()]);
    }
    rows.sort();
    let heading = ["LOCK", "MODE", "TOKEN", "HELD BY", "HELD FOR", "ENDS IN", "WAITING"];
    output::table(heading, &rows, &nothing(&args.prefix))
}

fn nothing(prefix: &str) -> String {
    match prefix {
        "" => "fencepost: nothing is held".to_owned(),
        _ => format!("fencepost: nothing that begins with {prefix:?} is held"),
    }
}

/// A grant as JSON.
fn grant_json(
    GrantView { record, deadline }: &GrantView,
    attempts: &BTreeMap<GrantId, u64>,
    people: &People,
    at: &ReadAt,
) -> Value {
    let row = json!({
        "grant": record.id.0,
        "token": record.token.0,
        "locks": shown::held_json(&record.held),
        "session": shown::session_id(record.session),
        "client": people.json(record.session),
        "owner": record.owner.as_ref().map(|owner| owner.as_str()),
        "job": shown::job_json(job_of(&record.terms), attempts.get(&record.id).copied()),
        "count": record.count,
        "remaining_ms": deadline.0.saturating_sub(at.stamp.0),
    });
    shown::with_since(row, at, record.granted_at)
}

/// A waiting request as JSON.
fn waiter_json(waiter: &WaiterRecord, people: &People, at: &ReadAt) -> Value {
    let row = json!({
        "arrival": waiter.arrival.0,
        "locks": shown::held_json(&waiter.wants.held()),
        "session": shown::session_id(waiter.session),
        "client": people.json(waiter.session),
        "owner": waiter.owner.as_ref().map(|owner| owner.as_str()),
        "job": shown::job_json(job_of(&waiter.terms), None),
        "remaining_ms": waiter.until.map(|until| until.0.saturating_sub(at.stamp.0)),
    });
    shown::with_since(row, at, waiter.queued_at)
}
