//! What the contenders of one system do in one block, and its figures. For the workloads that all systems can take part in; those for
//! Fencepost alone are in `alone/`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use fencepost_load::contender::Contender;
use fencepost_load::pairs::{self, Contenders, Names, PATIENCE, Pairs, Random, Took};

/// What the contenders do.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Pairs on free locks, in a closed loop.
    Closed,
    /// Pairs on free locks, in an open loop.
    Open {
        /// Pairs per second that are due.
        per_second: f64,
        /// Seed of the random instants.
        seed: u64,
    },
    /// All contenders want the same lock.
    HotLock,
    /// Readers and writers of one name.
    Shared,
}

/// The result of a block.
pub struct Done {
    /// Number of pairs, or of hand-overs. CPU time and counts are divided by it.
    pub operations: u64,
    /// Figures by name. The last word of a name is the unit.
    pub figures: Vec<(&'static str, f64)>,
}

/// The share of writers in the mixed workload, in per cent.
const WRITERS_PERCENT: u64 = 5;
/// Time limit until all readers hold the lock at the same time. In a system where a reader waits for another reader, they would wait
/// forever.
const READERS_PATIENCE: Duration = Duration::from_secs(30);

impl Work {
    /// Does the work until `block` is over. Lock names begin with the prefix.
    ///
    /// # Errors
    /// The first error of a contender.
    pub async fn perform(self, contenders: Contenders, prefix: &str, block: Duration) -> Result<(Contenders, Done)> {
        let own = Names::Own(prefix.to_owned());
        match self {
            Work::Closed => {
                let (contenders, pairs) = pairs::closed(contenders, &own, block).await?;
                Ok((contenders, done(&pairs)))
            }
            Work::Open { per_second, seed } => {
                let schedule = pairs::schedule(per_second, block, seed);
                let (contenders, pairs) = pairs::open(contenders, &own, schedule).await?;
                let mut done = done(&pairs);
                done.figures.push(("due_per_second", per_second));
                Ok((contenders, done))
            }
            Work::HotLock => hot_lock(contenders, &format!("{prefix}/hot"), block).await,
            Work::Shared => {
                let name = format!("{prefix}/shared");
                let (contenders, together) = readers_together(contenders, &name).await?;
                let (contenders, mut done) = mixed(contenders, &name, block).await?;
                done.figures.push(("readers_together_count", together as f64));
                Ok((contenders, done))
            }
        }
    }
}

fn done(pairs: &Pairs) -> Done {
    let Pairs { acquire, release, .. } = pairs;
    let figures = vec![
        ("pairs_per_second", pairs.per_second()),
        ("acquire_p50_ms", acquire.at_ms(0.5)),
        ("acquire_p90_ms", acquire.at_ms(0.9)),
        ("acquire_p99_ms", acquire.at_ms(0.99)),
        ("acquire_p999_ms", acquire.at_ms(0.999)),
        ("acquire_longest_ms", acquire.longest_ms()),
        ("release_p50_ms", release.at_ms(0.5)),
        ("release_p99_ms", release.at_ms(0.99)),
    ];
    Done { operations: acquire.count(), figures }
}

/// What the contenders of a hot lock record. Among them, only the holder of the lock writes here.
#[derive(Default)]
struct Relay {
    /// When the last holder began its release.
    released_at: Option<Instant>,
    /// Hand-overs are measured between these two instants.
    window: Option<(Instant, Instant)>,
    took: Took,
    grants: u64,
}

/// The first contender holds the lock until all others have had time to ask for it. Then they take turns.
async fn hot_lock(contenders: Contenders, name: &str, block: Duration) -> Result<(Contenders, Done)> {
    let relay = Arc::new(Mutex::new(Relay::default()));
    let mut contenders = contenders.into_iter().enumerate();
    let (_, mut first) = contenders.next().context("a hot lock needs a contender")?;
    first.acquire(name).await?;
    let mut tasks = JoinSet::new();
    for (index, mut contender) in contenders {
        let (relay, name) = (relay.clone(), name.to_owned());
        tasks.spawn(async move {
            contender.acquire(&name).await?;
            take_turns(index, contender, &name, &relay).await
        });
    }
    // Enough time if the contenders send 20,000 requests per second. Whether all of them wait cannot be seen from here.
    tokio::time::sleep(Duration::from_millis(50) + Duration::from_micros(50) * tasks.len() as u32).await;
    let began = Instant::now();
    with(&relay, |relay| relay.window = Some((began, began + block)));
    let (relay_of_first, name) = (relay.clone(), name.to_owned());
    tasks.spawn(async move { take_turns(0, first, &name, &relay_of_first).await });
    let contenders = all(tasks, began + block).await?;
    let figures = with(&relay, |relay| {
        let took = &relay.took;
        vec![
            ("handovers_per_second", took.count() as f64 / block.as_secs_f64()),
            ("handover_p50_ms", took.at_ms(0.5)),
            ("handover_p90_ms", took.at_ms(0.9)),
            ("handover_p99_ms", took.at_ms(0.99)),
            ("handover_longest_ms", took.longest_ms()),
        ]
    });
    Ok((contenders, Done { operations: with(&relay, |relay| relay.grants), figures }))
}

/// The contender has the lock. It releases it and asks again until the time is over.
async fn take_turns(
    index: usize,
    mut contender: Box<dyn Contender>,
    name: &str,
    relay: &Mutex<Relay>,
) -> Result<(usize, Box<dyn Contender>)> {
    loop {
        let granted = Instant::now();
        let over = with(relay, |relay| {
            relay.grants += 1;
            let (from, until) = relay.window.expect("set before the first release");
            if let Some(released) = relay.released_at.take()
                && released >= from
                && granted <= until
            {
                relay.took.record(granted - released);
            }
            relay.released_at = Some(Instant::now());
            granted > until
        });
        contender.release().await?;
        if over {
            return Ok((index, contender));
        }
        contender.acquire(name).await?;
    }
}

/// All contenders take the name as readers, and none releases it before all have it.
async fn readers_together(contenders: Contenders, name: &str) -> Result<(Contenders, usize)> {
    let many = contenders.len();
    let all_have_it = Arc::new(Barrier::new(many));
    let mut tasks = JoinSet::new();
    for (index, mut contender) in contenders.into_iter().enumerate() {
        let (name, all_have_it) = (name.to_owned(), all_have_it.clone());
        tasks.spawn(async move {
            contender.acquire_shared(&name).await?;
            if tokio::time::timeout(READERS_PATIENCE, all_have_it.wait()).await.is_err() {
                bail!("a reader blocks a reader: the {many} readers did not all hold {name} at the same time");
            }
            contender.release().await?;
            Ok((index, contender))
        });
    }
    let contenders = all(tasks, Instant::now() + READERS_PATIENCE).await?;
    Ok((contenders, many))
}

/// Reads and writes at random, with the same random choices in every run.
async fn mixed(contenders: Contenders, name: &str, block: Duration) -> Result<(Contenders, Done)> {
    let (began, took) = (Instant::now(), Arc::new(Mutex::new((Took::default(), Took::default()))));
    let mut tasks = JoinSet::new();
    for (index, mut contender) in contenders.into_iter().enumerate() {
        let (name, took, mut random) = (name.to_owned(), took.clone(), Random::new(index as u64));
        tasks.spawn(async move {
            while began.elapsed() < block {
                let (writes, asked) = (random.next() % 100 < WRITERS_PERCENT, Instant::now());
                match writes {
                    true => contender.acquire(&name).await?,
                    false => contender.acquire_shared(&name).await?,
                }
                let granted = asked.elapsed();
                contender.release().await?;
                with(&took, |(reads, writes_took)| if writes { writes_took } else { reads }.record(granted));
            }
            Ok((index, contender))
        });
    }
    let contenders = all(tasks, began + block).await?;
    let elapsed = began.elapsed().as_secs_f64();
    let done = with(&took, |(reads, writes)| {
        let operations = reads.count() + writes.count();
        let figures = vec![
            ("pairs_per_second", operations as f64 / elapsed),
            ("read_p50_ms", reads.at_ms(0.5)),
            ("read_p99_ms", reads.at_ms(0.99)),
            ("write_p50_ms", writes.at_ms(0.5)),
            ("write_p99_ms", writes.at_ms(0.99)),
        ];
        Done { operations, figures }
    });
    Ok((contenders, done))
}

/// Waits for all tasks. Returns the contenders in their original order.
async fn all(mut tasks: JoinSet<Result<(usize, Box<dyn Contender>)>>, should_end: Instant) -> Result<Contenders> {
    let mut contenders = Vec::with_capacity(tasks.len());
    let until = tokio::time::Instant::from_std(should_end + PATIENCE);
    loop {
        let Ok(next) = tokio::time::timeout_at(until, tasks.join_next()).await else {
            bail!("{} contenders still wait {} s after the end of the block", tasks.len(), PATIENCE.as_secs());
        };
        let Some(ended) = next else { break };
        contenders.push(ended.context("the task of a contender failed")??);
    }
    contenders.sort_by_key(|(index, _)| *index);
    Ok(contenders.into_iter().map(|(_, contender)| contender).collect())
}

fn with<T, R>(shared: &Mutex<T>, look: impl FnOnce(&mut T) -> R) -> R {
    look(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}
