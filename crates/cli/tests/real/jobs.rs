//! Jobs on real processes: `fencepost run --once` and its command are killed, answers are lost, and the clocks of hosts differ.
//!
//! This file has what the tests share.

mod answers;
#[cfg(feature = "stores")]
mod clocks;
#[cfg(feature = "stores")]
mod hosts;
mod steps;
#[cfg(feature = "stores")]
mod store;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::cluster::Cluster;
use crate::patience::wait_until;

/// The lease of a killed `run` ends after this time.
const TTL: &str = "2s";
/// A host that has tried this often will not succeed.
const TRIES_MAX: usize = 300;

/// The program, without settings that the test inherits.
fn fencepost() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(name);
    }
    command
}

/// A process that is killed if the test ends before it does.
struct Process(Child);

impl Process {
    fn start(mut command: Command, log: &Path) -> Process {
        let log = File::options().create(true).append(true).open(log).expect("the test owns the directory");
        let err = log.try_clone().expect("files can be shared");
        Process(command.stdin(Stdio::null()).stdout(log).stderr(err).spawn().expect("the binary is built"))
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("it is our child")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // It is dead, or was waited for before.
        let _ = self.0.wait();
    }
}

fn assert_completed(cluster: &Cluster, name: &str, key: &str) {
    let view = wait_until("the job can be read", || cluster.ask(async |client| client.job(name, key).await.ok()));
    let completion = view.what.record.as_ref().and_then(|record| record.completion.as_ref());
    assert!(completion.is_some_and(|completion| completion.succeeded), "{name} {key} is completed: {view:?}");
}
