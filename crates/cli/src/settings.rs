//! The settings: one table names every key; the flag, the variable and the key of the file follow from the name.
//!
//! The client library gathers the values (`fencepost::settings`) and builds clients from them, as `Client::from_env` does. This
//! file has the settings of nodes, the flags, and what is particular to a command line.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use fencepost::settings::{self, Setting, SettingsFile};
use fencepost::{CLIENT_PORT, ClientBuilder};
use fencepost_server::{Begin, Config, TlsFiles};
use serde_json::Value;

use crate::command::run::JOB_VARIABLES;
use crate::failure::{Failure, Result};
use crate::similar;

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
    key("listen-http", "IP:PORT", "Listen here for HTTP: health, metrics and reads [default: 127.0.0.1:7421]"),
    key("http-host", "NAME,...", "Names under which HTTP answers reads, beside addresses and localhost"),
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
    fn flag(&self) -> Arg {
        let variable = settings::variable(self.name);
        let flag = Arg::new(self.name).long(self.name).help(format!("{} [env: {variable}]", self.help));
        let hint = match self.value {
            Some("FILE") => ValueHint::FilePath,
            Some("DIR") => ValueHint::DirPath,
            _ => ValueHint::Other,
        };
        match self.value {
            Some(value) => flag.value_name(value).value_hint(hint).action(ArgAction::Set),
            None => flag.action(ArgAction::SetTrue),
        }
    }

    fn default(&self) -> String {
        let node = Config::default();
        match self.name {
            "name" => host_name(),
            "data" => "fencepost-data".to_owned(),
            "new-cluster" | "insecure" => "false".to_owned(),
            "listen-client" => node.client_listen.to_string(),
            "listen-http" => node.http_listen.to_string(),
            "listen-peer" => node.peer_listen.to_string(),
            "snapshot-every-entries" => node.snapshot_every_entries.to_string(),
            "snapshot-every-bytes" => node.snapshot_every_bytes.to_string(),
            "log-format" => "text".to_owned(),
            "log-level" => "info".to_owned(),
            client_or_none => settings::client_default(client_or_none),
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
        let file = SettingsFile::read(file)?;
        if let Some(file) = &file {
            check_keys(file)?;
        }
        let flags = node.0.iter().chain(&client.0).map(|(name, value)| (*name, value.clone())).collect();
        let defaults = NODE.iter().chain(CLIENT).map(|key| (key.name, key.default()));
        let all = settings::gather(defaults, &flags, file.as_ref())?;
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
        let join = self.join()?;
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
        let (client_listen, peer_listen) = (self.address("listen-client")?, self.address("listen-peer")?);
        let directory = text("data").ok_or_else(|| self.refuse("data", "empty: give a directory"))?;
        Ok(Config {
            name: text("name").ok_or_else(|| self.refuse("name", "empty: give a name"))?,
            directory: Some(PathBuf::from(directory)),
            begin,
            client_listen,
            http_listen: self.address("listen-http")?,
            http_hosts: self.http_hosts()?,
            peer_listen,
            client_advertise: self.advertised("advertise-client", client_listen)?,
            peer_advertise: self.advertised("advertise-peer", peer_listen)?,
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

    /// The builder of a client.
    ///
    /// # Errors
    /// A value is not valid, a file cannot be read, or a setting that it needs is missing.
    pub(crate) fn client(&self) -> Result<ClientBuilder> {
        Ok(settings::builder(&self.all)?)
    }

    /// The nodes of `--join`.
    fn join(&self) -> Result<Vec<String>> {
        if self.text("join").is_none() {
            return Ok(Vec::new());
        }
        let address = self.get("join").address(CLIENT_PORT)?;
        match (address.tls(), self.text("tls-cert").is_some()) {
            (Some(true), false) => Err(self.refuse("join", "https:// needs TLS: give --tls-cert and --tls-key, too")),
            (Some(false), true) => Err(self.refuse("join", "http:// is plain text: use https://, or no scheme")),
            _ => Ok(address.nodes().to_vec()),
        }
    }

    fn http_hosts(&self) -> Result<Vec<String>> {
        let text = self.text("http-host").unwrap_or_default();
        let names: Vec<String> =
            text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        let is_name = |name: &String| name.chars().all(|it| it.is_alphanumeric() || "-._".contains(it));
        match names.iter().find(|name| !is_name(name)) {
            Some(wrong) => {
                Err(self
                    .refuse("http-host", &format!("{wrong:?} is no host name: write it without a scheme and a port")))
            }
            None => Ok(names),
        }
    }

    /// An address of this node for others. Without a port it has the port on which the node listens.
    fn advertised(&self, name: &str, listen: SocketAddr) -> Result<Option<String>> {
        if self.text(name).is_none() {
            return Ok(None);
        }
        match self.get(name).address(listen.port())?.nodes() {
            [node] if node.ends_with(":0") => Err(self.refuse(name, "the port is missing: write HOST:PORT")),
            [node] => Ok(Some(node.clone())),
            _ => Err(self.refuse(name, "a node has one address: write one HOST:PORT")),
        }
    }

    fn address(&self, name: &str) -> Result<SocketAddr> {
        let no_address = |_| self.refuse(name, "not an IP:PORT: write one like 127.0.0.1:7420 or [::1]:7420");
        self.get(name).value.parse().map_err(no_address)
    }

    fn number(&self, name: &str) -> Result<u64> {
        self.get(name).value.parse().map_err(|_| self.refuse(name, "not a whole number: write one like 100000"))
    }

    fn switch(&self, name: &str) -> Result<bool> {
        yes_or_no(&self.get(name).value).ok_or_else(|| self.refuse(name, "neither true nor false: write one of them"))
    }

    /// The failure for a wrong value: the value, where it comes from, and what is wrong.
    pub(crate) fn refuse(&self, name: &str, why: &str) -> Failure {
        self.get(name).refuse(why).into()
    }
}

/// Every variable that this program reads or sets, and what it holds.
fn variables() -> impl Iterator<Item = (String, Holds)> {
    let keys = NODE.iter().chain(CLIENT).map(|key| (settings::variable(key.name), key.holds));
    let of_jobs = JOB_VARIABLES.iter().map(|name| ((*name).to_owned(), Holds::Plain));
    keys.chain(OTHER_VARIABLES.iter().map(|(name, holds)| ((*name).to_owned(), *holds))).chain(of_jobs)
}

/// The variables whose value is a secret.
pub(crate) fn secret_variables() -> impl Iterator<Item = String> {
    variables().filter(|(_, holds)| *holds == Holds::Secret).map(|(name, _)| name)
}

/// `FENCEPOST_*` variables that are unknown, probably because of a typing error, each with a suggestion.
pub(crate) fn unknown_variables() -> Vec<(String, String)> {
    const PREFIX: &str = "FENCEPOST_";
    let known: Vec<String> = variables().map(|(known, _)| known).collect();
    let known: Vec<&str> = known.iter().filter_map(|known| known.strip_prefix(PREFIX)).collect();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<(String, String)> = names
        .filter_map(|name| {
            let word = name.strip_prefix(PREFIX).filter(|word| !known.contains(word))?;
            let close = similar::closest(word, known.iter().copied());
            let hint = close.map(|close| format!("; do you mean `{PREFIX}{close}`?")).unwrap_or_default();
            Some((name, hint))
        })
        .collect();
    unknown.sort();
    unknown
}

/// A value for programs: switches as booleans, numbers as numbers, and `null` for none. A value that is not valid stays text.
pub(crate) fn json(setting: &Setting) -> Value {
    let kind = NODE.iter().chain(CLIENT).find(|key| key.name == setting.name).and_then(|key| key.value);
    let typed = match kind {
        None => yes_or_no(&setting.value).map(Value::from),
        Some("N") => setting.value.parse::<u64>().ok().map(Value::from),
        Some(_) if setting.value.is_empty() => Some(Value::Null),
        Some(_) => None,
    };
    typed.unwrap_or_else(|| setting.value.as_str().into())
}

fn yes_or_no(text: &str) -> Option<bool> {
    match text {
        "true" | "1" | "yes" => Some(true),
        "false" | "0" | "no" | "" => Some(false),
        _ => None,
    }
}

/// Refuses a file with a key that is not in the table.
fn check_keys(file: &SettingsFile) -> Result {
    let known: Vec<&str> = NODE.iter().chain(CLIENT).map(|key| key.name).collect();
    let Some(unknown) = file.keys().find(|key| !known.contains(key)) else { return Ok(()) };
    let hint = similar::suggestion(unknown, known.iter().copied());
    let (shown, known) = (file.path().display(), known.join(", "));
    Err(Failure::usage(format!("{shown}: unknown key `{unknown}`{hint}; the keys are: {known}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path is not a secret, and a command that is itself a client needs it.
    #[test]
    fn a_password_is_a_secret_and_a_path_is_not() {
        let secrets: Vec<String> = secret_variables().collect();
        assert_eq!(secrets, [STORE_PASSWORD]);
        for path in ["FENCEPOST_CA", "FENCEPOST_CERT", "FENCEPOST_KEY", "FENCEPOST_TLS_KEY", "FENCEPOST_PEER_KEY"] {
            assert!(variables().any(|(name, holds)| name == path && holds == Holds::Plain), "{path}");
        }
    }
}
