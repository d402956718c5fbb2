//! What the cluster's answers and pushes do to a session.
//!
//! Each answer first changes the state that users see; only then does its number count as seen. An answer that comes by a repeat, an
//! attach or a push is treated like a first answer, except that it is no anchor. This file sends nothing; `connection.rs` does.

use std::collections::BTreeSet;

use fencepost_core::{
    Action, Attached, Bound, Epoch, GrantId, Held, Locks, LogicalMs, Outcome, Push, Refusal, RequestNumber, SessionEnd,
    Token,
};

use super::session::{Common, Grant, Hold, Life, Link, Pending, Session, Stage, UNSAID, terms};
use super::{Answer, Event, Failure, GrantKey, Lost, RequestKey};
use crate::bounds::REATTACH_MAX;
use fencepost_core::Nanos;

/// An answer to a numbered request.
pub(crate) struct Answered {
    pub(crate) outcome: Outcome,
    /// The stamp at which it was decided.
    pub(crate) at: LogicalMs,
    /// Whether the grant that it gave still stands. Always true for a first answer.
    pub(crate) stands: bool,
}

impl Session {
    /// An answer to an open, an attach or a keep-alive, which have no number.
    pub(crate) fn answered_unnumbered(
        &mut self,
        common: &mut Common,
        outcome: Outcome,
        stamp: LogicalMs,
        repeats: Option<LogicalMs>,
        now: Nanos,
    ) {
        let sent_at = match (&outcome, self.link) {
            (Outcome::Opened { .. }, Link::Opening { sent_at, .. }) => sent_at,
            (Outcome::Attached(_), Link::Attaching { sent_at }) => sent_at,
            (Outcome::Renewed, _) => match self.keep_alive_sent.take() {
                Some(sent_at) => {
                    common.events.push_back(Event::KeptAlive(now.since(sent_at)));
                    sent_at
                }
                None => return,
            },
            (Outcome::Refused(refusal), _) => return self.refused_unnumbered(common, refusal.clone()),
            _ => return,
        };
        if repeats.is_none() {
            common.add_anchor(sent_at, stamp, now);
            self.renewed(common, stamp);
        }
        match outcome {
            Outcome::Opened { epoch } => {
                let first = matches!(self.link, Link::Opening { first: true, .. });
                self.life = Life::Open;
                if first && repeats.is_none() {
                    self.link_up(common, epoch, now);
                } else {
                    // There was an earlier open, and requests sent with it may still arrive with the same epoch. An attach makes the
                    // cluster refuse them, renews the session and lists what it has.
                    self.renewed(common, repeats.unwrap_or(stamp));
                    self.link = UNSAID;
                    common.ready.insert(self.id);
                }
            }
            Outcome::Attached(attached) => self.attached(common, *attached, now),
            _ => {}
        }
    }

    fn renewed(&mut self, common: &mut Common, stamp: LogicalMs) {
        self.renewed_at = self.renewed_at.max(Some(stamp));
        if std::mem::take(&mut self.jeopardy) {
            common.events.push_back(Event::SessionChanged(self.id));
        }
        if !self.grants.is_empty() {
            common.wake_by(self.own_validity(&common.anchor).warn_at);
        }
    }

    fn refused_unnumbered(&mut self, common: &mut Common, refusal: Refusal) {
        match refusal {
            Refusal::WrongEpoch { current } => {
                self.keep_alive_sent = None;
                self.attached_elsewhere(common, current);
            }
            // The open was refused.
            _ if self.life == Life::New => {
                for number in self.pending.keys().copied().collect::<Vec<_>>() {
                    self.resolve(common, number, Answer::Decided(Outcome::Refused(refusal.clone())));
                }
                self.end(common, None);
            }
            Refusal::NoSession | Refusal::WrongSecret => self.end(common, None),
            // A bound on acknowledgements, which a correct client does not reach. The next keep-alive goes out as usual.
            _ => self.keep_alive_sent = None,
        }
    }

    /// The session was attached on another stream. If that was an old stream of this client, attaching again repairs it.
    // Rule: attach
    pub(crate) fn attached_elsewhere(&mut self, common: &mut Common, current: Epoch) {
        let Link::Up(epoch) = self.link else { return };
        if epoch < current {
            self.attach_again(common);
        }
    }

    /// The node says that this stream may not act for the session, and that an attach would help. So the session exists.
    // Rule: attach
    pub(crate) fn attach_first(&mut self, common: &mut Common) {
        match self.link {
            Link::Up(_) => self.attach_again(common),
            Link::Opening { .. } => {
                self.life = Life::Open;
                self.unlink(common);
            }
            // An attach is on its way already.
            Link::Attaching { .. } | Link::Unsaid { .. } => {}
        }
    }

    fn attach_again(&mut self, common: &mut Common) {
        self.reattached += 1;
        if self.reattached > REATTACH_MAX {
            self.end(common, None);
        } else {
            self.unlink(common);
        }
    }

    // Rule: attach
    fn attached(&mut self, common: &mut Common, attached: Attached, now: Nanos) {
        let Attached { epoch, grants, waits, unseen, lost } = attached;
        let queued: BTreeSet<RequestNumber> = waits.into_iter().map(|wait| wait.number).collect();
        for (number, pending) in &mut self.pending {
            if pending.stage == Stage::Unsent && queued.contains(&RequestNumber(*number)) {
                (pending.stage, pending.ever_queued) = (Stage::Queued, true);
            }
        }
        for answer in unseen {
            let answered = Answered { outcome: answer.outcome, at: answer.answered_at, stands: answer.stands };
            self.answered(common, answer.number.0, answered, now);
        }
        for (grant, how) in lost {
            self.lose(common, grant, Lost::Ended(how));
        }
        let standing: BTreeSet<GrantId> = grants.iter().map(|grant| grant.grant).collect();
        let missing = |id: &&GrantId| !standing.contains(id);
        for id in self.grants.keys().filter(missing).copied().collect::<Vec<_>>() {
            if self.grants[&id].guards > 0 {
                self.lose(common, id, Lost::Gone);
            }
        }
        // Releases each grant that this client does not know. No guard can release it, so it would be held until the session ends.
        for grant in grants {
            let cancels = |action: &Action| matches!(action, Action::Cancel { .. });
            let cancel_pending = self.pending.values().any(|pending| cancels(&pending.request.action));
            if !self.grants.contains_key(&grant.grant) && !cancel_pending {
                let releases =
                    |action: &Action| matches!(action, Action::Release { grant: id, .. } if *id == grant.grant);
                let under_way = self.pending.values().filter(|pending| releases(&pending.request.action)).count();
                for _ in under_way..grant.count as usize {
                    self.ask(common, Action::Release { grant: grant.grant, report: None }, None, false);
                }
            }
        }
        self.link_up(common, epoch, now);
    }

    /// The answer to a request, whether it came directly, by a repeat, by an attach or by a push.
    pub(crate) fn answered(&mut self, common: &mut Common, number: u64, answered: Answered, now: Nanos) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let Answered { outcome, at, stands } = answered;
        match outcome {
            Outcome::Queued { .. } => {
                if !std::mem::replace(&mut pending.ever_queued, true) && pending.listened {
                    common
                        .events
                        .push_back(Event::Queued(RequestKey { session: self.id, number: RequestNumber(number) }));
                }
                if pending.stage == Stage::Sent {
                    pending.stage = Stage::Queued;
                    self.landed(common);
                    self.more_may_go(common);
                }
            }
            // The request was sent behind an open that was not taken. It is sent again with the next open.
            Outcome::Refused(Refusal::NoSession) if self.life == Life::New => {
                if std::mem::replace(&mut pending.stage, Stage::Unsent) == Stage::Sent {
                    self.landed(common);
                }
            }
            Outcome::Refused(Refusal::NoSession) => self.end(common, None),
            Outcome::Refused(Refusal::WrongEpoch { current }) => self.attached_elsewhere(common, current),
            Outcome::Refused(Refusal::Bound(Bound::UnseenAnswers)) => self.send_again(common, number),
            Outcome::Granted { grant, token, .. } => self.granted(common, number, grant, token, at, stands, now),
            Outcome::Converted { grant, token } => {
                if let Some(grant) = self.grants.get_mut(&grant) {
                    grant.token = token;
                }
                self.resolve(common, number, Answer::Decided(outcome));
            }
            Outcome::Closed => {
                self.resolve(common, number, Answer::Decided(outcome));
                self.end(common, Some(SessionEnd::Closed));
            }
            outcome => self.ended(common, number, outcome),
        }
    }

    /// Any other answer: updates the grant or the cancelled request that the request names, if it names one, and ends the request.
    fn ended(&mut self, common: &mut Common, number: u64, outcome: Outcome) {
        match self.pending[&number].request.action {
            Action::Release { grant: id, ref report } => {
                let not_reported = report.is_some() && matches!(outcome, Outcome::Refused(_));
                if let Some(grant) = self.grants.get_mut(&id) {
                    grant.releasing = grant.releasing.saturating_sub(1);
                    if not_reported && grant.lost.is_none() {
                        // The grant still stands, and its guard is gone.
                        grant.releasing += 1;
                        self.ask(common, Action::Release { grant: id, report: None }, None, false);
                    }
                }
                if let Outcome::Expired(how) = &outcome {
                    self.lose(common, id, Lost::Ended(how.clone()));
                }
                self.forget_if_over(id);
            }
            Action::Extend { grant: id, max_hold } => {
                if let (Outcome::Extended { until }, Some(grant)) = (&outcome, self.grants.get_mut(&id)) {
                    let length = std::time::Duration::from_millis(max_hold.get());
                    grant.hold = Some(Hold { until: *until, length });
                    common.wake_by(self.validity(&common.anchor, id).warn_at);
                }
            }
            // Whatever the answer is, the cancelled request is over: if it was granted first, the cancel gave the grant back.
            Action::Cancel { request, .. } => self.resolve(common, request.0, Answer::Decided(Outcome::TimedOut)),
            _ => {}
        }
        self.resolve(common, number, Answer::Decided(outcome));
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one answer")]
    fn granted(
        &mut self,
        common: &mut Common,
        number: u64,
        id: GrantId,
        token: Token,
        at: LogicalMs,
        stands: bool,
        now: Nanos,
    ) {
        let pending = self.pending.get_mut(&number).expect("looked up by the caller");
        if pending.cancelled {
            if std::mem::replace(&mut pending.stage, Stage::HeldBack) == Stage::Sent {
                self.landed(common);
                self.more_may_go(common);
            }
            return;
        }
        let Some(Pending { request, listened, .. }) = self.finish(common, number).map(|pending| *pending) else {
            return;
        };
        let asked = terms(&request.action);
        let lost = if !stands {
            true
        } else if let Some(grant) = self.grants.get_mut(&id) {
            // A named owner has entered the lock again.
            grant.guards += 1;
            grant.token = token;
            let lost = grant.lost.is_some() || self.validity(&common.anchor, id).is_over(now);
            if lost {
                self.grants.get_mut(&id).expect("found above").guards -= 1;
            }
            lost
        } else {
            let hold = asked.and_then(|terms| terms.max_hold).map(|max_hold| Hold {
                until: at.after(max_hold),
                length: std::time::Duration::from_millis(max_hold.get()),
            });
            let ttl = asked.and_then(|terms| terms.ttl);
            let grant = Grant {
                token,
                guards: 1,
                releasing: 0,
                granted_at: at,
                since: now,
                held: held_by(request.action),
                ttl,
                hold,
                lost: None,
                jeopardy: false,
                contended: false,
            };
            self.insert_grant(common, id, grant);
            let lost = self.validity(&common.anchor, id).is_over(now);
            if lost {
                self.grants.get_mut(&id).expect("inserted above").guards = 0;
                self.forget_if_over(id);
            }
            lost
        };
        let answer = if lost {
            // Rule: lost-is-final
            if stands {
                self.ask(common, Action::Release { grant: id, report: None }, None, false);
            }
            Answer::Failed(Failure::GrantedTooLate)
        } else {
            Answer::Decided(Outcome::Granted { grant: id, token, count: self.grants[&id].guards })
        };
        if listened {
            common.events.push_back(Event::Answered(self.key(number), answer));
        }
    }

    /// Sends a request again that was refused for a temporary reason.
    fn send_again(&mut self, common: &mut Common, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        if std::mem::replace(&mut pending.stage, Stage::Unsent) == Stage::Sent {
            self.landed(common);
        }
        self.unsent.push_back(number);
        common.ready.insert(self.id);
    }

    /// The request was not taken, and will not be carried out.
    pub(crate) fn not_taken(&mut self, common: &mut Common, number: u64, why: NotTaken, now: Nanos) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let keep = matches!(pending.request.action, Action::Release { .. } | Action::Cancel { .. } | Action::Close);
        if !keep || why.invalid {
            let retry_after = (!why.invalid).then_some(why.retry_after);
            let failure = Failure::NotTaken { message: why.message, retry_after };
            return self.resolve(common, number, Answer::Failed(failure));
        }
        if std::mem::replace(&mut pending.stage, Stage::Unsent) == Stage::Sent {
            self.landed(common);
        }
        let at = now.after(why.retry_after);
        let (_, later) = self.later.get_or_insert_with(|| (at, Vec::new()));
        later.push(number);
        common.wake_by(at);
    }

    /// An open, an attach or a keep-alive was not taken.
    pub(crate) fn not_taken_unnumbered(&mut self, common: &mut Common, why: NotTaken, now: Nanos) {
        let again_at = now.after(why.retry_after);
        match self.link {
            Link::Up(_) => {
                self.keep_alive_sent = None;
                self.keep_alive_due = again_at;
            }
            _ if why.invalid => {
                for number in self.pending.keys().copied().collect::<Vec<_>>() {
                    let failure = Failure::NotTaken { message: why.message.clone(), retry_after: None };
                    self.resolve(common, number, Answer::Failed(failure));
                }
                self.end(common, None);
            }
            _ => {
                self.unlink(common);
                // The open was not carried out, so the next one counts as the first.
                self.open_said_before = false;
                self.link = Link::Unsaid { not_before: again_at };
                let unsent = self.pending.iter().filter(|(_, pending)| pending.stage == Stage::Unsent);
                self.unsent = unsent.map(|(number, _)| *number).collect();
            }
        }
        common.wake_by(again_at);
    }

    pub(crate) fn pushed(&mut self, common: &mut Common, push: Push, stamp: LogicalMs, now: Nanos) {
        common.push_is_no_anchor(stamp, now);
        match push {
            Push::Ended { number, outcome, .. } => {
                self.answered(common, number.0, Answered { outcome, at: stamp, stands: true }, now);
            }
            Push::Lost { grant, how, .. } => self.lose(common, grant, Lost::Ended(how)),
            Push::Contended { grant, .. } => {
                if let Some(held) = self.grants.get_mut(&grant) {
                    held.contended = true;
                    common.events.push_back(Event::GrantChanged(GrantKey { session: self.id, grant }));
                }
            }
            Push::SessionEnded { how, .. } => self.end(common, Some(how)),
        }
    }
}

/// What a request that was granted holds now.
fn held_by(action: Action) -> Held {
    match action {
        Action::Acquire(acquire) => Held::Locks(acquire.locks),
        Action::TakePermits(take) => Held::Permits { name: take.name, permits: take.permits },
        // No correct node grants another request. A faulty one must not end the client.
        _ => Held::Locks(Locks::default()),
    }
}

/// What the server says about a message that it did not take.
#[derive(Clone, Debug)]
pub(crate) struct NotTaken {
    pub(crate) invalid: bool,
    pub(crate) message: String,
    pub(crate) retry_after: std::time::Duration,
}
