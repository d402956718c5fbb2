//! `fencepost completion SHELL`: prints the script with which a shell completes commands and flags.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::failure::Result;

/// Print the completion script for a shell
///
/// For example: `fencepost completion bash > ~/.local/share/bash-completion/completions/fencepost`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Arguments::command(), "fencepost", &mut script);
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
}
