//! Simulates a whole cluster with its clients from one seed: the real replica, edge and client machines on a simulated network, disk and
//! clock. Checkers verify the promises of the cluster while it runs.
//!
//! The seed decides everything. There are no sockets, no threads and no real time, so a run that fails fails again. Everything that
//! happens is reported as a [`fact::Fact`]. The checkers in [`check`] see every fact, and do not trust what nodes and clients say of
//! themselves.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the public modules, and this table |
//! | `main.rs` | the command line: its arguments and their checks |
//! | `command/` | what the command line runs: one seed with its trace, many seeds with a summary, and how a failed seed is replayed |
//! | `run.rs` | one run from beginning to end, panics included; the search for a shorter run that still fails |
//! | `world.rs` | the state of one run, and the event loop |
//! | `world/nodes.rs` | start, crash, turns, syncs and snapshots of nodes, and the messages between them |
//! | `world/door.rs` | the driver of a node's edge: streams, messages of clients, replies and pushes |
//! | `world/clients.rs` | what reaches client processes, and what they want done |
//! | `world/jobs.rs` | reads of jobs, and what administrators do to jobs |
//! | `world/hostile.rs` | when the hostile client acts, and what it learns |
//! | `world/faults.rs` | random faults, administrators, readers and watchers |
//! | `world/leases.rs` | the faults of lease runs: the leader changes often, and holders go silent |
//! | `world/upgrades.rs` | upgrade runs: nodes get a newer release one by one |
//! | `world/phases.rs` | the plan of a random run and its two phases: with faults, and healed |
//! | `world/play.rs` | plays the steps of a scenario |
//! | `world/expect.rs` | checks what a scenario expects |
//! | `agenda.rs` | what is scheduled, in order of time |
//! | `random.rs` | the random generator: the same seed gives the same numbers |
//! | `network.rs` | the links: which are cut, how long messages take, and how many are lost |
//! | `clock.rs` | the clocks of the processes, each with its own start and rate |
//! | `disk.rs` | the disk of a node: what is durable, what a crash loses, how slow it is |
//! | `node.rs` | the state of a node: a real replica, edge and efficiency tier with a simulated disk and clock |
//! | `port.rs` | where a node's edge submits commands, and which stream asked for each |
//! | `process.rs` | a client's process: the real client machines and their users |
//! | `user.rs` | the four kinds of users behind one type |
//! | `worker.rs` | a user that acts by chance, often |
//! | `runner.rs` | a user that runs jobs |
//! | `holder.rs` | a user of lease runs: holds a lock for long, and says little |
//! | `scripted.rs` | a user that follows a scenario, and notes the results |
//! | `hostile.rs` | a hostile client that knows everything except the secrets of others |
//! | `watcher.rs` | a watcher of events that resumes at other nodes |
//! | `store.rs` | the store that the locks protect, with a guard and without |
//! | `redlock.rs` | a model of Redlock, for comparison in scenarios |
//! | `scenario.rs` | the format of scenarios, and the list of built-in ones |
//! | `fact.rs` | the facts of a run: all that the checkers see |
//! | `observer.rs` | hands facts to the checkers, writes the trace, and counts |
//! | `telling.rs` | the words of a trace |
//! | `check/` | the checkers: one file for each invariant, a ledger of what the log says, and a checker that uses only what clients see |

pub mod check;
pub mod fact;
pub mod observer;
pub mod random;
pub mod run;
pub mod scenario;
pub mod world;

mod agenda;
mod clock;
mod disk;
mod holder;
mod hostile;
mod network;
mod node;
mod port;
mod process;
mod redlock;
mod runner;
mod scripted;
mod store;
mod telling;
mod user;
mod watcher;
mod worker;

pub use store::StoreTally;
