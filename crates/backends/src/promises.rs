//! What each system promises about its locks. This is the only source of the refusals, of the table of `fencepost backends`, of
//! the page `docs/backends.md`, and of the waivers of the conformance suite.
//!
//! A promise is kept always, on a condition that the user must ensure, or never, for a reason. A request for a promise that is
//! never kept fails before anything is sent.
//!
//! Most promises are about locks. The others are [native](Promise::is_native): only Fencepost's own client keeps them.

use std::fmt;

/// A lock system, or a way of using one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum System {
    /// Fencepost's replicated lock state.
    Fencepost,
    /// The lock state in the memory of Fencepost's leader.
    Memory,
    /// One Redis.
    Redis,
    /// Several independent Redis masters.
    Redlock,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    Zookeeper,
    /// Session-level advisory locks of Postgres.
    PostgresAdvisory,
    /// A table of locks in Postgres.
    PostgresTable,
    /// A locked row in Postgres.
    PostgresRow,
}

/// A promise that a system may make: about its locks, or about what only Fencepost has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// Grants and releases happen in one order that all clients agree on, so two holders never overlap.
    Linearizable,
    /// Each grant of a name has a higher number than all earlier grants, and a store can check it.
    FencingToken,
    /// A granted lock stays held when the server that granted it dies.
    SurvivesFailover,
    /// The lock becomes free some time after its holder crashes.
    AutoRelease,
    /// A holder knows how long the lock is certainly held.
    Deadline,
    /// Each lock may have its own TTL.
    OwnTtl,
    /// Several readers may hold the lock together.
    Shared,
    /// Requests are granted in the order in which they came.
    Fifo,
    /// A waiter is notified when its turn comes, and does not poll.
    Told,
    /// Several locks are granted together or not at all.
    Together,
    /// A name that begins with `/` is a path, and a lock on it covers everything below.
    Paths,
    /// A resource may have several permits, which several clients hold at the same time.
    Semaphores,
    /// One candidate leads, and observers see which one, with its value.
    Elections,
    /// A program receives events: which locks are granted and how they end.
    Events,
    /// A program can ask who holds a lock, who waits for it, and why.
    Explain,
    /// Work that is completed under a key is not granted again under that key while the completion is remembered.
    Once,
    /// One client may hold a lock beside readers, and a held lock may be upgraded to exclusive or downgraded.
    Update,
    /// A lock may have a time after which it ends even if its holder is alive. The holder can extend it.
    LongestHold,
}

/// Whether a promise is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Always.
    Always,
    /// On this condition.
    If(&'static str),
    /// Never, for this reason.
    Never(&'static str),
}

use Kept::{Always, If, Never};

/// A leader of etcd that was paused and replaced believes that all leases have expired. Older versions accept its revocations.
const ETCD_WITHOUT_EARLY_ENDS: &str =
    "its version is 3.4.31, 3.5.13 or newer: in older versions a replaced leader could end leases early";

impl System {
    /// All systems, in the order of the table of `fencepost backends`.
    pub const ALL: [System; 9] = [
        System::Fencepost,
        System::Memory,
        System::Redis,
        System::Redlock,
        System::Etcd,
        System::Zookeeper,
        System::PostgresAdvisory,
        System::PostgresTable,
        System::PostgresRow,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            System::Fencepost => "fencepost",
            System::Memory => "fencepost, efficiency tier",
            System::Redis => "redis",
            System::Redlock => "redlock",
            System::Etcd => "etcd",
            System::Zookeeper => "zookeeper",
            System::PostgresAdvisory => "postgres, advisory lock",
            System::PostgresTable => "postgres, lock table",
            System::PostgresRow => "postgres, row lock",
        }
    }

    /// The form of its addresses.
    pub fn address(self) -> &'static str {
        match self {
            System::Fencepost | System::Memory => "fencepost://host:7420,host:7420",
            System::Redis => "redis://host:6379/",
            System::Redlock => "redlock://host:6379,host:6379,host:6379",
            System::Etcd => "etcd://host:2379,host:2379",
            System::Zookeeper => "zookeeper://host:2181,host:2181/chroot",
            System::PostgresAdvisory => "postgres+advisory://user@host/database",
            System::PostgresTable => "postgres+table://user@host/database",
            System::PostgresRow => "postgres+row://user@host/database",
        }
    }

    /// How it locks, in a few words.
    pub fn how(self) -> &'static str {
        match self {
            System::Fencepost => "replicated state machine",
            System::Memory => "the same state machine in the leader's memory, no log",
            System::Redis => "SET NX PX with a unique value; scripts compare the value before they renew or delete",
            System::Redlock => "as redis, on a majority of N independent masters, in less time than the TTL",
            System::Etcd => "each contender has a key under its own lease, and watches the key before it",
            System::Zookeeper => "each contender has an ephemeral sequential node, and watches the node before it",
            System::PostgresAdvisory => "pg_advisory_lock, one connection for each lock",
            System::PostgresTable => "a row for each lock, with an expiry by the database's clock",
            System::PostgresRow => "SELECT ... FOR UPDATE in a transaction that lives as long as the lock",
        }
    }

    /// Where its tokens come from, if it has any.
    pub fn token(self) -> Option<&'static str> {
        match self {
            System::Fencepost => Some("one counter for the whole log"),
            System::Etcd => Some("the revision that created the key"),
            System::Zookeeper => Some("the zxid that created the node"),
            System::PostgresTable => Some("a counter in the row"),
            System::PostgresAdvisory => Some("a counter in a table, increased under the lock"),
            System::PostgresRow => Some("a counter in a table, increased under the lock in a separate transaction"),
            System::Memory | System::Redis | System::Redlock => None,
        }
    }

    /// Whether the promise is kept.
    pub fn keeps(self, promise: Promise) -> Kept {
        match promise {
            Promise::Linearizable => match self {
                System::Fencepost | System::Etcd | System::Zookeeper => Always,
                System::Memory => Never("two leaders may both grant locks for up to an election timeout"),
                System::Redis => Never("a fail-over may promote a replica that does not know the lock"),
                System::Redlock => Never("it is exclusive only while no clock jumps and no master loses its data"),
                System::PostgresAdvisory | System::PostgresTable | System::PostgresRow => If("there is one primary"),
            },
            Promise::FencingToken => match self {
                System::Fencepost | System::Zookeeper => Always,
                System::Etcd => If("every restore of a backup raises the revision"),
                System::Memory => Never("a fail-over loses a counter in memory"),
                System::Redis => Never("a fail-over can set a counter back, and then it fences nothing"),
                System::Redlock => Never("independent masters have no common counter"),
                System::PostgresAdvisory | System::PostgresTable | System::PostgresRow => If("there is one primary"),
            },
            Promise::SurvivesFailover => match self {
                System::Fencepost | System::Zookeeper => Always,
                System::Etcd => If(ETCD_WITHOUT_EARLY_ENDS),
                System::Memory => Never("the next leader does not know the lock"),
                System::Redis => Never("replication is asynchronous"),
                System::Redlock => If("a majority of the masters keeps its data"),
                System::PostgresTable => If("the standby is synchronous"),
                System::PostgresAdvisory => Never("the lock ends with the connection"),
                System::PostgresRow => Never("the lock ends with the transaction"),
            },
            Promise::AutoRelease => Always,
            Promise::Deadline => match self {
                System::PostgresAdvisory => Never("the server may end the connection at any moment"),
                System::PostgresRow => Never("the server may end the transaction at any moment"),
                System::Memory | System::Redis => If("no fail-over happens"),
                System::Redlock => If("no clock jumps"),
                System::PostgresTable => If("there is one primary, whose clock does not jump"),
                System::Etcd => If(ETCD_WITHOUT_EARLY_ENDS),
                System::Zookeeper => {
                    If("the session timeout is at least two ticks, which is the servers' default minimum")
                }
                System::Fencepost => Always,
            },
            Promise::OwnTtl => match self {
                System::Zookeeper => Never("all locks of a client share its session and the session's timeout"),
                _ => Always,
            },
            Promise::Shared => match self {
                System::Redis | System::Redlock => Never("a key has one value, so it has one owner"),
                System::PostgresTable => Never("a row names one holder"),
                _ => Always,
            },
            Promise::Fifo => match self {
                System::Fencepost | System::Memory | System::Etcd | System::Zookeeper | System::PostgresAdvisory => {
                    Always
                }
                System::Redis | System::Redlock | System::PostgresTable => {
                    Never("there is no queue: the first request after a release gets the lock")
                }
                System::PostgresRow => Never("new readers pass a waiting writer, for as long as readers come"),
            },
            Promise::Told => match self {
                System::Redis | System::Redlock | System::PostgresTable => Never("waiters poll"),
                _ => Always,
            },
            Promise::Together => match self {
                System::Fencepost | System::Memory => Always,
                _ => Never("the library acquires them one by one, in the order of their names"),
            },
            Promise::Paths => match self {
                System::Fencepost | System::Memory => Always,
                _ => Never("a lock on /a would not cover /a/b: use a name that does not begin with a slash"),
            },
            // Rule: tier-efficiency
            Promise::Semaphores => match self {
                System::Fencepost => Always,
                System::Memory => Never("the library asks this tier for locks only"),
                _ => Never("the library asks this system for locks only"),
            },
            Promise::Elections => match self {
                System::Fencepost => Always,
                System::Memory => Never("the library asks this tier for locks only, and observers do not see them"),
                _ => Never("the library asks this system for locks only, and shows no leader to observers"),
            },
            Promise::Events => match self {
                System::Fencepost => Always,
                System::Memory => Never("events come from the log, and this tier has no log"),
                _ => Never("the library reports no events of this system"),
            },
            Promise::Explain => match self {
                System::Fencepost => Always,
                System::Memory => {
                    Never("the cluster answers from its replicated state, which does not have these locks")
                }
                _ => Never("the library does not show the holders and waiters of this system"),
            },
            Promise::Once => match self {
                System::Fencepost => Always,
                System::Memory => Never("a tier that forgets cannot say that work was done"),
                _ => Never("the library keeps no record of completed work in this system"),
            },
            Promise::Update => match self {
                System::Fencepost => Always,
                System::Memory => Never(
                    "the library asks this tier for exclusive and shared locks only, and never changes their mode",
                ),
                _ => Never("the library asks this system for no mode but exclusive and shared, and never changes it"),
            },
            Promise::LongestHold => match self {
                System::Fencepost | System::Memory => Always,
                _ => Never("the library sets no end for a lock of this system whose holder is alive"),
            },
        }
    }

    /// Whether data may depend on its locks.
    pub fn is_for_correctness(self) -> bool {
        [Promise::Linearizable, Promise::FencingToken].iter().all(|promise| self.keeps(*promise).is_kept())
    }

    /// Its tier, in words.
    pub fn tier(self) -> &'static str {
        match (self.is_for_correctness(), self.keeps(Promise::Linearizable)) {
            (true, If(_)) => "correctness, while there is one primary",
            (true, _) => "correctness",
            (false, _) => "efficiency",
        }
    }
}

impl Promise {
    /// All promises, in the order of `docs/backends.md`: first those about locks, then the [native](Promise::is_native) ones.
    pub const ALL: [Promise; 18] = [
        Promise::Linearizable,
        Promise::FencingToken,
        Promise::SurvivesFailover,
        Promise::AutoRelease,
        Promise::Deadline,
        Promise::OwnTtl,
        Promise::Shared,
        Promise::Fifo,
        Promise::Told,
        Promise::Together,
        Promise::Paths,
        Promise::Semaphores,
        Promise::Elections,
        Promise::Events,
        Promise::Explain,
        Promise::Once,
        Promise::Update,
        Promise::LongestHold,
    ];

    /// Whether it is about what only Fencepost has. A system that keeps such a promise keeps it through Fencepost's own client: see
    /// [`Client::native`](crate::Client::native).
    pub const fn is_native(self) -> bool {
        match self {
            Promise::Semaphores
            | Promise::Elections
            | Promise::Events
            | Promise::Explain
            | Promise::Once
            | Promise::Update
            | Promise::LongestHold => true,
            Promise::Linearizable
            | Promise::FencingToken
            | Promise::SurvivesFailover
            | Promise::AutoRelease
            | Promise::Deadline
            | Promise::OwnTtl
            | Promise::Shared
            | Promise::Fifo
            | Promise::Told
            | Promise::Together
            | Promise::Paths => false,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Promise::Linearizable => "linearizable",
            Promise::FencingToken => "fencing token",
            Promise::SurvivesFailover => "survives fail-over",
            Promise::AutoRelease => "auto-release",
            Promise::Deadline => "known deadline",
            Promise::OwnTtl => "TTL of its own",
            Promise::Shared => "shared",
            Promise::Fifo => "first come, first served",
            Promise::Told => "waits without polling",
            Promise::Together => "several at once",
            Promise::Paths => "paths",
            Promise::Semaphores => "semaphores",
            Promise::Elections => "elections",
            Promise::Events => "events",
            Promise::Explain => "explained waits",
            Promise::Once => "jobs that run once",
            Promise::Update => "update mode",
            Promise::LongestHold => "longest hold",
        }
    }

    /// What it means.
    pub fn meaning(self) -> &'static str {
        match self {
            Promise::Linearizable => {
                "grants happen in one order that all clients agree on, so two holders never overlap"
            }
            Promise::FencingToken => {
                "each grant of a name has a higher number than all earlier grants, and a store can check it"
            }
            Promise::SurvivesFailover => "a granted lock stays held when the server that granted it dies",
            Promise::AutoRelease => "the lock becomes free some time after its holder crashes",
            Promise::Deadline => "a holder knows how long the lock is certainly held",
            Promise::OwnTtl => "each lock may have its own TTL",
            Promise::Shared => "several readers may hold the lock together",
            Promise::Fifo => "requests are granted in the order in which they came",
            Promise::Told => "a waiter is notified when its turn comes",
            Promise::Together => "locks on several names are granted together or not at all",
            Promise::Paths => "a name that begins with / is a path, and a lock on it covers everything below",
            Promise::Semaphores => "a resource may have several permits, which several clients hold at the same time",
            Promise::Elections => "one candidate leads, and observers see which one, with its value",
            Promise::Events => "a program receives events: which locks are granted and how they end",
            Promise::Explain => "a program can ask who holds a lock, who waits for it, and why",
            Promise::Once => {
                "work that is completed under a key is not granted again under that key while the completion is remembered"
            }
            Promise::Update => {
                "one client may hold a lock beside readers, and a held lock may be upgraded to exclusive or downgraded"
            }
            Promise::LongestHold => {
                "a lock may have a time after which it ends even if its holder is alive, and the holder can extend it"
            }
        }
    }

    /// The systems that keep it, always or on a condition.
    pub fn kept_by(self) -> impl Iterator<Item = System> {
        System::ALL.into_iter().filter(move |system| system.keeps(self).is_kept())
    }
}

impl Kept {
    /// Whether a request may ask for it.
    pub fn is_kept(self) -> bool {
        !matches!(self, Never(_))
    }

    /// The condition, or the reason.
    pub fn remark(self) -> Option<&'static str> {
        match self {
            Always => None,
            If(remark) | Never(remark) => Some(remark),
        }
    }
}

/// The system does not make a promise that the request needs. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPromised {
    /// The system.
    pub system: System,
    /// The promise that it does not make.
    pub promise: Promise,
    /// Why it does not make it.
    pub why: &'static str,
}

impl System {
    /// Fails if the promise is never kept.
    ///
    /// # Errors
    /// [`NotPromised`], with the reason.
    pub fn check(self, promise: Promise) -> Result<(), NotPromised> {
        match self.keeps(promise) {
            Never(why) => Err(NotPromised { system: self, promise, why }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for NotPromised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotPromised { system, promise, why } = self;
        write!(f, "{} does not promise \"{}\": {why}. ", system.name(), promise.name())?;
        let others: Vec<&str> = promise.kept_by().map(System::name).collect();
        write!(f, "Systems that do: {}", others.join("; "))?;
        if let Promise::FencingToken | Promise::Linearizable = promise {
            write!(f, ". If two holders at the same time do no harm, ask for the efficiency tier")?;
        }
        write!(f, ". See docs/guides/choosing.md")
    }
}

impl std::error::Error for NotPromised {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_and_redlock_are_only_for_efficiency() {
        let correct: Vec<System> = System::ALL.into_iter().filter(|system| system.is_for_correctness()).collect();
        let expected = [
            System::Fencepost,
            System::Etcd,
            System::Zookeeper,
            System::PostgresAdvisory,
            System::PostgresTable,
            System::PostgresRow,
        ];
        assert_eq!(correct, expected);
    }

    #[test]
    fn a_system_has_tokens_exactly_if_it_promises_them() {
        for system in System::ALL {
            assert_eq!(system.token().is_some(), system.keeps(Promise::FencingToken).is_kept(), "{system:?}");
        }
    }

    #[test]
    fn only_fencepost_keeps_the_native_promises_and_they_come_last() {
        let natives: Vec<Promise> = Promise::ALL.into_iter().filter(|promise| promise.is_native()).collect();
        assert_eq!(Promise::ALL[Promise::ALL.len() - natives.len()..], natives);
        for promise in natives {
            assert_eq!(System::Fencepost.keeps(promise), Always, "{promise:?}");
            let others = promise.kept_by().filter(|system| !matches!(system, System::Fencepost | System::Memory));
            assert_eq!(others.count(), 0, "{promise:?}");
        }
        let refusal = System::Etcd.check(Promise::Semaphores).expect_err("etcd gives locks only").to_string();
        let expected = "etcd does not promise \"semaphores\": the library asks this system for locks only. Systems that do: \
                        fencepost. See docs/guides/choosing.md";
        assert_eq!(refusal, expected);
    }

    #[test]
    fn every_promise_is_kept_by_a_system_and_a_refusal_names_it() {
        for promise in Promise::ALL {
            assert!(promise.kept_by().next().is_some(), "{promise:?}");
        }
        let refusal = System::Redis.check(Promise::FencingToken).expect_err("Redis has no tokens").to_string();
        for word in ["redis does not promise", "etcd", "fencepost", "efficiency tier", "docs/guides/choosing.md"] {
            assert!(refusal.contains(word), "{refusal}");
        }
    }
}
