//! Which stream may act for a session, and which stream receives its pushes: attaches, repeated opens, the two tiers.

use fencepost_core::{Action, Wait};
use fencepost_wire::v1;

use super::client::{lock, one_node, open, request};
use super::story::golden;
use super::stream::{Begin, Stream};
use super::{TTL_MS, acquire, attach_session, keep_alive, open_session, opens, release, requests};

fn wait_for(session: u128, epoch: u64, number: u64, name: &str) -> v1::ClientMessage {
    requests([request(session, epoch, number, lock(name, Wait::Forever))])
}

#[tokio::test]
async fn everything_in_the_first_message() {
    let about = ["A client need not wait for the hello: what it says in its first message is taken."];
    golden("first-message", &about, async |story| {
        let server = one_node().await;
        let first = v1::ClientMessage { requests: vec![acquire(1, 1, 1, "a")], ..open_session(1) };
        let (done, begin) = ("connects, opens session 1 and acquires", Begin::default());
        let mut client = Stream::begin(&story, "client", done, server.client_address(), begin, first).await;
        client.hears("waits for the answers", 2).await;
        let again = v1::StreamBegin { client: "another".to_owned(), efficiency: true };
        let message = v1::ClientMessage { begin: Some(again), ..requests([acquire(1, 1, 2, "b")]) };
        client.says("begins again, in the efficiency tier, and acquires", message, 1).await;
        client.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn an_attach_from_a_second_stream() {
    let about = [
        "An attach with the secret moves a session to another stream, with its pushes. The old stream is not told. It stays bound, and",
        "the lock state refuses its epoch.",
    ];
    golden("attach-from-second-stream", &about, async |story| {
        let server = one_node().await;
        let mut old = Stream::connect(&story, "old", server.client_address()).await;
        let mut other = Stream::connect(&story, "other", server.client_address()).await;
        let mut new = Stream::connect(&story, "new", server.client_address()).await;
        other.says("opens session 2 and acquires b", both(open_session(2), acquire(2, 1, 1, "b")), 2).await;
        old.says("opens session 1 and acquires a", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        old.says("waits for b", wait_for(1, 1, 2, "b"), 1).await;
        new.says("attaches session 1", attach_session(1), 1).await;
        old.hears_nothing_else().await;
        other.says("releases b", requests([release(2, 1, 2, 1)]), 1).await;
        new.hears("is granted b", 1).await;
        old.says("acquires in its old epoch", requests([acquire(1, 1, 3, "c")]), 1).await;
        old.says("keeps session 1 alive in its old epoch", keep_alive(1, 1), 1).await;
        new.says("acquires", requests([acquire(1, 2, 4, "c")]), 1).await;
        new.says("attaches session 1 again", attach_session(1), 1).await;
        new.says("acquires in the epoch before", requests([acquire(1, 2, 5, "d")]), 1).await;
        old.half_close().await;
        old.hears_end("hangs up").await;
        new.says("closes session 1", requests([request(1, 3, 6, Action::Close)]), 1).await;
        new.hears_nothing_else().await;
    })
    .await;
}

fn both(message: v1::ClientMessage, request: v1::Request) -> v1::ClientMessage {
    v1::ClientMessage { requests: vec![request], ..message }
}

#[tokio::test]
async fn an_old_stream_that_guesses_the_epoch() {
    let about = [
        "A stream whose session was attached elsewhere acts for it again as soon as it says the new epoch, which it was not told.",
        "Wrong today, and pinned as it is: a stream should act only in the epoch in which it was bound.",
    ];
    golden("wrong-today-old-stream-guesses-epoch", &about, async |story| {
        let server = one_node().await;
        let mut old = Stream::connect(&story, "old", server.client_address()).await;
        let mut new = Stream::connect(&story, "new", server.client_address()).await;
        old.says("opens session 1", open_session(1), 1).await;
        new.says("attaches session 1", attach_session(1), 1).await;
        new.says("acquires a", requests([acquire(1, 2, 1, "a")]), 1).await;
        old.says("keeps session 1 alive in epoch 2", keep_alive(1, 2), 1).await;
        old.says("releases a in epoch 2", requests([release(1, 2, 2, 1)]), 1).await;
        new.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_session_that_ends_elsewhere() {
    let about = [
        "A stream whose session was attached and closed elsewhere stays bound to it: the lock state answers that there is none.",
    ];
    golden("session-closed-elsewhere", &about, async |story| {
        let server = one_node().await;
        let mut old = Stream::connect(&story, "old", server.client_address()).await;
        let mut new = Stream::connect(&story, "new", server.client_address()).await;
        old.says("opens session 1", open_session(1), 1).await;
        new.says("attaches session 1", attach_session(1), 1).await;
        new.says("closes session 1", requests([request(1, 2, 1, Action::Close)]), 1).await;
        new.says("acquires for session 1", requests([acquire(1, 2, 2, "a")]), 1).await;
        old.says("acquires for session 1", requests([acquire(1, 1, 1, "a")]), 1).await;
        old.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn an_open_repeated_on_its_own_stream() {
    let about = ["A client that repeats an open gets the same answer, marked as a repeat."];
    golden("open-repeated", &about, async |story| {
        let server = one_node().await;
        let mut client = Stream::connect(&story, "client", server.client_address()).await;
        client.says("opens session 1", open_session(1), 1).await;
        client.says("opens session 1 again, and acquires", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        let twice = opens([open(2, TTL_MS), open(2, TTL_MS)]);
        client.says("opens session 2 twice in one message", twice, 2).await;
        client.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn an_open_repeated_on_a_second_stream_takes_the_session_over() {
    let about = [
        "A second stream that repeats the open of a living session, with the hash of the secret and without the secret, is bound and acts.",
        "Wrong today, and pinned as it is: only a stream that shows the secret should be bound.",
    ];
    golden("wrong-today-repeated-open-takes-session-over", &about, async |story| {
        let server = one_node().await;
        let mut owner = Stream::connect(&story, "owner", server.client_address()).await;
        let mut other = Stream::connect(&story, "other", server.client_address()).await;
        let mut thief = Stream::connect(&story, "thief", server.client_address()).await;
        other.says("opens session 2 and acquires b", both(open_session(2), acquire(2, 1, 1, "b")), 2).await;
        owner.says("opens session 1 and acquires a", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        owner.says("waits for b", wait_for(1, 1, 2, "b"), 1).await;
        thief.says("opens session 1, with the hash that the owner sent", open_session(1), 1).await;
        thief.says("releases the owner's lock", requests([release(1, 1, 3, 2)]), 1).await;
        other.says("releases b", requests([release(2, 1, 2, 1)]), 1).await;
        thief.hears("is granted b, for the owner's session", 1).await;
        owner.hears_nothing_else().await;
        owner.says("releases its lock, with the number that the thief used", requests([release(1, 1, 3, 2)]), 1).await;
        owner.says("releases its lock", requests([release(1, 1, 4, 2)]), 1).await;
        thief.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_takeover_behind_an_attached_session() {
    let about = [
        "The same with a session that was attached since: whoever repeats its open is told epoch 1, is bound, and is refused until it",
        "says the right epoch.",
        "Wrong today, and pinned as it is: a session above epoch 1 should bind nothing at an open.",
    ];
    golden("wrong-today-repeated-open-takes-attached-session-over", &about, async |story| {
        let server = one_node().await;
        let mut owner = Stream::connect(&story, "owner", server.client_address()).await;
        let mut thief = Stream::connect(&story, "thief", server.client_address()).await;
        owner.says("opens session 1 and acquires a", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        owner.says("attaches session 1", attach_session(1), 1).await;
        owner.says("opens session 1 again, with the hash of its secret", open_session(1), 1).await;
        thief.says("opens session 1, with the hash that the owner sent", open_session(1), 1).await;
        thief.says("releases the owner's lock in epoch 1", requests([release(1, 1, 2, 1)]), 1).await;
        thief.says("releases the owner's lock in epoch 2", requests([release(1, 2, 3, 1)]), 1).await;
        owner.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn the_two_tiers_know_nothing_of_each_other() {
    let about = [
        "A session of one tier is unknown in the other. Each tier has its own lock state, so both grant the same name.",
    ];
    golden("two-tiers", &about, async |story| {
        let server = one_node().await;
        let mut correct = Stream::connect(&story, "correct", server.client_address()).await;
        let mut efficient = Stream::connect_efficiency(&story, "efficient", server.client_address()).await;
        correct.says("opens session 1 and acquires a", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        efficient.says("opens session 2 and acquires a", both(open_session(2), acquire(2, 1, 1, "a")), 2).await;
        efficient.says("keeps session 2 alive", keep_alive(2, 1), 1).await;
        efficient.says("acquires for session 1", requests([acquire(1, 1, 2, "b")]), 1).await;
        efficient.says("attaches session 1", attach_session(1), 1).await;
        correct.says("attaches session 2", attach_session(2), 1).await;
        efficient.says("opens a session with a TTL of 10 ms", opens([open(3, 10)]), 1).await;
        efficient.hears_nothing_else().await;
        correct.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn the_same_id_in_the_other_tier() {
    let about = [
        "A stream that opens the same session id in the efficiency tier, with a secret of its own, has another session. The owner gets",
        "its pushes all the same.",
    ];
    golden("same-id-in-other-tier", &about, async |story| {
        let server = one_node().await;
        let mut owner = Stream::connect(&story, "owner", server.client_address()).await;
        let mut other = Stream::connect(&story, "other", server.client_address()).await;
        let mut thief = Stream::connect_efficiency(&story, "thief", server.client_address()).await;
        other.says("opens session 2 and acquires b", both(open_session(2), acquire(2, 1, 1, "b")), 2).await;
        owner.says("opens session 1 and waits for b", both(open_session(1), waiting("b")), 2).await;
        let own_secret = v1::OpenSession { secret_hash: vec![9; 32], ..open(1, TTL_MS) };
        thief.says("opens session 1 in its tier, with another hash", opens([own_secret]), 1).await;
        other.says("releases b", requests([release(2, 1, 2, 1)]), 1).await;
        owner.hears("is granted b", 1).await;
        thief.hears_nothing_else().await;
        thief.says("closes its session 1", requests([request(1, 1, 1, Action::Close)]), 1).await;
        owner.says("releases b", requests([release(1, 1, 2, 2)]), 1).await;
        owner.hears_nothing_else().await;
    })
    .await;
}

fn waiting(name: &str) -> v1::Request {
    request(1, 1, 1, lock(name, Wait::Forever))
}
