//! The user of a client's session: a worker, a runner or a holder, which act by chance, or a scripted user, which follows a scenario.
//!
//! An enum rather than a trait, because the four kinds are all there are. It forwards every call and decides nothing.

use fencepost_core::{JobRecord, Metadata, Nanos, SessionId, Ttl};
use fencepost_session::client::{Answer, NewSession, RequestKey};

use crate::fact::WorldTime;
use crate::holder::Holder;
use crate::random::Random;
use crate::runner::Runner;
use crate::scripted::ScriptedUser;
use crate::store::Reply;
use crate::worker::{Hands, Worker};

/// A user.
pub(crate) enum User {
    /// Acts by chance, often.
    Worker(Worker),
    /// Runs jobs.
    Runner(Runner),
    /// Takes a lock now and then. Used in lease runs.
    Holder(Holder),
    /// Follows a scenario.
    Scripted(ScriptedUser),
}

impl User {
    /// Its session, if it has one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self {
            User::Worker(worker) => worker.session(),
            User::Runner(runner) => runner.session(),
            User::Holder(holder) => holder.session(),
            User::Scripted(user) => user.session(),
        }
    }

    /// The process restarted: the user forgets everything.
    pub(crate) fn forget(&mut self, now: Nanos) {
        match self {
            User::Worker(worker) => worker.forget(now),
            User::Runner(runner) => runner.forget(now),
            User::Holder(holder) => holder.forget(now),
            User::Scripted(user) => user.forget(),
        }
    }

    /// When the user acts next, if nothing happens before.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        match self {
            User::Worker(worker) => worker.next_at(),
            User::Runner(runner) => runner.next_at(),
            User::Holder(holder) => holder.next_at(),
            User::Scripted(user) => user.next_at(),
        }
    }

    /// Does what is due.
    pub(crate) fn handle_time(&mut self, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_time(hands),
            User::Runner(runner) => runner.handle_time(hands),
            User::Holder(holder) => holder.handle_time(hands),
            User::Scripted(user) => user.handle_time(hands),
        }
    }

    /// A request of this user was answered.
    pub(crate) fn handle_answer(&mut self, request: RequestKey, answer: &Answer, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_answer(request, answer, hands),
            User::Runner(runner) => runner.handle_answer(request, answer, hands),
            User::Holder(holder) => holder.handle_answer(request, answer, hands),
            User::Scripted(user) => user.handle_answer(request, answer, hands),
        }
    }

    /// The store answered a call of this user.
    pub(crate) fn handle_store(&mut self, call: u64, reply: Reply, hands: &mut Hands<'_>) {
        match self {
            User::Worker(worker) => worker.handle_store(call, reply, hands),
            User::Runner(runner) => runner.handle_store(call, reply, hands),
            User::Scripted(user) => user.handle_store(call, reply),
            User::Holder(_) => {}
        }
    }

    /// The cluster answered this user's read of a job.
    pub(crate) fn handle_job(&mut self, call: u64, record: Option<&JobRecord>, hands: &mut Hands<'_>) {
        match self {
            User::Runner(runner) => runner.handle_job(call, record, hands),
            User::Scripted(user) => user.handle_job(call, record),
            User::Worker(_) | User::Holder(_) => {}
        }
    }
}

/// The answers of the cluster that a user got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// When it got the last one, of any kind.
    pub(crate) at: WorldTime,
    pub(crate) count: u64,
}

impl Served {
    pub(crate) fn note(&mut self, now: WorldTime) {
        (self.at, self.count) = (now, self.count + 1);
    }
}

/// A new session with a random id and secret.
pub(crate) fn new_session(ttl: Ttl, random: &mut Random) -> NewSession {
    let id = SessionId(u128::from(random.number()) << 64 | u128::from(random.number()));
    let mut secret = [0; 32];
    secret.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.number().to_le_bytes()));
    NewSession { id, secret: secret.into(), ttl, metadata: Metadata::default() }
}
