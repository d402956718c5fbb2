//! The `fencepost` command: runs nodes, runs commands under a lock, looks on and administers.
//!
//! A thin layer: it reads what was typed, asks the server library or the client library, and prints what came of it. It
//! decides nothing about locks. One file a command, in `command/`.

mod command;
mod duration;
mod failure;
mod logs;
mod output;
mod settings;

use std::process::ExitCode;

use clap::Parser;

use crate::command::{completion, config, dev, serve};
use crate::failure::{EXIT_CODES, Failure, Result};

/// Locks with fencing tokens that stay correct when clients don't
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, after_help = EXIT_CODES, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Dev(dev::Args),
    Serve(serve::Args),
    Config(config::Args),
    Completion(completion::Args),
}

fn main() -> ExitCode {
    // Wrong usage ends here, with exit code 2.
    let arguments = Arguments::parse();
    match carry_out(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            if !message.is_empty() {
                output::say(&format!("fencepost: {message}"));
            }
            ExitCode::from(code)
        }
    }
}

fn carry_out(command: Command) -> Result {
    // One thread is what the server means to have, and all that a client needs.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Dev(args) => dev::run(args).await,
            Command::Serve(args) => serve::run(args).await,
            Command::Config(args) => config::run(args),
            Command::Completion(args) => completion::run(&args),
        }
    })
}
