//! A run in which nodes are upgraded one by one, at random times, while everything else goes wrong as ever. The newer release knows a
//! made-up version of the formats. The cluster must go on in the old one until every member knows the new one, and then raise it.

use fencepost_core::{FormatVersion, KnownVersions};
#[cfg(feature = "made-up-version")]
use fencepost_core::{Operation, Reason};

use super::faults::Undo;
use super::{Happening, Plan, World};
use crate::fact::WorldTime;

/// What the older release knows.
pub(super) const OLD_RELEASE: KnownVersions = KnownVersions::THIS_BUILD;

/// What the newest release of the world knows.
#[cfg(feature = "made-up-version")]
pub(super) const NEW_RELEASE: KnownVersions = KnownVersions::WITH_MADE_UP;
#[cfg(not(feature = "made-up-version"))]
pub(super) const NEW_RELEASE: KnownVersions = KnownVersions::THIS_BUILD;

/// How long a node of the older release that joins late keeps it, in milliseconds.
const LATE_UPGRADE_MS: (u64, u64) = (1_000, 20_000);

impl World {
    /// Sets a time for the upgrade of each node, if the plan has upgrades. The last third of the plan is left for the new version.
    pub(super) fn plan_upgrades(&mut self, plan: &Plan) {
        if !plan.upgrades {
            return;
        }
        for node in self.ids() {
            let at = self.now.after_ms(self.random.between(1_000, (plan.seconds * 667).max(1_001)));
            self.agenda.put(at, Happening::Upgrade { node });
        }
    }

    /// The release of a node that is new in the cluster, in which this version is active. One of the older release is upgraded later.
    pub(super) fn release_of_new(&mut self, node: u64, active: FormatVersion) -> KnownVersions {
        if !self.faults.upgrades {
            return OLD_RELEASE;
        }
        if !OLD_RELEASE.contains(active) || self.random.percent(50) {
            return NEW_RELEASE;
        }
        let (least_ms, most_ms) = LATE_UPGRADE_MS;
        let at = WorldTime(self.now.0 + self.random.between(least_ms, most_ms) * 1_000_000);
        self.agenda.put(at, Happening::Upgrade { node });
        OLD_RELEASE
    }

    /// The process is stopped, and started again with the newer release. One that is down gets it for when it starts.
    pub(super) fn upgrade(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.known != NEW_RELEASE) else { return };
        node.known = NEW_RELEASE;
        self.observer.fault(self.now, "node upgraded", || format!("node {id}"));
        if self.nodes[&id].replica.is_some() {
            self.crash(id);
            self.undo_later(50, 3_000, Undo::Crash(id));
        }
    }

    /// No member is left with the older release.
    pub(super) fn upgrade_the_rest(&mut self) {
        if self.faults.upgrades {
            self.ids().into_iter().for_each(|id| self.upgrade(id));
        }
    }

    /// Asks for what only the new version has. It is refused as long as the old one is active.
    #[cfg(feature = "made-up-version")]
    pub(super) fn remark(&mut self) {
        let Some(leader) = self.leader() else { return };
        let replica = self.nodes.get_mut(&leader).and_then(|node| node.replica.as_mut()).expect("it leads");
        // It may be lost with the leader; no user waits for it.
        let _ = replica.submit(Operation::MadeUp(Reason::new("chance").expect("a plain word")));
        self.turn(leader);
    }

    /// An entry that this node has applied raised the version: every member must know it.
    pub(super) fn look_at_raise(&mut self, node: u64, index: u64, version: FormatVersion) {
        self.raises += 1;
        self.observer.line(self.now, "log", || format!("[{index}] the format version is raised to {version}"));
        let members = self.nodes[&node].replica.as_ref().map(|replica| replica.members()).unwrap_or_default();
        for member in members {
            let is_unknown = |node: &crate::node::SimNode| !node.known.contains(version);
            if self.nodes.get(&member.node).is_some_and(is_unknown) {
                let what = format!("raised to {version} at [{index}], and node {} does not know it", member.node);
                self.observer.checkers.found("format-version", self.now, what);
            }
        }
    }

    /// Whether the version should be raised and is not: every member runs with the newer release.
    pub(super) fn is_raise_due(&self) -> bool {
        let Some(replica) = self.leader().and_then(|leader| self.nodes[&leader].replica.as_ref()) else { return false };
        let is_upgraded = |node: &crate::node::SimNode| node.runs() && node.known == NEW_RELEASE;
        let all_are = replica.members().iter().all(|it| self.nodes.get(&it.node).is_some_and(is_upgraded));
        self.faults.upgrades && all_are && self.witness.version() < NEW_RELEASE.newest()
    }

    pub(super) fn tell_whether_raised(&mut self) {
        if self.is_raise_due() {
            let nodes: Vec<String> = self.nodes.iter().map(|(id, node)| node.tell(*id)).collect();
            let what = format!("every member knows a newer version, and it is not raised: {}", nodes.join("; "));
            self.observer.checkers.found("format-version", self.now, what);
        }
    }
}
