//! The kinds of servers: which programs each needs, how its directory is prepared, its command line, and how it reports that it
//! is ready.
//!
//! This file starts nothing: see `process.rs`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file with the settings of one server that are known only at run time: the database of a pooler, the members of a cluster.
pub(crate) const SETTINGS: &str = "settings.particular";

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB, for tests of MySQL.
    MariaDb,
    /// Redis with an append-only file that is synced each second.
    Redis,
    /// Redis without persistence.
    RedisInMemory,
    /// Redis that syncs before it answers.
    RedisSynced,
    /// S3, as the Python package moto serves it.
    S3,
    /// PgBouncer, a pooler before a Postgres: see [`crate::pooler`].
    PgBouncer,
    /// etcd, a cluster of one.
    Etcd,
    /// One member of an etcd cluster: see [`crate::Server::start_cluster`].
    EtcdMember,
    /// ZooKeeper, one server with short ticks that does not sync: for tests.
    Zookeeper,
    /// One member of a ZooKeeper ensemble, with ZooKeeper's default settings: see [`crate::Server::start_cluster`].
    ZookeeperMember,
}

/// The option of MariaDB for its temporary files. A server that starts removes all temporary tables of that directory, also those of
/// another server that uses them at this moment, which then crashes. So no two of them share one.
fn own_tmpdir(directory: &Path) -> String {
    format!("--tmpdir={}", directory.display())
}

impl Kind {
    /// All kinds.
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

    /// The programs that it needs, and what to install for them.
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

    /// What is missing on this machine, and what to install. `None` if nothing is missing.
    pub fn missing(self) -> Option<String> {
        let (programs, source) = self.needs();
        let missing = programs.iter().find(|name| program(name).is_none())?;
        Some(format!("{missing} was not found: install {source}"))
    }

    /// The user that runs it, if we are root. These servers refuse to run as root, or should not run as root.
    pub(crate) fn user(self) -> Option<&'static str> {
        match self {
            Kind::Postgres | Kind::PgBouncer => Some("postgres"),
            Kind::MariaDb => Some("mysql"),
            Kind::Redis | Kind::RedisInMemory | Kind::RedisSynced => Some("redis"),
            Kind::S3 | Kind::Etcd | Kind::EtcdMember | Kind::Zookeeper | Kind::ZookeeperMember => None,
        }
    }

    /// A directory in memory, for a server that must not use a disk. A single etcd syncs every write, and no option turns that off.
    /// On a busy machine a sync takes seconds, and tests would wait for the disk. Tests only need the data to outlive the process,
    /// and a directory in memory does that.
    pub(crate) fn memory(self) -> Option<&'static Path> {
        let memory = Path::new("/dev/shm");
        (self == Kind::Etcd && memory.is_dir()).then_some(memory)
    }

    /// The command that prepares the directory once, if there is one.
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
                command.arg(own_tmpdir(directory));
                Some(command)
            }
            _ => None,
        }
    }

    /// The command that runs it on this port, in the foreground.
    pub(crate) fn serve(self, directory: &Path, port: u16) -> Command {
        let (programs, _) = self.needs();
        let server = programs.last().and_then(|name| program(name)).expect("`missing` was checked before");
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
                command.arg(own_tmpdir(directory));
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
            // These three read their port only from a file. The rest of the file was written before.
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
                // A small JVM that starts fast. Empty containers are removed every 100 ms, so that tests can see it.
                command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
                command.args(["-Dznode.container.checkIntervalMs=100", "-cp"]).arg(zookeeper_jars(programs));
                command.arg(ZOOKEEPER).arg(settings);
            }
        }
        command
    }

    /// The signal that ends it at once. After SIGKILL, Postgres would leave child processes and shared memory behind.
    pub(crate) fn end_signal(self) -> &'static str {
        match self {
            Kind::Postgres => "QUIT",
            _ => "KILL",
        }
    }

    /// A part of the line that it prints when it is ready.
    pub(crate) fn ready(self) -> &'static str {
        match self {
            Kind::Postgres => "database system is ready to accept connections",
            Kind::MariaDb => "ready for connections",
            Kind::Redis | Kind::RedisInMemory | Kind::RedisSynced => "Ready to accept connections",
            Kind::S3 => "Running on http://127.0.0.1",
            Kind::PgBouncer => "process up",
            Kind::Etcd | Kind::EtcdMember => "ready to serve client requests",
            Kind::Zookeeper => "ZooKeeper audit is",
            // The member leads or follows, and has the data of the ensemble.
            Kind::ZookeeperMember => " - broadcast",
        }
    }

    /// Its address for clients.
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

/// The main class in ZooKeeper's jars.
const ZOOKEEPER: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

fn zookeeper_jars(programs: &[&str]) -> OsString {
    let jars = programs.iter().filter(|name| name.ends_with(".jar")).filter_map(|name| program(name));
    std::env::join_paths(jars).expect("Debian's paths contain no colon")
}

/// Writes a file with the settings in [`SETTINGS`] and with `these`, and returns its path.
fn settings_with(directory: &Path, these: &str) -> PathBuf {
    let settings =
        std::fs::read_to_string(directory.join(SETTINGS)).expect("it was written when the directory was prepared");
    let file = directory.join("settings");
    std::fs::write(&file, settings + these).expect("the directory is ours");
    file
}

/// One server with short ticks, because a session timeout is at least two ticks. Without syncs, because the data need not survive a
/// crash of the machine.
fn zookeeper_settings(data: &Path, port: u16) -> String {
    format!(
        "dataDir={}\nclientPortAddress=127.0.0.1\nclientPort={port}\ntickTime=200\nmaxSessionTimeout=60000\n\
         maxClientCnxns=0\nadmin.enableServer=false\nforceSync=no\n4lw.commands.whitelist=*\n",
        data.display()
    )
}

/// The path of a program. Searches `PATH` and the directories where Debian keeps servers and jars. `FENCEPOST_MOTO_SERVER` names the
/// path of `moto_server`.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
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
