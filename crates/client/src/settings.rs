//! Settings as text, and how they become a client. For programs with flags of their own; others use [`Client::from_env`](crate::Client::from_env).
//!
//! The command `fencepost` reads its settings here, too, so that a program and the command line connect alike. A value comes
//! from a flag, else from the environment, else from the file, else it has its default. Every source gives it as the same text,
//! and an error says where a wrong value comes from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use fencepost_core::shortened;
use toml::de::{DeTable, DeValue};

use crate::address::{Address, CLIENT_PORT};
use crate::client::{Client, ClientBuilder};
pub use crate::duration::parse_duration;
use crate::error::{Error, Failed};
use crate::tls::Tls;

/// The names of a client's settings. [`Client::from_env`] says what each is.
pub const CLIENT_SETTINGS: [&str; 6] = ["server", "timeout", "ca", "cert", "key", "server-name"];

/// The address of the cluster if no setting names one.
pub const SERVER_DEFAULT: &str = "127.0.0.1:7420";

/// The variable that names the file.
const FILE_VARIABLE: &str = "FENCEPOST_CONFIG";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The flag with this name, without its dashes.
    Flag(&'static str),
    /// The environment variable with this name.
    Variable(String),
    /// The file at this path.
    File(PathBuf),
    /// No source has it.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(name) => write!(formatter, "flag --{name}"),
            Source::Variable(name) => write!(formatter, "environment {name}"),
            Source::File(path) => write!(formatter, "file {}", path.display()),
            Source::Default => write!(formatter, "default"),
        }
    }
}

/// A value as text, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name: `--name` as a flag, `FENCEPOST_NAME` in the environment, `name = ...` in the file.
    pub name: &'static str,
    /// Its value. Empty if there is none.
    pub value: String,
    /// Where the value comes from.
    pub source: Source,
}

impl Setting {
    /// The error for this value: the value, where it comes from, and what is wrong with it.
    pub fn refuse(&self, why: impl fmt::Display) -> Failed {
        Failed::BadSetting(format!("{} = {:?} ({}): {why}", self.name, shortened(&self.value), self.source))
    }

    /// The value as an address whose nodes have this port by default.
    ///
    /// # Errors
    /// [`Failed::BadSetting`] if it is not valid.
    pub fn address(&self, default_port: u16) -> Result<Address, Failed> {
        Address::parse(&self.value, default_port).map_err(|error| match error {
            Failed::BadAddress(why) | Failed::BadTls(why) => self.refuse(why),
            other => other,
        })
    }
}

/// The environment variable of a setting.
pub fn variable(name: &str) -> String {
    format!("FENCEPOST_{}", name.replace('-', "_").to_uppercase())
}

/// A file with settings: `name = value` in TOML. Each value is a string, a number, true, false, or a list of strings.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    path: PathBuf,
    values: BTreeMap<String, String>,
}

impl SettingsFile {
    /// Reads the file at a path, or else the file that `FENCEPOST_CONFIG` names. `None` if neither names one.
    ///
    /// # Errors
    /// [`Failed::BadSetting`] if the file cannot be read or is not TOML.
    pub fn read(path: Option<&Path>) -> Result<Option<SettingsFile>, Failed> {
        match path.map(Path::to_owned).or_else(|| std::env::var_os(FILE_VARIABLE).map(PathBuf::from)) {
            Some(path) => SettingsFile::at(path).map(Some),
            None => Ok(None),
        }
    }

    fn at(path: PathBuf) -> Result<SettingsFile, Failed> {
        let shown = path.display();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Failed::BadSetting(format!("cannot read {shown}: {error}; name another file with {FILE_VARIABLE}"))
        })?;
        let values = parse(&text).map_err(|why| Failed::BadSetting(format!("{shown}: {why}")))?;
        Ok(SettingsFile { path, values })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys that the file has.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let table = DeTable::parse(text).map_err(|error| format!("not valid TOML: {}", error.to_string().trim_end()))?;
    let mut values = BTreeMap::new();
    for (name, value) in table.into_inner() {
        let name = name.into_inner().into_owned();
        let value = value.into_inner();
        let text = words(&value).ok_or_else(|| {
            let found = value.type_str();
            format!("`{name}` has the type {found}: write a string, a number, true or false, or a list of strings")
        })?;
        values.insert(name, text);
    }
    Ok(values)
}

/// A value of the file, as the text that a flag would have.
fn words(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Some(yes.to_string()),
        DeValue::Array(parts) => {
            let parts: Option<Vec<&str>> = parts.iter().map(|part| part.get_ref().as_str()).collect();
            Some(parts?.join(","))
        }
        _ => None,
    }
}

/// The value of each setting in `defaults`, in their order: from the flags, else from the environment, else from the file, else the
/// default.
///
/// # Errors
/// [`Failed::BadSetting`] if a variable is not UTF-8.
pub fn gather(
    defaults: impl IntoIterator<Item = (&'static str, String)>,
    flags: &BTreeMap<&'static str, String>,
    file: Option<&SettingsFile>,
) -> Result<Vec<Setting>, Failed> {
    gather_from(defaults, flags, |variable| std::env::var_os(variable), file)
}

fn gather_from(
    defaults: impl IntoIterator<Item = (&'static str, String)>,
    flags: &BTreeMap<&'static str, String>,
    environment: impl Fn(&str) -> Option<OsString>,
    file: Option<&SettingsFile>,
) -> Result<Vec<Setting>, Failed> {
    let mut settings = Vec::new();
    for (name, default) in defaults {
        let variable = variable(name);
        let in_file = file.and_then(|file| Some((file.values.get(name)?, &file.path)));
        let (value, source) = if let Some(value) = flags.get(name) {
            (value.clone(), Source::Flag(name))
        } else if let Some(value) = environment(&variable) {
            let value = value.into_string().map_err(|value| {
                Failed::BadSetting(format!("{variable} is {value:?}, which is not UTF-8: change or unset it"))
            })?;
            (value, Source::Variable(variable))
        } else if let Some((value, path)) = in_file {
            (value.clone(), Source::File(path.clone()))
        } else {
            (default, Source::Default)
        };
        settings.push(Setting { name, value, source });
    }
    Ok(settings)
}

/// The default of a client's setting.
pub fn client_default(name: &str) -> String {
    if name == "server" { SERVER_DEFAULT.to_owned() } else { String::new() }
}

/// A client's settings from the environment, and from the file that it names.
pub(crate) fn of_environment() -> Result<Vec<Setting>, Failed> {
    let file = SettingsFile::read(None)?;
    let defaults = CLIENT_SETTINGS.map(|name| (name, client_default(name)));
    gather(defaults, &BTreeMap::new(), file.as_ref())
}

/// The builder of a client with these settings. Settings that are not a client's are ignored.
///
/// # Errors
/// [`Failed::BadSetting`] if a value is not valid, a file cannot be read, or a setting that it needs is missing.
pub fn builder(settings: &[Setting]) -> Result<ClientBuilder, Error> {
    let find = |name: &str| settings.iter().find(|it| it.name == name);
    let of = |name: &str| find(name).filter(|it| !it.value.is_empty());
    let default = Setting { name: "server", value: SERVER_DEFAULT.to_owned(), source: Source::Default };
    let server = find("server").unwrap_or(&default);
    let address = server.address(CLIENT_PORT)?;
    let mut builder = Client::builder().address(&server.value)?;
    if let Some(timeout) = of("timeout") {
        builder = builder.connect_timeout(parse_duration(&timeout.value).map_err(|why| timeout.refuse(why))?);
    }
    let Some(authority) = of("ca") else {
        if let Some(useless) = ["cert", "key", "server-name"].into_iter().find_map(of) {
            return Err(useless.refuse("it has no effect without TLS: set ca, too").into());
        }
        if address.tls() == Some(true) {
            let why = "https:// needs the authority that signed the nodes' certificates: set ca to its PEM file";
            return Err(server.refuse(why).into());
        }
        return Ok(builder);
    };
    let read = |setting: &Setting| {
        std::fs::read(&setting.value)
            .map_err(|error| setting.refuse(format!("cannot be read: {error}; give a file that this user can read")))
    };
    let mut tls = Tls::new(read(authority)?);
    match (of("cert"), of("key")) {
        (Some(certificate), Some(key)) => tls = tls.identity(read(certificate)?, read(key)?),
        (None, None) => {}
        (Some(alone), None) => return Err(alone.refuse("cert and key belong together: set key, too").into()),
        (None, Some(alone)) => return Err(alone.refuse("cert and key belong together: set cert, too").into()),
    }
    if let Some(name) = of("server-name") {
        tls = tls.server_name(&name.value);
    }
    Ok(builder.tls(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SettingsFile {
        SettingsFile { path: PathBuf::from("fencepost.toml"), values: parse(text).expect("valid TOML") }
    }

    #[test]
    fn a_flag_comes_before_the_environment_and_the_environment_before_the_file() {
        let file = file("server = ['a:1', 'b:2']\nca = 'of the file'\ncert = 'of the file'\n");
        let flags = BTreeMap::from([("ca", "of the flag".to_owned())]);
        let environment =
            |name: &str| ["FENCEPOST_CA", "FENCEPOST_CERT"].contains(&name).then(|| "of the shell".into());
        let defaults = ["server", "ca", "cert", "server-name"].map(|name| (name, "default".to_owned()));
        let gathered = gather_from(defaults, &flags, environment, Some(&file)).unwrap();
        let shown: Vec<String> = gathered.iter().map(|it| format!("{} ({})", it.value, it.source)).collect();
        let expected = [
            "a:1,b:2 (file fencepost.toml)",
            "of the flag (flag --ca)",
            "of the shell (environment FENCEPOST_CERT)",
            "default (default)",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn every_value_of_the_file_is_read_as_the_text_of_its_flag() {
        let read =
            parse("name = 'n1'\nnew-cluster = true\njoin = ['a:1', 'b:2']\nsnapshot-every-entries = 5\n").unwrap();
        let words: Vec<(&str, &str)> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [("join", "a:1,b:2"), ("name", "n1"), ("new-cluster", "true"), ("snapshot-every-entries", "5")];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_wrong_file_is_refused_with_what_to_write() {
        let table = [
            ("name = 1.5", "`name` has the type float: write"),
            ("join = [1]", "`join` has the type array: write"),
            ("name = ", "not valid TOML"),
        ];
        for (text, part) in table {
            let message = parse(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_wrong_setting_is_refused_with_where_it_comes_from() {
        let table: &[(&[(&'static str, &str)], &str)] = &[
            (&[("server", "host:99999")], "server = \"host:99999\" (flag --server): \"host:99999\" is not a node"),
            (&[("server", "")], "no node is named"),
            (&[("timeout", "5parsec")], "timeout = \"5parsec\" (flag --timeout): unknown unit \"parsec\""),
            (&[("server", "https://a")], "set ca to its PEM file"),
            (&[("cert", "c.pem")], "cert = \"c.pem\" (flag --cert): it has no effect without TLS: set ca, too"),
            (&[("server-name", "n1")], "set ca, too"),
            (&[("ca", "/no-such-file")], "ca = \"/no-such-file\" (flag --ca): cannot be read"),
            (&[("ca", "Cargo.toml"), ("key", "k.pem")], "set cert, too"),
            (&[("ca", "Cargo.toml"), ("cert", "c.pem")], "set key, too"),
        ];
        for (flags, part) in table {
            let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            let defaults = CLIENT_SETTINGS.map(|name| (name, client_default(name)));
            let settings = gather_from(defaults, &flags, |_| None, None).unwrap();
            let said = builder(&settings).expect_err(part).to_string();
            assert!(said.contains(part), "{said:?} should say {part:?}");
        }
    }
}
