//! Lock requests: first they check what the rules and the system allow, and only then do they send anything.
//!
//! A request chooses the system and the tier, applies the timeout, handles re-entry and the order of several locks, and hands the
//! granted lock to the keeper. How a system locks is in its backend.

use std::collections::BTreeSet;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost::{
    BadWord, Efficiency, Exclusive, Failed, GrantState, Name, Obstacle, Refused, Shared, Tier, Token, clock,
};
use tokio::time::timeout;

use crate::backend::{Ask, Mode};
use crate::client::{Client, Other, Route, Way};
use crate::error::Error;
use crate::grip::{Grip, Native, Nothing};
use crate::guard::{Guard, GuardAll, Hold};
use crate::keeper::Kept;
use crate::promises::{Promise, System};

/// How long an acquire waits by default.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug)]
enum Wait {
    No,
    UpTo(Duration),
    Forever,
}

/// A request for a lock. Start with [`Client::lock`]. Nothing is sent before `acquire`, `try_acquire` or `run`.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until `acquire`, `try_acquire` or `run`"]
pub struct LockRequest<M> {
    client: Client,
    asking: Asking,
    mode: PhantomData<fn() -> M>,
}

/// The request, without its type.
#[derive(Clone, Debug)]
struct Asking {
    name: String,
    mode: Mode,
    tier: Tier,
    wait: Wait,
    ttl: Option<Duration>,
    owner: Option<String>,
    needs: Vec<Promise>,
}

/// The request that would be sent, and the system that it would go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The resource.
    pub name: Name,
    /// How it would be held.
    pub mode: Mode,
    /// The system that would grant it.
    pub system: System,
    /// How long the lock would outlive a holder that does not renew it.
    pub ttl: Duration,
}

impl LockRequest<Exclusive> {
    pub(crate) fn new(client: Client, name: &str) -> LockRequest<Exclusive> {
        let asking = Asking {
            name: name.to_owned(),
            mode: Mode::Exclusive,
            tier: Tier::Correctness,
            wait: Wait::UpTo(WAIT_DEFAULT),
            ttl: None,
            owner: None,
            needs: Vec::new(),
        };
        LockRequest { client, asking, mode: PhantomData }
    }

    /// Asks for a lock that several readers may hold together.
    pub fn shared(mut self) -> LockRequest<Shared> {
        self.asking.mode = Mode::Shared;
        self.into()
    }

    /// For work that may occasionally be done twice: any system may grant the lock, and it has no token. If data depends on the
    /// lock, use the correctness tier, which is the default.
    // Rule: tier-efficiency
    pub fn efficiency(mut self) -> LockRequest<Efficiency> {
        self.asking.tier = Tier::Efficiency;
        self.into()
    }
}

impl LockRequest<Shared> {
    /// As [`LockRequest::<Exclusive>::efficiency`], for a lock that several readers may hold together.
    pub fn efficiency(mut self) -> LockRequest<Efficiency> {
        self.asking.tier = Tier::Efficiency;
        self.into()
    }
}

impl<M> LockRequest<M> {
    /// Changes the type. Only for the functions above, which have changed `asking` to match.
    fn into<T>(self) -> LockRequest<T> {
        LockRequest { client: self.client, asking: self.asking, mode: PhantomData }
    }

    /// How long to wait for the lock: 30 s by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.asking.wait = Wait::UpTo(wait);
        self
    }

    /// Waits for the lock without a timeout.
    pub fn wait_forever(mut self) -> Self {
        self.asking.wait = Wait::Forever;
        self
    }

    /// A TTL for this lock only.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.asking.ttl = Some(ttl);
        self
    }

    /// The unit of work that holds the lock. The same owner may enter the lock again. Fencepost knows an owner in all processes of
    /// one session; on other systems an owner is known only within this client.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.asking.owner = Some(owner.into());
        self
    }

    /// Refuses the request unless the system also makes this promise.
    pub fn needs(mut self, promise: Promise) -> Self {
        self.asking.needs.push(promise);
        self
    }

    /// Shows what would be requested, and from which system. Sends nothing.
    ///
    /// # Errors
    /// The errors that [`LockRequest::acquire`] would give before it sends anything.
    pub fn plan(&self) -> Result<Plan, Error> {
        Ok(self.asking.plan(&self.client)?.0)
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`Error::NotPromised`] if the system does not promise what the request needs; [`Refused::TimedOut`] if the wait timed out.
    ///
    /// # Cancellation
    /// Dropping the future cancels the wait. If the lock was granted, it is released in the background.
    pub async fn acquire(self) -> Result<Guard<M>, Error> {
        let names: Vec<Name> = Name::new(&self.asking.name).into_iter().collect();
        match self.asking.acquire(&self.client).await? {
            Some((grip, name)) => {
                let token = grip.token().unwrap_or(Token(0));
                Ok(Guard::new(grip, token, [name].into()))
            }
            None => {
                let obstacle = Obstacle::NotTold("this lock system");
                Err(Refused::TimedOut { names, obstacle, suspected: None }.into())
            }
        }
    }

    /// Acquires the lock if that needs no wait; `None` if it is busy.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`], except that a busy lock is not an error.
    ///
    /// # Cancellation
    /// As [`LockRequest::acquire`].
    pub async fn try_acquire(mut self) -> Result<Option<Guard<M>>, Error> {
        self.asking.wait = Wait::No;
        match self.acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Lock(fencepost::Error::Refused(Refused::TimedOut { .. } | Refused::Busy(_)))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the lock, runs the work under it, and releases it. If the lock is lost, the future of the work is dropped.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]; [`Refused::Lost`] if the lock was lost before the work was done.
    ///
    /// # Cancellation
    /// The work is dropped, and the lock is released in the background.
    pub async fn run<T, W: Future<Output = T>>(self, work: impl FnOnce(Hold<M>) -> W) -> Result<T, Error> {
        let guard = self.acquire().await?;
        let done = {
            let work = pin!(work(guard.hold()));
            tokio::select! {
                biased;
                why = guard.lost() => Err(fencepost::Error::from(why)),
                done = work => Ok(done),
            }
        };
        let done = done?;
        match guard.release().await {
            // The lock was lost during the last step of the work.
            Err(error) if error.lost().is_some() => Err(error.into()),
            // The work was done under the lock, even if the release failed.
            _ => Ok(done),
        }
    }
}

impl Asking {
    /// Checks the request, and returns the plan, the route and the tier.
    fn plan<'c>(&self, client: &'c Client) -> Result<(Plan, &'c Route, Tier), Error> {
        let name = Name::new(&self.name).map_err(|why| Refused::bad_name(&self.name, why))?;
        let route = client.route(&self.name)?;
        let tier = match (route.tier, self.tier) {
            (Some(Tier::Efficiency), Tier::Correctness) => {
                let advice = "ask for `.efficiency()` if two holders do no harm, or change the rule";
                let (prefix, rule) = (route.prefix.clone(), "efficiency");
                return Err(Error::AgainstTheRule { prefix, rule, advice });
            }
            // The rule decides, so that all clients lock the name in the same tier.
            (Some(tier), _) => tier,
            (None, tier) => tier,
        };
        if client.inner.dry_run && self.tier == Tier::Correctness {
            let (prefix, rule) = (route.prefix.clone(), "dry run");
            let advice = "a dry run has no real token; ask for `.efficiency()`, or use `.plan()`";
            return Err(Error::AgainstTheRule { prefix, rule, advice });
        }
        let system = route.way.system(tier);
        if tier == Tier::Correctness {
            system.check(Promise::FencingToken)?;
            system.check(Promise::Linearizable)?;
        }
        if self.mode == Mode::Shared {
            system.check(Promise::Shared)?;
        }
        if self.ttl.is_some() {
            system.check(Promise::OwnTtl)?;
        }
        if self.name.starts_with('/') {
            system.check(Promise::Paths)?;
        }
        self.needs.iter().try_for_each(|promise| system.check(*promise))?;
        let ttl = self.ttl.unwrap_or(client.inner.ttl);
        Ok((Plan { name, mode: self.mode, system, ttl }, route, tier))
    }

    /// `None` if the wait timed out.
    async fn acquire(&self, client: &Client) -> Result<Option<(Arc<dyn Grip>, Name)>, Error> {
        let (plan, route, tier) = self.plan(client)?;
        let name = plan.name.clone();
        if client.inner.dry_run {
            tracing::info!(%name, mode = ?plan.mode, system = plan.system.name(), "dry run: would have locked");
            return Ok(Some((Arc::new(Nothing), name)));
        }
        let grip = match &route.way {
            Way::Native(native) => Some(self.acquire_native(native, tier).await?),
            Way::Other(other) => {
                let Plan { name, mode, ttl, .. } = plan;
                let ask = Ask { name, mode, ttl };
                let kept = match &self.owner {
                    Some(owner) => self.enter(client, other, owner, &ask).await?,
                    None => ask_other(other, &ask, self.wait).await?,
                };
                kept.map(|kept| kept as Arc<dyn Grip>)
            }
        };
        Ok(grip.map(|grip| (grip, name)))
    }

    async fn acquire_native(&self, client: &fencepost::Client, tier: Tier) -> Result<Arc<dyn Grip>, Error> {
        let exclusive = client.lock(&self.name);
        Ok(match (tier, self.mode) {
            (Tier::Correctness, Mode::Exclusive) => {
                let guard = self.on_terms(exclusive).acquire().await?;
                let token = Token(guard.token().get());
                Arc::new(Native::new(guard, Some(token)))
            }
            (Tier::Correctness, Mode::Shared) => {
                let guard = self.on_terms(exclusive.shared()).acquire().await?;
                let token = Token(guard.token().get());
                Arc::new(Native::new(guard, Some(token)))
            }
            (Tier::Efficiency, Mode::Exclusive) => {
                Arc::new(Native::new(self.on_terms(exclusive.efficiency()).acquire().await?, None))
            }
            (Tier::Efficiency, Mode::Shared) => {
                Arc::new(Native::new(self.on_terms(exclusive.shared().efficiency()).acquire().await?, None))
            }
        })
    }

    fn on_terms<M>(&self, mut request: fencepost::LockRequest<M>) -> fencepost::LockRequest<M> {
        request = match self.wait {
            Wait::No => request.no_wait(),
            Wait::UpTo(wait) => request.wait(wait),
            Wait::Forever => request.wait_forever(),
        };
        if let Some(ttl) = self.ttl {
            request = request.ttl(ttl);
        }
        if let Some(owner) = &self.owner {
            request = request.owner(owner);
        }
        request
    }

    /// As [`ask_other`], unless the owner already holds the lock.
    // Rule: re-entry
    async fn enter(&self, client: &Client, other: &Other, owner: &str, ask: &Ask) -> Result<Option<Arc<Kept>>, Error> {
        let entered = client.entered(owner, &ask.name);
        let mut entered = entered.lock().await;
        if let Some(kept) = entered.upgrade()
            && kept.enter(ask.mode)?
        {
            return Ok(Some(kept));
        }
        let kept = ask_other(other, ask, self.wait).await?;
        *entered = kept.as_ref().map_or_else(Default::default, Arc::downgrade);
        Ok(kept)
    }
}

/// Acquires a lock from another system, and starts to renew it. `None` if the wait timed out.
async fn ask_other(other: &Other, ask: &Ask, wait: Wait) -> Result<Option<Arc<Kept>>, Error> {
    other.admit()?;
    let lease = match wait {
        Wait::No => other.backend.try_acquire(ask).await,
        Wait::UpTo(wait) => match timeout(wait, other.backend.acquire(ask)).await {
            Ok(lease) => lease.map(Some),
            // Not reported to the breaker: either another holder has the lock, or the server does not answer.
            Err(_) => return Ok(None),
        },
        Wait::Forever => other.backend.acquire(ask).await.map(Some),
    };
    other.heard(&lease);
    let Some(lease) = lease? else { return Ok(None) };
    let kept = Kept::new(lease, ask.mode);
    if let GrantState::Lost(_) = kept.state() {
        kept.let_go();
        return Err(Failed::GrantedTooLate.into());
    }
    Ok(Some(kept))
}

/// A request for several locks. See [`Client::lock_all`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until `acquire`"]
pub struct LockAllRequest<M> {
    client: Client,
    names: Vec<String>,
    wait: Duration,
    tier: Tier,
    mode: PhantomData<fn() -> M>,
}

impl LockAllRequest<Exclusive> {
    pub(crate) fn new(client: Client, names: Vec<String>) -> LockAllRequest<Exclusive> {
        LockAllRequest { client, names, wait: WAIT_DEFAULT, tier: Tier::Correctness, mode: PhantomData }
    }

    /// As [`LockRequest::<Exclusive>::efficiency`].
    pub fn efficiency(self) -> LockAllRequest<Efficiency> {
        let LockAllRequest { client, names, wait, .. } = self;
        LockAllRequest { client, names, wait, tier: Tier::Efficiency, mode: PhantomData }
    }
}

impl<M> LockAllRequest<M> {
    /// How long to wait for all of the locks together: 30 s by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Shows what would be requested, in this order, and from which system. Sends nothing.
    ///
    /// # Errors
    /// The errors that [`LockAllRequest::acquire`] would give before it sends anything.
    pub fn plan(&self) -> Result<Vec<Plan>, Error> {
        if self.names.is_empty() {
            return Err(Error::Lock(BadWord::Zero.into()));
        }
        self.in_order().map(|one| one.plan()).collect()
    }

    /// Waits for all of the locks.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]. The locks that were already granted are released.
    ///
    /// # Cancellation
    /// As [`LockRequest::acquire`].
    pub async fn acquire(self) -> Result<GuardAll<M>, Error> {
        let names = self.plan()?.into_iter().map(|plan| plan.name).collect();
        if let Some((native, tier)) = self.together() {
            let request = native.lock_all(&self.names).wait(self.wait);
            let (grip, token): (Arc<dyn Grip>, Token) = match tier {
                Tier::Correctness => {
                    let guard = request.acquire().await?;
                    let token = Token(guard.token().get());
                    (Arc::new(Native::new(guard, Some(token))), token)
                }
                Tier::Efficiency => (Arc::new(Native::new(request.efficiency().acquire().await?, None)), Token(0)),
            };
            return Ok(GuardAll { guards: vec![Guard::new(grip, token, names)] });
        }
        let until = clock::now().after(self.wait);
        let mut taken = GuardAll { guards: Vec::with_capacity(names.len()) };
        for one in self.in_order() {
            taken.guards.push(one.wait(until.since(clock::now())).acquire().await?);
        }
        // The first may have been lost while we waited for the last.
        for guard in &taken.guards {
            if let GrantState::Lost(why) = guard.state() {
                return Err(Error::Lock(why.into()));
            }
        }
        Ok(taken)
    }

    /// One request for each name, in the order that all clients use.
    fn in_order(&self) -> impl Iterator<Item = LockRequest<M>> {
        let names: BTreeSet<&String> = self.names.iter().collect();
        names.into_iter().map(|name| {
            let mut one = self.client.lock(name);
            one.asking.tier = self.tier;
            one.into()
        })
    }

    /// The cluster that can grant all of them together, and the tier. `None` if there is no such cluster.
    fn together(&self) -> Option<(fencepost::Client, Tier)> {
        let first = self.client.route(self.names.first()?).ok()?;
        let same = |name: &String| self.client.route(name).is_ok_and(|route| std::ptr::eq(route, first));
        match &first.way {
            Way::Native(native) if self.names.iter().all(same) && !self.client.inner.dry_run => {
                Some((native.clone(), first.tier.unwrap_or(self.tier)))
            }
            _ => None,
        }
    }
}
