//! `fencepost config view`: every value in force, and where it came from.
//!
//! It prints the paths of keys, never their content. `settings.rs` owns the values; this file only prints and checks them.

use std::path::PathBuf;

use fencepost::settings::Setting;
use serde_json::{Value, json};

use crate::failure::Result;
use crate::output::{self, Format, OutputArgs};
use crate::settings::{self, ClientFlags, NodeFlags, Settings};

/// Show the configuration
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print every value, and where it came from: flag, environment, file or default
    View(ViewArgs),
}

#[derive(Debug, clap::Args)]
struct ViewArgs {
    /// A TOML file with the same keys as the flags [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: NodeFlags,
    #[command(flatten)]
    client: ClientFlags,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(Args { what: What::View(args) }: Args) -> Result {
    let settings = Settings::gather(&args.flags, &args.client, args.config.as_deref())?;
    for (name, hint) in settings::unknown_variables() {
        output::say(&format!("fencepost: {name} is set, but there is no such setting{hint}"));
    }
    let rows = settings.all.iter();
    match args.output.output {
        Format::Json => {
            let row =
                |it: &Setting| json!({ "key": it.name, "value": settings::json(it), "source": it.source.to_string() });
            output::json(&rows.map(row).collect::<Vec<Value>>())?;
        }
        Format::Table => {
            let shown = |value: &str| if value.is_empty() { "-".to_owned() } else { value.to_owned() };
            let rows: Vec<[String; 3]> =
                rows.map(|it| [it.name.to_owned(), shown(&it.value), it.source.to_string()]).collect();
            output::table(["KEY", "VALUE", "FROM"], &rows, "")?;
        }
    }
    // Checked after printing, so that the user sees the wrong value in the table.
    settings.node_config()?;
    settings.client().map(drop)
}
