//! `fencepost members` and `fencepost member ...`: the nodes of the cluster, and changing which they are.

use fencepost::{Client, ClusterStatus, MemberRole, MemberStatus, NewMember};
use serde_json::{Value, json};

use crate::connect::ServerArgs;
use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::shown;

/// List the nodes of the cluster
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Add, promote and remove nodes of the cluster
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the nodes of the cluster
    List(ListArgs),
    /// Add a node as a learner; a node that is started with `serve --join` does that by itself
    Add {
        /// The node's id, in hex: it is in the log of its start
        node: String,
        /// What people call it
        #[arg(long)]
        name: String,
        /// Where its peers reach it
        #[arg(long, value_name = "HOST:PORT")]
        peer: String,
        /// Where clients reach it
        #[arg(long, value_name = "HOST:PORT")]
        client: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Give a learner that has caught up a vote
    Promote {
        /// Its name, or its id in hex
        node: String,
        /// The node that loses its vote in the same step
        #[arg(long, value_name = "NODE")]
        replaces: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take a node out for good; its id never comes back
    Remove {
        /// Its name, or its id in hex
        node: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(crate) async fn list(args: ListArgs) -> Result {
    let (builder, nodes) = args.server.builder()?;
    // The leader knows best. A cluster without one can still be looked at, as one of its nodes sees it.
    let client = match builder.clone().connect().await {
        Ok(client) => client,
        Err(_) => builder.connect_in_background()?,
    };
    let status = client.status().await.map_err(|error| crate::connect::unreachable(&nodes, error))?;
    match args.output.output {
        Format::Json => output::json(&status_json(&status)),
        Format::Table => {
            let rows: Vec<[String; 7]> = status.members.iter().map(row).collect();
            output::table(["NODE", "NAME", "ROLE", "LEADS", "CLIENTS", "PEERS", "LOG UP TO"], &rows, "")?;
            if status.leader.is_none() {
                output::say("fencepost: nobody leads at the moment: see whether a majority of the voters is up");
            }
            Ok(())
        }
    }
}

pub(crate) async fn run(Args { what }: Args) -> Result {
    match what {
        What::List(args) => list(args).await,
        What::Add { node, name, peer, client, server } => {
            let node = u64::from_str_radix(&node, 16).map_err(|_| {
                Failure::usage(format!("{node:?} is no id of a node: write it in hex, as its log says"))
            })?;
            let member = NewMember { node, name, peer_address: peer, client_address: client };
            server.connect().await?.admin().add_member(member).await?;
            output::say(&format!(
                "fencepost: node {} is a learner: `fencepost member promote` gives it a vote when it has caught up",
                shown::node_id(node)
            ));
            Ok(())
        }
        What::Promote { node, replaces, server } => {
            let client = server.connect().await?;
            let promoted = find(&client, &node).await?;
            let replaced = match replaces {
                Some(replaced) => Some(find(&client, &replaced).await?.node),
                None => None,
            };
            client.admin().promote_member(promoted.node, replaced).await?;
            output::say(&format!("fencepost: {} votes", call(&promoted)));
            Ok(())
        }
        What::Remove { node, server } => {
            let client = server.connect().await?;
            let removed = find(&client, &node).await?;
            client.admin().remove_member(removed.node).await?;
            output::say(&format!("fencepost: {} is out; stop it and delete its directory", call(&removed)));
            Ok(())
        }
    }
}

/// The member with this name or id.
pub(crate) async fn find(client: &Client, node: &str) -> Result<MemberStatus> {
    let members = client.status().await?.members;
    let id = u64::from_str_radix(node, 16).ok();
    let found = members.iter().find(|it| it.name == node).or_else(|| members.iter().find(|it| Some(it.node) == id));
    found.cloned().ok_or_else(|| {
        let known: Vec<String> = members.iter().map(call).collect();
        Failure::refused(format!("there is no member {node:?}: there are {}", known.join(", ")))
    })
}

pub(crate) fn call(member: &MemberStatus) -> String {
    match member.name.as_str() {
        "" => shown::node_id(member.node),
        name => format!("{name} ({})", shown::node_id(member.node)),
    }
}

fn role(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Voter => "voter",
        MemberRole::Learner => "learner",
        MemberRole::Leaving => "leaving",
        _ => "unknown",
    }
}

fn row(member: &MemberStatus) -> [String; 7] {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    [
        shown::node_id(member.node),
        or_dash(&member.name),
        role(member.role).to_owned(),
        if member.leads { "yes" } else { "-" }.to_owned(),
        or_dash(&member.client_address),
        or_dash(&member.peer_address),
        member.matched_index.map_or("-".to_owned(), |index| index.to_string()),
    ]
}

fn status_json(status: &ClusterStatus) -> Value {
    let member = |member: &MemberStatus| {
        json!({
            "node": shown::node_id(member.node),
            "name": member.name,
            "role": role(member.role),
            "leads": member.leads,
            "client_address": member.client_address,
            "peer_address": member.peer_address,
            "matched_index": member.matched_index,
        })
    };
    json!({
        "cluster": format!("{:032x}", status.cluster),
        "term": status.term,
        "leader": status.leader.map(shown::node_id),
        "applied_index": status.applied.index,
        "version": status.version,
        "members": status.members.iter().map(member).collect::<Vec<Value>>(),
    })
}
