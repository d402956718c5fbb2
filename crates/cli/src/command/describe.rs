//! `fencepost describe LOCK`: everything about one lock, in tables or as JSON. `why` uses the same JSON.

use std::collections::BTreeMap;

use fencepost::{AsOf, BlockedBy, Client, Explanation, GrantId, HolderView, Name, QueueView, SessionId};
use fencepost_json::job_of;

use crate::connect::{self, ServerArgs};
use crate::failure::Result;
use crate::listing;
use crate::output::{self, Format, OutputArgs};
use crate::shown;

/// Show everything about one lock
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
    let AsOf { at, what } = &explained;
    let now = at.stamp;
    let people = listing::people(&client, sessions_of(what)).await?;
    let attempts = attempts(&client, what).await?;
    if args.output.output == Format::Json {
        return output::json(&fencepost_json::explanation(what, &attempts, |it| people.json(it), at));
    }
    output::line(&format!("lock      {}", output::printable(what.name.as_str())))?;
    output::line(&format!("as of     entry {} of term {}", at.index, at.term))?;
    if let Some((semaphore, out)) = &what.semaphore {
        let kind =
            if semaphore.administered { "limit set by an administrator" } else { "limit lasts while it is in use" };
        output::line(&format!("permits   {out} of {} are held ({kind})", semaphore.limit.get()))?;
    }
    for freeze in &what.freezes {
        let (scope, age) = (output::printable(&shown::scope(&freeze.scope)), shown::age(at, freeze.since));
        let (by, why) = (output::printable(freeze.by.as_str()), output::printable(freeze.reason.as_str()));
        let id = shown::short_freeze(freeze.id);
        output::line(&format!("frozen    {scope} for {age} by {by}: {why} (freeze {id})"))?;
    }
    for rest in &what.rests {
        let left = shown::left(rest.until, now);
        output::line(&format!("rests     for {left} more, because grant {} was lost", rest.grant.0))?;
    }
    output::line("")?;
    let row = |HolderView { holder, covers_from, deadline, terms }: &HolderView| {
        let who = holder.session.map_or("-".to_owned(), |session| people.who(session, holder.owner.as_ref()));
        let covers = covers_from.as_ref().map_or(String::new(), |above| format!(" (by {above})"));
        [
            holder.grant.0.to_string(),
            holder.token.0.to_string(),
            format!("{}{covers}", shown::takes(holder.takes)),
            who + &shown::job(job_of(terms), attempts.get(&holder.grant).copied()),
            shown::time(at, holder.since),
            shown::age(at, holder.since),
            shown::left(*deadline, now),
        ]
    };
    let rows: Vec<[String; 7]> = what.holders.iter().map(row).collect();
    let heading = ["GRANT", "TOKEN", "MODE", "HELD BY", "SINCE", "HELD FOR", "ENDS IN"];
    output::table(heading, &rows, "fencepost: it is not held")?;
    if what.queue_len == 0 {
        return Ok(());
    }
    output::line("")?;
    let row = |QueueView { position, waiter, wants, converts }: &QueueView| {
        [
            position.to_string(),
            format!("{}{}", shown::takes(*wants), if *converts { " (upgrade)" } else { "" }),
            people.who(waiter.session, waiter.owner.as_ref()) + &shown::job(job_of(&waiter.terms), None),
            shown::time(at, waiter.queued_at),
            shown::age(at, waiter.queued_at),
            waiter.until.map_or("for ever".to_owned(), |until| shown::left(until, now)),
        ]
    };
    let rows: Vec<[String; 6]> = what.queue.iter().map(row).collect();
    output::table(["PLACE", "WANTS", "WAITING", "SINCE", "WAITED", "GIVES UP IN"], &rows, "")?;
    if what.queue_len > what.queue.len() {
        output::say(&format!("fencepost: {} more requests wait", what.queue_len - what.queue.len()));
    }
    Ok(())
}

/// The sessions that an explanation names.
pub(crate) fn sessions_of(what: &Explanation) -> impl Iterator<Item = SessionId> {
    let holders = what.holders.iter().filter_map(|it| it.holder.session);
    let waiters = what.queue.iter().map(|it| it.waiter.session);
    let chain = what.chain.iter().flat_map(|it| {
        let by = match &it.by {
            BlockedBy::Grant(holder) => holder.session,
            _ => None,
        };
        [Some(it.session), by].into_iter().flatten()
    });
    let suspected = what.suspected.iter().flat_map(|cycle| &cycle.links).map(|link| link.session);
    holders.chain(waiters).chain(chain).chain(suspected)
}

/// The holders that asked for this name itself. Without locks on a path above it, and without the intention modes of locks below it.
pub(crate) fn holders_of_the_name(what: &Explanation) -> impl Iterator<Item = &HolderView> {
    use fencepost_core::{Mode, Takes};
    let asked = |takes| !matches!(takes, Takes::Mode(Mode::IS | Mode::IX));
    what.holders.iter().filter(move |it| it.covers_from.is_none() && asked(it.holder.takes))
}

/// The attempts of the holders that are there for a job.
pub(crate) async fn attempts(client: &Client, what: &Explanation) -> Result<BTreeMap<GrantId, u64>> {
    let jobs = what.holders.iter().filter_map(|it| {
        let name = it.covers_from.as_ref().unwrap_or(&what.name);
        Some((it.holder.grant, name, job_of(&it.terms)?))
    });
    listing::attempts(client, jobs).await
}
