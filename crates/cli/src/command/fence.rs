//! `fencepost fence`: prepares a store to check tokens, shows its marks, forgets old ones, and forgets the key of finished work.
//!
//! The guards (`fencepost_fence`) define and keep the marks; `stores/` connects to the stores. This file calls them and prints the
//! result.

use fencepost_core::{Name, shortened};
use fencepost_fence::{Forgotten, Installed};
use serde_json::json;

use crate::command::administer::confirm;
use crate::connect::{self, ServerArgs};
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
    Forget(ForgetArgs),
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
///
/// The keys of finished work stay: they are the record of what was done, and `fencepost fence forget` removes one.
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

/// Forget the key of finished work, so that it can be done again
///
/// For stores with `once`: Postgres, MySQL, MariaDB and SQLite. Asks first, unless you pass --yes.
#[derive(Debug, clap::Args)]
#[command(after_help = STORES)]
struct ForgetArgs {
    /// The address of the store
    #[arg(value_parser = stores::parse)]
    store: StoreAddress,
    /// The name of the lock that the work is done under
    #[arg(value_parser = connect::name)]
    name: Name,
    /// The key of the work
    key: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    match args.what {
        What::Init(args) => init(&args).await,
        What::Status(args) => status(&args).await,
        What::Gc(args) => gc(&args).await,
        What::Forget(args) => forget(&args).await,
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
            "keys": found.keys,
        }));
    }
    let row = [
        found.version.to_string(),
        found.names.to_string(),
        found.writes.to_string(),
        found.highest.0.to_string(),
        found.base.0.to_string(),
        found.keys.map_or_else(|| "-".to_owned(), |keys| keys.to_string()),
    ];
    output::table(["VERSION", "NAMES", "WRITES", "HIGHEST TOKEN", "BASE FLOOR", "KEYS"], &[row], "")?;
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

async fn forget(args: &ForgetArgs) -> Result {
    let (store, key) = (args.store.shown(), shortened(&args.key));
    if !args.store.has_once() {
        let why = "Postgres, MySQL, MariaDB and SQLite record keys of finished work; this store cannot, so it has none to forget";
        return Err(Failure::usage(why));
    }
    confirm(
        &format!("This will let the work with the key {key:?} under {} be done again, in {store}", args.name),
        args.yes,
    )?;
    let mut connected = args.store.connect().await?;
    let Some(token) = connected.forget(args.name.as_str(), &args.key).await? else {
        return Err(Failure::refused(format!(
            "{store} has no key {key:?} under {}: nothing was forgotten. Names and keys are compared byte by byte",
            args.name
        )));
    };
    if args.output.output == Format::Json {
        return output::json(&json!({ "name": args.name.as_str(), "key": args.key, "token": token.0 }));
    }
    output::say(&format!(
        "fencepost: {store}: forgot the key {key:?} under {}, recorded with token {}; its work can be done again",
        args.name, token.0
    ));
    Ok(())
}

fn say_caution(store: &StoreAddress) {
    if let Some(caution) = store.caution() {
        output::say(&format!("fencepost: {caution}"));
    }
}
