//! Leader election: an exclusive lock that is held for long, with a value that observers see. Its token is the epoch.
//!
//! There is no election protocol of its own here: the client that is granted the lock leads.

use std::ops::Deref;
use std::time::Duration;

use fencepost_core::{Event, FencingToken, GrantId, Held, LockMode, OwnerName, SessionId, Value, Wait};

use crate::client::Client;
use crate::error::Error;
use crate::guard::{Exclusive, Guard, Hold, Released};
use crate::lock::LockRequest;
use crate::session::Home;
use crate::watch::Watch;

/// An election. Begin with [`Client::election`].
///
/// ```no_run
/// # async fn example(client: fencepost::Client) -> Result<(), fencepost::Error> {
/// let leadership = client.election("scheduler").campaign("10.0.0.7:9000").await?;
/// println!("leading in epoch {}", leadership.epoch());
/// leadership.lost().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    name: String,
    request: LockRequest<Exclusive>,
}

impl Election {
    pub(crate) fn new(client: Client, home: Home, name: &str) -> Election {
        let request = LockRequest::new(home, [(name, LockMode::Exclusive)]).wait_forever();
        Election { client, name: name.to_owned(), request }
    }

    /// How long to campaign. Without this, a campaign waits until it is elected.
    pub fn wait(mut self, wait: Duration) -> Election {
        self.request = self.request.wait(wait);
        self
    }

    /// As [`LockRequest::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Election {
        self.request = self.request.ttl(ttl);
        self
    }

    /// As [`LockRequest::lock_delay`].
    pub fn lock_delay(mut self, delay: Duration) -> Election {
        self.request = self.request.lock_delay(delay);
        self
    }

    /// Waits until elected. Observers see the value as soon as it leads.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    ///
    /// # Cancellation
    /// Dropping the future withdraws the candidate.
    pub async fn campaign(mut self, value: impl AsRef<[u8]>) -> Result<Leadership, Error> {
        self.request.asking.value(value.as_ref());
        Ok(Leadership { guard: self.request.acquire().await? })
    }

    /// Becomes the leader if there is no leader; `None` if there is one.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    ///
    /// # Cancellation
    /// As [`Election::campaign`].
    pub async fn try_campaign(mut self, value: impl AsRef<[u8]>) -> Result<Option<Leadership>, Error> {
        self.request.asking.wait = Wait::No;
        self.request.asking.value(value.as_ref());
        Ok(self.request.try_acquire().await?.map(|guard| Leadership { guard }))
    }

    /// Who leads now.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let explained = self.client.explain(&self.name).await?;
        let holder = explained.what.holders.into_iter().find(|holder| holder.covers_from.is_none());
        Ok(holder.map(|view| Leader {
            grant: view.holder.grant,
            epoch: FencingToken::of_exclusive(view.holder.token),
            session: view.holder.session,
            owner: view.holder.owner,
            value: view.terms.and_then(|terms| terms.value),
        }))
    }

    /// Observes changes of the leader and its value from now on. The first result is the current leader.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn observe(&self) -> Result<Observer, Error> {
        // First watch, then read: a change in between is seen twice rather than never.
        let watch = self.client.watch(&self.name).start().await?;
        Ok(Observer { election: self.clone(), watch, known: None, look: true })
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq)]
pub struct Leader {
    /// The grant that is the leadership.
    pub grant: GrantId,
    /// The epoch. It rises with every new leader.
    pub epoch: FencingToken,
    /// The leader's session.
    pub session: Option<SessionId>,
    /// The leader's owner name, if it has one.
    pub owner: Option<OwnerName>,
    /// The value that the leader shows to observers.
    pub value: Option<Value>,
}

/// Observes who leads. See [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    election: Election,
    watch: Watch,
    /// The last result of `next`; `None` before the first.
    known: Option<Option<Leader>>,
    /// An event has come since, so the leader must be read again.
    look: bool,
}

impl Observer {
    /// Waits for a change and returns the new leader; `None` while there is no leader.
    ///
    /// # Errors
    /// As [`Watch::next`].
    ///
    /// # Cancellation
    /// Safe: the next call returns the change.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            if self.look {
                let leader = self.election.leader().await?;
                self.look = false;
                if self.known.as_ref() != Some(&leader) {
                    self.known = Some(leader.clone());
                    return Ok(leader);
                }
            }
            let Some(event) = self.watch.next().await else { return Ok(None) };
            self.look = self.concerns(&event?.event);
        }
    }

    fn concerns(&self, event: &Event) -> bool {
        let holds = |held: &Held| held.names().any(|name| name.as_str() == self.election.name);
        match event {
            Event::Granted { request, .. } => holds(&request.wants),
            Event::Ended { held, .. } => holds(held),
            Event::ValueSet { name, .. } => name.as_str() == self.election.name,
            Event::Converted { held, .. } => holds(held),
            _ => false,
        }
    }
}

/// The leadership. Dropping it resigns in the background.
///
/// It has the methods of a [`Hold`]: remaining time, state, loss signal, and [`Hold::set_value`].
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: Guard<Exclusive>,
}

impl Leadership {
    /// The epoch: a fencing token for everything that the leader writes.
    pub fn epoch(&self) -> FencingToken {
        self.guard.token()
    }

    /// A view of the leadership, for the code that works under it.
    pub fn hold(&self) -> Hold<Exclusive> {
        self.guard.hold()
    }

    /// Resigns and waits until that is done. From then on the next candidate can lead.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<Released, Error> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = Hold<Exclusive>;

    fn deref(&self) -> &Hold<Exclusive> {
        &self.guard
    }
}
