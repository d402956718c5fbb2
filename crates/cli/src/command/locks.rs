//! `fencepost locks`: lists the held locks, their holders, and how many requests wait.
//!
//! For one lock with all details there is `describe`.

use std::collections::{BTreeMap, BTreeSet};

use fencepost::GrantView;
use fencepost_json::job_of;
use serde_json::{Value, json};

use crate::connect::ServerArgs;
use crate::failure::Result;
use crate::listing;
use crate::output::{self, Format, OutputArgs};
use crate::shown;

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
        let grants: Vec<Value> = grants
            .iter()
            .map(|grant| {
                fencepost_json::grant(grant, attempts.get(&grant.record.id).copied(), |it| people.json(it), &at)
            })
            .collect();
        let waiters: Vec<Value> =
            waiters.iter().map(|waiter| fencepost_json::waiter(waiter, |it| people.json(it), &at)).collect();
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
