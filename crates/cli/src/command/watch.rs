//! `fencepost watch`: prints events as they happen, one line each.
//!
//! The watch is ordered and without gaps; the client library resumes it after a leader change. This file only prints, and looks up the
//! clients of sessions that were open before the watch began.

use std::collections::BTreeMap;

use fencepost::{Client, Event, Position, PositionedEvent, SessionId};
use fencepost_core::Metadata;
use fencepost_json::event::{event as event_json, facts};
use serde_json::Value;

use crate::connect::ServerArgs;
use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::shown;

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
    let time = wall_clock_ms.map_or("-".to_owned(), fencepost_json::rfc_3339);
    format!("{position:<10}  {time:<24}  {:<14}  {}", event.kind(), parts.join("  "))
}
