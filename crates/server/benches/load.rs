//! Operations a second of whole clusters, each node on a thread of its own with its log on a real disk, through real sockets:
//! `cargo bench -p fencepost-server --bench load`. With `FENCEPOST_BINARY=$PWD/target/release/fencepost` each node is a process of its own.
//!
//! The load is open streams that each keep a number of acquire and release pairs in flight. It runs on the same machine, so
//! what is measured is everything together; the processor time of all of it is the steadiest figure.

#[path = "../tests/client/mod.rs"]
mod client;
mod nodes;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::{Client, Heard, Place, lock, open, request};
use fencepost_core::{Action, Outcome, Wait};
use fencepost_wire::v1;
use nodes::{commit_probe, disk_probe, loopback_probe, processor_us, start_cluster};

/// One session that keeps so many pairs in flight: each answer to an acquire is followed by its release, and each release by
/// the next acquire. Gives back how many operations were answered and how long acquires took.
async fn keep_asking(address: SocketAddr, session: u128, in_flight: u64, until: Instant) -> (u64, Vec<Duration>) {
    let mut client = Client::connect(address).await.expect("the leader takes streams");
    client.say(v1::ClientMessage { opens: vec![open(session, 3_600_000)], ..Default::default() }).await;
    assert!(matches!(client.outcome().await, Outcome::Opened { .. }));
    let (mut answered, mut took, mut number, mut seen) = (0, Vec::new(), 0, 0);
    let take = |slot: u64| lock(&format!("load/{session}/{slot}"), Wait::No);
    let mut due: Vec<Action> = (0..in_flight).map(take).collect();
    // What is in flight, by number: which of the names it is about, and when it was sent.
    let mut slots: HashMap<u64, u64> = (1..=in_flight).map(|number| (number, number - 1)).collect();
    let mut sent: HashMap<u64, Instant> = HashMap::new();
    while Instant::now() < until {
        let mut message = v1::ClientMessage::default();
        for action in due.drain(..) {
            number += 1;
            if matches!(action, Action::Acquire(_)) {
                sent.insert(number, Instant::now());
            }
            message.requests.push(request(session, 1, number, action));
        }
        if seen > 0
            && let Some(first) = message.requests.first_mut()
        {
            first.seen_mark = seen;
        }
        client.say(message).await;
        // Everything that came in one message is answered in one message.
        let mut heard = vec![client.hear().await.expect("the stream is open")];
        heard.extend(client.heard_already());
        for heard in heard {
            let Heard::Answer { answer, .. } = heard else { panic!("not an answer: {heard:?}") };
            answered += 1;
            let at = answer.number.expect("a request").0;
            let slot = slots.remove(&at).expect("it was asked");
            let next = match answer.outcome {
                Outcome::Granted { grant, .. } => {
                    took.push(sent.remove(&at).expect("it was sent").elapsed());
                    Action::Release { grant }
                }
                Outcome::Released { .. } => take(slot),
                other => panic!("{other:?}"),
            };
            due.push(next);
            slots.insert(number + due.len() as u64, slot);
        }
        seen = slots.keys().copied().min().unwrap_or(1) - 1;
    }
    (answered, took)
}

fn main() {
    let seconds = std::env::var("FENCEPOST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let sizes: Vec<usize> = match std::env::var("FENCEPOST_NODES").ok().and_then(|text| text.parse().ok()) {
        Some(size) => vec![size],
        None => vec![1, 3, 5],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        println!(
            "nodes | streams x in flight | operations/s | p50 us | p99 us | processor us an operation | one sync us | one round trip us | one bare commit us"
        );
        for size in sizes {
            let place = Place::new(&format!("load-{size}"));
            let (leader, processes) = start_cluster(&place, size).await;
            let processor_us = || processor_us("self") + processes.processor_us();
            let mut session = 0;
            for (streams, in_flight) in [(1, 1), (1, 64), (16, 16), (256, 1), (64, 16)] {
                let (sync, round_trip, commit) = (disk_probe(&place), loopback_probe(), commit_probe(&place, size));
                let (started, processor) = (Instant::now(), processor_us());
                let until = started + Duration::from_secs(seconds);
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..streams {
                    session += 1;
                    tasks.spawn(keep_asking(leader, session, in_flight, until));
                }
                let (mut answered, mut took) = (0, Vec::new());
                while let Some(done) = tasks.join_next().await {
                    let (more, times) = done.expect("no stream fails");
                    answered += more;
                    took.extend(times);
                }
                took.sort();
                let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_micros();
                println!(
                    "{size} | {streams} x {in_flight} | {:.0} | {} | {} | {:.1} | {} | {} | {}",
                    answered as f64 / started.elapsed().as_secs_f64(),
                    at(0.5),
                    at(0.99),
                    (processor_us() - processor) as f64 / answered as f64,
                    sync.as_micros(),
                    round_trip.as_micros(),
                    commit.as_micros(),
                );
            }
        }
    });
    std::process::exit(0);
}
