//! A request for a lock, from the words of Python to a held lock.
//!
//! It decides nothing about locks. It chooses the session, says what another system does not have, and builds the request of the library.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{Efficiency, Exclusive, LockRequest, SemaphoreRequest};
use fencepost_backends as other;

use crate::client::{Connected, Home};
use crate::grip::Grip;
use crate::held::HeldLock;
use crate::op::{Outcome, Value};
use crate::problem::{Kind, Problem};
use crate::process::Process;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Update,
}

/// What a program asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) names: Vec<String>,
    pub(crate) mode: Mode,
    pub(crate) efficiency: bool,
    pub(crate) owner: Option<String>,
    pub(crate) terms: Terms,
}

/// The terms of every request: how long to wait, and how long it is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// `None` waits for ever, zero does not wait.
    pub(crate) wait: Option<Duration>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

/// A duration in seconds, as Python gives it.
pub(crate) fn duration(seconds: f64) -> Result<Duration, Problem> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|why| Problem::new(Kind::Value, format!("{seconds} is not a duration in seconds: {why}")))
}

/// Puts the terms into a request of the library. Requests for locks and for permits have the same methods, but no trait.
macro_rules! on_terms {
    ($request:expr, $terms:expr) => {{
        let (mut request, terms) = ($request, $terms);
        request = match terms.wait {
            None => request.wait_forever(),
            Some(wait) => request.wait(wait),
        };
        if let Some(ttl) = terms.ttl {
            request = request.ttl(ttl);
        }
        if let Some(max_hold) = terms.max_hold {
            request = request.max_hold(max_hold);
        }
        request
    }};
}

/// Asks for a lock.
pub(crate) async fn acquire(process: &'static Process, connected: Arc<Connected>, ask: Ask) -> Outcome {
    let client = connected.client().await?;
    let first = ask.names.first().cloned().unwrap_or_default();
    let grip = match client.native(&first) {
        Some(native) => acquire_native(&connected, &native, ask).await?,
        None => acquire_other(&client, ask).await?,
    };
    Ok(Value::Held(HeldLock::new(process, connected.id(), grip)))
}

async fn acquire_native(connected: &Connected, native: &fencepost::Client, ask: Ask) -> Result<Grip, Problem> {
    let Ask { names, mode, efficiency, owner, terms } = ask;
    if efficiency && connected.is_above_ttl(terms.ttl) {
        return Err(Problem::unsupported(
            "a lock of the efficiency tier has at most the TTL of its client: give `ttl` to `fencepost.connect`",
        ));
    }
    let request = match connected.home(native, terms.ttl)? {
        Home::Client(client) => client.lock_all(&names),
        Home::Session(session) => session.lock_all(&names),
    };
    let mut request = on_terms!(request, terms);
    if let Some(owner) = owner {
        request = request.owner(owner);
    }
    Ok(match (mode, efficiency) {
        (Mode::Exclusive, false) => Grip::Exclusive(granted(request, terms).await?),
        (Mode::Shared, false) => Grip::Shared(granted(request.shared(), terms).await?),
        (Mode::Update, false) => Grip::Update(granted(request.update(), terms).await?),
        (Mode::Exclusive, true) => Grip::Efficiency(granted::<Efficiency>(request.efficiency(), terms).await?),
        (Mode::Shared, true) => Grip::Efficiency(granted::<Efficiency>(request.shared().efficiency(), terms).await?),
        (Mode::Update, true) => return Err(Problem::unsupported("the efficiency tier has no update mode")),
    })
}

async fn granted<M>(request: LockRequest<M>, terms: Terms) -> Result<fencepost::Guard<M>, Problem> {
    let request = if terms.wait == Some(Duration::ZERO) { request.no_wait() } else { request };
    Ok(request.acquire().await?)
}

/// Asks another system. What only Fencepost has is refused with the reason of the table of promises.
async fn acquire_other(client: &other::Client, ask: Ask) -> Result<Grip, Problem> {
    let Ask { names, mode, efficiency, owner, terms } = ask;
    let [name] = names.as_slice() else {
        return acquire_several(client, names, mode, efficiency, owner, terms).await;
    };
    let tier = if efficiency { fencepost::Tier::Efficiency } else { fencepost::Tier::Correctness };
    if mode == Mode::Update {
        client.promised(name, tier, other::Promise::Update)?;
    }
    if terms.max_hold.is_some() {
        client.promised(name, tier, other::Promise::LongestHold)?;
    }
    let mut request = client.lock(name);
    if let Some(ttl) = terms.ttl {
        request = request.ttl(ttl);
    }
    if let Some(owner) = owner {
        request = request.owner(owner);
    }
    Ok(match (mode, efficiency) {
        (Mode::Exclusive, false) => Grip::OtherExclusive(granted_by_other(request, name, terms).await?),
        (Mode::Exclusive, true) => Grip::OtherEfficiency(granted_by_other(request.efficiency(), name, terms).await?),
        (_, false) => Grip::OtherShared(granted_by_other(request.shared(), name, terms).await?),
        (_, true) => Grip::OtherEfficiency(granted_by_other(request.shared().efficiency(), name, terms).await?),
    })
}

async fn granted_by_other<M>(
    request: other::LockRequest<M>,
    name: &str,
    terms: Terms,
) -> Result<other::Guard<M>, Problem> {
    match terms.wait {
        None => Ok(request.wait_forever().acquire().await?),
        Some(Duration::ZERO) => request.try_acquire().await?.ok_or_else(|| Problem::busy(name)),
        Some(wait) => Ok(request.wait(wait).acquire().await?),
    }
}

async fn acquire_several(
    client: &other::Client,
    names: Vec<String>,
    mode: Mode,
    efficiency: bool,
    owner: Option<String>,
    terms: Terms,
) -> Result<Grip, Problem> {
    let Terms { wait, ttl, max_hold } = terms;
    if mode != Mode::Exclusive || owner.is_some() || ttl.is_some() || max_hold.is_some() {
        return Err(Problem::unsupported(
            "several locks of another system have only `wait` and `tier`: the library acquires them one by one, in the order of their \
             names. Use Fencepost, or acquire each lock with its own terms",
        ));
    }
    // Without a limit: about a century.
    let wait = wait.unwrap_or(Duration::from_secs(100 * 365 * 86_400));
    let request = client.lock_all(&names).wait(wait);
    Ok(match efficiency {
        false => Grip::OtherSeveral(request.acquire().await?),
        true => Grip::OtherSeveralEfficiency(request.efficiency().acquire().await?),
    })
}

/// Asks for permits of a semaphore.
pub(crate) async fn permits(
    process: &'static Process,
    connected: Arc<Connected>,
    name: String,
    permits: u32,
    limit: Option<u32>,
    terms: Terms,
) -> Outcome {
    let native = connected.native(&name, other::Promise::Semaphores).await?;
    let request = match connected.home(&native, terms.ttl)? {
        Home::Client(client) => client.semaphore(&name),
        Home::Session(session) => session.semaphore(&name),
    };
    let mut request: SemaphoreRequest = on_terms!(request.permits(permits), terms);
    if let Some(limit) = limit {
        request = request.limit(limit);
    }
    let guard = if terms.wait == Some(Duration::ZERO) {
        request.try_acquire().await?.ok_or_else(|| Problem::busy(&name))?
    } else {
        request.acquire().await?
    };
    Ok(Value::Held(HeldLock::new(process, connected.id(), Grip::Permits(guard))))
}

/// Campaigns in an election.
pub(crate) async fn campaign(
    process: &'static Process,
    connected: Arc<Connected>,
    name: String,
    value: Vec<u8>,
    terms: Terms,
) -> Outcome {
    let native = connected.native(&name, other::Promise::Elections).await?;
    let mut election = match connected.home(&native, terms.ttl)? {
        Home::Client(client) => client.election(&name),
        Home::Session(session) => session.election(&name),
    };
    if let Some(ttl) = terms.ttl {
        election = election.ttl(ttl);
    }
    let leadership = match terms.wait {
        None => election.campaign(value).await?,
        Some(Duration::ZERO) => election.try_campaign(value).await?.ok_or_else(|| Problem::busy(&name))?,
        Some(wait) => election.wait(wait).campaign(value).await?,
    };
    Ok(Value::Held(HeldLock::new(process, connected.id(), Grip::Leadership(leadership))))
}

/// Asks for a job. The value is a held lock, or a completion if the job is completed.
pub(crate) async fn job(
    process: &'static Process,
    connected: Arc<Connected>,
    name: String,
    key: String,
    keep: Option<Duration>,
    terms: Terms,
) -> Outcome {
    let native = connected.native(&name, other::Promise::Once).await?;
    let request: LockRequest<Exclusive> = match connected.home(&native, terms.ttl)? {
        Home::Client(client) => client.lock(&name),
        Home::Session(session) => session.lock(&name),
    };
    let request = on_terms!(request, terms);
    let request = if terms.wait == Some(Duration::ZERO) { request.no_wait() } else { request };
    let mut request = request.once(key);
    if let Some(keep) = keep {
        request = request.keep(keep);
    }
    Ok(match request.acquire().await? {
        fencepost::Turn::Yours(job) => Value::Held(HeldLock::new(process, connected.id(), Grip::Job(job))),
        fencepost::Turn::Completed(completion) => crate::job::completed(completion),
    })
}
