//! Which peers a replica hears: when each peer last sent a message, since when it should have, and how far it is behind the leader.
//!
//! A leader hears every member, because each answers its heartbeats. A follower hears only its leader. Without a leader, every voter
//! keeps asking the others for votes, so all voters hear each other. A peer that should be heard and is not counts as silent after
//! [`SILENT_AFTER_MS`]. This is for operators, with one exception: a leader raises the format version only when it hears every member.
//!
//! Time counts only while this node itself turns. A node that was paused must not call the others silent when it wakes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use fencepost_core::Nanos;
use fencepost_wire::{Members, ShownNode};
use raft::{ProgressState, StateRole};

use super::Replica;
use crate::bounds::{SILENT_AFTER_MS, TURN_MS_MAX};
use crate::members::{Role, role};
use crate::ports::Output;

const NS_PER_MS: u64 = 1_000_000;

/// Whether a node hears a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hears {
    /// The member is the node itself, or sent a message in the last [`SILENT_AFTER_MS`].
    Yes,
    /// The node should hear the member, and does not.
    Silent {
        /// How long it has been silent.
        ms: u64,
    },
    /// Not known. A follower does not hear the other followers. A peer that was never heard counts as silent only after
    /// [`SILENT_AFTER_MS`].
    Unknown,
}

/// How far a member is behind the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Entries of the leader's log that it is not known to have.
    pub entries: u64,
    /// How long ago it last had the whole log of that moment. Counted from the beginning of the leader's term at most.
    pub ms: u64,
}

/// Which voters a node hears. As text it is a sentence without its full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hearing {
    /// The node's name.
    pub name: String,
    /// How many of the voters it hears, itself included.
    pub heard: usize,
    /// How many voters there are.
    pub voters: usize,
    /// The voters that are silent, and for how many milliseconds, longest first.
    pub silent: Vec<(String, u64)>,
    /// The voters that it has not heard yet, and that do not count as silent yet.
    pub unknown: Vec<String>,
    /// Whether it hears a majority, so that the group can elect a leader.
    pub has_majority: bool,
}

/// What this node knows of one peer. Times are values of [`Ears::awake_ns`].
#[derive(Debug, Default)]
struct Heard {
    /// Whether it sent a message since the last turn.
    spoke: bool,
    /// When it last sent a message.
    last: Option<u64>,
    /// Since when this node expects messages of it. `None`: it expects none.
    expected_since: Option<u64>,
    /// Since when it is heard without a gap of [`SILENT_AFTER_MS`].
    steady_since: u64,
    /// Since when it is silent, if [`Output::PeerLost`] was given out.
    lost_since: Option<u64>,
    /// When it last had the whole log of that moment. Used by the leader only.
    caught_up_at: u64,
    /// An index and a time: the leader's log ended there at that time. When the peer reaches the index, it had caught up at that time.
    mark: Option<(u64, u64)>,
}

/// What this node knows of all peers.
#[derive(Debug, Default)]
pub(super) struct Ears {
    /// How long this node has been awake. A turn adds [`TURN_MS_MAX`] at most, however long the process slept.
    awake_ns: u64,
    last_turn: Nanos,
    /// Invariant: all members except this node, as of the last tick.
    peers: BTreeMap<u64, Heard>,
    /// The term in which this node leads, if it does.
    leads_in: Option<u64>,
}

impl Ears {
    pub(super) fn new(now: Nanos) -> Ears {
        Ears { last_turn: now, ..Ears::default() }
    }

    /// Notes that a peer sent a message.
    pub(super) fn note(&mut self, peer: u64) {
        if let Some(heard) = self.peers.get_mut(&peer) {
            heard.spoke = true;
        }
    }

    /// Counts the time since the last turn. Messages that arrived since then get this turn's time.
    pub(super) fn turn(&mut self, now: Nanos) {
        let passed_ns = now.0.saturating_sub(self.last_turn.0);
        self.awake_ns += passed_ns.min(TURN_MS_MAX * NS_PER_MS);
        self.last_turn = self.last_turn.max(now);
        for heard in self.peers.values_mut().filter(|heard| heard.spoke) {
            let has_gap = heard.last.is_none_or(|last| self.awake_ns - last >= SILENT_AFTER_MS * NS_PER_MS);
            if has_gap {
                heard.steady_since = self.awake_ns;
            }
            (heard.spoke, heard.last) = (false, Some(self.awake_ns));
        }
    }

    fn hears(&self, peer: u64) -> Hears {
        self.peers.get(&peer).map_or(Hears::Unknown, |heard| heard.now(self.awake_ns))
    }
}

impl Heard {
    fn now(&self, awake_ns: u64) -> Hears {
        let Some(expected_since) = self.expected_since else { return Hears::Unknown };
        let is_recent = |since: u64| awake_ns - since < SILENT_AFTER_MS * NS_PER_MS;
        let silent_since = self.last.unwrap_or(0).max(expected_since);
        match self.last {
            Some(last) if is_recent(last) => Hears::Yes,
            _ if is_recent(silent_since) => Hears::Unknown,
            _ => Hears::Silent { ms: (awake_ns - silent_since) / NS_PER_MS },
        }
    }

    /// Reports once that the peer was lost, and once that it was found. A peer counts as found only when it has been heard steadily for a
    /// while, so that an unstable peer does not cause many reports.
    fn change(&mut self, peer: u64, awake_ns: u64) -> Option<Output> {
        let is_steady = self.last.is_some_and(|last| last - self.steady_since >= SILENT_AFTER_MS * NS_PER_MS);
        match (self.lost_since, self.now(awake_ns)) {
            (None, Hears::Silent { ms }) => {
                self.lost_since = Some(awake_ns - ms * NS_PER_MS);
                Some(Output::PeerLost { peer, silent_ms: ms })
            }
            (Some(lost_since), Hears::Yes) if is_steady => {
                self.lost_since = None;
                Some(Output::PeerFound { peer, silent_ms: self.steady_since.saturating_sub(lost_since) / NS_PER_MS })
            }
            _ => None,
        }
    }

    /// Updates `caught_up_at` and `mark`. The peer has the log up to `matched`, and the leader's log ends at `last`.
    fn note_log(&mut self, matched: u64, last: u64, awake_ns: u64) {
        match self.mark {
            _ if matched >= last => (self.caught_up_at, self.mark) = (awake_ns, None),
            Some((index, at)) if matched >= index => (self.caught_up_at, self.mark) = (at, Some((last, awake_ns))),
            Some(_) => {}
            None => self.mark = Some((last, awake_ns)),
        }
    }
}

impl Replica {
    /// Updates which peers this node should hear and which it does hear. Called every tick.
    pub(super) fn listen(&mut self) {
        let (me, leader) = (self.settings.id, self.leader());
        let leads = self.raft.raft.state == StateRole::Leader;
        let votes = |node| self.members.has(node) && role(&self.members, node) != Role::Learner;
        let expected = |node| match leader {
            _ if leads => true,
            Some(leader) => leader == node,
            // Learners neither ask for votes nor are asked.
            None => votes(me) && votes(node),
        };
        let members = self.members.nodes();
        let awake_ns = self.ears.awake_ns;
        self.ears.peers.retain(|peer, _| members.contains(peer));
        for peer in members.into_iter().filter(|node| *node != me) {
            let heard = self.ears.peers.entry(peer).or_default();
            if expected(peer) {
                heard.expected_since.get_or_insert(awake_ns);
            } else {
                // This node expects no messages of it, so its silence means nothing.
                (heard.expected_since, heard.lost_since) = (None, None);
            }
            self.outputs.extend(heard.change(peer, awake_ns));
        }
        let leads_in = leads.then(|| self.term());
        if leads_in != self.ears.leads_in {
            self.ears.leads_in = leads_in;
            for heard in self.ears.peers.values_mut() {
                (heard.caught_up_at, heard.mark) = (awake_ns, None);
            }
        }
    }

    /// Notes how much of its log the peers have, if this node leads. Called every turn, because a peer's answer can arrive in any
    /// turn.
    pub(super) fn note_logs(&mut self) {
        if self.ears.leads_in.is_none() || self.raft.raft.state != StateRole::Leader {
            return;
        }
        let last = self.raft.raft.raft_log.last_index();
        let (progress, awake_ns) = (self.raft.raft.prs(), self.ears.awake_ns);
        for (peer, heard) in &mut self.ears.peers {
            if let Some(progress) = progress.get(*peer) {
                heard.note_log(progress.matched, last, awake_ns);
            }
        }
    }

    /// Whether this node hears a member.
    pub(super) fn hears(&self, node: u64) -> Hears {
        if node == self.settings.id { Hears::Yes } else { self.ears.hears(node) }
    }

    /// How far a member is behind, if this node leads.
    pub(super) fn lag(&self, node: u64) -> Option<Lag> {
        let raft = &self.raft.raft;
        let progress = raft.prs().get(node).filter(|_| raft.state == StateRole::Leader)?;
        let heard = self.ears.peers.get(&node)?;
        let entries = raft.raft_log.last_index().saturating_sub(progress.matched);
        let behind_ns = if entries == 0 { 0 } else { self.ears.awake_ns - heard.caught_up_at };
        Some(Lag { entries, ms: behind_ns / NS_PER_MS })
    }

    /// Whether this node leads and is sending the member a snapshot, because the log does not reach back far enough.
    pub(super) fn gets_snapshot(&self, node: u64) -> bool {
        let raft = &self.raft.raft;
        let leads = raft.state == StateRole::Leader;
        leads && raft.prs().get(node).is_some_and(|progress| progress.state == ProgressState::Snapshot)
    }

    /// How many peers are silent.
    pub fn silent_peers(&self) -> usize {
        self.ears.peers.values().filter(|heard| matches!(heard.now(self.ears.awake_ns), Hears::Silent { .. })).count()
    }

    /// Which voters this node hears.
    pub fn hearing(&self) -> Hearing {
        let name = |node: u64| match self.members.directory.get(&node) {
            Some(member) => member.name().to_owned(),
            None => ShownNode(node).to_string(),
        };
        let voters: Vec<u64> =
            self.members.nodes().into_iter().filter(|node| role(&self.members, *node) != Role::Learner).collect();
        let is_heard = |node: &&u64| self.hears(**node) == Hears::Yes;
        let is_majority = |of: &BTreeSet<u64>| of.iter().filter(is_heard).count() > of.len() / 2;
        let (mut silent, mut unknown) = (Vec::new(), Vec::new());
        for node in &voters {
            match self.hears(*node) {
                Hears::Yes => {}
                Hears::Silent { ms } => silent.push((name(*node), ms)),
                Hears::Unknown => unknown.push(name(*node)),
            }
        }
        // Names break ties, so that the sentence does not depend on ids drawn at random.
        silent.sort_by(|one, other| (other.1 / 1_000, &one.0).cmp(&(one.1 / 1_000, &other.0)));
        unknown.sort();
        let Members { voters: now, voters_outgoing: before, .. } = &self.members;
        Hearing {
            name: name(self.settings.id),
            heard: voters.iter().filter(is_heard).count(),
            voters: voters.len(),
            silent,
            unknown,
            has_majority: is_majority(now) && (before.is_empty() || is_majority(before)),
        }
    }
}

impl Display for Hearing {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Hearing { name, heard, voters, silent, unknown, .. } = self;
        write!(out, "node {name} hears {heard} of {voters}")?;
        let mut separator = ": ";
        // Voters whose silence is shown as the same duration are named together.
        for (at, group) in silent.chunk_by(|one, other| shown(one.1) == shown(other.1)).enumerate() {
            let names: Vec<&str> = group.iter().map(|(name, _)| name.as_str()).collect();
            let silent = if at == 0 { " silent" } else { "" };
            write!(out, "{separator}{}{silent} for {}", list(&names), shown(group[0].1))?;
            separator = ", ";
        }
        if !unknown.is_empty() {
            let names: Vec<&str> = unknown.iter().map(String::as_str).collect();
            write!(out, "{separator}{} not heard yet", list(&names))?;
        }
        Ok(())
    }
}

/// `n1, n2 and n3`.
fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// A duration in the largest unit that it has at least two of.
fn shown(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_in_a_sentence_which_voters_it_hears() {
        let silent = |them: &[(&str, u64)]| them.iter().map(|(name, ms)| ((*name).to_owned(), *ms)).collect();
        let hearing = |heard, silent, unknown: &[&str]| Hearing {
            name: "n1".to_owned(),
            heard,
            voters: 3,
            silent,
            unknown: unknown.iter().map(|name| (*name).to_owned()).collect(),
            has_majority: heard > 1,
        };
        assert_eq!(hearing(3, Vec::new(), &[]).to_string(), "node n1 hears 3 of 3");
        let both = silent(&[("n2", 8_900), ("n3", 8_000)]);
        assert_eq!(hearing(1, both, &[]).to_string(), "node n1 hears 1 of 3: n2 and n3 silent for 8 s");
        let apart = silent(&[("n2", 200_000), ("n3", 7_999)]);
        assert_eq!(hearing(1, apart, &[]).to_string(), "node n1 hears 1 of 3: n2 silent for 3 min, n3 for 7 s");
        let one = silent(&[("n2", 8_000_000)]);
        assert_eq!(hearing(1, one, &["n3"]).to_string(), "node n1 hears 1 of 3: n2 silent for 2 h, n3 not heard yet");
        assert_eq!(hearing(1, Vec::new(), &["n2", "n3"]).to_string(), "node n1 hears 1 of 3: n2 and n3 not heard yet");
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
    }

    #[test]
    fn a_peer_that_follows_closely_lags_a_moment_and_a_stalled_peer_lags_since_it_stalled() {
        let mut heard = Heard::default();
        let ms = NS_PER_MS;
        for now in 1..=1_000 {
            // Ten entries each millisecond, and the peer lacks the last ten.
            heard.note_log((now - 1) * 10, now * 10, now * ms);
        }
        assert!(heard.caught_up_at >= 997 * ms, "{heard:?}");
        for now in 1_001..=5_000 {
            heard.note_log(9_990, now * 10, now * ms);
        }
        assert!((997 * ms..=1_000 * ms).contains(&heard.caught_up_at), "it stalled then: {heard:?}");
        heard.note_log(50_000, 50_000, 5_001 * ms);
        assert_eq!(heard.caught_up_at, 5_001 * ms);
    }
}
