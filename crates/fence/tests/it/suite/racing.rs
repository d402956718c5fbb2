//! Writers that race on many connections: each reads a number and writes one more. Whoever is let in must have read the last.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use fencepost_fence::Error;

use super::{Connection, Store, block_on, writer};

const WRITERS: usize = 8;
/// Every so many rounds a writer dawdles, until somebody newer has claimed.
const DAWDLES_EVERY: usize = 5;

/// What the writers share.
#[derive(Default)]
struct Race {
    tokens: AtomicU64,
    newest_claim: AtomicU64,
    finished: AtomicUsize,
    admitted: AtomicUsize,
    refused: AtomicUsize,
}

/// Every round of every writer gets a token of its own, as if each had outlived the lease of the one before: nobody holds a
/// lock here. So the guard alone decides, and each update that it admits must build on the one before.
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
    assert!(refused > WRITERS, "those who dawdled are refused");
}

impl Race {
    async fn run(&self, connection: &mut impl Connection, rounds: usize) {
        let _finished = Finished(&self.finished);
        for round in 0..rounds {
            match self.update(connection, round % DAWDLES_EVERY == 0).await {
                Ok(()) => self.admitted.fetch_add(1, SeqCst),
                Err(Error::Stale(_)) => self.refused.fetch_add(1, SeqCst),
                Err(error) => {
                    // Nobody dawdles for one that is gone.
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

/// Counts a writer as finished when it is dropped, also by a panic: nobody may wait for it then.
struct Finished<'a>(&'a AtomicUsize);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}
