//! Which format versions the members know, and when the leader raises the active one.
//!
//! Each node tells its peers in its hello which versions it knows. The leader raises the active version by an entry when every
//! member knows a newer one: voters, learners, and leaving voters. A silent member, or one that has sent no hello, blocks the raise:
//! that node may be about to come back with an older release. Nothing lowers the version. The reasons are in
//! `docs/decisions/0021-format-versions.md`.

use std::collections::BTreeMap;

use fencepost_core::{Batch, FormatVersion, KnownVersions, LogPosition, Outcome, Refusal, Reply, ReplyTo, Ticket};
use fencepost_wire::bounds::MEMBERS_MAX;

use super::{Hears, Lead, Replica};
use crate::error::{NotTaken, Stop};
use crate::gather::Tickets;
use crate::members::MemberChange;
use crate::ports::Output;

/// What this node knows of the versions of its peers.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The versions in each peer's last hello. Any caller can send a hello under any id, so above [`MEMBERS_MAX`] nodes only
    /// members and the last caller are kept.
    known: BTreeMap<u64, KnownVersions>,
    /// The last raise that this node proposed, and its position. It is pending until that entry is applied or the term ends.
    raising: Option<(LogPosition, FormatVersion)>,
}

impl Replica {
    /// Notes which versions a peer, or a node that is about to join, knows. The caller must call this before it passes on any message
    /// of that connection, so that the versions of an earlier release do not count for the messages of a later one.
    pub fn handle_hello(&mut self, peer: u64, known: KnownVersions) {
        self.versions.known.insert(peer, known);
        if self.versions.known.len() > MEMBERS_MAX {
            self.versions.known.retain(|node, _| *node == peer || self.members.has(*node));
        }
    }

    /// The versions that this node knows.
    pub fn known(&self) -> KnownVersions {
        self.settings.known
    }

    /// The versions that a node knows, if it sent a hello to this node.
    pub(super) fn known_of(&self, node: u64) -> Option<KnownVersions> {
        if node == self.settings.id { Some(self.settings.known) } else { self.versions.known.get(&node).copied() }
    }

    /// Raises the active version, if this node leads and every member knows a newer one. Called every tick.
    // Rule: format-version
    pub(super) fn raise_version(&mut self) -> Result<(), Stop> {
        let may_raise = matches!(self.lead, Lead::Running { .. })
            && self.settings.known.newest() > self.state.version()
            && self.hands_over_to().is_none()
            && !self.is_log_full()
            // The next members are not known yet.
            && !self.raft.raft.has_pending_conf()
            && self.raise_under_way().is_none();
        if !may_raise {
            return Ok(());
        }
        let Some(version) = self.newest_of_all().filter(|version| *version > self.state.version()) else {
            return Ok(());
        };
        self.append(Batch { raise_to: Some(version), ..Batch::default() }, Tickets::default(), None)?;
        let position = LogPosition { index: self.raft.raft.raft_log.last_index(), term: self.term() };
        self.versions.raising = Some((position, version));
        Ok(())
    }

    /// The newest version that every member knows. `None` while a member is silent or has sent no hello.
    fn newest_of_all(&self) -> Option<FormatVersion> {
        let is_heard = |node: &u64| self.hears(*node) == Hears::Yes;
        let known_of = |node| self.known_of(node).filter(|_| is_heard(&node));
        let members = self.members.nodes().into_iter().filter(|node| self.must_know_the_version(*node));
        let all: Vec<KnownVersions> = members.map(known_of).collect::<Option<_>>()?;
        let newest = all.iter().map(|known| known.newest()).min()?;
        all.iter().all(|known| known.contains(newest)).then_some(newest)
    }

    fn raise_under_way(&self) -> Option<FormatVersion> {
        let (position, version) = self.versions.raising?;
        (position.term == self.term() && position.index > self.applied.index).then_some(version)
    }

    /// Checks that the nodes that these changes add know the cluster's version.
    pub(super) fn check_versions(&self, changes: &[MemberChange]) -> Result<(), NotTaken> {
        let added = changes.iter().filter_map(|change| match change {
            MemberChange::AddLearner(member) => Some(member.node()),
            _ => None,
        });
        for node in added {
            // The log may hold a raise that is not applied here yet.
            if let Lead::Starting { .. } = self.lead {
                return Err(NotTaken::ChangeUnderWay);
            }
            let version = self.raise_under_way().unwrap_or(self.state.version());
            // A node that an administrator adds may have sent no hello yet. Until it does, it blocks every raise. It stops if it cannot
            // read what it gets.
            if let Some(known) = self.known_of(node).filter(|known| !known.contains(version)) {
                return Err(NotTaken::VersionUnknown { node, known, version });
            }
        }
        Ok(())
    }

    /// Refuses an operation that the active version does not have. No entry could hold it, so it is refused before the log.
    // Rule: format-version
    pub(super) fn refuse_for_now(&mut self, ticket: Ticket, needs: FormatVersion) {
        let outcome = Outcome::Refused(Refusal::NotYet { needs });
        let reply = Reply { to: ReplyTo::Operation(0), outcome, repeat: None };
        self.outputs.push(Output::Reply { ticket, position: self.applied, stamp: self.stamp(), reply });
    }
}
