//! What every guard must do, whatever its store: one set of tests, which [`suite!`] runs against each store.
//!
//! A store's test file implements how to connect, and how to read and write a name; the rest is here. Every test gets a fresh
//! store, so that tests do not share marks or base floors.
#![allow(dead_code, reason = "each store's test file uses what its store can do")]

mod histories;
mod once;
mod racing;

use fencepost_fence::rules::Shown;
use fencepost_fence::{Access, Claims, Error, FencingToken, Forgotten, ReadToken, Reads, Stale, Token, Writes};

pub(crate) use histories::{NAMES, Random, random_access, random_histories_agree_with_the_rules};
pub(crate) use once::*;
pub(crate) use racing::racing_writers_lose_no_update;

/// A guarded store with a number under each name, zero at first.
pub(crate) trait Store: Sync {
    type Connection: Connection;

    /// An access can show several names, and paths. Otherwise only one flat name at a time.
    const WHOLE_ACCESSES: bool;
    /// The store can forget marks. Otherwise marks live as long as the data that they protect.
    const FORGETS: bool = true;
    /// How many updates each racing writer makes. Fewer for a store whose test server is slow.
    const RACING_ROUNDS: usize = 300;

    async fn connect(&self) -> Self::Connection;
}

/// One client of the store.
pub(crate) trait Connection {
    /// Claims the name and reads its number, in one transaction.
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error>;
    /// Reads the number under a name as a reader, in one transaction.
    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error>;
    /// Writes the number with the guard, in one transaction.
    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error>;
    /// Reads the number without the guard.
    async fn peek(&mut self, name: &str) -> i64;
    /// Writes the number without the guard.
    async fn write_unguarded(&mut self, name: &str, number: i64);
    /// Only passes the guard, in one transaction, without a read or a write. For stores in which an access can show several names
    /// ([`Store::WHOLE_ACCESSES`]).
    async fn admit(&mut self, access: &AnyAccess) -> Result<(), Error>;
    /// Passes the guard, writes, and dies before the commit.
    async fn write_and_crash(self, name: &str, token: FencingToken, number: i64);
    /// Drops the marks below a token. For stores with [`Store::FORGETS`].
    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten, Error>;
}

/// An access of any kind.
#[derive(Clone, Debug)]
pub(crate) enum AnyAccess {
    Reads(Access<Reads>),
    Claims(Access<Claims>),
    Writes(Access<Writes>),
}

impl AnyAccess {
    pub(crate) fn shown(&self) -> &[Shown] {
        let shown = match self {
            AnyAccess::Reads(access) => access.shown(),
            AnyAccess::Claims(access) => access.shown(),
            AnyAccess::Writes(access) => access.shown(),
        };
        shown.expect("the tests use valid names")
    }
}

/// Runs every test of the suite. The expression creates a fresh store as `Option<impl Store>`; a test with `None` is skipped.
macro_rules! suite {
    ($fresh:expr) => {
        crate::suite::suite!(@each $fresh; rising_and_equal_pass_and_stale_is_refused, a_claim_shuts_out_older_writers,
            readers_share_and_shut_out_older_writers, nothing_counts_before_it_is_committed, forgetting_raises_the_base_floor,
            racing_writers_lose_no_update, random_histories_agree_with_the_rules);
    };
    (@each $fresh:expr; $($test:ident),*) => {$(
        #[test]
        fn $test() {
            if let Some(store) = $fresh {
                crate::suite::block_on(crate::suite::$test(&store));
            }
        }
    )*};
}
pub(crate) use suite;

pub(crate) fn block_on<Done>(work: impl Future<Output = Done>) -> Done {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

pub(crate) fn writer(token: u64) -> FencingToken {
    FencingToken::of_exclusive(Token(token))
}

pub(crate) fn reader(token: u64) -> ReadToken {
    ReadToken::of_grant(Token(token))
}

/// Asserts that the outcome is a stale token, with the highest token that was seen.
#[track_caller]
pub(crate) fn stale<Done: std::fmt::Debug>(outcome: Result<Done, Error>, token: u64, highest: u64) {
    match outcome {
        Err(Error::Stale(Stale { token: shown, highest: seen, .. })) => {
            assert_eq!(
                (shown, seen),
                (Token(token), Token(highest)),
                "the refusal says what was shown and what was seen"
            );
        }
        other => panic!("{token} is stale since {highest} was seen, but: {other:?}"),
    }
}

// Rule: fence
pub(crate) async fn rising_and_equal_pass_and_stale_is_refused(store: &impl Store) {
    let mut connection = store.connect().await;
    connection.write("wallet", writer(5), 50).await.expect("the first");
    connection.write("wallet", writer(5), 51).await.expect("one holder writes many times");
    connection.write("wallet", writer(7), 70).await.expect("a newer one");
    stale(connection.write("wallet", writer(5), 52).await, 5, 7);
    stale(connection.write("wallet", writer(6), 60).await, 6, 7);
    stale(connection.claim("wallet", writer(6)).await, 6, 7);
    assert_eq!(connection.peek("wallet").await, 70, "a refused write leaves no trace");
    connection.write("another wallet", writer(5), 5).await.expect("each name has marks of its own");
    connection.write("wallet", writer((1 << 53) - 1), 71).await.expect("the largest possible token");
}

// Rule: claim-before-read
pub(crate) async fn a_claim_shuts_out_older_writers(store: &impl Store) {
    let (mut old, mut new) = (store.connect().await, store.connect().await);
    old.claim("wallet", writer(5)).await.expect("the first");
    old.write("wallet", writer(5), 50).await.expect("it holds the lock");
    assert_eq!(new.claim("wallet", writer(7)).await.expect("newer"), 50);
    // Nothing was written since, and yet the older holder is shut out: what the newer one read must not change.
    stale(old.write("wallet", writer(5), 51).await, 5, 7);
    new.write("wallet", writer(7), 49).await.expect("it holds the lock");
    assert_eq!(new.peek("wallet").await, 49);
}

// Rule: fence
pub(crate) async fn readers_share_and_shut_out_older_writers(store: &impl Store) {
    let mut connection = store.connect().await;
    connection.write("wallet", writer(5), 50).await.expect("the first");
    assert_eq!(connection.read("wallet", reader(8)).await.expect("newer than every write"), 50);
    assert_eq!(connection.read("wallet", reader(7)).await.expect("readers do not shut each other out"), 50);
    stale(connection.write("wallet", writer(7), 70).await, 7, 8);
    connection.write("wallet", writer(9), 90).await.expect("newer than every reader");
    stale(connection.read("wallet", reader(8)).await, 8, 9);
}

// Rule: same-transaction
pub(crate) async fn nothing_counts_before_it_is_committed(store: &impl Store) {
    let mut connection = store.connect().await;
    connection.write("wallet", writer(5), 50).await.expect("the first");
    store.connect().await.write_and_crash("wallet", writer(7), 70).await;
    assert_eq!(connection.peek("wallet").await, 50, "it died before the commit");
    store.connect().await.write("wallet", writer(7), 71).await.expect("its lock still stands, and so does its token");
    assert_eq!(connection.peek("wallet").await, 71);
    stale(connection.write("wallet", writer(6), 60).await, 6, 7);
}

// Rule: fence-gc
pub(crate) async fn forgetting_raises_the_base_floor<S: Store>(store: &S) {
    if !S::FORGETS {
        return;
    }
    let mut connection = store.connect().await;
    connection.write("old", writer(5), 50).await.expect("the first");
    connection.write("young", writer(9), 90).await.expect("another name");
    let forgotten = connection.forget_below(Token(8)).await.expect("it serves");
    assert_eq!(forgotten, Forgotten { names: 1, base: Token(8) });
    stale(connection.write("old", writer(7), 70).await, 7, 8);
    stale(connection.write("never seen", writer(7), 70).await, 7, 8);
    stale(connection.write("young", writer(8), 80).await, 8, 9);
    connection.write("old", writer(8), 80).await.expect("as old as the oldest living token");
    connection.write("young", writer(9), 91).await.expect("its marks are still there");
    let again = connection.forget_below(Token(3)).await.expect("it serves");
    assert_eq!(again.base, Token(8), "the base floor only rises");
    assert_eq!(connection.peek("old").await, 80);
}
