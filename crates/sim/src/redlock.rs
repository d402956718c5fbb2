//! A small model of Redlock, for scenarios that compare it with Fencepost: one key on each of several independent masters, a majority
//! of them, and a validity by the clock. <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>
//!
//! A master's keys expire by its wall clock, as in Redis; the scenarios show what follows from that. The clients measure time with a
//! monotonic clock that does not drift, which is better than Redlock requires. Redlock has no token, so the store that it protects
//! has no guard. That store is modelled here, too.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::Name;

use crate::fact::WorldTime;
use crate::network::{Endpoint, Network};
use crate::random::Random;

/// How long a client waits for the masters' answers.
const PATIENCE_MS: u64 = 50;

/// A Redlock message that arrives, or a timer.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// `SET lock value NX PX ttl` reaches a master.
    Set { client: usize, master: usize, lock: Name, value: u64, ttl_ms: u64 },
    /// A master's answer to it reaches the client.
    Answered { client: usize, value: u64, master: usize, taken: bool },
    /// The client stops waiting and counts the answers.
    Count { client: usize, value: u64 },
    /// The script that deletes the key if it still has this value reaches a master.
    Delete { master: usize, lock: Name, value: u64 },
    /// A read reaches the store.
    Read { client: usize, lock: Name },
    /// The answer to a read reaches the client.
    Seen { client: usize, lock: Name, version: u64 },
    /// A write that is based on this version reaches the store.
    Write { client: usize, lock: Name, based_on: u64 },
}

/// What the model needs from the world to act, and what it returns to the world.
pub(crate) struct Ways<'a> {
    pub(crate) now: WorldTime,
    pub(crate) network: &'a Network,
    pub(crate) random: &'a mut Random,
    /// Events to schedule.
    pub(crate) later: Vec<(WorldTime, Event)>,
    /// Lines for the trace: who, and what.
    pub(crate) told: Vec<(String, String)>,
}

impl Ways<'_> {
    fn send(&mut self, from: Endpoint, to: Endpoint, event: Event) {
        if !self.network.is_cut(from, to) {
            let delay = self.network.delay(from, to, self.random);
            self.later.push((WorldTime(self.now.0 + delay), event));
        }
    }

    fn tell(&mut self, who: &str, what: String) {
        self.told.push((who.to_owned(), what));
    }
}

#[derive(Debug, Default)]
struct Master {
    /// How far its wall clock is ahead of the world's time.
    ahead_ms: i64,
    keys: BTreeMap<Name, Key>,
}

#[derive(Debug)]
struct Key {
    value: u64,
    /// By the master's wall clock.
    ends_at_ms: i64,
}

impl Master {
    fn wall_ms(&self, now: WorldTime) -> i64 {
        now.ms() as i64 + self.ahead_ms
    }

    fn set(&mut self, lock: Name, value: u64, ttl_ms: u64, now: WorldTime) -> bool {
        let wall = self.wall_ms(now);
        if self.keys.get(&lock).is_some_and(|key| key.ends_at_ms > wall) {
            return false;
        }
        self.keys.insert(lock, Key { value, ends_at_ms: wall + ttl_ms as i64 });
        true
    }
}

/// A client's attempt, and the lock that it believes it holds after it.
#[derive(Debug)]
struct Try {
    lock: Name,
    value: u64,
    ttl_ms: u64,
    begun: WorldTime,
    taken: BTreeSet<usize>,
    answers: usize,
    /// Until when the client believes that it holds the lock. `None` while answers are outstanding, and if the attempt failed.
    valid_until: Option<WorldTime>,
    is_over: bool,
}

/// The masters, the clients' attempts, and the store that Redlock protects.
#[derive(Debug, Default)]
pub(crate) struct Redlock {
    masters: Vec<Master>,
    names: Vec<String>,
    tries: BTreeMap<usize, Try>,
    read: BTreeMap<(usize, Name), u64>,
    store: BTreeMap<Name, u64>,
    /// Writes that overwrote a newer value.
    pub(crate) corrupted: u64,
}

impl Redlock {
    /// A model with this many masters, for clients with these names.
    pub(crate) fn new(masters: usize, names: Vec<String>) -> Redlock {
        Redlock { masters: (0..masters).map(|_| Master::default()).collect(), names, ..Redlock::default() }
    }

    /// Whether a client believes that it holds the lock now.
    pub(crate) fn holds(&self, client: usize, lock: &Name, now: WorldTime) -> bool {
        let tried = self.tries.get(&client).filter(|tried| tried.lock == *lock);
        tried.and_then(|tried| tried.valid_until).is_some_and(|until| now < until)
    }

    /// The wall clock of a master jumps.
    pub(crate) fn jump(&mut self, master: usize, by_ms: i64) {
        if let Some(master) = self.masters.get_mut(master) {
            master.ahead_ms += by_ms;
        }
    }

    /// How many masters there are.
    pub(crate) fn masters(&self) -> usize {
        self.masters.len()
    }

    /// A client asks all masters for the lock at once.
    pub(crate) fn acquire(&mut self, client: usize, lock: Name, ttl_ms: u64, ways: &mut Ways<'_>) {
        let value = ways.random.number();
        let (taken, answers, valid_until, is_over) = (BTreeSet::new(), 0, None, false);
        let tried = Try { lock: lock.clone(), value, ttl_ms, begun: ways.now, taken, answers, valid_until, is_over };
        self.tries.insert(client, tried);
        ways.tell(&self.names[client], format!("asks the masters of Redlock for {lock}, for {ttl_ms} ms"));
        for master in 0..self.masters.len() {
            let set = Event::Set { client, master, lock: lock.clone(), value, ttl_ms };
            ways.send(Endpoint::Client(client), Endpoint::Master(master), set);
        }
        ways.later.push((ways.now.after_ms(PATIENCE_MS), Event::Count { client, value }));
    }

    /// A client reads what the lock protects.
    pub(crate) fn read(&mut self, client: usize, lock: Name, ways: &mut Ways<'_>) {
        ways.send(Endpoint::Client(client), Endpoint::Store, Event::Read { client, lock });
    }

    /// A client writes, based on the version that it read last, if it believes that it holds the lock.
    pub(crate) fn write(&mut self, client: usize, lock: Name, ways: &mut Ways<'_>) {
        if !self.holds(client, &lock, ways.now) {
            ways.tell(&self.names[client], format!("does not write {lock}: its Redlock has expired"));
            return;
        }
        let based_on = self.read.get(&(client, lock.clone())).copied().unwrap_or(0);
        ways.send(Endpoint::Client(client), Endpoint::Store, Event::Write { client, lock, based_on });
    }

    /// Handles a scheduled event.
    pub(crate) fn handle(&mut self, event: Event, ways: &mut Ways<'_>) {
        match event {
            Event::Set { client, master, lock, value, ttl_ms } => {
                let taken = self.masters[master].set(lock, value, ttl_ms, ways.now);
                let answer = Event::Answered { client, value, master, taken };
                ways.send(Endpoint::Master(master), Endpoint::Client(client), answer);
            }
            Event::Answered { client, value, master, taken } => {
                let Some(tried) = self.tries.get_mut(&client).filter(|tried| tried.value == value) else { return };
                tried.answers += 1;
                if taken {
                    tried.taken.insert(master);
                }
                if tried.answers == self.masters.len() {
                    self.count(client, ways);
                }
            }
            Event::Count { client, value } => {
                if self.tries.get(&client).is_some_and(|tried| tried.value == value) {
                    self.count(client, ways);
                }
            }
            Event::Delete { master, lock, value } => {
                let keys = &mut self.masters[master].keys;
                if keys.get(&lock).is_some_and(|key| key.value == value) {
                    keys.remove(&lock);
                }
            }
            Event::Read { client, lock } => {
                let version = self.store.get(&lock).copied().unwrap_or(0);
                ways.send(Endpoint::Store, Endpoint::Client(client), Event::Seen { client, lock, version });
            }
            Event::Seen { client, lock, version } => {
                self.read.insert((client, lock), version);
            }
            Event::Write { client, lock, based_on } => {
                let who = &self.names[client];
                let version = self.store.entry(lock.clone()).or_default();
                let corrupts = based_on != *version;
                *version += 1;
                self.corrupted += u64::from(corrupts);
                let said = if corrupts { ": CORRUPTED, the write overwrote a newer value" } else { "" };
                ways.tell("redlock", format!("{who} writes {lock}, based on version {based_on}{said}"));
            }
        }
    }

    /// Ends an attempt: the client holds the lock if a majority granted it and it is still valid, otherwise it deletes its keys.
    fn count(&mut self, client: usize, ways: &mut Ways<'_>) {
        let Some(tried) = self.tries.get_mut(&client).filter(|tried| !tried.is_over) else { return };
        tried.is_over = true;
        let elapsed_ms = (ways.now.0 - tried.begun.0).div_ceil(1_000_000);
        let drift_ms = tried.ttl_ms / 100 + 2;
        let validity_ms = tried.ttl_ms.saturating_sub(elapsed_ms + drift_ms);
        let on: Vec<String> = tried.taken.iter().map(|master| (master + 1).to_string()).collect();
        let on = if on.is_empty() { "none".to_owned() } else { on.join(", ") };
        if tried.taken.len() > self.masters.len() / 2 && validity_ms > 0 {
            tried.valid_until = Some(ways.now.after_ms(validity_ms));
            let what = format!("holds {} by Redlock for {validity_ms} ms, with masters {on}", tried.lock);
            ways.tell(&self.names[client], what);
            return;
        }
        ways.tell(&self.names[client], format!("does not get {} by Redlock: masters {on} said yes", tried.lock));
        let (lock, value) = (tried.lock.clone(), tried.value);
        for master in 0..self.masters.len() {
            let delete = Event::Delete { master, lock: lock.clone(), value };
            ways.send(Endpoint::Client(client), Endpoint::Master(master), delete);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `begin` and then every event that follows from it.
    fn settle(
        redlock: &mut Redlock,
        begin: impl FnOnce(&mut Redlock, &mut Ways<'_>),
        network: &Network,
        now: WorldTime,
    ) {
        let mut random = Random::new(1);
        let mut ways = Ways { now, network, random: &mut random, later: Vec::new(), told: Vec::new() };
        begin(redlock, &mut ways);
        while !ways.later.is_empty() {
            ways.later.sort_by_key(|(at, _)| *at);
            let (at, event) = ways.later.remove(0);
            ways.now = at;
            redlock.handle(event, &mut ways);
        }
    }

    #[test]
    fn one_of_two_clients_holds_the_lock_until_it_expires() {
        let lock = Name::new("account").expect("a plain name");
        let mut redlock = Redlock::new(5, vec!["first".to_owned(), "second".to_owned()]);
        let network = Network::default();
        let acquire = |client| {
            let lock = lock.clone();
            move |redlock: &mut Redlock, ways: &mut Ways<'_>| redlock.acquire(client, lock, 1_000, ways)
        };
        let (soon, late) = (WorldTime(0).after_ms(500), WorldTime(0).after_ms(2_000));
        settle(&mut redlock, acquire(0), &network, WorldTime(0));
        settle(&mut redlock, acquire(1), &network, soon);
        assert!(redlock.holds(0, &lock, soon) && !redlock.holds(1, &lock, soon));
        settle(&mut redlock, acquire(1), &network, late);
        assert!(!redlock.holds(0, &lock, late) && redlock.holds(1, &lock, late.after_ms(100)));
    }
}
