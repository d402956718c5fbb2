//! `fencepost transfer`: transfers leadership to another node, for example before maintenance of the leader.

use crate::command::members;
use crate::connect::ServerArgs;
use crate::failure::Result;
use crate::{output, shown};

/// Transfer leadership to another node
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node's name, or its id in hex [default: the node with the most of the log]
    node: Option<String>,
    /// The reason, for the log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    let client = args.server.connect().await?;
    let node = match &args.node {
        Some(node) => Some(members::find(&client, node).await?.node),
        None => None,
    };
    let leader = client.admin().reason(&args.reason).transfer_lead(node).await?;
    let known = members::find(&client, &shown::node_id(leader)).await;
    let name = known.map_or_else(|_| shown::node_id(leader), |member| members::call(&member));
    output::say(&format!("fencepost: {name} is the leader now"));
    Ok(())
}
