//! Runs the real binary against a real `fencepost dev` on free ports. Every process that a test starts is killed with the test, by its id.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

mod patience;

pub(crate) use patience::{PATIENCE, wait_until};

/// The binary, without the `FENCEPOST_*` variables of this shell.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FENCEPOST_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the binary to its end.
pub(crate) fn fencepost(args: &[&str]) -> Finished {
    Process::start(command(args)).finish()
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Asserts the exit code 0.
    #[track_caller]
    pub(crate) fn ok(self) -> Finished {
        self.with_code(0)
    }

    #[track_caller]
    pub(crate) fn with_code(self, code: i32) -> Finished {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Asserts that standard output or standard error contains this text.
    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Finished {
        assert!(self.stdout.contains(part) || self.stderr.contains(part), "{part:?} is not in {self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// A running process. It is killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: String,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Process {
        let mut child = command.spawn().expect("the binary is built");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut stderr = child.stderr.take().expect("it is piped");
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            // On an error, the text so far is enough.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Process { child, lines, seen: String::new(), stderr: Some(stderr) }
    }

    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.child.id()).expect("ids are small")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.id()), signal).expect("it runs");
    }

    /// Waits for a line of its standard output that contains this text.
    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push_str(&line);
                    self.seen.push('\n');
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no line with {part:?}; there were: {}", self.seen),
                Err(RecvTimeoutError::Disconnected) => {
                    let stderr = self.stderr.take().map(|it| it.join().unwrap_or_default());
                    panic!("it ended without a line with {part:?}: {} {stderr:?}", self.seen)
                }
            }
        }
    }

    /// A line of its standard output that contains this text, if one has arrived.
    pub(crate) fn line_if_any(&mut self, part: &str) -> Option<String> {
        self.lines.try_iter().find(|line| line.contains(part))
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        let status = wait_until("the process has ended", || self.child.try_wait().expect("it is our child"));
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.seen.push_str(&line);
            self.seen.push('\n');
        }
        let stderr = self.stderr.take().map(|it| it.join().unwrap_or_default()).unwrap_or_default();
        let code = status.code().unwrap_or_else(|| {
            use std::os::unix::process::ExitStatusExt;
            -status.signal().unwrap_or(0)
        });
        Finished { code, stdout: std::mem::take(&mut self.seen), stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `fencepost dev` on free ports.
pub(crate) struct Dev {
    pub(crate) process: Process,
    /// `host:port,host:port` of its nodes.
    pub(crate) server: String,
    /// The HTTP address of the first node.
    pub(crate) http: String,
}

impl Dev {
    pub(crate) fn start() -> Dev {
        Dev::with(&[])
    }

    pub(crate) fn with(args: &[&str]) -> Dev {
        let args = [&["dev", "--listen", "127.0.0.1:0"], args].concat();
        Dev::from(Process::start(command(&args)))
    }

    pub(crate) fn from(mut process: Process) -> Dev {
        let ready = process.wait_for_line("ready: ");
        let server = ready.strip_prefix("ready: ").and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
        let first = process.wait_for_line("n1 ");
        let http = first.split("http://").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
        Dev { process, server, http }
    }

    /// A client command for this cluster.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("FENCEPOST_SERVER", &self.server);
        command
    }

    pub(crate) fn start_client(&self, args: &[&str]) -> Process {
        Process::start(self.command(args))
    }

    pub(crate) fn fencepost(&self, args: &[&str]) -> Finished {
        self.start_client(args).finish()
    }

    /// Starts a command that holds a lock until it ends. Returns when the lock is held.
    pub(crate) fn hold(&self, lock: &str) -> Process {
        let mut holder = self.start_client(&["run", lock, "--", "sh", "-c", "echo held; exec sleep 600"]);
        holder.wait_for_line("held");
        holder
    }

    /// Waits until exactly `count` requests wait for a lock.
    pub(crate) fn wait_until_waiting(&self, lock: &str, count: u64) {
        wait_until("the requests wait", || {
            let seen = self.fencepost(&["describe", lock, "-o", "json"]).ok().json();
            (seen["waiting_count"] == count).then_some(())
        });
    }
}

enum LinkState {
    Open(Vec<TcpStream>),
    /// New connections are closed at once.
    Interrupted,
    /// New connections are refused.
    Cut,
}

/// A proxy to a server that a test can cut.
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<LinkState>>,
}

impl Link {
    pub(crate) fn to(server: &str) -> Link {
        let server = server.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
        let address = listener.local_addr().expect("a listener has an address");
        let state = Arc::new(Mutex::new(LinkState::Open(Vec::new())));
        let seen = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                match &mut *seen.lock().unwrap() {
                    LinkState::Open(streams) => {
                        streams.extend([client.try_clone().unwrap(), upstream.try_clone().unwrap()]);
                    }
                    LinkState::Interrupted => continue,
                    LinkState::Cut => return,
                }
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), upstream.try_clone().unwrap()), (upstream, client)]
                {
                    std::thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(count) = from.read(&mut buffer) {
                            if count == 0 || to.write_all(&buffer[..count]).is_err() {
                                return;
                            }
                        }
                    });
                }
            }
        });
        Link { address, state }
    }

    /// Closes all connections, and accepts no more.
    pub(crate) fn cut(&self) {
        self.close(LinkState::Cut);
    }

    /// Closes all connections, and new ones at once, until it is mended.
    pub(crate) fn interrupt(&self) {
        self.close(LinkState::Interrupted);
    }

    pub(crate) fn mend(&self) {
        *self.state.lock().unwrap() = LinkState::Open(Vec::new());
    }

    fn close(&self, next: LinkState) {
        let before = std::mem::replace(&mut *self.state.lock().unwrap(), next);
        let LinkState::Open(streams) = before else { return };
        for stream in streams {
            // Its other side may have closed it.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}
