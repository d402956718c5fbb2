//! `fencepost sessions`: lists the live sessions and their clients.

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
    if args.output.output == Format::Json {
        let row = |session: &fencepost::SessionView| {
            let row = json!({
                "session": shown::session_id(session.id),
                "principal": session.principal.as_str(),
                "client": shown::client_json(&shown::metadata(session.metadata.as_bytes())),
                "grants": session.grants,
                "waits": session.waits,
                "ttl_ms": session.ttl.millis().get(),
                "remaining_ms": session.deadline.0.saturating_sub(at.stamp.0),
            });
            shown::with_since(row, &at, session.opened_at)
        };
        return output::json(&sessions.iter().map(row).collect::<Vec<Value>>());
    }
    let row = |session: &fencepost::SessionView| {
        [
            shown::short_session(session.id),
            shown::client(&shown::metadata(session.metadata.as_bytes())),
            session.grants.to_string(),
            session.waits.to_string(),
            duration::show(session.ttl.millis().get()),
            shown::age(&at, session.opened_at),
            shown::left(session.deadline, at.stamp),
        ]
    };
    let rows: Vec<[String; 7]> = sessions.iter().map(row).collect();
    let heading = ["SESSION", "CLIENT", "HOLDS", "WAITS", "TTL", "OPEN FOR", "ENDS IN"];
    output::table(heading, &rows, "fencepost: there are no sessions")
}
