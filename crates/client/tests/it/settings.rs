//! `Client::from_env`: a program connects as the command line does, by variables and by the file that they name.
//!
//! Each case starts this test program again as a child with the variables of the case. The child takes a lock in each tier, with the
//! async client and with its blocking twin, and prints what came of it.
#![cfg(feature = "blocking")]

use std::process::Command;

use crate::authority::Authority;
use fencepost::{Client, Error, blocking};
use fencepost_testing::TestServer;

/// Tells the child that it is one.
const CHILD: &str = "FENCEPOST_TEST_CHILD";

/// What a child prints that takes its locks.
const CONNECTED: [&str; 2] = ["connected", "connected"];

/// The child's side.
#[test]
fn child_of_from_env() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connected: Result<(), Error> = runtime.block_on(async {
        let client = Client::from_env().await?;
        client.lock("async").acquire().await?.release().await?;
        client.lock("async").efficiency().acquire().await?.release().await.map(drop)
    });
    println!("async: {}", connected.map_or_else(|error| error.to_string(), |()| "connected".to_owned()));
    let connected = || -> Result<(), Error> {
        let client = blocking::Client::from_env()?;
        client.acquire(client.lock("blocking"))?.release()?;
        client.acquire(client.lock("blocking").efficiency())?.release().map(drop)
    };
    println!("blocking: {}", connected().map_or_else(|error| error.to_string(), |()| "connected".to_owned()));
}

/// What a child with these variables prints: of the async client, and of the blocking one.
fn child(variables: &[(&str, &str)]) -> [String; 2] {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(name);
    }
    command.args(["settings::child_of_from_env", "--exact", "--nocapture"]).env(CHILD, "1");
    let done = command.envs(variables.iter().copied()).output().expect("this program starts again");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let after = |mark: &str| {
        let line = said.lines().find_map(|line| line.split_once(mark));
        line.unwrap_or_else(|| panic!("{mark:?} is not in {said}")).1.to_owned()
    };
    ["async: ", "blocking: "].map(after)
}

#[test]
fn a_program_connects_as_the_environment_says() {
    let server = TestServer::start();
    let address = server.address().to_string();
    for form in [address.clone(), format!("fencepost://{address}"), format!("http://{address}/")] {
        assert_eq!(child(&[("FENCEPOST_SERVER", &form)]), CONNECTED, "{form}");
    }
}

#[test]
fn a_program_connects_over_tls_by_variables_and_by_the_file() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (address, _runs) = runtime.block_on(crate::tls::node(directory.path(), &authority));
    let (certificate, key) = authority.sign(&["worker"]).write(directory.path(), "worker");
    let path = |path: &std::path::Path| path.to_str().expect("a temporary directory is UTF-8").to_owned();
    let (ca, certificate, key) = (path(&authority.write(directory.path(), "ca.pem")), path(&certificate), path(&key));
    let https = format!("https://{address}");
    let variables = [
        ("FENCEPOST_SERVER", https.as_str()),
        ("FENCEPOST_CA", &ca),
        ("FENCEPOST_CERT", &certificate),
        ("FENCEPOST_KEY", &key),
        ("FENCEPOST_SERVER_NAME", "fencepost.example"),
    ];
    assert_eq!(child(&variables), CONNECTED);
    // The file has settings of a node, too, as on a machine that runs both. A variable comes before the file.
    let file = directory.path().join("fencepost.toml");
    let text = format!("name = 'n1'\nserver = '127.0.0.1:1'\nca = '{ca}'\ncert = '{certificate}'\nkey = '{key}'\n");
    std::fs::write(&file, text).unwrap();
    let variables = [("FENCEPOST_CONFIG", file.to_str().unwrap()), ("FENCEPOST_SERVER", &https)];
    assert_eq!(child(&variables), CONNECTED);
}

#[test]
fn a_wrong_setting_is_refused_with_where_it_comes_from() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fencepost.toml");
    std::fs::write(&file, "server = 'a b'\n").unwrap();
    let file = file.to_str().unwrap();
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("FENCEPOST_SERVER", "")], "server = \"\" (environment FENCEPOST_SERVER): no node is named"),
        (&[("FENCEPOST_SERVER", "redis://a")], "\"redis\" is not a scheme of Fencepost"),
        (&[("FENCEPOST_SERVER", "https://a")], "set ca to its PEM file"),
        (&[("FENCEPOST_KEY", "k.pem")], "key = \"k.pem\" (environment FENCEPOST_KEY): it has no effect without TLS"),
        (&[("FENCEPOST_CONFIG", "/no-such-file")], "cannot read /no-such-file"),
        (&[("FENCEPOST_CONFIG", file)], "fencepost.toml): \"a b\" is not a node"),
    ];
    for (variables, expected) in cases {
        let [first, second] = child(variables);
        assert!(first.contains(expected), "{first:?} should say {expected:?}");
        assert_eq!(first, second, "the blocking twin says the same");
    }
}
