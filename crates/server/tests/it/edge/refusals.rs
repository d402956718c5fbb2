//! What the edge refuses: values that are not valid, sessions that are not bound to the stream, too many held requests.

use std::rc::Rc;

use fencepost_core::{Action, Wait};
use fencepost_server::Server;
use fencepost_wire::v1;

use super::story::{Door, Story, golden, golden_at};
use super::stream::Stream;
use super::{TTL_MS, acquire, attach_session, keep_alive, open_session, opens, release, requests};
use crate::client::{lock, metric, one_node, open, open_about, open_with, request, secret};

/// A node, and a stream to it.
async fn connected(story: &Rc<Story>) -> (Server, Stream) {
    let server = one_node().await;
    let client = Stream::connect(story, "client", server.client_address()).await;
    (server, client)
}

#[tokio::test]
async fn an_open_that_is_not_valid() {
    let about = [
        "An open with a value that is not valid is not taken, and neither is a request behind it. The stream goes on.",
    ];
    golden("open-not-valid", &about, async |story| {
        let (_server, mut client) = connected(&story).await;
        let good = || open(1, TTL_MS);
        client.says("opens session 1 with a TTL of 10 ms", opens([open(1, 10)]), 1).await;
        client.says("opens session 1 with a TTL of two years", opens([open(1, 2 * 31_536_000_000)]), 1).await;
        let short = open_with(1, TTL_MS, &[1; 3]);
        client.says("opens session 1 with a secret of 3 bytes", opens([short]), 1).await;
        let metadata = open_about(1, TTL_MS, 4_097);
        client.says("opens session 1 with 4,097 bytes of metadata", opens([metadata]), 1).await;
        let behind = v1::ClientMessage { opens: vec![open(1, 10)], ..requests([acquire(1, 1, 1, "a")]) };
        client.says("opens session 1 with a TTL of 10 ms, and acquires behind it", behind, 2).await;
        let mixed = opens([open(1, 10), good(), open(2, 10)]);
        client.says("opens three sessions, of which the second is valid", mixed, 3).await;
        client.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_not_valid() {
    let about =
        ["A request with a value that is not valid is not taken. Its number stays free, and the stream goes on."];
    golden("request-not-valid", &about, async |story| {
        let (_server, mut client) = connected(&story).await;
        client.says("opens session 1", open_session(1), 1).await;
        for (what, action) in actions_that_are_not_valid() {
            let asked = v1::Request { action, ..acquire(1, 1, 1, "a") };
            client.says(&format!("asks for {what}"), requests([asked]), 1).await;
        }
        client.says("acquires with the same number", requests([acquire(1, 1, 1, "a")]), 1).await;
        client.hears_nothing_else().await;
    })
    .await;
}

/// One action for each kind of value that can be invalid.
fn actions_that_are_not_valid() -> Vec<(&'static str, Option<v1::request::Action>)> {
    use v1::request::Action;
    let no_wait = || Some(v1::Wait { kind: Some(v1::wait::Kind::No(v1::Nothing {})) });
    let exclusive = |name: &str| v1::Lock { name: name.to_owned(), mode: v1::LockMode::Exclusive as i32 };
    let acquire = || v1::Acquire { locks: vec![exclusive("a")], wait: no_wait(), ..Default::default() };
    let named = |name: &str| Some(Action::Acquire(v1::Acquire { locks: vec![exclusive(name)], ..acquire() }));
    let with_mode = |mode| {
        let locks = vec![v1::Lock { mode, ..exclusive("a") }];
        Some(Action::Acquire(v1::Acquire { locks, ..acquire() }))
    };
    let owned_by = |owner: &str| Some(Action::Acquire(v1::Acquire { owner: Some(owner.to_owned()), ..acquire() }));
    let waiting = |wait| Some(Action::Acquire(v1::Acquire { wait, ..acquire() }));
    let on = |terms| Some(Action::Acquire(v1::Acquire { terms: Some(terms), ..acquire() }));
    let terms = v1::Terms::default;
    let permits = |permits, limit| {
        let wait = no_wait();
        Some(Action::TakePermits(v1::TakePermits { name: "s".to_owned(), permits, limit, wait, terms: None }))
    };
    vec![
        ("nothing", None),
        ("a lock without a name", named("")),
        ("a lock with a name of 513 bytes", named(&"x".repeat(513))),
        ("a lock with a line break in its name", named("line\nbreak")),
        ("a path with an empty segment", named("/a//b")),
        ("a path of 17 levels", named(&"/a".repeat(17))),
        ("a lock without a mode", with_mode(0)),
        ("a lock with mode 77", with_mode(77)),
        ("a lock for an owner without a name", owned_by("")),
        ("a lock for an owner with a name of 129 bytes", owned_by(&"x".repeat(129))),
        ("a lock without saying how long to wait", waiting(None)),
        (
            "a lock, waiting for two years",
            waiting(Some(v1::Wait { kind: Some(v1::wait::Kind::UpToMs(2 * 31_536_000_000)) })),
        ),
        ("a lock with a TTL of 10 ms", on(v1::Terms { ttl_ms: Some(10), ..terms() })),
        ("a lock with a delay of 60,001 ms", on(v1::Terms { lock_delay_ms: 60_001, ..terms() })),
        ("a lock with 4,097 bytes of metadata", on(v1::Terms { metadata: vec![0; 4_097], ..terms() })),
        ("an election with a value of 4,097 bytes", on(v1::Terms { value: Some(vec![0; 4_097]), ..terms() })),
        ("zero permits", permits(0, Some(1))),
        ("a permit of a semaphore with the limit zero", permits(1, Some(0))),
        ("an extension by two years", Some(Action::Extend(v1::Extend { grant: 1, max_hold_ms: 2 * 31_536_000_000 }))),
    ]
}

#[tokio::test]
async fn a_request_that_the_lock_state_refuses() {
    let about = [
        "A request with valid values can still be wrong. The lock state refuses it: that is an answer, and the request was taken.",
    ];
    golden("request-refused-by-the-state", &about, async |story| {
        let (_server, mut client) = connected(&story).await;
        client.says("opens session 1", open_session(1), 1).await;
        client.says("acquires with number 0", requests([acquire(1, 1, 0, "a")]), 1).await;
        let none = Some(v1::request::Action::Acquire(v1::Acquire {
            wait: Some(v1::Wait { kind: Some(v1::wait::Kind::No(v1::Nothing {})) }),
            ..Default::default()
        }));
        let nothing = v1::Request { action: none, ..acquire(1, 1, 1, "a") };
        client.says("acquires no lock at all", requests([nothing]), 1).await;
        client.says("acquires in epoch 7", requests([acquire(1, 7, 2, "a")]), 1).await;
        client.says("keeps session 1 alive in epoch 7", keep_alive(1, 7), 1).await;
        client.says("releases a grant that does not exist", requests([release(1, 1, 3, 99)]), 1).await;
        client.says("repeats that release", requests([release(1, 1, 3, 99)]), 1).await;
        client.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_session_that_is_not_bound_to_the_stream() {
    let about = [
        "A stream acts only for sessions that were opened or attached on it. For an existing session only an attach needs no binding.",
    ];
    golden("session-not-bound", &about, async |story| {
        let (server, mut client) = connected(&story).await;
        let mut owner = Stream::connect(&story, "owner", server.client_address()).await;
        owner.says("opens session 1 and acquires", with_requests(open_session(1), [acquire(1, 1, 1, "a")]), 2).await;
        client.says("acquires for session 2, which does not exist", requests([acquire(2, 1, 1, "a")]), 1).await;
        client.says("keeps session 2 alive", keep_alive(2, 1), 1).await;
        client.says("attaches session 2", attach_session(2), 1).await;
        client.says("releases the lock of session 1", requests([release(1, 1, 2, 1)]), 1).await;
        client.says("keeps session 1 alive", keep_alive(1, 1), 1).await;
        client.says("attaches session 1 with another secret", attach_with(1, vec![0; 32]), 1).await;
        client.says("attaches session 1 with half of its secret", attach_with(1, secret(1)[..16].to_vec()), 1).await;
        client.says("attaches session 1 without a secret", attach_with(1, Vec::new()), 1).await;
        let other_secret = open_with(1, TTL_MS, &[9; 32]);
        client.says("opens session 1 with another secret", opens([other_secret]), 1).await;
        client.says("releases the lock of session 1", requests([release(1, 1, 2, 1)]), 1).await;
        client.hears_nothing_else().await;
        owner.says("releases its lock", requests([release(1, 1, 2, 1)]), 1).await;
        owner.hears_nothing_else().await;
    })
    .await;
}

fn with_requests(message: v1::ClientMessage, asked: impl IntoIterator<Item = v1::Request>) -> v1::ClientMessage {
    v1::ClientMessage { requests: asked.into_iter().collect(), ..message }
}

fn attach_with(session: u128, secret: Vec<u8>) -> v1::ClientMessage {
    let mut message = attach_session(session);
    message.attaches[0].secret = secret;
    message
}

#[tokio::test]
async fn a_request_in_the_message_of_its_attach() {
    let about =
        ["A request does not wait for an attach: the session is not bound yet, so the request is refused first."];
    golden("request-behind-attach", &about, async |story| {
        let (server, mut client) = connected(&story).await;
        client.says("opens session 1", open_session(1), 1).await;
        let mut other = Stream::connect(&story, "other", server.client_address()).await;
        let message = with_requests(attach_session(1), [acquire(1, 2, 1, "a")]);
        other.says("attaches session 1 and acquires in the same message", message, 2).await;
        other.says("acquires", requests([acquire(1, 2, 1, "a")]), 1).await;
        other.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_keep_alive_in_the_message_of_its_open() {
    let about = [
        "A keep-alive, unlike a request, does not wait for an open: the session is not bound yet, so the keep-alive is refused first.",
    ];
    golden("keep-alive-behind-open", &about, async |story| {
        let (_server, mut client) = connected(&story).await;
        let keep_alives = keep_alive(1, 1).keep_alives;
        let message = v1::ClientMessage { keep_alives, ..with_requests(open_session(1), [acquire(1, 1, 1, "a")]) };
        client.says("opens session 1, keeps it alive and acquires, in one message", message, 3).await;
        client.says("keeps session 1 alive", keep_alive(1, 1), 1).await;
        client.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn requests_behind_an_open() {
    let about = [
        "Requests behind an open are held until it is answered. If the open succeeds, they run in their order; if it is not taken, neither are they.",
    ];
    golden("requests-behind-open", &about, async |story| {
        let (server, mut client) = connected(&story).await;
        let three = || (1..=3).map(|number| acquire(1, 1, number, &format!("lock-{number}")));
        client.says("opens session 1 and acquires three locks", with_requests(open_session(1), three()), 4).await;
        let mut other = Stream::connect(&story, "other", server.client_address()).await;
        let taken = opens([open_with(1, TTL_MS, &[9; 32])]);
        other.says("opens session 1 with another secret, and acquires", with_requests(taken, three()), 4).await;
        let bad = v1::Request { action: None, ..acquire(2, 1, 1, "a") };
        let message = with_requests(open_session(2), [bad, acquire(2, 1, 2, "b")]);
        other.says("opens session 2; its first request is not valid, its second is", message, 3).await;
        other.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn more_requests_behind_an_open_than_are_held() {
    let about =
        ["At most 1,024 requests are held behind an open. The next one is refused before the open is answered."];
    golden("too-many-requests-behind-open", &about, async |story| {
        let (_server, mut client) = connected(&story).await;
        // Each gets the same answer, and changes nothing.
        let many = (1..=1_026).map(|number| release(1, 1, number, 99));
        client.says("opens session 1 with 1,026 requests behind it", with_requests(open_session(1), many), 1_027).await;
        client.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_refused_attach_beside_an_open() {
    let about = ["A refused attach leaves alone the requests that are held behind an open of the same session."];
    golden("refused-attach-beside-open", &about, async |story| {
        let (_server, mut client) = connected(&story).await;
        let attaches = attach_session(1).attaches;
        let message = v1::ClientMessage { attaches, ..with_requests(open_session(1), [acquire(1, 1, 1, "a")]) };
        client.says("opens session 1, attaches it and acquires, in one message", message, 3).await;
        client.hears_nothing_else().await;
        client.says("acquires", requests([acquire(1, 1, 1, "a")]), 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_second_open_before_the_first_is_answered() {
    let about = ["Two opens of one session before either is answered: the requests behind both are carried out."];
    golden("second-open-at-once", &about, async |story| {
        let (_server, mut client) = connected(&story).await;
        let first = with_requests(open_session(1), [acquire(1, 1, 1, "a")]);
        let second = with_requests(open_session(1), [acquire(1, 1, 2, "b")]);
        client.says_at_once("opens session 1 and acquires, and does both again", &[first, second], 4).await;
        client.hears_nothing_else().await;
        client.says("acquires again with the first number", requests([acquire(1, 1, 1, "a")]), 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_that_has_ended() {
    let about = [
        "A session that is closed or evicted is no longer bound. A stream is told of an eviction, and its later requests are refused.",
    ];
    golden("session-ended", &about, async |story| {
        let (server, mut client) = connected(&story).await;
        let both = opens([open(1, TTL_MS), open(2, TTL_MS)]);
        client.says("opens sessions 1 and 2", both, 2).await;
        client.says("closes session 1", requests([request(1, 1, 1, Action::Close)]), 1).await;
        client.says("acquires for session 1", requests([acquire(1, 1, 2, "a")]), 1).await;
        client.says("keeps session 1 alive", keep_alive(1, 1), 1).await;
        client.says("attaches session 1", attach_session(1), 1).await;
        client.says("acquires for session 2", requests([request(2, 1, 1, lock("a", Wait::No))]), 1).await;
        evict(&server, 2).await;
        client.hears("is told that session 2 was evicted", 1).await;
        client.says("releases the lock of session 2", requests([release(2, 1, 2, 1)]), 1).await;
        client.hears_nothing_else().await;
    })
    .await;
}

async fn evict(server: &Server, session: u128) {
    let (session_high, session_low) = fencepost_wire::api::halves(session);
    let act = v1::act_request::Act::Evict(v1::Evict { session_high, session_low });
    let asked = v1::ActRequest { reason: "the test says so".to_owned(), act: Some(act) };
    let channel = crate::client::channel(server.client_address());
    crate::client::AdminServiceClient::new(channel).act(asked).await.expect("it is evicted");
}

/// Operations that wait for the log when the node begins to refuse opens and acquires.
const WAITING_MAX: u64 = 100_000;

#[tokio::test]
async fn a_node_that_has_too_much_to_do() {
    let about = [
        "While 100,000 operations wait for the log, the node takes no opens and no acquires: a refusal says when to ask again. Releases",
        "and keep-alives are still taken.",
    ];
    // Frames only: over gRPC a message reaches the edge in several steps, and the node would work in between.
    golden_at(&[Door::Frames], "node-overloaded", &about, async |story| {
        let (server, mut client) = connected(&story).await;
        client.says("opens session 1 and acquires", with_requests(open_session(1), [acquire(1, 1, 1, "a")]), 2).await;
        // The bytes of each connection fit into the buffer of its socket, so all of them are there before the node reads.
        let mut crowd = Vec::new();
        for session in 2..=201 {
            let mut stream = Stream::connect(&Story::unheard(), "crowd", server.client_address()).await;
            stream.says("opens its session", open_session(session), 1).await;
            crowd.push((stream, requests((1..=WAITING_MAX / 200).map(|number| acquire(session, 1, number, "b")))));
        }
        // There is no await from here on, so the node's one thread sees all messages at once, the client's message last.
        for (stream, message) in &mut crowd {
            stream.send_now(message);
        }
        let keep_alives = keep_alive(1, 1).keep_alives;
        let asked = [acquire(1, 1, 2, "c"), release(1, 1, 3, 1)];
        client.send_now(&v1::ClientMessage { keep_alives, ..with_requests(open_session(300), asked) });
        client.hears("opens a session, keeps session 1 alive, acquires and releases", 4).await;
        let refused = metric(server.http_address(), "fencepost_not_taken_total{why=\"overloaded\"}").await;
        assert_eq!(refused, 2, "the open and the acquire");
    })
    .await;
}
