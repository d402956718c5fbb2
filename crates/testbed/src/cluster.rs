//! Members that know each other: what each of several servers must be told to be one system.
//!
//! Only who they are and where they speak with each other stands here. Where a member serves its clients, and how it is run, is said
//! with the other [`kinds`](crate::kinds). All else is as their makers set it, so that benchmarks meet what is run elsewhere.

use std::path::Path;

use crate::kinds::{Kind, SETTINGS};

/// What is particular to one member.
pub(crate) struct Member {
    settings: String,
    /// ZooKeeper's members read their number in a file beside their data.
    number: Option<usize>,
}

impl Member {
    /// To the directory that it will be started in.
    pub(crate) fn write(&self, directory: &Path) {
        std::fs::write(directory.join(SETTINGS), &self.settings).expect("the directory is ours");
        if let Some(number) = self.number {
            let data = directory.join("data");
            std::fs::create_dir(&data).expect("the directory is ours");
            std::fs::write(data.join("myid"), number.to_string()).expect("the directory is ours");
        }
    }
}

/// All members of a new system of this kind, which meet on ports that are free.
pub(crate) fn settings(kind: Kind, members: usize, free_ports: impl Fn(usize) -> Vec<u16>) -> Vec<Member> {
    match kind {
        Kind::EtcdMember => etcd(&free_ports(members)),
        Kind::ZookeeperMember => zookeeper(&free_ports(2 * members)),
        _ => panic!("{kind:?} has no members: start each alone"),
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

/// The ticks and limits are those of ZooKeeper's sample file. More clients than the default of 60 come from this machine.
fn zookeeper(ports: &[u16]) -> Vec<Member> {
    let mut settings =
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n".to_owned();
    for (number, ports) in (1..).zip(ports.chunks_exact(2)) {
        settings += &format!("server.{number}=127.0.0.1:{}:{}\n", ports[0], ports[1]);
    }
    (1..=ports.len() / 2).map(|number| Member { settings: settings.clone(), number: Some(number) }).collect()
}
