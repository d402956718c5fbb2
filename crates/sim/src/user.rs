//! Whoever uses a client's process: somebody whose deeds chance decides, or somebody who does what a scenario says.

use fencepost::Nanos;
use fencepost::machine::{Answer, RequestKey};
use fencepost_core::SessionId;

use crate::scripted::ScriptedUser;
use crate::store::Reply;
use crate::worker::{Hands, Worker};

/// A user.
pub(crate) enum User {
    /// Chance decides what it does.
    Worker(Worker),
    /// It does what it is told.
    Scripted(ScriptedUser),
}

impl User {
    /// Its session, if it has one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self {
            User::Worker(worker) => worker.session(),
            User::Scripted(user) => user.session(),
        }
    }

    /// The process died and started again: it knows nothing any more.
    pub(crate) fn forget(&mut self, now: Nanos) {
        match self {
            User::Worker(worker) => worker.forget(now),
            User::Scripted(user) => user.forget(),
        }
    }

    /// When it wants to act again, if nothing happens before.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        match self {
            User::Worker(worker) => worker.next_at(),
            User::Scripted(user) => user.next_at(),
        }
    }

    /// Time has passed.
    pub(crate) fn handle_time(&mut self, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_time(hands),
            User::Scripted(user) => user.handle_time(hands),
        }
    }

    /// A request of this user is over.
    pub(crate) fn handle_answer(&mut self, request: RequestKey, answer: &Answer, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_answer(request, answer, hands),
            User::Scripted(user) => user.handle_answer(request, answer, hands),
        }
    }

    /// The store has answered a call.
    pub(crate) fn handle_store(&mut self, call: u64, reply: Reply, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_store(call, reply, hands),
            User::Scripted(user) => user.handle_store(call, reply),
        }
    }
}
