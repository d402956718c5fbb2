//! `fencepost watch`: prints events as they happen, one line each.
//!
//! The watch is ordered and without gaps; the client library resumes it after a leader change. This file only prints, and looks up the
//! clients of sessions that were open before the watch began.

use std::collections::BTreeMap;

use fencepost::{Client, Event, Held, JobFact, JobKey, Name, Position, PositionedEvent, SessionId};
use fencepost_core::{ActFacts, Metadata, OwnerName, RequestFacts};
use serde_json::{Map, Value, json};

use crate::connect::ServerArgs;
use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::{shown, wall_time};

/// Sessions whose client is remembered. Each has at most 4 KiB of metadata.
const CLIENTS_MAX: usize = 10_000;

/// Print events as they happen, one line each
///
/// The first column is the event's position, the second the leader's wall clock. `--after POSITION` prints every later event, without a gap or a repeat, or fails if
/// the events are no longer kept. Events about sessions come with every prefix. Use it to observe, not to decide: when you
/// read an event, the lock may already have another holder.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only names with this prefix
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Only events after this position [default: from now on]
    #[arg(long, value_name = "INDEX.ORDINAL", value_parser = position)]
    after: Option<Position>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn position(text: &str) -> std::result::Result<Position, String> {
    let parts = text.split_once('.').and_then(|(index, ordinal)| Some((index.parse().ok()?, ordinal.parse().ok()?)));
    let (index, ordinal) = parts.ok_or("not a position: write one from the first column, like 17.0")?;
    Ok(Position { index, ordinal })
}

pub(crate) async fn run(args: Args) -> Result {
    let client = args.server.connect().await?;
    let mut request = client.watch(args.prefix);
    if let Some(after) = args.after {
        request = request.after(after);
    }
    let mut watch = request.start().await?;
    let Position { index, .. } = watch.position();
    output::say(&format!("fencepost: watching events after entry {index}"));
    let mut clients = Clients { client, known: BTreeMap::new() };
    while let Some(event) = watch.next().await {
        let event = event?;
        let metadata = clients.behind(&event.event).await;
        match args.output.output {
            Format::Table => output::line(&output::printable(&line(&event, metadata)))?,
            Format::Json => output::json_line(&event_json(&event, metadata))?,
        }
    }
    Err(Failure::failed("the watch ended: start again with --after and the last position"))
}

/// The clients behind the sessions in events.
struct Clients {
    client: Client,
    /// What each session says about itself; `None` if it ended before it was looked up.
    known: BTreeMap<SessionId, Option<Metadata>>,
}

impl Clients {
    /// What the session of an event says about itself, as far as that is known. Asks the cluster once for each session that was open
    /// before the watch began.
    async fn behind(&mut self, event: &Event) -> Option<&Metadata> {
        let session = facts(event).session?;
        if self.known.len() >= CLIENTS_MAX && !self.known.contains_key(&session) {
            self.known.clear();
        }
        if let Event::SessionOpened { metadata, .. } = event {
            self.known.insert(session, Some(metadata.clone()));
        } else if !self.known.contains_key(&session) {
            // The watch goes on if the cluster cannot be asked: the client is shown as not known.
            let found = self.client.find_session(session).await.ok().and_then(|found| found.what);
            self.known.insert(session, found.map(|found| found.metadata));
        }
        self.known.get(&session)?.as_ref()
    }
}

/// The facts of an event, with the same words for people and programs.
#[derive(Default)]
struct Facts<'a> {
    names: Vec<&'a Name>,
    held: Option<&'a Held>,
    session: Option<SessionId>,
    owner: Option<&'a OwnerName>,
    grant: Option<u64>,
    token: Option<u64>,
    /// Facts that only this kind of event has: a text, a number, or null for none.
    more: Vec<(&'static str, Value)>,
}

fn facts(event: &Event) -> Facts<'_> {
    let asked = |request: &'_ RequestFacts| -> (SessionId, Option<u64>) {
        (request.session, request.converts.map(|grant| grant.0))
    };
    match event {
        Event::SessionOpened { session, principal, .. } => {
            Facts { session: Some(*session), more: vec![("principal", principal.as_str().into())], ..Facts::default() }
        }
        Event::SessionEnded { session, how } => {
            Facts { session: Some(*session), more: vec![("how", shown::session_end(how).into())], ..Facts::default() }
        }
        Event::Queued { request, arrival } => {
            let (session, grant) = asked(request);
            Facts {
                grant,
                held: Some(&request.wants),
                session: Some(session),
                owner: request.owner.as_ref(),
                more: vec![("arrival", arrival.0.into())],
                ..Facts::default()
            }
        }
        Event::Granted { request, grant, token, count } => Facts {
            held: Some(&request.wants),
            session: Some(request.session),
            owner: request.owner.as_ref(),
            grant: Some(grant.0),
            token: Some(token.0),
            more: if *count > 1 { vec![("count", json!(count))] } else { Vec::new() },
            ..Facts::default()
        },
        Event::NotGranted { request, .. } => {
            let (session, grant) = asked(request);
            Facts {
                grant,
                held: Some(&request.wants),
                session: Some(session),
                owner: request.owner.as_ref(),
                ..Facts::default()
            }
        }
        Event::Ended { grant, token, session, owner, held, count_left, how, .. } => {
            let mut more = vec![("how", shown::grant_end(how).into())];
            if *count_left > 0 {
                more.push(("count_left", json!(count_left)));
            }
            Facts {
                held: Some(held),
                session: Some(*session),
                owner: owner.as_ref(),
                grant: Some(grant.0),
                token: Some(token.0),
                more,
                ..Facts::default()
            }
        }
        Event::Converted { grant, token, session, owner, held } => Facts {
            held: Some(held),
            session: Some(*session),
            owner: owner.as_ref(),
            grant: Some(grant.0),
            token: Some(token.0),
            ..Facts::default()
        },
        Event::RestEnded { grant, names, .. } | Event::Contended { grant, names } => {
            Facts { names: names.iter().collect(), grant: Some(grant.0), ..Facts::default() }
        }
        Event::ValueSet { grant, name, value } => Facts {
            names: vec![name],
            grant: Some(grant.0),
            more: vec![("value", String::from_utf8_lossy(value.as_bytes()).into())],
            ..Facts::default()
        },
        Event::Job { name, key, what } => job_facts(name, key, what),
        Event::JobsFill { name, records, bytes } => Facts {
            names: name.iter().collect(),
            more: vec![
                ("bound_of", if name.is_some() { "this name" } else { "the whole cluster" }.into()),
                ("records", (*records).into()),
                ("bytes", (*bytes).into()),
                (
                    "consequence",
                    "acquires with a job key are refused at the bound: forget jobs, or keep them for less time".into(),
                ),
            ],
            ..Facts::default()
        },
        Event::Administered { by, reason, act } => {
            let mut facts = act_facts(act);
            facts.more.push(("by", by.as_str().into()));
            facts.more.push(("reason", reason.as_str().into()));
            facts
        }
    }
}

fn job_facts<'a>(name: &'a Name, key: &JobKey, what: &JobFact) -> Facts<'a> {
    let mut facts = Facts { names: vec![name], more: vec![("key", key.as_str().into())], ..Facts::default() };
    match what {
        JobFact::Begun { grant, attempt } | JobFact::Checkpointed { grant, attempt } => {
            facts.grant = Some(grant.0);
            facts.more.push(("attempt", (*attempt).into()));
        }
        JobFact::Completed { token, succeeded } => {
            facts.token = token.map(|token| token.0);
            facts.more.push(("succeeded", (*succeeded).into()));
        }
    }
    facts
}

fn act_facts(act: &ActFacts) -> Facts<'_> {
    match act {
        ActFacts::Broke { grant, names } | ActFacts::WaivedRest { grant, names } => {
            Facts { names: names.iter().collect(), grant: Some(grant.0), ..Facts::default() }
        }
        ActFacts::Evicted(session) => Facts { session: Some(*session), ..Facts::default() },
        ActFacts::Froze { freeze, scope } | ActFacts::Thawed { freeze, scope } => Facts {
            more: vec![("scope", shown::scope(scope).into()), ("freeze", shown::freeze_id(*freeze).into())],
            ..Facts::default()
        },
        ActFacts::LimitChanged { name, limit } => Facts {
            names: vec![name],
            more: vec![("limit", limit.map(|limit| limit.get()).into())],
            ..Facts::default()
        },
        ActFacts::CompletedJob { name, key } | ActFacts::ForgotJob { name, key } => {
            Facts { names: vec![name], more: vec![("key", key.as_str().into())], ..Facts::default() }
        }
        ActFacts::AllowedJobs => Facts::default(),
    }
}

/// `17.0  2026-11-18T16:02:03.123Z  granted  nightly (exclusive)  token=3  session=3fa2...  client="backup.sh, ann@db-1, pid 17"`
fn line(event: &PositionedEvent, metadata: Option<&Metadata>) -> String {
    let PositionedEvent { position, wall_clock_ms, event, .. } = event;
    let facts = facts(event);
    let mut parts = Vec::new();
    match facts.held {
        Some(held) => {
            let (names, modes) = shown::held(held);
            parts.push(format!("{names} ({modes})"));
        }
        None if facts.names.is_empty() => {}
        None => parts.push(facts.names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")),
    }
    parts.extend(facts.token.map(|token| format!("token={token}")));
    parts.extend(facts.grant.filter(|grant| facts.token != Some(*grant)).map(|grant| format!("grant={grant}")));
    parts.extend(facts.session.map(|session| format!("session={}", shown::short_session(session))));
    let client = metadata
        .map(|metadata| shown::client(&shown::metadata(metadata.as_bytes())))
        .filter(|client| !client.is_empty());
    parts.extend(client.map(|client| format!("client={client:?}")));
    parts.extend(facts.owner.map(|owner| format!("owner={:?}", owner.as_str())));
    let said = facts.more.iter().filter(|(_, value)| value != "");
    parts.extend(said.map(|(key, value)| match value {
        Value::String(text) if text.contains(' ') => format!("{key}={text:?}"),
        Value::String(text) => format!("{key}={text}"),
        Value::Null => format!("{key}=none"),
        other => format!("{key}={other}"),
    }));
    let position = format!("{}.{}", position.index, position.ordinal);
    let time = wall_clock_ms.map_or("-".to_owned(), wall_time::rfc_3339);
    format!("{position:<10}  {time:<24}  {:<14}  {}", event.kind(), parts.join("  "))
}

fn event_json(event: &PositionedEvent, metadata: Option<&Metadata>) -> Value {
    let PositionedEvent { position, stamp, wall_clock_ms, event } = event;
    let facts = facts(event);
    let names: Vec<&str> = match facts.held {
        Some(held) => held.names().map(Name::as_str).collect(),
        None => facts.names.iter().map(|name| name.as_str()).collect(),
    };
    let mut json = Map::new();
    json.insert("position".to_owned(), format!("{}.{}", position.index, position.ordinal).into());
    json.insert("time".to_owned(), wall_clock_ms.map(wall_time::rfc_3339).into());
    json.insert("stamp_ms".to_owned(), stamp.0.into());
    json.insert("event".to_owned(), event.kind().into());
    json.insert("names".to_owned(), names.into());
    if let Some(held) = facts.held {
        json.insert("locks".to_owned(), shown::held_json(held));
    }
    let optional = [
        ("session", facts.session.map(|session| json!(shown::session_id(session)))),
        ("client", metadata.map(|metadata| shown::client_json(&shown::metadata(metadata.as_bytes())))),
        ("owner", facts.owner.map(|owner| json!(owner.as_str()))),
        ("grant", facts.grant.map(Value::from)),
        ("token", facts.token.map(Value::from)),
    ];
    json.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    json.extend(facts.more.into_iter().map(|(key, value)| (key.to_owned(), value)));
    json.into()
}
