//! Fetches the metrics of a node from `/metrics`, over plain HTTP. Reads only numbers without labels: the benchmark needs no others.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// A healthy node answers immediately. The benchmark does not wait for others.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The metrics of the node at this address, by name.
///
/// # Errors
/// If the node does not answer.
pub fn fetch(http: SocketAddr) -> Result<BTreeMap<String, f64>> {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&http, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let answer = asked().with_context(|| format!("no metrics from {http}"))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(parse(body))
}

/// The lines `name value`. Comments, and numbers with labels, are left out.
pub fn parse(text: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        let plain = !name.starts_with('#') && !name.contains('{');
        plain.then(|| Some((name.to_owned(), value.split(' ').next()?.parse().ok()?)))?
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_labels_are_read_and_the_rest_is_left_out() {
        let text = "# HELP fencepost_term The term.\n# TYPE fencepost_term gauge\nfencepost_term 3\n\
                    fencepost_answers_total 12 1700000000\nfencepost_x{le=\"1\"} 4\nbroken\nfencepost_y NaNo\n# EOF\n";
        let expected = [("fencepost_answers_total".to_owned(), 12.0), ("fencepost_term".to_owned(), 3.0)];
        assert_eq!(parse(text), BTreeMap::from(expected));
    }
}
