//! Whoever uses a client's process: somebody whose deeds chance decides, or somebody who does what a scenario says.

use fencepost_core::{Metadata, Nanos, SessionId, Ttl};
use fencepost_session::client::{Answer, NewSession, RequestKey};

use crate::holder::Holder;
use crate::random::Random;
use crate::scripted::ScriptedUser;
use crate::store::Reply;
use crate::worker::{Hands, Worker};

/// A user.
pub(crate) enum User {
    /// Chance decides what it does.
    Worker(Worker),
    /// It takes a lock now and then, and says little.
    Holder(Holder),
    /// It does what it is told.
    Scripted(ScriptedUser),
}

impl User {
    /// Its session, if it has one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self {
            User::Worker(worker) => worker.session(),
            User::Holder(holder) => holder.session(),
            User::Scripted(user) => user.session(),
        }
    }

    /// The process died and started again: it knows nothing any more.
    pub(crate) fn forget(&mut self, now: Nanos) {
        match self {
            User::Worker(worker) => worker.forget(now),
            User::Holder(holder) => holder.forget(now),
            User::Scripted(user) => user.forget(),
        }
    }

    /// When it wants to act again, if nothing happens before.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        match self {
            User::Worker(worker) => worker.next_at(),
            User::Holder(holder) => holder.next_at(),
            User::Scripted(user) => user.next_at(),
        }
    }

    /// Time has passed.
    pub(crate) fn handle_time(&mut self, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_time(hands),
            User::Holder(holder) => holder.handle_time(hands),
            User::Scripted(user) => user.handle_time(hands),
        }
    }

    /// A request of this user is over.
    pub(crate) fn handle_answer(&mut self, request: RequestKey, answer: &Answer, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_answer(request, answer, hands),
            User::Holder(holder) => holder.handle_answer(request, answer, hands),
            User::Scripted(user) => user.handle_answer(request, answer, hands),
        }
    }

    /// The store has answered a call.
    pub(crate) fn handle_store(&mut self, call: u64, reply: Reply, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_store(call, reply, hands),
            User::Scripted(user) => user.handle_store(call, reply),
            User::Holder(_) => {}
        }
    }
}

/// A session with an id and a secret drawn by chance.
pub(crate) fn new_session(ttl: Ttl, random: &mut Random) -> NewSession {
    let id = SessionId(u128::from(random.number()) << 64 | u128::from(random.number()));
    let mut secret = [0; 32];
    secret.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.number().to_le_bytes()));
    NewSession { id, secret: secret.into(), ttl, metadata: Metadata::default() }
}
