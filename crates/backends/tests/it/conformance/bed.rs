//! A system to be tested, and clients of it.

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
/// A TTL that is to run out in the test. Long enough for a busy machine to use the lock before.
pub(crate) const TTL_SHORT: Duration = Duration::from_secs(4);

/// A system with its servers.
pub(crate) struct Bed {
    pub(crate) system: System,
    /// Of its servers, on the loopback.
    pub(crate) ports: Vec<u16>,
    /// Those that are this bed's alone, and end with it.
    servers: Vec<Box<dyn Any + Send + Sync>>,
}

impl Bed {
    /// With servers that the tests of this process share; none if they cannot be had.
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

    /// With servers of its own, for a test that ends them; none if they cannot be had.
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

    /// Ends its servers at once.
    pub(crate) fn end_servers(&mut self) {
        assert!(!self.servers.is_empty(), "only a bed of one's own");
        self.servers.clear();
    }

    /// Whether anybody still listens.
    pub(crate) fn is_up(&self) -> bool {
        self.ports.iter().any(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok())
    }

    /// Where the system is, if these are its ports.
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

    /// A client, through other ports than the servers' if they are named.
    pub(crate) fn builder(&self, ports: &[u16]) -> ClientBuilder {
        // A rule for correctness sends those who ask for less to the replicated locks, too.
        let tier = (self.system == System::Fencepost).then_some(Tier::Correctness);
        Client::builder().rule("", &self.address(ports), tier)
    }

    pub(crate) async fn client(&self) -> Client {
        self.builder(&self.ports).connect().await.expect("the server is up")
    }

    /// A client whose locks end soon after it falls silent.
    pub(crate) async fn client_with_short_ttl(&self) -> Client {
        self.builder(&self.ports).ttl(TTL_SHORT).connect().await.expect("the server is up")
    }
}

/// A lock that every system can give.
pub(crate) fn lock(client: &Client, name: &str) -> LockRequest<Efficiency> {
    client.lock(name).efficiency().wait(PATIENCE)
}

/// The server of a system.
fn kind(system: System) -> Kind {
    match system {
        System::Redis | System::Redlock => Kind::Redis,
        System::PostgresAdvisory | System::PostgresTable | System::PostgresRow => Kind::Postgres,
        System::Etcd => Kind::Etcd,
        System::Zookeeper => Kind::Zookeeper,
        other => panic!("{other:?} has no server yet"),
    }
}
