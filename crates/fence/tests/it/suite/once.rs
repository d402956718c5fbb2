//! What every `once` must do, whatever its store: one set of tests, which [`once_suite!`] runs against each store that has it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fencepost_fence::{Before, Error, Name, Once, Status, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Connection, Store, block_on, stale, writer};
use fencepost_fence::FencingToken;

/// A store whose guard has `once`.
pub(crate) trait HasOnce: Store<Connection: Records> {}

impl<S: Store<Connection: Records>> HasOnce for S {}

/// One client of such a store.
pub(crate) trait Records: Connection {
    /// Records the key and adds one to the number under the name, in one transaction.
    async fn once(&mut self, name: &str, key: &str, token: FencingToken) -> Result<(), Error>;
    /// Tries to record each key in one transaction.
    async fn batch(&mut self, name: &str, keys: &[&str], token: FencingToken) -> Result<Vec<Once>, Error>;
    /// Records the key, adds one to the number, and dies before the commit.
    async fn once_and_crash(self, name: &str, key: &str, token: FencingToken);
    async fn forget(&mut self, name: &str, key: &str) -> Result<Option<Token>, Error>;
    async fn status(&mut self) -> Status;
}

macro_rules! once_suite {
    ($fresh:expr) => {
        crate::suite::suite!(@each $fresh; the_second_transaction_with_a_key_is_refused, a_key_counts_only_with_its_work,
            a_late_holder_records_no_key, a_batch_leaves_out_what_was_done, keys_are_compared_byte_by_byte,
            keys_that_are_not_valid_are_refused, a_forgotten_key_can_be_recorded_again_and_tidying_forgets_none,
            of_racing_transactions_with_one_key_one_does_the_work);
    };
}
pub(crate) use once_suite;

pub(crate) fn before(name: &str, key: &str, token: u64, own: bool) -> Before {
    Before { name: Name::new(name).expect("a name"), key: key.to_owned(), token: Token(token), own }
}

/// Asserts that the work was done before.
#[track_caller]
pub(crate) fn done_before<Done: std::fmt::Debug>(outcome: Result<Done, Error>, expected: &Before) {
    let refused = outcome.expect_err("it was done before");
    assert_eq!(refused.before(), Some(expected), "{refused}");
}

// Rule: once
pub(crate) async fn the_second_transaction_with_a_key_is_refused(store: &impl HasOnce) {
    let mut connection = store.connect().await;
    connection.once("billing", "2026-11", writer(5)).await.expect("the first");
    done_before(connection.once("billing", "2026-11", writer(5)).await, &before("billing", "2026-11", 5, true));
    done_before(connection.once("billing", "2026-11", writer(7)).await, &before("billing", "2026-11", 5, false));
    let mut other = store.connect().await;
    done_before(other.once("billing", "2026-11", writer(5)).await, &before("billing", "2026-11", 5, true));
    assert_eq!(connection.peek("billing").await, 1, "a refused transaction leaves no trace");
    connection.once("billing", "2026-12", writer(5)).await.expect("another key");
    connection.once("shipping", "2026-11", writer(5)).await.expect("another name");
    assert_eq!(connection.status().await.keys, Some(3));
}

// Rule: once
pub(crate) async fn a_key_counts_only_with_its_work(store: &impl HasOnce) {
    store.connect().await.once_and_crash("billing", "2026-11", writer(5)).await;
    let mut connection = store.connect().await;
    connection.once("billing", "2026-11", writer(6)).await.expect("the transaction before has left nothing");
    assert_eq!(connection.peek("billing").await, 1);
}

// Rule: once
pub(crate) async fn a_late_holder_records_no_key(store: &impl HasOnce) {
    let (mut old, mut new) = (store.connect().await, store.connect().await);
    old.once("billing", "2026-10", writer(5)).await.expect("it holds the lock");
    new.claim("billing", writer(7)).await.expect("newer");
    stale(old.once("billing", "2026-11", writer(5)).await, 5, 7);
    stale(old.batch("billing", &["2026-11"], writer(5)).await, 5, 7);
    stale(old.once("billing", "2026-10", writer(5)).await, 5, 7);
    assert_eq!(new.status().await.keys, Some(1));
    new.once("billing", "2026-11", writer(7)).await.expect("it holds the lock");
    assert_eq!(new.peek("billing").await, 2);
}

// Rule: once
pub(crate) async fn a_batch_leaves_out_what_was_done(store: &impl HasOnce) {
    let mut connection = store.connect().await;
    connection.once("billing", "b", writer(5)).await.expect("the first");
    let found = connection.batch("billing", &["a", "b", "c", "a"], writer(6)).await.expect("it goes on");
    let of_earlier = |key, token, own| Once::Before(before("billing", key, token, own));
    assert_eq!(found, [Once::First, of_earlier("b", 5, false), Once::First, of_earlier("a", 6, true)]);
    let again = connection.batch("billing", &["a", "b", "c"], writer(6)).await.expect("it goes on");
    assert_eq!(again, [of_earlier("a", 6, true), of_earlier("b", 5, false), of_earlier("c", 6, true)]);
    assert_eq!(connection.status().await.keys, Some(3));
}

// Rule: once
pub(crate) async fn keys_are_compared_byte_by_byte(store: &impl HasOnce) {
    let longest = "ü".repeat(128);
    let keys =
        ["a", "a ", " a", "A", "ä", "a\u{308}", "／a", "😀", "it's %_\\ \"quoted\"", "NULL", "0", "00", &longest];
    let mut connection = store.connect().await;
    for key in keys {
        connection.once("billing", key, writer(5)).await.unwrap_or_else(|error| panic!("{key:?}: {error}"));
    }
    for key in keys {
        done_before(connection.once("billing", key, writer(6)).await, &before("billing", key, 5, false));
    }
    for name in ["billing ", "Billing", "/billing"] {
        connection.once(name, "a", writer(5)).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    assert_eq!(connection.peek("billing").await, keys.len() as i64);
}

pub(crate) async fn keys_that_are_not_valid_are_refused(store: &impl HasOnce) {
    let mut connection = store.connect().await;
    let longer = "ü".repeat(128) + "n";
    for (key, why) in
        [("", "empty"), (&longer, "at most 256 bytes"), ("a\0b", "control"), ("a\n", "control"), ("\u{85}", "control")]
    {
        let refused = [
            connection.once("billing", key, writer(5)).await,
            connection.batch("billing", &[key], writer(5)).await.map(drop),
            connection.forget("billing", key).await.map(drop),
        ];
        for refused in refused {
            let refused = refused.expect_err(key);
            assert!(matches!(refused, Error::BadKey(_)) && refused.to_string().contains(why), "{key:?}: {refused}");
        }
    }
    for name in ["", "/a//b", "line\nbreak"] {
        let refused = [
            connection.once(name, "a", writer(5)).await,
            connection.batch(name, &["a"], writer(5)).await.map(drop),
            connection.forget(name, "a").await.map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused.expect_err(name), Error::BadName(_)), "{name:?}");
        }
    }
    let status = connection.status().await;
    assert_eq!((status.names, status.keys), (0, Some(0)), "nothing has changed");
}

// Rule: once
pub(crate) async fn a_forgotten_key_can_be_recorded_again_and_tidying_forgets_none(store: &impl HasOnce) {
    let mut connection = store.connect().await;
    assert_eq!(connection.forget("billing", "2026-11").await.expect("it serves"), None);
    for key in ["2026-11", "2026-11 ", "2026-12"] {
        connection.once("billing", key, writer(5)).await.expect("the first");
    }
    assert_eq!(connection.forget_below(Token(100)).await.expect("it serves").names, 1);
    assert_eq!(connection.status().await.keys, Some(3), "no mark is left, and every key");
    done_before(connection.once("billing", "2026-11", writer(100)).await, &before("billing", "2026-11", 5, false));

    assert_eq!(connection.forget("Billing", "2026-11").await.expect("it serves"), None);
    assert_eq!(connection.forget("billing", "2026-11").await.expect("it serves"), Some(Token(5)));
    assert_eq!(connection.forget("billing", "2026-11").await.expect("it serves"), None);
    assert_eq!(connection.status().await.keys, Some(2), "the key with a space at its end is another");
    connection.once("billing", "2026-11", writer(100)).await.expect("its work may run again");
    assert_eq!(connection.peek("billing").await, 4);
}

const RACERS: u64 = 6;
const RACES: u64 = 25;
/// Much longer than all races take.
const PATIENCE: Duration = Duration::from_secs(60);

/// There are no locks here: several transactions try the same key at the same moment. In every second race all have the same token,
/// as several threads of one holder have.
// Rule: once
pub(crate) async fn of_racing_transactions_with_one_key_one_does_the_work<S: HasOnce>(store: &S) {
    let (arrived, outcomes) = (AtomicU64::new(0), Mutex::new(vec![[0; 3]; RACES as usize]));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for racer in 1..=RACERS {
            let (arrived, outcomes) = (&arrived, &outcomes);
            scope.spawn(move || {
                block_on(async {
                    let mut connection = store.connect().await;
                    for race in 0..RACES {
                        let token = writer(race * RACERS + if race.is_multiple_of(2) { racer } else { 1 });
                        // All begin at about the same moment.
                        arrived.fetch_add(1, SeqCst);
                        while arrived.load(SeqCst) < (race + 1) * RACERS {
                            assert!(begun.elapsed() < PATIENCE, "another racer has failed");
                            tokio::time::sleep(Duration::from_micros(50)).await;
                        }
                        let outcome = loop {
                            match connection.once("billing", &race.to_string(), token).await {
                                Ok(()) => break 0,
                                Err(Error::Before(_)) => break 1,
                                Err(Error::Stale(_)) => break 2,
                                // A deadlock, for example. The transaction is over, and runs again.
                                Err(Error::Store(why)) => assert!(begun.elapsed() < PATIENCE, "{why}"),
                                Err(other) => panic!("{other}"),
                            }
                        };
                        outcomes.lock().expect("no thread panics")[race as usize][outcome] += 1;
                    }
                });
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no thread panics");
    assert!(outcomes.iter().all(|[first, ..]| *first == 1), "one first in each race: {outcomes:?}");
    assert!(outcomes.iter().any(|[_, before, _]| *before > 0), "{outcomes:?}");
    assert_eq!(store.connect().await.peek("billing").await, RACES as i64);
}

/// What becomes of the COMMIT when its connection is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lost {
    /// The server never gets it.
    Commit,
    /// The server carries it out, and the client does not learn that.
    Answer,
}

/// A proxy in front of a server. It cuts its first connection at the first COMMIT, and serves those after it. Returns its port.
pub(crate) async fn cut_at_commit(server: u16, lost: Lost) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        let mut cut = Some(lost);
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", server)).await.expect("it serves");
            tokio::spawn(carry(client, server, cut.take()));
        }
    });
    port
}

async fn carry(mut client: TcpStream, mut server: TcpStream, cut: Option<Lost>) {
    let (mut asked, mut answered) = ([0; 8192], [0; 8192]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                let commits = asked[..read].windows(6).any(|word| word == b"COMMIT");
                match cut {
                    Some(Lost::Commit) if commits => return,
                    Some(Lost::Answer) if commits => {
                        server.write_all(&asked[..read]).await.expect("it serves");
                        assert!(server.read(&mut answered).await.expect("it answers") > 0);
                        return;
                    }
                    _ => server.write_all(&asked[..read]).await.expect("it serves"),
                }
            }
            read = server.read(&mut answered) => {
                let Ok(read @ 1..) = read else { return };
                if client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// A job that loses its connection at COMMIT, and runs again on a new one.
// Rule: once
pub(crate) async fn a_commit_without_an_answer_is_recognised<C: Records>(
    mut through: impl AsyncFnMut() -> C,
    lost: Lost,
) {
    let without_an_answer = through().await.once("billing", "2026-11", writer(5)).await;
    assert!(matches!(without_an_answer, Err(Error::Store(_))), "{lost:?}: {without_an_answer:?}");
    let mut again = through().await;
    let outcome = again.once("billing", "2026-11", writer(5)).await;
    match lost {
        Lost::Commit => outcome.expect("nothing was committed"),
        Lost::Answer => done_before(outcome, &before("billing", "2026-11", 5, true)),
    }
    assert_eq!(again.peek("billing").await, 1, "{lost:?}: the work was done once");
    done_before(again.once("billing", "2026-11", writer(6)).await, &before("billing", "2026-11", 5, false));
}
