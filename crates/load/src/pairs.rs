//! The loops of the load: contenders take and release locks, and the loops record the latencies.
//!
//! Closed loop: each contender sends the next request when it has the answer to the last one, so a slow system gets fewer requests.
//! Open loop: the instants of the requests are fixed in advance. If all contenders are busy when a lock is due, its latency still
//! counts from the instant when it was due. Only the open loop shows the latency for users who do not slow down when the system does
//! (coordinated omission).
//!
//! The loops run on the caller's runtime. It usually has one thread, because servers and load share the cores of one machine.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::alarm::Alarm;
use crate::contender::Contender;

/// The contenders of a block, which is one timed part of a measurement. [`closed`] and [`open`] return them for the next block.
pub type Contenders = Vec<Box<dyn Contender>>;

/// A block that lasts this much longer than planned has hung.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Names of a contender with [`Names::Own`]. It cycles through them, so that the load uses many keys without contention.
const NAMES_EACH: usize = 8;

/// A histogram of durations, with three significant digits.
#[derive(Clone, Debug)]
pub struct Took(Histogram<u64>);

impl Default for Took {
    fn default() -> Took {
        // One nanosecond to ten minutes. A longer duration counts as ten minutes.
        Took(Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the library allows these bounds"))
    }
}

impl Took {
    /// Adds a duration.
    pub fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds all durations of another histogram.
    pub fn add(&mut self, other: &Took) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The quantile of this share, in milliseconds: 0.99 for p99. Zero if nothing was recorded.
    pub fn at_ms(&self, share: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_quantile(share) as f64 / 1e6 }
    }

    /// The longest duration, in milliseconds. Zero if nothing was recorded.
    pub fn longest_ms(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.max() as f64 / 1e6 }
    }
}

/// The measurements of a block.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// From the call until the grant. In an open loop, from the instant when the lock was due.
    pub acquire: Took,
    /// From the call until the system has confirmed the release.
    pub release: Took,
    /// From the start to the last release.
    pub elapsed: Duration,
}

impl Pairs {
    /// Pairs of acquire and release per second.
    pub fn per_second(&self) -> f64 {
        self.acquire.count() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Which names a contender asks for.
#[derive(Clone, Debug)]
pub enum Names {
    /// Names of its own, with this prefix.
    Own(String),
    /// The same names for all contenders: their prefix, and their number.
    Shared(String, usize),
}

impl Names {
    /// All names of a contender. Built before the load starts, so that formatting a name does not count as latency.
    fn of(&self, contender: usize) -> Vec<String> {
        match self {
            Names::Own(prefix) => (0..NAMES_EACH).map(|at| format!("{prefix}/{contender}/{at}")).collect(),
            // Each contender begins with another name.
            Names::Shared(prefix, many) => {
                (0..*many).map(|at| format!("{prefix}/{}", (contender + at) % many)).collect()
            }
        }
    }
}

/// The closed loop: each contender takes and releases one lock after the other, until `block` is over.
///
/// # Errors
/// The first error of a contender.
pub async fn closed(contenders: Contenders, names: &Names, block: Duration) -> Result<(Contenders, Pairs)> {
    let began = Instant::now();
    let pairs = Measured::default();
    let mut tasks = JoinSet::new();
    for (index, mut contender) in contenders.into_iter().enumerate() {
        let names = names.of(index);
        let pairs = pairs.clone();
        tasks.spawn(async move {
            for name in names.iter().cycle() {
                if began.elapsed() >= block {
                    break;
                }
                pair(&mut *contender, name, Instant::now(), &pairs).await?;
            }
            anyhow::Ok((index, contender))
        });
    }
    joined(tasks, pairs, began, block).await
}

/// The open loop: at each instant of `schedule`, counted from the start, a free contender takes and releases a lock. If all
/// contenders are busy, the first one that becomes free does.
///
/// # Errors
/// The first error of a contender.
pub async fn open(contenders: Contenders, names: &Names, schedule: Vec<Duration>) -> Result<(Contenders, Pairs)> {
    let length = schedule.last().copied().unwrap_or_default();
    let (due, next) = mpsc::unbounded_channel();
    let next = Arc::new(Mutex::new(next));
    let began = Instant::now();
    let pairs = Measured::default();
    let mut tasks = JoinSet::new();
    for (index, mut contender) in contenders.into_iter().enumerate() {
        let (names, next, pairs) = (names.of(index), next.clone(), pairs.clone());
        tasks.spawn(async move {
            for name in names.iter().cycle() {
                let Some(due) = next.lock().await.recv().await else { break };
                pair(&mut *contender, name, due, &pairs).await?;
            }
            anyhow::Ok((index, contender))
        });
    }
    let mut alarm = Alarm::new()?;
    let pace = async move {
        for at in schedule {
            alarm.until(began + at).await?;
            if due.send(began + at).is_err() {
                // Every contender has failed. `joined` returns the first error.
                break;
            }
        }
        anyhow::Ok(())
    };
    let (paced, joined) = tokio::join!(pace, joined(tasks, pairs, began, length));
    paced?;
    joined
}

/// The measurements of all contenders together. Histograms for each contender would not fit into the CPU caches, and the load would
/// measure its own cache misses.
type Measured = Arc<std::sync::Mutex<Pairs>>;

async fn pair(contender: &mut dyn Contender, name: &str, since: Instant, measured: &Measured) -> Result<()> {
    contender.acquire(name).await.with_context(|| format!("cannot acquire {name}"))?;
    let granted = Instant::now();
    contender.release().await.with_context(|| format!("cannot release {name}"))?;
    let took = granted.elapsed();
    let mut pairs = measured.lock().unwrap_or_else(PoisonError::into_inner);
    pairs.acquire.record(granted - since);
    pairs.release.record(took);
    Ok(())
}

type Joined = Result<(usize, Box<dyn Contender>)>;

/// Waits for all tasks. Returns the contenders in their original order, and their measurements.
async fn joined(
    mut tasks: JoinSet<Joined>,
    measured: Measured,
    began: Instant,
    length: Duration,
) -> Result<(Contenders, Pairs)> {
    let mut contenders = Vec::with_capacity(tasks.len());
    let until = tokio::time::Instant::from_std(began + length + PATIENCE);
    loop {
        let Ok(next) = tokio::time::timeout_at(until, tasks.join_next()).await else {
            bail!("{} contenders still wait {} s after the end of the block", tasks.len(), PATIENCE.as_secs());
        };
        let Some(ended) = next else { break };
        contenders.push(ended.context("the task of a contender failed")??);
    }
    let mut all = std::mem::take(&mut *measured.lock().unwrap_or_else(PoisonError::into_inner));
    all.elapsed = began.elapsed();
    contenders.sort_by_key(|(index, _)| *index);
    Ok((contenders.into_iter().map(|(_, contender)| contender).collect(), all))
}

/// The instants of an open loop: random with this rate, as if many independent users sent the requests. The gaps are distributed
/// exponentially. The same seed gives the same instants.
pub fn schedule(per_second: f64, length: Duration, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut schedule = Vec::with_capacity((per_second * length.as_secs_f64()) as usize);
    let mut at = 0.0;
    loop {
        at += -random.share().ln() / per_second;
        // With a rate of zero, `at` is infinite or NaN, and the loop ends here, too.
        if at >= length.as_secs_f64() || at.is_nan() {
            return schedule;
        }
        schedule.push(Duration::from_secs_f64(at));
    }
}

/// A random number generator: splitmix64. The same seed gives the same numbers.
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "not an iterator: it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number above zero and at most one. Never zero, because [`schedule`] takes its logarithm.
    pub fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;

    /// Grants every lock after `wait`, and counts the locks that are held.
    struct Slow {
        wait: Duration,
        held: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    #[async_trait]
    impl Contender for Slow {
        async fn acquire(&mut self, name: &str) -> Result<()> {
            anyhow::ensure!(!name.contains("bad"), "not this one");
            tokio::time::sleep(self.wait).await;
            let held = self.held.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(held, Ordering::Relaxed);
            Ok(())
        }

        async fn acquire_shared(&mut self, name: &str) -> Result<()> {
            self.acquire(name).await
        }

        async fn release(&mut self) -> Result<()> {
            self.held.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn slow(many: usize, wait: Duration) -> Contenders {
        let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let slow = |_| Box::new(Slow { wait, held: held.clone(), most: most.clone() }) as Box<dyn Contender>;
        (0..many).map(slow).collect()
    }

    #[test]
    fn a_schedule_has_its_rate_and_is_the_same_for_the_same_seed() {
        let length = Duration::from_secs(10);
        let once = schedule(1_000.0, length, 7);
        assert_eq!(once, schedule(1_000.0, length, 7));
        assert_ne!(once, schedule(1_000.0, length, 8));
        assert!((9_500..10_500).contains(&once.len()), "{}", once.len());
        assert!(once.is_sorted() && once.iter().all(|at| *at < length));
        // The gaps are random: some are much longer than the mean, and some much shorter.
        let gaps: Vec<Duration> = once.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().any(|gap| *gap > Duration::from_millis(4)));
        assert!(gaps.iter().any(|gap| *gap < Duration::from_micros(50)));
        assert!(schedule(0.0, length, 7).is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_open_loop_counts_from_the_instant_when_the_lock_was_due() {
        // Four locks are due at once, and the only contender takes 20 ms for each. So the last lock comes 80 ms late.
        let schedule = vec![Duration::ZERO; 4];
        let names = Names::Own("n".to_owned());
        let (contenders, pairs) =
            open(slow(1, Duration::from_millis(20)), &names, schedule).await.expect("no contender fails");
        assert_eq!((contenders.len(), pairs.acquire.count()), (1, 4));
        assert!(pairs.acquire.longest_ms() >= 79.0, "{}", pairs.acquire.longest_ms());
        assert!(pairs.acquire.at_ms(0.01) >= 19.0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_closed_loop_sends_the_next_request_after_the_answer() {
        let names = Names::Shared("n".to_owned(), 2);
        let (contenders, pairs) = closed(slow(3, Duration::from_millis(5)), &names, Duration::from_millis(40))
            .await
            .expect("no contender fails");
        assert_eq!(contenders.len(), 3);
        assert!(pairs.acquire.count() >= 3 && pairs.elapsed >= Duration::from_millis(40));
        assert!(pairs.per_second() > 0.0 && pairs.acquire.at_ms(0.5) >= 4.9);
        let bad = closed(slow(1, Duration::ZERO), &Names::Own("bad".to_owned()), Duration::from_millis(5)).await;
        let error = format!("{:#}", bad.err().expect("the contender fails"));
        assert_eq!(error, "cannot acquire bad/0/0: not this one");
    }

    #[test]
    fn names_belong_to_one_contender_or_to_all() {
        let (own, shared) = (Names::Own("p".to_owned()), Names::Shared("p".to_owned(), 2));
        assert!(own.of(0).iter().all(|name| !own.of(1).contains(name)));
        assert_eq!((shared.of(0), shared.of(1)), (vec!["p/0".into(), "p/1".into()], vec!["p/1".into(), "p/0".into()]));
    }

    #[test]
    fn an_empty_histogram_shows_zero() {
        let took = Took::default();
        assert_eq!((took.count(), took.at_ms(0.5), took.longest_ms()), (0, 0.0, 0.0));
    }
}
