//! The simulated network: which links are cut, how long messages take, and how many are lost or doubled.
//!
//! It only answers when, and whether, a message arrives. The world keeps the messages in flight, and keeps each stream in order.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::WorldTime;
use crate::random::Random;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Endpoint {
    /// A node, by its id.
    Node(u64),
    /// A client's process.
    Client(usize),
    /// The store that the locks protect.
    Store,
    /// One of the Redis masters of Redlock.
    Master(usize),
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The links between all endpoints. A link has a direction.
#[derive(Debug)]
pub(crate) struct Network {
    cut: BTreeSet<(Endpoint, Endpoint)>,
    slow: BTreeSet<(Endpoint, Endpoint)>,
    /// Additional delay of a link, in nanoseconds.
    held_up: BTreeMap<(Endpoint, Endpoint), u64>,
    /// Percentage of messages between nodes that are lost. The same percentage of the rest arrives twice.
    pub(crate) loss_percent: u64,
    /// Longest delay of a link that is not slow, in nanoseconds.
    pub(crate) delay_max: u64,
}

impl Default for Network {
    fn default() -> Network {
        Network {
            cut: BTreeSet::new(),
            slow: BTreeSet::new(),
            held_up: BTreeMap::new(),
            loss_percent: 0,
            delay_max: 2 * MS,
        }
    }
}

impl Network {
    /// Cuts a link in one direction.
    pub(crate) fn cut(&mut self, from: Endpoint, to: Endpoint) {
        self.cut.insert((from, to));
    }

    /// Makes a link slow in one direction: messages take up to a second and overtake each other.
    pub(crate) fn slow_down(&mut self, from: Endpoint, to: Endpoint) {
        self.slow.insert((from, to));
    }

    /// Delays all future messages on a link, in one direction.
    pub(crate) fn hold_up(&mut self, from: Endpoint, to: Endpoint, by_ms: u64) {
        self.held_up.insert((from, to), by_ms * MS);
    }

    /// Whether a link is cut in this direction.
    pub(crate) fn is_cut(&self, from: Endpoint, to: Endpoint) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Restores all cut links of an endpoint, in both directions.
    pub(crate) fn reconnect(&mut self, endpoint: Endpoint) {
        self.cut.retain(|(from, to)| *from != endpoint && *to != endpoint);
    }

    /// Restores every link to normal.
    pub(crate) fn heal(&mut self) {
        self.cut.clear();
        self.slow.clear();
        self.held_up.clear();
        (self.loss_percent, self.delay_max) = (0, 2 * MS);
    }

    /// The delay of a message, in nanoseconds, if it gets through.
    pub(crate) fn delay(&self, from: Endpoint, to: Endpoint, random: &mut Random) -> u64 {
        let held_up = self.held_up.get(&(from, to)).copied().unwrap_or(0);
        held_up
            + match self.slow.contains(&(from, to)) {
                true => random.between(20 * MS, 1_000 * MS),
                false => random.delay(20 * US, self.delay_max),
            }
    }

    /// When the copies of a message between nodes arrive: no copy if it is lost, two if it is doubled, each with its own delay.
    pub(crate) fn datagram(&self, from: Endpoint, to: Endpoint, now: WorldTime, random: &mut Random) -> Vec<WorldTime> {
        if self.is_cut(from, to) || random.percent(self.loss_percent) {
            return Vec::new();
        }
        let copies = if random.percent(self.loss_percent) { 2 } else { 1 };
        (0..copies).map(|_| WorldTime(now.0 + self.delay(from, to, random))).collect()
    }
}
