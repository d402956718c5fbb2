//! Plays a scenario: a world without random faults, in which only the scenario's steps cause faults.
//!
//! This file carries out the deeds of the steps. What a step expects is checked in `expect.rs`. The world, the machines and the
//! checkers are those of every other run.

use fencepost_core::{Millis, Wait};
use fencepost_session::Tier;

use super::phases::SERVES_WITHIN_MS;
use super::{Happening, Outcome, Plan, World};
use crate::fact::{Fact, WorldTime};
use crate::network::Endpoint;
use crate::process::Arrival;
use crate::redlock::{self, Redlock, Ways};
use crate::scenario::{Actor, BadScenario, Deed, Scenario, Step, job_bytes, job_key, lock_name, owner_name, ttl};
use crate::scripted::{Order, ScriptedUser, Visit};
use crate::user::User;

/// Longest wait for the first leader, and additional time for the clients to connect.
const BEGINS_WITHIN_MS: u64 = 20_000;
const REACHED_WITHIN_MS: u64 = 1_000;

/// A scenario that is being played.
pub(super) struct Player<'a> {
    pub(super) world: &'a mut World,
    pub(super) scenario: &'a Scenario,
    /// The node that led when a deed last named `leader`.
    pub(super) old_leader: Option<u64>,
}

impl World {
    /// The world of a scenario, in which nothing has happened yet.
    ///
    /// # Errors
    /// [`BadScenario`] if the scenario is not valid.
    pub fn of_scenario(seed: u64, scenario: &Scenario, traces: bool) -> Result<World, BadScenario> {
        // No random faults: only the steps cause faults.
        let quiet = Plan { nodes: scenario.nodes, ..Plan::quiet() };
        let (mut world, mut random) = World::without_clients(seed, &quiet, traces);
        let mut names = Vec::new();
        for client in &scenario.clients {
            let ttl = ttl(client.ttl_ms)?;
            for process in 0..client.processes {
                names.push(client.user_name(process, 0));
                let make_user =
                    |at, random, _| User::Scripted(ScriptedUser::new(at, client.user_name(process, at), ttl, random));
                world.add_client(Tier::Correctness, client.users, &make_user, random.fork());
            }
        }
        world.redlock = Redlock::new(scenario.masters, names);
        Ok(world)
    }

    /// Plays a scenario. An expectation that is not met is a violation.
    ///
    /// # Errors
    /// [`BadScenario`] if a step cannot be carried out.
    pub fn play(&mut self, scenario: &Scenario) -> Result<Outcome, BadScenario> {
        self.observer.fact(self.now, &Fact::Disturbed);
        let begins_by = self.now.after_ms(BEGINS_WITHIN_MS);
        while self.leader().is_none() && self.stopped.is_none() && self.now < begins_by {
            self.run_until(self.now.after_ms(100));
        }
        self.run_until(self.now.after_ms(REACHED_WITHIN_MS));
        let begun = self.now;
        self.observer.begin_trace(begun);
        let leader = self.leader().map_or("no node leads".to_owned(), |leader| format!("node {leader} leads"));
        self.observer.line(begun, "world", || format!("{} nodes, {leader}", scenario.nodes));
        let mut player = Player { world: self, scenario, old_leader: None };
        for step in &scenario.steps {
            player.world.run_until(begun.after_ms(step.at_ms));
            player.step(step)?;
        }
        self.heal();
        self.wake_all_clients();
        self.run_until(self.now.after_ms(SERVES_WITHIN_MS));
        self.tell_who_serves();
        self.end_run();
        Ok(self.outcome())
    }

    pub(super) fn redlock_happens(&mut self, event: redlock::Event) {
        self.with_redlock(|redlock, ways| redlock.handle(event, ways));
    }

    fn with_redlock(&mut self, act: impl FnOnce(&mut Redlock, &mut Ways<'_>)) {
        let random = &mut self.random;
        let mut ways = Ways { now: self.now, network: &self.network, random, later: Vec::new(), told: Vec::new() };
        act(&mut self.redlock, &mut ways);
        let Ways { later, told, .. } = ways;
        for (at, event) in later {
            self.agenda.put(at, Happening::Redlock(event));
        }
        for (who, what) in told {
            self.observer.line(self.now, &who, || what);
        }
    }
}

impl Player<'_> {
    fn now(&self) -> WorldTime {
        self.world.now
    }

    fn step(&mut self, step: &Step) -> Result<(), BadScenario> {
        if let Some(say) = &step.say {
            self.world.observer.line(self.now(), "story", || say.clone());
        }
        if let Some(deed) = &step.deed {
            self.act(deed)?;
        }
        if let Some(expectation) = &step.expect {
            let found = self.look(expectation)?;
            let now = self.now();
            match found {
                Ok(so) => self.world.observer.line(now, "expect", || format!("{so}, as expected")),
                Err(but) => {
                    self.world.observer.line(now, "expect", || format!("NOT MET: {but}"));
                    self.world.observer.checkers.found("expectation", now, but);
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, deed: &Deed) -> Result<(), BadScenario> {
        let go = |lock: &str, to| lock_name(lock).map(|lock| Order::Go { lock, to });
        match deed {
            Deed::Acquire { who, lock, owner, job, wait_ms, hold_ms } => {
                let wait = match wait_ms {
                    Some(ms) => Wait::UpTo(Millis::new(*ms).map_err(|wrong| BadScenario(wrong.to_string()))?),
                    None => Wait::Forever,
                };
                let (lock, owner) = (lock_name(lock)?, owner_name(owner.as_deref())?);
                let job = job.as_deref().map(job_key).transpose()?;
                self.order(who, &Order::Acquire { lock, owner, job, wait, hold_ms: *hold_ms })
            }
            Deed::Try { who, lock } => {
                let lock = lock_name(lock)?;
                self.order(who, &Order::Acquire { lock, owner: None, job: None, wait: Wait::No, hold_ms: None })
            }
            Deed::Checkpoint { who, lock, text } => {
                self.order(who, &Order::Checkpoint { lock: lock_name(lock)?, text: job_bytes(text)? })
            }
            Deed::Complete { who, lock, result } => {
                self.order(who, &Order::Complete { lock: lock_name(lock)?, result: job_bytes(result)? })
            }
            Deed::ReadJob { who, lock, job } => {
                self.order(who, &Order::ReadJob { lock: lock_name(lock)?, key: job_key(job)? })
            }
            Deed::Release { who, lock } => self.order(who, &Order::Release { lock: lock_name(lock)? }),
            Deed::Check { who, lock } => self.order(who, &Order::Check { lock: lock_name(lock)? }),
            Deed::Claim { who, lock } => self.order(who, &go(lock, Visit::Claim)?),
            Deed::Read { who, lock } => self.order(who, &go(lock, Visit::Read)?),
            Deed::Write { who, lock } => self.order(who, &go(lock, Visit::Write)?),
            Deed::Close { who } => self.order(who, &Order::Close),
            Deed::Pause { who } => self.hurt(who, "paused", |world, endpoint| match endpoint {
                Endpoint::Node(node) => world.nodes.get_mut(&node).expect("named").paused = true,
                Endpoint::Client(client) => world.clients[client].paused = true,
                Endpoint::Store | Endpoint::Master(_) => {}
            }),
            Deed::Crash { who } => self.hurt(who, "crashed", |world, endpoint| match endpoint {
                Endpoint::Node(node) => world.crash(node),
                Endpoint::Client(client) => world.crash_client(client),
                Endpoint::Store | Endpoint::Master(_) => {}
            }),
            Deed::Resume { who } => {
                for endpoint in self.endpoints(who)? {
                    match endpoint {
                        Endpoint::Node(node) => self.world.resume(node),
                        Endpoint::Client(client) => self.world.resume_client(client),
                        Endpoint::Store | Endpoint::Master(_) => {}
                    }
                }
                Ok(())
            }
            Deed::Restart { who } => {
                for endpoint in self.endpoints(who)? {
                    if let Endpoint::Node(node) = endpoint {
                        self.world.undo(super::faults::Undo::Crash(node));
                    }
                }
                Ok(())
            }
            Deed::HandOver { to } => {
                let (from, to) = (self.endpoints("leader")?, self.endpoints(to)?);
                let ([Endpoint::Node(from)], [Endpoint::Node(to)]) = (&from[..], &to[..]) else {
                    return Err(BadScenario("leadership can only be handed over to a node: name one".to_owned()));
                };
                self.world.hand_over(*from, *to);
                Ok(())
            }
            Deed::Cut { between, and } => {
                let (these, those) = (self.all_endpoints(between)?, self.all_endpoints(and)?);
                let line = || format!("nothing gets through between {} and {}", between.join(", "), and.join(", "));
                self.world.observer.fault(self.now(), "cut", line);
                self.cut(&these, &those);
                Ok(())
            }
            Deed::Partition { apart } => {
                let these = self.all_endpoints(apart)?;
                let all = self.nodes_and_clients();
                let those: Vec<Endpoint> = all.into_iter().filter(|endpoint| !these.contains(endpoint)).collect();
                let line = || format!("{} cut off from all other nodes and clients", apart.join(" and "));
                self.world.observer.fault(self.now(), "partition", line);
                self.cut(&these, &those);
                Ok(())
            }
            Deed::HoldUp { from, to, by_ms } => {
                let line = || format!("messages from {from} to {to} take {by_ms} ms longer from now on");
                self.world.observer.fault(self.now(), "held up", line);
                for from in self.endpoints(from)? {
                    for to in self.endpoints(to)? {
                        self.world.network.hold_up(from, to, *by_ms);
                    }
                }
                Ok(())
            }
            Deed::Heal => {
                self.world.observer.line(self.now(), "world", || "every link works again".to_owned());
                self.world.network.heal();
                Ok(())
            }
            Deed::JumpClock { of, by_ms } => self.jump_clocks(of, *by_ms),
            Deed::RedlockAcquire { who, lock, ttl_ms } => {
                let (lock, ttl_ms) = (lock_name(lock)?, *ttl_ms);
                self.by_redlock(who, |redlock, client, ways| redlock.acquire(client, lock.clone(), ttl_ms, ways))
            }
            Deed::RedlockRead { who, lock } => {
                let lock = lock_name(lock)?;
                self.by_redlock(who, |redlock, client, ways| redlock.read(client, lock.clone(), ways))
            }
            Deed::RedlockWrite { who, lock } => {
                let lock = lock_name(lock)?;
                self.by_redlock(who, |redlock, client, ways| redlock.write(client, lock.clone(), ways))
            }
        }
    }

    /// Gives an order to users. A user whose process is paused carries it out when the process wakes up.
    fn order(&mut self, who: &str, order: &Order) -> Result<(), BadScenario> {
        for (client, user) in self.users(who)? {
            self.world.reach(client, Arrival::Order { user, order: order.clone() });
        }
        Ok(())
    }

    fn hurt(&mut self, who: &str, how: &str, hurt: impl Fn(&mut World, Endpoint)) -> Result<(), BadScenario> {
        for endpoint in self.endpoints(who)? {
            let kind = match (endpoint, how) {
                (Endpoint::Node(_), "paused") => "node paused",
                (Endpoint::Node(_), _) => "node crashed",
                (Endpoint::Client(_), "paused") => "client paused",
                (Endpoint::Client(_), _) => "client crashed",
                (Endpoint::Store | Endpoint::Master(_), _) => {
                    return Err(BadScenario(format!("{who:?} cannot be {how}: name a node or a client")));
                }
            };
            let told = self.told(endpoint);
            self.world.observer.fault(self.now(), kind, || told);
            hurt(self.world, endpoint);
        }
        Ok(())
    }

    fn cut(&mut self, these: &[Endpoint], those: &[Endpoint]) {
        for this in these {
            for that in those {
                self.world.network.cut(*this, *that);
                self.world.network.cut(*that, *this);
            }
        }
    }

    /// Nodes write their wall clock into the log for information only. Clients do not read one, so theirs need not jump.
    fn jump_clocks(&mut self, of: &[String], by_ms: i64) -> Result<(), BadScenario> {
        let endpoints = match of {
            [all] if all == "all" => {
                let masters = (0..self.world.redlock.masters()).map(Endpoint::Master);
                self.nodes_and_clients().into_iter().chain(masters).collect()
            }
            _ => self.all_endpoints(of)?,
        };
        let (by, whose) = (by_ms / 1_000, of.join(", "));
        self.world.observer.fault(self.now(), "wall clock jumped", || format!("{whose}, by {by} s"));
        for endpoint in endpoints {
            match endpoint {
                Endpoint::Master(master) => self.world.redlock.jump(master, by_ms),
                Endpoint::Node(node) => {
                    if let Some(node) = self.world.nodes.get_mut(&node) {
                        node.wall_off_ms += by_ms;
                    }
                }
                Endpoint::Client(_) | Endpoint::Store => {}
            }
        }
        Ok(())
    }

    fn by_redlock(&mut self, who: &str, act: impl Fn(&mut Redlock, usize, &mut Ways<'_>)) -> Result<(), BadScenario> {
        if self.world.redlock.masters() == 0 {
            return Err(BadScenario("this scenario has no Redlock: set `masters`".to_owned()));
        }
        for (client, _) in self.users(who)? {
            self.world.with_redlock(|redlock, ways| act(redlock, client, ways));
        }
        Ok(())
    }

    fn nodes_and_clients(&self) -> Vec<Endpoint> {
        let nodes = self.world.nodes.keys().map(|node| Endpoint::Node(*node));
        nodes.chain((0..self.world.clients.len()).map(Endpoint::Client)).collect()
    }

    pub(super) fn users(&self, who: &str) -> Result<Vec<(usize, usize)>, BadScenario> {
        match self.scenario.actor(who)? {
            Actor::Users(users) => Ok(users),
            _ => Err(BadScenario(format!("{who:?} is not a client: only clients use locks"))),
        }
    }

    pub(super) fn endpoints(&mut self, who: &str) -> Result<Vec<Endpoint>, BadScenario> {
        Ok(match self.scenario.actor(who)? {
            Actor::Leader => {
                let leaderless = || BadScenario(format!("no node leads at {} ms of the world", self.now().ms()));
                let leader = self.world.leader().ok_or_else(leaderless)?;
                self.old_leader = Some(leader);
                vec![Endpoint::Node(leader)]
            }
            Actor::OldLeader => {
                let unknown = || BadScenario("there is no old leader: no earlier step names the leader".to_owned());
                vec![Endpoint::Node(self.old_leader.ok_or_else(unknown)?)]
            }
            Actor::Follower(at) => {
                let leader = self.world.leader();
                let mut followers = self.world.nodes.keys().filter(|node| Some(**node) != leader);
                followers.nth(at).map(|node| Endpoint::Node(*node)).into_iter().collect()
            }
            Actor::Node(node) => vec![Endpoint::Node(node)],
            Actor::Master(master) => vec![Endpoint::Master(master)],
            Actor::Store => vec![Endpoint::Store],
            Actor::Users(users) => {
                let mut processes: Vec<usize> = users.into_iter().map(|(client, _)| client).collect();
                processes.dedup();
                processes.into_iter().map(Endpoint::Client).collect()
            }
        })
    }

    fn all_endpoints(&mut self, who: &[String]) -> Result<Vec<Endpoint>, BadScenario> {
        let mut endpoints = Vec::new();
        for who in who {
            endpoints.extend(self.endpoints(who)?);
        }
        Ok(endpoints)
    }

    fn told(&self, endpoint: Endpoint) -> String {
        match endpoint {
            Endpoint::Node(node) => format!("node {node}"),
            Endpoint::Client(client) => self.world.clients[client].tell(),
            Endpoint::Store => "store".to_owned(),
            Endpoint::Master(master) => format!("master {}", master + 1),
        }
    }
}
