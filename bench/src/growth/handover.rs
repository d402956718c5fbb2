//! The hand-over of one lock, over the number of its contenders. Each contender asks for the lock again as soon as it has released it,
//! so the length of the queue does not change.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fencepost::{ClientBuilder, Exclusive, Guard, Session};
use tokio::task::JoinSet;

use super::{Curve, Growth, LONG_TTL, Spent, WAITERS_PER_SESSION, patient, until_counted};
use crate::alone::elsewhere::{Elsewhere, Stage};
use crate::systems::fencepost::Cluster;
use fencepost_load::count;
use fencepost_load::pairs::Took;

const NAME: &str = "growth/hot";
const NODES: usize = 3;
/// Contenders that share a connection.
const CONTENDERS_PER_CLIENT: usize = 10_000;

/// What the contenders record. Among them, only the holder of the lock writes here.
#[derive(Default)]
struct Relay {
    /// When the last holder began its release.
    released_at: Option<Instant>,
    took: Took,
}

pub(super) async fn measure(growth: &mut Growth<'_>) -> Result<()> {
    for contenders in growth.sizes(Curve::HandOver) {
        // A long queue is not ended cleanly, so each size has a cluster of its own.
        let cluster = growth.cluster(NODES).await?;
        one_size(growth, &cluster, contenders)
            .await
            .with_context(|| format!("with {} contenders", count(contenders as f64)))?;
    }
    Ok(())
}

async fn one_size(growth: &mut Growth<'_>, cluster: &Cluster, contenders: usize) -> Result<()> {
    let probed = growth.probed()?;
    let relay = Arc::new(Mutex::new(Relay::default()));
    let (builder, theirs) = (patient(cluster), relay.clone());
    let mut clients = Elsewhere::start(move |stage| contend(builder, contenders, theirs, stage))?;
    clients.next().await?;
    tokio::select! {
        failed = clients.next() => bail!("the contenders ended before all of them waited: {failed:?}"),
        waiting = until_counted(cluster.control(), "a queue of all contenders", |it| it.waiters + 1 == contenders) => { waiting?; }
    }
    clients.go_on();
    for round in 0..=growth.options.rounds {
        let (spent, began) = (Spent::from(cluster), Instant::now());
        with(&relay, |relay| relay.took = Took::default());
        tokio::select! {
            failed = clients.next() => return failed.and(Err(anyhow::anyhow!("the contenders have ended"))),
            () = tokio::time::sleep(growth.options.block) => {}
        }
        let took = with(&relay, |relay| std::mem::take(&mut relay.took));
        let seconds = began.elapsed().as_secs_f64();
        // Round 0 is for warming up.
        if round > 0 {
            let mut figures = probed.clone();
            figures.extend(spent.each(cluster, took.count()));
            figures.insert("handovers_per_second".to_owned(), took.count() as f64 / seconds);
            figures.insert("handover_p50_ms".to_owned(), took.at_ms(0.5));
            figures.insert("handover_p99_ms".to_owned(), took.at_ms(0.99));
            growth.record(Curve::HandOver, NODES, contenders, round, figures)?;
        }
    }
    clients.fall_silent();
    Ok(())
}

/// The first contender holds the lock until the stage ends, and all others wait for it. Then they take turns in an endless loop.
async fn contend(builder: ClientBuilder, contenders: usize, relay: Arc<Mutex<Relay>>, mut stage: Stage) -> Result<()> {
    let mut sessions: Vec<Session> = Vec::new();
    let builder = builder.name("growth: contenders").session_ttl(LONG_TTL);
    for first in (0..contenders).step_by(CONTENDERS_PER_CLIENT) {
        let client = builder.clone().connect().await?;
        let many = (contenders - first).min(CONTENDERS_PER_CLIENT).div_ceil(WAITERS_PER_SESSION);
        for _ in 0..many {
            sessions.push(client.session().open()?);
        }
    }
    let holder = sessions[0].lock(NAME).acquire().await?;
    let mut tasks = JoinSet::new();
    for at in 1..contenders {
        let (session, relay) = (sessions[at / WAITERS_PER_SESSION].clone(), relay.clone());
        tasks.spawn(async move {
            let guard = session.lock(NAME).wait_forever().acquire().await?;
            take_turns(&session, guard, &relay).await
        });
    }
    stage.done().await;
    let session = sessions[0].clone();
    tasks.spawn(async move { take_turns(&session, holder, &relay).await });
    while let Some(ended) = tasks.join_next().await {
        ended.context("the task of a contender failed")??;
    }
    Ok(())
}

async fn take_turns(session: &Session, mut guard: Guard<Exclusive>, relay: &Mutex<Relay>) -> Result<()> {
    loop {
        let granted = Instant::now();
        with(relay, |relay| {
            if let Some(released) = relay.released_at.replace(Instant::now()) {
                relay.took.record(granted - released);
            }
        });
        guard.release().await?;
        guard = session.lock(NAME).wait_forever().acquire().await?;
    }
}

fn with<R>(relay: &Mutex<Relay>, look: impl FnOnce(&mut Relay) -> R) -> R {
    look(&mut relay.lock().unwrap_or_else(PoisonError::into_inner))
}
