//! Nodes: `dev` with several nodes, `serve` as a cluster, the sources of settings, backup and restore.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::harness::{Dev, Process, command, fencepost, wait_until};
use nix::sys::signal::Signal;

#[test]
fn a_local_cluster_of_three_transfers_leadership() {
    let dev = Dev::with(&["--nodes", "3"]);
    assert_eq!(dev.server.split(',').count(), 3);
    let members = dev.fencepost(&["members", "-o", "json"]).ok().json();
    let all = members["members"].as_array().unwrap();
    assert!(all.len() == 3 && all.iter().all(|member| member["role"] == "voter"), "{members}");
    let name_of = |leads: bool| {
        let found = all.iter().find(|member| member["leads"] == leads).unwrap();
        found["name"].as_str().unwrap().to_owned()
    };
    let (leader, other) = (name_of(true), name_of(false));
    let holder = dev.hold("a");
    dev.fencepost(&["transfer", &other]).ok().says(&format!("{other} ("));
    // The lock is still held.
    dev.fencepost(&["run", "-n", "a", "--", "true"]).with_code(124);
    dev.fencepost(&["member", "remove", &leader, "--yes"]).ok();
    let left = dev.fencepost(&["members", "-o", "json"]).ok().json();
    assert_eq!(left["members"].as_array().unwrap().len(), 2, "{left}");
    holder.signal(Signal::SIGTERM);
    holder.finish().with_code(128 + 15);
    dev.process.signal(Signal::SIGTERM);
    dev.process.finish().ok();
}

#[test]
fn a_node_with_a_directory_keeps_its_state_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let dev = Dev::with(&["--data", data]);
    dev.fencepost(&["limit", "pool", "3"]).ok();
    dev.process.signal(Signal::SIGINT);
    dev.process.finish().ok();
    let dev = Dev::with(&["--data", data]);
    dev.fencepost(&["describe", "pool"]).ok().says("0 of 3");
    drop(dev);
    let other = ["dev", "--nodes", "3", "--listen", "127.0.0.1:1", "--data", data];
    fencepost(&other).with_code(125).says("a cluster of 1: pass --nodes 1");
}

/// A `serve` node on free ports, with its client address.
fn serve(directory: &std::path::Path, name: &str, more: &[&str]) -> (Process, String) {
    let data = directory.join(name);
    let free = "127.0.0.1:0";
    let args = ["serve", "--name", name, "--data", data.to_str().unwrap(), "--listen-client", free];
    let args = [&args[..], &["--listen-http", free, "--listen-peer", free], more].concat();
    let mut node = Process::start(command(&args));
    let ready = node.wait_for_line("ready: ");
    let client = ready.split("clients on ").nth(1).and_then(|rest| rest.split(',').next()).unwrap().to_owned();
    (node, client)
}

fn ask(server: &str, args: &[&str]) -> crate::harness::Finished {
    let mut command = command(args);
    command.env("FENCEPOST_SERVER", server);
    Process::start(command).finish()
}

#[test]
fn nodes_join_and_a_backup_founds_a_new_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (first, client) = serve(at, "n1", &["--new-cluster", "--log-format", "json"]);
    let (second, _) = serve(at, "n2", &["--join", &client]);
    let (third, _) = serve(at, "n3", &["--join", &client]);
    wait_until("three vote", || {
        let seen = ask(&client, &["members", "-o", "json"]).ok().json();
        let members = seen["members"].as_array().unwrap();
        (members.len() == 3 && members.iter().all(|member| member["role"] == "voter")).then_some(())
    });
    let token_of = |server: &str| {
        let seen = ask(server, &["run", "a", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]).ok().stdout;
        seen.trim().parse::<u64>().unwrap()
    };
    let before = token_of(&client);
    ask(&client, &["limit", "pool", "3"]).ok();

    let backup = at.join("backup");
    let backup = backup.to_str().unwrap();
    ask(&client, &["backup", backup]).ok();
    ask(&client, &["backup", backup]).with_code(2).says("--force");
    ask(&client, &["backup", backup, "--force"]).ok();
    let restored = at.join("restored");
    let data = restored.to_str().unwrap();
    fencepost(&["restore", backup, "--data", data, "--token-jump", "5"]).with_code(2);
    fencepost(&["restore", backup, "--data", data]).ok().says("fencepost serve --data");
    fencepost(&["restore", backup, "--data", data]).with_code(2).says("not empty");
    let (_alone, new_client) = serve(at, "restored", &[]);
    ask(&new_client, &["describe", "pool"]).ok().says("0 of 3");
    assert!(token_of(&new_client) > before + 1_000_000_000_000 - 1, "tokens jump");

    // The nodes end gracefully, and the log is lines of JSON.
    for node in [third, second] {
        node.signal(Signal::SIGTERM);
        node.finish().ok();
    }
    first.signal(Signal::SIGTERM);
    let ended = first.finish().ok();
    let line = ended.stderr.lines().next().unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
    assert_eq!(line["level"], "INFO");
}

/// The backup does not know what was completed after it was made.
#[test]
fn a_restored_cluster_refuses_jobs_until_they_are_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let path = |name: &str| at.join(name).to_str().unwrap().to_owned();
    let (_node, client) = serve(at, "n1", &["--new-cluster"]);
    let once = |server: &str, key: &str| ask(server, &["run", "--once", key, "billing", "--", "true"]);
    once(&client, "2026-10").ok();
    ask(&client, &["backup", &path("backup")]).ok();
    once(&client, "2026-11").ok();
    let said = fencepost(&["restore", &path("backup"), "--data", &path("restored")]).ok();
    said.says("refuses to run any until you allow it").says("fencepost job allow");
    let (_restored, client) = serve(at, "restored", &[]);
    once(&client, "2026-11").with_code(1).says("fencepost job allow");
    ask(&client, &["jobs"]).ok().says("jobs are refused since this cluster was restored").says("2026-10");
    once(&client, "2026-10").ok().says("was done before");
    // Locks without a key are given.
    ask(&client, &["run", "billing", "--", "true"]).ok();
    let act = |args: &[&str]| ask(&client, &[&["job"], args, &["--reason", "looked"]].concat());
    act(&["complete", "billing", "2026-11", "--yes"]).ok();
    act(&["allow"]).with_code(2).says("A job that was completed after the backup was made runs again").says("--yes");
    act(&["allow", "--yes"]).ok().says("jobs are allowed");
    act(&["allow", "--yes"]).ok().says("nothing was done");
    once(&client, "2026-11").ok().says("was done before");
    let ran = ask(&client, &["run", "--once", "2026-12", "billing", "--", "echo", "ran"]).ok();
    assert_eq!(ran.stdout, "ran\n");
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn other_users_read_neither_the_log_nor_a_backup() {
    let directory = tempfile::tempdir().unwrap();
    let (data, backup) = (directory.path().join("n1"), directory.path().join("backup"));
    let (node, client) = serve(directory.path(), "n1", &["--new-cluster"]);
    ask(&client, &["backup", backup.to_str().unwrap()]).ok();
    drop(node);
    assert_eq!((mode(&data), mode(&data.join("IDENTITY")), mode(&backup)), (0o700, 0o600, 0o600));

    // A directory that others could read is closed at the start, with a warning.
    set_mode(&data, 0o755);
    set_mode(&data.join("log"), 0o755);
    let (node, _) = serve(directory.path(), "n1", &[]);
    assert_eq!((mode(&data), mode(&data.join("log"))), (0o700, 0o700));
    node.signal(Signal::SIGTERM);
    node.finish().ok().says("other users could read this");

    // A directory that others can write to is refused.
    set_mode(&data, 0o777);
    let free = "127.0.0.1:0";
    let listen = ["--listen-client", free, "--listen-http", free, "--listen-peer", free];
    let again = fencepost(&[&["serve", "--name", "n1", "--data", data.to_str().unwrap()], &listen[..]].concat());
    again.with_code(125).says("other users can write to it").says("chmod -R go= ");

    let restored = directory.path().join("restored");
    std::fs::create_dir(&restored).unwrap();
    set_mode(&restored, 0o775);
    fencepost(&["restore", backup.to_str().unwrap(), "--data", restored.to_str().unwrap()]).ok();
    assert_eq!((mode(&restored), mode(&restored.join("snapshots"))), (0o700, 0o700));
    // `dev` creates its directories like `serve`.
    let kept = directory.path().join("kept");
    drop(Dev::with(&["--data", kept.to_str().unwrap()]));
    for entry in std::fs::read_dir(&kept).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o700);
    }
    assert_eq!(mode(&kept), 0o700);
}

#[test]
fn a_value_comes_from_the_flag_else_the_environment_else_the_file_else_the_default() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fencepost.toml");
    std::fs::write(&file, "name = 'file'\nlisten-http = '127.0.0.1:2'\njoin = ['a:1', 'b:2']\n").unwrap();
    let file = file.to_str().unwrap();
    let view = |by_variable: bool, flags: &[&str]| {
        let config = if by_variable { &[][..] } else { &["--config", file] };
        let mut command = command(&[&["config", "view", "-o", "json"], config, flags].concat());
        command.env("FENCEPOST_LISTEN_HTTP", "127.0.0.1:3");
        if by_variable {
            command.env("FENCEPOST_CONFIG", file);
        }
        Process::start(command).finish().ok().json()
    };
    let found = |view: &serde_json::Value, key: &str| {
        let row = view.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap();
        (row["value"].as_str().unwrap().to_owned(), row["source"].as_str().unwrap().to_owned())
    };
    let said = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    for by_variable in [true, false] {
        let seen = view(by_variable, &["--listen-peer", "127.0.0.1:4"]);
        assert_eq!(found(&seen, "listen-peer"), said("127.0.0.1:4", "flag --listen-peer"));
        assert_eq!(found(&seen, "listen-http"), said("127.0.0.1:3", "environment FENCEPOST_LISTEN_HTTP"));
        assert_eq!(found(&seen, "name"), said("file", &format!("file {file}")));
        assert_eq!(found(&seen, "join"), said("a:1,b:2", &format!("file {file}")));
        assert_eq!(found(&seen, "listen-client"), said("127.0.0.1:7420", "default"));
    }
    let seen = view(true, &["--listen-http", "127.0.0.1:5"]);
    assert_eq!(found(&seen, "listen-http"), said("127.0.0.1:5", "flag --listen-http"));
}

#[test]
fn a_port_in_use_is_reported_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    fencepost(&["dev", "--listen", &address]).with_code(125).says(&address).says("--listen 127.0.0.1:0");
}

#[test]
fn a_directory_that_does_not_fit_the_flags_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let free = "127.0.0.1:0";
    let data = directory.path().join("n1");
    let listen = ["--listen-client", free, "--listen-http", free, "--listen-peer", free];
    let serve_again = |more: &[&str]| {
        fencepost(&[&["serve", "--name", "n1", "--data", data.to_str().unwrap()], &listen[..], more].concat())
    };
    serve_again(&[]).with_code(125).says("--new-cluster").says("--join");
    let (node, client) = serve(directory.path(), "n1", &["--new-cluster"]);
    serve_again(&[]).with_code(125).says("another process has").says("stop it first");
    // A node with a log ignores --join: it stays in its own cluster, and never mixes two logs.
    let (other, other_client) = serve(directory.path(), "n2", &["--new-cluster"]);
    drop(other);
    let (_other, other_again) = serve(directory.path(), "n2", &["--join", &client]);
    assert_ne!(other_client, client);
    let cluster = |server: &str| ask(server, &["members", "-o", "json"]).ok().json()["cluster"].clone();
    assert_ne!(cluster(&client), cluster(&other_again), "each node stays in its cluster");
    drop(node);
    serve_again(&["--new-cluster"]).with_code(125).says("leave out --new-cluster");
    fencepost(&["dev", "--listen", free, "--data", data.to_str().unwrap()]).with_code(125).says("fencepost serve");
}

#[test]
fn a_write_that_a_crash_tore_is_cut_off_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let (node, client) = serve(directory.path(), "n1", &["--new-cluster"]);
    let mut asked = command(&["limit", "pool", "3"]);
    asked.env("FENCEPOST_SERVER", &client);
    Process::start(asked).finish().ok();
    node.signal(Signal::SIGKILL);
    node.finish();
    // The beginning of a record, as a crash in the middle of a write leaves it.
    let logs = std::fs::read_dir(directory.path().join("n1/log")).unwrap().map(|entry| entry.unwrap().path());
    let newest = logs.filter(|path| path.extension().is_some_and(|it| it == "raftlog")).max().expect("a log file");
    let mut file = std::fs::File::options().append(true).open(newest).unwrap();
    file.write_all(&[0, 0, 0, 0, 0, 1, 0, 0, 0, 0]).unwrap();
    drop(file);
    let (node, client) = serve(directory.path(), "n1", &[]);
    let mut asked = command(&["describe", "pool"]);
    asked.env("FENCEPOST_SERVER", &client);
    Process::start(asked).finish().ok().says("0 of 3");
    node.signal(Signal::SIGTERM);
    let ended = node.finish().ok();
    assert!(!ended.stderr.contains("orrupt") && !ended.stderr.contains("WARN"), "{}", ended.stderr);
}
