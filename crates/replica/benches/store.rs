//! How many entries a second the log writes, with a sync for each write, on the disk of the temporary directory.
#![allow(clippy::disallowed_methods, reason = "a benchmark of files needs a directory")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fencepost_core::LogPosition;
use fencepost_replica::store::{Identity, LogStore, Start};
use fencepost_replica::{Log, LogWrite};
use raft::eraftpb::{ConfState, Entry};

const GROUP: u64 = 1;
const ENTRY_BYTES: usize = 100;
/// Entries between two compactions, about as with snapshots.
const COMPACT_AFTER_ENTRIES: u64 = 500_000;

fn synced_writes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("synced_writes");
    for batch in [1_u64, 64, 1024] {
        let directory = std::env::temp_dir().join(format!("fencepost-bench-{}-{batch}", std::process::id()));
        let identity = Identity { cluster: 1, node: 1 };
        let (store, log) =
            LogStore::open(&directory, identity, GROUP, Start::New(&Log::new(&[1]))).expect("an empty directory");
        let (mut last, mut compacted) = (log.last().index, log.last().index);
        group.throughput(Throughput::Elements(batch));
        group.bench_function(format!("{batch} entries of {ENTRY_BYTES} bytes"), |bencher| {
            bencher.iter_batched(
                || {
                    let data = vec![b'x'; ENTRY_BYTES];
                    let entry = |index| Entry { index, term: 1, data: data.clone().into(), ..Entry::default() };
                    let entries = (last + 1..=last + batch).map(entry).collect();
                    last += batch;
                    if last - compacted > COMPACT_AFTER_ENTRIES {
                        compacted = last - batch;
                        let before = LogPosition { index: compacted, term: 1 };
                        let members = ConfState { voters: vec![1], ..ConfState::default() };
                        store.compact(GROUP, before, &members).expect("a sound disk");
                    }
                    LogWrite { snapshot: None, number: 0, hard_state: None, entries, must_sync: true }
                },
                |write| store.write(GROUP, &write).expect("a sound disk"),
                // The next write must not be prepared before the last one is done: its indexes follow.
                BatchSize::PerIteration,
            );
        });
        drop(store);
        std::fs::remove_dir_all(&directory).expect("it was made above");
    }
    group.finish();
}

criterion_group!(benches, synced_writes);
criterion_main!(benches);
