//! Writers that race on many connections: each reads a number and writes one more. A write that is admitted must have read the
//! number that the last admitted write left.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use fencepost_fence::Error;

use super::{Connection, Store, block_on, writer};

const WRITERS: usize = 8;
/// Every this many rounds, a writer waits between its claim and its write, until a newer writer has claimed.
const DAWDLES_EVERY: usize = 5;

/// The state that all writers share.
#[derive(Default)]
struct Race {
    tokens: AtomicU64,
    newest_claim: AtomicU64,
    finished: AtomicUsize,
    admitted: AtomicUsize,
    refused: AtomicUsize,
}

/// There are no locks here: each round of each writer gets a new token, as if every writer had outlived its lease. So the guard
/// alone decides, and each update that it admits must build on the one before.
pub(crate) async fn racing_writers_lose_no_update<S: Store>(store: &S) {
    let race = Race::default();
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| block_on(async { race.run(&mut store.connect().await, S::RACING_ROUNDS).await }));
        }
    });
    let mut connection = store.connect().await;
    let (admitted, refused) = (race.admitted.into_inner(), race.refused.into_inner());
    let lost = WRITERS * S::RACING_ROUNDS - connection.peek("unguarded").await as usize;
    println!(
        "of {} racing updates {admitted} were admitted and {refused} refused; without the guard {lost} were lost",
        admitted + refused
    );
    assert_eq!(
        connection.peek("guarded").await,
        admitted as i64,
        "every update that was admitted builds on the one before"
    );
    assert!(admitted > 0, "the newest is always admitted");
    assert!(refused > WRITERS, "the writers that waited are refused");
}

impl Race {
    async fn run(&self, connection: &mut impl Connection, rounds: usize) {
        let _finished = Finished(&self.finished);
        for round in 0..rounds {
            match self.update(connection, round % DAWDLES_EVERY == 0).await {
                Ok(()) => self.admitted.fetch_add(1, SeqCst),
                Err(Error::Stale(_)) => self.refused.fetch_add(1, SeqCst),
                Err(error) => {
                    // No other writer may wait for this one.
                    self.finished.fetch_add(WRITERS, SeqCst);
                    panic!("{error:?}");
                }
            };
            let number = connection.peek("unguarded").await;
            connection.write_unguarded("unguarded", number + 1).await;
        }
    }

    async fn update(&self, connection: &mut impl Connection, dawdle: bool) -> Result<(), Error> {
        let token = self.tokens.fetch_add(1, SeqCst) + 1;
        let number = connection.claim("guarded", writer(token)).await?;
        self.newest_claim.fetch_max(token, SeqCst);
        while dawdle && self.newest_claim.load(SeqCst) == token && self.finished.load(SeqCst) < WRITERS - 1 {
            std::thread::yield_now();
        }
        connection.write("guarded", writer(token), number + 1).await
    }
}

/// Counts a writer as finished when it is dropped, also by a panic: then no other writer may wait for it.
struct Finished<'a>(&'a AtomicUsize);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}
