//! The load of `fencepost bench` on a running cluster: pairs of acquire and release in a closed loop, and their latencies.
//!
//! It starts no nodes and judges no figures. At the end it closes its sessions, so that no lock stays behind.

use std::time::Duration;

use anyhow::Result;
use fencepost::{Client, ClientBuilder, Session};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::contender::Taker;
use crate::pairs::{self, Contenders, Names, Pairs};

/// Contenders that share a session. Far below the bounds of a session.
const CONTENDERS_PER_SESSION: usize = 250;
/// Number of lock names if all contenders use the same ones.
const SHARED_NAMES: usize = 8;
/// Time between two progress lines.
const BEAT: Duration = Duration::from_secs(1);

/// Time limit for closing the sessions. A session that is not closed by then expires with its TTL.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// The parameters of the load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Number of contenders.
    pub contenders: usize,
    /// How long the load lasts.
    pub length: Duration,
    /// Whether all contenders use the same few locks.
    pub shared_names: bool,
    /// Whether each contender has a connection of its own.
    pub separate_connections: bool,
    /// Whether the locks are of the efficiency tier.
    pub efficiency: bool,
    /// Whether each lock is for a job of its own, which is begun and completed.
    pub jobs: bool,
    /// The beginning of all lock names.
    pub prefix: String,
}

/// The result, as `fencepost bench` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Number of contenders.
    pub contenders: usize,
    /// How long the load lasted.
    pub seconds: f64,
    /// Pairs of acquire and release.
    pub pairs: u64,
    /// Pairs per second.
    pub pairs_per_second: f64,
    /// Latency of an acquire.
    pub acquire_ms: Percentiles,
    /// Latency of a release.
    pub release_ms: Percentiles,
}

/// Percentiles of a latency, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the names of the fields say what they are")]
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

/// Loads the cluster until the time is over or `stop` completes. Calls `tell` every second with a progress line.
///
/// # Errors
/// The first error of a contender, or of its connection.
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
            // The result covers the time until the last progress line.
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
        let session = sessions.last().expect("the first session is opened before the loop").clone();
        contenders.push(Box::new(match (load.efficiency, load.jobs) {
            (true, _) => Taker::of_efficiency(client.clone()),
            (false, true) => Taker::of_jobs(session),
            (false, false) => Taker::in_session(session),
        }));
    }
    Ok((contenders, sessions))
}

/// Closes all sessions, so that no lock stays behind, even if `stop` ended the load while locks were held.
async fn close(client: Client, sessions: Vec<Session>) {
    let mut closing = JoinSet::new();
    closing.spawn(async move { client.close().await });
    for session in sessions {
        closing.spawn(async move { session.close().await });
    }
    // An error or a timeout here must not lose the figures.
    let _ = tokio::time::timeout(CLOSE_PATIENCE, closing.join_all()).await;
}
