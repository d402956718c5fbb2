//! An operator adds, promotes and removes members, and waives a rest.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::harness::{Dev, Finished, Process, command, wait_until};

/// A proxy to a server that passes on one connection, and accepts but drops all others.
fn lets_one_through(server: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let address = listener.local_addr().expect("a listener has an address");
    std::thread::spawn(move || {
        let mut connections = listener.incoming().flatten();
        let Some(client) = connections.next() else { return };
        let upstream = TcpStream::connect(server).expect("the server listens");
        for (mut from, mut to) in [(client.try_clone().unwrap(), upstream.try_clone().unwrap()), (upstream, client)] {
            // Ends when either side closes.
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
        connections.for_each(drop);
    });
    address
}

fn ask(server: &str, args: &[&str]) -> Finished {
    let mut command = command(args);
    command.env("FENCEPOST_SERVER", server);
    Process::start(command).finish()
}

/// The part of a line between two words.
fn between<'a>(line: &'a str, before: &str, after: &str) -> &'a str {
    line.split(before).nth(1).and_then(|rest| rest.split(after).next()).unwrap_or_else(|| panic!("{before} in {line}"))
}

/// A `serve` node on free ports, with its client address and its peer address.
fn serve(directory: &std::path::Path, name: &str, more: &[&str]) -> (Process, String, String) {
    let free = "127.0.0.1:0";
    let mut command = Command::new("sh");
    // The log goes to a file, because the test reads it while the node runs.
    command.args(["-c", "exec \"$@\" 2>\"$0\""]).arg(directory.join(format!("{name}.log")));
    command.arg(env!("CARGO_BIN_EXE_fencepost")).args(["serve", "--log-format", "json", "--name", name]);
    command.arg("--data").arg(directory.join(name)).args(["--listen-http", free, "--listen-peer", free]).args(more);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let mut node = Process::start({
        command.stderr(std::process::Stdio::piped());
        command
    });
    let ready = node.wait_for_line("ready: ");
    (node, between(&ready, "clients on ", ",").to_owned(), between(&ready, "peers on ", ",").trim().to_owned())
}

fn roles(server: &str) -> Vec<(String, String)> {
    let seen = ask(server, &["members", "-o", "json"]).ok().json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    seen["members"].as_array().unwrap().iter().map(|it| (text(&it["name"]), text(&it["role"]))).collect()
}

/// A node that joins does all this by itself. Here it finds the cluster but then cannot reach it, so an operator does it.
#[test]
fn a_node_is_added_and_promoted_by_hand() {
    let directory = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = free.local_addr().unwrap().to_string();
    drop(free);
    let door = lets_one_through(client.clone()).to_string();
    let found = ["--new-cluster", "--listen-client", &client, "--advertise-client", &door];
    let (_first, first, _) = serve(directory.path(), "n1", &found);
    assert_eq!(first, client);
    wait_until("the first node leads", || (ask(&client, &["members"]).code == 0).then_some(()));
    let (_second, its_client, its_peer) =
        serve(directory.path(), "n2", &["--listen-client", "127.0.0.1:0", "--join", &door]);
    let mut log = String::new();
    std::fs::File::open(directory.path().join("n2.log")).unwrap().read_to_string(&mut log).unwrap();
    let up = log.lines().find(|line| line.contains("the node is up")).expect("the log says that the node is up");
    let id = between(up, "\"node\":\"", "\"");

    ask(&client, &["member", "promote", "n2"]).with_code(1).says("there is no member \"n2\"");
    let add = ["member", "add", id, "--name", "n2", "--peer", &its_peer, "--client", &its_client];
    ask(&client, &add).ok().says("is a learner");
    ask(&client, &["member", "add", "2a", "--name", "n2", "--peer", "h:1", "--client", "h:1"])
        .with_code(1)
        .says("a member named n2 exists under another id");
    let member = |name: &str, role: &str| (name.to_owned(), role.to_owned());
    let mut seen = roles(&client);
    seen.sort();
    assert_eq!(seen, [member("n1", "voter"), member("n2", "learner")]);
    // Refused until the learner has caught up.
    let promoted = wait_until("it has caught up", || {
        let promoted = ask(&client, &["member", "promote", "n2"]);
        if promoted.code != 0 {
            assert!(promoted.stderr.contains("wait until it has caught up"), "{promoted:?}");
            return None;
        }
        Some(promoted)
    });
    promoted.says("n2 (").says("is a voter now");
    assert!(roles(&client).contains(&member("n2", "voter")));
}

#[test]
fn members_shows_the_format_version_and_which_versions_each_member_knows() {
    let dev = Dev::with(&["--nodes", "3"]);
    let seen = wait_until("the leader has met the others", || {
        let seen = dev.fencepost(&["members", "-o", "json"]).ok().json();
        let is_known = |it: &serde_json::Value| it["newest_format"].is_u64();
        seen["members"].as_array().unwrap().iter().all(is_known).then_some(seen)
    });
    assert_eq!(seen["format_version"], 1);
    let members = seen["members"].as_array().unwrap();
    assert!(members.iter().all(|it| it["oldest_format"] == 1 && it["newest_format"] == 1), "{members:?}");
    let table = dev.fencepost(&["members"]).ok().says("the cluster uses format version 1");
    assert!(table.stdout.contains("FORMATS"), "{table:?}");
}

#[test]
fn a_leader_is_removed_and_the_others_keep_serving() {
    let dev = Dev::with(&["--nodes", "3"]);
    let seen = dev.fencepost(&["members", "-o", "json"]).ok().json();
    let leader = seen["members"].as_array().unwrap().iter().find(|it| it["leads"] == true).unwrap().clone();
    let (name, address) = (leader["name"].as_str().unwrap(), leader["client_address"].as_str().unwrap());
    let _holder = dev.hold("a");
    let asks = dev.fencepost(&["member", "remove", name]).with_code(2).says("pass --yes to do it");
    asks.says("This will remove for good").says("voter, up, leads").says("2 voters are left, and both must run");
    let removed =
        dev.fencepost(&["member", "remove", name, "--yes"]).ok().says("is removed. Another node takes the lead");
    removed.says("Stop this one, and delete its data directory");
    let left = dev.fencepost(&["members", "-o", "json"]).ok().json();
    let left = left["members"].as_array().unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().any(|it| it["leads"] == true) && left.iter().all(|it| it["name"] != name), "{left:?}");
    // The lock is still held, and new locks are granted.
    dev.fencepost(&["run", "-n", "a", "--", "true"]).with_code(124);
    dev.fencepost(&["run", "b", "--", "true"]).ok();
    // The removed node tells a client why it cannot answer.
    ask(address, &["members"]).with_code(125).says("removed from the cluster");
    dev.fencepost(&["member", "remove", name, "--yes"]).with_code(1).says("there is no member");
    // A member that follows and runs, by its id as it is printed.
    let follower = left.iter().find(|it| it["leads"] == false).unwrap();
    let id = follower["node"].as_str().unwrap();
    let removed = dev.fencepost(&["member", "remove", id, "--yes"]).ok().says(&format!("({id}) is removed"));
    removed.says("It still runs, and refuses every client: stop it");
    let last = dev.fencepost(&["members", "-o", "json"]).ok().json();
    let last = last["members"][0]["name"].as_str().unwrap();
    dev.fencepost(&["member", "remove", last, "--yes"]).with_code(1).says("no voter would be left");
}

/// A member that is down, and the way in which its id is printed: in the log of the node, in a table, in JSON and in an error.
#[test]
fn a_node_that_is_down_is_removed_and_its_id_is_printed_in_one_way() {
    let directory = tempfile::tempdir().unwrap();
    let free = ["--listen-client", "127.0.0.1:0"];
    let (_first, client, _) = serve(directory.path(), "n1", &[&free[..], &["--new-cluster"]].concat());
    let (second, _, its_peer) = serve(directory.path(), "n2", &[&free[..], &["--join", &client]].concat());
    wait_until("two vote", || {
        let all = roles(&client);
        (all.len() == 2 && all.iter().all(|(_, role)| role == "voter")).then_some(())
    });
    let log = std::fs::read_to_string(directory.path().join("n2.log")).unwrap();
    let up = log.lines().find(|line| line.contains("the node is up")).expect("the log says that the node is up");
    let id = between(up, "\"node\":\"", "\"").to_owned();
    assert_eq!(id.len(), 12, "{id}");
    ask(&client, &["members"]).ok().says(&id);
    let seen = ask(&client, &["members", "-o", "json"]).ok().json();
    assert!(seen["members"].as_array().unwrap().iter().any(|it| it["node"] == id.as_str()), "{seen}");
    let taken = ["member", "add", "2a", "--name", "n2", "--peer", &its_peer, "--client", "h:1"];
    ask(&client, &taken).with_code(1).says(&format!("exists under another id, {id}"));
    let unknown = ["member", "promote", "n1", "--replaces", "2b"];
    ask(&client, &unknown).with_code(1).says(&format!("n2 ({id})"));

    // With two voters, both must run to change the members. So there is a third.
    let third = serve(directory.path(), "n3", &[&free[..], &["--join", &client]].concat());
    wait_until("three vote", || (roles(&client).iter().filter(|(_, role)| role == "voter").count() == 3).then_some(()));
    drop(second);
    let is_silent = || {
        let seen = ask(&client, &["members", "-o", "json"]).ok().json();
        seen["members"].as_array().unwrap().iter().any(|it| it["name"] == "n2" && it["state"] == "silent").then_some(())
    };
    wait_until("the node is missed", is_silent);
    let removed = ask(&client, &["member", "remove", &id, "--yes"]).ok().says(&format!("n2 ({id}) is removed"));
    removed.says("It does not answer: make sure that it does not start again");
    drop(third);
}

#[test]
fn every_node_prints_who_changed_the_members_and_who_transferred_the_leadership() {
    let directory = tempfile::tempdir().unwrap();
    let any = ["--listen-client", "127.0.0.1:0"];
    let (_first, client, _) = serve(directory.path(), "n1", &[&any[..], &["--new-cluster"]].concat());
    wait_until("the first node leads", || (ask(&client, &["members"]).code == 0).then_some(()));
    let (second, other, _) = serve(directory.path(), "n2", &[&any[..], &["--join", &client]].concat());
    wait_until("both nodes vote", || {
        (roles(&client).iter().filter(|(_, role)| role == "voter").count() == 2).then_some(())
    });

    let nowhere = "127.0.0.1:1";
    let spare = ["--name", "n9", "--peer", nowhere, "--client", nowhere, "--reason", "a spare"];
    ask(&client, &[&["member", "add", "77"], &spare[..]].concat()).ok();
    ask(&client, &["transfer", "n2", "--reason", "new kernel on n1"]).ok().says("n2");
    let printed = |node: &str, what: &str, by: &str, reason: &str| {
        let log = std::fs::read_to_string(directory.path().join(format!("{node}.log"))).unwrap();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let is_it = |line: &serde_json::Value| {
            let begins = line["by"].as_str().is_some_and(|author| author.starts_with(by));
            line["message"] == what && line["reason"] == reason && begins
        };
        lines.any(|line| is_it(&line)).then_some(())
    };
    for node in ["n1", "n2"] {
        let said = |what: &str, by: &str, reason: &str| {
            wait_until(&format!("{node} prints {reason:?}"), || printed(node, what, by, reason));
        };
        said("the members are changed", "unverified ", "a spare");
        said("the leadership is transferred", "unverified ", "new kernel on n1");
        said("the members are changed", "unverified node n2", "it joins as a voter");
    }
    wait_until("n1 prints that it described itself", || {
        printed("n1", "the members are changed", "node n1", "its name and its addresses")
    });
    // The new leader hands over when it ends, and says so in the log that the other reads.
    wait_until("n2 leads", || (ask(&other, &["members"]).code == 0).then_some(()));
    second.signal(nix::sys::signal::Signal::SIGTERM);
    wait_until("n1 prints who ended", || printed("n1", "the leadership is transferred", "node n2", "it shuts down"));
}

#[test]
fn a_rest_is_waived() {
    let dev = Dev::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = runtime.block_on(async {
        let client = fencepost::Client::connect(&format!("fencepost://{}", dev.server)).await.unwrap();
        client.lock("machine").lock_delay(Duration::from_secs(60)).acquire().await.unwrap()
    });
    let break_it =
        |more: &[&str]| dev.fencepost(&[&["break", "machine", "--reason", "the host is gone", "--yes"], more].concat());
    break_it(&["--waive-rest"]).with_code(1).says("is not resting");
    break_it(&[]).ok().says("break: grant");
    dev.fencepost(&["run", "-n", "machine", "--", "true"]).with_code(124);
    break_it(&[]).with_code(1).says("it is resting: --waive-rest ends the rest");
    break_it(&["--waive-rest"]).ok().says("waive: the rest of grant");
    dev.fencepost(&["run", "-n", "machine", "--", "true"]).ok();
    drop(held);
}
