//! The `fencepost` command: runs nodes, runs commands under a lock, shows locks and administers them.
//!
//! A thin layer: it parses the arguments, calls the server library or the client library, and prints the result. It
//! decides nothing about locks. Each command has its own file in `command/`.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `main.rs` | the list of commands, and the start of the one that the user typed |
//! | `command/mod.rs` | the list of the command modules |
//! | `command/dev.rs` | `dev`: a node or a small cluster in this process, to try things out |
//! | `command/serve.rs` | `serve`: one node of a cluster |
//! | `command/run.rs` | `run`: a command that runs only while a lock is held |
//! | `command/run/request.rs` | what `run` asks for: locks of either tier, permits, or a job |
//! | `command/run/once.rs`, `command/run/period.rs` | `run --once`: the attempt and the completion, and the keys of periods |
//! | `command/run/job_files.rs`, `command/run/checkpoints.rs` | the files and the socket that the command of a job gets |
//! | `command/checkpoint.rs` | `checkpoint`: the other end of that socket |
//! | `command/run/supervise.rs` | the command itself: its process group, its environment, and its end with the lock |
//! | `command/exec.rs` | `become-command`: starts a command that dies with its parent; for `run` and `demo` |
//! | `command/locks.rs`, `command/sessions.rs` | `locks`, `sessions`: lists of locks and sessions |
//! | `command/jobs.rs` | `jobs`: a list of jobs |
//! | `command/job.rs` | `job show`, `complete`, `forget`, `allow`: one job, and what an administrator changes |
//! | `command/job/wait.rs`, `command/job/check.rs` | `job wait`, and `job check` for monitors |
//! | `command/describe.rs`, `command/why.rs` | `describe`, `why`: one lock, in tables and in sentences |
//! | `command/watch.rs`, `command/top.rs` | `watch`, `top`: events as they happen, and a live screen |
//! | `command/administer.rs` | `break`, `evict`, `freeze`, `freezes`, `thaw`, `limit`: what an administrator changes |
//! | `command/members.rs`, `command/transfer.rs` | `members`, `member`, `transfer`: the nodes, and which of them leads |
//! | `command/backup.rs` | `backup`, `restore`: the state of a cluster as a file |
//! | `command/fence.rs` | `fence`: prepares a store to check tokens, shows and tidies its marks, and forgets a key |
//! | `command/backends.rs` | `backends`: the supported lock systems, and what each promises |
//! | `command/bench.rs` | `bench`: measures a running cluster |
//! | `command/config.rs` | `config`: the settings in force, and where each comes from |
//! | `command/completion.rs` | `completion`, and `complete-words`: scripts for shells, and what they call |
//! | `command/completion/fencepost.bash`, `command/completion/fencepost.fish`, `command/completion/fencepost.zsh` | the scripts |
//! | `demo/` | `demo`: nodes, workers and a bank account that show why a lock needs a guard |
//! | `stores/` | the stores that `fence` connects to, one file each |
//! | `settings.rs` | every setting: its flag, variable, key in the file and default |
//! | `connect.rs` | the connection to the cluster, and the exit code for each error of the client library |
//! | `failure.rs` | exit codes and error messages |
//! | `output.rs` | tables, JSON, messages and colours |
//! | `shown.rs` | how ids, modes, ages and clients are written |
//! | `similar.rs` | "do you mean ...?" for words that are not clap's |
//! | `duration.rs` | durations as people type and read them |
//! | `wall_time.rs` | wall-clock times as people and programs read them |
//! | `listing.rs` | lists that are longer than one page |
//! | `logs.rs` | the log on standard error |
//! | `nesting.rs` | `run` inside `run`: refuses a command that would wait for itself |
//! | `terminal.rs` | gives the terminal to the command of `run`, and takes it back |
//! | `own.rs` | starts this program again as a child, and waits for signals that ask to stop |

mod command;
mod connect;
mod demo;
mod duration;
mod failure;
mod listing;
mod logs;
mod nesting;
mod output;
mod own;
mod settings;
mod shown;
mod similar;
mod stores;
mod terminal;
mod wall_time;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ContextValue;
use fencepost_core::shortened;

use crate::command::{
    administer, backends, backup, bench, checkpoint, completion, config, describe, dev, exec, fence, job, jobs, locks,
    members, run, serve, sessions, top, transfer, watch, why,
};
use crate::failure::{EXIT_CODES, Failure, Result};

/// A distributed lock service that stays correct even if its clients do not
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, after_help = EXIT_CODES, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Demo(demo::Args),
    Dev(dev::Args),
    Serve(serve::Args),
    Run(run::Args),
    Checkpoint(checkpoint::Args),
    #[command(visible_alias = "list")]
    Locks(locks::Args),
    Sessions(sessions::Args),
    Jobs(jobs::Args),
    Job(job::Args),
    Members(members::ListArgs),
    Describe(describe::Args),
    Why(why::Args),
    Watch(watch::Args),
    Top(top::Args),
    Break(administer::BreakArgs),
    Evict(administer::EvictArgs),
    Freeze(administer::FreezeArgs),
    Freezes(administer::FreezesArgs),
    Thaw(administer::ThawArgs),
    Limit(administer::LimitArgs),
    Member(members::Args),
    Transfer(transfer::Args),
    Backup(backup::Args),
    Restore(backup::RestoreArgs),
    Fence(fence::Args),
    Backends(backends::Args),
    Bench(bench::Args),
    Config(config::Args),
    Completion(completion::Args),
    #[command(name = completion::NAME, hide = true)]
    CompleteWords(completion::CompleteArgs),
    #[command(name = exec::NAME, hide = true)]
    Exec(exec::Args),
    #[command(name = demo::worker::NAME, hide = true)]
    DemoWorker(demo::worker::Args),
}

fn main() -> ExitCode {
    // Exits with code 2 on wrong usage.
    let arguments = Arguments::try_parse().unwrap_or_else(|error| without_long_values(error).exit());
    match carry_out(arguments.command) {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            if !message.is_empty() {
                output::say(&format!("fencepost: {message}"));
            }
            ExitCode::from(code)
        }
    }
}

/// The error with the beginning of each long value that it repeats.
fn without_long_values(mut error: clap::Error) -> clap::Error {
    let long = |value: &ContextValue| match value {
        ContextValue::String(text) => Some(ContextValue::String(shortened(text).into_owned())),
        _ => None,
    };
    let shortened: Vec<_> = error.context().filter_map(|(kind, value)| Some((kind, long(value)?))).collect();
    for (kind, value) in shortened {
        error.insert(kind, value);
    }
    error
}

/// Runs the command. Returns the exit code.
fn carry_out(command: Command) -> Result<u8> {
    match &command {
        Command::Exec(args) => return exec::run(args).map(|()| 0),
        Command::CompleteWords(args) => return completion::complete(args).map(|()| 0),
        _ => {}
    }
    if let Command::Checkpoint(args) = command {
        return checkpoint::run(args);
    }
    // One thread: the server is designed for one, and a client needs no more.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Run(args) => return run::run(args).await,
            Command::Bench(args) => return bench::run(args).await,
            Command::Job(args) => return job::run(args).await,
            Command::Demo(args) => demo::run(args).await,
            Command::Dev(args) => dev::run(args).await,
            Command::Serve(args) => serve::run(args).await,
            Command::Locks(args) => locks::run(args).await,
            Command::Sessions(args) => sessions::run(args).await,
            Command::Jobs(args) => jobs::run(args).await,
            Command::Members(args) => members::list(args).await,
            Command::Describe(args) => describe::run(args).await,
            Command::Why(args) => why::run(args).await,
            Command::Watch(args) => watch::run(args).await,
            Command::Top(args) => top::run(args).await,
            Command::Break(args) => administer::break_lock(args).await,
            Command::Evict(args) => administer::evict(args).await,
            Command::Freeze(args) => administer::freeze(args).await,
            Command::Freezes(args) => administer::freezes(args).await,
            Command::Thaw(args) => administer::thaw(args).await,
            Command::Limit(args) => administer::limit(args).await,
            Command::Member(args) => members::run(args).await,
            Command::Transfer(args) => transfer::run(args).await,
            Command::Backup(args) => backup::run(args).await,
            Command::Restore(args) => backup::restore(&args),
            Command::Fence(args) => fence::run(args).await,
            Command::Backends(args) => backends::run(&args),
            Command::Config(args) => config::run(args),
            Command::Completion(args) => completion::run(&args),
            Command::DemoWorker(args) => demo::worker::run(args).await,
            Command::Exec(_) | Command::CompleteWords(_) | Command::Checkpoint(_) => {
                unreachable!("it ran before the runtime was created")
            }
        }?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Calls `check` with each command and the words that start it.
    fn walk(command: &clap::Command, words: &str, check: &mut impl FnMut(&str, &clap::Command)) {
        check(words, command);
        for inner in command.get_subcommands() {
            walk(inner, &format!("{words} {}", inner.get_name()), check);
        }
    }

    fn commands() -> clap::Command {
        let mut command = Arguments::command();
        command.build();
        command
    }

    #[test]
    fn every_command_and_every_argument_has_help() {
        let mut without = Vec::new();
        walk(&commands(), "fencepost", &mut |words, command| {
            if command.get_about().is_none() {
                without.push(words.to_owned());
            }
            let arguments = command.get_arguments().filter(|it| it.get_help().is_none());
            without.extend(arguments.map(|it| format!("{words} {it}")));
        });
        assert!(without.is_empty(), "without help: {without:#?}");
    }

    /// A usage line that shows `<PERMITS> <NAME>` for a command that takes the name first leads the user astray.
    #[test]
    fn usage_lines_show_arguments_in_the_order_that_is_taken() {
        let mut wrong = Vec::new();
        walk(&commands(), "fencepost", &mut |words, command| {
            let usage = command.clone().render_usage().to_string();
            let places: Vec<Option<usize>> = command
                .get_positionals()
                .map(|it| it.get_value_names().and_then(|names| usage.find(names[0].as_str())))
                .collect();
            if !places.is_sorted() || (!command.has_subcommands() && places.contains(&None)) {
                wrong.push(format!("{words}: {usage}"));
            }
        });
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
