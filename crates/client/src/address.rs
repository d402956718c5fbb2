//! The address of a cluster: which nodes to dial, and whether they speak TLS.
//!
//! The only parser of addresses. The library, the command line, `--join` and the environment all use it, so they accept the same
//! text. It resolves no names.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use fencepost_core::shortened;

use crate::error::Failed;

/// The longest name of a host in DNS.
const HOST_BYTES_MAX: usize = 253;

/// The port on which nodes listen for clients by default.
pub const CLIENT_PORT: u16 = 7420;

/// The nodes of a cluster, parsed from text: `localhost`, `n1.example:7420,n2.example:7420`, `fencepost://n1.example` or
/// `https://n1.example`. The default port is 7420.
///
/// ```
/// let address: fencepost::Address = "https://n1.example,n2.example:7500".parse()?;
/// assert_eq!(address.nodes(), ["n1.example:7420", "n2.example:7500"]);
/// assert_eq!(address.tls(), Some(true));
/// # Ok::<(), fencepost::Failed>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Invariant: not empty, and each is `host:port`.
    nodes: Vec<String>,
    tls: Option<bool>,
}

impl Address {
    /// Parses an address whose nodes have this port by default.
    ///
    /// # Errors
    /// [`Failed::BadAddress`] says what to write instead. [`Failed::BadTls`] if one node is `https://` and another is `http://`.
    pub fn parse(text: &str, default_port: u16) -> Result<Address, Failed> {
        let mut address = Address { nodes: Vec::new(), tls: None };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (scheme, node) = part.split_once("://").unwrap_or(("fencepost", part));
            let tls = match scheme.to_ascii_lowercase().as_str() {
                "fencepost" => None,
                "https" => Some(true),
                "http" => Some(false),
                _ => return Err(unknown_scheme(scheme)),
            };
            if tls.is_some() && address.tls.is_some_and(|before| Some(before) != tls) {
                return Err(mixed_schemes());
            }
            address.tls = address.tls.or(tls);
            address.nodes.push(host_port(node.trim_end_matches('/'), default_port)?);
        }
        if address.nodes.is_empty() {
            return Err(Failed::BadAddress(format!("no node is named: write one like 127.0.0.1:{default_port}")));
        }
        Ok(address)
    }

    /// The nodes, each as `host:port`.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// What the scheme says about TLS: `https://` demands it, `http://` demands plain text, and `fencepost://` says nothing.
    pub fn tls(&self) -> Option<bool> {
        self.tls
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.nodes.join(","))
    }
}

impl FromStr for Address {
    type Err = Failed;

    fn from_str(text: &str) -> Result<Address, Failed> {
        Address::parse(text, CLIENT_PORT)
    }
}

/// `host:port` of a node.
fn host_port(node: &str, default_port: u16) -> Result<String, Failed> {
    if node.parse::<Ipv6Addr>().is_ok() {
        return Ok(format!("[{node}]:{default_port}"));
    }
    let (host, port) = match node.rsplit_once(':') {
        // The last colon of `[::1]` stands inside of the brackets.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().ok()),
        _ => (node, Some(default_port)),
    };
    let is_ipv6 =
        host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(|it| it.parse::<Ipv6Addr>().is_ok());
    let is_name = (1..=HOST_BYTES_MAX).contains(&host.len())
        && !host.contains(|it: char| it.is_whitespace() || it.is_control() || ":/@?#[]\\".contains(it));
    match port {
        Some(port) if is_ipv6 || is_name => Ok(format!("{host}:{port}")),
        _ => Err(not_a_node(node, default_port)),
    }
}

pub(crate) fn mixed_schemes() -> Failed {
    Failed::BadTls("some nodes are https:// and some http://: use one of them".to_owned())
}

/// Shows the scheme only: the rest of such an address may hold a password.
fn unknown_scheme(scheme: &str) -> Failed {
    Failed::BadAddress(format!(
        "{:?} is not a scheme of Fencepost: write fencepost://host:port,host:port (for Redis, etcd and others use \
         fencepost-backends)",
        shortened(scheme)
    ))
}

/// Shows nothing of a text with an `@`: it may hold a password.
fn not_a_node(node: &str, port: u16) -> Failed {
    let what = match node.contains('@') {
        true => "it has an @, but Fencepost has no users and passwords".to_owned(),
        false => format!("{:?} is not a node", shortened(node)),
    };
    Failed::BadAddress(format!("{what}: write one like localhost, n1.example:{port} or [::1]:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_names_the_same_nodes() {
        let table: &[(&str, &[&str], Option<bool>)] = &[
            ("localhost", &["localhost:7420"], None),
            ("127.0.0.1:7500", &["127.0.0.1:7500"], None),
            ("fencepost://n1.example", &["n1.example:7420"], None),
            ("fencepost://a:1,b,c:3/", &["a:1", "b:7420", "c:3"], None),
            ("a, b ,", &["a:7420", "b:7420"], None),
            ("https://n1.example/", &["n1.example:7420"], Some(true)),
            ("HTTPS://a:1,b:2", &["a:1", "b:2"], Some(true)),
            ("https://a,https://b", &["a:7420", "b:7420"], Some(true)),
            ("http://a:1", &["a:1"], Some(false)),
            ("fencepost://a,https://b", &["a:7420", "b:7420"], Some(true)),
            ("::1", &["[::1]:7420"], None),
            ("[::1]", &["[::1]:7420"], None),
            ("https://[fe80::1]:7500", &["[fe80::1]:7500"], Some(true)),
        ];
        for (text, nodes, tls) in table {
            let address: Address = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(address.nodes(), *nodes, "{text}");
            assert_eq!(address.tls(), *tls, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_to_write_and_without_a_password() {
        let long = "x".repeat(5_000);
        let table = [
            ("", "no node is named: write one like 127.0.0.1:7420"),
            (",", "no node is named"),
            ("fencepost://", "is not a node"),
            (":7420", "is not a node: write one like localhost"),
            ("host:", "is not a node"),
            ("host:70000", "is not a node"),
            ("host:http", "is not a node"),
            ("a b", "is not a node"),
            ("a:1:2", "is not a node"),
            ("[::1", "is not a node"),
            ("[n1]:7420", "is not a node"),
            ("https://host/path", "is not a node"),
            ("redis://:hush@host:6379/", "\"redis\" is not a scheme of Fencepost"),
            ("fencepost://user:hush@host:7420", "Fencepost has no users and passwords"),
            ("https://a,http://b", "use one of them"),
            (&long, "is not a node"),
        ];
        for (text, part) in table {
            let said = text.parse::<Address>().expect_err(part).to_string();
            assert!(said.contains(part) && !said.contains("hush") && said.len() < 300, "{text}: {said}");
        }
    }
}
