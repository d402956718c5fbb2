//! One node: what a client can send on a stream, what it receives, and the other services.

use crate::client::{
    Client, Heard, attach, channel, get, lock, one_node, open, open_about, open_with, request, secret, soon, status_of,
    token,
};
use fencepost_core::{Action, BusyWhy, Epoch, GrantId, Outcome, Refusal, RequestNumber, Wait};
use fencepost_wire::{api, v1};

#[tokio::test]
async fn a_lock_is_taken_handed_over_and_released() {
    let server = one_node().await;
    let mut first = Client::connect(server.client_address()).await.unwrap();
    let mut second = Client::connect(server.client_address()).await.unwrap();
    first.open(1, 30_000).await;
    second.open(2, 30_000).await;
    let held = first.ask(1, 1, 1, lock("orders/42", Wait::No)).await;
    let busy = second.ask(2, 1, 1, lock("orders/42", Wait::No)).await;
    assert!(matches!(busy, Outcome::Busy(busy) if busy.why == BusyWhy::Held && busy.holders[0].token == token(&held)));
    assert!(matches!(second.ask(2, 1, 2, lock("orders/42", Wait::Forever)).await, Outcome::Queued { .. }));
    let Outcome::Granted { grant, .. } = held else { panic!("not granted: {held:?}") };
    assert_eq!(first.ask(1, 1, 2, Action::Release { grant, report: None }).await, Outcome::Released { count_left: 0 });
    let (number, granted) = second.wait_end().await;
    assert_eq!(number, RequestNumber(2));
    assert!(token(&granted) > token(&held));
}

#[tokio::test]
async fn a_hand_over_is_one_entry_and_one_push_however_many_wait() {
    let server = one_node().await;
    let mut holder = Client::connect(server.client_address()).await.unwrap();
    let mut waiting = Client::connect(server.client_address()).await.unwrap();
    holder.open(1, 60_000).await;
    let held = holder.ask(1, 1, 1, lock("hot", Wait::No)).await;
    for session in 2..=101 {
        waiting.open(session, 60_000).await;
        assert!(matches!(waiting.ask(session, 1, 1, lock("hot", Wait::Forever)).await, Outcome::Queued { .. }));
    }
    let Outcome::Granted { grant, .. } = held else { panic!("not granted: {held:?}") };
    let requests = vec![request(1, 1, 2, Action::Release { grant, report: None })];
    holder.say(v1::ClientMessage { requests, ..Default::default() }).await;
    let Heard::Answer { index: released_at, .. } = holder.hear().await.unwrap() else { panic!("not answered") };
    let Heard::Push { index: granted_at, .. } = waiting.hear().await.unwrap() else { panic!("not handed over") };
    assert_eq!(granted_at, released_at, "in the same entry");
    // No other waiter was told anything: the next message is the answer to the next request.
    assert!(matches!(waiting.ask(50, 1, 2, lock("another", Wait::No)).await, Outcome::Granted { .. }));
}

#[tokio::test]
async fn requests_may_follow_an_open_in_the_same_message() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    let requests = (1..=3).map(|number| request(5, 1, number, lock(&format!("lock-{number}"), Wait::No))).collect();
    client.say(v1::ClientMessage { opens: vec![open(5, 30_000)], requests, ..Default::default() }).await;
    assert_eq!(client.outcome().await, Outcome::Opened { epoch: Epoch(1) });
    for _ in 0..3 {
        token(&client.outcome().await);
    }
}

#[tokio::test]
async fn a_session_id_alone_is_no_credential() {
    let server = one_node().await;
    let mut owner = Client::connect(server.client_address()).await.unwrap();
    owner.open(1, 30_000).await;
    let held = owner.ask(1, 1, 1, lock("wallet", Wait::No)).await;
    let Outcome::Granted { grant, .. } = held else { panic!("not granted: {held:?}") };

    let mut thief = Client::connect(server.client_address()).await.unwrap();
    // It knows the id, the epoch, the grant and the next number, but not the secret.
    let steal = request(1, 1, 2, Action::Release { grant, report: None });
    thief.say(v1::ClientMessage { requests: vec![steal.clone()], ..Default::default() }).await;
    let refused = thief.not_taken().await;
    assert_eq!(refused.why(), v1::NotTakenWhy::AttachFirst);
    assert!(refused.message.contains("attach it here"), "{}", refused.message);

    // Behind an open of the same id: the edge refuses the open, because the session is bound to another stream.
    let opens = vec![open_with(1, 30_000, &[9; 32])];
    thief.say(v1::ClientMessage { opens, requests: vec![steal.clone()], ..Default::default() }).await;
    let refused = thief.not_taken().await;
    assert_eq!((refused.number, refused.why()), (0, v1::NotTakenWhy::AttachFirst));
    assert_eq!(thief.not_taken().await.number, 2);

    // By an attach with another secret, and by a keep-alive.
    let mut attaches = vec![attach(1, 0)];
    attaches[0].secret = vec![0; 32];
    thief.say(v1::ClientMessage { attaches, requests: vec![steal], ..Default::default() }).await;
    assert_eq!(thief.not_taken().await.number, 2, "refused before the attach is answered");
    assert_eq!(thief.outcome().await, Outcome::Refused(Refusal::WrongSecret));
    let (session_high, session_low) = api::halves(1);
    let keep_alives = vec![v1::KeepAlive { session_high, session_low, epoch: 1, ..Default::default() }];
    thief.say(v1::ClientMessage { keep_alives, ..Default::default() }).await;
    assert_eq!(thief.not_taken().await.number, 0);

    assert_eq!(owner.ask(1, 1, 2, Action::Release { grant, report: None }).await, Outcome::Released { count_left: 0 });
}

#[tokio::test]
async fn an_attach_takes_the_session_and_its_pushes_along() {
    let server = one_node().await;
    let mut old = Client::connect(server.client_address()).await.unwrap();
    let mut other = Client::connect(server.client_address()).await.unwrap();
    other.open(2, 30_000).await;
    let held = other.ask(2, 1, 1, lock("report", Wait::No)).await;
    old.open(1, 30_000).await;
    assert!(matches!(old.ask(1, 1, 1, lock("report", Wait::Forever)).await, Outcome::Queued { .. }));

    let mut new = Client::connect(server.client_address()).await.unwrap();
    new.say(v1::ClientMessage { attaches: vec![attach(1, 0)], ..Default::default() }).await;
    let Outcome::Attached(attached) = new.outcome().await else { panic!("not attached") };
    assert_eq!((attached.epoch, attached.waits.len()), (Epoch(2), 1));
    assert_eq!(secret(1).len(), 32);

    let requests = vec![request(1, 1, 2, lock("another", Wait::No))];
    old.say(v1::ClientMessage { requests, ..Default::default() }).await;
    assert_eq!(old.not_taken().await.why(), v1::NotTakenWhy::AttachFirst);
    let Outcome::Granted { grant, .. } = held else { panic!("not granted: {held:?}") };
    other.ask(2, 1, 2, Action::Release { grant, report: None }).await;
    let (number, granted) = new.wait_end().await;
    assert_eq!(number, RequestNumber(1));
    token(&granted);
}

#[tokio::test]
async fn bad_requests_are_refused_with_what_is_wrong_and_the_stream_goes_on() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    client.open(1, 30_000).await;
    let sound = request(1, 1, 1, lock("name", Wait::No));
    let with_lock = |name: &str, mode: i32| {
        let locks = vec![v1::Lock { name: name.to_owned(), mode }];
        let wait = Some(v1::Wait { kind: Some(v1::wait::Kind::No(v1::Nothing {})) });
        v1::request::Action::Acquire(v1::Acquire { locks, wait, ..Default::default() })
    };
    let exclusive = v1::LockMode::Exclusive as i32;
    let cases = [
        (Some(with_lock("", exclusive)), "empty"),
        (Some(with_lock(&"x".repeat(513), exclusive)), "512"),
        (Some(with_lock("line\nbreak", exclusive)), "control characters"),
        (Some(with_lock("/a//b", exclusive)), "empty segment"),
        (Some(with_lock("name", 0)), "does not know"),
        (Some(with_lock("name", 77)), "does not know"),
        (None, "does not know"),
    ];
    for (action, expected) in cases {
        let requests = vec![v1::Request { action, ..sound.clone() }];
        client.say(v1::ClientMessage { requests, ..Default::default() }).await;
        let refused = client.not_taken().await;
        assert_eq!((refused.why, refused.number), (v1::NotTakenWhy::Invalid as i32, 1));
        assert!(refused.message.contains(expected), "{} should say {expected}", refused.message);
    }
    let opens = vec![open(9, 10), open_with(10, 30_000, &[1; 3])];
    client.say(v1::ClientMessage { opens, ..Default::default() }).await;
    let (ttl, secret) = (client.not_taken().await.message, client.not_taken().await.message);
    assert!(ttl.contains("1000 ms"), "the least TTL is named: {ttl}");
    assert!(secret.contains("3 bytes instead of 32"), "the length of the secret is named: {secret}");
    // None of these requests was carried out.
    token(&client.ask(1, 1, 1, lock("name", Wait::No)).await);
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_the_stream() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    let opens = vec![open_about(1, 30_000, 300 * 1024)];
    client.say(v1::ClientMessage { opens, ..Default::default() }).await;
    let status = client.hear().await.expect_err("the stream ends");
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    assert!(status.message().contains("the limit is: 262144 bytes"), "{status}");
}

#[tokio::test]
async fn expired_sessions_are_told_and_their_locks_handed_on() {
    let server = one_node().await;
    let mut dying = Client::connect(server.client_address()).await.unwrap();
    let mut waiting = Client::connect(server.client_address()).await.unwrap();
    dying.open(1, 1_000).await;
    waiting.open(2, 60_000).await;
    let held = dying.ask(1, 1, 1, lock("job", Wait::No)).await;
    assert!(matches!(waiting.ask(2, 1, 1, lock("job", Wait::Forever)).await, Outcome::Queued { .. }));
    let (_, granted) = waiting.wait_end().await;
    assert!(token(&granted) > token(&held));
    let told = dying.hear().await.unwrap();
    assert!(format!("{told:?}").contains("SessionEnded"), "{told:?}");
    let Outcome::Granted { grant, .. } = held else { panic!("not granted: {held:?}") };
    let requests = vec![request(1, 1, 2, Action::Release { grant, report: None })];
    dying.say(v1::ClientMessage { requests, ..Default::default() }).await;
    assert_eq!(dying.not_taken().await.why(), v1::NotTakenWhy::AttachFirst);
}

#[tokio::test]
async fn health_readiness_and_metrics_are_served() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    client.open(1, 30_000).await;
    client.ask(1, 1, 1, lock("metered", Wait::No)).await;
    let get = async |path| get(server.http_address(), path).await;
    assert!(get("/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get("/readyz").await.contains("this node leads"));
    let metrics = get("/metrics").await;
    for line in ["fencepost_grants 1", "fencepost_sessions 1", "fencepost_leads 1", "fencepost_last_token 1"] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    // A node in memory syncs nothing, and this one has no peers.
    for line in ["fencepost_log_entries_total ", "fencepost_log_syncs_total 0", "fencepost_peer_messages_total 0"] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert!(get("/nothing").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn observers_see_grants_waiters_sessions_and_reasons() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    client.open(1, 30_000).await;
    client.open(2, 30_000).await;
    let held = client.ask(1, 1, 1, lock("orders/1", Wait::No)).await;
    client.ask(2, 1, 1, lock("orders/1", Wait::Forever)).await;
    let mut observe = crate::client::ObserveServiceClient::new(channel(server.client_address()));
    let grants = observe.list_grants(v1::ListGrantsRequest { prefix: "orders/".into(), ..Default::default() }).await;
    assert_eq!(grants.unwrap().into_inner().grants.len(), 1);
    let none = observe.list_grants(v1::ListGrantsRequest { prefix: "other".into(), ..Default::default() }).await;
    assert_eq!(none.unwrap().into_inner().grants.len(), 0);
    let sessions = observe.list_sessions(v1::ListSessionsRequest { page_size: 1, ..Default::default() }).await;
    let page = sessions.unwrap().into_inner();
    assert_eq!((page.sessions.len(), page.next_after.is_some()), (1, true));
    let waiters = observe.list_waiters(v1::ListWaitersRequest::default()).await.unwrap().into_inner();
    assert_eq!(waiters.waiters.len(), 1);
    let why = observe.explain(v1::ExplainRequest { name: "orders/1".into(), ..Default::default() }).await.unwrap();
    let why = why.into_inner();
    assert_eq!((why.holders.len(), why.queue_len, why.chain.len()), (1, 1, 1));
    let check = |token| v1::CheckRequest { name: "orders/1".into(), token };
    let stands = observe.check(check(token(&held).0)).await.unwrap().into_inner();
    let gone = observe.check(check(token(&held).0 + 1)).await.unwrap().into_inner();
    assert_eq!((stands.grant.is_some(), gone.grant), (true, None));
    let bad = observe.explain(v1::ExplainRequest { name: String::new(), ..Default::default() }).await.unwrap_err();
    assert_eq!(bad.code(), tonic::Code::InvalidArgument);
    let status = status_of(server.client_address()).await.unwrap();
    assert_eq!(status.counts.unwrap().waiters, 1);
    assert_eq!(status.leader, Some(status.node));
}

#[tokio::test]
async fn a_watcher_hears_everything_once_and_can_resume() {
    let server = one_node().await;
    let mut observe = crate::client::ObserveServiceClient::new(channel(server.client_address()));
    let from_start = v1::EventPosition { index: 1, ordinal: u32::MAX };
    let ask = |after| v1::WatchRequest { prefix: "seen/".into(), after: Some(after) };
    let mut watch = observe.watch(ask(from_start)).await.unwrap().into_inner();
    let mut client = Client::connect(server.client_address()).await.unwrap();
    client.open(1, 30_000).await;
    for number in 1..=20 {
        let name = format!("{}/{number}", if number % 2 == 0 { "seen" } else { "unseen" });
        client.ask(1, 1, number, lock(&name, Wait::No)).await;
    }
    let hear = async |watch: &mut tonic::Streaming<v1::WatchResponse>, count: usize| {
        let mut events = Vec::new();
        while events.len() < count {
            events.extend(soon("an event", watch.message()).await.unwrap().expect("the stream is open").events);
        }
        events
    };
    // The session's opening, and every second grant.
    let all = hear(&mut watch, 11).await;
    let after = all[4].position.unwrap();
    let mut resumed = observe.watch(ask(after)).await.unwrap().into_inner();
    assert_eq!(hear(&mut resumed, 6).await, all[5..]);
    let unknown = v1::EventPosition { index: 0, ordinal: 0 };
    let mut compacted = observe.watch(ask(unknown)).await.unwrap().into_inner();
    let status = soon("it is refused", compacted.message()).await.expect_err("older events are gone");
    assert_eq!(status.code(), tonic::Code::OutOfRange);
}

#[tokio::test]
async fn administrators_break_evict_and_freeze() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    client.open(1, 30_000).await;
    let held = client.ask(1, 1, 1, lock("stuck", Wait::No)).await;
    let Outcome::Granted { grant, .. } = held else { panic!("not granted: {held:?}") };
    let mut admin = crate::client::AdminServiceClient::new(channel(server.client_address()));
    let act = |act| v1::ActRequest { reason: "the test says so".into(), act: Some(act) };
    let broken = admin.act(act(v1::act_request::Act::BreakGrant(grant.0))).await.unwrap().into_inner();
    assert_eq!(api::outcome_from_wire(broken.outcome), Ok(Outcome::Done));
    let told = client.hear().await.unwrap();
    assert!(format!("{told:?}").contains("Broken"), "{told:?}");
    let again = admin.act(act(v1::act_request::Act::BreakGrant(grant.0))).await.unwrap().into_inner();
    assert_eq!(api::outcome_from_wire(again.outcome), Ok(Outcome::NotFound));
    assert_ne!(grant, GrantId(0));
    let nothing = admin.act(v1::ActRequest { reason: String::new(), act: None }).await.unwrap_err();
    assert_eq!(nothing.code(), tonic::Code::InvalidArgument, "{nothing}");
}

/// A tool that knows nothing of Fencepost asks for its services. Tools ask in one of two versions.
#[tokio::test]
async fn the_services_are_listed_by_reflection_in_both_versions() {
    let server = one_node().await;
    macro_rules! services_by {
        ($version:ident) => {{
            use tonic_reflection::pb::$version::ServerReflectionRequest;
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            let message_request = Some(MessageRequest::ListServices(String::new()));
            let request = ServerReflectionRequest { host: String::new(), message_request };
            let mut client = ServerReflectionClient::new(channel(server.client_address()));
            let asked = client.server_reflection_info(tokio_stream::once(request));
            let mut answers = soon("reflection answers", asked).await.expect("it is served").into_inner();
            let answer = soon("the services are listed", answers.message()).await.unwrap().expect("an answer");
            match answer.message_response {
                Some(MessageResponse::ListServicesResponse(list)) => {
                    list.service.into_iter().map(|service| service.name).collect::<Vec<String>>()
                }
                other => panic!("{other:?}"),
            }
        }};
    }
    for services in [services_by!(v1), services_by!(v1alpha)] {
        for service in ["LockService", "ObserveService", "AdminService"] {
            assert!(services.iter().any(|it| it.ends_with(service)), "{service} is not in {services:?}");
        }
    }
}
