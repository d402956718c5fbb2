//! One running server.
//!
//! It runs under a shell that reads from a pipe which only we hold. When we are gone, killed or not, the pipe ends, and the shell
//! kills the server and removes its directory. So nothing is left behind, even by a test that was cut off, or by a server that all
//! tests of a process share, which nobody drops.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cluster;
use crate::kinds::{Kind, SETTINGS};

/// Long enough for a server to start on a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(120);
/// A port that was free a moment ago may be taken. Then another one is tried.
const TRIES: u32 = 5;

/// Waits for a line, for the end of its input, or for the end of the server, and ends the server. After a line the directory is
/// somebody's; when the input ends without one, nobody is left who could remove it. The server may be gone first: some die
/// because nobody hears them any more. The server's number is written down before it is the server, so it is there when it serves.
const KEEPER: &str = r#"
directory=$1; kept=$1/kept.$$; signal=$2; shift 2
sh -c 'echo $$ >"$0"; exec "$@"' "$directory/process" "$@" </dev/null & server=$!
# What a shell has to say of a killed command would kill the shell, if nobody is left to hear it.
exec >/dev/null 2>&1
(if read -r _; then : >"$kept"; fi; kill -$signal $server) <&3 & keeper=$!
wait $server; code=$?
kill $keeper
if [ ! -e "$kept" ] && ! read -r _ <&3; then rm -rf "$directory"; fi
exit $code
"#;

/// A server that runs until this is dropped.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    port: u16,
    keeper: Child,
    process: u32,
    /// After the server is gone.
    directory: TempDir,
}

impl Server {
    /// Starts one and waits until it serves.
    ///
    /// # Panics
    /// If a program is missing ([`Kind::missing`] says so before), or if it does not start.
    pub fn start(kind: Kind) -> Server {
        Server::start_in(kind, prepared(kind))
    }

    /// Starts so many that are one system, each a member of this kind, and waits until all serve.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_cluster(kind: Kind, members: usize) -> Vec<Server> {
        for _ in 0..TRIES {
            let particular = cluster::settings(kind, members, free_ports);
            let launched = particular.into_iter().zip(free_ports(members)).map(|(member, port)| {
                let directory = prepared(kind);
                member.write(directory.path());
                (launch(kind, directory.path(), port), port, directory)
            });
            // All of them first: none serves before most are there.
            let launched: Vec<_> = launched.collect();
            let servers = launched.into_iter().map(|((keeper, lines), port, directory)| {
                let (keeper, process) = serves(kind, directory.path(), port, keeper, &lines)?;
                Some(Server { kind, port, keeper, process, directory })
            });
            // Here, too: whatever was launched has ended or is a server, before anything is tried again.
            let servers: Vec<Option<Server>> = servers.collect();
            if let Some(servers) = servers.into_iter().collect() {
                return servers;
            }
        }
        panic!("{members} of {kind:?} did not start together in {TRIES} attempts");
    }

    /// Starts a pooler before a Postgres.
    pub(crate) fn start_pooler(postgres: &Server, sessions: u32) -> Server {
        let directory = prepared(Kind::PgBouncer);
        let users = directory.path().join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("the directory is ours");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\npool_mode = transaction\ndefault_pool_size = {sessions}\n\
            auth_type = trust\nauth_file = {}\nunix_socket_dir =\n",
            postgres.port,
            users.display()
        );
        std::fs::write(directory.path().join(SETTINGS), settings).expect("the directory is ours");
        Server::start_in(Kind::PgBouncer, directory)
    }

    fn start_in(kind: Kind, directory: TempDir) -> Server {
        for _ in 0..TRIES {
            let port = free_port();
            if let Some((keeper, process)) = serve(kind, directory.path(), port) {
                return Server { kind, port, keeper, process, directory };
            }
        }
        panic!("{kind:?} did not start on any of {TRIES} ports");
    }

    /// Ends it at once, as a crash would, and starts it again in the same place.
    ///
    /// # Panics
    /// If it does not start again.
    pub fn crash_and_restart(&mut self) {
        self.end();
        let again = (0..TRIES).find_map(|_| serve(self.kind, self.directory.path(), self.port));
        (self.keeper, self.process) = again.unwrap_or_else(|| panic!("{:?} did not start again", self.kind));
    }

    fn end(&mut self) {
        if let Some(mut keeper) = self.keeper.stdin.take() {
            // It is gone already if the server has crashed.
            let _ = keeper.write_all(b"\n");
        }
        let _ = self.keeper.wait();
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        self.kind.url(self.port)
    }

    /// The server's process, whose children are the server, too.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A directory in which it can be started.
fn prepared(kind: Kind) -> TempDir {
    let mut temporary = tempfile::Builder::new();
    temporary.prefix("fencepost-testbed-");
    let directory = match kind.memory() {
        Some(place) => temporary.tempdir_in(place),
        None => temporary.tempdir(),
    };
    let directory = directory.expect("a temporary directory");
    if let Some(user) = other_user(kind) {
        done(Command::new("chown").arg(user).arg(directory.path()));
    }
    if let Some(prepare) = kind.prepare(directory.path()) {
        done(as_user(kind, &prepare).stdin(Stdio::null()).stdout(Stdio::null()));
    }
    directory
}

/// Runs it until it serves, under its keeper and with its process; none if it ended instead.
fn serve(kind: Kind, directory: &Path, port: u16) -> Option<(Child, u32)> {
    let (keeper, lines) = launch(kind, directory, port);
    serves(kind, directory, port, keeper, &lines)
}

/// Starts it: its keeper, and what it says.
fn launch(kind: Kind, directory: &Path, port: u16) -> (Child, Receiver<String>) {
    let server = as_user(kind, &kind.serve(directory, port));
    let mut keeper = Command::new("sh");
    // The pipe is the shell's input; under another number, because a shell gives its background commands no input.
    keeper.args(["-c", &format!("exec 3<&0; {KEEPER}"), "keeper"]);
    keeper.arg(directory).arg(kind.end_signal()).arg(server.get_program()).args(server.get_args());
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut keeper = keeper.spawn().expect("a shell");
    let (sender, lines) = std::sync::mpsc::channel();
    let outputs: [Box<dyn Read + Send>; 2] =
        [Box::new(keeper.stdout.take().expect("piped")), Box::new(keeper.stderr.take().expect("piped"))];
    for output in outputs {
        let sender = sender.clone();
        // It reads to the end, so that a full pipe never stops the server.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
    }
    (keeper, lines)
}

/// Waits until it serves.
fn serves(
    kind: Kind,
    directory: &Path,
    port: u16,
    mut keeper: Child,
    lines: &Receiver<String>,
) -> Option<(Child, u32)> {
    let until = Instant::now() + PATIENCE;
    let mut said = String::new();
    while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if line.contains(kind.ready()) {
            let process = std::fs::read_to_string(directory.join("process")).expect("the keeper has written it");
            return Some((keeper, process.trim().parse().expect("a number")));
        }
        said += &line;
        said.push('\n');
    }
    let _ = keeper.kill();
    let _ = keeper.wait();
    eprintln!("{kind:?} did not start on port {port}:\n{said}");
    None
}

/// The same, as the server's user if we are root.
fn as_user(kind: Kind, command: &Command) -> Command {
    let Some(user) = other_user(kind) else {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        return same;
    };
    let mut other = Command::new("setpriv");
    other.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
    other.arg("--").arg(command.get_program()).args(command.get_args()).current_dir("/");
    other
}

/// Whom it has to run as instead of us.
fn other_user(kind: Kind) -> Option<&'static str> {
    let we_are_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("Linux has it")) == 0;
    kind.user().filter(|_| we_are_root)
}

fn free_port() -> u16 {
    free_ports(1)[0]
}

/// So many, all different.
fn free_ports(count: usize) -> Vec<u16> {
    let listener = |_| TcpListener::bind("127.0.0.1:0").expect("the loopback has free ports");
    let listeners: Vec<TcpListener> = (0..count).map(listener).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}

fn done(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
