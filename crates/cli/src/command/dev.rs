//! `fencepost dev`: runs a node, or a small cluster, in this process, with nothing to configure.
//!
//! For trying things out. It listens on loopback only, since it has no TLS. With `--background` this program starts itself again as a
//! process that outlives the shell. Its standard output and error are pipes: it closes both when its nodes serve, or when it ends.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fencepost_server::{Begin, CLIENT_PORT, Config, Server, StartError};
use nix::unistd::{dup2_stderr, dup2_stdout, setsid};

use crate::command::exec::own_path;
use crate::command::serve::{asked_to_end, start_failure};
use crate::failure::{self, Failure, Result};
use crate::settings::{ClientFlags, NodeFlags, Settings};
use crate::{logs, output};

/// The beginning of the line that says that the nodes serve.
const READY: &str = "ready: ";
/// The log of `--background`, in the directory of the data.
const LOG_FILE: &str = "dev.log";
/// How much higher the ports of the next node are: 7420, 7430, 7440.
const PORTS_APART: u16 = 10;

/// Try things out: run a node, or a local cluster, with nothing to configure
///
/// Everything is lost when it ends, unless --data names a directory. The nodes n1, n2, ... run in this one process. For a
/// cluster that survives failures, run one `fencepost serve` on each machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many nodes: 1, 3, 5 or 7
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = nodes)]
    nodes: u16,
    /// Keep the logs in this directory [default: in memory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where the first node listens for clients. HTTP and peers use the next two ports; the ports of the next node are 10
    /// higher. Port 0 picks free ports
    #[arg(long, value_name = "IP:PORT", default_value_t = SocketAddr::from(([127, 0, 0, 1], CLIENT_PORT)))]
    listen: SocketAddr,
    /// Run in the background: return when the nodes serve, and say how to end them
    #[arg(long)]
    background: bool,
    /// This is the process that `--background` has started
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
}

fn nodes(text: &str) -> std::result::Result<u16, String> {
    match text.parse() {
        Ok(nodes @ (1 | 3 | 5 | 7)) => Ok(nodes),
        Ok(nodes @ (2 | 4 | 6)) => {
            Err(format!("{nodes} nodes survive no more failures than {}: choose 1, 3, 5 or 7", nodes - 1))
        }
        _ => Err("choose 1, 3, 5 or 7".to_owned()),
    }
}

pub(crate) async fn run(args: Args) -> Result {
    if args.background {
        return run_in_background(&args);
    }
    if args.detached {
        // It fails only for the leader of a group, which this process is not. Then Ctrl-C in the shell would end the nodes, too.
        let _ = setsid();
    }
    let settings = Settings::gather(&NodeFlags::default(), &ClientFlags::default(), None)?;
    logs::begin(&settings, Some("warn"))?;
    if let Some(data) = &args.data {
        check_data(data, &args)?;
    }
    let end = asked_to_end()?;
    let mut servers: Vec<Server> = Vec::new();
    for place in 0..args.nodes {
        let first = servers.first().map(|first| first.client_address().to_string());
        servers.push(start(&args, place, first).await?);
    }
    for server in &servers {
        server.wait_until_ready().await;
    }
    // All nodes join before the user is told to start. Before that, three nodes run but fewer vote.
    for server in &servers {
        server.wait_until_member().await;
    }
    let log = if args.detached { Some(open_log(args.data.as_deref())?) } else { None };
    introduce(&args, &servers)?;
    if let Some(log) = log {
        // Closes the pipes, so that `run_in_background` returns.
        dup2_stdout(&log).and_then(|()| dup2_stderr(&log)).map_err(std::io::Error::from)?;
    }
    end_together(servers, end).await
}

/// Starts this program again, passes on what it says, and returns when it serves. If it does not serve, it has ended.
fn run_in_background(args: &Args) -> Result {
    let mut command = Command::new(own_path()?);
    command.arg0("fencepost").args(["dev", "--detached", "--nodes", &args.nodes.to_string()]);
    command.arg("--listen").arg(args.listen.to_string());
    if let Some(data) = &args.data {
        command.arg("--data").arg(data);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stderr = child.stderr.take().expect("it is piped");
    let warnings = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut said = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut said)?;
    let warnings = warnings.join().expect("the thread does not panic")?;
    if !warnings.is_empty() {
        output::say(warnings.trim_end());
    }
    if said.starts_with(READY) {
        return output::line(said.trim_end());
    }
    let status = child.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(failure::FAILED);
    // The process has said why on its standard error.
    Err(Failure { code, message: String::new() })
}

/// Where the log goes while the nodes run in the background: to a file beside the data, if the data is kept.
fn open_log(data: Option<&Path>) -> Result<File> {
    let path = data.map_or(PathBuf::from("/dev/null"), |data| data.join(LOG_FILE));
    let opened = File::options().create(true).append(true).open(&path);
    opened.map_err(|error| Failure::failed(format!("cannot write the log {}: {error}", path.display())))
}

/// Checks that the directory is new, or holds a cluster of as many nodes.
fn check_data(data: &Path, args: &Args) -> Result {
    let shown = data.display();
    if data.join("IDENTITY").exists() {
        return Err(Failure::failed(format!(
            "{shown} is the directory of a `fencepost serve` node: run `fencepost serve --data {shown}`, or name another directory"
        )));
    }
    let found = (1..=u16::MAX).take_while(|place| data.join(format!("n{place}")).join("IDENTITY").exists()).count();
    if found != 0 && found != usize::from(args.nodes) {
        return Err(Failure::failed(format!(
            "{shown} holds a cluster of {found}: pass --nodes {found} to start it, or name another directory"
        )));
    }
    if args.nodes > 1 && args.listen.port() == 0 {
        return Err(Failure::usage(
            "nodes that start again must keep their addresses: with --data and several --nodes, give a port other than 0",
        ));
    }
    Ok(())
}

async fn start(args: &Args, place: u16, first: Option<String>) -> Result<Server> {
    let listen = |offset: u16| -> Result<SocketAddr> {
        let port = match args.listen.port() {
            0 => Some(0),
            port => port.checked_add(place * PORTS_APART + offset),
        };
        let port =
            port.ok_or_else(|| Failure::usage("there are not enough ports above this one: give a lower --listen"))?;
        Ok(SocketAddr::new(args.listen.ip(), port))
    };
    let name = format!("n{}", place + 1);
    let directory = args.data.as_ref().map(|data| data.join(&name));
    let is_known = directory.as_ref().is_some_and(|directory| directory.join("IDENTITY").exists());
    let config = Config {
        name,
        directory,
        begin: match first {
            _ if is_known => Begin::Never,
            None => Begin::Found,
            Some(first) => Begin::Join(vec![first]),
        },
        client_listen: listen(0)?,
        http_listen: listen(1)?,
        peer_listen: listen(2)?,
        ..Config::default()
    };
    Server::start(config).await.map_err(|error| match &error {
        StartError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::failed(format!(
                "{error}: `--listen 127.0.0.1:0` picks free ports. If a `fencepost dev` already runs, use that one"
            ))
        }
        StartError::Config { .. } if !args.listen.ip().is_loopback() => Failure::usage(
            "`fencepost dev` listens on loopback only, since it has no TLS: for other machines use `fencepost serve`",
        ),
        _ => start_failure(error),
    })
}

/// Prints the addresses, and what to try next.
fn introduce(args: &Args, servers: &[Server]) -> Result {
    let clients: Vec<String> = servers.iter().map(|server| server.client_address().to_string()).collect();
    let kept = match &args.data {
        Some(data) => format!("kept in {}", data.display()),
        None => "in memory: everything is lost when it ends".to_owned(),
    };
    let clients = clients.join(",");
    output::line(&format!("{READY}{clients} ({kept})"))?;
    for (place, server) in servers.iter().enumerate() {
        let (client, http, peer) = (server.client_address(), server.http_address(), server.peer_address());
        output::line(&format!("  n{}  clients {client}  http http://{http}  peers {peer}", place + 1))?;
    }
    let is_default = servers[0].client_address() == Config::default().client_listen;
    let to = if is_default { String::new() } else { format!(" --server {clients}") };
    let (place, end) = match (args.detached, &args.data) {
        (false, _) => ("Try in another terminal", "Ctrl-C ends it.".to_owned()),
        (true, data) => {
            let log = data.as_ref().map(|data| format!(" Its log: {}", data.join(LOG_FILE).display()));
            (
                "Try",
                format!("It runs in the background. `kill {}` ends it.{}", std::process::id(), log.unwrap_or_default()),
            )
        }
    };
    output::line(&format!(
        "\n{place}:\n  \
           fencepost run{to} nightly -- sh -c 'echo my token is $FENCEPOST_TOKEN; sleep 60'\n  \
           fencepost locks{to}\n  \
           fencepost why{to} nightly\n\n{end}"
    ))
}

/// Runs the nodes. Ends all of them gracefully when `end` is ready, or when one of them had to stop.
async fn end_together(servers: Vec<Server>, end: impl Future<Output = ()>) -> Result {
    let (ending, _) = tokio::sync::watch::channel(false);
    let mut nodes = tokio::task::JoinSet::new();
    for server in servers {
        let mut ended = ending.subscribe();
        nodes.spawn(server.run_until(async move { drop(ended.wait_for(|ended| *ended).await) }));
    }
    let mut outcome = Ok(());
    let mut end = std::pin::pin!(end);
    let mut is_ending = false;
    loop {
        tokio::select! {
            () = &mut end, if !is_ending => {
                is_ending = true;
                ending.send_replace(true);
            }
            stopped = nodes.join_next() => match stopped {
                None => return outcome,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(stop))) => {
                    outcome = Err(Failure::failed(format!("a node had to stop: {stop}")));
                    ending.send_replace(true);
                }
                Some(Err(error)) => return Err(Failure::failed(error)),
            },
        }
    }
}
