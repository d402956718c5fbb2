//! What the driver and everyone who holds a client share: the connection's machine, and who waits for its answers.
//!
//! There is one lock around it and nobody keeps it across an await: to ask for something is to put it into the machine, leave a
//! place for the answer, and wake the driver. No task and no channel is made for a request.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{Action, GrantId, Outcome, SessionId};
use tokio::sync::Notify;
use tonic::transport::Channel;

use crate::clock::{self, Nanos};
use crate::driver::Caller;
use crate::error::Failed;
use crate::stream::LastWords;
use crate::tls::Tls;
use fencepost_session::Tier;
use fencepost_session::client::{
    Answer, Connection, DialFailure, Event, Failure, GrantKey, GrantState, LetGo, RequestKey,
};

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
    /// How long a dropped guard waits until its release is written: only for callers that may block.
    pub(crate) drop_waits: Option<Duration>,
}

/// Dropped when what the machine had to say is written. The receiver then hears that no sender is left.
pub(crate) type AwaitsWrite = mpsc::Sender<std::convert::Infallible>;

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) machine: Connection,
    pub(crate) awaiting_write: Vec<AwaitsWrite>,
    /// Where the answers go. A slot is here until its answer is in it.
    slots: HashMap<RequestKey, Arc<Slot>>,
    /// Those who want to hear of changes of a grant. Made when the first asks.
    listeners: BTreeMap<GrantKey, Arc<Notify>>,
    /// The leader that the stream goes to, for calls beside the stream.
    pub(crate) leader: Option<(String, Channel)>,
    /// What the last try to reach the cluster said.
    last_failure: String,
    /// What the last node said that answered and knew of no leader, until a node leads or no node answers any more.
    no_leader: Option<String>,
    /// The last handle is gone: say good-bye and end.
    pub(crate) closing: bool,
    /// Until when the good-bye may take.
    farewell_until: Option<Nanos>,
    pub(crate) is_shut_down: bool,
    /// The stream of the driver, when the driver is gone.
    pub(crate) last_words: Option<LastWords>,
}

/// Where one answer goes, with a lock of its own: a caller that takes its answer does not wait for the driver.
///
/// Lock order: the lock of [`Shared`] first, then this one.
#[derive(Debug, Default)]
struct Slot(Mutex<Filling>);

#[derive(Debug)]
enum Filling {
    Waiting { waker: Option<Waker>, is_queued: bool },
    Ready(Answer),
    Taken,
}

impl Default for Filling {
    fn default() -> Filling {
        Filling::Waiting { waker: None, is_queued: false }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Filling> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the answer in. Returns the caller to wake, if it waits already.
    fn fill(&self, answer: Answer) -> Option<Waker> {
        match std::mem::replace(&mut *self.lock(), Filling::Ready(answer)) {
            Filling::Waiting { waker, .. } => waker,
            Filling::Ready(_) | Filling::Taken => None,
        }
    }

    /// Notes that the request waits in a queue. Returns the caller to wake.
    fn queued(&self) -> Option<Waker> {
        match &mut *self.lock() {
            Filling::Waiting { waker, is_queued } => {
                *is_queued = true;
                waker.take()
            }
            Filling::Ready(_) | Filling::Taken => None,
        }
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Answer> {
        let mut filling = self.lock();
        if let Filling::Waiting { waker, .. } = &mut *filling {
            if waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *filling, Filling::Taken) {
            Filling::Ready(answer) => Poll::Ready(answer),
            Filling::Waiting { .. } | Filling::Taken => panic!("polled after it was ready"),
        }
    }
}

impl Shared {
    pub(crate) fn new(endpoints: Vec<String>, connect_timeout: Duration, caller: Caller, tls: Option<Tls>) -> Shared {
        let last_failure = "not tried yet".to_owned();
        let state = Mutex::new(State { last_failure, ..State::default() });
        let (wake, connected, tier, drop_waits) = (Notify::new(), Notify::new(), Tier::Correctness, None);
        Shared { state, wake, connected, endpoints, connect_timeout, caller, tls, tier, drop_waits }
    }

    /// The same way to the same cluster, to its efficiency tier. Nothing else is shared.
    pub(crate) fn to_efficiency(&self) -> Shared {
        let Shared { endpoints, connect_timeout, caller, tls, drop_waits, .. } = self;
        let to = Shared::new(endpoints.clone(), *connect_timeout, caller.clone(), tls.clone());
        Shared { tier: Tier::Efficiency, drop_waits: *drop_waits, ..to }
    }

    /// The state. A machine that has panicked has said so where it did; the others must still be able to let go.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state and tells everyone what came of it.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = act(&mut state);
        state.say_last_words();
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
            if state.is_shut_down {
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
        let slot = Arc::new(Slot::default());
        let key = self.with(|state| match ask(state) {
            Ok(key) => {
                state.slots.insert(key, slot.clone());
                Some(key)
            }
            Err(answer) => {
                slot.fill(answer);
                None
            }
        });
        self.wake.notify_one();
        Asked { shared: self.clone(), key, slot }
    }

    /// Gives a grant back in the background. A caller that may block gets on when the release is written.
    pub(crate) fn let_go(&self, grant: GrantKey) {
        let written = self.with(|state| {
            state.listeners_hear(grant);
            state.machine.let_go(grant, None, false, clock::now());
            // Without a stream the release cannot be written soon.
            let limit = self.drop_waits.filter(|_| state.leader.is_some())?;
            let (awaits, written) = mpsc::channel();
            state.awaiting_write.push(awaits);
            Some((written, limit))
        });
        self.wake.notify_one();
        if let Some((written, limit)) = written {
            // Nothing is ever sent here: either it is written, or the time is over.
            let _ = written.recv_timeout(limit);
        }
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

    /// Why nothing could be asked.
    pub(crate) fn failed(&self) -> Failed {
        let state = self.lock();
        match &state.no_leader {
            Some(said) => Failed::NoLeader { said: said.clone() },
            None => Failed::Unreachable { last: state.last_failure.clone() },
        }
    }
}

impl State {
    /// Notes why there is no connection. That no node leads says more than that another one does not answer.
    pub(crate) fn note_failure(&mut self, failure: &DialFailure, said: String, is_any_there: bool) {
        match failure {
            DialFailure::NotLeader { leader: None } => self.no_leader = Some(said.clone()),
            DialFailure::NotLeader { leader: Some(_) } => self.no_leader = None,
            DialFailure::Unreachable | DialFailure::Stalled => {
                self.no_leader.take_if(|_| !is_any_there);
            }
        }
        self.last_failure = said;
    }

    /// There is a leader.
    pub(crate) fn note_leader(&mut self, address: String, channel: Channel) {
        (self.leader, self.no_leader) = (Some((address, channel)), None);
    }

    /// Hands out what the machine has to tell. Returns whom to wake.
    fn dispatch(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Answered(key, answer) => {
                    let slot = self.slots.remove(&key);
                    wakers.extend(slot.and_then(|slot| slot.fill(answer)));
                }
                Event::Queued(key) => {
                    let slot = self.slots.get(&key);
                    wakers.extend(slot.and_then(|slot| slot.queued()));
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

    /// The driver is gone, and guards are still being dropped.
    fn say_last_words(&mut self) {
        let State { last_words, machine, .. } = self;
        if let Some(words) = last_words {
            words.say(std::iter::from_fn(|| machine.poll_farewell()));
            if !machine.awaits_farewell() {
                *last_words = None;
            }
        }
    }

    /// The driver is gone, and no other will come.
    pub(crate) fn shut_down(&mut self) {
        self.is_shut_down = true;
        self.leader = None;
        self.awaiting_write.clear();
        self.machine.handle_shut_down();
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
    /// None if nothing was asked, or the answer was taken.
    key: Option<RequestKey>,
    slot: Arc<Slot>,
}

impl Asked {
    /// The answer; `None` as soon as the request waits in a queue.
    pub(crate) async fn answer_or_queued(mut self: Pin<&mut Self>) -> Option<Answer> {
        std::future::poll_fn(|context| match self.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if matches!(*self.slot.lock(), Filling::Waiting { is_queued: true, .. }) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

impl Future for Asked {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let taken = self.slot.poll_take(context);
        if taken.is_ready() {
            self.key = None;
        }
        taken
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        self.shared.with(|state| match std::mem::replace(&mut *self.slot.lock(), Filling::Taken) {
            Filling::Ready(Answer::Decided(Outcome::Granted { grant, .. })) => {
                // It was granted, and its caller has not taken it.
                let grant = GrantKey::new(key.session, grant);
                state.machine.let_go(grant, None, false, clock::now());
            }
            Filling::Waiting { .. } => {
                state.slots.remove(&key);
                state.machine.abandon(key);
            }
            _ => {}
        });
        self.shared.wake.notify_one();
    }
}
