//! `fencepost fence`: prepares a store to check tokens, shows its marks, and forgets old ones.
//!
//! The guards (`fencepost_fence`) define and keep the marks; `stores/` connects to the stores. This file calls them and prints the
//! result.

use fencepost_fence::{Forgotten, Installed};
use serde_json::json;

use crate::connect::ServerArgs;
use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::stores::{self, StoreAddress};

const STORES: &str = "\
Stores:
  postgres://USER@HOST/DATABASE
  mysql://USER@HOST/DATABASE     MySQL and MariaDB
  sqlite:FILE
  file:DIRECTORY                 files on this host, with their marks in that directory
  redis://HOST/                  for efficiency only: a fail-over can lose the marks
The password is read from FENCEPOST_STORE_PASSWORD.";

/// Make a store check fencing tokens
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Init(InitArgs),
    Status(StatusArgs),
    Gc(GcArgs),
}

/// Create or upgrade what the guard needs in a store
#[derive(Debug, clap::Args)]
#[command(after_help = STORES)]
struct InitArgs {
    /// The address of the store
    #[arg(value_parser = stores::parse)]
    store: StoreAddress,
    /// Only print the SQL, for an administrator to run
    #[arg(long)]
    print: bool,
}

/// Show the guard's version, how many marks it has, and the highest token
#[derive(Debug, clap::Args)]
#[command(after_help = STORES)]
struct StatusArgs {
    /// The address of the store
    #[arg(value_parser = stores::parse)]
    store: StoreAddress,
    #[command(flatten)]
    output: OutputArgs,
}

/// Forget marks that are older than every live lock of the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = STORES)]
struct GcArgs {
    /// The address of the store
    #[arg(value_parser = stores::parse)]
    store: StoreAddress,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    match args.what {
        What::Init(args) => init(&args).await,
        What::Status(args) => status(&args).await,
        What::Gc(args) => gc(&args).await,
    }
}

async fn init(args: &InitArgs) -> Result {
    if args.print {
        let script = args.store.script().ok_or_else(|| Failure::usage("this store needs no SQL: leave out --print"))?;
        return output::line(script.trim_end());
    }
    let said = match args.store.connect().await?.install().await? {
        Installed::New => format!("created {}", args.store.creates()),
        Installed::Upgraded { from, to } => {
            format!("upgraded {} from version {from} to {to}; the marks are kept", args.store.creates())
        }
        Installed::AlreadyThere => "this version is already installed; nothing was changed".to_owned(),
    };
    output::say(&format!("fencepost: {}: {said}", args.store.shown()));
    say_caution(&args.store);
    Ok(())
}

async fn status(args: &StatusArgs) -> Result {
    let found = args.store.connect().await?.status().await?;
    if args.output.output == Format::Json {
        return output::json(&json!({
            "version": found.version,
            "names": found.names,
            "writes": found.writes,
            "highest_token": found.highest.0,
            "base_floor": found.base.0,
        }));
    }
    let row = [
        found.version.to_string(),
        found.names.to_string(),
        found.writes.to_string(),
        found.highest.0.to_string(),
        found.base.0.to_string(),
    ];
    output::table(["VERSION", "NAMES", "WRITES", "HIGHEST TOKEN", "BASE FLOOR"], &[row], "")?;
    say_caution(&args.store);
    Ok(())
}

// Rule: fence-gc
async fn gc(args: &GcArgs) -> Result {
    let mut store = args.store.connect().await?;
    let seen = store.status().await?;
    let cluster = args.server.connect().await?.status().await?;
    let given = cluster.counts.last_token;
    if seen.highest > given {
        return Err(Failure::refused(format!(
            "{} has seen token {}, but this cluster has given no token above {}: the store belongs to another cluster. Name that \
             cluster with --server",
            args.store.shown(),
            seen.highest.0,
            given.0
        )));
    }
    // No holder of a lock has a token below the oldest live one.
    let Forgotten { names, base } = store.forget_below(cluster.oldest_live_token).await?;
    if args.output.output == Format::Json {
        return output::json(&json!({ "names_forgotten": names, "base_floor": base.0 }));
    }
    output::say(&format!(
        "fencepost: {}: forgot the marks of {names} names; tokens below {} are now refused for every name",
        args.store.shown(),
        base.0
    ));
    Ok(())
}

fn say_caution(store: &StoreAddress) {
    if let Some(caution) = store.caution() {
        output::say(&format!("fencepost: {caution}"));
    }
}
