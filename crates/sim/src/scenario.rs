//! Scenarios: well-known failure stories as data. Which nodes and clients there are, what happens when, and what is expected.
//!
//! A scenario gives orders to clients, causes faults of nodes and links, and states expectations. It cannot change how the cluster
//! behaves: the replicas, the client machines and the checkers are those of every other run. This file owns the TOML format and its
//! checks; `world/play.rs` carries out the deeds and `world/expect.rs` checks the expectations.

use std::fmt;

use fencepost_core::{JobBytes, JobKey, Name, OwnerName, Ttl};
use serde::Deserialize;

use crate::scripted::Visit;

/// A scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Its title, in one line.
    pub title: String,
    /// The story, in a few sentences.
    pub tells: String,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of masters of the Redlock model; 0 if the scenario has none.
    #[serde(default)]
    pub masters: usize,
    #[serde(rename = "client")]
    pub(crate) clients: Vec<Client>,
    #[serde(rename = "step")]
    pub(crate) steps: Vec<Step>,
}

/// A client of the scenario, or several of the same kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Client {
    pub(crate) name: String,
    /// TTL of its sessions.
    pub(crate) ttl_ms: u64,
    /// Processes of this kind.
    #[serde(default = "one")]
    pub(crate) processes: usize,
    /// Users in each process.
    #[serde(default = "one")]
    pub(crate) users: usize,
}

fn one() -> usize {
    1
}

/// What happens, and what is expected, at a time after the cluster began to serve.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Step {
    pub(crate) at_ms: u64,
    /// A line for the trace.
    pub(crate) say: Option<String>,
    #[serde(rename = "do")]
    pub(crate) deed: Option<Deed>,
    pub(crate) expect: Option<Expectation>,
}

/// An action of a step. `who` is a client's name, `node 2`, `leader`, `follower 1` (the first node that does not lead), or
/// `old leader` (the node that led when a step last named `leader`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum Deed {
    /// Requests a lock, and waits. With `hold-ms` the client releases it that long after the grant.
    /// With `job` it is for the job with this key.
    Acquire {
        who: String,
        lock: String,
        owner: Option<String>,
        job: Option<String>,
        wait_ms: Option<u64>,
        hold_ms: Option<u64>,
    },
    /// Stores a checkpoint of the job that it holds.
    Checkpoint { who: String, lock: String, text: String },
    /// Completes the job that it holds, and so releases the lock.
    Complete { who: String, lock: String, result: String },
    /// Reads a job.
    ReadJob { who: String, lock: String, job: String },
    /// Requests a lock, without waiting.
    Try { who: String, lock: String },
    /// Releases a lock.
    Release { who: String, lock: String },
    /// Checks its guard.
    Check { who: String, lock: String },
    /// Claims at the store, and reads.
    Claim { who: String, lock: String },
    /// Reads at the store.
    Read { who: String, lock: String },
    /// Writes at the store, based on its last read.
    Write { who: String, lock: String },
    /// Ends its session.
    Close { who: String },
    /// Pauses a process. A client carries out the orders of this time when it resumes.
    Pause { who: String },
    /// Ends a pause.
    Resume { who: String },
    /// Crashes a process. A client's process restarts at once with empty memory; a node stays down.
    Crash { who: String },
    /// Starts a crashed node again.
    Restart { who: String },
    /// The leader hands the leadership over to this node.
    HandOver { to: String },
    /// Cuts the links between the two groups, in both directions.
    Cut { between: Vec<String>, and: Vec<String> },
    /// Cuts the links between these and all other nodes and clients, in both directions. All clients still reach the store.
    Partition { apart: Vec<String> },
    /// Delays all later messages of this link, in this direction.
    HoldUp { from: String, to: String, by_ms: u64 },
    /// Restores every link.
    Heal,
    /// Makes wall clocks jump: the named ones, or with `["all"]` those of all nodes and Redlock masters.
    JumpClock { of: Vec<String>, by_ms: i64 },
    /// Requests a lock by Redlock.
    RedlockAcquire { who: String, lock: String, ttl_ms: u64 },
    /// Reads at the store that Redlock protects.
    RedlockRead { who: String, lock: String },
    /// Writes at the store that Redlock protects.
    RedlockWrite { who: String, lock: String },
}

/// Something that a step expects.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum Expectation {
    /// According to the log, this client is the only holder of the lock.
    Holder { lock: String, who: String },
    /// According to the log, the lock has no holder.
    Free { lock: String },
    /// According to the log, this many requests wait for the lock.
    Waiters { lock: String, count: usize },
    /// What the guard said at the last check.
    Guard { who: String, lock: String, says: GuardSays },
    /// The answer to the client's last request for a lock.
    Answer { who: String, is: AnswerIs },
    /// What the client's last read of a job showed.
    Job { who: String, attempts: u64, checkpoint: Option<String>, completed: bool },
    /// The client was refused because of this cycle, which begins with the client itself.
    Cycle { who: String, through: Vec<String> },
    /// The result of the client's last visit of this kind at the stores.
    Store { who: String, did: Visit, guarded: Guarded, unguarded: Option<Unguarded> },
    /// The last token of `to` is above the last token of `from`.
    TokenRose { lock: String, from: String, to: String },
    /// How many grants these users got in total.
    Served { who: String, count: u64 },
    /// How many entries handed a lock over, and how many pushes were sent in total.
    HandOvers { entries: u64, pushes: u64 },
    /// A node other than the old leader leads and serves.
    NewLeader,
    /// This node does not serve.
    DoesNotServe { who: String },
    /// According to Redlock, exactly these clients believe now that they hold the lock.
    RedlockHolders { lock: String, who: Vec<String> },
    /// How many writes overwrote a newer value at the store that Redlock protects.
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
    Completed,
    Deadlock,
    Unknown,
    Failed,
    SessionEnded,
    /// The request is still pending.
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

/// Why a scenario cannot be played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadScenario(pub(crate) String);

impl fmt::Display for BadScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadScenario {}

/// A participant that a scenario names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    Leader,
    OldLeader,
    /// Counted from zero.
    Follower(usize),
    Node(u64),
    Master(usize),
    Store,
    /// Users: the index of the process, and the index in it.
    Users(Vec<(usize, usize)>),
}

/// The built-in scenarios: name and text.
pub const SCENARIOS: [(&str, &str); 10] = [
    ("paused-holder", include_str!("../scenarios/paused-holder.toml")),
    ("delayed-write", include_str!("../scenarios/delayed-write.toml")),
    ("leader-fail-over", include_str!("../scenarios/leader-fail-over.toml")),
    ("restless-lead", include_str!("../scenarios/restless-lead.toml")),
    ("minority-partition", include_str!("../scenarios/minority-partition.toml")),
    ("clock-jump", include_str!("../scenarios/clock-jump.toml")),
    ("thundering-herd", include_str!("../scenarios/thundering-herd.toml")),
    ("circular-wait", include_str!("../scenarios/circular-wait.toml")),
    ("job-runs-once", include_str!("../scenarios/job-runs-once.toml")),
    ("redlock-clock-jump", include_str!("../scenarios/redlock-clock-jump.toml")),
];

impl Scenario {
    /// A built-in scenario.
    ///
    /// # Errors
    /// [`BadScenario`] if there is no scenario with this name.
    pub fn named(name: &str) -> Result<Scenario, BadScenario> {
        let names = SCENARIOS.map(|(name, _)| name).join(", ");
        let found = SCENARIOS.iter().find(|(known, _)| *known == name);
        let (_, text) =
            found.ok_or_else(|| BadScenario(format!("there is no scenario {name:?}: use one of {names}")))?;
        Scenario::parse(text)
    }

    /// Parses a scenario.
    ///
    /// # Errors
    /// [`BadScenario`] if the text is not a valid scenario.
    pub fn parse(text: &str) -> Result<Scenario, BadScenario> {
        let scenario: Scenario = toml::from_str(text).map_err(|wrong| BadScenario(wrong.to_string()))?;
        if !(1..=9).contains(&scenario.nodes) {
            return Err(BadScenario(format!("a scenario has 1 to 9 nodes, not {}", scenario.nodes)));
        }
        if let Some(pair) = scenario.steps.windows(2).find(|pair| pair[0].at_ms > pair[1].at_ms) {
            let (later, earlier) = (pair[0].at_ms, pair[1].at_ms);
            return Err(BadScenario(format!("the step at {earlier} ms comes after the one at {later} ms: sort them")));
        }
        for client in &scenario.clients {
            ttl(client.ttl_ms)?;
        }
        Ok(scenario)
    }

    /// The participant with this name.
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
            "{name:?} is unknown: use {known}, leader, old leader, follower N, node N, master N or store"
        )))
    }
}

impl Client {
    /// The name of a user of this kind: with a number if there are several.
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

pub(crate) fn job_key(text: &str) -> Result<JobKey, BadScenario> {
    JobKey::new(text).map_err(|wrong| BadScenario(wrong.to_string()))
}

pub(crate) fn job_bytes(text: &str) -> Result<JobBytes, BadScenario> {
    JobBytes::new(text.as_bytes()).map_err(|wrong| BadScenario(wrong.to_string()))
}

pub(crate) fn owner_name(text: Option<&str>) -> Result<Option<OwnerName>, BadScenario> {
    text.map(OwnerName::new).transpose().map_err(|wrong| BadScenario(wrong.to_string()))
}
