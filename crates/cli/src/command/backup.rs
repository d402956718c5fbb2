//! `fencepost backup` and `fencepost restore`: write the whole state to one file, and make a new cluster from it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use fencepost::Client;
use fencepost_core::bounds::{RESTORE_TOKEN_JUMP, TOKEN_MAX};

use crate::connect::ServerArgs;
use crate::failure::{Failure, Result};
use crate::output;

/// Write the state of the running cluster to a file
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file; it appears only when it is complete and on disk
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Make the data directory of a new cluster's first node from a backup
///
/// Sessions are not restored: clients must acquire their locks again. Jobs that run once are refused until `fencepost job allow`: the
/// backup does not know which were completed after it. Tokens continue far above those of the backup, so that no
/// token that was given after the backup is given again. Then start the node with `fencepost serve --data DIR`, and let other
/// nodes join it.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// The backup
    file: PathBuf,
    /// The directory to create
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// How far tokens jump; it must be more than were given since the backup
    #[arg(long, value_name = "N", default_value_t = RESTORE_TOKEN_JUMP,
        value_parser = clap::value_parser!(u64).range(RESTORE_TOKEN_JUMP..TOKEN_MAX))]
    token_jump: u64,
}

pub(crate) async fn run(args: Args) -> Result {
    let shown = args.file.display();
    if args.file.exists() && !args.force {
        return Err(Failure::usage(format!("{shown} exists: name another file, or pass --force to replace it")));
    }
    let name = args
        .file
        .file_name()
        .ok_or_else(|| Failure::usage(format!("{shown} is not the name of a file: name one to write to")))?;
    let mut aside = name.to_owned();
    aside.push(format!(".partial-{}", std::process::id()));
    let aside = args.file.with_file_name(aside);
    // It holds the state of the cluster: other users of this machine must not read it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).with_context(|| {
        format!("cannot write {}; name a file in a directory that exists and is yours", aside.display())
    })?;
    let client = args.server.connect().await;
    let written = match client {
        Ok(client) => write(&client, file).await,
        Err(failure) => Err(failure),
    };
    let moved = written.and_then(|bytes| {
        std::fs::rename(&aside, &args.file).with_context(|| format!("cannot write {shown}"))?;
        sync_directory(&args.file).with_context(|| format!("cannot sync {shown} to disk; try again"))?;
        Ok(bytes)
    });
    match moved {
        Ok(bytes) => {
            output::say(&format!(
                "fencepost: wrote {bytes} bytes to {shown}; `fencepost restore` makes a new cluster from it"
            ));
            Ok(())
        }
        Err(failure) => {
            // A partial file that stays behind does no harm.
            let _ = std::fs::remove_file(&aside);
            Err(failure)
        }
    }
}

async fn write(client: &Client, mut file: File) -> Result<u64> {
    let mut backup = client.admin().backup().await?;
    let mut bytes = 0;
    let is_seen = std::io::stderr().is_terminal();
    while let Some(piece) = backup.next().await? {
        file.write_all(&piece).context("cannot write the backup; free disk space, or name another file")?;
        bytes += piece.len() as u64;
        if is_seen {
            let _ = write!(std::io::stderr(), "\r{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        }
    }
    if is_seen {
        output::say("");
    }
    if bytes == 0 {
        return Err(Failure::failed("the cluster sent an empty backup: try again"));
    }
    file.sync_all().context("cannot sync the backup to disk; check the disk")?;
    Ok(bytes)
}

fn sync_directory(file: &Path) -> std::io::Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

pub(crate) fn restore(args: &RestoreArgs) -> Result {
    let shown = args.file.display();
    let backup =
        std::fs::read(&args.file).with_context(|| format!("cannot read {shown}; name the file of a backup"))?;
    let data = args.data.display();
    let is_empty = match std::fs::read_dir(&args.data) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(Failure::failed(format!("cannot read {data}: {error}; name another directory"))),
    };
    if !is_empty {
        return Err(Failure::usage(format!("{data} is not empty: name an empty or a new directory")));
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.data)
        .with_context(|| format!("cannot create {data}; name another directory"))?;
    let made = fencepost_server::restore(&backup, &args.data, args.token_jump)
        .map_err(|error| Failure::failed(format!("{shown} cannot be restored: {error}")))?;
    output::line(&format!("cluster {:032x}, node {:012x}", made.cluster, made.node))?;
    output::say(&format!(
        "fencepost: start the node with `fencepost serve --data {data}`, then let other nodes join it. It has the jobs as they were when \
         the backup was made, and refuses to run any until you allow it: complete those that were done since then with `fencepost job \
         complete`, then call `fencepost job allow`"
    ));
    Ok(())
}
