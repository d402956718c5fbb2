//! How many locks a system gives and takes back in a second, roughly: to see that nothing silly is between us and it.
//!
//! `cargo run --release -p fencepost-bench --example rough -- etcd 256`: each contender has a lock of its own and goes round for some
//! seconds. It compares nothing, and warms up hardly; the benchmark does. On a machine that is busy otherwise, look at the processor
//! time of a pair: that of the servers, and ours.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fencepost_bench::system::System;
use fencepost_bench::systems::etcd::Etcd;
use fencepost_bench::systems::postgres::Postgres;
use fencepost_bench::systems::redis::Redis;
use fencepost_bench::systems::redlock::Redlock;
use fencepost_bench::systems::zookeeper::Zookeeper;
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().context("which system? etcd, zookeeper, redis, redis-synced, redlock or postgres")?;
    let system: Box<dyn System> = match wanted.as_str() {
        "etcd" => Box::new(Etcd::start().await?),
        "zookeeper" => Box::new(Zookeeper::start().await?),
        "redis" => Box::new(Redis::start_in_memory().await?),
        "redis-synced" => Box::new(Redis::start_synced().await?),
        "redlock" => Box::new(Redlock::start().await?),
        "postgres" => Box::new(Postgres::start().await?),
        other => anyhow::bail!("{other} is not known here"),
    };
    println!("{}: {}", system.name(), system.how());
    let counts: Vec<usize> = arguments.map(|count| count.parse()).collect::<Result<_, _>>()?;
    for contenders in if counts.is_empty() { vec![1, 256] } else { counts } {
        ensure!(contenders <= system.contenders_max(), "it takes {} contenders at most", system.contenders_max());
        measure(system.as_ref(), contenders).await?;
    }
    Ok(())
}

async fn measure(system: &dyn System, contenders: usize) -> anyhow::Result<()> {
    // All at a time: where a contender takes a synced write, one after the other would take seconds.
    let made = try_join_all((0..contenders).map(|_| system.contender())).await?;
    let begin = Instant::now() + WARM_UP;
    let end = begin + MEASURED;
    let mut rounds = JoinSet::new();
    for (number, mut contender) in made.into_iter().enumerate() {
        rounds.spawn(async move {
            let (name, mut took) = (format!("rough-{number}"), Vec::new());
            while Instant::now() < end {
                let asked_at = Instant::now();
                contender.acquire(&name).await?;
                contender.release().await?;
                if asked_at >= begin {
                    took.push(asked_at.elapsed());
                }
            }
            anyhow::Ok(took)
        });
    }
    tokio::time::sleep_until(begin.into()).await;
    let (servers, ours) = (processor_time(&system.processes()), processor_time(&[std::process::id()]));
    tokio::time::sleep_until(end.into()).await;
    let servers = processor_time(&system.processes()).saturating_sub(servers);
    let ours = processor_time(&[std::process::id()]).saturating_sub(ours);
    let mut took = Vec::new();
    while let Some(round) = rounds.join_next().await {
        took.extend(round??);
    }
    took.sort_unstable();
    let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or_default();
    let a_second = took.len() as f64 / MEASURED.as_secs_f64();
    println!("{contenders} contenders: {a_second:.0} pairs/s, p50 {:?}, p99 {:?}", at(0.5), at(0.99));
    let a_pair = |time: Duration| time.as_micros() as f64 / took.len().max(1) as f64;
    println!("    processor time of a pair: servers {:.1} us, ours {:.1} us", a_pair(servers), a_pair(ours));
    Ok(())
}

/// What these processes and their living children have used so far. A tick is 10 ms on every Linux that we know.
fn processor_time(processes: &[u32]) -> Duration {
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc").expect("Linux has it").flatten() {
        // Not a process, or gone meanwhile.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((number, fields)) = stat.split_once(' ') else { continue };
        // A program's name may contain anything, and ends with the last bracket.
        let Some((_, fields)) = fields.rsplit_once(") ") else { continue };
        let fields: Vec<&str> = fields.split(' ').collect();
        let field = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
        let is_one = |number: u64| processes.iter().any(|process| u64::from(*process) == number);
        if number.parse().is_ok_and(is_one) || is_one(field(1)) {
            ticks += field(11) + field(12);
        }
    }
    Duration::from_millis(10 * ticks)
}
