//! `fencepost completion SHELL`: prints the script with which a shell completes commands, flags and names of locks.
//!
//! The scripts for bash, zsh and fish call `fencepost complete-words` with the words up to the cursor. It prints one candidate a
//! line, and after a tab what it is. Names of locks come from the cluster that the words, the environment or the file name. A user
//! who presses TAB must never wait: a cluster that does not answer within [`BUDGET`] completes nothing, and errors are not shown.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use fencepost::Name;

use crate::connect::ServerArgs;
use crate::failure::Result;
use crate::output;

/// The name of the command that the scripts call.
pub(crate) const NAME: &str = "complete-words";

/// How long the cluster may take. The whole completion takes at most 300 ms; the rest is for the start of the process.
const BUDGET: Duration = Duration::from_millis(200);

/// How many names of locks are offered. More than a screen helps no user.
const NAMES_MAX: usize = 100;

/// Print the completion script for a shell
///
/// For example: `fencepost completion bash > ~/.local/share/bash-completion/completions/fencepost`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell. The scripts for bash, zsh and fish also complete the names of locks
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
    let names = ArgValueCompleter::new(names_of(before));
    let takes_lock = |arg: &clap::Arg| arg.get_value_names().is_some_and(|names| names == ["LOCK"]);
    let with_names = |arg: clap::Arg| if takes_lock(&arg) { arg.add(names.clone()) } else { arg };
    let mut command = crate::Arguments::command().mut_subcommands(|it| it.mut_args(with_names));
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

/// Finds the names of locks for a command that begins with these words.
fn names_of(words: &[OsString]) -> impl Fn(&OsStr) -> Vec<CompletionCandidate> + Send + Sync + 'static {
    let server = server_of(words);
    move |word| {
        let (Some(server), Some(prefix)) = (server.clone(), word.to_str().map(str::to_owned)) else {
            return Vec::new();
        };
        let (sender, receiver) = mpsc::channel();
        // Its own thread: looking up a host name cannot be cancelled. The thread ends with the process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let found = runtime.ok().and_then(|runtime| runtime.block_on(names(&server, &prefix)).ok());
            // The receiver is gone if it was too late.
            let _ = sender.send(found.unwrap_or_default());
        });
        let found = receiver.recv_timeout(BUDGET).unwrap_or_default();
        found.into_iter().take(NAMES_MAX).map(|name| CompletionCandidate::new(name.as_str())).collect()
    }
}

/// The cluster that these words name. `None` if they are not a command that talks to one.
fn server_of(words: &[OsString]) -> Option<ServerArgs> {
    let mut matches = crate::Arguments::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    let (_, matches) = matches.remove_subcommand()?;
    ServerArgs::from_arg_matches(&matches).ok()
}

/// The names with this prefix that are held or waited for, from the first page of each.
async fn names(server: &ServerArgs, prefix: &str) -> Result<BTreeSet<Name>> {
    let client = server.connect().await?;
    let grants = client.grants(prefix, None).await?.what.rows;
    let waiters = client.waiters(prefix, None).await?.what.rows;
    let held = grants.into_iter().map(|grant| grant.record.held);
    let wanted = waiters.into_iter().map(|waiter| waiter.wants.held());
    // A grant of several locks has names with other prefixes, too.
    let names = held.chain(wanted).flat_map(|held| held.names().cloned().collect::<Vec<Name>>());
    Ok(names.filter(|name| name.as_str().starts_with(prefix)).collect())
}
