//! Dead nodes as an operator sees them: nodes are killed with SIGKILL, and the commands and logs say so.

use std::process::{Command, Output};

use crate::cluster::Cluster;
use crate::patience::wait_until;
use serde_json::Value;

fn fencepost(server: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(name);
    }
    command.args(args).env("FENCEPOST_SERVER", server).output().expect("the binary is built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn members(server: &str) -> Value {
    let output = fencepost(server, &["members", "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("the output is JSON")
}

fn member<'a>(seen: &'a Value, name: &str) -> &'a Value {
    let members = seen["members"].as_array().expect("a list");
    members.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name} is not in {seen}"))
}

fn wait_until_all_are_up(servers: &[String]) {
    for server in servers {
        wait_until("all are up, whichever node is asked", || {
            let seen = members(server);
            let is_up = |name: &str| member(&seen, name)["state"] == "up" && member(&seen, name)["version"].is_string();
            (seen["seen_by"] == seen["leader"] && ["n1", "n2", "n3"].into_iter().all(is_up)).then_some(())
        });
    }
}

#[test]
fn a_killed_node_is_shown_as_silent_and_without_a_majority_the_commands_say_which_nodes_are_heard() {
    let mut cluster = Cluster::start_on(3, None);
    let servers = cluster.endpoints();
    wait_until_all_are_up(&servers);
    let leader = cluster.leader(0).node;
    let [first, second] = (0..3).filter(|node| *node != leader).collect::<Vec<_>>()[..] else { panic!("three nodes") };
    let name = |node: usize| format!("n{}", node + 1);

    // A follower is killed. Every live node reports it, since each forwards the request to the leader.
    cluster.kill(first);
    for server in [&servers[leader], &servers[second]] {
        let seen = wait_until("the node is shown as silent", || {
            let seen = members(server);
            (member(&seen, &name(first))["state"] == "silent").then_some(seen)
        });
        assert_eq!(seen["seen_by"], seen["leader"], "{seen}");
        assert!(member(&seen, &name(first))["silent_ms"].as_u64() >= Some(3_000), "{seen}");
        assert_eq!(member(&seen, &name(second))["state"], "up", "{seen}");
        assert_eq!(member(&seen, &name(second))["lag_entries"], 0, "{seen}");
        assert_eq!(seen["without_leader"], Value::Null, "{seen}");
        let shown = text(&fencepost(server, &["members"]).stdout);
        assert!(shown.contains("STATE") && shown.contains("silent for "), "{shown}");
    }
    // The log line comes with the next tick, so a command may report the silence first.
    wait_until("the leader's log names the silent peer", || {
        let told = cluster.log(leader);
        (told.contains("peers are silent") && told.contains(&format!("{} (", name(first)))).then_some(())
    });

    // The other follower is killed. Now there is no majority, and the last node says why, in every answer.
    cluster.kill(second);
    let sentence = format!("no node leads: node {} hears 1 of 3: ", name(leader));
    let said = wait_until("the node says which nodes it hears", || {
        let output = fencepost(&servers[leader], &["members"]);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{output:?}");
        (said.contains(&sentence) && said.matches(" for ").count() == 2).then_some(said)
    });
    assert!(said.contains(" silent for ") && said.contains("start the nodes that are down"), "{said}");
    for node in [first, second] {
        assert!(said.contains(&name(node)), "{said}");
        assert_eq!(member(&members(&servers[leader]), &name(node))["state"], "silent");
    }
    // All nodes are given, and two of them refuse the connection. The message comes from the node that answers.
    for args in [&["run", "-n", "x", "--", "true"][..], &["why", "x"]] {
        let output = fencepost(&servers.join(","), args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {output:?}");
        assert!(said.contains(&sentence) && !said.contains("fencepost dev"), "{args:?}: {said}");
    }
    wait_until("the log says which nodes it hears", || cluster.log(leader).contains(&sentence).then_some(()));

    cluster.restart(first);
    cluster.restart(second);
    wait_until_all_are_up(&servers);
    // If the node that stayed leads again, it logs that its peers are back. As a follower it does not hear both of them.
    wait_until("the node that stayed hears its peers again, or follows", || {
        let lead = cluster.leader(0).node;
        (lead != leader || cluster.log(leader).contains("a peer is heard again")).then_some(())
    });
    assert_eq!(fencepost(&servers.join(","), &["run", "-n", "x", "--", "true"]).status.code(), Some(0));
}
