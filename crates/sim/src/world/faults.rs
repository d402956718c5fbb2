//! Random faults, and the random acts of administrators, readers and watchers.
//!
//! Chance decides what happens, when, and for how long. Every fault ends by itself after a while, or at the latest when the world is
//! healed. Lease runs have their own faults in `leases.rs`.

use fencepost_core::{
    Act, Admin, FreezeId, GrantId, LogPosition, Name, Operation, Permits, Principal, Reason, Record, Scope, SessionId,
    Ticket,
};
use fencepost_replica::{MemberChange, Role, restore_backup};
use fencepost_wire::Cause;

use super::nodes::member;
use super::upgrades::NEW_RELEASE;
use super::{Happening, Plan, World, address};
use crate::disk::{Durable, Speed};
use crate::fact::{Fact, WorldTime};
use crate::network::Endpoint;
use crate::process::Arrival;
use crate::random::Random;

/// How much higher the tokens of a restored cluster begin.
// Rule: token-order
const TOKEN_JUMP: u64 = 1_000_000_000_000;

/// Who orders acts, member changes and leadership transfers in the simulation, and why.
pub(super) fn ordered() -> Cause {
    let by = Principal::new("admin").expect("a plain word");
    Cause { by, reason: Reason::new("chance").expect("a plain word") }
}

/// The end of a fault: what to restore, and where.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    Crash(u64),
    Pause(u64),
    Disk(u64),
    Snapshots(u64),
    ClientPause(usize),
    ClientCut(usize),
    Network,
}

/// Which faults are on, and what is pending.
pub struct Faults {
    /// The intended number of voters. Member changes may make it one more for a while.
    size: u64,
    /// Whether there are faults now.
    pub(super) is_on: bool,
    /// Whether administrators act.
    pub(super) administers: bool,
    /// Whether this is a lease run.
    pub(super) leases: bool,
    /// Whether nodes are upgraded.
    pub(super) upgrades: bool,
    freezes: Vec<FreezeId>,
    reads: Vec<((u64, Ticket), u64)>,
}

impl Faults {
    pub(super) fn new(plan: &Plan) -> Faults {
        Faults {
            size: plan.nodes,
            is_on: false,
            administers: plan.administered,
            leases: plan.leases,
            upgrades: plan.upgrades,
            freezes: Vec::new(),
            reads: Vec::new(),
        }
    }
}

impl Faults {
    /// Whether the requests in a client's message arrive twice. Drawn for each message.
    pub(super) fn doubles(&self, random: &mut Random) -> bool {
        self.is_on && random.one_in(60)
    }
}

impl World {
    /// Begins the phase with faults.
    pub(super) fn disturb(&mut self) {
        self.faults.is_on = true;
        self.observer.fact(self.now, &Fact::Disturbed);
    }

    /// Ends the phase with faults, and undoes all faults that are still there.
    pub(super) fn heal(&mut self) {
        self.faults.is_on = false;
        self.network.heal();
        self.upgrade_the_rest();
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.undo(Undo::Disk(id));
            self.undo(Undo::Snapshots(id));
            self.undo(Undo::Pause(id));
            self.undo(Undo::Crash(id));
        }
        for client in 0..self.clients.len() {
            self.resume_client(client);
        }
        self.thaw_everything();
        self.observer.line(self.now, "world", || "everything is healed".to_owned());
        self.observer.fact(self.now, &Fact::Healed);
    }

    pub(super) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Crash(id) => {
                if self.nodes.get(&id).is_some_and(|node| node.replica.is_none() && !node.damaged) {
                    self.observer.line(self.now, "world", || format!("node {id} starts again"));
                    self.start(id);
                }
            }
            Undo::Pause(id) => self.resume(id),
            Undo::Disk(id) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.disk.speed = Speed::Well;
                    self.begin_sync(id);
                }
            }
            Undo::Snapshots(id) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.snapshots_stalled = false;
                }
            }
            Undo::ClientPause(client) => self.resume_client(client),
            Undo::ClientCut(client) => self.network.reconnect(Endpoint::Client(client)),
            Undo::Network => self.network.heal(),
        }
    }

    pub(super) fn undo_later(&mut self, least_ms: u64, most_ms: u64, undo: Undo) {
        let at = WorldTime(self.now.0 + self.random.delay(least_ms, most_ms) * 1_000_000);
        self.agenda.put(at, Happening::Undo(undo));
    }

    /// Draws what happens now, and schedules the next draw.
    pub(super) fn chance(&mut self) {
        let next = self.now.after_ms(self.random.between(20, 1_000));
        self.agenda.put(next, Happening::Chance);
        self.look_on();
        if self.faults.administers && self.random.one_in(12) {
            self.administer();
        }
        if self.random.one_in(16) {
            self.allow_jobs();
        }
        #[cfg(feature = "made-up-version")]
        if self.faults.upgrades && self.random.one_in(6) {
            self.remark();
        }
        if self.faults.is_on && self.faults.leases {
            self.chance_of_leases();
        } else if self.faults.is_on && self.random.percent(45) {
            self.go_wrong();
        }
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// The node that leads and serves; if several believe so, the one with the highest term.
    pub(super) fn leader(&self) -> Option<u64> {
        let up = self.nodes.iter().filter(|(_, node)| node.runs());
        let serving = up.filter_map(|(id, node)| Some((*id, node.replica.as_ref()?)));
        serving.filter(|(_, replica)| replica.serves()).max_by_key(|(_, replica)| replica.term()).map(|(id, _)| id)
    }

    /// Whether a fault may hit one more node. Usually at most a minority is hit; one time in fifteen more.
    fn may_hurt(&mut self) -> bool {
        let well = |node: &&crate::node::SimNode| node.runs() && node.disk.speed != Speed::Stalled;
        let hurt = (self.nodes.len() - self.nodes.values().filter(well).count()) as u64;
        hurt < (self.faults.size - 1) / 2 || self.random.one_in(15)
    }

    fn go_wrong(&mut self) {
        let ids = self.ids();
        // Faults of the leader find the most, so it is chosen more often.
        let leader = self.leader().filter(|_| self.random.percent(35));
        let id = leader.unwrap_or(*self.random.pick(&ids));
        let other = *self.random.pick(&ids);
        let client = self.random.below(self.clients.len() as u64) as usize;
        let is_well = self.nodes[&id].runs();
        let now = self.now;
        match self.random.below(25) {
            0..=1 if is_well && self.may_hurt() => {
                self.observer.fault(now, "node crashed", || format!("node {id}"));
                self.crash(id);
                self.undo_later(50, 8_000, Undo::Crash(id));
            }
            2 if is_well && self.may_hurt() => {
                self.observer.fault(now, "sync failed", || format!("node {id}"));
                self.crash(id);
                self.undo_later(50, 8_000, Undo::Crash(id));
            }
            3..=4 if is_well && self.may_hurt() => {
                self.observer.fault(now, "node paused", || format!("node {id}"));
                self.nodes.get_mut(&id).expect("listed").paused = true;
                self.undo_later(100, 12_000, Undo::Pause(id));
            }
            5 if self.may_hurt() => {
                self.observer.fault(now, "disk stalled", || format!("node {id}"));
                self.nodes.get_mut(&id).expect("listed").disk.speed = Speed::Stalled;
                self.undo_later(100, 6_000, Undo::Disk(id));
            }
            6 => {
                self.observer.fault(now, "disk slow", || format!("node {id}"));
                self.nodes.get_mut(&id).expect("listed").disk.speed = Speed::Slow;
                self.undo_later(100, 6_000, Undo::Disk(id));
            }
            7 => {
                self.observer.fault(now, "snapshots stalled", || format!("node {id}"));
                self.nodes.get_mut(&id).expect("listed").snapshots_stalled = true;
                self.undo_later(500, 10_000, Undo::Snapshots(id));
            }
            8 => {
                self.observer.fault(now, "one-way cut", || format!("from node {id} to node {other}"));
                self.network.cut(Endpoint::Node(id), Endpoint::Node(other));
                self.undo_later(200, 8_000, Undo::Network);
            }
            9..=10 if self.may_hurt() => {
                self.observer.fault(now, "node isolated", || format!("node {id}"));
                for peer in ids.iter().filter(|peer| **peer != id) {
                    self.network.cut(Endpoint::Node(id), Endpoint::Node(*peer));
                    self.network.cut(Endpoint::Node(*peer), Endpoint::Node(id));
                }
                self.undo_later(200, 8_000, Undo::Network);
            }
            11 => {
                self.observer.fault(now, "partition", || "the nodes are split into two parts".to_owned());
                let parts: Vec<bool> = ids.iter().map(|_| self.random.percent(50)).collect();
                for (one, part) in ids.iter().zip(&parts) {
                    for (another, _) in ids.iter().zip(&parts).filter(|(_, other_part)| *other_part != part) {
                        self.network.cut(Endpoint::Node(*one), Endpoint::Node(*another));
                    }
                }
                self.undo_later(200, 8_000, Undo::Network);
            }
            12 => {
                self.observer.fault(now, "client cut off", || format!("client {client} and node {id}"));
                if self.random.percent(70) {
                    self.network.cut(Endpoint::Client(client), Endpoint::Node(id));
                }
                self.network.cut(Endpoint::Node(id), Endpoint::Client(client));
                self.undo_later(200, 8_000, Undo::Network);
            }
            13 => {
                self.observer.fault(now, "slow link", || format!("node {id} to node {other}"));
                self.network.slow_down(Endpoint::Node(id), Endpoint::Node(other));
                self.undo_later(200, 8_000, Undo::Network);
            }
            14 => {
                self.observer.fault(now, "slow link to the store", || format!("client {client}"));
                self.network.slow_down(Endpoint::Client(client), Endpoint::Store);
                self.undo_later(500, 15_000, Undo::Network);
            }
            15 => {
                self.observer.fault(now, "loss", || "messages are lost, doubled and late".to_owned());
                self.network.loss_percent = self.random.between(1, 25);
                self.network.delay_max = self.random.between(2, 120) * 1_000_000;
                self.undo_later(500, 8_000, Undo::Network);
            }
            16..=18 => {
                self.observer.fault(now, "client paused", || format!("client {client}"));
                self.clients[client].paused = true;
                // One time in three up to a minute, which is longer than any session lives.
                let most_ms = if self.random.one_in(3) { 60_000 } else { 15_000 };
                self.undo_later(500, most_ms, Undo::ClientPause(client));
            }
            19 => {
                self.observer.fault(now, "client crashed", || format!("client {client}"));
                self.crash_client(client);
            }
            20 if is_well => self.hand_over(id, other),
            21..=22 => self.change_members(),
            23 if self.random.percent(50) => {
                self.observer.fault(now, "wall clock jumped", || format!("node {id}"));
                let by_ms = self.random.between(1, 7_200_000) as i64 - 3_600_000;
                self.nodes.get_mut(&id).expect("listed").wall_off_ms += by_ms;
            }
            23 if self.random.one_in(3) => {
                self.observer.fault(now, "all restarted", || "every node".to_owned());
                for id in ids {
                    self.crash(id);
                    self.undo_later(50, 3_000, Undo::Crash(id));
                }
            }
            24 if self.random.one_in(8) => self.damage(id),
            24 if self.random.one_in(8) => self.restore(),
            _ => {}
        }
    }

    /// Flips a bit of a node's newest snapshot. The node must notice at its next start, and is replaced by a new one.
    fn damage(&mut self, id: u64) {
        // Only if at least three voters are there and all nodes are well: a cluster need not survive more damage.
        let voters = self.leader().map_or(0, |leader| self.voters_of(leader).len());
        if voters < 3 || !self.nodes.values().all(|node| node.runs() && !node.damaged) {
            return;
        }
        self.crash(id);
        let node = self.nodes.get_mut(&id).expect("listed");
        if node.disk.flip_a_bit(&mut self.random) {
            node.damaged = true;
            self.observer.fault(self.now, "snapshot damaged", || format!("node {id}"));
        }
        self.undo_later(50, 2_000, Undo::Crash(id));
        if self.nodes[&id].damaged {
            self.start(id);
        }
    }

    /// The voters, according to this node.
    fn voters_of(&self, id: u64) -> Vec<u64> {
        let members = self.nodes[&id].replica.as_ref().map(|replica| replica.members()).unwrap_or_default();
        members.iter().filter(|view| view.role == Role::Voter).map(|view| view.node).collect()
    }

    /// Asks the leader for a random member change.
    fn change_members(&mut self) {
        let Some(leader) = self.leader() else { return };
        let members = self.nodes[&leader].replica.as_ref().expect("it leads").members();
        let learner = members.iter().find(|view| view.role == Role::Learner).map(|view| view.node);
        let voters = self.voters_of(leader);
        let gone = |id: &&u64| self.nodes.get(*id).is_none_or(|node| node.damaged);
        let voter = voters.iter().find(gone).copied().unwrap_or(*self.random.pick(&voters));
        let is_spare = voters.len() as u64 > self.faults.size;
        let is_short = (voters.len() as u64) < self.faults.size;
        let (kind, changes) = match (self.random.below(4), learner) {
            (0, Some(learner)) if !is_spare => ("learner promoted", vec![MemberChange::Promote(learner)]),
            (1, Some(learner)) => ("learner removed", vec![MemberChange::Remove(learner)]),
            (_, Some(learner)) if is_short => ("learner promoted", vec![MemberChange::Promote(learner)]),
            (_, Some(learner)) => ("voter replaced", vec![MemberChange::Promote(learner), MemberChange::Remove(voter)]),
            (_, None) if is_spare => ("voter removed", vec![MemberChange::Remove(voter)]),
            (_, None) => {
                let new = self.next_node;
                let known = self.release_of_new(new, self.witness.version());
                let replica = self.nodes.get_mut(&leader).and_then(|node| node.replica.as_mut()).expect("it leads");
                // A node that asks to be added sends its known versions first.
                replica.handle_hello(new, known);
                if self.ask_for_change(leader, &[MemberChange::AddLearner(member(new))]) {
                    self.next_node += 1;
                    self.observer.fault(self.now, "learner added", || format!("node {new}"));
                    self.join(new, known);
                }
                return;
            }
        };
        if self.ask_for_change(leader, &changes) {
            self.observer.fault(self.now, kind, || changed(&changes));
        }
    }

    fn ask_for_change(&mut self, leader: u64, changes: &[MemberChange]) -> bool {
        let replica = self.nodes.get_mut(&leader).and_then(|node| node.replica.as_mut());
        let taken = replica.is_some_and(|replica| replica.change_members(changes, &ordered()).is_ok());
        self.turn(leader);
        taken
    }

    /// Forgets nodes that are down and no longer members, and tells the clients the addresses of the members.
    pub(super) fn tidy_members(&mut self) {
        let Some(leader) = self.leader() else { return };
        let members: Vec<u64> =
            self.nodes[&leader].replica.as_ref().expect("it leads").members().iter().map(|view| view.node).collect();
        self.nodes.retain(|id, node| members.contains(id) || node.replica.is_some());
        let addresses: Vec<String> = members.iter().map(|id| address(*id)).collect();
        self.clients.iter_mut().for_each(|client| client.learn_addresses(addresses.clone()));
    }

    /// All nodes are lost, and a new cluster is founded from a backup: a snapshot of a random node.
    fn restore(&mut self) {
        let backups =
            self.nodes.values().filter(|node| !node.damaged).filter_map(|node| node.disk.durable().snapshot.clone());
        let backups: Vec<_> = backups.collect();
        if backups.is_empty() {
            return;
        }
        let backup = self.random.pick(&backups).clone();
        let mut group = self.settings.group;
        group.cluster += 1;
        let founder = self.next_node;
        self.next_node += 1;
        let restored =
            restore_backup(&backup, group, TOKEN_JUMP, founder, NEW_RELEASE).expect("a snapshot is a backup");
        self.observer.fault(self.now, "restored from a backup", || format!("a new cluster, founded by node {founder}"));
        for id in self.ids() {
            self.crash(id);
        }
        self.nodes.clear();
        self.settings.group = group;
        self.log.clear();
        let state = fencepost_replica::read_snapshot(group, &restored, 7, NEW_RELEASE).expect("it was just made").state;
        let known = self.release_of_new(founder, state.version());
        self.witness = state;
        self.faults.reads.clear();
        self.job_reads.clear();
        self.observer.fact(self.now, &Fact::Restored { cluster: group.cluster });
        self.watchers.iter_mut().for_each(crate::watcher::Watcher::restart);
        self.put_node(
            founder,
            Durable { log: fencepost_replica::Log::new(&[founder]), snapshot: Some(restored.into()) },
            known,
        );
        self.clients.iter_mut().for_each(|client| client.learn_addresses(vec![address(founder)]));
    }

    /// Lets every watcher read events from a random node, and submits a read to every node.
    fn look_on(&mut self) {
        self.tidy_members();
        let ids = self.ids();
        for at in 0..self.watchers.len() {
            let id = *self.random.pick(&ids);
            if let Some(replica) = self.nodes[&id].replica.as_ref().filter(|_| self.nodes[&id].runs()) {
                let count = self.random.between(1, 200) as usize;
                self.watchers[at].look(replica, count, self.now, &mut self.observer);
            }
        }
        // Every node that believes that it leads accepts the read.
        for id in ids {
            let node = self.nodes.get_mut(&id).expect("listed");
            if node.runs()
                && let Some(Ok(ticket)) = node.replica.as_mut().map(|replica| replica.submit_read())
            {
                self.read_asked(id, ticket);
                self.turn(id);
            }
        }
    }

    /// Notes that a node accepted a read. Returns the number of the read.
    pub(super) fn read_asked(&mut self, node: u64, ticket: Ticket) -> u64 {
        self.reads += 1;
        self.faults.reads.push(((node, ticket), self.reads));
        self.observer.fact(self.now, &Fact::ReadAsked { read: self.reads });
        self.reads
    }

    pub(super) fn read_ready(&mut self, node: u64, ticket: Ticket, position: LogPosition) {
        if let Some(at) = self.faults.reads.iter().position(|(asked, _)| *asked == (node, ticket)) {
            let (_, read) = self.faults.reads.remove(at);
            self.observer.fact(self.now, &Fact::ReadAnswered { read, position });
            self.job_read_ready(node, read);
        }
    }

    fn administer(&mut self) {
        let (mut grants, mut sessions, mut rests) = (Vec::new(), Vec::new(), Vec::new());
        for record in self.witness.records() {
            match record {
                Record::Grant(grant) => grants.push(grant.id),
                Record::Session(session) => sessions.push(session.id),
                Record::Rest(rest) => rests.push(rest.grant),
                _ => {}
            }
        }
        let pick_grant = |from: &[GrantId], random: &mut Random| *random.pick(from);
        let act = match self.random.below(11) {
            0 if !grants.is_empty() => Act::Break { grant: pick_grant(&grants, &mut self.random) },
            1 | 9 if !sessions.is_empty() => Act::Evict { session: *self.random.pick::<SessionId>(&sessions) },
            2 if !rests.is_empty() => Act::WaiveRest { grant: pick_grant(&rests, &mut self.random) },
            3..=4 if self.faults.freezes.len() < 2 => {
                let freeze = FreezeId(u128::from(self.random.number()));
                self.faults.freezes.push(freeze);
                let scope = match self.random.below(3) {
                    0 => Scope::Prefix(b"account".to_vec().into()),
                    1 => Scope::Name(Name::new("leader").expect("a plain name")),
                    _ => Scope::Name(Name::new("/a/b").expect("a path")),
                };
                Act::Freeze { freeze, scope }
            }
            5..=6 => match self.faults.freezes.pop() {
                Some(freeze) => Act::Thaw { freeze },
                None => return,
            },
            7..=8 => match self.act_on_job() {
                Some(act) => act,
                None => return,
            },
            _ => {
                let limit = Permits::new(self.random.between(1, 4) as u32).expect("in bounds");
                Act::SetLimit { name: Name::new("pool").expect("a plain name"), limit: Some(limit) }
            }
        };
        self.act(act);
    }

    pub(super) fn act(&mut self, act: Act) {
        let Some(leader) = self.leader() else { return };
        let Cause { by, reason } = ordered();
        self.observer.line_with(self.now, "admin", |telling| telling.act(&act));
        if let Act::Evict { session } = act {
            self.tell_hostile_of_evict(session);
        }
        let replica = self.nodes.get_mut(&leader).and_then(|node| node.replica.as_mut()).expect("it leads");
        // The act may be lost with the leader; it is not retried.
        let _ = replica.submit(Operation::Admin(Admin { by, reason, act }));
        self.turn(leader);
    }

    /// Thaws all freezes, allows jobs, and stops the administrators.
    pub(super) fn thaw_everything(&mut self) {
        self.faults.administers = false;
        let records = self.witness.records();
        let frozen: Vec<FreezeId> = records
            .filter_map(|record| if let Record::Freeze(freeze) = record { Some(freeze.id) } else { None })
            .collect();
        for freeze in frozen {
            self.act(Act::Thaw { freeze });
        }
        self.allow_jobs();
    }

    /// Wakes every client, so that those that were paused until now act at once.
    pub(super) fn wake_all_clients(&mut self) {
        for client in 0..self.clients.len() {
            self.reach(client, Arrival::Wake);
        }
    }
}

fn changed(changes: &[MemberChange]) -> String {
    let words = changes.iter().map(|change| match change {
        MemberChange::AddLearner(member) => format!("node {} becomes a learner", member.node()),
        MemberChange::Promote(node) => format!("node {node} becomes a voter"),
        MemberChange::Remove(node) => format!("node {node} is removed"),
        MemberChange::Describe(member) => format!("node {} has other addresses", member.node()),
    });
    words.collect::<Vec<_>>().join(", ")
}
