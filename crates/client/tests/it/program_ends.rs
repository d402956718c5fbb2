//! Programs that end right after they dropped a guard: the lock is free at once, not only when its TTL is over.
//!
//! Each test starts this test program several times as a child, which runs one of the endings below and exits. Then the parent
//! waits for the lock, for much less than the child's TTL. `FENCEPOST_ENDINGS=200` runs each ending 200 times for each tier.
#![cfg(feature = "blocking")]

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio, exit};
use std::sync::{OnceLock, mpsc};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::authority::Authority;
use fencepost::blocking;
use fencepost::{Client, ClientBuilder, Tls};
use fencepost_server::{Begin, Config, Server, TlsFiles};
use fencepost_testing::TestServer;
use tokio::runtime::{Builder, Runtime};

/// Much longer than the parent waits.
const TTL: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(20);
/// How many more locks one of the endings takes.
const OTHERS: usize = 50;

/// Environment variables that the parent sets for the child.
const ADDRESS: &str = "FENCEPOST_ENDING_ADDRESS";
const NAME: &str = "FENCEPOST_ENDING_NAME";
const TIER: &str = "FENCEPOST_ENDING_TIER";
const AUTHORITY: &str = "FENCEPOST_ENDING_AUTHORITY";

/// The child's side.
struct Child {
    address: String,
    /// The name of the lock. It is different in each run, so that a lock that is left behind does not affect other runs.
    name: String,
    efficiency: bool,
    authority: Option<PathBuf>,
}

/// A guard of either tier. It is only dropped.
type AnyGuard = Box<dyn std::any::Any + Send>;

impl Child {
    fn from_env() -> Option<Child> {
        let address = env::var(ADDRESS).ok()?;
        let name = env::var(NAME).ok()?;
        let efficiency = env::var(TIER).is_ok_and(|tier| tier == "efficiency");
        Some(Child { address, name, efficiency, authority: env::var_os(AUTHORITY).map(PathBuf::from) })
    }

    fn builder(&self) -> ClientBuilder {
        let builder = Client::builder().endpoint(&self.address).session_ttl(TTL);
        match &self.authority {
            Some(authority) => builder.tls(Tls::new(std::fs::read(authority).expect("the parent wrote it"))),
            None => builder,
        }
    }

    async fn acquire(&self, client: &Client, name: &str) -> AnyGuard {
        match self.efficiency {
            true => Box::new(client.lock(name).efficiency().acquire().await.expect("it is free")),
            false => Box::new(client.lock(name).acquire().await.expect("it is free")),
        }
    }

    fn acquire_blocking(&self, client: &blocking::Client) -> AnyGuard {
        match self.efficiency {
            true => Box::new(client.acquire(client.lock(&self.name).efficiency()).expect("it is free")),
            false => Box::new(client.acquire(client.lock(&self.name)).expect("it is free")),
        }
    }

    fn client_blocking(&self) -> blocking::Client {
        blocking::Client::with(self.builder()).expect("the parent's node is there")
    }
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn runs() -> usize {
    env::var("FENCEPOST_ENDINGS").map_or(10, |runs| runs.parse().expect("FENCEPOST_ENDINGS is a number"))
}

/// The body of a test, for both processes. The child runs `ending`, and exits like a program at the end of `main`. The parent starts
/// the children, and looks for locks that they left behind.
fn plays(test: &str, code: i32, ending: impl FnOnce(&Child)) {
    if let Some(child) = Child::from_env() {
        ending(&child);
        exit(0);
    }
    let server = TestServer::start();
    let runtime = current_thread();
    let client = runtime.block_on(server.client()).expect("it serves");
    watches(test, code, &runtime, &client, &server.address().to_string(), None);
}

/// The parent's side.
fn watches(test: &str, code: i32, runtime: &Runtime, client: &Client, address: &str, authority: Option<&Path>) {
    for tier in ["correctness", "efficiency"] {
        let mut left = 0;
        for run in 0..runs() {
            let name = format!("job/{tier}/{run}");
            let names = std::iter::once(name.clone()).chain((0..OTHERS).map(|number| other(&name, number)));
            let mut child = Command::new(env::current_exe().expect("this program has a path"));
            let test = format!("program_ends::{test}");
            child.args(["--exact", &test, "--nocapture"]).env(ADDRESS, address).env(NAME, &name).env(TIER, tier);
            if let Some(authority) = authority {
                child.env(AUTHORITY, authority);
            }
            let output = child.stdin(Stdio::null()).output().expect("this program can be started again");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "run {run} in the {tier} tier said: {said}");
            let began = String::from_utf8_lossy(&output.stdout);
            assert!(began.contains("running 1 test"), "the child found no test {test}: {began}");
            let all = client.lock_all(names).wait(PATIENCE);
            let is_free = runtime.block_on(async {
                match tier {
                    "efficiency" => all.efficiency().acquire().await.is_ok(),
                    _ => all.acquire().await.is_ok(),
                }
            });
            left += usize::from(!is_free);
            // Each lock that is left costs the whole `PATIENCE`, so stop early.
            assert!(left < 3, "{left} of {} programs left their lock behind in the {tier} tier", run + 1);
        }
        assert_eq!(left, 0, "of {} programs {left} left their lock behind in the {tier} tier", runs());
    }
}

fn other(name: &str, number: usize) -> String {
    format!("{name}/{number}")
}

#[test]
fn on_a_current_thread_runtime() {
    plays("on_a_current_thread_runtime", 0, |child| {
        current_thread().block_on(async {
            let client = child.builder().connect().await.expect("the parent's node is there");
            let _guard = child.acquire(&client, &child.name).await;
        });
    });
}

#[test]
fn on_a_multi_thread_runtime() {
    plays("on_a_multi_thread_runtime", 0, |child| {
        multi_thread().block_on(async {
            let client = child.builder().connect().await.expect("the parent's node is there");
            let _guard = child.acquire(&client, &child.name).await;
        });
    });
}

#[test]
fn with_a_guard_in_a_task_that_the_runtime_drops() {
    plays("with_a_guard_in_a_task_that_the_runtime_drops", 0, |child| {
        multi_thread().block_on(async {
            let client = child.builder().connect().await.expect("the parent's node is there");
            let guard = child.acquire(&client, &child.name).await;
            tokio::spawn(async move {
                let _holds = (client, guard);
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        });
    });
}

#[test]
fn with_the_blocking_client() {
    plays("with_the_blocking_client", 0, |child| {
        let client = child.client_blocking();
        let _guard = child.acquire_blocking(&client);
    });
}

#[test]
fn with_a_blocking_client_in_a_static() {
    static CLIENT: OnceLock<blocking::Client> = OnceLock::new();
    plays("with_a_blocking_client_in_a_static", 0, |child| {
        let client = CLIENT.get_or_init(|| child.client_blocking());
        let _guard = child.acquire_blocking(client);
    });
}

#[test]
fn in_a_panic() {
    plays("in_a_panic", 101, |child| {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            multi_thread().block_on(async {
                let client = child.builder().connect().await.expect("the parent's node is there");
                let _guard = child.acquire(&client, &child.name).await;
                panic!("the work went wrong");
            })
        }));
        // Exits as a Rust program does after a panic in `main`.
        ended.unwrap_or_else(|_| exit(101));
    });
}

#[test]
fn in_a_panic_with_the_blocking_client() {
    plays("in_a_panic_with_the_blocking_client", 101, |child| {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let client = child.client_blocking();
            let _guard = child.acquire_blocking(&client);
            panic!("the work went wrong");
        }));
        ended.unwrap_or_else(|_| exit(101));
    });
}

#[test]
fn with_unread_answers_in_the_socket() {
    plays("with_unread_answers_in_the_socket", 0, |child| {
        let runtime = current_thread();
        runtime.block_on(async {
            let client = child.builder().connect().await.expect("the parent's node is there");
            let _guard = child.acquire(&client, &child.name).await;
            let asks: Vec<_> = (0..OTHERS).map(|number| Box::pin(ask(child, &client, number))).collect();
            let mut asks = pin!(asks);
            for ask in asks.iter_mut() {
                assert!(ask.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            // The driver sends the requests now. It runs on this thread, which then blocks until the requests are answered.
            tokio::task::yield_now().await;
            wait_until_answered(child);
        });
    });
}

async fn ask(child: &Child, client: &Client, number: usize) -> AnyGuard {
    child.acquire(client, &other(&child.name, number)).await
}

/// Waits until the last of the other names is taken. A separate client on another thread checks it.
fn wait_until_answered(child: &Child) {
    let (says, hears) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let client = child.client_blocking();
            let until = Instant::now() + PATIENCE;
            let is_free = || {
                let lock = client.lock(other(&child.name, OTHERS - 1));
                match child.efficiency {
                    true => client.try_acquire(lock.efficiency()).expect("the node answers").is_some(),
                    false => client.try_acquire(lock).expect("the node answers").is_some(),
                }
            };
            while is_free() {
                assert!(Instant::now() < until, "the requests were sent");
            }
            says.send(()).expect("the main thread waits");
        });
        hears.recv().expect("it was answered");
    });
}

#[test]
fn over_tls() {
    plays_over_tls("over_tls", |child| {
        current_thread().block_on(async {
            let client = child.builder().connect().await.expect("the parent's node is there");
            let _guard = child.acquire(&client, &child.name).await;
        });
    });
}

#[test]
fn over_tls_with_the_blocking_client() {
    plays_over_tls("over_tls_with_the_blocking_client", |child| {
        let client = child.client_blocking();
        let _guard = child.acquire_blocking(&client);
    });
}

fn plays_over_tls(test: &str, ending: impl FnOnce(&Child)) {
    if let Some(child) = Child::from_env() {
        ending(&child);
        exit(0);
    }
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["127.0.0.1"]).write(directory.path(), "node");
    let runtime = multi_thread();
    let (address, _runs) = runtime.block_on(async {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let tls = Some(TlsFiles { certificate, key, authority: None });
        let (begin, client_listen, http_listen, peer_listen) = (Begin::Found, free, free, free);
        let config = Config { begin, client_listen, http_listen, peer_listen, tls, ..Config::default() };
        let server = Server::start(config).await.expect("it starts");
        server.wait_until_ready().await;
        server.wait_until_member().await;
        let address = server.client_address();
        (address, tokio::spawn(async move { server.run_until(std::future::pending()).await }))
    });
    let written = authority.write(directory.path(), "authority.pem");
    let builder = Client::builder().endpoint(address.to_string()).tls(Tls::new(authority.pem()));
    let client = runtime.block_on(builder.connect()).expect("it serves");
    watches(test, 0, &runtime, &client, &address.to_string(), Some(&written));
}
