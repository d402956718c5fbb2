//! Upgrade runs: nodes are upgraded one by one, at random times, with all other faults.
//!
//! The newer release knows a made-up format version. The cluster must stay on the old version until every member knows the new one,
//! and must then raise it. Both are checked here.

use fencepost_core::{FormatVersion, KnownVersions};
#[cfg(feature = "made-up-version")]
use fencepost_core::{Operation, Reason};

use super::faults::Undo;
use super::{Happening, Plan, World};
use crate::fact::WorldTime;

/// The format versions that the older release knows.
pub(super) const OLD_RELEASE: KnownVersions = KnownVersions::THIS_BUILD;

/// The format versions that the newer release knows.
#[cfg(feature = "made-up-version")]
pub(super) const NEW_RELEASE: KnownVersions = KnownVersions::WITH_MADE_UP;
#[cfg(not(feature = "made-up-version"))]
pub(super) const NEW_RELEASE: KnownVersions = KnownVersions::THIS_BUILD;

/// How long a node that joins with the older release keeps it, in milliseconds: at least and at most.
const LATE_UPGRADE_MS: (u64, u64) = (1_000, 20_000);

impl World {
    /// Schedules the upgrade of each node, if the plan has upgrades. All are in the first two thirds of the plan; the last third is
    /// left for the new version.
    pub(super) fn plan_upgrades(&mut self, plan: &Plan) {
        if !plan.upgrades {
            return;
        }
        for node in self.ids() {
            let at = self.now.after_ms(self.random.between(1_000, (plan.seconds * 667).max(1_001)));
            self.agenda.put(at, Happening::Upgrade { node });
        }
    }

    /// Chooses the release of a new node in a cluster with this active version. A node with the older release is upgraded later.
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

    /// Upgrades a node: its process stops and starts again with the newer release. A node that is down uses it at its next start.
    pub(super) fn upgrade(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.known != NEW_RELEASE) else { return };
        node.known = NEW_RELEASE;
        self.observer.fault(self.now, "node upgraded", || format!("node {id}"));
        if self.nodes[&id].replica.is_some() {
            self.crash(id);
            self.undo_later(50, 3_000, Undo::Crash(id));
        }
    }

    /// Upgrades all nodes that still have the older release.
    pub(super) fn upgrade_the_rest(&mut self) {
        if self.faults.upgrades {
            self.ids().into_iter().for_each(|id| self.upgrade(id));
        }
    }

    /// Submits an operation that only the new version has. It is refused while the old version is active.
    #[cfg(feature = "made-up-version")]
    pub(super) fn remark(&mut self) {
        let Some(leader) = self.leader() else { return };
        let replica = self.nodes.get_mut(&leader).and_then(|node| node.replica.as_mut()).expect("it leads");
        // The operation may be lost with the leader; no user waits for it.
        let _ = replica.submit(Operation::MadeUp(Reason::new("chance").expect("a plain word")));
        self.turn(leader);
    }

    /// This node applied an entry that raises the version. Checks that every member knows that version.
    pub(super) fn look_at_raise(&mut self, node: u64, index: u64, version: FormatVersion) {
        self.raises += 1;
        self.observer.line(self.now, "log", || format!("[{index}] the format version is raised to {version}"));
        let members = self.nodes[&node].replica.as_ref().map(|replica| replica.members()).unwrap_or_default();
        for member in members {
            let is_unknown = |node: &crate::node::SimNode| !node.known.contains(version);
            if self.nodes.get(&member.node).is_some_and(is_unknown) {
                let what = format!(
                    "the format version was raised to {version} at [{index}], but node {} does not know that version",
                    member.node
                );
                self.observer.checkers.found("format-version", self.now, what);
            }
        }
    }

    /// Whether the version must be raised and is not yet: every member runs with the newer release.
    pub(super) fn is_raise_due(&self) -> bool {
        let Some(replica) = self.leader().and_then(|leader| self.nodes[&leader].replica.as_ref()) else { return false };
        let is_upgraded = |node: &crate::node::SimNode| node.runs() && node.known == NEW_RELEASE;
        let all_are = replica.members().iter().all(|it| self.nodes.get(&it.node).is_some_and(is_upgraded));
        self.faults.upgrades && all_are && self.witness.version() < NEW_RELEASE.newest()
    }

    pub(super) fn tell_whether_raised(&mut self) {
        if self.is_raise_due() {
            let nodes: Vec<String> = self.nodes.iter().map(|(id, node)| node.tell(*id)).collect();
            let what = format!("every member knows a newer version, but it is not raised: {}", nodes.join("; "));
            self.observer.checkers.found("format-version", self.now, what);
        }
    }
}
