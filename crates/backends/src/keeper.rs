//! Keeps a granted lock of another system: one task renews it, listens to the system, and reports when the lock is lost.
//!
//! It makes no decisions: [`Validity`] says what to do and when. It also counts how often the owner has entered the lock, and
//! releases it once.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, GrantState, Lost, Refused, Released, Token, Unknown, clock};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::backend::{Lease, Mode, random};
use crate::backoff::Backoff;
use crate::grip::Grip;
use crate::validity::{Step, Validity};

/// The longest sleep before the next look at the clock. The timer of the runtime stops while the machine is suspended, so a longer
/// sleep could miss a deadline.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Timeout of a release.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A lock that is renewed until it is released or lost.
#[derive(Debug)]
pub(crate) struct Kept {
    lease: Box<dyn Lease>,
    mode: Mode,
    state: Mutex<State>,
    /// Wakes the keeper task and the callers that wait for a new state.
    changed: Notify,
    runtime: Handle,
}

#[derive(Debug)]
struct State {
    validity: Validity,
    /// How often the owner has entered and not left.
    entries: u32,
}

impl Kept {
    /// Starts the task that keeps the lock.
    pub(crate) fn new(lease: Box<dyn Lease>, mode: Mode) -> Arc<Kept> {
        let state = Mutex::new(State { validity: Validity::new(lease.proof()), entries: 1 });
        let kept = Arc::new(Kept { lease, mode, state, changed: Notify::new(), runtime: Handle::current() });
        kept.runtime.spawn(keep(kept.clone()));
        kept
    }

    /// Counts one more entry of the same owner. False if the lock is lost.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the lock is held in a weaker mode than the request needs.
    // Rule: re-entry
    pub(crate) fn enter(&self, mode: Mode) -> Result<bool, Error> {
        self.with(|state| match (state.validity.state(clock::now()), self.mode, mode) {
            (GrantState::Lost(_), ..) => Ok(false),
            (_, Mode::Shared, Mode::Exclusive) => {
                let why = "the owner holds this lock in shared mode: release it before you ask for exclusive mode";
                Err(Refused::Invalid(why.to_owned()).into())
            }
            _ => {
                state.entries += 1;
                Ok(true)
            }
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lose(&self, why: Lost) {
        self.with(|state| state.validity.handle_lost(why));
        self.changed.notify_waiters();
    }

    /// Counts one entry less. `Ok` with the number of entries left, or `Err` with the last state of the lock if this was the last
    /// entry.
    fn leave(&self) -> Result<u32, GrantState> {
        let left = self.with(|state| match state.entries.checked_sub(1) {
            Some(left) if left > 0 => {
                state.entries = left;
                Ok(left)
            }
            _ => {
                state.entries = 0;
                let until_now = state.validity.state(clock::now());
                state.validity.handle_lost(Lost::Released);
                Err(until_now)
            }
        });
        if left.is_err() {
            self.changed.notify_waiters();
        }
        left
    }
}

#[async_trait]
impl Grip for Kept {
    fn token(&self) -> Option<Token> {
        self.lease.token()
    }

    fn state(&self) -> GrantState {
        self.with(|state| state.validity.state(clock::now()))
    }

    fn remaining(&self) -> Duration {
        self.with(|state| state.validity.remaining(clock::now()))
    }

    async fn state_other_than(&self, known: GrantState) -> GrantState {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let state = self.state();
            if state != known {
                return state;
            }
            // The passing of time also changes the state.
            let _ = timeout(SLEEP_MAX.min(self.remaining() / 3 + Duration::from_millis(1)), changed).await;
        }
    }

    async fn release(self: Arc<Self>) -> Result<Released, Error> {
        let until_now = match self.leave() {
            Ok(count_left) => return Ok(Released { count_left }),
            Err(until_now) => until_now,
        };
        // A separate task, so that the release continues if the caller drops this future.
        let kept = self.clone();
        let released = self.runtime.spawn(async move { timeout(RELEASE_TIMEOUT, kept.lease.release()).await });
        let released = released.await.map_err(|end| Unknown::BrokeOff(end.to_string()))?;
        match (until_now, released) {
            // The lock is lost. The system may also know that another holder has it.
            (GrantState::Lost(_), Ok(Err(Error::Refused(Refused::NotOwner)))) => Err(Refused::NotOwner.into()),
            (GrantState::Lost(why), _) => Err(why.into()),
            (_, Ok(released)) => released.map(|()| Released { count_left: 0 }),
            (_, Err(_)) => Err(Unknown::NoAnswer.into()),
        }
    }

    fn let_go(self: Arc<Self>) {
        if self.leave().is_err() {
            let kept = self.clone();
            self.runtime.spawn(async move {
                if let Ok(Err(error)) = timeout(RELEASE_TIMEOUT, kept.lease.release()).await {
                    tracing::debug!(%error, "the release of a dropped lock failed; the lock will expire");
                }
            });
        }
    }
}

/// Runs until the lock is lost or released.
async fn keep(kept: Arc<Kept>) {
    let mut backoff = Backoff::for_unreachable();
    let mut ended = pin!(kept.lease.ended());
    let lost = loop {
        let mut changed = pin!(kept.changed.notified());
        changed.as_mut().enable();
        let now = clock::now();
        let (step, remaining) = kept.with(|state| (state.validity.poll(now), state.validity.remaining(now)));
        match step {
            // The caller of `release` or `let_go` sends the release.
            Step::Lost(Lost::Released) => return,
            Step::Lost(why) => break why,
            Step::WaitUntil(until) => tokio::select! {
                why = &mut ended => kept.lose(why),
                () = changed => {}
                () = tokio::time::sleep(until.since(now).min(SLEEP_MAX)) => {}
            },
            Step::Renew => tokio::select! {
                why = &mut ended => kept.lose(why),
                () = changed => {}
                renewed = timeout(remaining, kept.lease.renew()) => match renewed {
                    Ok(Ok(proof)) => {
                        backoff.reset();
                        kept.with(|state| state.validity.handle_proof(proof));
                    }
                    Ok(Err(Error::Refused(refused))) => kept.lose(lost_by(&refused)),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "the renewal of a lock failed; retrying");
                        let pause = backoff.pause(random());
                        kept.with(|state| state.validity.handle_failed(clock::now(), pause));
                    }
                    // The deadline has passed, and the next poll says so.
                    Err(_) => {}
                },
            },
        }
    };
    kept.changed.notify_waiters();
    tracing::debug!(%lost, "a lock is lost");
    // Rule: lost-is-final. The system may still hold it for us, so release it there.
    let _ = timeout(RELEASE_TIMEOUT, kept.lease.release()).await;
}

/// Why a lock is lost after its renewal was refused.
fn lost_by(refused: &Refused) -> Lost {
    match refused {
        Refused::Lost(why) => why.clone(),
        _ => Lost::Gone,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::backend::Proof;

    /// A lock that counts its releases.
    #[derive(Debug, Default)]
    struct Counted(Arc<AtomicU32>);

    #[async_trait]
    impl Lease for Counted {
        fn token(&self) -> Option<Token> {
            None
        }

        fn proof(&self) -> Proof {
            Proof { sent_at: clock::now(), ttl: Duration::from_secs(60) }
        }

        async fn renew(&self) -> Result<Proof, Error> {
            Ok(self.proof())
        }

        async fn release(&self) -> Result<(), Error> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err(Refused::NotHeld.into()),
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_is_released_once_whatever_its_keeper_task_is_doing() {
        for _ in 0..5_000 {
            let lease = Counted::default();
            let count = lease.0.clone();
            let kept = Kept::new(Box::new(lease), Mode::Exclusive);
            kept.release().await.expect("it was held, and the keeper task does not release it");
            assert_eq!(count.load(Ordering::SeqCst), 1);
        }
    }
}
