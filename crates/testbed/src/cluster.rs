//! The settings that make several servers one cluster.
//!
//! This file sets only the names of the members and the ports between them. The client port and the command line of a member are
//! in [`kinds`](crate::kinds). Everything else keeps the defaults of the product, so that benchmarks measure what users run.

use std::path::Path;

use crate::kinds::{Kind, SETTINGS};

/// The settings of one member.
pub(crate) struct Member {
    settings: String,
    /// The number of a ZooKeeper member, which it reads from a file in its data directory.
    number: Option<usize>,
}

impl Member {
    /// Writes the settings to the directory of the member.
    pub(crate) fn write(&self, directory: &Path) {
        std::fs::write(directory.join(SETTINGS), &self.settings).expect("the directory is ours");
        if let Some(number) = self.number {
            let data = directory.join("data");
            std::fs::create_dir(&data).expect("the directory is ours");
            std::fs::write(data.join("myid"), number.to_string()).expect("the directory is ours");
        }
    }
}

/// The settings of all members of a new cluster, which connect to each other on free ports.
pub(crate) fn settings(kind: Kind, members: usize, free_ports: impl Fn(usize) -> Vec<u16>) -> Vec<Member> {
    match kind {
        Kind::EtcdMember => etcd(&free_ports(members)),
        Kind::ZookeeperMember => zookeeper(&free_ports(2 * members)),
        _ => panic!("{kind:?} forms no cluster: start each server alone"),
    }
}

fn etcd(ports: &[u16]) -> Vec<Member> {
    let place = |port: u16| format!("http://127.0.0.1:{port}");
    let all: Vec<String> = ports.iter().map(|port| format!("m{port}={}", place(*port))).collect();
    let member = |port: &u16| {
        let place = place(*port);
        let settings = format!(
            "name: m{port}\nlisten-peer-urls: {place}\ninitial-advertise-peer-urls: {place}\ninitial-cluster: {}\n",
            all.join(",")
        );
        Member { settings, number: None }
    };
    ports.iter().map(member).collect()
}

/// The ticks and limits are those of ZooKeeper's sample file. The limit of connections from one host, 60 by default, is off,
/// because all clients run on one host.
fn zookeeper(ports: &[u16]) -> Vec<Member> {
    let mut settings =
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n".to_owned();
    for (number, ports) in (1..).zip(ports.chunks_exact(2)) {
        settings += &format!("server.{number}=127.0.0.1:{}:{}\n", ports[0], ports[1]);
    }
    (1..=ports.len() / 2).map(|number| Member { settings: settings.clone(), number: Some(number) }).collect()
}
