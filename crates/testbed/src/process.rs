//! One running server.
//!
//! The server runs under a shell, the keeper. The keeper reads from a pipe whose other end only we hold. When our process ends, even
//! by a kill, the pipe closes. The keeper then kills the server and removes its directory. So nothing is left behind by a killed
//! test, or by a shared server, which is a static and is never dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cluster;
use crate::kinds::{Kind, SETTINGS};

/// Long enough for a server to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Attempts to start a server: another process may take a port that was free a moment ago.
const TRIES: u32 = 5;

/// Ends the server after a line of input, at the end of the input, or when the server ends by itself. After a line, our process
/// still needs the directory. When the input ends without a line, our process is gone, and the keeper removes the directory. The
/// server may end first: some servers die when their output pipe closes. The process id is written before the `exec` of the server,
/// so it is there when the server is ready.
const KEEPER: &str = r#"
directory=$1; kept=$1/kept.$$; signal=$2; shift 2
sh -c 'echo $$ >"$0"; exec "$@"' "$directory/process" "$@" </dev/null & server=$!
# The shell prints a message about a killed command. If our end of the output pipe is closed, printing would kill the shell.
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
    /// Removed after the server has ended.
    directory: TempDir,
}

impl Server {
    /// Starts a server and waits until it is ready.
    ///
    /// # Panics
    /// If a program is missing (check [`Kind::missing`] first), or if it does not start.
    pub fn start(kind: Kind) -> Server {
        Server::start_in(kind, prepared(kind))
    }

    /// Starts a cluster of `members` servers of this kind, and waits until all are ready.
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
            // Starts all members before it waits: no member is ready before a majority runs.
            let launched: Vec<_> = launched.collect();
            let servers = launched.into_iter().map(|((keeper, lines), port, directory)| {
                let (keeper, process) = serves(kind, directory.path(), port, keeper, &lines)?;
                Some(Server { kind, port, keeper, process, directory })
            });
            // Waits for all members before the next attempt, so that each has either ended or is a `Server`.
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

    /// Kills it, as in a crash, and starts it again with the same directory and port.
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
            // Fails if the server has crashed and the keeper is gone.
            let _ = keeper.write_all(b"\n");
        }
        let _ = self.keeper.wait();
    }

    /// Its address for clients.
    pub fn url(&self) -> String {
        self.kind.url(self.port)
    }

    /// The id of the server's process. Its child processes belong to the server, too.
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

/// A new directory, prepared for a server of this kind.
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

/// Starts a server and waits until it is ready. Returns its keeper and its process id; `None` if it ended instead.
fn serve(kind: Kind, directory: &Path, port: u16) -> Option<(Child, u32)> {
    let (keeper, lines) = launch(kind, directory, port);
    serves(kind, directory, port, keeper, &lines)
}

/// Starts a server. Returns its keeper and the lines that it prints.
fn launch(kind: Kind, directory: &Path, port: u16) -> (Child, Receiver<String>) {
    let server = as_user(kind, &kind.serve(directory, port));
    let mut keeper = Command::new("sh");
    // The shell's input is the pipe. It is moved to descriptor 3, because a shell gives no input to background commands.
    keeper.args(["-c", &format!("exec 3<&0; {KEEPER}"), "keeper"]);
    keeper.arg(directory).arg(kind.end_signal()).arg(server.get_program()).args(server.get_args());
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut keeper = keeper.spawn().expect("a shell");
    let (sender, lines) = std::sync::mpsc::channel();
    let outputs: [Box<dyn Read + Send>; 2] =
        [Box::new(keeper.stdout.take().expect("piped")), Box::new(keeper.stderr.take().expect("piped"))];
    for output in outputs {
        let sender = sender.clone();
        // Reads to the end, so that a full pipe never blocks the server.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
    }
    (keeper, lines)
}

/// Waits until the server is ready. `None` if it ended or did not become ready in time.
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

/// The same command. If we are root, it runs as the server's user.
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

/// The user that must run the server instead of us.
fn other_user(kind: Kind) -> Option<&'static str> {
    let we_are_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("Linux has it")) == 0;
    kind.user().filter(|_| we_are_root)
}

fn free_port() -> u16 {
    free_ports(1)[0]
}

/// Free ports, all different.
fn free_ports(count: usize) -> Vec<u16> {
    let listener = |_| TcpListener::bind("127.0.0.1:0").expect("the loopback has free ports");
    let listeners: Vec<TcpListener> = (0..count).map(listener).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}

fn done(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
