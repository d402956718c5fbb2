//! The simulated network: which ways are cut, how long they take, and how much they lose.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::WorldTime;
use crate::random::Random;

/// An end of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Endpoint {
    /// A node, by its id.
    Node(u64),
    /// A client's process.
    Client(usize),
    /// The store that the locks protect.
    Store,
    /// A single Redis, of those that Redlock asks.
    Master(usize),
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// All ways between all endpoints.
#[derive(Debug)]
pub(crate) struct Network {
    cut: BTreeSet<(Endpoint, Endpoint)>,
    slow: BTreeSet<(Endpoint, Endpoint)>,
    /// Ways on which everything is held up for so many nanoseconds.
    held_up: BTreeMap<(Endpoint, Endpoint), u64>,
    /// Of a hundred messages between nodes, so many are lost, and as many arrive twice.
    pub(crate) loss_percent: u64,
    /// How long a message takes at most, when the way is not slow.
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
    /// Nothing gets from one to the other any more.
    pub(crate) fn cut(&mut self, from: Endpoint, to: Endpoint) {
        self.cut.insert((from, to));
    }

    /// Messages from one to the other take up to a second and overtake each other.
    pub(crate) fn slow_down(&mut self, from: Endpoint, to: Endpoint) {
        self.slow.insert((from, to));
    }

    /// What is sent from one to the other from now on arrives so much later.
    pub(crate) fn hold_up(&mut self, from: Endpoint, to: Endpoint, by_ms: u64) {
        self.held_up.insert((from, to), by_ms * MS);
    }

    /// Whether nothing gets through.
    pub(crate) fn is_cut(&self, from: Endpoint, to: Endpoint) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Nothing is cut any more between this endpoint and others.
    pub(crate) fn reconnect(&mut self, endpoint: Endpoint) {
        self.cut.retain(|(from, to)| *from != endpoint && *to != endpoint);
    }

    /// Every way works, and well.
    pub(crate) fn heal(&mut self) {
        self.cut.clear();
        self.slow.clear();
        self.held_up.clear();
        (self.loss_percent, self.delay_max) = (0, 2 * MS);
    }

    /// How long a message takes that does get through.
    pub(crate) fn delay(&self, from: Endpoint, to: Endpoint, random: &mut Random) -> u64 {
        let held_up = self.held_up.get(&(from, to)).copied().unwrap_or(0);
        held_up
            + match self.slow.contains(&(from, to)) {
                true => random.between(20 * MS, 1_000 * MS),
                false => random.delay(20 * US, self.delay_max),
            }
    }

    /// When the copies of a message between nodes arrive: none if it is lost, two if it is doubled. Each goes its own way.
    pub(crate) fn datagram(&self, from: Endpoint, to: Endpoint, now: WorldTime, random: &mut Random) -> Vec<WorldTime> {
        if self.is_cut(from, to) || random.percent(self.loss_percent) {
            return Vec::new();
        }
        let copies = if random.percent(self.loss_percent) { 2 } else { 1 };
        (0..copies).map(|_| WorldTime(now.0 + self.delay(from, to, random))).collect()
    }
}
