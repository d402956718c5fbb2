//! One stream to the cluster with all the sessions on it.
//!
//! It has no socket: the driver tells it when the stream is up or down and which messages came, and asks it what to send and when to
//! come back. The driver may make requests at any time, connected or not; a request that cannot be sent waits until its limit. What an
//! answer does to a session stands in `answers.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fencepost_core::{
    Action, Epoch, GrantId, JobReport, LogicalMs, Metadata, Outcome, Request, RequestNumber, Seen, SessionEnd,
    SessionId, Ttl,
};
use fencepost_wire::{SessionSecret, WireError, api, v1};
use prost::Message;

use super::answers::{Answered, NotTaken};
use super::session::{Common, Life, Link, Session, Stage};
use super::{Answer, Event, Failure, GrantKey, GrantState, Lost, RequestKey};
use crate::bounds::{IN_FLIGHT_MAX, KEEP_ALIVES_PER_MESSAGE, MESSAGE_BYTES, PENDING_MAX, RETRY_AFTER, STALL};
use fencepost_core::Nanos;

/// A session to open. The driver has randomness, so it chooses the id and the secret.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// 128 random bits.
    pub id: SessionId,
    /// Proves to a node that the session is this client's.
    pub secret: SessionSecret,
    /// How long it lives without a keep-alive.
    pub ttl: Ttl,
    /// Text for people.
    pub metadata: Metadata,
}

/// What [`Connection::let_go`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetGo {
    /// It sends this release. The answer comes as an event.
    Asked(RequestKey),
    /// Nothing: the lock was lost before.
    Lost(Lost),
}

/// One stream with its sessions.
#[derive(Debug, Default)]
pub struct Connection {
    sessions: BTreeMap<SessionId, Session>,
    common: Common,
    /// The stream is up.
    up: bool,
    /// No answer came for too long.
    stalled: bool,
    /// The cluster and group that the sessions belong to.
    home: Option<(u128, u64)>,
    /// After the shut-down: the close of each session that still has guards. It is sent when the session's last guard is gone.
    leaving: BTreeMap<SessionId, v1::ClientMessage>,
    /// Closes of sessions whose last guard is gone, ready to be sent.
    farewells: VecDeque<v1::ClientMessage>,
}

impl Connection {
    // ---- Calls of users

    /// Adds a session. It is opened on the current stream, or on the next one.
    pub fn open_session(&mut self, new: NewSession) {
        let NewSession { id, secret, ttl, metadata } = new;
        self.sessions.insert(id, Session::new(id, secret, ttl, metadata));
        self.common.ready.insert(id);
    }

    /// Whether the session has not ended.
    pub fn is_alive(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| !matches!(session.life, Life::Ended(_)))
    }

    /// Whether the session has grants, as far as the client knows.
    pub fn holds_any(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| !session.grants.is_empty())
    }

    /// The cluster that the sessions belong to, once it has answered.
    pub fn cluster(&self) -> Option<u128> {
        self.home.map(|(cluster, _)| cluster)
    }

    /// Makes a request. The answer comes as an event, at `limit_at` at the latest, or a little later if a wait has to be cancelled
    /// first.
    pub fn request(&mut self, session: SessionId, action: Action, limit_at: Option<Nanos>) -> RequestKey {
        let Connection { sessions, common, .. } = self;
        let Some(session) = sessions.get_mut(&session) else {
            let key = RequestKey { session, number: RequestNumber(0) };
            let answer = Answer::SessionEnded { how: None, queued: false };
            common.events.push_back(Event::Answered(key, answer));
            return key;
        };
        let number = session.ask(common, action, limit_at, true);
        let key = session.key(number);
        if let Life::Ended(how) = session.life.clone() {
            session.resolve(common, number, Answer::SessionEnded { how, queued: false });
        } else if session.pending.len() > PENDING_MAX {
            session.resolve(common, number, Answer::Failed(Failure::TooManyPending));
        } else if common.unreachable {
            session.fail_unreachable(common, number);
        }
        key
    }

    /// The caller no longer waits for this answer. A wait is cancelled, and a grant that it may have got is given back.
    pub fn abandon(&mut self, request: RequestKey) {
        let Connection { sessions, common, .. } = self;
        if let Some(session) = sessions.get_mut(&request.session) {
            session.abandon(common, request.number.0);
        }
    }

    /// One guard gives its grant back.
    pub fn let_go(&mut self, grant: GrantKey, limit_at: Option<Nanos>, listened: bool, now: Nanos) -> LetGo {
        self.let_go_with(grant, limit_at, listened, None, now)
    }

    /// One guard gives its grant back and says how its job went. The answer comes as an event, and the client sets no limit: the
    /// request is sent again until it is answered, or until its session has ended. While the cluster cannot be reached, the caller is
    /// told [`Answer::Unknown`](super::Answer::Unknown) and the request is kept: the job itself says later what happened.
    // Rule: completion
    pub fn report(&mut self, grant: GrantKey, report: JobReport, now: Nanos) -> LetGo {
        self.let_go_with(grant, None, true, Some(Box::new(report)), now)
    }

    fn let_go_with(
        &mut self,
        grant: GrantKey,
        limit_at: Option<Nanos>,
        listened: bool,
        report: Option<Box<JobReport>>,
        now: Nanos,
    ) -> LetGo {
        let Connection { sessions, common, .. } = self;
        let Some(session) = sessions.get_mut(&grant.session) else { return LetGo::Lost(Lost::Gone) };
        let asked = session.let_go(common, grant.grant, limit_at, listened, report, now);
        let key = asked.map(|number| session.key(number));
        if let Ok(key) = key
            && common.unreachable
        {
            session.fail_unreachable(common, key.number.0);
        }
        self.forget_if_over(grant.session);
        match key {
            Ok(key) => LetGo::Asked(key),
            Err(why) => LetGo::Lost(why),
        }
    }

    /// Closes a session. The answer comes as an event.
    pub fn close_session(&mut self, session: SessionId, limit_at: Option<Nanos>) -> RequestKey {
        let key = self.request(session, Action::Close, limit_at);
        let Connection { sessions, common, .. } = self;
        if let Some(session) = sessions.get_mut(&session)
            && session.life == Life::New
            && matches!(session.link, Link::Unsaid { .. })
            && !session.open_said_before
        {
            // The open was never sent, so the cluster does not know the session.
            session.resolve(common, key.number.0, Answer::Decided(Outcome::Closed));
            session.end(common, Some(SessionEnd::Closed));
        }
        self.forget_if_over(key.session);
        key
    }

    /// The state of a grant, as its holder may believe it now.
    pub fn grant_state(&mut self, grant: GrantKey, now: Nanos) -> GrantState {
        let Connection { sessions, common, .. } = self;
        match sessions.get_mut(&grant.session) {
            Some(session) => session.grant_state(common, grant.grant, now),
            None => GrantState::Lost(Lost::Gone),
        }
    }

    /// How much longer the holder of a grant may act.
    pub fn remaining(&mut self, grant: GrantKey, now: Nanos) -> Duration {
        if let GrantState::Lost(_) = self.grant_state(grant, now) {
            return Duration::ZERO;
        }
        let session = &self.sessions[&grant.session];
        session.validity(&self.common.anchor, grant.grant).until.since(now)
    }

    /// When the client learnt of a grant that is not lost and has one last guard. `None` for other grants.
    pub fn held_by_last_guard_since(&self, grant: GrantKey) -> Option<Nanos> {
        let grant = self.sessions.get(&grant.session)?.grants.get(&grant.grant)?;
        (grant.guards == 1 && grant.lost.is_none()).then_some(grant.since)
    }

    /// Whether another client has begun to wait for this lock since the last call.
    pub fn take_contended(&mut self, grant: GrantKey) -> bool {
        let session = self.sessions.get_mut(&grant.session);
        let grant = session.and_then(|session| session.grants.get_mut(&grant.grant));
        grant.is_some_and(|grant| std::mem::take(&mut grant.contended))
    }

    /// The sessions that have not ended.
    pub fn living(&self) -> Vec<SessionId> {
        let living = self.sessions.values().filter(|session| !matches!(session.life, Life::Ended(_)));
        living.map(|session| session.id).collect()
    }

    // ---- Input

    /// The stream is up. The hello names the cluster and the group.
    pub fn handle_connected(&mut self, hello: &v1::Hello, now: Nanos) {
        self.handle_timeout(now);
        let home = (api::whole(hello.cluster_high, hello.cluster_low), hello.group);
        let moved = self.home.replace(home).is_some_and(|before| before != home);
        (self.up, self.stalled) = (true, false);
        self.common.unreachable = false;
        if moved {
            // Another cluster or group answers at the old address. It does not know the sessions of the old one.
            let opened = self.sessions.values_mut().filter(|session| session.life != Life::New);
            opened.for_each(|session| session.end(&mut self.common, None));
            self.common.anchor = Default::default();
        }
        self.common.ready.extend(self.sessions.keys());
    }

    /// The stream is down. All pending requests stay, and are sent again on the next stream.
    pub fn handle_disconnected(&mut self, now: Nanos) {
        self.handle_timeout(now);
        (self.up, self.stalled) = (false, false);
        for session in self.sessions.values_mut() {
            session.stream_lost(&mut self.common);
        }
    }

    /// Whether the cluster counts as reachable has changed: see [`super::Reconnect::is_open`].
    pub fn handle_reachable(&mut self, reachable: bool) {
        if self.common.unreachable != reachable {
            return;
        }
        self.common.unreachable = !reachable;
        if !reachable {
            self.sessions.values_mut().for_each(|session| session.fail_unsent(&mut self.common));
        }
    }

    /// Prepares the last messages, because the program ends. The caller sends them on the current stream: it calls `poll_transmit` until
    /// that returns `None`. No stream follows. A session without guards is closed, which ends its waits, too. A session with guards keeps
    /// its locks, because their holders may still work; its waits are cancelled.
    pub fn handle_farewell(&mut self) {
        for session in self.sessions.values_mut() {
            session.say_farewell(&mut self.common);
        }
    }

    /// Ends all sessions and requests on this side. The cluster keeps the locks of a session that still has guards. When the session's
    /// last guard is gone, [`Connection::poll_farewell`] has its close. Called after [`Connection::handle_farewell`].
    pub fn handle_shut_down(&mut self) {
        for session in self.sessions.values_mut() {
            if self.up
                && let Some(close) = session.closes_later()
            {
                self.leaving.insert(session.id, close);
            }
            for number in session.pending.keys().copied().collect::<Vec<_>>() {
                let sent = session.pending[&number].ever_sent;
                let answer = if sent { Answer::Unknown } else { Answer::Failed(Failure::ShutDown) };
                session.resolve(&mut self.common, number, answer);
            }
            session.end(&mut self.common, None);
        }
    }

    /// The next message to send after the shut-down.
    pub fn poll_farewell(&mut self) -> Option<v1::ClientMessage> {
        self.farewells.pop_front()
    }

    /// Whether there are messages to send after the shut-down, now or when guards are dropped.
    pub fn awaits_farewell(&self) -> bool {
        !self.leaving.is_empty() || !self.farewells.is_empty()
    }

    /// A message came.
    ///
    /// # Errors
    /// [`WireError`] if this version does not understand the message. The driver should give up the stream.
    pub fn handle_message(&mut self, message: v1::ServerMessage, now: Nanos) -> Result<(), WireError> {
        // Grants whose deadline has passed are lost before the message can renew them.
        // Rule: lost-is-final
        self.handle_timeout(now);
        for decided in message.decided {
            let stamp = LogicalMs(decided.stamp_ms);
            self.common.anchor.shown(stamp);
            for answer in decided.answers {
                self.handle_answer(api::answer_from_wire(answer)?, stamp, now);
            }
            for push in decided.pushes {
                let push = api::push_from_wire(push)?;
                let id = api::push_session(&push);
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.pushed(&mut self.common, push, stamp, now);
                    self.forget_if_over(id);
                }
            }
        }
        for detached in message.detached {
            let id = SessionId(api::whole(detached.session_high, detached.session_low));
            if let Some(session) = self.sessions.get_mut(&id) {
                session.attached_elsewhere(&mut self.common, Epoch(detached.epoch));
                self.forget_if_over(id);
            }
        }
        for not_taken in message.not_taken {
            self.handle_not_taken(not_taken, now);
        }
        Ok(())
    }

    fn handle_answer(&mut self, answer: api::Answer, stamp: LogicalMs, now: Nanos) {
        let Connection { sessions, common, .. } = self;
        let Some(session) = sessions.get_mut(&answer.session) else { return };
        let repeats = answer.repeat.map(|repeat| repeat.answered_at);
        let Some(number) = answer.number else {
            session.answered_unnumbered(common, answer.outcome, stamp, repeats, now);
            return self.forget_if_over(answer.session);
        };
        // Rule: holder-stops-first. Only the answer to the first try on this stream is an anchor.
        if repeats.is_none()
            && let Some(pending) = session.pending.get(&number.0)
            && pending.stage == Stage::Sent
            && pending.tries == 1
        {
            common.add_anchor(pending.sent_at, stamp, now);
        }
        let stands = answer.repeat.is_none_or(|repeat| repeat.stands);
        let answered = Answered { outcome: answer.outcome, at: repeats.unwrap_or(stamp), stands };
        session.answered(common, number.0, answered, now);
        self.forget_if_over(answer.session);
    }

    fn handle_not_taken(&mut self, not_taken: v1::NotTaken, now: Nanos) {
        let id = SessionId(api::whole(not_taken.session_high, not_taken.session_low));
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if not_taken.why() == v1::NotTakenWhy::AttachFirst {
            session.attach_first(&mut self.common);
            return self.forget_if_over(id);
        }
        let why = NotTaken {
            invalid: not_taken.why() == v1::NotTakenWhy::Invalid,
            message: not_taken.message.clone(),
            retry_after: not_taken.retry_after_ms.map_or(RETRY_AFTER, Duration::from_millis),
        };
        match not_taken.number {
            0 => session.not_taken_unnumbered(&mut self.common, why, now),
            number => session.not_taken(&mut self.common, number, why, now),
        }
        self.forget_if_over(id);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.common.wake_at.is_none_or(|at| now < at) {
            return;
        }
        self.common.wake_at = None;
        for session in self.sessions.values_mut() {
            session.tick(&mut self.common, now);
            if let Some(since) = session.unanswered_since() {
                self.stalled |= now >= since.after(STALL);
                self.common.wake_by(since.after(STALL));
            }
        }
        self.renew_together(now);
    }

    /// When the keep-alive of one session is due, sessions that are due soon renew with it: one message instead of many.
    // Rule: idle-is-silent
    fn renew_together(&mut self, now: Nanos) {
        if !self.sessions.values().any(|session| session.keep_alive_wanted) {
            return;
        }
        for session in self.sessions.values_mut() {
            let soon = now.after(session.keep_alive_every() / 2) >= session.keep_alive_due;
            if soon && matches!(session.link, Link::Up(_)) && session.keep_alive_sent.is_none() {
                session.keep_alive_wanted = true;
                self.common.ready.insert(session.id);
            }
        }
    }

    // ---- Output

    /// When to call [`Connection::handle_timeout`], if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.common.wake_at
    }

    /// The next event for users.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.common.events.pop_front()
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.common.in_flight
    }

    /// Whether the stream seems dead: no answer came for too long. The driver should give it up and dial again.
    pub fn is_stalled(&self) -> bool {
        self.up && self.stalled
    }

    /// The next message to send: everything that is ready and fits into one message. It counts as sent at `now`.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<v1::ClientMessage> {
        if !self.up {
            return None;
        }
        let mut message = Outgoing::default();
        while !message.is_full()
            && let Some(id) = self.common.ready.pop_first()
        {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            if matches!(session.life, Life::Ended(_)) {
                continue;
            }
            let before = session.in_flight;
            let left = session.say(&mut message, now);
            self.common.in_flight += session.in_flight - before;
            if session.keep_alive_sent == Some(now) {
                session.schedule_keep_alive(&mut self.common, now);
            }
            if left {
                self.common.ready.insert(id);
                break;
            }
        }
        if message.bytes == 0 {
            return None;
        }
        self.common.wake_by(now.after(STALL));
        Some(message.message)
    }

    fn forget_if_over(&mut self, id: SessionId) {
        let over = |session: &Session| matches!(session.life, Life::Ended(_)) && session.grants.is_empty();
        if self.sessions.get(&id).is_some_and(over) {
            self.sessions.remove(&id);
            self.farewells.extend(self.leaving.remove(&id));
        }
    }
}

/// A message under construction.
#[derive(Default)]
struct Outgoing {
    message: v1::ClientMessage,
    bytes: usize,
}

impl Outgoing {
    fn is_full(&self) -> bool {
        self.bytes >= MESSAGE_BYTES || self.message.keep_alives.len() >= KEEP_ALIVES_PER_MESSAGE
    }

    /// Whether the part fits; counts its bytes if so. The first part always fits.
    fn takes(&mut self, part: &impl Message) -> bool {
        // Six bytes for the tag and the length before the part.
        let bytes = part.encoded_len() + 6;
        let fits = self.bytes == 0 || self.bytes + bytes <= MESSAGE_BYTES;
        if fits {
            self.bytes += bytes;
        }
        fits
    }
}

impl Session {
    /// The close of a session that still has guards, valid on this stream at any later time. `None` if there is nothing to close later.
    fn closes_later(&mut self) -> Option<v1::ClientMessage> {
        let Link::Up(epoch) = self.link else { return None };
        if matches!(self.life, Life::Ended(_)) || !self.is_held() {
            return None;
        }
        let number = RequestNumber(self.last_number + 1);
        let close = Request { session: self.id, epoch, number, seen: self.seen.news(), action: Action::Close };
        Some(v1::ClientMessage { requests: vec![api::request_to_wire(&close)], ..v1::ClientMessage::default() })
    }

    /// Adds the session's open, attach, keep-alive and requests to a message. Returns whether something did not fit.
    fn say(&mut self, out: &mut Outgoing, now: Nanos) -> bool {
        match self.link {
            Link::Unsaid { not_before } if now < not_before => return false,
            Link::Unsaid { .. } if self.life == Life::New => {
                let open = api::open_to_wire(self.id, &self.secret, self.ttl, &self.metadata);
                if !out.takes(&open) {
                    return true;
                }
                out.message.opens.push(open);
                self.link = Link::Opening { sent_at: now, first: !self.open_said_before };
            }
            Link::Unsaid { .. } => {
                let attach = api::attach_to_wire(self.id, &self.secret, &self.seen.all());
                if !out.takes(&attach) {
                    return true;
                }
                out.message.attaches.push(attach);
                self.link = Link::Attaching { sent_at: now };
            }
            _ => {}
        }
        let epoch = match self.link {
            Link::Up(epoch) => epoch,
            // Rule: exactly-once. The first open makes epoch 1, so requests need not wait for its answer.
            Link::Opening { first: true, .. } => Epoch(1),
            _ => return false,
        };
        if self.keep_alive_wanted {
            let keep_alive = api::keep_alive_to_wire(self.id, epoch, &self.seen.news());
            if !out.takes(&keep_alive) {
                return true;
            }
            out.message.keep_alives.push(keep_alive);
            self.seen.said();
            (self.keep_alive_wanted, self.keep_alive_sent) = (false, Some(now));
        }
        self.say_requests(out, epoch, now)
    }

    fn say_requests(&mut self, out: &mut Outgoing, epoch: Epoch, now: Nanos) -> bool {
        let mut first = true;
        while let Some(number) = self.unsent.front().copied() {
            // A request that is being cancelled is not sent again: its cancel names its number.
            let Some(pending) = self.pending.get_mut(&number) else {
                self.unsent.pop_front();
                continue;
            };
            if pending.stage != Stage::Unsent || (pending.cancelled && pending.ever_sent) {
                self.unsent.pop_front();
                continue;
            }
            // A close goes beyond the bound: it ends all other requests.
            if self.in_flight >= IN_FLIGHT_MAX && pending.request.action != Action::Close {
                return false;
            }
            pending.request.epoch = epoch;
            pending.request.seen = if first { self.seen.news() } else { Seen::default() };
            let request = api::request_to_wire(&pending.request);
            if !out.takes(&request) {
                return true;
            }
            out.message.requests.push(request);
            if std::mem::take(&mut first) {
                self.seen.said();
            }
            (pending.stage, pending.sent_at, pending.ever_sent) = (Stage::Sent, now, true);
            pending.tries += 1;
            self.in_flight += 1;
            self.unsent.pop_front();
        }
        false
    }
}

impl GrantKey {
    /// The key of this grant of this session.
    pub fn new(session: SessionId, grant: GrantId) -> GrantKey {
        GrantKey { session, grant }
    }
}
