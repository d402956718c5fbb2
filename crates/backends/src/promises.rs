//! What each system promises about its locks, once: from here come the refusals, the table of `fencepost backends`, the page in
//! the documentation, and the waivers of the conformance suite.
//!
//! A promise is kept always, or on a condition that the user has to see to, or never and for a reason. Asking for what is never
//! kept is an error before anything is sent.

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

/// What may be promised of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// Grants and releases happen in one order that all agree on, so two are never granted at the same time.
    Linearizable,
    /// Each grant of a name has a higher number than all before, for the store to check.
    FencingToken,
    /// A lock that was granted is still held after the server that granted it is gone.
    SurvivesFailover,
    /// The lock is free some time after its holder crashed.
    AutoRelease,
    /// A holder knows for how long the lock is certain.
    Deadline,
    /// Each lock may have a TTL of its own.
    OwnTtl,
    /// Readers may hold it together.
    Shared,
    /// Who asked first is granted first.
    Fifo,
    /// Those who wait are told, and need not ask again and again.
    Told,
    /// Several locks are granted together or not at all.
    Together,
    /// A name that begins with `/` is a path, and a lock on it covers everything below.
    Paths,
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

/// A leader of etcd that stood still and was replaced believes that all leases have run out. Before these versions it was obeyed.
const ETCD_WITHOUT_EARLY_ENDS: &str =
    "it is 3.4.31, 3.5.13 or newer: in older ones a leader that was replaced ends leases early";

impl System {
    /// All of them, in the order of the table.
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

    /// What it is called.
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

    /// How it is addressed.
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
            System::Redis => "SET NX PX with a value of one's own; scripts compare it before they renew or delete",
            System::Redlock => "the same on a majority of N independent masters, within the validity",
            System::Etcd => "a lease and a key for each contender; each watches the one before it",
            System::Zookeeper => "ephemeral sequential nodes; each watches the one before it",
            System::PostgresAdvisory => "pg_advisory_lock on a connection of its own",
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
            System::PostgresAdvisory => Some("a counter in a table, raised under the lock"),
            System::PostgresRow => Some("a counter in a table, raised under the lock in a transaction of its own"),
            System::Memory | System::Redis | System::Redlock => None,
        }
    }

    /// Whether the promise is kept.
    pub fn keeps(self, promise: Promise) -> Kept {
        match promise {
            Promise::Linearizable => match self {
                System::Fencepost | System::Etcd | System::Zookeeper => Always,
                System::Memory => Never("for up to an election time-out two leaders may both grant"),
                System::Redis => Never("a fail-over may promote a replica that never heard of the lock"),
                System::Redlock => Never("it holds only while no clock jumps and no master forgets"),
                System::PostgresAdvisory | System::PostgresTable | System::PostgresRow => If("there is one primary"),
            },
            Promise::FencingToken => match self {
                System::Fencepost | System::Zookeeper => Always,
                System::Etcd => If("nobody restores a backup of it without raising its revision"),
                System::Memory => Never("what is forgotten on fail-over cannot count upwards"),
                System::Redis => Never("a counter that a fail-over can set back fences nothing"),
                System::Redlock => Never("independent masters have no common counter"),
                System::PostgresAdvisory | System::PostgresTable | System::PostgresRow => If("there is one primary"),
            },
            Promise::SurvivesFailover => match self {
                System::Fencepost | System::Zookeeper => Always,
                System::Etcd => If(ETCD_WITHOUT_EARLY_ENDS),
                System::Memory => Never("the next leader knows nothing of it"),
                System::Redis => Never("replication is asynchronous"),
                System::Redlock => If("a majority of the masters keeps what it wrote"),
                System::PostgresTable => If("the standby is synchronous"),
                System::PostgresAdvisory => Never("the lock ends with the connection"),
                System::PostgresRow => Never("the lock ends with the transaction"),
            },
            Promise::AutoRelease => Always,
            Promise::Deadline => match self {
                System::PostgresAdvisory => Never("the server may end the connection at any moment"),
                System::PostgresRow => Never("the server may end the transaction at any moment"),
                System::Memory | System::Redis => If("the server stays the same"),
                System::Redlock => If("no clock jumps"),
                System::PostgresTable => If("there is one primary, whose clock does not jump"),
                System::Etcd => {
                    If("it is 3.4.31, 3.5.13 or later: before, a leader that was replaced could end leases early")
                }
                System::Zookeeper => If("the session time-out is two ticks or more, as servers demand by default"),
                System::Fencepost => Always,
            },
            Promise::OwnTtl => match self {
                System::Zookeeper => Never("all locks of a client live as long as its session"),
                _ => Always,
            },
            Promise::Shared => match self {
                System::Redis | System::Redlock => Never("a key has one value, and so one owner"),
                System::PostgresTable => Never("a row names one holder"),
                _ => Always,
            },
            Promise::Fifo => match self {
                System::Fencepost | System::Memory | System::Etcd | System::Zookeeper | System::PostgresAdvisory => {
                    Always
                }
                System::Redis | System::Redlock | System::PostgresTable => {
                    Never("nobody queues: whoever asks at the right moment gets it")
                }
                System::PostgresRow => Never("readers pass a writer that waits, for as long as there are readers"),
            },
            Promise::Told => match self {
                System::Redis | System::Redlock | System::PostgresTable => Never("those who wait ask again"),
                _ => Always,
            },
            Promise::Together => match self {
                System::Fencepost | System::Memory => Always,
                _ => Never("they are taken one after the other, in the order of their names"),
            },
            Promise::Paths => match self {
                System::Fencepost | System::Memory => Always,
                _ => Never("a lock on /a would not cover /a/b: use a name that does not begin with a slash"),
            },
        }
    }

    /// Whether it may stand where data depends on the lock.
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
    /// All of them, in the order of the table.
    pub const ALL: [Promise; 11] = [
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
    ];

    /// What it is called.
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
        }
    }

    /// What it means.
    pub fn meaning(self) -> &'static str {
        match self {
            Promise::Linearizable => {
                "grants happen in one order that all agree on, so two never hold it at the same time"
            }
            Promise::FencingToken => {
                "each grant of a name has a higher number than all before it, for the store to check"
            }
            Promise::SurvivesFailover => "a granted lock is still held when the server that granted it is gone",
            Promise::AutoRelease => "the lock is free some time after its holder crashed",
            Promise::Deadline => "a holder knows for how long the lock is certain",
            Promise::OwnTtl => "each lock may have its own",
            Promise::Shared => "readers may hold it together",
            Promise::Fifo => "who asked first is granted first",
            Promise::Told => "those who wait are told when it is their turn",
            Promise::Together => "locks on several names are granted together or not at all",
            Promise::Paths => "a name that begins with / is a path, and a lock on it covers everything below",
        }
    }

    /// Who keeps it, on a condition or not.
    pub fn kept_by(self) -> impl Iterator<Item = System> {
        System::ALL.into_iter().filter(move |system| system.keeps(self).is_kept())
    }
}

impl Kept {
    /// Whether it may be asked for.
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

/// A promise was asked for that the system does not make. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPromised {
    /// Who was asked.
    pub system: System,
    /// For what.
    pub promise: Promise,
    /// Why not.
    pub why: &'static str,
}

impl System {
    /// Nothing, if the promise is kept.
    ///
    /// # Errors
    /// [`NotPromised`] if it is not.
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
        write!(f, "Who does: {}", others.join("; "))?;
        if let Promise::FencingToken | Promise::Linearizable = promise {
            write!(f, ". If a lock that now and then has two holders will do, ask for `.efficiency()`")?;
        }
        write!(f, ". See docs/guides/choosing.md")
    }
}

impl std::error::Error for NotPromised {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_and_redlock_are_for_efficiency_alone() {
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
    fn every_promise_is_kept_by_somebody_and_a_refusal_names_who() {
        for promise in Promise::ALL {
            assert!(promise.kept_by().next().is_some(), "{promise:?}");
        }
        let refusal = System::Redis.check(Promise::FencingToken).expect_err("Redis has none").to_string();
        for word in ["redis does not promise", "etcd", "fencepost", ".efficiency()", "docs/guides/choosing.md"] {
            assert!(refusal.contains(word), "{refusal}");
        }
    }
}
