//! TLS with real processes: a cluster with TLS on every port, and the messages when something is missing.

#[path = "../../../server/tests/it/client/authority.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod authority;

use std::path::{Path, PathBuf};

use authority::Authority;
use nix::sys::signal::Signal;

use crate::harness::{Dev, Finished, Process, command, fencepost, wait_until};

/// A directory with a certificate authority, and with certificates and keys of nodes and of a client.
struct Files {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Files {
        let files = Files { directory: tempfile::tempdir().unwrap(), authority: Authority::new() };
        files.authority.write(files.at(), "ca.pem");
        files.sign("client", &["client"]);
        files
    }

    fn at(&self) -> &Path {
        self.directory.path()
    }

    fn path(&self, name: &str) -> String {
        self.at().join(name).to_str().unwrap().to_owned()
    }

    fn sign(&self, file: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        self.authority.sign(names).write(self.at(), file)
    }

    /// The flags of a node with TLS on every port, one certificate for all of them.
    fn serve(&self, name: &str, more: &[&str]) -> Vec<String> {
        if !self.at().join(format!("{name}.pem")).exists() {
            self.sign(name, &[name, "127.0.0.1", "fencepost.example"]);
        }
        let (certificate, key, ca) =
            (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")), self.path("ca.pem"));
        let (data, free) = (self.path(&format!("{name}-data")), "127.0.0.1:0");
        let flags = [
            ["--name", name],
            ["--data", &data],
            ["--listen-http", free],
            ["--tls-cert", &certificate],
            ["--tls-key", &key],
            ["--tls-client-ca", &ca],
            ["--peer-cert", &certificate],
            ["--peer-key", &key],
            ["--peer-ca", &ca],
        ];
        let flags = flags.concat().into_iter().chain(more.iter().copied());
        std::iter::once("serve").chain(flags).map(str::to_owned).collect()
    }

    /// A client command that gets its TLS files from the environment.
    fn ask(&self, server: &str, args: &[&str]) -> Finished {
        let mut command = command(args);
        command.env("FENCEPOST_SERVER", server).env("FENCEPOST_CA", self.path("ca.pem"));
        command.env("FENCEPOST_CERT", self.path("client.pem")).env("FENCEPOST_KEY", self.path("client.key"));
        Process::start(command).finish()
    }
}

fn start(args: &[String]) -> (Process, String, String) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut node = Process::start(command(&args));
    let ready = node.wait_for_line("ready: ");
    let after = |part: &str| ready.split(part).nth(1).and_then(|rest| rest.split(',').next()).unwrap().to_owned();
    (node, after("clients on "), after("peers on "))
}

#[test]
fn a_cluster_with_tls_everywhere_takes_locks_and_survives_a_killed_node() {
    let files = Files::new();
    let free = ["--listen-client", "127.0.0.1:0", "--listen-peer", "127.0.0.1:0"];
    let (first, client, _) = start(&files.serve("n1", &[&free[..], &["--new-cluster"]].concat()));
    let (second, second_client, second_peer) = start(&files.serve("n2", &[&free[..], &["--join", &client]].concat()));
    let (third, ..) = start(&files.serve("n3", &[&free[..], &["--join", &client]].concat()));
    wait_until("three vote", || {
        let seen = files.ask(&client, &["members", "-o", "json"]).ok().json();
        let members = seen["members"].as_array().unwrap();
        (members.len() == 3 && members.iter().all(|member| member["role"] == "voter")).then_some(())
    });
    let token = || {
        let seen = files.ask(&client, &["run", "a", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]).ok();
        seen.stdout.trim().parse::<u64>().unwrap()
    };
    let before = token();
    // A command that is itself a client gets the same files.
    let paths = "echo $FENCEPOST_CA $FENCEPOST_CERT $FENCEPOST_KEY";
    let seen = files.ask(&client, &["run", "a", "--", "sh", "-c", paths]).ok().stdout;
    let expected = ["ca.pem", "client.pem", "client.key"].map(|name| files.path(name)).join(" ");
    assert_eq!(seen.trim(), expected);

    // The author of an act is the name in the certificate, whatever the caller says about itself.
    files.ask(&client, &["freeze", "b", "--reason", "a test"]).ok();
    let freezes = files.ask(&client, &["freezes", "-o", "json"]).ok().json();
    assert_eq!(freezes[0]["by"], "client", "{freezes}");

    // A node is killed, and starts again at its old addresses.
    second.signal(Signal::SIGKILL);
    drop(second);
    let between = token();
    assert!(between > before);
    let again = files.serve("n2", &["--listen-client", &second_client, "--listen-peer", &second_peer]);
    let (second, ..) = start(&again);
    // Another node goes for good: now the majority needs the node that came back.
    third.signal(Signal::SIGKILL);
    drop(third);
    assert!(token() > between);

    let ca = files.path("ca.pem");
    let other = Authority::new();
    other.write(files.at(), "other-ca.pem");
    let other_ca = files.path("other-ca.pem");
    let refused: &[(&[&str], &str)] = &[
        (&["--ca", &ca], "the node wants to see a certificate"),
        (&["--ca", &other_ca], "not signed by the authority that was given"),
    ];
    for (flags, said) in refused {
        // `members` asks over gRPC, which sees less of why a connection fails.
        for command in ["locks", "members"] {
            let args = [&[command, "--server", &client], *flags].concat();
            let told = fencepost(&args).with_code(125).says(said).says("give --ca, --cert and --key");
            assert!(!told.stderr.contains("fencepost dev"), "only what helps: {told:?}");
        }
    }
    let run = ["run", "--tier", "efficiency", "--server", &client, "a", "--", "true"];
    for args in [&["locks", "--server", &client][..], &["members", "--server", &client], &run] {
        let told = fencepost(args).with_code(125).says("this port speaks TLS").says("--ca FILE");
        assert!(!told.stderr.contains("fencepost dev"), "only what helps: {told:?}");
    }
    for args in [&["locks", "--server", &second_peer][..], &["locks", "--server", &second_peer, "--ca", &ca]] {
        fencepost(args).with_code(125).says("port for");
    }
    let (certificate, key) = (files.path("client.pem"), files.path("client.key"));
    let by_flags = ["--ca", &ca, "--cert", &certificate, "--key", &key];
    let https = format!("https://{client}");
    fencepost(&[&["locks", "--server", &https], &by_flags[..]].concat()).ok();
    let file = files.path("fencepost.toml");
    let tls = format!("ca = '{ca}'\ncert = '{certificate}'\nkey = '{key}'\nserver-name = 'fencepost.example'\n");
    std::fs::write(&file, format!("server = '{client}'\n{tls}")).unwrap();
    fencepost(&["locks", "--config", &file]).ok();
    fencepost(&["locks", "--config", &file, "--server-name", "elsewhere.example"])
        .with_code(125)
        .says("connect by a name in the node's certificate");
    // So is that of a change of the members, and of a leadership transfer.
    let nowhere = "127.0.0.1:1";
    let spare = ["member", "add", "77", "--name", "n9", "--peer", nowhere, "--client", nowhere, "--reason", "a spare"];
    files.ask(&client, &spare).ok();
    files.ask(&client, &["transfer", "n2", "--reason", "a new kernel"]).ok();
    for node in [second, first] {
        node.signal(Signal::SIGTERM);
        let log = node.finish().ok().stderr;
        for reason in ["a spare", "a new kernel"] {
            assert!(
                log.contains(&format!("by=\"client\" reason=\"{reason}\"")),
                "{reason:?} is not by client in {log}"
            );
        }
    }
}

#[test]
fn incomplete_tls_settings_are_refused_with_what_is_missing() {
    let files = Files::new();
    files.sign("n1", &["n1"]);
    let (pem, key, ca) = (files.path("n1.pem"), files.path("n1.key"), files.path("ca.pem"));
    let missing = files.path("missing");
    let table: &[(&[&str], i32, &str)] = &[
        (&["serve", "--tls-cert", &pem], 2, "give --tls-key, too"),
        (&["serve", "--tls-key", &key], 2, "give --tls-cert, too"),
        (&["serve", "--tls-client-ca", &ca], 2, "give --tls-cert, too"),
        (&["serve", "--peer-cert", &pem, "--peer-key", &key], 2, "give --peer-ca, too"),
        (&["serve", "--peer-ca", &ca], 2, "give --peer-cert, too"),
        (&["serve", "--peer-cert", &pem, "--peer-ca", &ca], 2, "give --peer-key, too"),
        (&["serve", "--join-ca", &ca], 2, "give --tls-cert, too"),
        (&["serve", "--tls-cert", &missing, "--tls-key", &key], 2, "cannot read"),
        (&["serve", "--tls-cert", &key, "--tls-key", &key], 2, "-----BEGIN CERTIFICATE-----"),
        (&["serve", "--tls-cert", &pem, "--tls-key", &pem], 2, "no private key in it"),
        (&["serve", "--name", "n2", "--peer-cert", &pem, "--peer-key", &key, "--peer-ca", &ca], 2, "called \"n2\""),
        (&["serve", "--listen-client", "0.0.0.0:0"], 2, "--tls-cert and --tls-key"),
        (&["serve", "--listen-peer", "0.0.0.0:0", "--tls-cert", &pem, "--tls-key", &key], 2, "--peer-ca"),
        (&["locks", "--cert", &pem, "--key", &key], 2, "set ca, too"),
        (&["locks", "--server-name", "n1"], 2, "set ca, too"),
        (&["locks", "--ca", &ca, "--cert", &pem], 2, "cert and key belong together: set key, too"),
        (&["locks", "--ca", &missing], 2, "cannot be read"),
        (&["locks", "--ca", &key], 2, "give the authority"),
        (&["locks", "--ca", &ca, "--cert", &pem, "--key", &pem], 2, "the key that it was made for"),
        (&["locks", "--server", "https://127.0.0.1:1"], 2, "set ca to its PEM file"),
        (&["serve", "--join", "http://a", "--tls-cert", &pem, "--tls-key", &key], 2, "use https://, or no scheme"),
        (&["locks", "--server", "http://127.0.0.1:1", "--ca", &ca], 2, "http:// is plain text"),
        (&["config", "view", "--tls-cert", &pem], 2, "give --tls-key, too"),
    ];
    for (args, code, said) in table {
        eprintln!("fencepost {args:?}");
        fencepost(args).with_code(*code).says(said);
    }
}

#[test]
fn paths_of_keys_are_shown_and_their_content_is_not() {
    let files = Files::new();
    let args = files.serve("n1", &[]);
    let flags: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let seen = fencepost(&[&["config", "view"], &flags[..], &["--ca", &files.path("ca.pem")]].concat()).ok();
    let seen = seen.says(&files.path("n1.key")).says("flag --peer-key").says("flag --ca");
    assert!(!seen.stdout.contains("PRIVATE KEY") && !seen.stderr.contains("PRIVATE KEY"), "{seen:?}");
}

#[test]
fn tls_to_a_node_without_tls_is_reported() {
    let (files, dev) = (Files::new(), Dev::start());
    files.ask(&dev.server, &["locks"]).with_code(125).says("the node speaks plain text").says("without --ca");
}

#[test]
fn a_healthy_join_with_tls_logs_no_warning() {
    let files = Files::new();
    let free = ["--listen-client", "127.0.0.1:0", "--listen-peer", "127.0.0.1:0"];
    let (first, client, _) = start(&files.serve("n1", &[&free[..], &["--new-cluster"]].concat()));
    let mut nodes = vec![first];
    // One alone, and then three at the same time: the members change for one of them while the others ask.
    for names in [&["n2"][..], &["n3", "n4", "n5"]] {
        nodes.extend(names.iter().map(|name| {
            let args = files.serve(name, &[&free[..], &["--join", &client]].concat());
            Process::start(command(&args.iter().map(String::as_str).collect::<Vec<_>>()))
        }));
        wait_until("the nodes vote", || {
            let seen = files.ask(&client, &["members", "-o", "json"]).ok().json();
            let members = seen["members"].as_array().unwrap();
            (members.len() == nodes.len() && members.iter().all(|member| member["role"] == "voter")).then_some(())
        });
    }
    // All are stopped before the first is killed, so that none sees the end of another.
    nodes.iter().for_each(|node| node.signal(Signal::SIGSTOP));
    nodes.iter().for_each(|node| node.signal(Signal::SIGKILL));
    for node in nodes {
        let log = node.finish().stderr;
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    }
}
