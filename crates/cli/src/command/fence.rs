//! `fencepost fence`: prepares a store so that it checks tokens, looks at its marks, and tidies them up.
//!
//! What the marks mean and how they are kept is the business of the guards (`fencepost_fence`), and how a store is reached that of
//! `stores.rs`. Here it is said what was done.

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
    /// Which store
    #[arg(value_parser = stores::parse)]
    store: StoreAddress,
    /// Print the SQL instead, for whoever may run it
    #[arg(long)]
    print: bool,
}

/// Say what a store's marks say
#[derive(Debug, clap::Args)]
#[command(after_help = STORES)]
struct StatusArgs {
    /// Which store
    #[arg(value_parser = stores::parse)]
    store: StoreAddress,
    #[command(flatten)]
    output: OutputArgs,
}

/// Forget marks that are older than every living lock of the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = STORES)]
struct GcArgs {
    /// Which store
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
        let script =
            args.store.script().ok_or_else(|| Failure::usage("this store needs no SQL: leave --print away"))?;
        return output::line(script.trim_end());
    }
    let said = match args.store.connect().await?.install().await? {
        Installed::New => format!("created {}", args.store.creates()),
        Installed::Upgraded { from, to } => {
            format!("upgraded {} from version {from} to {to}; the marks stay", args.store.creates())
        }
        Installed::AlreadyThere => "this version was there already, nothing was changed".to_owned(),
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
            "{} has seen token {} and this cluster has given none above {}: it belongs to another cluster. Name that one with \
             --server",
            args.store.shown(),
            seen.highest.0,
            given.0
        )));
    }
    // No token below the oldest living one can come from somebody who holds a lock.
    let Forgotten { names, base } = store.forget_below(cluster.oldest_live_token).await?;
    if args.output.output == Format::Json {
        return output::json(&json!({ "names_forgotten": names, "base_floor": base.0 }));
    }
    output::say(&format!(
        "fencepost: {}: the marks of {names} names are forgotten, and no token below {} is let in under any name",
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
