//! The client: it knows which system each name goes to, and every request starts here.
//!
//! It owns the connections, the rules, the circuit breakers, and the locks that named owners may enter again. It does not check
//! or send requests: see `request.rs`.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fencepost::{Exclusive, Failed, Name, Tier, clock};

use crate::address;
use crate::backend::{Backend, random};
use crate::breaker::Breaker;
use crate::error::Error;
use crate::keeper::Kept;
use crate::promises::{Promise, System};
use crate::request::{LockAllRequest, LockRequest};
use crate::rules::{Rule, Rules};

/// The default TTL: how long a lock outlives a holder that does not renew it.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// Locks in the system that an address names, or in several systems by rule. Cloning it is cheap.
///
/// ```no_run
/// use std::time::Duration;
/// use fencepost_backends::Client;
///
/// # async fn example() -> Result<(), fencepost_backends::Error> {
/// // Today your Postgres; tomorrow "fencepost://10.0.0.1:7420". No other line changes.
/// let client = Client::connect("postgres+table://app@127.0.0.1/app").await?;
/// let lock = client.lock("wallet:user_123").wait(Duration::from_secs(5)).acquire().await?;
/// println!("write with token {}", lock.token());
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Invariant: sorted by prefix length, the longest first.
    routes: Vec<Route>,
    pub(crate) ttl: Duration,
    pub(crate) dry_run: bool,
    /// The locks of named owners, by owner and name, for re-entry. The mutex of an entry stays locked during an acquire, so that
    /// two requests of the same owner do not wait for each other's lock.
    // Rule: re-entry
    pub(crate) entered: Mutex<HashMap<(String, Name), Entered>>,
}

pub(crate) type Entered = Arc<tokio::sync::Mutex<Weak<Kept>>>;

/// The system for the names with a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) prefix: String,
    pub(crate) tier: Option<Tier>,
    pub(crate) way: Way,
}

/// How a system is reached.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Fencepost, whose own client renews its locks.
    Native(fencepost::Client),
    /// Another system, whose locks this crate renews.
    Other(Arc<Other>),
}

/// A system other than Fencepost, with its circuit breaker.
#[derive(Debug)]
pub(crate) struct Other {
    pub(crate) backend: Box<dyn Backend>,
    breaker: Mutex<Breaker>,
}

/// How to connect. See [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    rules: Vec<Rule>,
    ways: Vec<(String, Way)>,
    ttl: Duration,
    dry_run: bool,
}

impl Client {
    /// Connects to the system at an address. [`System::address`] shows the form of each.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the address is not valid, [`Failed::Unreachable`] if no server answers.
    pub async fn connect(address: &str) -> Result<Client, Error> {
        Client::builder().rule("", address, None).connect().await
    }

    /// Builds a client with rules or with other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { rules: Vec::new(), ways: Vec::new(), ttl: TTL_DEFAULT, dry_run: false }
    }

    /// An exclusive lock on one resource.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest<Exclusive> {
        LockRequest::new(self.clone(), name.as_ref())
    }

    /// Exclusive locks on several resources. Fencepost grants them together. On other systems the client acquires them one by one,
    /// in the order of their names, so that two clients never deadlock.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllRequest<Exclusive> {
        LockAllRequest::new(self.clone(), names.into_iter().map(|name| name.as_ref().to_owned()).collect())
    }

    /// The system that the locks of a name go to. If the rule for the name says a tier, the tier of the rule decides.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if no rule matches the name.
    pub fn system(&self, name: &str, tier: Tier) -> Result<System, Error> {
        let route = self.route(name)?;
        Ok(route.way.system(route.tier.unwrap_or(tier)))
    }

    /// Fails unless the system that the locks of a name go to keeps the promise, always or on a condition. Sends nothing.
    ///
    /// After `Ok` for a promise that only Fencepost keeps ([`Promise::is_native`]), [`Client::native`] has a client for the name:
    ///
    /// ```no_run
    /// use fencepost_backends::{Client, Error, Promise, Tier};
    ///
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// client.promised("uploads", Tier::Correctness, Promise::Semaphores)?;
    /// if let Some(fencepost) = client.native("uploads") {
    ///     let permit = fencepost.semaphore("uploads").limit(10).acquire().await?;
    ///     permit.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotPromised`], with the reason and the systems that keep the promise; [`Error::BadAddress`] if no rule matches the
    /// name; [`Error::AgainstTheRule`] for a native promise in a dry run, which has no connection to Fencepost.
    pub fn promised(&self, name: &str, tier: Tier, promise: Promise) -> Result<(), Error> {
        let route = self.route(name)?;
        self.system(name, tier)?.check(promise)?;
        if promise.is_native() && self.inner.dry_run {
            let (prefix, rule) = (route.prefix.clone(), "dry run");
            let advice = "a dry run is for locks only; connect without it to use what only Fencepost has";
            return Err(Error::AgainstTheRule { prefix, rule, advice });
        }
        Ok(())
    }

    /// The Fencepost client that the name goes to. `None` if the name goes to another system, or to the address of a rule in a dry
    /// run, which does not connect.
    ///
    /// Use it for what only Fencepost has: the promises for which [`Promise::is_native`] is true, and administration. Call
    /// [`Client::promised`] first: it says why the name's system does not have it. A rule that says efficiency is a reason, too:
    /// this client also serves such a name, but in the correctness tier, whose names are separate.
    pub fn native(&self, name: &str) -> Option<fencepost::Client> {
        match &self.route(name).ok()?.way {
            Way::Native(client) => Some(client.clone()),
            Way::Other(_) => None,
        }
    }

    pub(crate) fn route(&self, name: &str) -> Result<&Route, Error> {
        let fits = |route: &&Route| name.starts_with(&route.prefix);
        self.inner.routes.iter().find(fits).ok_or_else(|| Error::BadAddress {
            address: String::new(),
            why: format!("no rule matches the name {:?}, and no rule has an empty prefix", fencepost::shortened(name)),
        })
    }

    /// The entry for this owner and name: the lock that the owner holds, or is about to acquire.
    pub(crate) fn entered(&self, owner: &str, name: &Name) -> Entered {
        let mut entered = self.inner.entered.lock().unwrap_or_else(PoisonError::into_inner);
        // Each call removes the entries that no request uses and whose lock is gone.
        entered.retain(|_, entry| {
            Arc::strong_count(entry) > 1 || entry.try_lock().is_ok_and(|kept| kept.strong_count() > 0)
        });
        entered.entry((owner.to_owned(), name.clone())).or_default().clone()
    }
}

impl Way {
    pub(crate) fn system(&self, tier: Tier) -> System {
        let system = match self {
            Way::Native(_) => System::Fencepost,
            // Fencepost itself in a dry run.
            Way::Other(other) => other.backend.system(),
        };
        match (system, tier) {
            (System::Fencepost, Tier::Efficiency) => System::Memory,
            (system, _) => system,
        }
    }
}

impl Other {
    pub(crate) fn new(backend: Box<dyn Backend>) -> Other {
        Other { backend, breaker: Mutex::default() }
    }

    /// Fails if the circuit breaker is open.
    pub(crate) fn admit(&self) -> Result<(), fencepost::Error> {
        self.with_breaker(|breaker| breaker.admit(clock::now(), random())).map_err(|pause| {
            let last = format!("several calls in a row failed; the next attempt is in {} ms", pause.as_millis());
            Failed::Unreachable { last }.into()
        })
    }

    /// Tells the circuit breaker the result of a call.
    pub(crate) fn heard<T>(&self, result: &Result<T, fencepost::Error>) {
        self.with_breaker(|breaker| match result {
            Ok(_) | Err(fencepost::Error::Refused(_)) => breaker.handle_answer(),
            Err(_) => breaker.handle_failure(clock::now(), random()),
        });
    }

    fn with_breaker<T>(&self, act: impl FnOnce(&mut Breaker) -> T) -> T {
        act(&mut self.breaker.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientBuilder {
    /// Names with this prefix go to this address. The longest matching prefix decides; the empty prefix matches every name. The
    /// tier is what these locks are for: in the efficiency tier no lock has a token, even if the system could give one.
    pub fn rule(mut self, prefix: &str, address: &str, tier: Option<Tier>) -> ClientBuilder {
        self.rules.push(Rule { prefix: prefix.to_owned(), address: address.to_owned(), tier });
        self
    }

    /// Adds all rules of a file.
    pub fn rules(mut self, rules: Rules) -> ClientBuilder {
        self.rules.extend(rules.rules);
        self
    }

    /// Names with this prefix go to this cluster. For a Fencepost client that you configured yourself, for example with TLS.
    pub fn native(mut self, prefix: &str, client: fencepost::Client) -> ClientBuilder {
        self.ways.push((prefix.to_owned(), Way::Native(client)));
        self
    }

    /// Names with this prefix go to this backend. For a backend that you configured or wrote yourself.
    pub fn backend(mut self, prefix: &str, backend: impl Backend) -> ClientBuilder {
        self.ways.push((prefix.to_owned(), Way::Other(Arc::new(Other::new(Box::new(backend))))));
        self
    }

    /// How long a lock outlives a holder that does not renew it: 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> ClientBuilder {
        self.ttl = ttl;
        self
    }

    /// Locks nothing, and logs what it would have locked. Only for the efficiency tier: a dry run has no real token, so a request
    /// for one is refused.
    pub fn dry_run(mut self, dry_run: bool) -> ClientBuilder {
        self.dry_run = dry_run;
        self
    }

    /// Connects to all systems that the rules name. Rules with the same address share a connection. A dry run connects to none.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(self) -> Result<Client, Error> {
        let ClientBuilder { rules, ways, ttl, dry_run } = self;
        let mut routes: Vec<Route> = ways.into_iter().map(|(prefix, way)| Route { prefix, tier: None, way }).collect();
        let mut connected: HashMap<String, Way> = HashMap::new();
        for Rule { prefix, address, tier } in rules {
            let way = match connected.get(&address) {
                Some(way) => way.clone(),
                None => address::connect(&address, ttl, dry_run).await?,
            };
            if let Some(Tier::Correctness) = tier {
                // Fails here, not at the first lock.
                let system = way.system(Tier::Correctness);
                system.check(Promise::Linearizable)?;
                system.check(Promise::FencingToken)?;
            }
            connected.insert(address, way.clone());
            routes.push(Route { prefix, tier, way });
        }
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix.len()));
        Ok(Client { inner: Arc::new(Inner { routes, ttl, dry_run, entered: Mutex::default() }) })
    }
}
