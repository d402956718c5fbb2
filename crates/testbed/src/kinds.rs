//! The kinds of servers: what each needs, how its directory is prepared, how it is run and when it serves.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is particular to one server of a kind that cannot be started without: the pooler's database, the others of a cluster.
pub(crate) const SETTINGS: &str = "settings.particular";

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB, for whatever speaks MySQL.
    MariaDb,
    /// Redis that writes what it does to a file, and syncs that each second.
    Redis,
    /// Redis that writes nothing down.
    RedisInMemory,
    /// Redis that syncs before it answers.
    RedisSynced,
    /// S3, as the Python package moto serves it.
    S3,
    /// PgBouncer, a pooler before a Postgres: see [`crate::pooler`].
    PgBouncer,
    /// etcd, a cluster of one.
    Etcd,
    /// One of several etcd: see [`crate::Server::start_cluster`].
    EtcdMember,
    /// ZooKeeper, one server with short ticks that does not sync: for tests.
    Zookeeper,
    /// One of several ZooKeepers, with the settings of its makers: see [`crate::Server::start_cluster`].
    ZookeeperMember,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 11] = [
        Kind::Postgres,
        Kind::MariaDb,
        Kind::Redis,
        Kind::RedisInMemory,
        Kind::RedisSynced,
        Kind::S3,
        Kind::PgBouncer,
        Kind::Etcd,
        Kind::EtcdMember,
        Kind::Zookeeper,
        Kind::ZookeeperMember,
    ];

    /// The programs that it takes, and where they come from.
    fn needs(self) -> (&'static [&'static str], &'static str) {
        match self {
            Kind::Postgres => (&["initdb", "postgres"], "the Debian package postgresql"),
            Kind::MariaDb => (&["mariadb-install-db", "mariadbd"], "the Debian package mariadb-server"),
            Kind::Redis | Kind::RedisInMemory | Kind::RedisSynced => {
                (&["redis-server"], "the Debian package redis-server")
            }
            Kind::S3 => {
                (&["moto_server"], "moto[server] with pip, and name its program moto_server in FENCEPOST_MOTO_SERVER")
            }
            Kind::PgBouncer => (&["pgbouncer"], "the Debian package pgbouncer"),
            Kind::Etcd | Kind::EtcdMember => (&["etcd"], "the Debian package etcd-server"),
            Kind::Zookeeper | Kind::ZookeeperMember => {
                let programs = &["zookeeper.jar", "slf4j-simple.jar", "java"];
                (programs, "the Debian packages libzookeeper-java and default-jre-headless")
            }
        }
    }

    /// What is missing on this machine, and where to get it.
    pub fn missing(self) -> Option<String> {
        let (programs, source) = self.needs();
        let missing = programs.iter().find(|name| program(name).is_none())?;
        Some(format!("{missing} was not found: install {source}"))
    }

    /// The user that it runs as, if we are root: these servers refuse to run as root, or should not.
    pub(crate) fn user(self) -> Option<&'static str> {
        match self {
            Kind::Postgres | Kind::PgBouncer => Some("postgres"),
            Kind::MariaDb => Some("mysql"),
            Kind::Redis | Kind::RedisInMemory | Kind::RedisSynced => Some("redis"),
            Kind::S3 | Kind::Etcd | Kind::EtcdMember | Kind::Zookeeper | Kind::ZookeeperMember => None,
        }
    }

    /// Where its directory is, if it must not be on a disk: a single etcd syncs every write and cannot be told not to. On a busy
    /// machine that takes seconds, and a test would wait for the disk. What is in memory outlives the process, and that is all
    /// that tests need.
    pub(crate) fn memory(self) -> Option<&'static Path> {
        let memory = Path::new("/dev/shm");
        (self == Kind::Etcd && memory.is_dir()).then_some(memory)
    }

    /// What prepares the directory, once.
    pub(crate) fn prepare(self, directory: &Path) -> Option<Command> {
        match self {
            Kind::Postgres => {
                let mut command = Command::new(program("initdb")?);
                command.args(["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C"]);
                command.arg("-D").arg(directory.join("data"));
                Some(command)
            }
            Kind::MariaDb => {
                let mut command = Command::new(program("mariadb-install-db")?);
                command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
                command.arg(format!("--datadir={}", directory.join("data").display()));
                Some(command)
            }
            _ => None,
        }
    }

    /// What runs it on this port. It stays in the foreground.
    pub(crate) fn serve(self, directory: &Path, port: u16) -> Command {
        let (programs, _) = self.needs();
        let server = programs.last().and_then(|name| program(name)).expect("nothing was missing");
        let mut command = Command::new(&server);
        let data = directory.join("data");
        match self {
            Kind::Postgres => {
                command.arg("-D").arg(data).arg("-p").arg(port.to_string());
                command.args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300"]);
                command.arg("-c").arg(format!("unix_socket_directories={}", directory.display()));
            }
            Kind::MariaDb => {
                command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--max-connections=200"]);
                command.arg(format!("--datadir={}", data.display())).arg(format!("--port={port}"));
                command.arg(format!("--socket={}", directory.join("socket").display()));
            }
            Kind::Redis | Kind::RedisInMemory | Kind::RedisSynced => {
                let (appends, syncs) = match self {
                    Kind::RedisInMemory => ("no", "no"),
                    Kind::RedisSynced => ("yes", "always"),
                    _ => ("yes", "everysec"),
                };
                command.args(["--bind", "127.0.0.1", "--appendonly", appends, "--appendfsync", syncs, "--save", ""]);
                command.arg("--port").arg(port.to_string()).arg("--dir").arg(directory);
            }
            Kind::S3 => {
                command = Command::new(server.with_file_name("python3"));
                command.args(["-c", include_str!("s3.py")]).arg(port.to_string());
            }
            // The port of these three can be said in a file only, and what else is in it was written before.
            Kind::PgBouncer => {
                command.arg(settings_with(directory, &format!("listen_addr = 127.0.0.1\nlisten_port = {port}\n")));
            }
            Kind::EtcdMember => {
                let clients = format!("http://127.0.0.1:{port}");
                let place = format!("data-dir: {}\nlisten-client-urls: {clients}\n", data.display());
                let file = settings_with(directory, &format!("{place}advertise-client-urls: {clients}\n"));
                command.arg("--config-file").arg(file);
            }
            Kind::ZookeeperMember => {
                let place = format!("dataDir={}\nclientPortAddress=127.0.0.1\nclientPort={port}\n", data.display());
                let file = settings_with(directory, &place);
                command.args(["-Xmx512m", "-cp"]).arg(zookeeper_jars(programs)).arg(ZOOKEEPER).arg(file);
            }
            Kind::Etcd => {
                let clients = format!("http://127.0.0.1:{port}");
                command.arg("--data-dir").arg(data).args(["--listen-peer-urls", "http://127.0.0.1:0"]);
                command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            }
            Kind::Zookeeper => {
                let settings = directory.join("zoo.cfg");
                std::fs::write(&settings, zookeeper_settings(&data, port)).expect("the directory is ours");
                // A small machine that starts soon; and empty containers are cleared away while tests run, not after.
                command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
                command.args(["-Dznode.container.checkIntervalMs=100", "-cp"]).arg(zookeeper_jars(programs));
                command.arg(ZOOKEEPER).arg(settings);
            }
        }
        command
    }

    /// What ends it at once. Postgres, killed outright, would leave its processes and its shared memory behind.
    pub(crate) fn end_signal(self) -> &'static str {
        match self {
            Kind::Postgres => "QUIT",
            _ => "KILL",
        }
    }

    /// What it says when it serves.
    pub(crate) fn ready(self) -> &'static str {
        match self {
            Kind::Postgres => "database system is ready to accept connections",
            Kind::MariaDb => "ready for connections",
            Kind::Redis | Kind::RedisInMemory | Kind::RedisSynced => "Ready to accept connections",
            Kind::S3 => "Running on http://127.0.0.1",
            Kind::PgBouncer => "process up",
            Kind::Etcd | Kind::EtcdMember => "ready to serve client requests",
            Kind::Zookeeper => "ZooKeeper audit is",
            // It leads or follows, and has what the others have.
            Kind::ZookeeperMember => " - broadcast",
        }
    }

    /// Where its clients find it.
    pub(crate) fn url(self, port: u16) -> String {
        match self {
            Kind::Postgres | Kind::PgBouncer => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            Kind::MariaDb => format!("mysql://root@127.0.0.1:{port}/mysql"),
            Kind::Redis | Kind::RedisInMemory | Kind::RedisSynced => format!("redis://127.0.0.1:{port}/"),
            Kind::S3 => format!("http://127.0.0.1:{port}"),
            Kind::Etcd | Kind::EtcdMember => format!("etcd://127.0.0.1:{port}"),
            Kind::Zookeeper | Kind::ZookeeperMember => format!("zookeeper://127.0.0.1:{port}"),
        }
    }
}

/// The program within ZooKeeper's jars.
const ZOOKEEPER: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

fn zookeeper_jars(programs: &[&str]) -> OsString {
    let jars = programs.iter().filter(|name| name.ends_with(".jar")).filter_map(|name| program(name));
    std::env::join_paths(jars).expect("no colon in a place of Debian's")
}

/// A file with the settings that whoever prepared the directory wrote to [`SETTINGS`], and these.
fn settings_with(directory: &Path, these: &str) -> PathBuf {
    let settings = std::fs::read_to_string(directory.join(SETTINGS)).expect("it was written with the directory");
    let file = directory.join("settings");
    std::fs::write(&file, settings + these).expect("the directory is ours");
    file
}

/// One server with short ticks: a session lives at least two of them. What is written need not outlive the machine.
fn zookeeper_settings(data: &Path, port: u16) -> String {
    format!(
        "dataDir={}\nclientPortAddress=127.0.0.1\nclientPort={port}\ntickTime=200\nmaxSessionTimeout=60000\n\
         maxClientCnxns=0\nadmin.enableServer=false\nforceSync=no\n4lw.commands.whitelist=*\n",
        data.display()
    )
}

/// Where a program is: on the path, or where Debian keeps the servers that are not on it, and those in Java. Python's are where a variable says.
fn program(name: &str) -> Option<PathBuf> {
    if let ("moto_server", Some(named)) = (name, std::env::var_os("FENCEPOST_MOTO_SERVER")) {
        return Some(PathBuf::from(named)).filter(|file| file.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(["/usr/sbin", "/usr/local/sbin", "/usr/share/java"].map(PathBuf::from));
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    places.into_iter().map(|place| place.join(name)).find(|file| file.is_file())
}
