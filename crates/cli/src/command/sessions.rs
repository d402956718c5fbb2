//! `fencepost sessions`: lists the live sessions and their clients.

use std::collections::BTreeMap;

use fencepost::{Client, JobKey, Name, SessionId};
use serde_json::{Value, json};

use crate::connect::ServerArgs;
use crate::failure::Result;
use crate::output::{self, Format, OutputArgs};
use crate::{duration, listing, shown};

/// List the live sessions
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    let client = args.server.connect().await?;
    let (sessions, at) = listing::sessions(&client).await?;
    let jobs = jobs(&client).await?;
    if args.output.output == Format::Json {
        let row = |it: &fencepost::SessionView| {
            let mut row = fencepost_json::session(it, &at);
            row["jobs"] = jobs_json(jobs.get(&it.id));
            row
        };
        return output::json(&sessions.iter().map(row).collect::<Vec<Value>>());
    }
    let row = |session: &fencepost::SessionView| {
        [
            shown::short_session(session.id),
            shown::client(&shown::metadata(session.metadata.as_bytes())),
            session.grants.to_string(),
            session.waits.to_string(),
            jobs_shown(jobs.get(&session.id)),
            duration::show(session.ttl.millis().get()),
            shown::age(&at, session.opened_at),
            shown::left(session.deadline, at.stamp),
        ]
    };
    let rows: Vec<[String; 8]> = sessions.iter().map(row).collect();
    let heading = ["SESSION", "CLIENT", "HOLDS", "WAITS", "JOBS", "TTL", "OPEN FOR", "ENDS IN"];
    output::table(heading, &rows, "fencepost: there are no sessions")
}

/// A job that a session holds or waits for.
struct OfSession {
    name: Name,
    key: JobKey,
    is_held: bool,
    attempt: Option<u64>,
}

/// The jobs of each session.
async fn jobs(client: &Client) -> Result<BTreeMap<SessionId, Vec<OfSession>>> {
    let (grants, _) = listing::grants(client, "").await?;
    let waiters = listing::waiters(client, "", usize::MAX).await?;
    let attempts = listing::attempts_of(client, &grants).await?;
    let mut jobs: BTreeMap<SessionId, Vec<OfSession>> = BTreeMap::new();
    for grant in grants.iter().map(|grant| &grant.record) {
        if let Some((name, terms)) = grant.job() {
            let (name, key, attempt) = (name.clone(), terms.key.clone(), attempts.get(&grant.id).copied());
            jobs.entry(grant.session).or_default().push(OfSession { name, key, is_held: true, attempt });
        }
    }
    for waiter in &waiters {
        if let Some((name, terms)) = waiter.job() {
            let (name, key) = (name.clone(), terms.key.clone());
            jobs.entry(waiter.session).or_default().push(OfSession { name, key, is_held: false, attempt: None });
        }
    }
    Ok(jobs)
}

/// `billing 2026-11, attempt 2`, or `waits for billing 2026-11`; the first of several.
fn jobs_shown(jobs: Option<&Vec<OfSession>>) -> String {
    let Some((first, more)) = jobs.and_then(|jobs| jobs.split_first()) else { return "-".to_owned() };
    let OfSession { name, key, is_held, attempt } = first;
    let attempt = attempt.map_or(String::new(), |attempt| format!(", attempt {attempt}"));
    let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
    format!("{}{name} {key}{attempt}{more}", if *is_held { "" } else { "waits for " })
}

fn jobs_json(jobs: Option<&Vec<OfSession>>) -> Value {
    let row = |it: &OfSession| json!({ "name": it.name.as_str(), "key": it.key.as_str(), "is_held": it.is_held, "attempt": it.attempt });
    jobs.into_iter().flatten().map(row).collect()
}
