//! Redlock: the lock of one Redis, on a majority of several independent masters.
//!
//! The client sets one value on all masters at the same time. With a majority it holds the lock for the TTL, less the time that
//! the calls took and less a drift. Without a majority it deletes the value on all masters at once. This is not consensus: the
//! lock is exclusive only while no master loses its data and no clock jumps. There is no common counter for tokens. So these
//! locks, too, are only for efficiency.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Failed, Lost, Name, Nanos, Refused, Token, Unknown, clock};
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::backend::{Ask, Backend, Lease, Proof, Undo, unique};
use crate::promises::System;
use crate::redis::{Redis, Whose};

/// The timeout of one master is the TTL divided by this. Waiting longer would cost more of the lock's time than an answer gains.
const TTL_PARTS: u32 = 10;
/// The least and the greatest timeout of one master.
const MASTER_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The algorithm subtracts 1% and 2 ms for drift. [`crate::validity`] already subtracts 1% and 1 ms; this is the rest.
const DRIFT: Duration = Duration::from_millis(1);

/// Several independent masters.
#[derive(Clone, Debug)]
pub struct Redlock {
    masters: Vec<Redis>,
}

impl Redlock {
    /// Connects to `redlock://host:port,host:port,host:port`. A minority of them may be down.
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if no majority answers. [`Refused::Invalid`] for fewer than three masters, or if one is named twice.
    pub async fn connect(address: &str) -> Result<Redlock, Error> {
        let places: Vec<&str> =
            address.trim_start_matches("redlock://").split(',').map(|place| place.trim_end_matches('/')).collect();
        let distinct: std::collections::BTreeSet<&&str> = places.iter().collect();
        if places.len() < 3 || distinct.len() < places.len() {
            let why = "Redlock needs at least three masters, each named once: redlock://host:port,host:port,host:port";
            return Err(Refused::Invalid(why.to_owned()).into());
        }
        let masters: Result<Vec<Redis>, Error> =
            places.iter().map(|place| Redis::connect_later(&format!("redis://{place}/"))).collect();
        let redlock = Redlock { masters: masters? };
        let answers = redlock.everywhere(MASTER_TIMEOUT.1, |master| async move { master.ping().await }).await;
        redlock.majority_of(&answers)?;
        Ok(redlock)
    }

    fn majority(&self) -> usize {
        self.masters.len() / 2 + 1
    }

    /// Calls all masters at the same time.
    async fn everywhere<T, F>(&self, patience: Duration, ask: impl Fn(Redis) -> F) -> Vec<Result<T, Error>>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let asked = self.masters.iter().map(|master| {
            let answer = ask(master.clone());
            async move { timeout(patience, answer).await.unwrap_or_else(|_| Err(Unknown::NoAnswer.into())) }
        });
        join_all(asked).await
    }

    /// Fails unless a majority answered.
    fn majority_of<T>(&self, answers: &[Result<T, Error>]) -> Result<(), Error> {
        if answers.iter().flatten().count() >= self.majority() {
            return Ok(());
        }
        let last = answers.iter().find_map(|answer| answer.as_ref().err()).map(Error::to_string).unwrap_or_default();
        let last = format!("fewer than {} of {} masters answered; {last}", self.majority(), self.masters.len());
        Err(Failed::Unreachable { last }.into())
    }

    async fn delete(&self, name: &Name, value: &str) -> Vec<Result<Whose, Error>> {
        self.everywhere(MASTER_TIMEOUT.1, |master| async move { master.delete(name, value).await }).await
    }

    /// The holder of the lock, if enough masters answered to tell.
    fn whose(&self, answers: &[Result<Whose, Error>]) -> Result<Whose, Error> {
        let count = |whose: Whose| answers.iter().flatten().filter(|answer| **answer == whose).count();
        let unknown = answers.iter().filter(|answer| answer.is_err()).count();
        if count(Whose::Ours) >= self.majority() {
            Ok(Whose::Ours)
        } else if count(Whose::Ours) + unknown >= self.majority() {
            // The missing answers could make a majority for us.
            self.majority_of(answers).and(Err(Unknown::NoAnswer.into()))
        } else if count(Whose::Theirs) >= self.majority() {
            Ok(Whose::Theirs)
        } else {
            Ok(Whose::Free)
        }
    }
}

#[async_trait]
impl Backend for Redlock {
    fn system(&self) -> System {
        System::Redlock
    }

    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error> {
        let Ask { name, ttl, .. } = ask;
        let value = unique()?;
        let undo = {
            let (redlock, name, value) = (self.clone(), name.clone(), value.clone());
            Undo::new(async move { drop(redlock.delete(&name, &value).await) })
        };
        let granted_at = clock::now();
        let set = |master: Redis| {
            let value = value.clone();
            async move { master.set(name, &value, *ttl).await }
        };
        let answers = self.everywhere(patience(*ttl), set).await;
        if answers.iter().flatten().filter(|taken| **taken).count() < self.majority() {
            // Deletes the value on all masters, because a master that did not answer may have set it. In the background, because
            // the caller has already waited long enough.
            drop(undo);
            self.majority_of(&answers)?;
            return Ok(None);
        }
        undo.disarm();
        let (redlock, name, ttl) = (self.clone(), name.clone(), *ttl);
        Ok(Some(Box::new(RedlockLease { redlock, name, value, ttl, granted_at, released: AtomicBool::new(false) })))
    }
}

/// A lock on a majority of the masters.
#[derive(Debug)]
struct RedlockLease {
    redlock: Redlock,
    name: Name,
    value: String,
    ttl: Duration,
    granted_at: Nanos,
    released: AtomicBool,
}

#[async_trait]
impl Lease for RedlockLease {
    fn token(&self) -> Option<Token> {
        None
    }

    fn proof(&self) -> Proof {
        Proof { sent_at: self.granted_at, ttl: self.ttl.saturating_sub(DRIFT) }
    }

    async fn renew(&self) -> Result<Proof, Error> {
        let sent_at = clock::now();
        let extend = |master: Redis| async move { master.extend(&self.name, &self.value, self.ttl).await };
        let answers = self.redlock.everywhere(patience(self.ttl), extend).await;
        match self.redlock.whose(&answers)? {
            Whose::Ours => Ok(Proof { sent_at, ttl: self.ttl.saturating_sub(DRIFT) }),
            Whose::Free => Err(Lost::Gone.into()),
            Whose::Theirs => Err(Refused::NotOwner.into()),
        }
    }

    async fn release(&self) -> Result<(), Error> {
        let answers = self.redlock.delete(&self.name, &self.value).await;
        match self.redlock.whose(&answers) {
            Ok(Whose::Ours) => {
                self.released.store(true, Ordering::Release);
                Ok(())
            }
            Ok(_) if self.released.load(Ordering::Acquire) => Err(Refused::NotHeld.into()),
            Ok(Whose::Free) => Err(Lost::DeadlinePassed.into()),
            Ok(Whose::Theirs) => Err(Refused::NotOwner.into()),
            Err(error) => Err(error),
        }
    }
}

/// The timeout of one master.
fn patience(ttl: Duration) -> Duration {
    (ttl / TTL_PARTS).clamp(MASTER_TIMEOUT.0, MASTER_TIMEOUT.1)
}
