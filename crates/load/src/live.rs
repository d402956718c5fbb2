//! Load on a cluster that runs: pairs of acquire and release, as fast as answers come, and how long they took.

use std::time::Duration;

use anyhow::Result;
use fencepost::{Client, ClientBuilder, Session};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::contender::Taker;
use crate::pairs::{self, Contenders, Names, Pairs};

/// So many contenders share a session: its bounds are far above that.
const CONTENDERS_PER_SESSION: usize = 250;
/// How many names there are if everybody wants the same.
const SHARED_NAMES: usize = 8;
/// Progress is told so often.
const BEAT: Duration = Duration::from_secs(1);

/// What is not closed by then ends by itself, with its time to live.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// What the load is like.
#[derive(Clone, Debug)]
pub struct Load {
    /// How many ask at a time.
    pub contenders: usize,
    /// For how long.
    pub length: Duration,
    /// Whether all want the same few locks.
    pub shared_names: bool,
    /// Whether each has a connection of its own.
    pub separate_connections: bool,
    /// Whether the locks are of the efficiency tier.
    pub efficiency: bool,
    /// All names begin with it.
    pub prefix: String,
}

/// What it came to, as it is printed.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// How many asked at a time.
    pub contenders: usize,
    /// How long it went on.
    pub seconds: f64,
    /// Locks that were taken and given back.
    pub pairs: u64,
    /// The same by the second.
    pub pairs_per_second: f64,
    /// How long an acquire took.
    pub acquire_ms: Percentiles,
    /// How long a release took.
    pub release_ms: Percentiles,
}

/// In milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub longest: f64,
}

impl Percentiles {
    fn of(took: &pairs::Took) -> Percentiles {
        let at = |share| took.at_ms(share);
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), longest: took.longest_ms() }
    }
}

/// Loads the cluster until the time is over or `stop` is done, and tells every second how it goes.
///
/// # Errors
/// The first that a contender had.
pub async fn run(
    builder: ClientBuilder,
    client: Client,
    load: &Load,
    stop: impl Future,
    tell: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    crate::raise_file_limit();
    let (mut contenders, sessions) = contenders(builder, client.clone(), load).await?;
    let names = match load.shared_names {
        true => Names::Shared(load.prefix.clone(), SHARED_NAMES),
        false => Names::Own(load.prefix.clone()),
    };
    let mut stop = std::pin::pin!(stop);
    let mut all = Pairs::default();
    while all.elapsed < load.length {
        let beat = BEAT.min(load.length - all.elapsed);
        let (again, pairs) = tokio::select! {
            done = pairs::closed(contenders, &names, beat) => done?,
            // What was measured until the last beat stands.
            _ = &mut stop => break,
        };
        contenders = again;
        all.acquire.add(&pairs.acquire);
        all.release.add(&pairs.release);
        all.elapsed += pairs.elapsed;
        tell(&format!(
            "{:.0} of {:.0} s: {} pairs/s, acquire p50 {:.3} ms, p99 {:.3} ms",
            all.elapsed.as_secs_f64(),
            load.length.as_secs_f64(),
            crate::count(pairs.per_second()),
            pairs.acquire.at_ms(0.5),
            pairs.acquire.at_ms(0.99)
        ));
    }
    close(client, sessions).await;
    Ok(Outcome {
        contenders: load.contenders,
        seconds: all.elapsed.as_secs_f64(),
        pairs: all.acquire.count(),
        pairs_per_second: if all.elapsed.is_zero() { 0.0 } else { all.per_second() },
        acquire_ms: Percentiles::of(&all.acquire),
        release_ms: Percentiles::of(&all.release),
    })
}

async fn contenders(builder: ClientBuilder, client: Client, load: &Load) -> Result<(Contenders, Vec<Session>)> {
    let mut contenders: Contenders = Vec::with_capacity(load.contenders);
    let mut sessions = vec![client.session().open()?];
    let mut client = client;
    for index in 0..load.contenders {
        if load.separate_connections && index > 0 {
            client = builder.clone().connect().await?;
        }
        if index > 0 && (load.separate_connections || index % CONTENDERS_PER_SESSION == 0) {
            sessions.push(client.session().open()?);
        }
        contenders.push(Box::new(match load.efficiency {
            true => Taker::of_efficiency(client.clone()),
            false => Taker::in_session(sessions.last().expect("there is one from the start").clone()),
        }));
    }
    Ok((contenders, sessions))
}

/// Nothing is left at the cluster, not even if the load was broken off while locks were held.
async fn close(client: Client, sessions: Vec<Session>) {
    let mut closing = JoinSet::new();
    closing.spawn(async move { client.close().await });
    for session in sessions {
        closing.spawn(async move { session.close().await });
    }
    // If the cluster does not answer, the figures are still worth having.
    let _ = tokio::time::timeout(CLOSE_PATIENCE, closing.join_all()).await;
}
