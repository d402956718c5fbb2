//! `fencepost members` and `fencepost member ...`: list, add, promote and remove nodes of the cluster.

use std::time::Instant;

use fencepost::{Client, Error, MemberLag, MemberRole, MemberState, MemberStatus, NewMember};
use fencepost_core::shortened;
use fencepost_json::{member_role as role, silent_ms};
use fencepost_server::{CLIENT_PORT, PEER_PORT};

use crate::command::administer;
use crate::connect::{self, ServerArgs};
use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::{duration, shown};

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
    /// Add a node as a learner; `fencepost serve --join` does this by itself
    Add {
        /// The node's id, in hex; the node logs it when it starts
        node: String,
        /// The node's name
        #[arg(long)]
        name: String,
        /// The node's address for other nodes [default port: 7422]
        #[arg(long, value_name = "HOST:PORT", value_parser = peer_address)]
        peer: String,
        /// The node's address for clients [default port: 7420]
        #[arg(long, value_name = "HOST:PORT", value_parser = client_address)]
        client: String,
        #[command(flatten)]
        why: WhyArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Make a voter of a learner that has caught up
    Promote {
        /// The node's name, or its id in hex
        node: String,
        /// A node that loses its vote in the same step
        #[arg(long, value_name = "NODE")]
        replaces: Option<String>,
        #[command(flatten)]
        why: WhyArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a node for good; its id cannot be used again. Shows what it will remove and asks first, unless you pass --yes
    Remove {
        /// The node's name, or its id in hex
        node: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        why: WhyArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, clap::Args)]
struct WhyArgs {
    /// The reason, for the log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

fn peer_address(text: &str) -> std::result::Result<String, String> {
    connect::node_address(text, PEER_PORT)
}

fn client_address(text: &str) -> std::result::Result<String, String> {
    connect::node_address(text, CLIENT_PORT)
}

pub(crate) async fn list(args: ListArgs) -> Result {
    let (builder, nodes) = args.server.builder()?;
    // Does not wait for a leader: without one, a node still reports its own view.
    let client = builder.connect_in_background()?;
    let (begun, timeout) = (Instant::now(), args.server.timeout()?.unwrap_or_default());
    let status = loop {
        match client.status().await {
            Err(Error::Failed(_)) if begun.elapsed() < timeout => {}
            answered => break answered.map_err(|error| connect::unreachable(&nodes, error))?,
        }
    };
    match args.output.output {
        Format::Json => output::json(&fencepost_json::cluster(&status)),
        Format::Table => {
            let rows: Vec<[String; 11]> = status.members.iter().map(row).collect();
            let heading = [
                "NODE",
                "NAME",
                "ROLE",
                "LEADS",
                "STATE",
                "LAG",
                "VERSION",
                "FORMATS",
                "CLIENTS",
                "PEERS",
                "LOG UP TO",
            ];
            output::table(heading, &rows, "")?;
            output::say(&format!("fencepost: the cluster uses format version {}", status.format_version));
            if let Some(said) = &status.without_leader {
                output::say(&format!("fencepost: {}", output::printable(said)));
            } else if !status.is_of_leader() {
                let asked = status.members.iter().find(|it| it.node == status.node);
                let asked = asked.map_or_else(|| shown::node_id(status.node), call);
                output::say(&format!(
                    "fencepost: this is only the view of {asked}, because the leader does not answer; check that it can be \
                     reached from here"
                ));
            }
            Ok(())
        }
    }
}

pub(crate) async fn run(Args { what }: Args) -> Result {
    match what {
        What::List(args) => list(args).await,
        What::Add { node, name, peer, client, why, server } => {
            let node = u64::from_str_radix(&node, 16).map_err(|_| {
                Failure::usage(format!(
                    "{:?} is not a node's id: write it in hex, as in the node's log",
                    shortened(&node)
                ))
            })?;
            let member = NewMember { node, name, peer_address: peer, client_address: client };
            server.connect().await?.admin().reason(why.reason).add_member(member).await?;
            output::say(&format!(
                "fencepost: node {} is a learner: when it has caught up, `fencepost member promote` makes it a voter",
                shown::node_id(node)
            ));
            Ok(())
        }
        What::Promote { node, replaces, why, server } => {
            let client = server.connect().await?;
            let promoted = find(&client, &node).await?;
            let replaced = match replaces {
                Some(replaced) => Some(find(&client, &replaced).await?.node),
                None => None,
            };
            client.admin().reason(why.reason).promote_member(promoted.node, replaced).await?;
            output::say(&format!("fencepost: {} is a voter now", call(&promoted)));
            Ok(())
        }
        What::Remove { node, yes, why, server } => remove(&server.connect().await?, &node, &why.reason, yes).await,
    }
}

async fn remove(client: &Client, node: &str, reason: &str, yes: bool) -> Result {
    let members = client.status().await?.members;
    let removed = find_in(&members, node)?;
    let is_voter = |member: &&MemberStatus| member.role == MemberRole::Voter;
    let voters = members.iter().filter(is_voter).count() - usize::from(is_voter(&&removed));
    let facts = format!(
        "{}, {}, {}",
        role(removed.role),
        shown_state(&removed),
        if removed.leads { "leads" } else { "follows" }
    );
    let warning = match voters {
        0 => "no voter would be left, so this will be refused".to_owned(),
        1 => "one voter is left, and if it fails, no lock is granted".to_owned(),
        2 => "2 voters are left, and both must run".to_owned(),
        voters => format!("{voters} voters are left, of which {} must run", voters / 2 + 1),
    };
    administer::confirm(
        &format!("This will remove for good:\n  {}: {facts}\nAfterwards {warning}.", call(&removed)),
        yes,
    )?;
    client.admin().reason(reason).remove_member(removed.node).await?;
    let data = "delete its data directory. To let the machine join again, start it with an empty one and --join";
    let next = match removed.state {
        _ if removed.leads => format!("Another node takes the lead. Stop this one, and {data}"),
        MemberState::Up => format!("It still runs, and refuses every client: stop it, and {data}"),
        _ => format!("It does not answer: make sure that it does not start again, and {data}"),
    };
    output::say(&format!("fencepost: {} is removed. {next}", call(&removed)));
    Ok(())
}

/// The member with this name or id.
pub(crate) async fn find(client: &Client, node: &str) -> Result<MemberStatus> {
    find_in(&client.status().await?.members, node)
}

fn find_in(members: &[MemberStatus], node: &str) -> Result<MemberStatus> {
    let id = u64::from_str_radix(node, 16).ok();
    let found = members.iter().find(|it| it.name == node).or_else(|| members.iter().find(|it| Some(it.node) == id));
    found.cloned().ok_or_else(|| {
        let known: Vec<String> = members.iter().map(call).collect();
        Failure::refused(format!("there is no member {:?}: the members are {}", shortened(node), known.join(", ")))
    })
}

/// How messages name a member: `n1 (00000000002a)`, or the id alone.
pub(crate) fn call(member: &MemberStatus) -> String {
    match member.name.as_str() {
        "" => shown::node_id(member.node),
        name => format!("{name} ({})", shown::node_id(member.node)),
    }
}

fn shown_state(member: &MemberStatus) -> String {
    match silent_ms(member) {
        Some(ms) => format!("silent for {}", duration::show(ms)),
        None if member.state == MemberState::Up => "up".to_owned(),
        None => "-".to_owned(),
    }
}

fn shown_lag(member: &MemberStatus) -> String {
    let lag = match member.lag {
        None => "-".to_owned(),
        Some(MemberLag { entries: 0, .. }) => "0".to_owned(),
        Some(MemberLag { entries: 1, time }) => format!("1 entry, {}", duration::show(time.as_millis() as u64)),
        Some(MemberLag { entries, time }) => format!("{entries} entries, {}", duration::show(time.as_millis() as u64)),
    };
    if member.gets_snapshot { format!("{lag}, gets a snapshot") } else { lag }
}

/// `1`, or `1 to 3`.
fn shown_formats(member: &MemberStatus) -> String {
    match member.known_formats {
        None => "-".to_owned(),
        Some((oldest, newest)) if oldest == newest => newest.to_string(),
        Some((oldest, newest)) => format!("{oldest} to {newest}"),
    }
}

fn row(member: &MemberStatus) -> [String; 11] {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    [
        shown::node_id(member.node),
        or_dash(&member.name),
        role(member.role).to_owned(),
        if member.leads { "yes" } else { "-" }.to_owned(),
        shown_state(member),
        shown_lag(member),
        or_dash(member.version.as_deref().unwrap_or_default()),
        shown_formats(member),
        or_dash(&member.client_address),
        or_dash(&member.peer_address),
        member.matched_index.map_or("-".to_owned(), |index| index.to_string()),
    ]
}
