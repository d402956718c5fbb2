//! The settings. Each value comes from a flag, else from the environment, else from the file, else from the default.
//!
//! One table names every key; the flag, the variable and the key of the file follow from the name. All four give a value as the
//! same text, so it is parsed in one place, and an error says where the wrong value comes from.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches};
use fencepost::Tls;
use fencepost_core::shortened;
use fencepost_server::{Begin, Config, TlsFiles};

use crate::failure::{Failure, Result};

/// Whether an environment variable holds a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// Not a secret: an address, a number, or the path of a file, even if the file holds a secret.
    Plain,
    /// The value is a secret. The command of `run` does not inherit it.
    Secret,
}

/// A setting.
pub(crate) struct Key {
    /// `--name` as a flag, `FENCEPOST_NAME` in the environment, `name = ...` in the file.
    pub(crate) name: &'static str,
    /// The placeholder of the value in `--help`. `None` for a switch.
    value: Option<&'static str>,
    holds: Holds,
    help: &'static str,
}

const fn key(name: &'static str, value: &'static str, help: &'static str) -> Key {
    Key { name, value: Some(value), holds: Holds::Plain, help }
}

const fn switch(name: &'static str, help: &'static str) -> Key {
    Key { name, value: None, holds: Holds::Plain, help }
}

/// The settings of a node.
const NODE: &[Key] = &[
    key("name", "NAME", "The name of this node, unique in the cluster [default: the host name]"),
    key("data", "DIR", "The directory for the node's log and snapshots [default: fencepost-data]"),
    switch("new-cluster", "Found a new cluster with this node; refused if the directory has a log already"),
    key("join", "ADDR,...", "Join the cluster of these nodes, given by their client addresses"),
    key("listen-client", "IP:PORT", "Listen here for clients [default: 127.0.0.1:7420]"),
    key("listen-http", "IP:PORT", "Listen here for HTTP: health, readiness and metrics [default: 127.0.0.1:7421]"),
    key("listen-peer", "IP:PORT", "Listen here for the other nodes [default: 127.0.0.1:7422]"),
    key("advertise-client", "HOST:PORT", "The address at which clients reach this node [default: the listen address]"),
    key(
        "advertise-peer",
        "HOST:PORT",
        "The address at which other nodes reach this node [default: the listen address]",
    ),
    key("tls-cert", "FILE", "TLS for clients and HTTP: the certificate, in PEM"),
    key("tls-key", "FILE", "The private key of tls-cert, in PEM"),
    key("tls-client-ca", "FILE", "Serve only clients with a certificate from these authorities, in PEM"),
    key("peer-cert", "FILE", "TLS among nodes: the certificate with this node's name, in PEM"),
    key("peer-key", "FILE", "The private key of peer-cert, in PEM"),
    key("peer-ca", "FILE", "The authorities that sign the nodes' certificates, in PEM"),
    key("join-ca", "FILE", "For --join: the authorities that sign the nodes' tls-cert, in PEM [default: peer-ca]"),
    switch("insecure", "Allow addresses without TLS that other machines can reach"),
    key("snapshot-every-entries", "N", "Make a snapshot after this many log entries [default: 100000]"),
    key("snapshot-every-bytes", "N", "Make a snapshot after this many bytes of log [default: 67108864]"),
    key("log-format", "FORMAT", "Logs on standard error: text or json [default: text]"),
    key("log-level", "LEVEL", "Log level: error, warn, info, debug or trace, also per module [default: info]"),
];

/// The settings of every client command.
const CLIENT: &[Key] = &[
    key("server", "HOST:PORT,...", "Nodes of the cluster; one is enough to find the others [default: 127.0.0.1:7420]"),
    key(
        "timeout",
        "DURATION",
        "Look for the leader this long, also while no node runs [default: 5s, but if every node refuses: no longer]",
    ),
    key("ca", "FILE", "Use TLS, and trust nodes with a certificate from these authorities, in PEM"),
    key("cert", "FILE", "The client's certificate, for nodes that ask for one, in PEM"),
    key("key", "FILE", "The private key of cert, in PEM"),
    key("server-name", "NAME", "The name in the nodes' certificates [default: the host in the node's address]"),
];

/// The password of a store. Not a flag, because a list of processes shows flags.
pub(crate) const STORE_PASSWORD: &str = "FENCEPOST_STORE_PASSWORD";

/// `FENCEPOST_*` variables that are not settings: the path of the file, what `run` tells its command (a fencing token is not a secret), and
/// the password of a store.
const OTHER_VARIABLES: &[(&str, Holds)] = &[
    ("FENCEPOST_CONFIG", Holds::Plain),
    ("FENCEPOST_LOCK", Holds::Plain),
    ("FENCEPOST_TOKEN", Holds::Plain),
    ("FENCEPOST_DEADLINE", Holds::Plain),
    (crate::nesting::VARIABLE, Holds::Plain),
    (STORE_PASSWORD, Holds::Secret),
];

impl Key {
    pub(crate) fn variable(&self) -> String {
        format!("FENCEPOST_{}", self.name.replace('-', "_").to_uppercase())
    }

    fn flag(&self) -> Arg {
        let flag = Arg::new(self.name).long(self.name).help(format!("{} [env: {}]", self.help, self.variable()));
        match self.value {
            Some(value) => flag.value_name(value).action(ArgAction::Set),
            None => flag.action(ArgAction::SetTrue),
        }
    }

    fn default(&self) -> String {
        let node = Config::default();
        match self.name {
            "name" => host_name(),
            "data" => "fencepost-data".to_owned(),
            "new-cluster" | "insecure" => "false".to_owned(),
            "listen-client" | "server" => node.client_listen.to_string(),
            "listen-http" => node.http_listen.to_string(),
            "listen-peer" => node.peer_listen.to_string(),
            "snapshot-every-entries" => node.snapshot_every_entries.to_string(),
            "snapshot-every-bytes" => node.snapshot_every_bytes.to_string(),
            "log-format" => "text".to_owned(),
            "log-level" => "info".to_owned(),
            // No default.
            _ => String::new(),
        }
    }
}

pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "node".to_owned())
}

/// The values from flags.
type Flags = BTreeMap<&'static str, String>;

fn read_flags(keys: &'static [Key], matches: &ArgMatches) -> Flags {
    let value = |key: &Key| match key.value {
        Some(_) => matches.get_one::<String>(key.name).cloned(),
        None => matches.get_flag(key.name).then(|| "true".to_owned()),
    };
    keys.iter().filter_map(|key| Some((key.name, value(key)?))).collect()
}

/// The flags of a node, generated from the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFlags(Flags);

/// The flags of every client command, generated from the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientFlags(Flags);

/// The traits that clap needs for flags that are not derived.
macro_rules! flags_of {
    ($flags:ident, $keys:ident) => {
        impl clap::FromArgMatches for $flags {
            fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<$flags, clap::Error> {
                Ok($flags(read_flags($keys, matches)))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
                *self = $flags::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl clap::Args for $flags {
            fn augment_args(command: clap::Command) -> clap::Command {
                command.args($keys.iter().map(Key::flag))
            }

            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                $flags::augment_args(command)
            }
        }
    };
}

flags_of!(NodeFlags, NODE);
flags_of!(ClientFlags, CLIENT);

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Flag(&'static str),
    Variable(String),
    File(PathBuf),
    Default,
}

impl std::fmt::Display for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Flag(name) => write!(formatter, "flag --{name}"),
            Source::Variable(name) => write!(formatter, "environment {name}"),
            Source::File(path) => write!(formatter, "file {}", path.display()),
            Source::Default => write!(formatter, "default"),
        }
    }
}

/// A value as text, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) source: Source,
}

/// Every value in force.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) all: Vec<Setting>,
}

impl Settings {
    /// Merges flags, environment, file and defaults.
    ///
    /// # Errors
    /// The file cannot be read or has an unknown key, or a variable is not UTF-8.
    pub(crate) fn gather(node: &NodeFlags, client: &ClientFlags, file: Option<&Path>) -> Result<Settings> {
        let file_path = file.map(Path::to_owned).or_else(|| std::env::var_os("FENCEPOST_CONFIG").map(PathBuf::from));
        let from_file = file_path.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let mut all = Vec::new();
        for key in NODE.iter().chain(CLIENT) {
            let flag = node.0.get(key.name).or_else(|| client.0.get(key.name));
            let variable = key.variable();
            let (value, source) = if let Some(value) = flag {
                (value.clone(), Source::Flag(key.name))
            } else if let Some(value) = std::env::var_os(&variable) {
                let value = value.into_string().map_err(|value| {
                    Failure::usage(format!("{variable} is {value:?}, which is not UTF-8: change or unset it"))
                })?;
                (value, Source::Variable(variable))
            } else if let (Some(value), Some(path)) = (from_file.get(key.name), &file_path) {
                (value.clone(), Source::File(path.clone()))
            } else {
                (key.default(), Source::Default)
            };
            all.push(Setting { name: key.name, value, source });
        }
        Ok(Settings { all })
    }

    pub(crate) fn get(&self, name: &str) -> &Setting {
        self.all.iter().find(|setting| setting.name == name).expect("every key of the table was gathered")
    }

    /// The settings of a node.
    pub(crate) fn of_node(&self) -> impl Iterator<Item = &Setting> {
        self.all.iter().filter(|setting| NODE.iter().any(|key| key.name == setting.name))
    }

    /// A value, unless it is empty.
    fn text(&self, name: &str) -> Option<String> {
        Some(self.get(name).value.clone()).filter(|text| !text.is_empty())
    }

    /// The configuration for the server library.
    ///
    /// # Errors
    /// A value is not valid. The message says where it comes from and what to write instead.
    pub(crate) fn node_config(&self) -> Result<Config> {
        let text = |name| self.text(name);
        let join = list(&self.get("join").value);
        for address in &join {
            check_host_port(address).map_err(|why| self.refuse("join", &why))?;
        }
        let begin = match (self.switch("new-cluster")?, join.is_empty()) {
            (true, false) => {
                return Err(Failure::usage(
                    "--new-cluster founds a cluster and --join joins one: use one of them, not both",
                ));
            }
            (true, true) => Begin::Found,
            (false, false) => Begin::Join(join),
            (false, true) => Begin::Never,
        };
        for name in ["advertise-client", "advertise-peer"] {
            if let Some(address) = text(name) {
                check_host_port(&address).map_err(|why| self.refuse(name, &why))?;
            }
        }
        let directory = text("data").ok_or_else(|| self.refuse("data", "empty: give a directory"))?;
        Ok(Config {
            name: text("name").ok_or_else(|| self.refuse("name", "empty: give a name"))?,
            directory: Some(PathBuf::from(directory)),
            begin,
            client_listen: self.address("listen-client")?,
            http_listen: self.address("listen-http")?,
            peer_listen: self.address("listen-peer")?,
            client_advertise: text("advertise-client"),
            peer_advertise: text("advertise-peer"),
            tls: self.tls_files(["tls-cert", "tls-key"], "tls-client-ca")?,
            peer_tls: self.tls_files(["peer-cert", "peer-key", "peer-ca"], "peer-ca")?,
            join_authority: self.path("join-ca", "tls-cert")?,
            insecure: self.switch("insecure")?,
            snapshot_every_entries: self.number("snapshot-every-entries")?,
            snapshot_every_bytes: self.number("snapshot-every-bytes")?,
        })
    }

    /// The TLS files of a port, if it uses TLS. The files in `together` must all be given, or none.
    fn tls_files(&self, together: impl AsRef<[&'static str]>, authority: &str) -> Result<Option<TlsFiles>> {
        let together = together.as_ref();
        if together.iter().all(|name| self.text(name).is_none()) {
            return self.path(authority, together[0]).map(|_| None);
        }
        let mut missing = together.iter().filter(|name| self.text(name).is_none());
        if let Some(missing) = missing.next() {
            let all: Vec<String> = together.iter().map(|name| format!("--{name}")).collect();
            return Err(Failure::usage(format!("{} belong together: give --{missing}, too", all.join(", "))));
        }
        let path = |name| PathBuf::from(&self.get(name).value);
        let authority = self.text(authority).map(PathBuf::from);
        Ok(Some(TlsFiles { certificate: path(together[0]), key: path(together[1]), authority }))
    }

    /// The path of a file, which needs the setting `needs`.
    fn path(&self, name: &str, needs: &str) -> Result<Option<PathBuf>> {
        match self.text(name) {
            Some(_) if self.text(needs).is_none() => {
                Err(self.refuse(name, &format!("it has no effect without TLS: give --{needs}, too")))
            }
            path => Ok(path.map(PathBuf::from)),
        }
    }

    /// How long a client looks for the leader, if that is set.
    ///
    /// # Errors
    /// The value is not a duration.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>> {
        let parse = |text: String| crate::duration::parse(&text).map_err(|why| self.refuse("timeout", &why));
        self.text("timeout").map(parse).transpose()
    }

    /// The TLS settings of a client, if it uses TLS.
    ///
    /// # Errors
    /// A file cannot be read, or a setting that it needs is missing.
    pub(crate) fn client_tls(&self) -> Result<Option<Tls>> {
        let read = |name: &str| match self.path(name, "ca")? {
            Some(path) => std::fs::read(path).map(Some).map_err(|error| {
                self.refuse(name, &format!("cannot be read: {error}; give a file that this user can read"))
            }),
            None => Ok(None),
        };
        let (authority, certificate, key) = (read("ca")?, read("cert")?, read("key")?);
        let name = self.path("server-name", "ca").map(|_| self.text("server-name"))?;
        let Some(authority) = authority else { return Ok(None) };
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Tls::new(authority).identity(certificate, key),
            (None, None) => Tls::new(authority),
            _ => return Err(Failure::usage("--cert and --key belong together: give both, or none")),
        };
        Ok(Some(match name {
            Some(name) => tls.server_name(name),
            None => tls,
        }))
    }

    fn address(&self, name: &str) -> Result<SocketAddr> {
        let no_address = |_| self.refuse(name, "not an IP:PORT: write one like 127.0.0.1:7420 or [::1]:7420");
        self.get(name).value.parse().map_err(no_address)
    }

    fn number(&self, name: &str) -> Result<u64> {
        self.get(name).value.parse().map_err(|_| self.refuse(name, "not a whole number: write one like 100000"))
    }

    fn switch(&self, name: &str) -> Result<bool> {
        match self.get(name).value.as_str() {
            "true" | "1" | "yes" => Ok(true),
            "false" | "0" | "no" | "" => Ok(false),
            _ => Err(self.refuse(name, "neither true nor false: write one of them")),
        }
    }

    /// The failure for a wrong value: the value, where it comes from, and what is wrong.
    pub(crate) fn refuse(&self, name: &str, why: &str) -> Failure {
        let Setting { value, source, .. } = self.get(name);
        Failure::usage(format!("{name} = {:?} ({source}): {why}", shortened(value)))
    }
}

/// The parts of a comma-separated list.
pub(crate) fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Checks that this is `HOST:PORT`.
pub(crate) fn check_host_port(text: &str) -> std::result::Result<(), String> {
    let is_good = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_plain = !host.is_empty() && !host.contains(|it: char| it.is_whitespace() || "/@?#".contains(it));
        is_plain && port.parse::<u16>().is_ok()
    });
    let shown = shortened(text);
    if is_good { Ok(()) } else { Err(format!("{shown:?} is not HOST:PORT: write one like 127.0.0.1:7420")) }
}

/// Every variable that this program reads or sets, and what it holds.
fn variables() -> impl Iterator<Item = (String, Holds)> {
    let keys = NODE.iter().chain(CLIENT).map(|key| (key.variable(), key.holds));
    keys.chain(OTHER_VARIABLES.iter().map(|(name, holds)| ((*name).to_owned(), *holds)))
}

/// The variables whose value is a secret.
pub(crate) fn secret_variables() -> impl Iterator<Item = String> {
    variables().filter(|(_, holds)| *holds == Holds::Secret).map(|(name, _)| name)
}

/// `FENCEPOST_*` variables that are unknown, probably because of a typing error.
pub(crate) fn unknown_variables() -> Vec<String> {
    let known = |name: &str| variables().any(|(known, _)| known == name);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<String> = names.filter(|name| name.starts_with("FENCEPOST_") && !known(name)).collect();
    unknown.sort();
    unknown
}

fn read_file(path: &Path) -> Result<BTreeMap<String, String>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("cannot read {shown}: {error}; give another file with --config or FENCEPOST_CONFIG"))
    })?;
    parse_file(&text).map_err(|why| Failure::usage(format!("{shown}: {why}")))
}

fn parse_file(text: &str) -> std::result::Result<BTreeMap<String, String>, String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| format!("not valid TOML: {}", error.to_string().trim_end()))?;
    let mut found = BTreeMap::new();
    for (name, value) in table {
        if !NODE.iter().chain(CLIENT).any(|key| key.name == name) {
            let known: Vec<&str> = NODE.iter().chain(CLIENT).map(|key| key.name).collect();
            let close =
                known.iter().find(|known| known.replace('-', "") == name.replace(['-', '_'], "").to_lowercase());
            let hint = close.map(|close| format!("; do you mean `{close}`?")).unwrap_or_default();
            return Err(format!("unknown key `{name}`{hint}; the keys are: {}", known.join(", ")));
        }
        let value = words(&value).ok_or_else(|| {
            format!(
                "`{name}` has the type {}: write a string, a number, true or false, or a list of strings",
                value.type_str()
            )
        })?;
        found.insert(name, value);
    }
    Ok(found)
}

/// A value of the file, as the text that a flag would have.
fn words(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(yes) => Some(yes.to_string()),
        toml::Value::Array(parts) => {
            let parts: Option<Vec<&str>> = parts.iter().map(toml::Value::as_str).collect();
            Some(parts?.join(","))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_file_is_read_as_the_text_of_its_flag() {
        let text = "name = 'n1'\nnew-cluster = true\njoin = ['a:1', 'b:2']\nsnapshot-every-entries = 5\n";
        let read = parse_file(text).unwrap();
        let words: Vec<(&str, &str)> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [("join", "a:1,b:2"), ("name", "n1"), ("new-cluster", "true"), ("snapshot-every-entries", "5")];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_wrong_file_is_refused_with_what_to_write() {
        let table = [
            ("listen_client = 'x'", "unknown key `listen_client`; do you mean `listen-client`?"),
            ("colour = 'red'", "the keys are: name, data, new-cluster"),
            ("name = 1.5", "`name` has the type float: write"),
            ("join = [1]", "`join` has the type array: write"),
            ("name = ", "not valid TOML"),
        ];
        for (text, part) in table {
            let message = parse_file(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    /// A path is not a secret, and a command that is itself a client needs it.
    #[test]
    fn a_password_is_a_secret_and_a_path_is_not() {
        let secrets: Vec<String> = secret_variables().collect();
        assert_eq!(secrets, [STORE_PASSWORD]);
        for path in ["FENCEPOST_CA", "FENCEPOST_CERT", "FENCEPOST_KEY", "FENCEPOST_TLS_KEY", "FENCEPOST_PEER_KEY"] {
            assert!(variables().any(|(name, holds)| name == path && holds == Holds::Plain), "{path}");
        }
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["127.0.0.1:7420", "db-1.example:1", "[::1]:65535"] {
            assert_eq!(check_host_port(good), Ok(()), "{good}");
        }
        for bad in ["", "localhost", ":7420", "host:", "host:70000", "http://host:1", "a b:1"] {
            assert!(check_host_port(bad).is_err(), "{bad}");
        }
    }
}
