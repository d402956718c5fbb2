//! Scenarios: stories of the field as data. Who there is, what happens when, and what must come of it.
//!
//! A scenario decides nothing about how the cluster behaves: it gives orders to clients, hurts nodes and ways, and looks at what
//! became of it. The replicas, the client's machines and the checkers are those of every other run.

use std::fmt;

use fencepost_core::{Name, OwnerName, Ttl};
use serde::Deserialize;

use crate::scripted::Visit;

/// A story.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// In one line.
    pub title: String,
    /// What it tells, in a few sentences.
    pub tells: String,
    /// How many nodes the cluster has.
    pub nodes: u64,
    /// How many masters a Redlock beside it has, if there is one.
    #[serde(default)]
    pub masters: usize,
    #[serde(rename = "client")]
    pub(crate) clients: Vec<Client>,
    #[serde(rename = "step")]
    pub(crate) steps: Vec<Step>,
}

/// Somebody in the story, or many of the same kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Client {
    pub(crate) name: String,
    /// How long its sessions live without a sign of life.
    pub(crate) ttl_ms: u64,
    /// Processes of this kind.
    #[serde(default = "one")]
    pub(crate) processes: usize,
    /// Users in each.
    #[serde(default = "one")]
    pub(crate) users: usize,
}

fn one() -> usize {
    1
}

/// Something that happens, or that must be so, at a time after the cluster has begun to serve.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Step {
    pub(crate) at_ms: u64,
    /// For the reader.
    pub(crate) say: Option<String>,
    #[serde(rename = "do")]
    pub(crate) deed: Option<Deed>,
    pub(crate) expect: Option<Expectation>,
}

/// Something that is done. `who` is a client's name, `node 2`, `leader`, `follower 1` (the first node that does not lead), or
/// `old leader` (the one that a deed last found leading).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum Deed {
    /// Asks for a lock, and waits; gives it back so long after it got it, if that is said.
    Acquire { who: String, lock: String, owner: Option<String>, wait_ms: Option<u64>, hold_ms: Option<u64> },
    /// Asks for a lock, and does not wait.
    Try { who: String, lock: String },
    /// Gives a lock back.
    Release { who: String, lock: String },
    /// Looks at its guard.
    Check { who: String, lock: String },
    /// Claims at the store, and reads.
    Claim { who: String, lock: String },
    /// Reads at the store.
    Read { who: String, lock: String },
    /// Writes at the store what it made of what it read.
    Write { who: String, lock: String },
    /// Ends its session.
    Close { who: String },
    /// Stands still. What a client is told meanwhile it does when it wakes up.
    Pause { who: String },
    /// Wakes up.
    Resume { who: String },
    /// Dies. A client's process starts again at once and knows nothing; a node stays down.
    Crash { who: String },
    /// A node starts again.
    Restart { who: String },
    /// The leader hands the lead to this node.
    HandOver { to: String },
    /// Nothing gets from any of these to any of those, nor back.
    Cut { between: Vec<String>, and: Vec<String> },
    /// Nothing gets from these to any other node or client, nor back. The store is within everybody's reach.
    Partition { apart: Vec<String> },
    /// What is sent from one to the other from now on arrives so much later.
    HoldUp { from: String, to: String, by_ms: u64 },
    /// Every way works, and well.
    Heal,
    /// Wall clocks jump: of these, or of `everybody`.
    JumpClock { of: Vec<String>, by_ms: i64 },
    /// Asks for a lock by Redlock.
    RedlockAcquire { who: String, lock: String, ttl_ms: u64 },
    /// Reads at the store that Redlock protects.
    RedlockRead { who: String, lock: String },
    /// Writes there.
    RedlockWrite { who: String, lock: String },
}

/// Something that must be so.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum Expectation {
    /// By the log, this one and nobody else holds the lock.
    Holder { lock: String, who: String },
    /// By the log, nobody holds the lock.
    Free { lock: String },
    /// By the log, so many wait for the lock.
    Waiters { lock: String, count: usize },
    /// What the guard said when it was last looked at.
    Guard { who: String, lock: String, says: GuardSays },
    /// What it was told last about a lock that it asked for.
    Answer { who: String, is: AnswerIs },
    /// It was refused because of this cycle, itself first.
    Cycle { who: String, through: Vec<String> },
    /// What the stores said to its last visit of this kind.
    Store { who: String, did: Visit, guarded: Guarded, unguarded: Option<Unguarded> },
    /// The last token of one is above the last token of the other.
    TokenRose { lock: String, from: String, to: String },
    /// So often they were given a lock, all together.
    Served { who: String, count: u64 },
    /// So many entries have handed a lock from one to another, and so often was anybody told anything unasked.
    HandOvers { entries: u64, pushes: u64 },
    /// Another node than the old leader leads and serves.
    NewLeader,
    /// This node does not serve.
    DoesNotServe { who: String },
    /// By Redlock, each of these believes to hold the lock at this moment.
    RedlockHolders { lock: String, who: Vec<String> },
    /// So many writes have undone others where Redlock protects.
    RedlockCorrupted { count: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GuardSays {
    Held,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AnswerIs {
    Granted,
    Busy,
    TimedOut,
    Deadlock,
    Unknown,
    Failed,
    SessionEnded,
    /// It still waits.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Guarded {
    Accepted,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unguarded {
    Sound,
    Corrupted,
}

/// What is wrong with a scenario that cannot be played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadScenario(pub(crate) String);

impl fmt::Display for BadScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadScenario {}

/// Somebody or something that a scenario names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    Leader,
    OldLeader,
    /// Counted from zero.
    Follower(usize),
    Node(u64),
    Master(usize),
    Store,
    /// Users: the process, and the place in it.
    Users(Vec<(usize, usize)>),
}

/// The scenarios that come with the program: name and text.
pub const SCENARIOS: [(&str, &str); 9] = [
    ("paused-holder", include_str!("../scenarios/paused-holder.toml")),
    ("delayed-write", include_str!("../scenarios/delayed-write.toml")),
    ("leader-fail-over", include_str!("../scenarios/leader-fail-over.toml")),
    ("restless-lead", include_str!("../scenarios/restless-lead.toml")),
    ("minority-partition", include_str!("../scenarios/minority-partition.toml")),
    ("clock-jump", include_str!("../scenarios/clock-jump.toml")),
    ("thundering-herd", include_str!("../scenarios/thundering-herd.toml")),
    ("circular-wait", include_str!("../scenarios/circular-wait.toml")),
    ("redlock-clock-jump", include_str!("../scenarios/redlock-clock-jump.toml")),
];

impl Scenario {
    /// One of those that come with the program.
    ///
    /// # Errors
    /// [`BadScenario`] if there is none of this name.
    pub fn named(name: &str) -> Result<Scenario, BadScenario> {
        let names = SCENARIOS.map(|(name, _)| name).join(", ");
        let found = SCENARIOS.iter().find(|(known, _)| *known == name);
        let (_, text) =
            found.ok_or_else(|| BadScenario(format!("there is no scenario {name:?}: use one of {names}")))?;
        Scenario::parse(text)
    }

    /// Reads a scenario.
    ///
    /// # Errors
    /// [`BadScenario`] if it is none.
    pub fn parse(text: &str) -> Result<Scenario, BadScenario> {
        let scenario: Scenario = toml::from_str(text).map_err(|wrong| BadScenario(wrong.to_string()))?;
        if !(1..=9).contains(&scenario.nodes) {
            return Err(BadScenario(format!("a scenario has 1 to 9 nodes, not {}", scenario.nodes)));
        }
        if let Some(pair) = scenario.steps.windows(2).find(|pair| pair[0].at_ms > pair[1].at_ms) {
            let (later, earlier) = (pair[0].at_ms, pair[1].at_ms);
            return Err(BadScenario(format!(
                "the step at {earlier} ms stands behind the one at {later} ms: sort them"
            )));
        }
        for client in &scenario.clients {
            ttl(client.ttl_ms)?;
        }
        Ok(scenario)
    }

    /// Whom or what a name means.
    pub(crate) fn actor(&self, name: &str) -> Result<Actor, BadScenario> {
        let number = |prefix: &str| name.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
        if let Some(node) = number("node ").filter(|node| (1..=self.nodes).contains(node)) {
            return Ok(Actor::Node(node));
        }
        if let Some(master) = number("master ").filter(|master| (1..=self.masters as u64).contains(master)) {
            return Ok(Actor::Master(master as usize - 1));
        }
        if let Some(follower) = number("follower ").filter(|follower| (1..self.nodes).contains(follower)) {
            return Ok(Actor::Follower(follower as usize - 1));
        }
        match name {
            "leader" => return Ok(Actor::Leader),
            "old leader" => return Ok(Actor::OldLeader),
            "store" => return Ok(Actor::Store),
            _ => {}
        }
        let mut process = 0;
        for client in &self.clients {
            if client.name == name {
                let users =
                    (process..process + client.processes).flat_map(|at| (0..client.users).map(move |user| (at, user)));
                return Ok(Actor::Users(users.collect()));
            }
            process += client.processes;
        }
        let known: Vec<&str> = self.clients.iter().map(|client| client.name.as_str()).collect();
        let known = known.join(", ");
        Err(BadScenario(format!(
            "nobody is called {name:?} here: say {known}, leader, old leader, follower N, node N, master N or store"
        )))
    }
}

impl Client {
    /// What a user of this kind is called.
    pub(crate) fn user_name(&self, process: usize, user: usize) -> String {
        match self.processes * self.users {
            1 => self.name.clone(),
            _ => format!("{}-{}", self.name, process * self.users + user + 1),
        }
    }
}

pub(crate) fn ttl(ms: u64) -> Result<Ttl, BadScenario> {
    Ttl::new(ms).map_err(|wrong| BadScenario(wrong.to_string()))
}

pub(crate) fn lock_name(text: &str) -> Result<Name, BadScenario> {
    Name::new(text).map_err(|wrong| BadScenario(wrong.to_string()))
}

pub(crate) fn owner_name(text: Option<&str>) -> Result<Option<OwnerName>, BadScenario> {
    text.map(OwnerName::new).transpose().map_err(|wrong| BadScenario(wrong.to_string()))
}
