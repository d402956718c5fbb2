//! The load: contenders that take locks and give them back, and how long they waited.
//!
//! Closed loop: each contender asks again when it has its answer, so a slow system is asked less often. Open loop: the instants
//! are fixed beforehand, and a lock that was due while all contenders were busy counts from the instant when it was due. Only the
//! open loop shows what a user would feel who does not slow down because others wait (coordinated omission).
//!
//! All of it runs on the runtime of the caller, which has one thread: servers and load share the cores of one machine.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::alarm::Alarm;
use crate::contender::Contender;

/// Those who take part in a block, and in the next one again.
pub type Contenders = Vec<Box<dyn Contender>>;

/// A block that takes so much longer than it should has hung.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Names of its own that a contender goes round: many keys, and none that another wants.
const NAMES_EACH: usize = 8;

/// How long something took, each time, with three digits.
#[derive(Clone, Debug)]
pub struct Took(Histogram<u64>);

impl Default for Took {
    fn default() -> Took {
        // A nanosecond to ten minutes: whatever is longer counts as that.
        Took(Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds that the library allows"))
    }
}

impl Took {
    /// One more.
    pub fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Those of another one, too.
    pub fn add(&mut self, other: &Took) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// In milliseconds, what this share of them did not exceed; zero if there was none.
    pub fn at_ms(&self, share: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_quantile(share) as f64 / 1e6 }
    }

    /// In milliseconds, the longest.
    pub fn longest_ms(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.max() as f64 / 1e6 }
    }
}

/// What a block of pairs came to.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// From the call until the lock was there; in an open loop from the instant when it was due.
    pub acquire: Took,
    /// From the call until the lock was free.
    pub release: Took,
    /// From the start to the last release.
    pub elapsed: Duration,
}

impl Pairs {
    /// Pairs of acquire and release a second.
    pub fn per_second(&self) -> f64 {
        self.acquire.count() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Which names a contender asks for.
#[derive(Clone, Debug)]
pub enum Names {
    /// Some of its own, that nobody else wants.
    Own(String),
    /// The same few for everybody, so many of them.
    Shared(String, usize),
}

impl Names {
    /// Made beforehand: the load is not to measure how a name is put together.
    fn of(&self, contender: usize) -> Vec<String> {
        match self {
            Names::Own(prefix) => (0..NAMES_EACH).map(|at| format!("{prefix}/{contender}/{at}")).collect(),
            // Each begins somewhere else.
            Names::Shared(prefix, many) => {
                (0..*many).map(|at| format!("{prefix}/{}", (contender + at) % many)).collect()
            }
        }
    }
}

/// Each contender takes and gives back one lock after the other, for so long.
///
/// # Errors
/// The first that a contender had.
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

/// The contenders together take a lock at each of these instants after the start, or as soon after as one of them is free.
///
/// # Errors
/// The first that a contender had.
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
                // Every contender has failed, and one of them says why.
                break;
            }
        }
        anyhow::Ok(())
    };
    let (paced, joined) = tokio::join!(pace, joined(tasks, pairs, began, length));
    paced?;
    joined
}

/// What all contenders measure, in one place: a histogram each would not fit into the caches, and the load would measure itself.
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

/// All of them in the order in which they were given, and what they measured together.
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
        contenders.push(ended.context("a contender broke off")??);
    }
    let mut all = std::mem::take(&mut *measured.lock().unwrap_or_else(PoisonError::into_inner));
    all.elapsed = began.elapsed();
    contenders.sort_by_key(|(index, _)| *index);
    Ok((contenders.into_iter().map(|(_, contender)| contender).collect(), all))
}

/// The instants of an open loop: so many a second at random, as when many independent users come, and the same for the same
/// seed. Gaps are exponential.
pub fn schedule(per_second: f64, length: Duration, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut schedule = Vec::with_capacity((per_second * length.as_secs_f64()) as usize);
    let mut at = 0.0;
    loop {
        at += -random.share().ln() / per_second;
        // Also ends if the rate is zero, where the next instant is never, or no number.
        if at >= length.as_secs_f64() || at.is_nan() {
            return schedule;
        }
        schedule.push(Duration::from_secs_f64(at));
    }
}

/// Numbers that look random and are the same for the same seed: splitmix64.
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above zero, and at most one.
    pub fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;

    /// Gives every lock after a while, and counts who holds one.
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
        // At random: some gaps are much longer than the mean, and some much shorter.
        let gaps: Vec<Duration> = once.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().any(|gap| *gap > Duration::from_millis(4)));
        assert!(gaps.iter().any(|gap| *gap < Duration::from_micros(50)));
        assert!(schedule(0.0, length, 7).is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_open_loop_counts_from_the_instant_when_the_lock_was_due() {
        // Four are due at once, and one contender takes 20 ms for each: the last one has waited for all.
        let schedule = vec![Duration::ZERO; 4];
        let names = Names::Own("n".to_owned());
        let (contenders, pairs) = open(slow(1, Duration::from_millis(20)), &names, schedule).await.expect("it works");
        assert_eq!((contenders.len(), pairs.acquire.count()), (1, 4));
        assert!(pairs.acquire.longest_ms() >= 79.0, "{}", pairs.acquire.longest_ms());
        assert!(pairs.acquire.at_ms(0.01) >= 19.0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_closed_loop_asks_again_when_it_has_its_answer() {
        let names = Names::Shared("n".to_owned(), 2);
        let (contenders, pairs) =
            closed(slow(3, Duration::from_millis(5)), &names, Duration::from_millis(40)).await.expect("it works");
        assert_eq!(contenders.len(), 3);
        assert!(pairs.acquire.count() >= 3 && pairs.elapsed >= Duration::from_millis(40));
        assert!(pairs.per_second() > 0.0 && pairs.acquire.at_ms(0.5) >= 4.9);
        let bad = closed(slow(1, Duration::ZERO), &Names::Own("bad".to_owned()), Duration::from_millis(5)).await;
        let error = format!("{:#}", bad.err().expect("the contender fails"));
        assert_eq!(error, "cannot acquire bad/0/0: not this one");
    }

    #[test]
    fn names_are_a_contenders_own_or_everybodys() {
        let (own, shared) = (Names::Own("p".to_owned()), Names::Shared("p".to_owned(), 2));
        assert!(own.of(0).iter().all(|name| !own.of(1).contains(name)));
        assert_eq!((shared.of(0), shared.of(1)), (vec!["p/0".into(), "p/1".into()], vec!["p/1".into(), "p/0".into()]));
    }

    #[test]
    fn nothing_took_no_time() {
        let took = Took::default();
        assert_eq!((took.count(), took.at_ms(0.5), took.longest_ms()), (0, 0.0, 0.0));
    }
}
