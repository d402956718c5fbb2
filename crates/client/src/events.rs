//! What a client tells its program about itself: warnings through `tracing`, and events for metrics.
//!
//! The machine of the session protocol decides what happened. This file writes one warning for each occurrence, says what to do, and
//! calls the program's function. It changes nothing. Both happen outside the client's lock.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{GrantEnd, Held, Name, SessionEnd, SessionId};
use fencepost_session::Tier;
use fencepost_session::client::{Event, HeldGrant, Jeopardy, Lost};

use crate::client::ClientBuilder;
use crate::clock::{self, Nanos};
use crate::error::{Error, Refused};
use crate::shared::Shared;

/// How many names and tokens a warning shows. A session can hold 100,000 locks.
const SHOWN_MAX: usize = 8;

/// Something that happened to a client, for metrics. See [`ClientBuilder::on_event`].
///
/// Do not use the names of locks as labels of metrics: there may be millions of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClientEvent {
    /// A request for locks, permits or a leadership is over: it was answered, it failed, or its future was dropped.
    Acquired {
        /// The tier of the lock.
        tier: Tier,
        /// How it ended.
        outcome: AcquireOutcome,
        /// The time from the call to its end.
        took: Duration,
        /// The part of it that the request waited in a queue of the cluster.
        waited: Duration,
    },
    /// The last guard of a lock gave it back, or its session was closed.
    Released {
        /// The tier of the lock.
        tier: Tier,
        /// How long it was held.
        held: Duration,
    },
    /// A held lock is lost.
    Lost {
        /// The tier of the lock.
        tier: Tier,
        /// Its names: several for a multi-lock.
        names: Vec<Name>,
        /// Why.
        why: Lost,
        /// How long it was held.
        held: Duration,
    },
    /// A session ended, and the program did not close it. [`ClientEvent::Lost`] follows for each lock that it held.
    SessionEnded {
        /// The tier of the session.
        tier: Tier,
        /// How it ended. `None` if the cluster no longer knows.
        how: Option<SessionEnd>,
    },
    /// Held locks are in jeopardy: they are lost soon, unless a renewal is confirmed.
    Jeopardy {
        /// The tier of the locks.
        tier: Tier,
        /// How many locks.
        locks: usize,
        /// How long they are certainly held.
        remaining: Duration,
    },
    /// The stream to the leader is up.
    Connected {
        /// The tier that the stream is for. Each tier has its own stream.
        tier: Tier,
        /// The address of the node.
        node: String,
        /// For how long there was no stream. `None` for the first stream of the client.
        after: Option<Duration>,
    },
    /// The stream to the leader is lost. The client looks for the leader.
    Disconnected {
        /// The tier that the stream was for.
        tier: Tier,
        /// The address of the node.
        node: String,
    },
    /// A keep-alive was answered.
    KeptAlive {
        /// The tier of the session.
        tier: Tier,
        /// The time from sending it to the answer.
        took: Duration,
    },
}

/// How a request for a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquireOutcome {
    /// The lock is held.
    Granted,
    /// The lock is not free, and the request does not wait.
    Busy,
    /// It was not granted within the wait.
    TimedOut,
    /// Waiting would be a deadlock.
    Deadlock,
    /// The job that it is for is completed.
    Completed,
    /// The service refused it for another reason.
    Refused,
    /// Nothing was done: the cluster could not be reached, or did not take it.
    Failed,
    /// It was sent, and no answer came in time.
    Unknown,
    /// The program dropped the future.
    Cancelled,
}

impl AcquireOutcome {
    /// One word for it, as the value of a label.
    pub fn as_str(self) -> &'static str {
        match self {
            AcquireOutcome::Granted => "granted",
            AcquireOutcome::Busy => "busy",
            AcquireOutcome::TimedOut => "timed_out",
            AcquireOutcome::Deadlock => "deadlock",
            AcquireOutcome::Completed => "completed",
            AcquireOutcome::Refused => "refused",
            AcquireOutcome::Failed => "failed",
            AcquireOutcome::Unknown => "unknown",
            AcquireOutcome::Cancelled => "cancelled",
        }
    }

    fn of(error: &Error) -> AcquireOutcome {
        match error {
            Error::Refused(Refused::Busy(_)) => AcquireOutcome::Busy,
            Error::Refused(Refused::TimedOut { .. }) => AcquireOutcome::TimedOut,
            Error::Refused(Refused::Deadlock(_)) => AcquireOutcome::Deadlock,
            Error::Refused(Refused::Completed { .. }) => AcquireOutcome::Completed,
            Error::Refused(_) => AcquireOutcome::Refused,
            Error::Failed(_) => AcquireOutcome::Failed,
            Error::Unknown(_) => AcquireOutcome::Unknown,
        }
    }
}

impl ClientBuilder {
    /// Calls a function for each [`ClientEvent`], to feed the metrics of the program.
    ///
    /// It is called on the task of the connection or of the caller, so it must return at once: count, and do not wait. Events of
    /// different tasks may come in another order than they happened. A panic of the function is caught and logged, and the client goes on.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use fencepost::{Client, ClientEvent};
    ///
    /// /// Use the counters and histograms of your metrics library instead.
    /// #[derive(Default)]
    /// struct Metrics {
    ///     acquires: AtomicU64,
    ///     acquire_ns: AtomicU64,
    ///     lost: AtomicU64,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencepost::Error> {
    /// # let server = fencepost_testing::TestServer::start();
    /// # let address = server.address().to_string();
    /// let metrics = Arc::new(Metrics::default());
    /// let counted = metrics.clone();
    /// let client = Client::builder()
    ///     .endpoint(address)
    ///     .on_event(move |event| match event {
    ///         ClientEvent::Acquired { took, .. } => {
    ///             counted.acquires.fetch_add(1, Relaxed);
    ///             counted.acquire_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    ///         }
    ///         ClientEvent::Lost { .. } => {
    ///             counted.lost.fetch_add(1, Relaxed);
    ///         }
    ///         _ => {}
    ///     })
    ///     .connect()
    ///     .await?;
    /// client.lock("nightly").acquire().await?.release().await?;
    /// assert_eq!(metrics.acquires.load(Relaxed), 1);
    /// assert_eq!(metrics.lost.load(Relaxed), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(mut self, hear: impl Fn(&ClientEvent) + Send + Sync + 'static) -> ClientBuilder {
        self.hook = Hook(Some(Arc::new(hear)));
        self
    }
}

/// The program's function for events.
type Hear = dyn Fn(&ClientEvent) + Send + Sync;

/// The program's function for events, if it gave one.
#[derive(Clone, Default)]
pub(crate) struct Hook(Option<Arc<Hear>>);

impl Hook {
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn tell(&self, event: impl FnOnce() -> ClientEvent) {
        let Some(hear) = &self.0 else { return };
        let event = event();
        // The state of the function is its own matter. The client passes only a reference to a fresh event.
        if catch_unwind(AssertUnwindSafe(|| hear(&event))).is_err() {
            tracing::warn!(?event, "the function given to ClientBuilder::on_event panicked: the event is not counted");
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "set" } else { "not set" })
    }
}

/// One call of `acquire`. Tells the program when it is dropped: after the answer, or with the future.
pub(crate) struct Acquiring<'a> {
    shared: &'a Shared,
    began: Nanos,
    queued_at: Option<Nanos>,
    outcome: AcquireOutcome,
}

impl<'a> Acquiring<'a> {
    pub(crate) fn begin(shared: &'a Shared) -> Acquiring<'a> {
        Acquiring { shared, began: clock::now(), queued_at: None, outcome: AcquireOutcome::Cancelled }
    }

    /// The request waits in a queue from now on.
    pub(crate) fn queued(&mut self) {
        self.queued_at = Some(clock::now());
    }

    pub(crate) fn ended<T>(&mut self, result: &Result<T, Error>) {
        self.outcome = result.as_ref().map_or_else(AcquireOutcome::of, |_| AcquireOutcome::Granted);
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        let Acquiring { shared, began, queued_at, outcome } = *self;
        shared.hook.tell(|| {
            let now = clock::now();
            let waited = queued_at.map_or(Duration::ZERO, |at| now.since(at));
            ClientEvent::Acquired { tier: shared.tier, outcome, took: now.since(began), waited }
        });
    }
}

/// What the machine has said under the lock, to be told outside of it.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) events: Vec<Event>,
    /// The address of the node that the stream goes to.
    pub(crate) node: Option<String>,
}

impl Shared {
    /// Warns of what is lost or in danger, and passes it to the program.
    pub(crate) fn tell(&self, news: News) {
        let node = news.node.as_deref().unwrap_or("not connected");
        let mut events = news.events.into_iter().peekable();
        while let Some(event) = events.next() {
            match event {
                Event::SessionEnded(session, how) => {
                    let lost = std::iter::from_fn(|| match events.next_if(|next| is_lost_by(next, session, None))? {
                        Event::Lost(grant, why) => Some((grant, why)),
                        _ => None,
                    });
                    let lost: Vec<(Box<HeldGrant>, Lost)> = lost.collect();
                    self.warn_session_ended(session, &how, lost.iter().map(|(grant, _)| &**grant), node);
                    self.hook.tell(|| ClientEvent::SessionEnded { tier: self.tier, how });
                    lost.into_iter().for_each(|(grant, why)| self.tell_lost(*grant, why));
                }
                Event::Lost(grant, why) => {
                    let session = grant.key.session;
                    let mut grants = vec![*grant];
                    while let Some(Event::Lost(next, _)) = events.next_if(|next| is_lost_by(next, session, Some(&why)))
                    {
                        grants.push(*next);
                    }
                    if !is_deliberate(&why) {
                        self.warn_lost(session, &grants, &why, node);
                    }
                    grants.into_iter().for_each(|grant| self.tell_lost(grant, why.clone()));
                }
                Event::Jeopardy(jeopardy) => self.tell_jeopardy(&jeopardy, node),
                Event::KeptAlive(took) => self.hook.tell(|| ClientEvent::KeptAlive { tier: self.tier, took }),
                Event::Answered(..) | Event::Queued(_) | Event::GrantChanged(_) | Event::SessionChanged(_) => {}
            }
        }
    }

    fn warn_session_ended<'a>(
        &self,
        session: SessionId,
        how: &Option<SessionEnd>,
        lost: impl ExactSizeIterator<Item = &'a HeldGrant> + Clone,
        node: &str,
    ) {
        let (tier, reason) = (self.tier, crate::error::ended(how));
        let (locks, tokens) = (names(lost.clone()), tokens(self.tier, lost.clone()));
        let session = shown_session(session);
        if lost.len() == 0 {
            tracing::warn!(?tier, session, reason, node, "a session has ended: the next request needs a new one");
        } else {
            tracing::warn!(
                ?tier,
                locks,
                tokens,
                session,
                reason,
                node,
                "a session has ended, and its locks are lost: {STOP}"
            );
        }
    }

    fn warn_lost(&self, session: SessionId, grants: &[HeldGrant], why: &Lost, node: &str) {
        let (tier, session) = (self.tier, shown_session(session));
        let (locks, tokens) = (names(grants.iter()), tokens(self.tier, grants.iter()));
        tracing::warn!(?tier, locks, tokens, session, reason = %why, node, "locks are lost: {STOP}");
    }

    fn tell_lost(&self, grant: HeldGrant, why: Lost) {
        self.hook.tell(|| {
            let (tier, held) = (self.tier, clock::now().since(grant.since));
            match is_deliberate(&why) {
                true => ClientEvent::Released { tier, held },
                false => ClientEvent::Lost { tier, names: grant.held.names().cloned().collect(), why, held },
            }
        });
    }

    /// The last guard of a grant that the client has had since `since` gave it back.
    pub(crate) fn tell_released(&self, since: Option<Nanos>, now: Nanos) {
        if let Some(since) = since {
            self.hook.tell(|| ClientEvent::Released { tier: self.tier, held: now.since(since) });
        }
    }

    fn tell_jeopardy(&self, jeopardy: &Jeopardy, node: &str) {
        let Jeopardy { session, grants, until, is_max_hold } = jeopardy;
        let (tier, session, remaining) = (self.tier, shown_session(*session), until.since(clock::now()));
        let (locks, tokens) = (names(grants.iter()), tokens(tier, grants.iter()));
        let remaining_ms = remaining.as_millis() as u64;
        if *is_max_hold {
            let reason = "the longest hold is nearly over";
            tracing::warn!(
                ?tier,
                locks,
                tokens,
                session,
                reason,
                remaining_ms,
                node,
                "locks are in jeopardy: finish the work, or extend the hold"
            );
        } else {
            let reason = "no renewal was confirmed for long";
            tracing::warn!(
                ?tier,
                locks,
                tokens,
                session,
                reason,
                remaining_ms,
                node,
                "locks are in jeopardy: finish or stop the work in time, and check whether this program was paused or the cluster cannot be reached"
            );
        }
        self.hook.tell(|| ClientEvent::Jeopardy { tier, locks: grants.len(), remaining });
    }

    /// The stream to a leader is up. `after` says for how long there was none, except for the first stream.
    pub(crate) fn tell_connected(&self, node: &str, after: Option<Duration>, has_sessions: bool) {
        let tier = self.tier;
        match after.filter(|_| has_sessions) {
            None => tracing::debug!(?tier, node, "connected to the leader"),
            Some(after) => {
                let after_ms = after.as_millis() as u64;
                tracing::warn!(?tier, node, after_ms, "connected to the leader again: the sessions go on");
            }
        }
        self.hook.tell(|| ClientEvent::Connected { tier, node: node.to_owned(), after });
    }

    /// The stream to a leader is lost. A client without a session has nothing to lose: after a close, say.
    pub(crate) fn tell_disconnected(&self, node: &str, reason: &str, has_sessions: bool) {
        let tier = self.tier;
        if has_sessions {
            tracing::warn!(
                ?tier,
                node,
                reason,
                "the connection to the leader is lost: the client looks for the leader; locks stay held until their deadline"
            );
        } else {
            tracing::debug!(?tier, node, reason, "the connection to the leader is lost: no session is open");
        }
        self.hook.tell(|| ClientEvent::Disconnected { tier, node: node.to_owned() });
    }

    /// No node answers: requests fail at once from now on.
    pub(crate) fn tell_unreachable(&self, reason: &str) {
        let tier = self.tier;
        tracing::warn!(
            ?tier,
            reason,
            "the cluster cannot be reached: requests fail at once until a node answers; check the addresses and the network"
        );
    }
}

const STOP: &str = "stop the work that they protect; only a store that checks fencing tokens refuses its late writes";

fn is_lost_by(event: &Event, session: SessionId, because: Option<&Lost>) -> bool {
    matches!(event, Event::Lost(grant, why) if grant.key.session == session && because.is_none_or(|because| because == why))
}

/// Whether the program itself gave the lock back.
fn is_deliberate(why: &Lost) -> bool {
    matches!(why, Lost::Released | Lost::Ended(GrantEnd::Released | GrantEnd::Session(SessionEnd::Closed)))
}

fn names<'a>(grants: impl Iterator<Item = &'a HeldGrant>) -> String {
    listed(grants.flat_map(|grant| grant.held.names()))
}

/// The fencing tokens. Permits have none, nor has the efficiency tier.
fn tokens<'a>(tier: Tier, grants: impl Iterator<Item = &'a HeldGrant>) -> Option<String> {
    let fence = grants.filter(|grant| tier == Tier::Correctness && matches!(grant.held, Held::Locks(_)));
    Some(listed(fence.map(|grant| grant.token.0))).filter(|tokens| !tokens.is_empty())
}

/// The first of these, and how many more there are.
fn listed(all: impl Iterator<Item = impl fmt::Display>) -> String {
    let mut all = all.peekable();
    let shown: Vec<String> = all.by_ref().take(SHOWN_MAX).map(|it| it.to_string()).collect();
    match all.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn shown_session(session: SessionId) -> String {
    format!("{:032x}", session.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut_and_says_how_much_is_left_out() {
        assert_eq!(listed(std::iter::empty::<u8>()), "");
        assert_eq!(listed([1, 2].iter()), "1, 2");
        assert_eq!(listed(1..=8), "1, 2, 3, 4, 5, 6, 7, 8");
        assert_eq!(listed(1..=100_000), "1, 2, 3, 4, 5, 6, 7, 8 and 99992 more");
    }
}
