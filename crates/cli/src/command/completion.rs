//! `fencepost completion SHELL`: prints the script with which a shell completes commands, flags and names of locks.
//!
//! The scripts for bash, zsh and fish call `fencepost complete-words` with the words up to the cursor. It prints one candidate a
//! line, and after a tab what it is. Names of locks, and names and keys of jobs, come from the cluster that the words, the environment or the file name. A user
//! who presses TAB must never wait: a cluster that does not answer within [`BUDGET`] completes nothing, and errors are not shown.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use fencepost::{Client, Name};

use crate::connect::ServerArgs;
use crate::failure::Result;
use crate::output;

/// The name of the command that the scripts call.
pub(crate) const NAME: &str = "complete-words";

/// How long the cluster may take. The whole completion takes at most 300 ms; the rest is for the start of the process.
const BUDGET: Duration = Duration::from_millis(200);

/// How many words from the cluster are offered. More than a screen helps no user.
const WORDS_MAX: usize = 100;

/// Print the completion script for a shell
///
/// For example: `fencepost completion bash > ~/.local/share/bash-completion/completions/fencepost`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell. The scripts for bash, zsh and fish also complete the names of locks and jobs
    #[arg(value_enum)]
    shell: Shell,
}

/// Print what can stand at the cursor; for the completion scripts
#[derive(Debug, clap::Args)]
pub(crate) struct CompleteArgs {
    /// The words of the command line up to the cursor, `fencepost` included; the last one is completed
    #[arg(required = true, last = true, value_name = "WORD")]
    words: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result {
    let script = match args.shell {
        Shell::Bash => include_bytes!("completion/fencepost.bash").to_vec(),
        Shell::Zsh => include_bytes!("completion/fencepost.zsh").to_vec(),
        Shell::Fish => include_bytes!("completion/fencepost.fish").to_vec(),
        other => {
            let mut script = Vec::new();
            clap_complete::generate(other, &mut crate::Arguments::command(), "fencepost", &mut script);
            script
        }
    };
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
}

/// Prints the candidates for the last word.
pub(crate) fn complete(args: &CompleteArgs) -> Result {
    let (word, before) = args.words.split_last().expect("clap requires a word");
    let typed = command_of(before);
    let completer = |wanted| ArgValueCompleter::new(words_of(typed.clone(), wanted));
    let (names, jobs, keys) = (completer(Wanted::Locks), completer(Wanted::Jobs), completer(Wanted::Keys));
    let with_words = |arg: clap::Arg| match arg.get_value_names() {
        Some([name]) if name == "LOCK" => arg.add(names.clone()),
        Some([name]) if name == "JOB" => arg.add(jobs.clone()),
        Some([name]) if name == "KEY" && arg.is_positional() => arg.add(keys.clone()),
        _ => arg,
    };
    let with_words_below = |it: clap::Command| it.mut_args(with_words).mut_subcommands(|it| it.mut_args(with_words));
    let mut command = crate::Arguments::command().mut_subcommands(with_words_below);
    let directory = std::env::current_dir().ok();
    let found = clap_complete::engine::complete(&mut command, args.words.clone(), before.len(), directory.as_deref());
    // Flags only for a user who has begun one: otherwise they would hide the names.
    let wants_flags = word.to_string_lossy().starts_with('-');
    let is_wanted = |it: &CompletionCandidate| {
        !it.is_hide_set() && (wants_flags || !it.get_value().to_string_lossy().starts_with('-'))
    };
    for candidate in found.unwrap_or_default().iter().filter(|it| is_wanted(it)) {
        let help = candidate.get_help().map(|help| help.to_string()).unwrap_or_default();
        output::line(&format!("{}\t{}", candidate.get_value().display(), help.lines().next().unwrap_or_default()))?;
    }
    Ok(())
}

/// What the cluster is asked for.
#[derive(Clone, Copy)]
enum Wanted {
    /// Names of locks that are held or waited for.
    Locks,
    /// Names of remembered jobs.
    Jobs,
    /// Keys of the jobs of the name that stands before.
    Keys,
}

/// Finds what the cluster of a command knows.
fn words_of(
    command: Option<(ServerArgs, Option<Name>)>,
    wanted: Wanted,
) -> impl Fn(&OsStr) -> Vec<CompletionCandidate> + Send + Sync + 'static {
    move |word| {
        let (Some((server, job)), Some(prefix)) = (command.clone(), word.to_str().map(str::to_owned)) else {
            return Vec::new();
        };
        let (sender, receiver) = mpsc::channel();
        // Its own thread: looking up a host name cannot be cancelled. The thread ends with the process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let asked = async {
                let client = server.connect().await?;
                match (wanted, job) {
                    (Wanted::Locks, _) => locks(&client, &prefix).await,
                    (Wanted::Jobs, _) => jobs(&client, &prefix).await,
                    (Wanted::Keys, Some(job)) => keys(&client, &job, &prefix).await,
                    (Wanted::Keys, None) => Ok(BTreeSet::new()),
                }
            };
            let found = runtime.ok().and_then(|runtime| runtime.block_on(asked).ok());
            // The receiver is gone if it was too late.
            let _ = sender.send(found.unwrap_or_default());
        });
        let found = receiver.recv_timeout(BUDGET).unwrap_or_default();
        found.into_iter().take(WORDS_MAX).map(CompletionCandidate::new).collect()
    }
}

/// The cluster that these words name, and the name of the job, if it stands there. `None` if they are not a command that talks to one.
fn command_of(words: &[OsString]) -> Option<(ServerArgs, Option<Name>)> {
    let mut matches = crate::Arguments::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    (_, matches) = matches.remove_subcommand()?;
    if let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    // A command with commands of its own talks to no cluster.
    matches.try_contains_id("server").ok()?;
    let job = matches.try_get_one::<Name>("job_name").ok().flatten().cloned();
    Some((ServerArgs::from_arg_matches(&matches).ok()?, job))
}

/// The names with this prefix that are held or waited for, from the first page of each.
async fn locks(client: &Client, prefix: &str) -> Result<BTreeSet<String>> {
    let grants = client.grants(prefix, None).await?.what.rows;
    let waiters = client.waiters(prefix, None).await?.what.rows;
    let held = grants.into_iter().map(|grant| grant.record.held);
    let wanted = waiters.into_iter().map(|waiter| waiter.wants.held());
    // A grant of several locks has names with other prefixes, too.
    let names = held.chain(wanted).flat_map(|held| held.names().map(Name::to_string).collect::<Vec<String>>());
    Ok(names.filter(|name| name.starts_with(prefix)).collect())
}

/// The names of jobs with this prefix, from the first page.
async fn jobs(client: &Client, prefix: &str) -> Result<BTreeSet<String>> {
    let jobs = client.jobs(prefix, None).await?.what.rows;
    Ok(jobs.iter().map(|job| job.name.to_string()).collect())
}

/// The keys of a job's name with this prefix, from the first page.
async fn keys(client: &Client, name: &Name, prefix: &str) -> Result<BTreeSet<String>> {
    let jobs = client.jobs(name.as_str(), None).await?.what.rows;
    let keys = jobs.iter().filter(|job| job.name == *name).map(|job| job.key.to_string());
    Ok(keys.filter(|key| key.starts_with(prefix)).collect())
}
