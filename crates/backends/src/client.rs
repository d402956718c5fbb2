//! The client: which system a name belongs to, and where every request begins.

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
use crate::promises::System;
use crate::request::{LockAllRequest, LockRequest};
use crate::rules::{Rule, Rules};

/// How long a lock outlives a holder that says nothing, if nobody says.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// Locks over the system that an address names, or over several by rule. Cloning it is cheap.
///
/// ```no_run
/// use std::time::Duration;
/// use fencepost_backends::Client;
///
/// # async fn example() -> Result<(), fencepost_backends::Error> {
/// // Today the Postgres that is there; tomorrow "fencepost://10.0.0.1:7420", and nothing else changes.
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
    /// The longest prefix first.
    routes: Vec<Route>,
    pub(crate) ttl: Duration,
    pub(crate) dry_run: bool,
    /// What named owners hold, by owner and name, for those that come again. The lock around an entry is kept while it is
    /// asked for, so that the same owner does not wait for itself.
    // Rule: re-entry
    pub(crate) entered: Mutex<HashMap<(String, Name), Entered>>,
}

pub(crate) type Entered = Arc<tokio::sync::Mutex<Weak<Kept>>>;

/// Where the names with a prefix go.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) prefix: String,
    pub(crate) tier: Option<Tier>,
    pub(crate) way: Way,
}

/// How a system is reached.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Fencepost keeps its locks itself.
    Native(fencepost::Client),
    /// Another system, whose locks are kept here.
    Other(Arc<Other>),
}

/// Another system.
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
    /// Connects to the system at an address: see [`System::address`] for how each is written.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if it is none, [`Failed::Unreachable`] if nobody answers there.
    pub async fn connect(address: &str) -> Result<Client, Error> {
        Client::builder().rule("", address, None).connect().await
    }

    /// A client with rules, or with other settings than the usual ones.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { rules: Vec::new(), ways: Vec::new(), ttl: TTL_DEFAULT, dry_run: false }
    }

    /// An exclusive lock on one resource.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest<Exclusive> {
        LockRequest::new(self.clone(), name.as_ref())
    }

    /// Exclusive locks on several resources. Fencepost grants them together. On other systems they are taken one by one, in the
    /// order of their names, so that two who want the same ones never wait for each other.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllRequest<Exclusive> {
        LockAllRequest::new(self.clone(), names.into_iter().map(|name| name.as_ref().to_owned()).collect())
    }

    /// The system that the locks of a name go to.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if no rule is about it.
    pub fn system(&self, name: &str, tier: Tier) -> Result<System, Error> {
        Ok(self.route(name)?.way.system(tier))
    }

    /// The client of Fencepost, for what only Fencepost has (semaphores, elections, watches, administration), if that is where
    /// the name goes.
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
            why: format!("no rule is about the name {name:?}, and there is none with an empty prefix"),
        })
    }

    /// What this owner holds of this name, or is about to.
    pub(crate) fn entered(&self, owner: &str, name: &Name) -> Entered {
        let mut entered = self.inner.entered.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever asks sweeps: what nobody holds or asks for any more is forgotten.
        entered.retain(|_, entry| {
            Arc::strong_count(entry) > 1 || entry.try_lock().is_ok_and(|kept| kept.strong_count() > 0)
        });
        entered.entry((owner.to_owned(), name.clone())).or_default().clone()
    }
}

impl Way {
    pub(crate) fn system(&self, tier: Tier) -> System {
        match (self, tier) {
            (Way::Native(_), Tier::Correctness) => System::Fencepost,
            (Way::Native(_), Tier::Efficiency) => System::Memory,
            (Way::Other(other), _) => other.backend.system(),
        }
    }
}

impl Other {
    pub(crate) fn new(backend: Box<dyn Backend>) -> Other {
        Other { backend, breaker: Mutex::default() }
    }

    /// Whether the system is taken for dead.
    pub(crate) fn admit(&self) -> Result<(), fencepost::Error> {
        self.with_breaker(|breaker| breaker.admit(clock::now(), random())).map_err(|pause| {
            let last = format!("it did not answer several times; it is asked again in {} ms", pause.as_millis());
            Failed::Unreachable { last }.into()
        })
    }

    /// What was heard from it.
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
    /// Names with this prefix go to this address. The longest prefix that fits decides, and the empty one is for all others. The
    /// tier says what those locks are for: in the efficiency tier nobody gets a token, whatever the system could give.
    pub fn rule(mut self, prefix: &str, address: &str, tier: Option<Tier>) -> ClientBuilder {
        self.rules.push(Rule { prefix: prefix.to_owned(), address: address.to_owned(), tier });
        self
    }

    /// All rules of a file.
    pub fn rules(mut self, rules: Rules) -> ClientBuilder {
        self.rules.extend(rules.rules);
        self
    }

    /// Names with this prefix go to this cluster. For a client that was made with settings of its own, like TLS.
    pub fn native(mut self, prefix: &str, client: fencepost::Client) -> ClientBuilder {
        self.ways.push((prefix.to_owned(), Way::Native(client)));
        self
    }

    /// Names with this prefix go to this backend. For one that was made with settings of its own, or by yourself.
    pub fn backend(mut self, prefix: &str, backend: impl Backend) -> ClientBuilder {
        self.ways.push((prefix.to_owned(), Way::Other(Arc::new(Other::new(Box::new(backend))))));
        self
    }

    /// How long a lock outlives a holder that says nothing: 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> ClientBuilder {
        self.ttl = ttl;
        self
    }

    /// Locks nothing, and logs what would have been locked. Only for the efficiency tier: a lock with a token cannot be
    /// pretended, and asking for one is refused.
    pub fn dry_run(mut self, dry_run: bool) -> ClientBuilder {
        self.dry_run = dry_run;
        self
    }

    /// Connects to all systems that the rules name; those with the same address share a connection. In a dry run, to none.
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
                // Better now than with the first lock.
                let system = way.system(Tier::Correctness);
                system.check(crate::Promise::Linearizable)?;
                system.check(crate::Promise::FencingToken)?;
            }
            connected.insert(address, way.clone());
            routes.push(Route { prefix, tier, way });
        }
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix.len()));
        Ok(Client { inner: Arc::new(Inner { routes, ttl, dry_run, entered: Mutex::default() }) })
    }
}
