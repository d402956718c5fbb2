//! The efficiency tier beside a single Redis: `cargo bench -p fencepost-backends --features redis --bench efficiency`.
//!
//! Pairs of taking and giving back a lock, each on a name of its own, with a number of them in flight over one connection. Redis
//! is spoken to as its users do it: the `redis` crate, `SET NX PX`, and a script that compares and deletes; the server is
//! Debian's, and keeps nothing on disk. Fencepost is one node in a process of its own, and
//! its own client. Both servers and the load share this machine, so what is compared is everything together.
//!
//! Blocks alternate, so that a noisy machine is noisy for both. Figures are medians over the blocks, with the range.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fencepost::testing::TestServer;
use fencepost_testbed::{Kind, own};
use redis::Script;
use tokio::task::JoinSet;

const BLOCK: Duration = Duration::from_millis(1_500);
const BLOCKS: usize = 7;
const IN_FLIGHT: [usize; 4] = [1, 16, 64, 256];
const TTL_MS: u64 = 30_000;
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// What one block came to.
struct Block {
    pairs_per_second: f64,
    acquire_p50: Duration,
    acquire_p99: Duration,
}

fn main() {
    if std::env::args().any(|word| word == "serve") {
        let server = TestServer::start();
        println!("{}", server.address());
        // Until whoever started it closes the pipe.
        let _ = std::io::read_to_string(std::io::stdin());
        return;
    }
    // One thread for the load, as each of the servers has one: there are two cores.
    let runtime = match std::env::var("FENCEPOST_BENCH_THREADS").as_deref() {
        Ok("2") => tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build(),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build(),
    };
    runtime.expect("a runtime").block_on(compare());
}

async fn compare() {
    let Some(redis) = own(Kind::Redis) else { return };
    let (mut node, address) = start_node();
    let fencepost = fencepost::Client::connect(&format!("fencepost://{address}")).await.expect("the node is up");
    let connection = redis::Client::open(redis.url()).expect("its own address");
    let mut connection = connection.get_multiplexed_async_connection().await.expect("it is up");
    let no_log: String =
        redis::cmd("CONFIG").arg(&["SET", "appendonly", "no"]).query_async(&mut connection).await.expect("it is ours");
    assert_eq!(no_log, "OK");
    println!("in flight | system    | pairs/s (range)            | acquire p50 (range)      | p99");
    for in_flight in IN_FLIGHT {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=BLOCKS {
            let client = fencepost.clone();
            let ours_now = block(in_flight, move |slot| pair_of_fencepost(client.clone(), slot)).await;
            let client = connection.clone();
            let theirs_now = block(in_flight, move |slot| pair_of_redis(client.clone(), slot)).await;
            // The first is for warming up.
            if round > 0 {
                ours.push(ours_now);
                theirs.push(theirs_now);
            }
        }
        report(in_flight, "fencepost", &ours);
        report(in_flight, "redis", &theirs);
        let ratio = |value: fn(&Block) -> f64| median(&ours, value) / median(&theirs, value);
        println!(
            "{in_flight:>9} | ratio     | {:.2} x pairs/s, {:.2} x p50",
            ratio(|block| block.pairs_per_second),
            ratio(|block| block.acquire_p50.as_secs_f64()),
        );
    }
    drop(node.stdin.take());
    let _ = node.wait();
}

/// A node in a process of its own.
fn start_node() -> (Child, String) {
    use std::io::BufRead;
    let program = std::env::current_exe().expect("we run");
    let node = Command::new(program).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut node = node.expect("it can be started once more");
    let mut address = String::new();
    let output = node.stdout.take().expect("piped");
    std::io::BufReader::new(output).read_line(&mut address).expect("it says where it is");
    (node, address.trim().to_owned())
}

/// Keeps so many pairs in flight for a while: each task does one after the other.
async fn block<F>(in_flight: usize, pair: impl Fn(usize) -> F + Clone + Send + 'static) -> Block
where
    F: Future<Output = Duration> + Send,
{
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for slot in 0..in_flight {
        let pair = pair.clone();
        tasks.spawn(async move {
            let mut took = Vec::new();
            while began.elapsed() < BLOCK {
                took.push(pair(slot).await);
            }
            took
        });
    }
    let mut took: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let pairs_per_second = took.len() as f64 / began.elapsed().as_secs_f64();
    took.sort_unstable();
    let part = |of_thousand: usize| took[(took.len() * of_thousand / 1_000).min(took.len() - 1)];
    Block { pairs_per_second, acquire_p50: part(500), acquire_p99: part(990) }
}

/// How long it took to get the lock.
async fn pair_of_fencepost(client: fencepost::Client, slot: usize) -> Duration {
    let asked = Instant::now();
    let guard = client.lock(format!("bench/{slot}")).efficiency().acquire().await.expect("it is free");
    let took = asked.elapsed();
    guard.release().await.expect("it was held");
    took
}

async fn pair_of_redis(mut connection: redis::aio::MultiplexedConnection, slot: usize) -> Duration {
    let (key, value) = (format!("bench/{slot}"), format!("{:032x}", unique()));
    let asked = Instant::now();
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(&value).arg("NX").arg("PX").arg(TTL_MS);
    let taken: Option<String> = set.query_async(&mut connection).await.expect("it is up");
    assert!(taken.is_some(), "it is free");
    let took = asked.elapsed();
    thread_local!(static SCRIPT: Script = Script::new(RELEASE));
    let script = SCRIPT.with(Script::clone);
    let deleted: i64 = script.key(&key).arg(&value).invoke_async(&mut connection).await.expect("it is up");
    assert_eq!(deleted, 1);
    took
}

/// A value that nobody else has.
fn unique() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("this machine has randomness");
    u128::from_le_bytes(bytes)
}

fn median(blocks: &[Block], value: fn(&Block) -> f64) -> f64 {
    let mut values: Vec<f64> = blocks.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(in_flight: usize, system: &str, blocks: &[Block]) {
    let range = |value: fn(&Block) -> f64| {
        let values = blocks.iter().map(value);
        (values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max))
    };
    let pairs = |block: &Block| block.pairs_per_second;
    let p50 = |block: &Block| block.acquire_p50.as_secs_f64() * 1e3;
    let ((fewest, most), (least, longest)) = (range(pairs), range(p50));
    println!(
        "{in_flight:>9} | {system:<9} | {:>7.0} ({fewest:.0} to {most:.0}) | {:.3} ms ({least:.3} to {longest:.3}) | {:.3} ms",
        median(blocks, pairs),
        median(blocks, p50),
        median(blocks, |block| block.acquire_p99.as_secs_f64() * 1e3),
    );
}
