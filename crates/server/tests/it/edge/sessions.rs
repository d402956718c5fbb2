//! Which stream may act for a session, and which stream receives its pushes: attaches, repeated opens, the two tiers.

use fencepost_core::{Action, Wait};
use fencepost_wire::v1;
use sha2::{Digest, Sha256};

use super::story::golden;
use super::stream::{Begin, Stream};
use super::{TTL_MS, acquire, attach_session, keep_alive, open_session, opens, release, requests};
use crate::client::{lock, one_node, open, open_with, request, secret};

fn wait_for(session: u128, epoch: u64, number: u64, name: &str) -> v1::ClientMessage {
    requests([request(session, epoch, number, lock(name, Wait::Forever))])
}

#[tokio::test]
async fn everything_in_the_first_message() {
    let about = ["A client need not wait for the hello: the requests in its first message are taken."];
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
        "An attach with the secret moves a session to another stream, with its pushes. The old stream is told once, keeps its other",
        "sessions, and acts for this one no longer.",
    ];
    golden("attach-from-second-stream", &about, async |story| {
        let server = one_node().await;
        let mut old = Stream::connect(&story, "old", server.client_address()).await;
        let mut other = Stream::connect(&story, "other", server.client_address()).await;
        let mut new = Stream::connect(&story, "new", server.client_address()).await;
        other.says("opens session 2 and acquires b", both(open_session(2), acquire(2, 1, 1, "b")), 2).await;
        old.says("opens session 1 and acquires a", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        old.says("waits for b", wait_for(1, 1, 2, "b"), 1).await;
        old.says("opens session 3 and acquires e", both(open_session(3), acquire(3, 1, 1, "e")), 2).await;
        new.says("attaches session 1", attach_session(1), 1).await;
        old.hears("is told", 1).await;
        old.says("releases e", requests([release(3, 1, 2, 3)]), 1).await;
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
        "A stream may act in the epoch in which it was bound, and in no later epoch that it guesses: neither before an attach elsewhere",
        "nor after it.",
    ];
    golden("old-stream-guesses-epoch", &about, async |story| {
        let server = one_node().await;
        let mut old = Stream::connect(&story, "old", server.client_address()).await;
        let mut new = Stream::connect(&story, "new", server.client_address()).await;
        old.says("opens session 1", open_session(1), 1).await;
        old.says("keeps session 1 alive in epoch 2", keep_alive(1, 2), 1).await;
        old.says("acquires in epoch 2", requests([acquire(1, 2, 1, "a")]), 1).await;
        new.says("attaches session 1", attach_session(1), 1).await;
        new.says("acquires a", requests([acquire(1, 2, 2, "a")]), 1).await;
        old.hears("is told", 1).await;
        old.says("keeps session 1 alive in epoch 2", keep_alive(1, 2), 1).await;
        old.says("releases a in epoch 2", requests([release(1, 2, 3, 1)]), 1).await;
        new.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_session_that_is_closed_elsewhere() {
    let about = [
        "A stream whose session was attached and closed elsewhere acts for it no longer, not even if the id is used again.",
    ];
    golden("session-closed-elsewhere", &about, async |story| {
        let server = one_node().await;
        let mut old = Stream::connect(&story, "old", server.client_address()).await;
        let mut new = Stream::connect(&story, "new", server.client_address()).await;
        old.says("opens session 1", open_session(1), 1).await;
        new.says("attaches session 1", attach_session(1), 1).await;
        old.hears("is told", 1).await;
        new.says("closes session 1", requests([request(1, 2, 1, Action::Close)]), 1).await;
        new.says("acquires for session 1", requests([acquire(1, 2, 2, "a")]), 1).await;
        old.says("acquires for session 1", requests([acquire(1, 1, 1, "a")]), 1).await;
        new.says("opens session 1 once more", open_session(1), 1).await;
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
async fn a_thief_with_the_hash_of_the_secret() {
    let about = [
        "The hash of a secret stands in the log, in snapshots and in backups. It opens no session and attaches none: the owner keeps its",
        "lock, its answers and its pushes.",
    ];
    golden("thief-with-the-hash", &about, async |story| {
        let server = one_node().await;
        let mut owner = Stream::connect(&story, "owner", server.client_address()).await;
        let mut other = Stream::connect(&story, "other", server.client_address()).await;
        let mut thief = Stream::connect(&story, "thief", server.client_address()).await;
        other.says("opens session 2 and acquires b", both(open_session(2), acquire(2, 1, 1, "b")), 2).await;
        owner.says("opens session 1 and acquires a", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        owner.says("waits for b", wait_for(1, 1, 2, "b"), 1).await;
        let hash = Sha256::digest(secret(1));
        let stolen = both(opens([open_with(1, TTL_MS, &hash)]), release(1, 1, 3, 2));
        thief.says("opens session 1 with the hash, and releases the owner's lock behind it", stolen, 2).await;
        let mut attach = attach_session(1);
        attach.attaches[0].secret = hash.to_vec();
        thief.says("attaches session 1 with the hash", attach, 1).await;
        thief.says("releases the owner's lock", requests([release(1, 1, 3, 2)]), 1).await;
        other.says("releases b", requests([release(2, 1, 2, 1)]), 1).await;
        owner.hears("is granted b", 1).await;
        owner.says("releases its lock", requests([release(1, 1, 3, 2)]), 1).await;
        thief.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn an_open_repeated_on_a_second_stream() {
    let about = [
        "An open that is repeated on a second stream, with the secret, takes nothing from the first: it may be an old message. The client",
        "is told to attach. The same holds if the session was attached since then, even if it is bound to no stream now.",
    ];
    golden("open-repeated-elsewhere", &about, async |story| {
        let server = one_node().await;
        let mut first = Stream::connect(&story, "first", server.client_address()).await;
        let mut second = Stream::connect(&story, "second", server.client_address()).await;
        first.says("opens session 1 and acquires a", both(open_session(1), acquire(1, 1, 1, "a")), 2).await;
        let again = both(open_session(1), release(1, 1, 2, 1));
        second.says("opens session 1 again, and releases a behind it", again, 2).await;
        first.says("acquires b", requests([acquire(1, 1, 2, "b")]), 1).await;
        second.says("attaches session 1", attach_session(1), 1).await;
        first.hears("is told", 1).await;
        first.says("opens session 1 again", open_session(1), 1).await;
        second.says("opens session 1 again", open_session(1), 1).await;
        second.half_close().await;
        second.hears_end("hangs up").await;
        first.says("opens session 1 again", open_session(1), 1).await;
        first.says("attaches session 1", attach_session(1), 1).await;
        first.says("releases a", requests([release(1, 3, 3, 1)]), 1).await;
        first.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn the_two_tiers_are_independent() {
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
        let own_secret = open_with(1, TTL_MS, &[9; 32]);
        thief.says("opens session 1 in its tier, with another secret", opens([own_secret]), 1).await;
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
