//! One session as its client knows it: its pending requests, its grants with their deadlines, and its keep-alives.
//!
//! A request stays here until its answer has reached the state that users see. Until then it is sent again on every new stream,
//! and the cluster carries it out once. How answers change a session stands in `answers.rs`; how messages are built, in
//! `connection.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fencepost_core::{
    Action, Epoch, GrantEnd, GrantId, Held, JobReport, LogicalMs, Metadata, Outcome, Request, RequestNumber, Seen,
    SessionEnd, SessionId, Terms, Token, Ttl, Verdict,
};

use fencepost_wire::SessionSecret;

use super::seen::SeenNumbers;
use super::{Answer, Event, Failure, GrantKey, GrantState, HeldGrant, Jeopardy, Lost, RequestKey};
use crate::anchor::Anchor;
use crate::bounds::{CANCEL_PATIENCE, IN_FLIGHT_MAX, WARNING_MAX};
use crate::planted::{Bug, planted};
use fencepost_core::Nanos;

/// What all sessions of a connection share.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub(crate) anchor: Anchor,
    pub(crate) events: VecDeque<Event>,
    /// The sessions that have something to send.
    pub(crate) ready: BTreeSet<SessionId>,
    /// Invariant: not later than the earliest deadline of any session.
    pub(crate) wake_at: Option<Nanos>,
    /// The cluster counts as dead.
    pub(crate) unreachable: bool,
    /// Invariant: the sum of the sessions' `in_flight`.
    pub(crate) in_flight: usize,
}

impl Common {
    pub(crate) fn wake_by(&mut self, at: Nanos) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The answer to a message that was sent at `sent_at` came at `now`, and its entry has this stamp. See [`Anchor::proven`].
    pub(crate) fn add_anchor(&mut self, sent_at: Nanos, stamp: LogicalMs, now: Nanos) {
        let instant = if planted(Bug::AnchorsAtArrival) { now } else { sent_at };
        self.anchor.proven(instant, stamp);
    }

    /// Does nothing with the stamp of a push, except with a planted fault. See [`Anchor::proven`].
    pub(crate) fn push_is_no_anchor(&mut self, stamp: LogicalMs, now: Nanos) {
        if planted(Bug::PushesAnchor) {
            self.anchor.proven(now, stamp);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) secret: SessionSecret,
    pub(crate) ttl: Ttl,
    pub(crate) metadata: Metadata,
    pub(crate) life: Life,
    pub(crate) link: Link,
    /// An open was sent and not answered. It may have been carried out, so requests must wait for the answer to the next open.
    pub(crate) open_said_before: bool,
    /// How many times this session was attached again on this stream. Invariant: at most `REATTACH_MAX` while the session lives.
    pub(crate) reattached: u32,

    pub(crate) last_number: u64,
    pub(crate) seen: SeenNumbers,
    /// Pending requests, by number. Boxed, because the tree moves its values on every insert and remove.
    pub(crate) pending: BTreeMap<u64, Box<Pending>>,
    /// Requests to send, in order. Numbers that are no longer pending are skipped.
    pub(crate) unsent: VecDeque<u64>,
    /// Invariant: the number of pending requests in [`Stage::Sent`].
    pub(crate) in_flight: usize,
    /// When the client itself gives up on each request.
    pub(crate) limits: BTreeSet<(Nanos, u64)>,
    /// Requests that were not taken and must be sent again, and when.
    pub(crate) later: Option<(Nanos, Vec<u64>)>,

    pub(crate) grants: BTreeMap<GrantId, Grant>,
    /// The grants with their own deadline: a TTL or a longest hold.
    pub(crate) timed: BTreeSet<GrantId>,
    /// The TTLs of locks held or requested, with the number of locks for each TTL.
    lock_ttls: BTreeMap<Ttl, usize>,
    /// The stamp of the last confirmed renewal.
    pub(crate) renewed_at: Option<LogicalMs>,
    pub(crate) jeopardy: bool,
    /// When the last keep-alive was sent, or the open or attach on this stream was answered. The next keep-alive counts from here.
    pub(crate) keep_alive_from: Nanos,
    pub(crate) keep_alive_due: Nanos,
    pub(crate) keep_alive_wanted: bool,
    /// When the unanswered keep-alive was sent.
    pub(crate) keep_alive_sent: Option<Nanos>,
}

/// Whether a session lives, as far as this client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// The cluster has not confirmed the open.
    New,
    Open,
    Ended(Option<SessionEnd>),
}

/// The relation of a session to the current stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Neither an open nor an attach was sent. `not_before` is set if the last one was not taken.
    Unsaid { not_before: Nanos },
    /// The open was sent. If it is the first one, requests may follow at once.
    Opening { sent_at: Nanos, first: bool },
    /// The attach was sent.
    Attaching { sent_at: Nanos },
    /// The session may act, with this epoch.
    Up(Epoch),
}

pub(crate) const UNSAID: Link = Link::Unsaid { not_before: Nanos(0) };

#[derive(Debug)]
pub(crate) struct Pending {
    /// Its epoch and seen numbers are filled in when it is sent.
    pub(crate) request: Request,
    pub(crate) stage: Stage,
    /// It was sent on some stream, so it may have been carried out.
    pub(crate) ever_sent: bool,
    pub(crate) ever_queued: bool,
    /// How many times it was sent on this stream. If more than once, an answer does not show which try it is for.
    pub(crate) tries: u32,
    pub(crate) sent_at: Nanos,
    pub(crate) limit_at: Option<Nanos>,
    /// The caller waits for an [`Event::Answered`].
    pub(crate) listened: bool,
    /// A cancel of this request is pending. The answer to the cancel decides how this request ends.
    pub(crate) cancelled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Unsent,
    Sent,
    /// It waits in a queue of the cluster.
    Queued,
    /// It was granted while its cancel was pending. The cancel gives the grant back, and can do so only while the grant's answer is
    /// unseen.
    HeldBack,
}

#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) token: Token,
    /// The number of guards: a re-entered grant has one for each entry.
    pub(crate) guards: u32,
    /// Unanswered releases.
    pub(crate) releasing: u32,
    pub(crate) granted_at: LogicalMs,
    /// When the client learnt of it.
    pub(crate) since: Nanos,
    pub(crate) held: Held,
    pub(crate) ttl: Option<Ttl>,
    pub(crate) hold: Option<Hold>,
    /// Invariant: once set it never changes (rule `lost-is-final`).
    pub(crate) lost: Option<Lost>,
    pub(crate) jeopardy: bool,
    pub(crate) contended: bool,
}

/// The end of a longest hold, and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) until: LogicalMs,
    pub(crate) length: Duration,
}

/// Until when the holder may believe in a session or a grant, and from when on it is warned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Validity {
    pub(crate) warn_at: Nanos,
    pub(crate) until: Nanos,
}

impl Hold {
    fn validity(self, anchor: &Anchor) -> Validity {
        Validity::of(anchor, self.until, self.length)
    }
}

const OVER: Validity = Validity { warn_at: Nanos(0), until: Nanos(0) };

impl Validity {
    fn of(anchor: &Anchor, deadline: LogicalMs, length: Duration) -> Validity {
        let Some(until) = anchor.safe_until(deadline) else { return OVER };
        Validity { warn_at: until.before((length / 3).min(WARNING_MAX)), until }
    }

    fn and(self, other: Validity) -> Validity {
        Validity { warn_at: self.warn_at.min(other.warn_at), until: self.until.min(other.until) }
    }

    /// Whether the holder must stop.
    pub(crate) fn is_over(self, now: Nanos) -> bool {
        now >= self.until && !planted(Bug::IgnoresDeadlines)
    }

    /// Whether the holder is warned.
    fn is_near(self, now: Nanos) -> bool {
        now >= self.warn_at && !planted(Bug::IgnoresDeadlines)
    }
}

impl Grant {
    /// Whether it has a deadline besides the session's: a TTL or a longest hold.
    fn has_own_deadline(&self) -> bool {
        (self.ttl.is_some() || self.hold.is_some()) && !planted(Bug::IgnoresLockTtl)
    }
}

impl Grant {
    /// What users are told about it.
    fn facts(&self, key: GrantKey) -> HeldGrant {
        HeldGrant { key, token: self.token, held: self.held.clone(), since: self.since }
    }
}

pub(crate) fn millis(ttl: Ttl) -> Duration {
    Duration::from_millis(ttl.millis().get())
}

/// The terms of a request that asks for a grant.
pub(crate) fn terms(action: &Action) -> Option<&Terms> {
    match action {
        Action::Acquire(acquire) => Some(&acquire.terms),
        Action::TakePermits(take) => Some(&take.terms),
        _ => None,
    }
}

/// Whether a release says how a job went.
fn reports_on_job(action: &Action) -> bool {
    matches!(action, Action::Release { report: Some(_), .. })
}

impl Session {
    pub(crate) fn new(id: SessionId, secret: SessionSecret, ttl: Ttl, metadata: Metadata) -> Session {
        Session {
            id,
            secret,
            ttl,
            metadata,
            life: Life::New,
            link: UNSAID,
            open_said_before: false,
            reattached: 0,
            last_number: 0,
            seen: SeenNumbers::default(),
            pending: BTreeMap::new(),
            unsent: VecDeque::new(),
            in_flight: 0,
            limits: BTreeSet::new(),
            later: None,
            grants: BTreeMap::new(),
            timed: BTreeSet::new(),
            lock_ttls: BTreeMap::new(),
            renewed_at: None,
            jeopardy: false,
            keep_alive_from: Nanos(0),
            keep_alive_due: Nanos(0),
            keep_alive_wanted: false,
            keep_alive_sent: None,
        }
    }

    // ---- Asking

    /// Adds a request. It is sent as soon as the stream allows.
    pub(crate) fn ask(&mut self, common: &mut Common, action: Action, limit_at: Option<Nanos>, listened: bool) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        if let Some(ttl) = terms(&action).and_then(|terms| terms.ttl) {
            self.count_ttl(ttl);
            // A TTL shorter than all others brings the next keep-alive forward.
            self.keep_alive_due = self.keep_alive_due.min(self.keep_alive_from.after(self.keep_alive_every()));
            common.wake_by(self.keep_alive_due);
        }
        let (session, epoch, seen) = (self.id, Epoch(0), Seen::default());
        let request = Request { session, epoch, number: RequestNumber(number), seen, action };
        let (stage, tries, sent_at) = (Stage::Unsent, 0, Nanos(0));
        let (ever_sent, ever_queued, cancelled) = (false, false, false);
        let pending =
            Pending { request, stage, ever_sent, ever_queued, tries, sent_at, limit_at: None, listened, cancelled };
        self.pending.insert(number, Box::new(pending));
        self.set_limit(common, number, limit_at);
        self.unsent.push_back(number);
        common.ready.insert(self.id);
        number
    }

    pub(crate) fn key(&self, number: u64) -> RequestKey {
        RequestKey { session: self.id, number: RequestNumber(number) }
    }

    pub(crate) fn set_limit(&mut self, common: &mut Common, number: u64, at: Option<Nanos>) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        if let Some(before) = pending.limit_at.take() {
            self.limits.remove(&(before, number));
        }
        pending.limit_at = at;
        if let Some(at) = at {
            self.limits.insert((at, number));
            common.wake_by(at);
        }
    }

    /// Removes a request: its answer has come, or none will come. The number counts as seen.
    pub(crate) fn finish(&mut self, common: &mut Common, number: u64) -> Option<Box<Pending>> {
        let pending = self.pending.remove(&number)?;
        if pending.stage == Stage::Sent {
            self.landed(common);
        }
        if let Some(at) = pending.limit_at {
            self.limits.remove(&(at, number));
        }
        if let Some(ttl) = terms(&pending.request.action).and_then(|terms| terms.ttl) {
            self.uncount_ttl(ttl);
        }
        self.seen.add(number);
        self.more_may_go(common);
        Some(pending)
    }

    /// Removes a request and tells its caller.
    pub(crate) fn resolve(&mut self, common: &mut Common, number: u64, answer: Answer) {
        if let Some(pending) = self.finish(common, number)
            && pending.listened
        {
            common.events.push_back(Event::Answered(self.key(number), answer));
        }
    }

    /// Tells the caller, but keeps the request: it may still be carried out.
    fn tell_and_go_on(&mut self, common: &mut Common, number: u64, answer: Answer) {
        self.set_limit(common, number, None);
        let key = self.key(number);
        if let Some(pending) = self.pending.get_mut(&number)
            && std::mem::take(&mut pending.listened)
        {
            common.events.push_back(Event::Answered(key, answer));
        }
    }

    /// A request is no longer in flight.
    pub(crate) fn landed(&mut self, common: &mut Common) {
        self.in_flight -= 1;
        common.in_flight -= 1;
    }

    pub(crate) fn more_may_go(&self, common: &mut Common) {
        if !self.unsent.is_empty() && self.in_flight < IN_FLIGHT_MAX {
            common.ready.insert(self.id);
        }
    }

    /// The caller no longer waits for this request.
    // Rule: cancel
    pub(crate) fn abandon(&mut self, common: &mut Common, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        pending.listened = false;
        if !pending.ever_sent && !matches!(pending.request.action, Action::Release { .. } | Action::Close) {
            self.finish(common, number);
        } else {
            self.set_limit(common, number, None);
            self.cancel(common, number);
        }
    }

    /// Asks the cluster to end a request that may wait in a queue. Returns whether there is anything to cancel.
    fn cancel(&mut self, common: &mut Common, number: u64) -> bool {
        let Some(pending) = self.pending.get_mut(&number) else { return false };
        let release_if_granted = match pending.request.action {
            Action::Acquire(_) | Action::TakePermits(_) => true,
            // A conversion that was carried out stays: there is no new grant to release.
            Action::Convert { .. } => false,
            _ => return false,
        };
        if !std::mem::replace(&mut pending.cancelled, true) {
            self.ask(common, Action::Cancel { request: RequestNumber(number), release_if_granted }, None, false);
        }
        true
    }

    /// The client's own limit for a request has passed.
    // Rule: wait
    fn limit_reached(&mut self, common: &mut Common, number: u64, now: Nanos) {
        let Some(pending) = self.pending.get(&number) else { return };
        if !pending.ever_sent && !matches!(pending.request.action, Action::Release { .. }) {
            self.resolve(common, number, Answer::Failed(Failure::Unreachable));
        } else if !pending.cancelled && self.cancel(common, number) {
            self.set_limit(common, number, Some(now.after(CANCEL_PATIENCE)));
        } else {
            self.tell_and_go_on(common, number, Answer::Unknown);
        }
    }

    /// The cluster counts as dead: requests that were never sent fail at once.
    pub(crate) fn fail_unsent(&mut self, common: &mut Common) {
        let unsent = self.pending.iter().filter(|(_, pending)| pending.listened && !pending.ever_sent);
        for number in unsent.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.fail_unreachable(common, number);
        }
    }

    pub(crate) fn fail_unreachable(&mut self, common: &mut Common, number: u64) {
        match self.pending.get(&number).map(|pending| &pending.request.action) {
            // A release is kept. It is sent if the cluster is reached again before the session ends.
            Some(Action::Release { .. }) => self.tell_and_go_on(common, number, Answer::Unknown),
            _ => self.resolve(common, number, Answer::Failed(Failure::Unreachable)),
        }
    }

    /// Whether the session has a guard that is not dropped.
    pub(crate) fn is_held(&self) -> bool {
        self.grants.values().any(|grant| grant.guards > 0)
    }

    /// Prepares the last requests of the session: see [`super::Connection::handle_farewell`].
    pub(crate) fn say_farewell(&mut self, common: &mut Common) {
        if matches!(self.life, Life::Ended(_)) {
            return;
        }
        if !self.is_held() {
            // The close gives back everything, so nothing else needs to be sent. Only a completion says something that would be lost.
            // Rule: completion
            let reports = |number: &u64| self.pending.get(number).is_some_and(|it| reports_on_job(&it.request.action));
            self.unsent.retain(|number| reports(number) && !planted(Bug::DropsCompletionAtEnd));
            self.ask(common, Action::Close, None, false);
            return;
        }
        let gives_back =
            |action: &Action| matches!(action, Action::Release { .. } | Action::Cancel { .. } | Action::Close);
        let others = self.pending.iter().filter(|(_, pending)| !gives_back(&pending.request.action));
        for number in others.map(|(number, _)| *number).collect::<Vec<_>>() {
            if self.pending[&number].ever_sent {
                self.cancel(common, number);
            } else {
                self.resolve(common, number, Answer::Failed(Failure::ShutDown));
            }
        }
    }

    // ---- Streams

    /// The stream is gone.
    pub(crate) fn stream_lost(&mut self, common: &mut Common) {
        self.reattached = 0;
        self.pending.values_mut().for_each(|pending| pending.tries = 0);
        self.unlink(common);
    }

    /// The stream is gone, or the session must be attached on it again. All unanswered requests will be sent again.
    pub(crate) fn unlink(&mut self, common: &mut Common) {
        if let Link::Opening { .. } = self.link {
            self.open_said_before = true;
        }
        self.link = UNSAID;
        (self.keep_alive_sent, self.keep_alive_wanted) = (None, false);
        for pending in self.pending.values_mut() {
            if matches!(pending.stage, Stage::Sent | Stage::Queued) {
                pending.stage = Stage::Unsent;
            }
        }
        common.in_flight -= self.in_flight;
        self.in_flight = 0;
        self.later = None;
        self.unsent.clear();
        common.ready.insert(self.id);
    }

    /// The session may act on this stream. Every request without an answer and without a place in a queue is sent again, in its old
    /// order.
    pub(crate) fn link_up(&mut self, common: &mut Common, epoch: Epoch, now: Nanos) {
        self.link = Link::Up(epoch);
        let unsent = self.pending.iter().filter(|(_, pending)| pending.stage == Stage::Unsent);
        self.unsent = unsent.map(|(number, _)| *number).collect();
        self.schedule_keep_alive(common, now);
        common.ready.insert(self.id);
    }

    /// A keep-alive was sent, or an open or attach was answered: schedules the next keep-alive.
    pub(crate) fn schedule_keep_alive(&mut self, common: &mut Common, now: Nanos) {
        self.keep_alive_from = now;
        self.keep_alive_due = now.after(self.keep_alive_every());
        common.wake_by(self.keep_alive_due);
    }

    // ---- Deadlines

    /// The interval between keep-alives.
    // Rule: session-ttl
    pub(crate) fn keep_alive_every(&self) -> Duration {
        let least = self.lock_ttls.keys().next().map_or(self.ttl, |least| self.ttl.min(*least));
        millis(least) / 3
    }

    fn count_ttl(&mut self, ttl: Ttl) {
        *self.lock_ttls.entry(ttl).or_default() += 1;
    }

    fn uncount_ttl(&mut self, ttl: Ttl) {
        if let Some(count) = self.lock_ttls.get_mut(&ttl) {
            *count -= 1;
            if *count == 0 {
                self.lock_ttls.remove(&ttl);
            }
        }
    }

    pub(crate) fn insert_grant(&mut self, common: &mut Common, id: GrantId, grant: Grant) {
        if let Some(ttl) = grant.ttl {
            self.count_ttl(ttl);
        }
        if grant.ttl.is_some() || grant.hold.is_some() {
            self.timed.insert(id);
        }
        self.grants.insert(id, grant);
        let validity = self.validity(&common.anchor, id);
        common.wake_by(validity.warn_at);
    }

    /// Until when the holder may believe that the session itself lives.
    pub(crate) fn own_validity(&self, anchor: &Anchor) -> Validity {
        let Some(renewed_at) = self.renewed_at else { return OVER };
        Validity::of(anchor, renewed_at.after(self.ttl.millis()), millis(self.ttl))
    }

    /// Until when the holder may believe in a grant. Does not look at whether the grant is lost already.
    // Rule: holder-stops-first
    pub(crate) fn validity(&self, anchor: &Anchor, id: GrantId) -> Validity {
        let Some(grant) = self.grants.get(&id) else { return OVER };
        let mut validity = self.own_validity(anchor);
        if !grant.has_own_deadline() {
            return validity;
        }
        if let (Some(ttl), Some(renewed_at)) = (grant.ttl, self.renewed_at) {
            let deadline = renewed_at.max(grant.granted_at).after(ttl.millis());
            validity = validity.and(Validity::of(anchor, deadline, millis(ttl)));
        }
        if let Some(hold) = grant.hold {
            validity = validity.and(hold.validity(anchor));
        }
        validity
    }

    /// The state of a grant, as its holder may believe it now. If the deadline has passed, the grant is lost for good.
    pub(crate) fn grant_state(&mut self, common: &mut Common, id: GrantId, now: Nanos) -> GrantState {
        match self.grants.get(&id) {
            None => return GrantState::Lost(Lost::Gone),
            Some(Grant { lost: Some(why), .. }) => return GrantState::Lost(why.clone()),
            Some(Grant { guards: 0, .. }) => return GrantState::Lost(Lost::Released),
            Some(_) => {}
        }
        let validity = self.validity(&common.anchor, id);
        if validity.is_over(now) {
            self.lose(common, id, Lost::DeadlinePassed);
            GrantState::Lost(Lost::DeadlinePassed)
        } else if validity.is_near(now) {
            GrantState::Jeopardy
        } else {
            GrantState::Held
        }
    }

    /// Marks a grant as lost, for good. If only its deadline has passed, the cluster may still count it as held: it is given back.
    // Rule: lost-is-final
    pub(crate) fn lose(&mut self, common: &mut Common, id: GrantId, why: Lost) {
        let Some(grant) = self.grants.get_mut(&id) else { return };
        if grant.lost.is_some() {
            return;
        }
        let may_be_held = why == Lost::DeadlinePassed && !matches!(self.life, Life::Ended(_));
        let key = GrantKey { session: self.id, grant: id };
        common.events.push_back(Event::GrantChanged(key));
        if grant.guards > 0 {
            common.events.push_back(Event::Lost(Box::new(grant.facts(key)), why.clone()));
        }
        grant.lost = Some(why);
        if may_be_held {
            let entries = grant.guards;
            grant.releasing += entries;
            for _ in 0..entries {
                self.ask(common, Action::Release { grant: id, report: None }, None, false);
            }
        }
    }

    /// One guard gives its grant back, and reports about its job if it has one. Returns the number of the release, or why there is
    /// nothing to give back.
    pub(crate) fn let_go(
        &mut self,
        common: &mut Common,
        id: GrantId,
        limit_at: Option<Nanos>,
        listened: bool,
        report: Option<Box<JobReport>>,
        now: Nanos,
    ) -> Result<u64, Lost> {
        let state = self.grant_state(common, id, now);
        let Some(grant) = self.grants.get_mut(&id) else { return Err(Lost::Gone) };
        grant.guards -= 1;
        if let GrantState::Lost(why) = state {
            self.forget_if_over(id);
            return Err(why);
        }
        grant.releasing += 1;
        Ok(self.ask(common, Action::Release { grant: id, report }, limit_at, listened))
    }

    /// Forgets a grant without guards and without unanswered releases.
    pub(crate) fn forget_if_over(&mut self, id: GrantId) {
        if self.grants.get(&id).is_some_and(|grant| grant.guards == 0 && grant.releasing == 0) {
            self.timed.remove(&id);
            if let Some(ttl) = self.grants.remove(&id).and_then(|grant| grant.ttl) {
                self.uncount_ttl(ttl);
            }
        }
    }

    /// The session is over, and with it all its requests and grants.
    pub(crate) fn end(&mut self, common: &mut Common, how: Option<SessionEnd>) {
        if matches!(self.life, Life::Ended(_)) {
            return;
        }
        if self.life == Life::Open && how != Some(SessionEnd::Closed) {
            common.events.push_back(Event::SessionEnded(self.id, how.clone()));
        }
        self.life = Life::Ended(how.clone());
        for number in self.pending.keys().copied().collect::<Vec<_>>() {
            let queued = self.pending[&number].ever_queued;
            let answer = Answer::SessionEnded { how: how.clone(), queued };
            self.resolve(common, number, self.guessed(number).unwrap_or(answer));
        }
        self.unsent.clear();
        let why = how.map_or(Lost::Gone, |how| Lost::Ended(GrantEnd::Session(how)));
        for id in self.grants.keys().copied().collect::<Vec<_>>() {
            self.lose(common, id, why.clone());
            if let Some(grant) = self.grants.get_mut(&id) {
                grant.releasing = 0;
            }
            self.forget_if_over(id);
        }
        common.events.push_back(Event::SessionChanged(self.id));
    }

    /// What a client with a planted fault reports of a completion whose answer it did not hear.
    fn guessed(&self, number: u64) -> Option<Answer> {
        if !planted(Bug::GuessesCompletion) {
            return None;
        }
        let Action::Release { grant, report: Some(report) } = &self.pending.get(&number)?.request.action else {
            return None;
        };
        let (token, succeeded) = (Some(self.grants.get(grant)?.token), report.verdict == Verdict::Succeeded);
        (report.verdict != Verdict::Open).then_some(Answer::Decided(Outcome::Completed { token, succeeded }))
    }

    // ---- Passing time

    /// Does what is due at `now`, and sets `common.wake_at` for the next time.
    pub(crate) fn tick(&mut self, common: &mut Common, now: Nanos) {
        if matches!(self.life, Life::Ended(_)) {
            return;
        }
        self.watch_deadlines(common, now);
        while let Some((at, number)) = self.limits.first().copied()
            && at <= now
        {
            self.limits.remove(&(at, number));
            self.limit_reached(common, number, now);
        }
        if let Some((at, _)) = self.limits.first() {
            common.wake_by(*at);
        }
        if let Link::Up(_) = self.link
            && self.keep_alive_sent.is_none()
        {
            self.keep_alive_wanted |= now >= self.keep_alive_due;
            if self.keep_alive_wanted {
                common.ready.insert(self.id);
            } else {
                common.wake_by(self.keep_alive_due);
            }
        }
        if let Link::Unsaid { not_before } = self.link {
            if now >= not_before {
                common.ready.insert(self.id);
            } else {
                common.wake_by(not_before);
            }
        }
        if let Some((at, numbers)) = self.later.take() {
            if now >= at {
                self.unsent.extend(numbers);
                common.ready.insert(self.id);
            } else {
                common.wake_by(at);
                self.later = Some((at, numbers));
            }
        }
    }

    /// Whether there are deadlines to watch.
    fn has_deadlines(&self) -> bool {
        !self.grants.is_empty() && !planted(Bug::IgnoresDeadlines)
    }

    fn watch_deadlines(&mut self, common: &mut Common, now: Nanos) {
        if !self.has_deadlines() {
            return;
        }
        let validity = self.own_validity(&common.anchor);
        let jeopardy = validity.is_near(now);
        let has_changed = std::mem::replace(&mut self.jeopardy, jeopardy) != jeopardy;
        if has_changed {
            common.events.push_back(Event::SessionChanged(self.id));
        }
        if has_changed && jeopardy && !validity.is_over(now) {
            self.tell_jeopardy(common, self.grants.keys().copied(), validity.until, false);
        }
        if validity.is_over(now) {
            for id in self.grants.keys().copied().collect::<Vec<_>>() {
                self.lose(common, id, Lost::DeadlinePassed);
            }
            return;
        }
        common.wake_by(if jeopardy { validity.until } else { validity.warn_at });
        for id in self.timed.iter().copied().collect::<Vec<_>>() {
            if self.grants[&id].lost.is_some() {
                continue;
            }
            let validity = self.validity(&common.anchor, id);
            if validity.is_over(now) {
                self.lose(common, id, Lost::DeadlinePassed);
                continue;
            }
            let jeopardy = validity.is_near(now);
            common.wake_by(if jeopardy { validity.until } else { validity.warn_at });
            let grant = self.grants.get_mut(&id).expect("timed grants are held");
            if std::mem::replace(&mut grant.jeopardy, jeopardy) != jeopardy {
                let ends_by_hold = grant.hold.is_some_and(|hold| hold.validity(&common.anchor).is_near(now));
                common.events.push_back(Event::GrantChanged(GrantKey { session: self.id, grant: id }));
                // If the session is in jeopardy, its event has told of this grant.
                if jeopardy && !self.jeopardy {
                    self.tell_jeopardy(common, [id], validity.until, ends_by_hold);
                }
            }
        }
    }

    /// Tells the user that those of these grants that have guards are in jeopardy.
    fn tell_jeopardy(
        &self,
        common: &mut Common,
        ids: impl IntoIterator<Item = GrantId>,
        until: Nanos,
        is_max_hold: bool,
    ) {
        let held = ids.into_iter().map(|id| (id, &self.grants[&id]));
        let held = held.filter(|(_, grant)| grant.guards > 0 && grant.lost.is_none());
        let facts = |(id, grant): (GrantId, &Grant)| grant.facts(GrantKey { session: self.id, grant: id });
        let grants: Vec<HeldGrant> = held.map(facts).collect();
        if !grants.is_empty() {
            common.events.push_back(Event::Jeopardy(Jeopardy { session: self.id, grants, until, is_max_hold }));
        }
    }

    /// When the oldest unanswered message was sent. A request that waits in a queue counts as answered.
    pub(crate) fn unanswered_since(&self) -> Option<Nanos> {
        let link = match self.link {
            Link::Opening { sent_at, .. } | Link::Attaching { sent_at } => Some(sent_at),
            _ => None,
        };
        let request = (self.in_flight > 0)
            .then(|| self.pending.values().find(|pending| pending.stage == Stage::Sent))
            .flatten()
            .map(|pending| pending.sent_at);
        [link, self.keep_alive_sent, request].into_iter().flatten().min()
    }
}
