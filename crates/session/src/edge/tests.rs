//! Tests of the edge alone: every bound is reached, and its tables stay consistent whatever clients send.

use fencepost_core::{
    Acquire, Action, Attached, Epoch, GrantEnd, GrantId, JobKey, JobTerms, Keep, Lock, LockMode, LogPosition,
    LogicalMs, Metadata, Name, Outcome, Principal, Reply, ReplyTo, Request, RequestNumber, Seen, SessionId, Terms,
    Ticket, Ttl, Wait,
};
use fencepost_wire::{api, v1};
use prost::Message;

use super::{Edge, Lead, StreamId, Transmit};
use crate::bounds::{
    HELD_BYTES_MAX, HELD_REQUESTS_MAX, OUTBOX_BYTES_CROWDED, OUTBOX_BYTES_MAX, OUTBOXES_BYTES_MAX, STREAMS_MAX,
};
use crate::end::{End, Reason};
use crate::seeds::Seeds;
use crate::testing::LoneState;
use crate::tier::Tier;

const AT: (LogPosition, LogicalMs) = (LogPosition { index: 1, term: 1 }, LogicalMs(1));

fn connect(edge: &mut Edge, id: u64) -> Result<StreamId, End> {
    let lead = Lead { cluster: 9, group: 1, node: 1, term: 1 };
    edge.handle_connected(StreamId(id), Principal::new("tests").unwrap(), Tier::Correctness, Ok(lead))?;
    Ok(StreamId(id))
}

fn open(session: u128, secret: u8) -> v1::OpenSession {
    api::open_to_wire(SessionId(session), &[secret; 32].into(), Ttl::new(60_000).unwrap(), &Metadata::default())
}

fn attach(session: u128, secret: u8) -> v1::AttachSession {
    api::attach_to_wire(SessionId(session), &[secret; 32].into(), &Default::default())
}

fn opens(opens: Vec<v1::OpenSession>) -> v1::ClientMessage {
    v1::ClientMessage { opens, ..Default::default() }
}

fn attaches(attaches: Vec<v1::AttachSession>) -> v1::ClientMessage {
    v1::ClientMessage { attaches, ..Default::default() }
}

fn ask(session: u128, epoch: u64, number: u64, action: Action) -> v1::Request {
    let (session, epoch, number) = (SessionId(session), Epoch(epoch), RequestNumber(number));
    api::request_to_wire(&Request { session, epoch, number, seen: Seen::default(), action })
}

/// A request that is always refused: a release of a grant that does not exist.
fn release(session: u128, epoch: u64, number: u64) -> v1::Request {
    ask(session, epoch, number, Action::Release { grant: GrantId(7), report: None })
}

/// Everything in a stream's send buffer, and how the stream ended.
fn drain(edge: &mut Edge, id: StreamId) -> (Vec<v1::ServerMessage>, Option<Reason>) {
    let mut messages = Vec::new();
    while let Some(transmit) = edge.poll_transmit(id) {
        match transmit {
            Transmit::Message(message) => messages.push(message),
            Transmit::End(end) => return (messages, Some(end.reason)),
        }
    }
    (messages, None)
}

#[test]
fn a_reader_that_leaves_too_much_unread_is_cut_off() {
    let (mut edge, mut lone) = (Edge::new(0), LoneState::default());
    let id = connect(&mut edge, 1).unwrap();
    let flood = v1::ClientMessage { keep_alives: vec![v1::KeepAlive::default(); 50_000], ..Default::default() };
    edge.handle_message(id, flood.clone(), &mut lone);
    let (messages, end) = drain(&mut edge, id);
    let bytes: usize = messages.iter().map(Message::encoded_len).sum();
    assert!(end.is_none() && bytes > OUTBOX_BYTES_MAX / 2, "the client has read in time: {end:?}, {bytes}");
    edge.handle_message(id, flood.clone(), &mut lone);
    edge.handle_message(id, flood.clone(), &mut lone);
    assert!(edge.unread_bytes <= OUTBOX_BYTES_MAX, "unread messages are dropped: {}", edge.unread_bytes);
    assert_eq!(drain(&mut edge, id), (Vec::new(), Some(Reason::SlowReader)));
    edge.handle_message(id, flood, &mut lone);
    assert_eq!(drain(&mut edge, id), (Vec::new(), None), "nothing follows the end");
    edge.handle_disconnected(id);
    edge.agrees();
}

#[test]
fn when_all_streams_together_leave_too_much_unread_each_may_leave_little() {
    let (mut edge, mut lone) = (Edge::new(0), LoneState::default());
    // For attaches whose answers have about four megabytes each.
    let lost = vec![(GrantId(u64::MAX), GrantEnd::Ttl); 250_000];
    let mut streams = 0;
    while edge.unread_bytes <= OUTBOXES_BYTES_MAX {
        streams += 1;
        let id = connect(&mut edge, streams).unwrap();
        edge.handle_message(id, attaches(vec![attach(streams.into(), 1)]), &mut lone);
        let ticket = Ticket(streams);
        let (grants, waits, unseen) = (Vec::new(), Vec::new(), Vec::new());
        let attached = Attached { epoch: Epoch(2), grants, waits, unseen, lost: lost.clone() };
        let outcome = Outcome::Attached(Box::new(attached));
        let reply = Reply { to: ReplyTo::Renewal(0), outcome, repeat: None };
        assert!(edge.handle_reply((Tier::Correctness, ticket), AT, reply, &mut lone).is_none());
        assert!(streams < 1_000, "the bound is not reached: {}", edge.unread_bytes);
    }
    let modest = connect(&mut edge, 0).unwrap();
    let refused = v1::ClientMessage { keep_alives: vec![v1::KeepAlive::default()], ..Default::default() };
    edge.handle_message(modest, refused.clone(), &mut lone);
    let (messages, end) = drain(&mut edge, modest);
    assert_eq!((messages.len(), end), (1, None), "a client that reads is served");
    assert!(messages[0].encoded_len() < OUTBOX_BYTES_CROWDED);
    edge.handle_message(StreamId(1), refused, &mut lone);
    assert_eq!(drain(&mut edge, StreamId(1)), (Vec::new(), Some(Reason::SlowReader)), "a slow reader is cut off");
    for id in 0..=streams {
        edge.handle_disconnected(StreamId(id));
    }
    edge.agrees();
}

#[test]
fn requests_held_behind_opens_are_bounded() {
    let (mut edge, mut lone) = (Edge::new(0), LoneState::default());
    let id = connect(&mut edge, 1).unwrap();
    let _ = drain(&mut edge, id);
    let many = (1..=HELD_REQUESTS_MAX as u64 + 1).map(|number| release(1, 1, number)).collect();
    edge.handle_message(id, v1::ClientMessage { requests: many, ..opens(vec![open(1, 1)]) }, &mut lone);
    let (messages, _) = drain(&mut edge, id);
    let refused: Vec<_> = messages.iter().flat_map(|message| &message.not_taken).collect();
    assert_eq!(refused.len(), 1, "the one request above the bound");
    assert_eq!((refused[0].number, refused[0].why()), (HELD_REQUESTS_MAX as u64 + 1, v1::NotTakenWhy::Overloaded));

    let seen_ranges = vec![v1::SeenRange { first: u64::MAX, last: u64::MAX }; 10_000];
    let long = v1::Request { seen_ranges, ..release(2, 1, 1) };
    let fit = HELD_BYTES_MAX / long.encoded_len();
    let requests = vec![long; fit + 1];
    edge.handle_message(id, v1::ClientMessage { requests, ..opens(vec![open(2, 2)]) }, &mut lone);
    let (messages, _) = drain(&mut edge, id);
    let refused = messages.iter().flat_map(|message| &message.not_taken).count();
    assert!((1..=2).contains(&refused), "the bytes of both opens count together: {refused}");
    lone.apply(LogicalMs(1), &mut edge);
    let (messages, _) = drain(&mut edge, id);
    let answers = messages.iter().flat_map(|message| &message.decided).map(|decided| decided.answers.len());
    assert_eq!(answers.sum::<usize>(), 2 + HELD_REQUESTS_MAX + fit + 1 - refused, "each held request is answered");
    edge.agrees();
}

#[test]
fn a_node_refuses_streams_above_the_bound() {
    let mut edge = Edge::new(0);
    for id in 0..STREAMS_MAX as u64 {
        connect(&mut edge, id).unwrap();
    }
    let refused = connect(&mut edge, u64::MAX).unwrap_err();
    assert_eq!(refused.reason, Reason::TooManyStreams);
    edge.handle_disconnected(StreamId(5));
    connect(&mut edge, u64::MAX).expect("there is room again");
}

/// A session expires, and the same entry opens a new session with its id.
#[test]
fn an_id_that_is_used_again_is_another_session() {
    let (mut edge, mut lone) = (Edge::new(0), LoneState::default());
    let (ann, bob) = (connect(&mut edge, 1).unwrap(), connect(&mut edge, 2).unwrap());
    edge.handle_message(ann, opens(vec![open(1, 1)]), &mut lone);
    lone.apply(LogicalMs(1), &mut edge);
    let _ = (drain(&mut edge, ann), drain(&mut edge, bob));

    edge.handle_message(
        bob,
        v1::ClientMessage { requests: vec![release(1, 1, 1)], ..opens(vec![open(1, 2)]) },
        &mut lone,
    );
    let (messages, _) = drain(&mut edge, bob);
    let why: Vec<_> = messages.iter().flat_map(|message| &message.not_taken).map(|refused| refused.why()).collect();
    assert_eq!(why, [v1::NotTakenWhy::AttachFirst; 2], "Ann's requests must be in the log before an open of her id");
    assert_eq!(edge.tickets.len(), 0, "neither was submitted");

    edge.handle_disconnected(ann);
    // Bob sends the open twice, as a client does that got no answer. The second changes nothing.
    edge.handle_message(bob, opens(vec![open(1, 2), open(1, 2)]), &mut lone);
    lone.apply(LogicalMs(100_000), &mut edge);
    let (messages, _) = drain(&mut edge, bob);
    let decided = || messages.iter().flat_map(|message| &message.decided);
    assert_eq!(decided().map(|decided| decided.answers.len()).sum::<usize>(), 2);
    assert_eq!(decided().map(|decided| decided.pushes.len()).sum::<usize>(), 0, "Ann's session has ended, not Bob's");
    edge.handle_message(bob, v1::ClientMessage { requests: vec![release(1, 1, 2)], ..Default::default() }, &mut lone);
    assert_eq!(edge.tickets.len(), 1, "Bob's stream acts for his session");
    lone.apply(LogicalMs(100_001), &mut edge);
    edge.agrees();
}

/// Clients open, attach, close, send requests and hang up at random, with right and wrong secrets and epochs.
#[test]
fn tables_agree_whatever_clients_send() {
    let (mut bound, mut detached) = (0, 0);
    for seed in 0..200 {
        let mut seeds = Seeds::new(seed);
        let (mut edge, mut lone) = (Edge::new(seed), LoneState::default());
        let mut streams: Vec<StreamId> = Vec::new();
        for step in 0..300 {
            let session = u128::from(seeds.below(4));
            // Most clients know the secret, which is the session's own number.
            let secret = if seeds.one_in(5) { 99 } else { session as u8 };
            let id = streams.get(seeds.below(streams.len() as u64) as usize).copied();
            let epoch = seeds.below(4);
            let message = match seeds.below(8) {
                0 => {
                    streams.push(connect(&mut edge, step).unwrap());
                    continue;
                }
                1 | 2 => opens(vec![open(session, secret)]),
                3 => attaches(vec![attach(session, secret)]),
                4 => v1::ClientMessage {
                    requests: vec![release(session, epoch, step)],
                    ..opens(vec![open(session, secret)])
                },
                5 => v1::ClientMessage { requests: vec![release(session, epoch, step)], ..Default::default() },
                6 => {
                    v1::ClientMessage { requests: vec![ask(session, epoch, step, Action::Close)], ..Default::default() }
                }
                _ => {
                    if let Some(id) = id {
                        streams.retain(|other| *other != id);
                        edge.handle_disconnected(id);
                    }
                    continue;
                }
            };
            lone.is_overloaded = seeds.one_in(10);
            if let Some(id) = id {
                edge.handle_message(id, message, &mut lone);
            }
            if seeds.one_in(2) {
                lone.is_overloaded = false;
                lone.apply(LogicalMs(step), &mut edge);
            }
            edge.agrees();
            bound += edge.streams.values().map(|stream| stream.sessions.len()).sum::<usize>();
            while let Some(id) = edge.poll_ready() {
                let (messages, _) = drain(&mut edge, id);
                detached += messages.iter().map(|message| message.detached.len()).sum::<usize>();
            }
        }
        lone.is_overloaded = false;
        lone.apply(LogicalMs(1_000), &mut edge);
        for id in streams {
            edge.handle_disconnected(id);
        }
        edge.agrees();
        assert_eq!((edge.unread_bytes, edge.bindings.len(), edge.tickets.len()), (0, 0, 0), "nothing is left over");
    }
    assert!(bound > 1_000 && detached > 100, "too little happened: {bound} bindings seen, {detached} sessions moved");
}

// Rule: tier-efficiency. A client that speaks the protocol itself asks for a job in that tier, and is told where jobs are.
#[test]
fn the_efficiency_tier_has_no_jobs() {
    let lock = Lock { name: Name::new("billing").unwrap(), mode: LockMode::Exclusive };
    let job = Some(JobTerms { key: JobKey::new("2026-11").unwrap(), keep: Keep::default() });
    let terms = Terms { job, ..Terms::default() };
    let keyed = Action::Acquire(Acquire { locks: [lock].into_iter().collect(), owner: None, wait: Wait::No, terms });
    for tier in [Tier::Correctness, Tier::Efficiency] {
        let (mut edge, mut lone) = (Edge::new(0), LoneState::default());
        let lead = Lead { cluster: 9, group: 1, node: 1, term: 1 };
        edge.handle_connected(StreamId(1), Principal::new("tests").unwrap(), tier, Ok(lead)).unwrap();
        edge.handle_message(StreamId(1), opens(vec![open(1, 1)]), &mut lone);
        lone.apply(LogicalMs(1), &mut edge);
        let requests = vec![ask(1, 1, 1, keyed.clone())];
        edge.handle_message(StreamId(1), v1::ClientMessage { requests, ..Default::default() }, &mut lone);
        lone.apply(LogicalMs(2), &mut edge);
        let (messages, _) = drain(&mut edge, StreamId(1));
        let refused: Vec<&v1::NotTaken> = messages.iter().flat_map(|message| &message.not_taken).collect();
        assert_eq!(lone.state.counts().jobs_held, u64::from(tier == Tier::Correctness));
        assert_eq!(refused.len(), usize::from(tier == Tier::Efficiency), "{messages:?}");
        assert!(refused.iter().all(|it| it.message.contains("has no jobs")), "{refused:?}");
    }
}

impl Edge {
    /// Panics if two tables disagree.
    fn agrees(&self) {
        let of_streams = self
            .streams
            .iter()
            .flat_map(|(id, stream)| stream.sessions.iter().map(move |session| (stream.tier, *session, *id)));
        let mut count = 0;
        for (tier, session, id) in of_streams {
            count += 1;
            assert_eq!(self.bindings.get(tier, session).map(|binding| binding.stream), Some(id));
        }
        assert_eq!(count, self.bindings.len(), "every binding belongs to a stream");
        let unread: usize = self.streams.values().map(|stream| stream.outbox.bytes()).sum();
        assert_eq!(unread, self.unread_bytes);
    }
}
