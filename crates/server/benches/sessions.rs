//! What sessions cost when nothing happens, and how fast their locks are handed on when they die: three nodes on threads of their
//! own, with their logs on a real disk: `cargo bench -p fencepost-server --bench sessions`.

#[path = "../tests/client/mod.rs"]
mod client;
mod nodes;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::{Client, Heard, Place, channel, lock, open, request, status_of};
use fencepost_core::{Epoch, Outcome, Push, Seen, SessionId, Wait};
use fencepost_wire::{api, v1};

const SESSIONS: u128 = 100_000;
const STREAMS: u128 = 1_000;
const LOCKS_PER_SESSION: u64 = 5;
const DYING: u128 = 10_000;
const TTL_MS: u64 = 30_000;
const DYING_TTL_MS: u64 = 10_000;

/// Opens sessions on a stream, and gives back the answers to what they ask then.
async fn open_all(client: &mut Client, sessions: std::ops::Range<u128>, ttl_ms: u64) {
    let count = (sessions.end - sessions.start) as usize;
    for some in sessions.collect::<Vec<_>>().chunks(500) {
        let opens = some.iter().map(|session| open(*session, ttl_ms)).collect();
        client.say(v1::ClientMessage { opens, ..Default::default() }).await;
    }
    for _ in 0..count {
        assert!(matches!(client.outcome().await, Outcome::Opened { .. }));
    }
}

async fn applied(address: SocketAddr) -> u64 {
    status_of(address).await.expect("the leader answers").applied.expect("a position").index
}

/// 100,000 sessions on 1,000 streams, each with five locks, that only say that they live.
async fn idle(leader: SocketAddr) {
    let per_stream = SESSIONS / STREAMS;
    let mut streams = Vec::new();
    let started = Instant::now();
    // Ten streams to a connection, and no more than ten thousand sessions to a principal.
    for group in 0..STREAMS / 10 {
        let channel = channel(leader);
        for stream in group * 10..group * 10 + 10 {
            let who = format!("idle-{}", stream / 50);
            let mut client = Client::connect_as(&who, channel.clone()).await.expect("the leader takes streams");
            let sessions = 1 + stream * per_stream..1 + (stream + 1) * per_stream;
            open_all(&mut client, sessions.clone(), TTL_MS).await;
            for number in 1..=LOCKS_PER_SESSION {
                let ask = |session| request(session, 1, number, lock(&format!("idle/{session}/{number}"), Wait::No));
                client
                    .say(v1::ClientMessage { requests: sessions.clone().map(ask).collect(), ..Default::default() })
                    .await;
                for _ in sessions.clone() {
                    assert!(matches!(client.outcome().await, Outcome::Granted { .. }));
                }
            }
            streams.push((client, sessions));
        }
    }
    println!("{SESSIONS} sessions with {LOCKS_PER_SESSION} locks each were opened in {:.1?}", started.elapsed());

    // A third of the TTL for all of them, spread evenly, as it is when clients begin at different times.
    let beat = Duration::from_millis(TTL_MS / 3) / STREAMS as u32;
    let (mut from, mut entries, mut processor) = (Instant::now(), 0, Duration::ZERO);
    for round in 0..3 {
        for (client, sessions) in &mut streams {
            let seen = Seen { mark: LOCKS_PER_SESSION, ..Seen::default() };
            let alive = |session| api::keep_alive_to_wire(SessionId(session), Epoch(1), &seen);
            let keep_alives = sessions.clone().map(alive).collect();
            client.say(v1::ClientMessage { keep_alives, ..Default::default() }).await;
            tokio::time::sleep(beat).await;
        }
        for (client, sessions) in &mut streams {
            for _ in sessions.clone() {
                assert_eq!(client.outcome().await, Outcome::Renewed);
            }
        }
        if round == 0 {
            (from, entries, processor) = (Instant::now(), applied(leader).await, leader_processor());
        }
    }
    let seconds = from.elapsed().as_secs_f64();
    let counts = status_of(leader).await.expect("the leader answers").counts.expect("counts");
    println!(
        "{} sessions, {} locks, idle for {seconds:.0} s: {:.1} entries a second, {:.1}% of a core for the leader",
        counts.sessions,
        counts.grants,
        (applied(leader).await - entries) as f64 / seconds,
        (leader_processor() - processor).as_secs_f64() / seconds * 100.0,
    );
}

/// The leader's thread, and the one of its disk; the disks of the others have the same name, so it is an upper bound.
fn leader_processor() -> Duration {
    nodes::processor_of("n1") + nodes::processor_of("fencepost-disk")
}

/// 10,000 sessions that each hold a lock that another one waits for stop saying that they live.
async fn dying(leader: SocketAddr) {
    let mut heirs = Client::connect_as("heirs", channel(leader)).await.expect("the leader takes streams");
    let mut holders = Client::connect_as("holders", channel(leader)).await.expect("the leader takes streams");
    let (first_holder, first_heir) = (10_000_000, 20_000_000);
    open_all(&mut heirs, first_heir..first_heir + DYING, 600_000).await;
    open_all(&mut holders, first_holder..first_holder + DYING, DYING_TTL_MS).await;
    for (client, first, wait) in [(&mut holders, first_holder, Wait::No), (&mut heirs, first_heir, Wait::Forever)] {
        let sessions: Vec<u128> = (0..DYING).collect();
        for some in sessions.chunks(1_000) {
            let ask = |at: &u128| request(first + at, 1, 1, lock(&format!("dying/{at}"), wait));
            client.say(v1::ClientMessage { requests: some.iter().map(ask).collect(), ..Default::default() }).await;
        }
        for _ in sessions {
            assert!(matches!(client.outcome().await, Outcome::Granted { .. } | Outcome::Queued { .. }));
        }
    }
    // The last sign of life of all of them, in one go; from here on they are silent.
    for some in (0..DYING).collect::<Vec<_>>().chunks(2_000) {
        let alive = |at: &u128| api::keep_alive_to_wire(SessionId(first_holder + at), Epoch(1), &Seen::default());
        holders.say(v1::ClientMessage { keep_alives: some.iter().map(alive).collect(), ..Default::default() }).await;
    }
    let mut last_stamp = 0;
    for _ in 0..DYING {
        match holders.hear().await.expect("the stream is open") {
            Heard::Answer { stamp_ms, .. } => last_stamp = last_stamp.max(stamp_ms),
            other => panic!("not renewed: {other:?}"),
        }
    }
    let (renewed, before) = (Instant::now(), applied(leader).await);
    let (mut first, mut positions) = (None, std::collections::BTreeSet::new());
    for _ in 0..DYING {
        match heirs.hear().await.expect("the stream is open") {
            Heard::Push { index, push: Push::Ended { outcome: Outcome::Granted { .. }, .. } } => {
                first.get_or_insert(renewed.elapsed());
                positions.insert(index);
            }
            other => panic!("not handed on: {other:?}"),
        }
    }
    let (last, entries) = (renewed.elapsed(), applied(leader).await - before);
    println!(
        "{DYING} sessions died at once: their locks were with the next holders {:.0} to {:.0} ms after the deadline, by {} of {entries} \
         entries since",
        first.unwrap_or_default().as_secs_f64() * 1_000.0 - DYING_TTL_MS as f64,
        last.as_secs_f64() * 1_000.0 - DYING_TTL_MS as f64,
        positions.len(),
    );
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let place = Place::new("sessions");
        let (leader, _processes) = nodes::start_cluster(&place, 3).await;
        dying(leader).await;
        idle(leader).await;
    });
    std::process::exit(0);
}
