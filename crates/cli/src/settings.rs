//! Where a value comes from: a flag, else the environment, else the file, else the default.
//!
//! One table names every key; the flag, the variable and the key of the file follow from the name. All four say a value in the
//! same words, so a value is read in one place, and whoever wrote a wrong one hears where it stands.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches};
use fencepost::Tls;
use fencepost_server::{Begin, Config, TlsFiles};

use crate::failure::{Failure, Result};

/// What a variable of the environment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// What may be seen: an address, a number, the path of a file, though a secret may be in the file.
    Plain,
    /// A secret itself. The command of `run` does not inherit it.
    Secret,
}

/// Something that can be set.
pub(crate) struct Key {
    /// `--name` as a flag, `FENCEPOST_NAME` in the environment, `name = ...` in the file.
    pub(crate) name: &'static str,
    /// What stands for the value in `--help`; none for a yes or no.
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

/// What a node can be told.
const NODE: &[Key] = &[
    key("name", "NAME", "What people call this node; no two members have the same [default: the host's name]"),
    key("data", "DIR", "Where the node keeps its log [default: fencepost-data]"),
    switch("new-cluster", "Found a new cluster here; refused where there is a log already"),
    key("join", "ADDR,...", "Join the cluster that one of these client addresses belongs to"),
    key("listen-client", "IP:PORT", "Where clients connect [default: 127.0.0.1:7420]"),
    key("listen-http", "IP:PORT", "Where health, readiness and metrics are [default: 127.0.0.1:7421]"),
    key("listen-peer", "IP:PORT", "Where peers connect [default: 127.0.0.1:7422]"),
    key("advertise-client", "HOST:PORT", "What clients are told to connect to [default: where this node listens]"),
    key("advertise-peer", "HOST:PORT", "What peers are told to connect to [default: where this node listens]"),
    key("tls-cert", "FILE", "TLS for clients and HTTP: the certificate, in PEM"),
    key("tls-key", "FILE", "Its private key, in PEM"),
    key("tls-client-ca", "FILE", "Serve only clients with a certificate of these authorities, in PEM"),
    key("peer-cert", "FILE", "TLS among nodes: the certificate with this node's name, in PEM"),
    key("peer-key", "FILE", "Its private key, in PEM"),
    key("peer-ca", "FILE", "The authorities that sign the nodes' certificates, in PEM"),
    key("join-ca", "FILE", "The authorities that sign what other nodes show to clients [default: peer-ca]"),
    switch("insecure", "Listen without TLS where others can hear it"),
    key("snapshot-every-entries", "N", "Make a snapshot after so many log entries [default: 100000]"),
    key("snapshot-every-bytes", "N", "Make a snapshot after so many bytes of log [default: 67108864]"),
    key("log-format", "FORMAT", "Logs on standard error: text or json [default: text]"),
    key("log-level", "LEVEL", "error, warn, info, debug, trace, or per module [default: info]"),
];

/// What every client command can be told, and not a node.
const CLIENT: &[Key] = &[
    key("server", "HOST:PORT,...", "Nodes of the cluster; one is enough to find the others [default: 127.0.0.1:7420]"),
    key("ca", "FILE", "Speak TLS, and believe nodes with a certificate of these authorities, in PEM"),
    key("cert", "FILE", "The certificate to show to nodes that want one, in PEM"),
    key("key", "FILE", "Its private key, in PEM"),
    key("server-name", "NAME", "The name that the nodes' certificates bear [default: the host in the node's address]"),
];

/// The password of a store, where a list of processes does not show it.
pub(crate) const STORE_PASSWORD: &str = "FENCEPOST_STORE_PASSWORD";

/// `FENCEPOST_*` variables that are no settings: where the file is, what `run` tells its command (a fencing token is no secret), and
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
            // Not said.
            _ => String::new(),
        }
    }
}

pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "node".to_owned())
}

/// What was said by flags.
type Flags = BTreeMap<&'static str, String>;

fn read_flags(keys: &'static [Key], matches: &ArgMatches) -> Flags {
    let value = |key: &Key| match key.value {
        Some(_) => matches.get_one::<String>(key.name).cloned(),
        None => matches.get_flag(key.name).then(|| "true".to_owned()),
    };
    keys.iter().filter_map(|key| Some((key.name, value(key)?))).collect()
}

/// The flags of a node, made from the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFlags(Flags);

/// The flags of every client command, made from the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientFlags(Flags);

/// What clap asks of flags that it did not make itself.
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

/// A value in words, and where it came from.
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
    /// Puts flags, environment, file and defaults together. Besides, variables that look like settings and are none.
    ///
    /// # Errors
    /// The file cannot be read or has a key that is not known, or a variable is not UTF-8.
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
                    Failure::usage(format!("{variable} is {value:?}, which is not UTF-8: set it anew, or unset it"))
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

    /// Those that a node goes by.
    pub(crate) fn of_node(&self) -> impl Iterator<Item = &Setting> {
        self.all.iter().filter(|setting| NODE.iter().any(|key| key.name == setting.name))
    }

    /// A value, if there is one.
    fn text(&self, name: &str) -> Option<String> {
        Some(self.get(name).value.clone()).filter(|text| !text.is_empty())
    }

    /// What the server library is told.
    ///
    /// # Errors
    /// A value that cannot be read, with where it stands and what to write instead.
    pub(crate) fn node_config(&self) -> Result<Config> {
        let text = |name| self.text(name);
        let join = list(&self.get("join").value);
        for address in &join {
            check_host_port(address).map_err(|why| self.refuse("join", &why))?;
        }
        let begin = match (self.switch("new-cluster")?, join.is_empty()) {
            (true, false) => {
                return Err(Failure::usage(
                    "--new-cluster founds a cluster and --join joins one: say one of them, not both",
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
        let directory = text("data").ok_or_else(|| self.refuse("data", "empty: say a directory"))?;
        Ok(Config {
            name: text("name").ok_or_else(|| self.refuse("name", "empty: say a name"))?,
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

    /// The files of a port, if it has TLS. Some of them are of no use without the others.
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

    /// A file that means nothing without another.
    fn path(&self, name: &str, needs: &str) -> Result<Option<PathBuf>> {
        match self.text(name) {
            Some(_) if self.text(needs).is_none() => {
                Err(self.refuse(name, &format!("it means nothing without TLS: give --{needs}, too")))
            }
            path => Ok(path.map(PathBuf::from)),
        }
    }

    /// How a client speaks TLS, if it does.
    ///
    /// # Errors
    /// A file that cannot be read, or one that means nothing without another.
    pub(crate) fn client_tls(&self) -> Result<Option<Tls>> {
        let read = |name: &str| match self.path(name, "ca")? {
            Some(path) => std::fs::read(path).map(Some).map_err(|error| {
                self.refuse(name, &format!("cannot be read: {error}; say a file that this user may read"))
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
        let no_address = |_| self.refuse(name, "this is no IP:PORT: write one like 127.0.0.1:7420 or [::1]:7420");
        self.get(name).value.parse().map_err(no_address)
    }

    fn number(&self, name: &str) -> Result<u64> {
        self.get(name).value.parse().map_err(|_| self.refuse(name, "this is no whole number: write one like 100000"))
    }

    fn switch(&self, name: &str) -> Result<bool> {
        match self.get(name).value.as_str() {
            "true" | "1" | "yes" => Ok(true),
            "false" | "0" | "no" | "" => Ok(false),
            _ => Err(self.refuse(name, "this is neither true nor false: write one of them")),
        }
    }

    /// A value that cannot be, where it stands, and why.
    pub(crate) fn refuse(&self, name: &str, why: &str) -> Failure {
        let Setting { value, source, .. } = self.get(name);
        Failure::usage(format!("{name} = {value:?} ({source}): {why}"))
    }
}

/// The parts of a list with commas between them.
pub(crate) fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Whether this is `HOST:PORT`.
pub(crate) fn check_host_port(text: &str) -> std::result::Result<(), String> {
    let is_good = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_plain = !host.is_empty() && !host.contains(|it: char| it.is_whitespace() || "/@?#".contains(it));
        is_plain && port.parse::<u16>().is_ok()
    });
    if is_good { Ok(()) } else { Err(format!("{text:?} is no HOST:PORT: write one like 127.0.0.1:7420")) }
}

/// Every variable that this program reads or sets, and what it holds.
fn variables() -> impl Iterator<Item = (String, Holds)> {
    let keys = NODE.iter().chain(CLIENT).map(|key| (key.variable(), key.holds));
    keys.chain(OTHER_VARIABLES.iter().map(|(name, holds)| ((*name).to_owned(), *holds)))
}

/// The variables that hold a secret themselves.
pub(crate) fn secret_variables() -> impl Iterator<Item = String> {
    variables().filter(|(_, holds)| *holds == Holds::Secret).map(|(name, _)| name)
}

/// Variables that begin like ours and set nothing: most likely a slip of the pen.
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
        Failure::usage(format!("cannot read {shown}: {error}; say another file with --config or FENCEPOST_CONFIG"))
    })?;
    parse_file(&text).map_err(|why| Failure::usage(format!("{shown}: {why}")))
}

fn parse_file(text: &str) -> std::result::Result<BTreeMap<String, String>, String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| format!("this is no TOML: {}", error.to_string().trim_end()))?;
    let mut found = BTreeMap::new();
    for (name, value) in table {
        if !NODE.iter().chain(CLIENT).any(|key| key.name == name) {
            let known: Vec<&str> = NODE.iter().chain(CLIENT).map(|key| key.name).collect();
            let close =
                known.iter().find(|known| known.replace('-', "") == name.replace(['-', '_'], "").to_lowercase());
            let hint = close.map(|close| format!("; do you mean `{close}`?")).unwrap_or_default();
            return Err(format!("there is no key `{name}`{hint}; there are: {}", known.join(", ")));
        }
        let value = words(&value).ok_or_else(|| {
            format!("`{name}` is a {}: write a string, a number, true or false, or a list of strings", value.type_str())
        })?;
        found.insert(name, value);
    }
    Ok(found)
}

/// A value of the file as a flag would say it.
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
    fn every_key_of_the_file_is_read_in_the_words_of_the_flag() {
        let text = "name = 'n1'\nnew-cluster = true\njoin = ['a:1', 'b:2']\nsnapshot-every-entries = 5\n";
        let read = parse_file(text).unwrap();
        let words: Vec<(&str, &str)> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [("join", "a:1,b:2"), ("name", "n1"), ("new-cluster", "true"), ("snapshot-every-entries", "5")];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_wrong_file_is_refused_with_what_to_write() {
        let table = [
            ("listen_client = 'x'", "no key `listen_client`; do you mean `listen-client`?"),
            ("colour = 'red'", "there are: name, data, new-cluster"),
            ("name = 1.5", "`name` is a float: write"),
            ("join = [1]", "`join` is a array: write"),
            ("name = ", "no TOML"),
        ];
        for (text, part) in table {
            let message = parse_file(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    /// A path is no secret: a command that is a client itself goes by it.
    #[test]
    fn secrets_are_told_from_paths() {
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
