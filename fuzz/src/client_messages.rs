//! Whole conversations of hostile clients with the real edge, in front of a real lock state without log or disk.
//!
//! Input: steps. Each is a byte that says on which of four streams something is said, whether that stream hangs up first, how much time
//! passes before it, and whether the lock state applies what it has gathered; then two bytes of length and a message of a client.

use std::collections::BTreeSet;

use fencepost_core::{LogicalMs, Outcome, Principal, Record, SecretHash, SessionId};
use fencepost_session::Tier;
use fencepost_session::edge::{Edge, Lead, StreamId, Transmit};
use fencepost_session::testing::LoneState;
use fencepost_wire::{api, v1};
use prost::Message;
use sha2::{Digest, Sha256};

/// Milliseconds that pass before a step.
const PASSES_MS: [u64; 8] = [0, 0, 1, 500, 5_000, 30_000, 3_600_000, 1_000_000_000];

/// One step of a conversation.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which of the four streams.
    pub stream: u8,
    /// The stream hangs up and connects again before it says this.
    pub hangs_up: bool,
    /// Which of the eight durations passes first: nothing, nothing, 1 ms, 0.5 s, 5 s, 30 s, 1 h, 11 days.
    pub passes: u8,
    /// An entry follows, and everything that waits is read.
    pub applies: bool,
    /// What is said.
    pub message: Vec<u8>,
}

impl Step {
    /// The bytes of the step in an input.
    ///
    /// # Panics
    /// If the message has more than 65,535 bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let head =
            self.stream & 3 | u8::from(self.hangs_up) << 2 | (self.passes & 7) << 3 | u8::from(self.applies) << 6;
        let length = u16::try_from(self.message.len()).expect("a seed has short messages");
        [&[head][..], &length.to_be_bytes(), &self.message].concat()
    }

    /// The step at the front of the input, cut where the input ends.
    fn take(input: &mut &[u8]) -> Option<Step> {
        let (head, rest) = input.split_first_chunk::<3>()?;
        let length = usize::from(u16::from_be_bytes([head[1], head[2]])).min(rest.len());
        let (message, rest) = rest.split_at(length);
        *input = rest;
        let (stream, hangs_up, passes, applies) = (head[0] & 3, head[0] & 4 != 0, head[0] >> 3 & 7, head[0] & 64 != 0);
        Some(Step { stream, hangs_up, passes, applies, message: message.to_vec() })
    }
}

/// Words that are valid survive the way to the core and back. Everything that is asked is answered exactly once, by something that the client
/// library understands. Only a stream that has shown a session's secret is told more about the session than a refusal. The lock state stays
/// sound.
pub fn check(mut input: &[u8]) {
    let mut world = World::new();
    while let Some(step) = Step::take(&mut input) {
        world.step(step);
    }
    world.apply();
    assert_eq!(world.lone.state.verify(), Ok(()), "the lock state is sound");
    for client in &world.clients {
        assert_eq!(client.asked, client.answered, "everything is answered once");
    }
}

struct World {
    edge: Edge,
    lone: LoneState,
    now: LogicalMs,
    clients: Vec<Client>,
    streams_so_far: u64,
    /// Every session that there was, with the hash of its secret. An id can be used again after its session has ended.
    secrets: BTreeSet<(SessionId, [u8; 32])>,
}

/// One stream, from its client's side.
struct Client {
    id: StreamId,
    /// Secrets that it has shown, by hash.
    shown: BTreeSet<(SessionId, [u8; 32])>,
    asked: usize,
    answered: usize,
}

impl World {
    fn new() -> World {
        let mut world = World {
            edge: Edge::new(0),
            lone: LoneState::default(),
            now: LogicalMs(0),
            clients: Vec::new(),
            streams_so_far: 0,
            secrets: BTreeSet::new(),
        };
        world.clients = (0..4).map(|_| world.connect()).collect();
        world
    }

    fn connect(&mut self) -> Client {
        self.streams_so_far += 1;
        let id = StreamId(self.streams_so_far);
        let lead = Lead { cluster: 9, group: 1, node: 1, term: 1 };
        let connected = self.edge.handle_connected(id, principal(), Tier::Correctness, Ok(lead));
        connected.expect("four streams are few");
        Client { id, shown: BTreeSet::new(), asked: 0, answered: 0 }
    }

    fn step(&mut self, step: Step) {
        let place = usize::from(step.stream);
        self.now.0 += PASSES_MS[usize::from(step.passes)];
        if step.hangs_up {
            self.edge.handle_disconnected(self.clients[place].id);
            self.clients[place] = self.connect();
        }
        if let Ok(message) = v1::ClientMessage::decode(step.message.as_slice()) {
            check_words(&message);
            let client = &mut self.clients[place];
            let v1::ClientMessage { opens, attaches, keep_alives, requests, begin: _ } = &message;
            client.asked += opens.len() + attaches.len() + keep_alives.len() + requests.len();
            let opens = opens.iter().map(|open| (open.session_high, open.session_low, &open.secret));
            let attaches = attaches.iter().map(|attach| (attach.session_high, attach.session_low, &attach.secret));
            let shown =
                opens.chain(attaches).map(|(high, low, secret)| (SessionId(api::whole(high, low)), hash(secret).0));
            client.shown.extend(shown);
            self.edge.handle_message(client.id, message, &mut self.lone);
        }
        if step.applies {
            self.apply();
        }
    }

    fn apply(&mut self) {
        self.lone.apply(self.now, &mut self.edge);
        for record in self.lone.state.records() {
            if let Record::Session(session) = record {
                self.secrets.insert((session.id, session.secret_hash.0));
            }
        }
        let mut heard = Vec::new();
        for (place, client) in self.clients.iter().enumerate() {
            while let Some(transmit) = self.edge.poll_transmit(client.id) {
                match transmit {
                    Transmit::Message(message) => heard.push((place, message)),
                    Transmit::End(end) => panic!("a client that reads is not cut off: {end:?}"),
                }
            }
        }
        // A session that was opened and closed since the last look is in no record.
        for (place, message) in &heard {
            for answer in message.decided.iter().flat_map(|decided| &decided.answers) {
                let answer = api::answer_from_wire(answer.clone()).expect("the client library understands an answer");
                if matches!(answer.outcome, Outcome::Opened { .. }) && answer.repeat.is_none() {
                    let shown = &self.clients[*place].shown;
                    self.secrets.extend(shown.iter().filter(|(session, _)| *session == answer.session));
                }
            }
        }
        for (place, message) in heard {
            self.hear(place, message);
        }
    }

    fn hear(&mut self, place: usize, message: v1::ServerMessage) {
        let again = v1::ServerMessage::decode(message.encode_to_vec().as_slice());
        assert_eq!(again.as_ref(), Ok(&message), "what goes out comes in as the same");
        let client = &mut self.clients[place];
        client.answered += message.not_taken.len();
        for decided in message.decided {
            client.answered += decided.answers.len();
            for answer in decided.answers {
                let answer = api::answer_from_wire(answer).expect("the client library understands an answer");
                if !matches!(answer.outcome, Outcome::Refused(_)) {
                    assert!(client.has_shown(answer.session, &self.secrets), "told to a stranger: {answer:?}");
                }
            }
            for push in decided.pushes {
                let push = api::push_from_wire(push).expect("the client library understands a push");
                let session = api::push_session(&push);
                assert!(client.has_shown(session, &self.secrets), "told to a stranger: {push:?}");
            }
        }
    }
}

impl Client {
    /// Whether it has shown a secret of the session.
    fn has_shown(&self, session: SessionId, secrets: &BTreeSet<(SessionId, [u8; 32])>) -> bool {
        self.shown.range((session, [0; 32])..=(session, [255; 32])).any(|shown| secrets.contains(shown))
    }
}

/// The message is the same after it was written again, and so is each of its parts after it was understood.
fn check_words(message: &v1::ClientMessage) {
    let again = v1::ClientMessage::decode(message.encode_to_vec().as_slice());
    assert_eq!(again.as_ref(), Ok(message), "written again, the message is the same");
    for open in &message.opens {
        let Ok(asked) = api::open_from_wire(open, principal(), hash) else { continue };
        let secret = <[u8; 32]>::try_from(open.secret.as_slice()).expect("its length was checked");
        let again = api::open_to_wire(asked.session, &secret.into(), asked.ttl, &asked.metadata);
        assert_eq!(api::open_from_wire(&again, principal(), hash), Ok(asked));
    }
    for attach in &message.attaches {
        let asked = api::attach_from_wire(attach, hash);
        let fencepost_core::Renewal::Attach { session, seen, .. } = &asked else { panic!("an attach is one") };
        let Ok(secret) = <[u8; 32]>::try_from(attach.secret.as_slice()) else { continue };
        let again = api::attach_to_wire(*session, &secret.into(), seen);
        assert_eq!(api::attach_from_wire(&again, hash), asked);
    }
    for keep_alive in &message.keep_alives {
        let asked = api::keep_alive_from_wire(keep_alive);
        let fencepost_core::Renewal::KeepAlive { session, epoch, seen } = &asked else { panic!("a keep-alive is one") };
        assert_eq!(api::keep_alive_from_wire(&api::keep_alive_to_wire(*session, *epoch, seen)), asked);
    }
    for request in &message.requests {
        match api::request_from_wire(request.clone()) {
            Ok(asked) => assert_eq!(api::request_from_wire(api::request_to_wire(&asked)), Ok(asked)),
            Err(error) => assert!(!error.for_caller().is_empty(), "the client is told what is wrong"),
        }
    }
}

fn principal() -> Principal {
    Principal::new("fuzz").expect("a short word")
}

fn hash(secret: &[u8]) -> SecretHash {
    SecretHash(Sha256::digest(secret).into())
}
