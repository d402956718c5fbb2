//! The state that the driver and all handles of a client share: the machine of the connection, and the callers that wait for answers.
//!
//! One lock protects it. The lock is never held across an await. A request is put into the machine, a slot for its answer is stored,
//! and the driver is woken. No task and no channel is created for a request.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{Action, GrantId, JobReport, Outcome, SessionId};
use tokio::sync::Notify;
use tonic::transport::Channel;

use crate::clock::{self, Nanos};
use crate::driver::Caller;
use crate::error::Failed;
use crate::events::{Hook, News};
use crate::stream::LastWords;
use crate::tls::Tls;
use fencepost_session::Tier;
use fencepost_session::client::{
    Answer, Connection, DialFailure, Event, Failure, GrantKey, GrantState, LetGo, RequestKey,
};

/// How long the driver may take to close the sessions after the last handle is dropped.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Wakes the driver.
    pub(crate) wake: Notify,
    /// Wakes the tasks that wait for the first connection, also when it has failed.
    pub(crate) connected: Notify,
    pub(crate) endpoints: Vec<String>,
    pub(crate) connect_timeout: Duration,
    /// How long a first connect goes on although every node refuses the connection.
    pub(crate) refused_patience: Duration,
    pub(crate) caller: Caller,
    /// `None` means plain text.
    pub(crate) tls: Option<Tls>,
    /// The tier of all sessions of this client.
    pub(crate) tier: Tier,
    /// How long a dropped guard waits until its release is written. `None` for callers that must not block.
    pub(crate) drop_waits: Option<Duration>,
    /// Where events for metrics go.
    pub(crate) hook: Hook,
}

/// A sender that is dropped when everything that the machine had to send is written. Then the receiver sees that no sender is left.
pub(crate) type AwaitsWrite = mpsc::Sender<std::convert::Infallible>;

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) machine: Connection,
    pub(crate) awaiting_write: Vec<AwaitsWrite>,
    /// The slots of the requests that are not answered yet. A slot is removed when its answer is put into it.
    slots: HashMap<RequestKey, Arc<Slot>>,
    /// Notified when a grant may have changed. An entry is created when the first task listens.
    listeners: BTreeMap<GrantKey, Arc<Notify>>,
    /// The address of the leader that the stream goes to, and a channel for calls beside the stream.
    pub(crate) leader: Option<(String, Channel)>,
    /// Why the last attempt to reach the cluster failed. `None` before the first failure.
    last_failure: Option<String>,
    /// What the last node said that answered but knew no leader. Reset when a node leads, or when no node answers any more.
    no_leader: Option<String>,
    /// What the last program said that is not a node, or not a node's port for clients. Reset when a node leads.
    wrong_door: Option<String>,
    /// Every address refuses the connection or is the wrong one, and the client was never connected.
    pub(crate) is_refusing: bool,
    /// The first connect has failed for that reason.
    pub(crate) is_refused: bool,
    /// The last handle is dropped: the driver closes the sessions and ends.
    pub(crate) closing: bool,
    /// When the driver ends even if not all sessions are closed. `None` until the driver begins to close them.
    farewell_until: Option<Nanos>,
    pub(crate) is_shut_down: bool,
    /// The stream of a driver that is gone, for the releases of guards that are dropped later.
    pub(crate) last_words: Option<LastWords>,
}

/// The place for the answer to one request. It has a lock of its own, so a caller that takes its answer does not wait for the
/// driver.
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

    /// Puts the answer into the slot. Returns the waker of the caller, if it waits already.
    fn fill(&self, answer: Answer) -> Option<Waker> {
        match std::mem::replace(&mut *self.lock(), Filling::Ready(answer)) {
            Filling::Waiting { waker, .. } => waker,
            Filling::Ready(_) | Filling::Taken => None,
        }
    }

    /// Notes that the request waits in a queue. Returns the waker of the caller.
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
        let state = Mutex::new(State::default());
        let (wake, connected, tier, drop_waits) = (Notify::new(), Notify::new(), Tier::Correctness, None);
        let (refused_patience, hook) = (Duration::ZERO, Hook::default());
        Shared {
            state,
            wake,
            connected,
            endpoints,
            connect_timeout,
            refused_patience,
            caller,
            tls,
            tier,
            drop_waits,
            hook,
        }
    }

    /// The same settings for the efficiency tier of the same cluster, with a state of its own.
    pub(crate) fn to_efficiency(&self) -> Shared {
        let Shared { endpoints, connect_timeout, refused_patience, caller, tls, drop_waits, hook, .. } = self;
        let to = Shared::new(endpoints.clone(), *connect_timeout, caller.clone(), tls.clone());
        let (tier, refused_patience, drop_waits) = (Tier::Efficiency, *refused_patience, *drop_waits);
        Shared { tier, refused_patience, drop_waits, hook: hook.clone(), ..to }
    }

    /// Locks the state. Ignores poisoning: a panic was reported where it happened, and other tasks must still be able to give
    /// locks back.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then passes the events of the machine to the tasks that wait for them, and to the program.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = act(&mut state);
        state.say_last_words();
        let (wakers, news) = state.dispatch();
        drop(state);
        // Outside the lock, because a woken task takes it, and the program's function may.
        wakers.into_iter().for_each(Waker::wake);
        self.tell(news);
        result
    }

    /// Makes a request in a session.
    pub(crate) fn ask(self: &Arc<Self>, session: SessionId, action: Action, limit: Option<Duration>) -> PendingRequest {
        let limit_at = limit.map(|limit| clock::now().after(limit));
        self.submit(|state| {
            if state.is_shut_down {
                return Err(Answer::Failed(Failure::ShutDown));
            }
            if !state.machine.is_alive(session) {
                return Err(Answer::SessionEnded { how: None, queued: false });
            }
            Ok(state.machine.request(session, action, limit_at))
        })
    }

    /// Gives a grant back, and lets the caller wait for the answer.
    pub(crate) fn release(self: &Arc<Self>, grant: GrantKey, limit: Duration) -> Result<PendingRequest, crate::Lost> {
        self.give_back(grant, |machine, now| machine.let_go(grant, Some(now.after(limit)), true, now))
    }

    /// Gives a grant back with a report about its job. The caller can wait for the answer, for which there is no limit.
    pub(crate) fn report(self: &Arc<Self>, grant: GrantKey, report: JobReport) -> Result<PendingRequest, crate::Lost> {
        self.give_back(grant, |machine, now| machine.report(grant, report, now))
    }

    fn give_back(
        self: &Arc<Self>,
        grant: GrantKey,
        let_go: impl FnOnce(&mut Connection, Nanos) -> LetGo,
    ) -> Result<PendingRequest, crate::Lost> {
        let now = clock::now();
        let (mut lost, mut since) = (None, None);
        let pending = self.submit(|state| {
            state.listeners_hear(grant);
            since = self.hook.is_set().then(|| state.machine.held_by_last_guard_since(grant)).flatten();
            match let_go(&mut state.machine, now) {
                LetGo::Asked(key) => Ok(key),
                LetGo::Lost(why) => {
                    lost = Some(why);
                    Err(Answer::Unknown)
                }
            }
        });
        if let Some(why) = lost {
            return Err(why);
        }
        self.tell_released(since, now);
        Ok(pending)
    }

    pub(crate) fn close_session(self: &Arc<Self>, session: SessionId, limit: Duration) -> PendingRequest {
        let limit_at = Some(clock::now().after(limit));
        self.submit(|state| match state.machine.is_alive(session) {
            true => Ok(state.machine.close_session(session, limit_at)),
            false => Err(Answer::Decided(Outcome::Closed)),
        })
    }

    /// Puts a request into the machine and stores a slot for its answer. Without a request, the answer is there at once.
    fn submit(self: &Arc<Self>, ask: impl FnOnce(&mut State) -> Result<RequestKey, Answer>) -> PendingRequest {
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
        PendingRequest { shared: self.clone(), key, slot }
    }

    /// Gives a grant back in the background. If callers may block, returns when the release is written.
    pub(crate) fn let_go(&self, grant: GrantKey) {
        let (now, mut since) = (clock::now(), None);
        let written = self.with(|state| {
            state.listeners_hear(grant);
            let last = self.hook.is_set().then(|| state.machine.held_by_last_guard_since(grant)).flatten();
            if let LetGo::Asked(_) = state.machine.let_go(grant, None, false, now) {
                since = last;
            }
            // Without a stream the release cannot be written soon.
            let limit = self.drop_waits.filter(|_| state.leader.is_some())?;
            let (awaits, written) = mpsc::channel();
            state.awaiting_write.push(awaits);
            Some((written, limit))
        });
        self.wake.notify_one();
        self.tell_released(since, now);
        if let Some((written, limit)) = written {
            // Nothing is ever sent on this channel: it ends when the release is written, or at the limit.
            let _ = written.recv_timeout(limit);
        }
    }

    pub(crate) fn grant_state(&self, grant: GrantKey) -> GrantState {
        let state = self.with(|state| {
            let grant_state = state.machine.grant_state(grant, clock::now());
            if let GrantState::Lost(_) = grant_state {
                // Final: there is nothing more to hear. A caller that came after the release would leave its listener here.
                state.listeners_hear(grant);
            }
            grant_state
        });
        if let GrantState::Lost(_) = state {
            self.wake.notify_one();
        }
        state
    }

    /// Is notified when the state of a grant may have changed.
    pub(crate) fn listener(&self, grant: GrantKey) -> Arc<Notify> {
        self.lock().listeners.entry(grant).or_default().clone()
    }

    /// Why the cluster cannot be asked.
    pub(crate) fn failed(&self) -> Failed {
        let state = self.lock();
        match (&state.no_leader, &state.wrong_door) {
            (Some(said), _) => Failed::NoLeader { said: said.clone() },
            (None, Some(said)) => Failed::WrongDoor { said: said.clone() },
            (None, None) if state.is_refusing => Failed::NothingListens { addresses: self.endpoints.clone() },
            (None, None) => {
                Failed::Unreachable { last: state.last_failure.clone().unwrap_or_else(|| "not tried yet".to_owned()) }
            }
        }
    }

    /// Whether an attempt to reach the cluster has failed.
    pub(crate) fn has_tried(&self) -> bool {
        self.lock().last_failure.is_some()
    }
}

impl State {
    /// Notes why there is no connection. A node that knows no leader is the better reason: it is kept when another node does not
    /// answer.
    pub(crate) fn note_failure(&mut self, failure: &DialFailure, said: String, is_any_there: bool) {
        match failure {
            DialFailure::NotLeader { leader: None } => self.no_leader = Some(said.clone()),
            DialFailure::NotLeader { leader: Some(_) } => self.no_leader = None,
            DialFailure::WrongDoor => self.wrong_door = Some(said.clone()),
            DialFailure::Refused | DialFailure::Unreachable | DialFailure::Stalled => {
                self.no_leader.take_if(|_| !is_any_there);
            }
        }
        self.last_failure = Some(said);
    }

    /// Notes that the stream goes to this leader.
    pub(crate) fn note_leader(&mut self, address: String, channel: Channel) {
        (self.leader, self.no_leader, self.wrong_door) = (Some((address, channel)), None, None);
    }

    /// Passes on the events of the machine. Returns the wakers to call, and what to tell the program.
    fn dispatch(&mut self) -> (Vec<Waker>, News) {
        let (mut wakers, mut news) = (Vec::new(), News::default());
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
                // A client that shuts down gives everything up because its program ends.
                Event::Lost(..) | Event::SessionEnded(..) if self.is_shut_down => {}
                Event::Lost(..) | Event::SessionEnded(..) | Event::Jeopardy(_) | Event::KeptAlive(_) => {
                    news.events.push(event);
                }
            }
        }
        if !news.events.is_empty() {
            news.node = self.leader.as_ref().map(|(address, _)| address.clone());
        }
        (wakers, news)
    }

    /// Whether the driver may end: the last handle is dropped, and the sessions are closed or the time for that is over. Begins to
    /// close them at the first call after the drop.
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

    /// If the driver is gone, writes the closes of sessions whose last guard has been dropped since.
    fn say_last_words(&mut self) {
        let State { last_words, machine, .. } = self;
        if let Some(words) = last_words {
            words.say(std::iter::from_fn(|| machine.poll_farewell()));
            if !machine.awaits_farewell() {
                *last_words = None;
            }
        }
    }

    /// The driver is gone, and there will be no other one.
    pub(crate) fn shut_down(&mut self) {
        self.is_shut_down = true;
        self.leader = None;
        self.awaiting_write.clear();
        self.machine.handle_shut_down();
    }

    /// A guard is dropped or released: wakes its listeners, and forgets them.
    fn listeners_hear(&mut self, grant: GrantKey) {
        if let Some(listener) = self.listeners.remove(&grant) {
            listener.notify_waiters();
        }
    }
}

/// A request that was made, as a future of its answer.
///
/// # Cancellation
/// Dropping it cancels the request, and gives back a grant that it may have got.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    shared: Arc<Shared>,
    /// `None` if no request was made, or the answer was taken.
    key: Option<RequestKey>,
    slot: Arc<Slot>,
}

impl PendingRequest {
    /// Waits for the answer; returns `None` as soon as the request waits in a queue.
    pub(crate) async fn answer_or_queued(mut self: Pin<&mut Self>) -> Option<Answer> {
        std::future::poll_fn(|context| match self.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if matches!(*self.slot.lock(), Filling::Waiting { is_queued: true, .. }) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

impl Future for PendingRequest {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let taken = self.slot.poll_take(context);
        if taken.is_ready() {
            self.key = None;
        }
        taken
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        self.shared.with(|state| match std::mem::replace(&mut *self.slot.lock(), Filling::Taken) {
            Filling::Ready(Answer::Decided(Outcome::Granted { grant, .. })) => {
                // It was granted, but its caller did not take the answer.
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
