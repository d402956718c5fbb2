//! The black-box checker: uses only what clients see, never the log. Who acts, under which token, on which name.
//!
//! After a user has acted under a token, no user may act under a smaller token that conflicts with it: the guard of that grant would have
//! said that it is lost. The one exception is an administrator who breaks a grant or evicts a session, because the old holder learns
//! of it later. So runs with administrators are not judged. Names come from requests and answers.

use fencepost_core::{Action, GrantId, LockMode, Locks, Name, Outcome, OwnerName, SessionId, Token};
use fencepost_session::client::{Answer, RequestKey};

use super::findings::Findings;
use super::ledger::Map;
use super::recent::Recent;

/// How many pending requests, and how many grants, are remembered.
const REMEMBERED_MAX: usize = 500_000;

/// The requests, grants and acts of the clients.
#[derive(Debug)]
pub(super) struct BlackBox {
    administered: bool,
    asked: Recent<RequestKey, PendingRequest>,
    grants: Recent<(SessionId, GrantId), Belief>,
    names: Map<((u128, u64), Name), Acted>,
    last_token: u64,
    /// Tokens up to this one are from before a restore. Their holders cannot know of the restore, so they are not judged.
    restored_after: u64,
}

/// A request that was not answered yet.
#[derive(Debug)]
enum PendingRequest {
    Acquire(Locks, Option<OwnerName>),
    Convert(Name, LockMode),
}

/// A grant as its holder knows it.
#[derive(Debug)]
struct Belief {
    locks: Locks,
    owner: Option<OwnerName>,
}

/// The newest acts on a name, by mode.
#[derive(Debug, Default)]
struct Acted {
    exclusively: Option<Actor>,
    otherwise: Option<Actor>,
}

/// A user that acted, and its token.
#[derive(Clone, Debug)]
struct Actor {
    token: u64,
    session: SessionId,
    grant: GrantId,
    owner: Option<OwnerName>,
}

impl Actor {
    /// Whether both have the same owner. Grants of one owner never conflict.
    fn is_same_owner(&self, other: &Actor) -> bool {
        self.session == other.session
            && (self.grant == other.grant || (self.owner.is_some() && self.owner == other.owner))
    }
}

impl BlackBox {
    pub(super) fn new(administered: bool) -> BlackBox {
        BlackBox {
            administered,
            asked: Recent::up_to(REMEMBERED_MAX),
            grants: Recent::up_to(REMEMBERED_MAX),
            names: Map::default(),
            last_token: 0,
            restored_after: 0,
        }
    }

    pub(super) fn asked(&mut self, request: RequestKey, action: &Action) {
        match action {
            Action::Acquire(acquire) => {
                self.asked.note(request, PendingRequest::Acquire(acquire.locks.clone(), acquire.owner.clone()));
            }
            Action::Convert { grant, name, mode, .. } => {
                // A weakening may take effect long before the client hears the answer.
                self.weaken(request.session, *grant, name, *mode);
                self.asked.note(request, PendingRequest::Convert(name.clone(), *mode));
            }
            _ => {}
        }
    }

    fn weaken(&mut self, session: SessionId, grant: GrantId, name: &Name, to: LockMode) {
        let belief = self.grants.get_mut(&(session, grant));
        if let Some(lock) = belief.and_then(|belief| belief.locks.iter_mut().find(|lock| lock.name == *name)) {
            lock.mode = lock.mode.min(to);
        }
    }

    pub(super) fn told(&mut self, request: RequestKey, answer: &Answer) {
        let asked = self.asked.take(&request);
        match (asked, answer) {
            (Some(PendingRequest::Acquire(locks, owner)), Answer::Decided(Outcome::Granted { grant, token, .. })) => {
                self.last_token = self.last_token.max(token.0);
                self.grants.note((request.session, *grant), Belief { locks, owner });
            }
            (Some(PendingRequest::Convert(name, mode)), Answer::Decided(Outcome::Converted { grant, token })) => {
                self.last_token = self.last_token.max(token.0);
                let belief = self.grants.get_mut(&(request.session, *grant));
                if let Some(lock) = belief.and_then(|belief| belief.locks.iter_mut().find(|lock| lock.name == name)) {
                    lock.mode = mode;
                }
            }
            _ => {}
        }
    }

    pub(super) fn restored(&mut self) {
        self.restored_after = self.last_token;
    }

    /// A user acts under a grant of this group. Names and tokens of different groups are independent.
    pub(super) fn acts(
        &mut self,
        group: (u128, u64),
        (session, grant, token): (SessionId, GrantId, Token),
        findings: &mut Findings,
    ) {
        if self.administered || token.0 <= self.restored_after {
            return;
        }
        let Some(Belief { locks, owner }) = self.grants.get(&(session, grant)) else { return };
        let actor = Actor { token: token.0, session, grant, owner: owner.clone() };
        findings.report.acts_ordered += 1;
        for lock in locks {
            let is_exclusive = lock.mode == LockMode::Exclusive;
            let acted = self.names.entry((group, lock.name.clone())).or_default();
            let others = acted.exclusively.iter().chain(acted.otherwise.iter().filter(|_| is_exclusive));
            if let Some(newer) =
                others.into_iter().find(|other| other.token > actor.token && !other.is_same_owner(&actor))
            {
                findings.found("black box", || {
                    format!("{actor:?} acts on {} in {:?} after {newer:?} acted there", lock.name, lock.mode)
                });
            }
            let newest = if is_exclusive { &mut acted.exclusively } else { &mut acted.otherwise };
            if newest.as_ref().is_none_or(|newest| newest.token <= actor.token) {
                *newest = Some(actor.clone());
            }
        }
    }
}
