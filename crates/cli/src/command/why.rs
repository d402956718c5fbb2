//! `fencepost why LOCK`: explains in sentences who holds a lock, who waits, and what blocks it.
//!
//! The cluster computes the explanation; this file turns it into sentences. `describe` shows the same facts in tables.

use std::collections::BTreeMap;

use fencepost::{AsOf, BlockedBy, Cycle, Explanation, GrantId, Holder, Name, ReadAt};
use fencepost_json::job_of;

use crate::command::describe::{attempts, sessions_of};
use crate::connect::{self, ServerArgs};
use crate::failure::Result;
use crate::output::{self, Format, OutputArgs};
use crate::shown::{self, People};

/// How many waiters are named one by one.
const NAMED_MAX: usize = 5;

/// Explain in sentences who holds a lock, who waits, and what blocks it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The lock or semaphore
    #[arg(value_parser = connect::name)]
    lock: Name,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    let client = args.server.connect().await?;
    let explained = client.explain(args.lock.as_str()).await?;
    let people = crate::listing::people(&client, sessions_of(&explained.what)).await?;
    let attempts = attempts(&client, &explained.what).await?;
    let said = sentences(&explained, &people, &attempts);
    match args.output.output {
        Format::Table => said.iter().try_for_each(|sentence| output::line(&output::printable(sentence))),
        Format::Json => {
            let mut json = fencepost_json::explanation(&explained.what, &attempts, |it| people.json(it), &explained.at);
            json["sentences"] = said.into();
            output::json(&json)
        }
    }
}

fn sentences(AsOf { at, what }: &AsOf<Explanation>, people: &People, attempts: &BTreeMap<GrantId, u64>) -> Vec<String> {
    let now = at.stamp;
    let name = what.name.as_str();
    let mut said = Vec::new();
    if let Some((semaphore, out)) = &what.semaphore {
        said.push(format!("{name} is a semaphore: {out} of its {} permits are out.", semaphore.limit.get()));
    }
    for freeze in &what.freezes {
        let by = freeze.by.as_str();
        let (scope, age) = (shown::scope(&freeze.scope), shown::age(at, freeze.since));
        let why = if freeze.reason.as_str().is_empty() { "no reason given" } else { freeze.reason.as_str() };
        said.push(format!(
            "{scope} was frozen {age} ago by {by} ({why}): new requests for {name} wait until `fencepost thaw {}`.",
            shown::short_freeze(freeze.id)
        ));
    }
    for rest in &what.rests {
        said.push(format!(
            "Grant {} was lost {} ago and asked for a rest: {name} stays busy for {} more.",
            rest.grant.0,
            shown::age(at, rest.since),
            shown::left(rest.until, now)
        ));
    }
    for it in &what.holders {
        let place = match &it.covers_from {
            Some(above) => format!("{name} is covered by {above}, which"),
            None => name.to_owned(),
        };
        said.push(format!(
            "{place} is held ({}) by {}{}; it ends in {} unless it is renewed.",
            shown::takes(it.holder.takes),
            holder_of(&it.holder, people, at),
            shown::job(job_of(&it.terms), attempts.get(&it.holder.grant).copied()),
            shown::left(it.deadline, now)
        ));
    }
    if what.holders.is_empty() && what.rests.is_empty() {
        said.push(format!("{name} is not held."));
    }
    match what.queue_len {
        0 => said.push(format!("No request waits for {name}.")),
        1 => said.push("One request waits:".to_owned()),
        waiting => said.push(format!("{waiting} requests wait:")),
    }
    for it in what.queue.iter().take(NAMED_MAX) {
        let gives_up = match it.waiter.until {
            Some(until) => format!(", gives up in {}", shown::left(until, now)),
            None => String::new(),
        };
        said.push(format!(
            "  {}. {}{} has waited {} for it ({}){gives_up}.",
            it.position,
            people.who(it.waiter.session, it.waiter.owner.as_ref()),
            shown::job(job_of(&it.waiter.terms), None),
            shown::age(at, it.waiter.queued_at),
            shown::takes(it.wants)
        ));
    }
    if what.queue_len > NAMED_MAX {
        said.push(format!("  ... and {} more: see `fencepost describe {name}`.", what.queue_len - NAMED_MAX));
    }
    if what.chain.len() > 1 {
        said.push("What blocks the first request, down to the root:".to_owned());
        for blocker in &what.chain {
            let who = people.who(blocker.session, blocker.owner.as_ref());
            said.push(format!("  {who} waits for {}, {}.", blocker.name, in_the_way(&blocker.by, people, at)));
        }
    }
    if let Some(Cycle { links }) = &what.suspected {
        said.push("A deadlock is suspected. These sessions wait for each other, unless one of them runs several tasks at once:".to_owned());
        for (link, next) in links.iter().zip(links.iter().cycle().skip(1)).take(NAMED_MAX) {
            let who = people.who(link.session, link.owner.as_ref());
            let how = if link.blocked_by.is_some() { "held by" } else { "behind an earlier request of" };
            said.push(format!(
                "  {who} waits for {}, {how} session {}.",
                link.waits_for,
                shown::short_session(next.session)
            ));
        }
        if links.len() > NAMED_MAX {
            said.push(format!("  ... and {} more: see `-o json`.", links.len() - NAMED_MAX));
        }
        said.push(
            "Waiting longer does not help: break one of the locks. To prevent it, let the program ask for all its locks in one request, or \
             give each unit of work an owner, so that a deadlock is refused at once."
                .to_owned(),
        );
    }
    said
}

fn in_the_way(by: &BlockedBy, people: &People, at: &ReadAt) -> String {
    match by {
        BlockedBy::Grant(holder) => format!("held by {}", holder_of(holder, people, at)),
        BlockedBy::Rest(holder) => format!("which rests after grant {} was lost", holder.grant.0),
        BlockedBy::Waiter(_) => "behind an earlier request".to_owned(),
        BlockedBy::Freeze(freeze) => format!("which is frozen (freeze {})", shown::short_freeze(freeze.id)),
        BlockedBy::Permits => "of which too few permits are left".to_owned(),
    }
}

fn holder_of(holder: &Holder, people: &People, at: &ReadAt) -> String {
    let who = holder
        .session
        .map_or("a session that has ended".to_owned(), |session| people.who(session, holder.owner.as_ref()));
    let (age, since) = (shown::age(at, holder.since), shown::time(at, holder.since));
    format!("{who} for {age} (since {since}) with token {}", holder.token.0)
}
