//! Lease runs: the leader changes often, holders go silent, and nothing else fails.
//!
//! So everything with a deadline must end within the bound of the rule `bounded-late`, in real time. This file makes these faults and
//! reports who leads; the checker of I22 judges.

use super::World;
use super::faults::{Undo, ordered};
use crate::fact::{Fact, WorldTime};
use crate::network::Endpoint;
use fencepost_replica::Role;

/// Time between two faults of the leader, in milliseconds: at least and at most.
const CHANGE_EVERY_MS: (u64, u64) = (2_000, 10_000);

/// What the world knows about the leadership, and what it has reported.
#[derive(Debug, Default)]
pub(super) struct Lead {
    /// When the leader gets its next fault.
    change_at: WorldTime,
    /// The leader and term that were reported last; the outer `None` before the first report.
    told: Option<Option<(u64, u64)>>,
    /// The hand-over that is in progress, or was when a leader was last seen: from the first node to the second.
    hand_over: Option<(u64, u64)>,
}

impl World {
    /// Causes a fault of the leader if one is due, and perhaps silences a client.
    pub(super) fn chance_of_leases(&mut self) {
        if self.now >= self.lead.change_at {
            let (least_ms, most_ms) = CHANGE_EVERY_MS;
            self.lead.change_at = self.now.after_ms(self.random.between(least_ms, most_ms));
            self.change_lead();
        }
        if self.random.one_in(8) {
            self.silence_a_client();
        }
    }

    fn change_lead(&mut self) {
        let Some(leader) = self.leader() else { return };
        let (now, ids) = (self.now, self.ids());
        let others: Vec<u64> = ids.iter().copied().filter(|id| *id != leader).collect();
        match self.random.below(10) {
            0..=4 if !others.is_empty() => {
                let to = *self.random.pick(&others);
                self.hand_over(leader, to);
            }
            5 => {
                self.observer.fault(now, "node paused", || format!("node {leader}"));
                self.nodes.get_mut(&leader).expect("listed").paused = true;
                self.tell_lead();
                self.undo_later(100, 6_000, Undo::Pause(leader));
            }
            6 => {
                self.observer.fault(now, "all restarted", || "every node".to_owned());
                for id in ids {
                    self.crash(id);
                    self.undo_later(50, 3_000, Undo::Crash(id));
                }
            }
            // The leader crashes alone, or together with others.
            at => {
                let dies_too = |random: &mut crate::random::Random| at > 7 && random.percent(50);
                let dying: Vec<u64> = others.into_iter().filter(|_| dies_too(&mut self.random)).collect();
                for id in dying.into_iter().chain([leader]) {
                    if self.nodes[&id].replica.is_some() {
                        self.observer.fault(now, "node crashed", || format!("node {id}"));
                        self.crash(id);
                        self.undo_later(50, 4_000, Undo::Crash(id));
                    }
                }
            }
        }
    }

    /// Asks a node to transfer the leadership to another. It refuses if it does not lead or if the other one is not a voter.
    pub(super) fn hand_over(&mut self, from: u64, to: u64) {
        let replica = self.nodes.get_mut(&from).and_then(|node| node.replica.as_mut());
        if replica.is_some_and(|replica| replica.transfer_lead(to, ordered()).is_ok()) {
            self.observer.fault(self.now, "lead transferred", || format!("from node {from} to node {to}"));
            self.turn(from);
        }
    }

    /// Silences a client's process for a while. The cluster cannot tell whether it is cut off, paused or crashed.
    fn silence_a_client(&mut self) {
        let client = self.random.below(self.clients.len() as u64) as usize;
        match self.random.below(4) {
            // While cut off it still checks its guard, and trusts it until the guard's own deadline.
            0..=1 => {
                let ids = self.ids();
                let some: Vec<u64> = ids.iter().copied().filter(|_| self.random.percent(50)).collect();
                let nodes = if some.is_empty() { ids } else { some };
                self.observer.fault(self.now, "client cut off", || format!("client {client} and nodes {nodes:?}"));
                for id in nodes {
                    self.network.cut(Endpoint::Client(client), Endpoint::Node(id));
                    self.network.cut(Endpoint::Node(id), Endpoint::Client(client));
                }
                self.undo_later(5_000, 60_000, Undo::ClientCut(client));
            }
            2 => {
                self.observer.fault(self.now, "client paused", || format!("client {client}"));
                self.clients[client].paused = true;
                self.undo_later(5_000, 60_000, Undo::ClientPause(client));
            }
            _ => {
                self.observer.fault(self.now, "client crashed", || format!("client {client}"));
                self.crash_client(client);
            }
        }
    }

    /// Reports who leads, if it changed. Must be called whenever a node turned, crashed, paused or resumed.
    pub(super) fn tell_lead(&mut self) {
        if !self.faults.leases {
            return;
        }
        let leads = self.who_leads();
        let planned = leads.is_some() && self.lead.hand_over.map(|(_, to)| to) == leads.map(|(node, _)| node);
        if self.lead.told != Some(leads) {
            self.lead.told = Some(leads);
            self.observer.fact(self.now, &Fact::Leads { leader: leads, planned });
        }
        self.follow_hand_over();
    }

    /// Notes whether the last leader hands over. A leader that crashes or is paused in the middle has not handed over.
    fn follow_hand_over(&mut self) {
        let serving = self.leader().and_then(|id| Some((id, self.nodes[&id].replica.as_ref()?)));
        if let Some((id, replica)) = serving {
            self.lead.hand_over = replica.hands_over_to().map(|to| (id, to));
        }
        if let Some((from, _)) = self.lead.hand_over
            && !self.nodes.get(&from).is_some_and(crate::node::SimNode::runs)
        {
            self.lead.hand_over = None;
        }
    }

    /// The leader and its term: a node that runs, serves, accepts entries and reaches a majority of the voters.
    fn who_leads(&self) -> Option<(u64, u64)> {
        let id = self.leader()?;
        let replica = self.nodes[&id].replica.as_ref()?;
        let members = replica.members();
        let voters: Vec<u64> = members.iter().filter(|it| it.role == Role::Voter).map(|it| it.node).collect();
        let (me, network) = (Endpoint::Node(id), &self.network);
        let reached = |voter: &&u64| {
            let other = Endpoint::Node(**voter);
            self.nodes.get(*voter).is_some_and(crate::node::SimNode::runs)
                && !network.is_cut(me, other)
                && !network.is_cut(other, me)
        };
        let reaches = voters.iter().filter(reached).count() * 2 > voters.len();
        (reaches && replica.hands_over_to().is_none()).then(|| (id, replica.term()))
    }
}
