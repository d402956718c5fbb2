//! What an administrator does to locks: `break`, `evict`, `freeze`, `freezes`, `thaw` and `limit`.
//!
//! Every change has an author and a reason in the log. `break` and `evict` show what they will end, and ask before they do it.

use std::io::{IsTerminal, Write};

use clap::ArgGroup;
use fencepost::{AsOf, Client, FreezeId, FreezeRecord, GrantId, GrantView, Name, SessionId};
use fencepost_core::{Scope, shortened};
use fencepost_json::job_of;
use serde_json::{Value, json};

use crate::command::describe::holders_of_the_name;
use crate::connect::{self, ServerArgs};
use crate::failure::{Failure, Result};
use crate::listing;
use crate::output::{self, Format, OutputArgs};
use crate::shown;

/// Take a lock away from its holder
///
/// The holder is told, but not stopped: a holder that is paused in the middle of a write may still finish it. Only a store
/// that checks fencing tokens refuses that write. Shows what it will break and asks first, unless you pass --yes.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).args(["lock", "grant"]))]
pub(crate) struct BreakArgs {
    /// The lock; all its holders lose it
    #[arg(value_parser = connect::name)]
    lock: Option<Name>,
    /// Only this grant; `fencepost describe` shows the ids
    #[arg(long, value_name = "ID")]
    grant: Option<u64>,
    /// End the rest (lock delay) instead, so that the next waiter gets the lock at once
    #[arg(long)]
    waive_rest: bool,
    #[command(flatten)]
    act: ActArgs,
}

/// End a session: its locks are taken away, and its waits end
#[derive(Debug, clap::Args)]
pub(crate) struct EvictArgs {
    /// The session's id, or its first digits
    session: String,
    #[command(flatten)]
    act: ActArgs,
}

/// Make new requests for a name, or for all names with a prefix, wait
///
/// Holders keep their locks. Prints the id of the freeze, for `fencepost thaw`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).args(["name", "prefix"]))]
pub(crate) struct FreezeArgs {
    /// The name
    #[arg(value_parser = connect::name)]
    name: Option<Name>,
    /// Every name with this prefix; the empty prefix means every name
    #[arg(long)]
    prefix: Option<String>,
    /// The reason, for the log and for people who watch
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// List the freezes
#[derive(Debug, clap::Args)]
pub(crate) struct FreezesArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// End a freeze
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).args(["freeze", "name", "prefix"]))]
pub(crate) struct ThawArgs {
    /// The freeze's id, or its first digits
    freeze: Option<String>,
    /// All freezes of exactly this name
    #[arg(long, value_parser = connect::name)]
    name: Option<Name>,
    /// All freezes of exactly this prefix
    #[arg(long)]
    prefix: Option<String>,
    /// The reason, for the log and for people who watch
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Set how many permits a semaphore has
#[derive(Debug, clap::Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["permits", "none"]),
    override_usage = "fencepost limit [OPTIONS] <NAME> <PERMITS|--none>"
)]
pub(crate) struct LimitArgs {
    /// The semaphore
    #[arg(value_parser = connect::name)]
    name: Name,
    /// How many permits may be held at a time
    #[arg(value_parser = permits)]
    permits: Option<u32>,
    /// Remove the limit
    #[arg(long)]
    none: bool,
    /// The reason, for the log and for people who watch
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
}

fn permits(text: &str) -> std::result::Result<u32, String> {
    let permits = text.parse().ok().filter(|permits| *permits > 0);
    permits.ok_or_else(|| {
        "it is not a number of permits: write the name, then a whole number from 1 on, as in `fencepost limit pool 3`".to_owned()
    })
}

/// What every act of an administrator has.
#[derive(Debug, clap::Args)]
pub(crate) struct ActArgs {
    /// The reason, for the log and for the clients that lose something: they see its first 128 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

pub(crate) async fn break_lock(args: BreakArgs) -> Result {
    let client = args.act.server.connect().await?;
    let admin = client.admin().reason(&args.act.reason);
    let targets = match (&args.lock, args.grant) {
        (Some(lock), _) => targets_of(&client, lock, args.waive_rest).await?,
        (None, Some(grant)) if args.waive_rest => vec![(GrantId(grant), format!("the rest of grant {grant}"))],
        (None, Some(grant)) => vec![grant_target(&client, GrantId(grant)).await?],
        (None, None) => return Err(Failure::usage("name a lock, or a grant with --grant")),
    };
    let shown: Vec<String> = targets.iter().map(|(_, shown)| format!("  {shown}")).collect();
    let verb = if args.waive_rest { "waive" } else { "break" };
    confirm(&format!("This will {verb}:\n{}", shown.join("\n")), args.act.yes)?;
    for (grant, shown) in targets {
        match args.waive_rest {
            true => admin.waive_rest(grant).await?,
            false => admin.break_grant(grant).await?,
        }
        output::say(&format!("fencepost: {verb}: {}", output::printable(&shown)));
    }
    Ok(())
}

/// The grants that hold the lock, or that rest on it, each with a description.
async fn targets_of(client: &Client, lock: &Name, rests: bool) -> Result<Vec<(GrantId, String)>> {
    let explained = client.explain(lock.as_str()).await?;
    let AsOf { at, what } = &explained;
    if rests {
        let rest = |it: &fencepost_core::RestRecord| {
            (it.grant, format!("the rest of grant {}, {} left", it.grant.0, shown::left(it.until, at.stamp)))
        };
        let found: Vec<_> = what.rests.iter().map(rest).collect();
        return if found.is_empty() { Err(Failure::refused(format!("{lock} is not resting"))) } else { Ok(found) };
    }
    let holders: Vec<_> = holders_of_the_name(what).collect();
    let people = listing::people(client, holders.iter().filter_map(|it| it.holder.session)).await?;
    let target = |it: &&fencepost::HolderView| {
        let who = it
            .holder
            .session
            .map_or("a session that has ended".to_owned(), |id| people.who(id, it.holder.owner.as_ref()));
        let job = shown::job(job_of(&it.terms), None);
        let (token, takes) = (it.holder.token.0, shown::takes(it.holder.takes));
        let age = shown::age(at, it.holder.since);
        (
            it.holder.grant,
            format!("grant {} of {lock} ({takes}, token {token}), held by {who} for {age}{job}", it.holder.grant.0),
        )
    };
    let found: Vec<_> = holders.iter().map(target).collect();
    if found.is_empty() {
        let above = what.holders.iter().find_map(|it| it.covers_from.as_ref());
        let hint = match (above, what.rests.is_empty()) {
            (Some(above), _) => format!("it is covered by {above}: break that lock"),
            (None, false) => "it is resting: --waive-rest ends the rest".to_owned(),
            (None, true) => "there is nothing to break".to_owned(),
        };
        return Err(Failure::refused(format!("{lock} is not held; {hint}")));
    }
    Ok(found)
}

async fn grant_target(client: &Client, grant: GrantId) -> Result<(GrantId, String)> {
    let before = grant.0.checked_sub(1).filter(|before| *before > 0).map(GrantId);
    let page = client.grants("", before).await?;
    let found = page.what.rows.iter().find(|row| row.record.id == grant);
    let Some(GrantView { record, .. }) = found else {
        return Err(Failure::refused(format!(
            "there is no grant {}: it has ended or never existed; `fencepost locks` lists the held locks",
            grant.0
        )));
    };
    let people = listing::people(client, [record.session]).await?;
    let (names, mode) = shown::held(&record.held);
    let who = people.who(record.session, record.owner.as_ref());
    let age = shown::age(&page.at, record.granted_at);
    let job = shown::job(job_of(&record.terms), None);
    Ok((
        grant,
        format!("grant {} of {names} ({mode}, token {}), held by {who} for {age}{job}", grant.0, record.token.0),
    ))
}

pub(crate) async fn evict(args: EvictArgs) -> Result {
    let client = args.act.server.connect().await?;
    let (sessions, _) = listing::sessions(&client).await?;
    let ids = sessions.iter().map(|session| (session.id, shown::session_id(session.id)));
    let id: SessionId = by_beginning("session", &args.session, ids, "fencepost sessions")?;
    let session =
        sessions.iter().find(|session| session.id == id).expect("`by_beginning` returns an id from this list");
    let who = shown::client(&shown::metadata(session.metadata.as_bytes()));
    let (grants, waits) = (session.grants, session.waits);
    let shown = format!(
        "session {} ({who}), which holds {grants} locks and waits for {waits}",
        shown::short_session(session.id)
    );
    confirm(&format!("This will evict:\n  {shown}"), args.act.yes)?;
    client.admin().reason(&args.act.reason).evict(id).await?;
    output::say(&format!("fencepost: evicted: {}", output::printable(&shown)));
    Ok(())
}

pub(crate) async fn freeze(args: FreezeArgs) -> Result {
    let client = args.server.connect().await?;
    let admin = client.admin().reason(&args.reason);
    let id = match (&args.name, &args.prefix) {
        (Some(name), _) => admin.freeze_name(name.as_str()).await?,
        (None, Some(prefix)) => admin.freeze_prefix(prefix).await?,
        (None, None) => return Err(Failure::usage("give a name, or a prefix with --prefix")),
    };
    match args.output.output {
        Format::Table => output::line(&shown::freeze_id(id)),
        Format::Json => output::json(&json!({ "freeze": shown::freeze_id(id) })),
    }
}

pub(crate) async fn freezes(args: FreezesArgs) -> Result {
    let client = args.server.connect().await?;
    let AsOf { at, what: freezes } = client.freezes().await?;
    if args.output.output == Format::Json {
        return output::json(&freezes.iter().map(|it| fencepost_json::freeze(it, &at)).collect::<Vec<Value>>());
    }
    let row = |it: &FreezeRecord| {
        let (by, reason) = (it.by.as_str().to_owned(), it.reason.as_str().to_owned());
        let (since, age) = (shown::time(&at, it.since), shown::age(&at, it.since));
        [shown::short_freeze(it.id), shown::scope(&it.scope), since, age, by, reason]
    };
    let rows: Vec<[String; 6]> = freezes.iter().map(row).collect();
    output::table(["FREEZE", "WHAT", "SINCE", "FROZEN FOR", "BY", "REASON"], &rows, "fencepost: nothing is frozen")
}

pub(crate) async fn thaw(args: ThawArgs) -> Result {
    let client = args.server.connect().await?;
    let freezes = client.freezes().await?.what;
    let scope = match (&args.name, &args.prefix) {
        (Some(name), _) => Some(Scope::Name(name.clone())),
        (None, Some(prefix)) => Some(Scope::Prefix(prefix.as_bytes().into())),
        (None, None) => None,
    };
    let found: Vec<FreezeId> = match (&args.freeze, scope) {
        (Some(id), _) => {
            let ids = freezes.iter().map(|it| (it.id, shown::freeze_id(it.id)));
            vec![by_beginning("freeze", id, ids, "fencepost freezes")?]
        }
        (None, Some(scope)) => freezes.iter().filter(|it| it.scope == scope).map(|it| it.id).collect(),
        (None, None) => return Err(Failure::usage("give the id of a freeze, --name or --prefix")),
    };
    if found.is_empty() {
        return Err(Failure::refused("there is no such freeze: `fencepost freezes` lists them"));
    }
    for id in found {
        client.admin().reason(&args.reason).thaw(id).await?;
        output::say(&format!("fencepost: thawed {}", shown::short_freeze(id)));
    }
    Ok(())
}

pub(crate) async fn limit(args: LimitArgs) -> Result {
    let client = args.server.connect().await?;
    client.admin().reason(&args.reason).set_limit(args.name.as_str(), args.permits).await?;
    output::say(&match args.permits {
        Some(permits) => format!("fencepost: {} has {permits} permits", args.name),
        None => format!("fencepost: {} has no limit now", args.name),
    });
    Ok(())
}

/// The only item whose id starts with `beginning`.
fn by_beginning<Id>(what: &str, beginning: &str, ids: impl Iterator<Item = (Id, String)>, lister: &str) -> Result<Id> {
    let wanted = beginning.to_lowercase();
    if wanted.is_empty() || wanted.len() > 32 || !wanted.bytes().all(|it| it.is_ascii_hexdigit()) {
        let shown = shortened(beginning);
        return Err(Failure::usage(format!("{shown:?} is not an id: `{lister}` lists the ids, in hex")));
    }
    let mut found: Vec<Id> = ids.filter(|(_, id)| id.starts_with(&wanted)).map(|(id, _)| id).collect();
    match (found.pop(), found.is_empty()) {
        (Some(id), true) => Ok(id),
        (Some(_), false) => {
            Err(Failure::refused(format!("more than one {what} starts with {beginning}: give more digits")))
        }
        (None, _) => Err(Failure::refused(format!("there is no {what} {beginning}: `{lister}` lists them"))),
    }
}

/// Asks the user at the terminal. `Ok` means yes.
pub(crate) fn confirm(what: &str, yes: bool) -> Result {
    if yes {
        return Ok(());
    }
    let lines: Vec<String> = what.lines().map(output::printable).collect();
    output::say(&lines.join("\n"));
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("cannot ask for confirmation without a terminal: pass --yes to do it"));
    }
    let _ = write!(std::io::stderr(), "Go on? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::refused("nothing was done")),
    }
}
