//! What the driver and everyone who holds a client share: the connection's machine, and who waits for its answers.
//!
//! There is one lock around it and nobody keeps it across an await: to ask for something is to put it into the machine, leave a
//! place for the answer, and wake the driver. No task and no channel is made for a request.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{Action, GrantId, Outcome, SessionId};
use tokio::sync::Notify;
use tonic::transport::Channel;

use crate::clock::{self, Nanos};
use crate::driver::Caller;
use crate::machine::{Answer, Connection, Event, Failure, GrantKey, GrantState, LetGo, RequestKey};
use crate::tls::Tls;

/// How long the last good-bye may take.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Wakes the driver.
    pub(crate) wake: Notify,
    /// Wakes those who wait for the first connection.
    pub(crate) connected: Notify,
    pub(crate) endpoints: Vec<String>,
    pub(crate) connect_timeout: Duration,
    pub(crate) caller: Caller,
    /// None speaks plain text.
    pub(crate) tls: Option<Tls>,
    /// Which lock state the sessions are about.
    pub(crate) tier: Tier,
}

/// Which lock state of a cluster: the replicated one, or the one in the leader's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Correctness,
    Efficiency,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) machine: Connection,
    slots: HashMap<RequestKey, Slot>,
    /// Those who want to hear of changes of a grant. Made when the first asks.
    listeners: BTreeMap<GrantKey, Arc<Notify>>,
    /// The leader that the stream goes to, for calls beside the stream.
    pub(crate) leader: Option<(String, Channel)>,
    /// What the last try to reach the cluster said.
    pub(crate) last_failure: String,
    /// The last handle is gone: say good-bye and end.
    pub(crate) closing: bool,
    /// Until when the good-bye may take.
    farewell_until: Option<Nanos>,
    pub(crate) shut_down: bool,
}

#[derive(Debug)]
enum Slot {
    Waiting(Option<Waker>),
    Ready(Answer),
}

impl Shared {
    pub(crate) fn new(endpoints: Vec<String>, connect_timeout: Duration, caller: Caller, tls: Option<Tls>) -> Shared {
        let last_failure = "not tried yet".to_owned();
        let state = Mutex::new(State { last_failure, ..State::default() });
        let (wake, connected, tier) = (Notify::new(), Notify::new(), Tier::Correctness);
        Shared { state, wake, connected, endpoints, connect_timeout, caller, tls, tier }
    }

    /// The same way to the same cluster, to its efficiency tier. Nothing else is shared.
    pub(crate) fn to_efficiency(&self) -> Shared {
        let Shared { endpoints, connect_timeout, caller, tls, .. } = self;
        let to = Shared::new(endpoints.clone(), *connect_timeout, caller.clone(), tls.clone());
        Shared { tier: Tier::Efficiency, ..to }
    }

    /// The state. A machine that has panicked has said so where it did; the others must still be able to let go.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state and tells everyone what came of it.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = act(&mut state);
        let wakers = state.dispatch();
        drop(state);
        // Outside the lock: whoever wakes up takes it.
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Asks for something in a session.
    pub(crate) fn ask(self: &Arc<Self>, session: SessionId, action: Action, limit: Option<Duration>) -> Asked {
        let limit_at = limit.map(|limit| clock::now().after(limit));
        self.asked(|state| {
            if state.shut_down {
                return Err(Answer::Failed(Failure::ShutDown));
            }
            if !state.machine.is_alive(session) {
                return Err(Answer::SessionEnded { how: None, queued: false });
            }
            Ok(state.machine.request(session, action, limit_at))
        })
    }

    /// Gives a grant back, with an answer.
    pub(crate) fn release(self: &Arc<Self>, grant: GrantKey, limit: Duration) -> Result<Asked, crate::Lost> {
        let now = clock::now();
        let mut lost = None;
        let asked = self.asked(|state| {
            state.listeners_hear(grant);
            match state.machine.let_go(grant, Some(now.after(limit)), true, now) {
                LetGo::Asked(key) => Ok(key),
                LetGo::Lost(why) => {
                    lost = Some(why);
                    Err(Answer::Unknown)
                }
            }
        });
        lost.map_or(Ok(asked), Err)
    }

    pub(crate) fn close_session(self: &Arc<Self>, session: SessionId, limit: Duration) -> Asked {
        let limit_at = Some(clock::now().after(limit));
        self.asked(|state| match state.machine.is_alive(session) {
            true => Ok(state.machine.close_session(session, limit_at)),
            false => Err(Answer::Decided(Outcome::Closed)),
        })
    }

    fn asked(self: &Arc<Self>, ask: impl FnOnce(&mut State) -> Result<RequestKey, Answer>) -> Asked {
        let asked = self.with(|state| {
            let key = ask(state);
            if let Ok(key) = key {
                state.slots.insert(key, Slot::Waiting(None));
            }
            key
        });
        self.wake.notify_one();
        match asked {
            Ok(key) => Asked { shared: self.clone(), key: Some(key), answer: None },
            Err(answer) => Asked { shared: self.clone(), key: None, answer: Some(answer) },
        }
    }

    /// Gives a grant back in the background.
    pub(crate) fn let_go(&self, grant: GrantKey) {
        self.with(|state| {
            state.listeners_hear(grant);
            state.machine.let_go(grant, None, false, clock::now())
        });
        self.wake.notify_one();
    }

    pub(crate) fn grant_state(&self, grant: GrantKey) -> GrantState {
        let state = self.with(|state| state.machine.grant_state(grant, clock::now()));
        if let GrantState::Lost(_) = state {
            self.wake.notify_one();
        }
        state
    }

    /// What wakes up when the state of a grant may have changed.
    pub(crate) fn listener(&self, grant: GrantKey) -> Arc<Notify> {
        self.lock().listeners.entry(grant).or_default().clone()
    }

    pub(crate) fn last_failure(&self) -> String {
        self.lock().last_failure.clone()
    }
}

impl State {
    /// Hands out what the machine has to tell. Returns whom to wake.
    fn dispatch(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Answered(key, answer) => {
                    if let Some(slot) = self.slots.get_mut(&key)
                        && let Slot::Waiting(Some(waker)) = std::mem::replace(slot, Slot::Ready(answer))
                    {
                        wakers.push(waker);
                    }
                }
                Event::GrantChanged(grant) => {
                    if let Some(listener) = self.listeners.get(&grant) {
                        listener.notify_waiters();
                    }
                }
                Event::SessionChanged(session) => {
                    let all = GrantKey::new(session, GrantId(0))..=GrantKey::new(session, GrantId(u64::MAX));
                    self.listeners.range(all).for_each(|(_, listener)| listener.notify_waiters());
                }
            }
        }
        wakers
    }

    /// Whether the driver's work is done: the last handle is gone, and the sessions are closed or the time for it is over.
    pub(crate) fn is_over(&mut self, now: Nanos) -> bool {
        if !self.closing {
            return false;
        }
        let until = *self.farewell_until.get_or_insert_with(|| {
            for session in self.machine.living() {
                self.machine.close_session(session, None);
            }
            now.after(FAREWELL)
        });
        now >= until || self.machine.living().is_empty()
    }

    /// A guard is gone: whoever listens looks again, and nobody is kept for it.
    fn listeners_hear(&mut self, grant: GrantKey) {
        if let Some(listener) = self.listeners.remove(&grant) {
            listener.notify_waiters();
        }
    }
}

/// The answer to something that was asked, when it comes.
///
/// # Cancellation
/// Dropping it cancels the request, and gives back what it may have got.
#[derive(Debug)]
pub(crate) struct Asked {
    shared: Arc<Shared>,
    /// None once the answer was taken.
    key: Option<RequestKey>,
    /// Set if it was known at once.
    answer: Option<Answer>,
}

impl Future for Asked {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Some(key) = self.key else {
            return Poll::Ready(self.answer.take().expect("polled after it was ready"));
        };
        let mut state = self.shared.lock();
        let waiting = match state.slots.get_mut(&key) {
            Some(Slot::Waiting(waker)) => {
                if waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                true
            }
            _ => false,
        };
        if waiting {
            return Poll::Pending;
        }
        let slot = state.slots.remove(&key);
        drop(state);
        self.key = None;
        match slot {
            Some(Slot::Ready(answer)) => Poll::Ready(answer),
            _ => Poll::Ready(Answer::Unknown),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        self.shared.with(|state| match state.slots.remove(&key) {
            Some(Slot::Ready(Answer::Decided(Outcome::Granted { grant, .. }))) => {
                // It was granted, and nobody has taken it.
                let grant = GrantKey::new(key.session, grant);
                state.machine.let_go(grant, None, false, clock::now());
            }
            Some(Slot::Waiting(_)) => state.machine.abandon(key),
            _ => {}
        });
        self.shared.wake.notify_one();
    }
}
