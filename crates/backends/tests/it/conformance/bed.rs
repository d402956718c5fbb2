//! The test bed: one lock system with its servers, and clients of it.
//!
//! It starts the servers, knows their addresses, and can stop servers that belong to one test. It tests nothing itself.

use std::any::Any;
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

use fencepost::Efficiency;
use fencepost_backends::{Client, ClientBuilder, LockRequest, System, Tier};
use fencepost_testbed::{Kind, Server, own, shared};
use fencepost_testing::TestServer;

/// Long enough for anything on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A TTL that expires during the test. Long enough for a busy machine to use the lock before that.
pub(crate) const TTL_SHORT: Duration = Duration::from_secs(4);

/// A system with its servers.
pub(crate) struct Bed {
    pub(crate) system: System,
    /// The ports of its servers, on the loopback.
    pub(crate) ports: Vec<u16>,
    /// The servers that belong to this bed only, and end with it. Empty if the servers are shared.
    servers: Vec<Box<dyn Any + Send + Sync>>,
}

impl Bed {
    /// A bed with servers that all tests of this process share; `None` if they are not installed.
    pub(crate) fn new(system: System) -> Option<Bed> {
        static NODE: OnceLock<TestServer> = OnceLock::new();
        let ports = match system {
            System::Fencepost | System::Memory => vec![NODE.get_or_init(TestServer::start).address().port()],
            System::Redlock => {
                static MASTERS: OnceLock<Vec<Server>> = OnceLock::new();
                shared(Kind::Redis)?;
                let masters = MASTERS.get_or_init(|| (0..5).filter_map(|_| own(Kind::Redis)).collect());
                masters.iter().map(Server::port).collect()
            }
            other => vec![shared(kind(other))?.port()],
        };
        Some(Bed { system, ports, servers: Vec::new() })
    }

    /// A bed with its own servers, for a test that stops them; `None` if they are not installed.
    pub(crate) fn own(system: System) -> Option<Bed> {
        let mut bed = Bed { system, ports: Vec::new(), servers: Vec::new() };
        match system {
            System::Fencepost | System::Memory => {
                let server = TestServer::start();
                bed.ports.push(server.address().port());
                bed.servers.push(Box::new(server));
            }
            other => {
                for _ in 0..if other == System::Redlock { 5 } else { 1 } {
                    let server = own(kind(other))?;
                    bed.ports.push(server.port());
                    bed.servers.push(Box::new(server));
                }
            }
        }
        Some(bed)
    }

    /// Kills its servers.
    pub(crate) fn end_servers(&mut self) {
        assert!(!self.servers.is_empty(), "this bed shares its servers");
        self.servers.clear();
    }

    /// Whether a server still listens.
    pub(crate) fn is_up(&self) -> bool {
        self.ports.iter().any(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok())
    }

    /// The address of the system with these ports.
    pub(crate) fn address(&self, ports: &[u16]) -> String {
        let places: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let places = places.join(",");
        match self.system {
            System::Fencepost | System::Memory => format!("fencepost://{places}"),
            System::Redis => format!("redis://{places}/"),
            System::Redlock => format!("redlock://{places}"),
            System::Etcd => format!("etcd://{places}"),
            System::Zookeeper => format!("zookeeper://{places}"),
            System::PostgresAdvisory => format!("postgres+advisory://postgres@{places}/postgres"),
            System::PostgresTable => format!("postgres+table://postgres@{places}/postgres"),
            System::PostgresRow => format!("postgres+row://postgres@{places}/postgres"),
        }
    }

    /// A client that uses these ports: those of the servers, or of proxies before them.
    pub(crate) fn builder(&self, ports: &[u16]) -> ClientBuilder {
        // With a rule for correctness, requests for efficiency also use the replicated locks.
        let tier = (self.system == System::Fencepost).then_some(Tier::Correctness);
        Client::builder().rule("", &self.address(ports), tier)
    }

    pub(crate) async fn client(&self) -> Client {
        self.builder(&self.ports).connect().await.expect("the server is up")
    }

    /// A client whose locks expire soon after its last renewal.
    pub(crate) async fn client_with_short_ttl(&self) -> Client {
        self.builder(&self.ports).ttl(TTL_SHORT).connect().await.expect("the server is up")
    }
}

/// A request that every system accepts.
pub(crate) fn lock(client: &Client, name: &str) -> LockRequest<Efficiency> {
    client.lock(name).efficiency().wait(PATIENCE)
}

/// The kind of server that a system needs.
fn kind(system: System) -> Kind {
    match system {
        System::Redis | System::Redlock => Kind::Redis,
        System::PostgresAdvisory | System::PostgresTable | System::PostgresRow => Kind::Postgres,
        System::Etcd => Kind::Etcd,
        System::Zookeeper => Kind::Zookeeper,
        other => panic!("{other:?} has no server in the testbed"),
    }
}
