//! `fencepost describe LOCK`: everything about one lock, in tables or as JSON. `why` uses the same JSON.

use std::collections::BTreeMap;

use fencepost::{
    AsOf, BlockedBy, Blocker, Client, CycleLink, Explanation, FreezeRecord, GrantId, HolderView, Name, QueueView,
    ReadAt, SessionId,
};
use serde_json::{Value, json};

use crate::connect::{self, ServerArgs};
use crate::failure::Result;
use crate::listing::{self, job_of};
use crate::output::{self, Format, OutputArgs};
use crate::shown::{self, People};

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
        return output::json(&explanation_json(&explained, &people, &attempts));
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

pub(crate) fn explanation_json(
    AsOf { at, what }: &AsOf<Explanation>,
    people: &People,
    attempts: &BTreeMap<GrantId, u64>,
) -> Value {
    let now = at.stamp;
    let holder = |it: &HolderView| {
        let row = json!({
            "grant": it.holder.grant.0,
            "token": it.holder.token.0,
            "takes": shown::takes(it.holder.takes),
            "session": it.holder.session.map(shown::session_id),
            "client": it.holder.session.map(|session| people.json(session)),
            "owner": it.holder.owner.as_ref().map(|owner| owner.as_str()),
            "job": shown::job_json(job_of(&it.terms), attempts.get(&it.holder.grant).copied()),
            "covers_from": it.covers_from.as_ref().map(Name::as_str),
            "remaining_ms": it.deadline.0.saturating_sub(now.0),
        });
        shown::with_since(row, at, it.holder.since)
    };
    let waiter = |it: &QueueView| {
        let row = json!({
            "place": it.position,
            "wants": shown::takes(it.wants),
            "converts": it.converts,
            "session": shown::session_id(it.waiter.session),
            "client": people.json(it.waiter.session),
            "owner": it.waiter.owner.as_ref().map(|owner| owner.as_str()),
            "job": shown::job_json(job_of(&it.waiter.terms), None),
            "remaining_ms": it.waiter.until.map(|until| until.0.saturating_sub(now.0)),
        });
        shown::with_since(row, at, it.waiter.queued_at)
    };
    let rest = |it: &fencepost_core::RestRecord| {
        let left_ms = it.until.0.saturating_sub(now.0);
        let row = json!({ "grant": it.grant.0, "token": it.token.0, "remaining_ms": left_ms });
        shown::with_since(row, at, it.since)
    };
    let semaphore = what.semaphore.as_ref().map(|(semaphore, out)| {
        json!({ "limit": semaphore.limit.get(), "out": out, "administered": semaphore.administered })
    });
    json!({
        "lock": what.name.as_str(),
        "index": at.index,
        "holders": what.holders.iter().map(holder).collect::<Vec<Value>>(),
        "waiting": what.queue.iter().map(waiter).collect::<Vec<Value>>(),
        "waiting_count": what.queue_len,
        "freezes": what.freezes.iter().map(|it| freeze_json(it, at)).collect::<Vec<Value>>(),
        "rests": what.rests.iter().map(rest).collect::<Vec<Value>>(),
        "semaphore": semaphore,
        "blockers": what.chain.iter().map(blocker_json).collect::<Vec<Value>>(),
        "suspected_deadlock": what.suspected.as_ref().map(|cycle| cycle.links.iter().map(link_json).collect::<Vec<Value>>()),
    })
}

/// A freeze as JSON.
pub(crate) fn freeze_json(freeze: &FreezeRecord, at: &ReadAt) -> Value {
    let row = json!({
        "freeze": shown::freeze_id(freeze.id),
        "scope": shown::scope_json(&freeze.scope),
        "by": freeze.by.as_str(),
        "reason": freeze.reason.as_str(),
    });
    shown::with_since(row, at, freeze.since)
}

fn link_json(link: &CycleLink) -> Value {
    json!({
        "session": shown::session_id(link.session),
        "owner": link.owner.as_ref().map(|owner| owner.as_str()),
        "waits_for": link.waits_for.as_str(),
        "wants": shown::mode(link.wants),
        "blocked_by_grant": link.blocked_by.map(|grant| grant.0),
    })
}

fn blocker_json(blocker: &Blocker) -> Value {
    let by = match &blocker.by {
        BlockedBy::Grant(holder) => {
            json!({ "grant": holder.grant.0, "session": holder.session.map(shown::session_id) })
        }
        BlockedBy::Rest(holder) => json!({ "rest": holder.grant.0 }),
        BlockedBy::Waiter(arrival) => json!({ "waiter": arrival.0 }),
        BlockedBy::Freeze(freeze) => json!({ "freeze": shown::freeze_id(freeze.id) }),
        BlockedBy::Permits => json!({ "permits": true }),
    };
    json!({
        "session": shown::session_id(blocker.session),
        "owner": blocker.owner.as_ref().map(|owner| owner.as_str()),
        "waits_for": blocker.name.as_str(),
        "blocked_by": by,
    })
}
