//! A cluster of one and its clients on a network that loses streams. The cluster is the core's own [`LockState`], so that every
//! answer is a real one; the clients are the machines under test.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fencepost_core::{
    Acquire, Action, Batch, Lock, LockMode, LockState, Locks, LogicalMs, Metadata, Millis, Name, Operation, Outcome,
    OwnerName, Principal, Renewal, ReplyTo, RequestNumber, SecretHash, SessionId, Terms, Ttl, Wait, bounds,
};
use fencepost_wire::{api, v1};
use prost::Message;

use crate::client::{Answer, Connection, Event, GrantKey, GrantState, LetGo, NewSession, RequestKey};
use fencepost_core::Nanos;

pub(super) const MS: u64 = 1_000_000;

/// The stream of a client: which client, and the how-manieth of it.
type StreamId = (usize, u64);

pub(super) struct World {
    pub(super) now: Nanos,
    pub(super) state: LockState,
    index: u64,
    pub(super) clients: Vec<Client>,
    /// Which stream each session speaks on.
    attached: BTreeMap<SessionId, StreamId>,
    /// On their way to the server, streams that are gone included.
    pub(super) to_server: VecDeque<(StreamId, v1::ClientMessage)>,
}

pub(super) struct Client {
    pub(super) machine: Connection,
    pub(super) session: SessionId,
    pub(super) stream: u64,
    pub(super) up: bool,
    pub(super) to_client: VecDeque<v1::ServerMessage>,
    /// How each request that somebody listens to ended.
    pub(super) answers: BTreeMap<RequestKey, Answer>,
}

/// The state never sees a secret; for a test any function of it will do.
fn hash(secret: &[u8]) -> SecretHash {
    let mut hash = [7; 32];
    hash[..secret.len().min(32)].copy_from_slice(&secret[..secret.len().min(32)]);
    SecretHash(hash)
}

pub(super) fn exclusive(name: &str, wait: Wait, terms: Terms) -> Action {
    let locks = Locks::from_buf([Lock { name: Name::new(name).unwrap(), mode: LockMode::Exclusive }]);
    Action::Acquire(Acquire { locks, owner: None, wait, terms })
}

pub(super) fn up_to(ms: u64) -> Wait {
    Wait::UpTo(Millis::new(ms).unwrap())
}

impl World {
    pub(super) fn new(clients: usize) -> World {
        World::with_ttl(clients, 5_000)
    }

    pub(super) fn with_ttl(clients: usize, ttl_ms: u64) -> World {
        let client = |at: usize| {
            let session = SessionId(at as u128 + 1);
            let mut machine = Connection::default();
            let secret = [at as u8 + 1; 32];
            let ttl = Ttl::new(ttl_ms).unwrap();
            let secret_hash = hash(&secret);
            let (secret, metadata) = (secret.into(), Metadata::default());
            machine.open_session(NewSession { id: session, secret, secret_hash, ttl, metadata });
            let (to_client, answers) = Default::default();
            Client { machine, session, stream: 0, up: false, to_client, answers }
        };
        World {
            now: Nanos(1_000_000_000),
            state: LockState::new(0),
            index: 0,
            clients: (0..clients).map(client).collect(),
            attached: BTreeMap::new(),
            to_server: VecDeque::new(),
        }
    }

    /// Logical time: it began when the world did.
    fn stamp(&self) -> LogicalMs {
        LogicalMs((self.now.0 - 1_000_000_000) / MS)
    }

    pub(super) fn connect(&mut self, client: usize) {
        let it = &mut self.clients[client];
        (it.up, it.stream) = (true, it.stream + 1);
        it.to_client.clear();
        it.machine.handle_connected(&v1::Hello { cluster_low: 9, group: 1, ..v1::Hello::default() }, self.now);
        self.transmit(client);
    }

    /// The stream breaks. What was on its way to the client is lost; what was on its way to the server may yet arrive.
    pub(super) fn cut(&mut self, client: usize) {
        let it = &mut self.clients[client];
        it.up = false;
        it.to_client.clear();
        it.machine.handle_disconnected(self.now);
        self.collect(client);
    }

    pub(super) fn lose_what_is_under_way(&mut self, client: usize) {
        self.to_server.retain(|((of, _), _)| *of != client);
    }

    pub(super) fn transmit(&mut self, client: usize) {
        let it = &mut self.clients[client];
        while let Some(message) = it.machine.poll_transmit(self.now) {
            assert!(message.encoded_len() <= bounds::MESSAGE_BYTES_MAX, "the server would not read it");
            self.to_server.push_back(((client, it.stream), message));
        }
        self.collect(client);
    }

    fn collect(&mut self, client: usize) {
        let it = &mut self.clients[client];
        while let Some(event) = it.machine.poll_event() {
            if let Event::Answered(key, answer) = event {
                let before = it.answers.insert(key, answer);
                assert_eq!(before, None, "{key:?} ended twice");
            }
        }
    }

    /// The server takes one message off the network and puts it in the log as one entry.
    pub(super) fn serve_one(&mut self, at: usize) {
        let Some((stream, message)) = self.to_server.remove(at) else { return };
        let mut batch = Batch::default();
        let mut asked: Vec<(SessionId, Option<RequestNumber>)> = Vec::new();
        for attach in &message.attaches {
            batch.renewals.push(api::attach_from_wire(attach, hash));
        }
        batch.renewals.extend(message.keep_alives.iter().map(api::keep_alive_from_wire));
        for renewal in &batch.renewals {
            let (Renewal::KeepAlive { session, .. } | Renewal::Attach { session, .. }) = renewal;
            asked.push((*session, None));
            if let Renewal::Attach { .. } = renewal {
                self.attached.insert(*session, stream);
            }
        }
        let renewals = batch.renewals.len();
        for open in &message.opens {
            let open = api::open_from_wire(open, Principal::new("tests").unwrap()).unwrap();
            self.attached.insert(open.session, stream);
            asked.push((open.session, None));
            batch.operations.push(Operation::Open(open));
        }
        for request in message.requests {
            let request = api::request_from_wire(request).unwrap();
            asked.push((request.session, Some(request.number)));
            batch.operations.push(Operation::Request(request));
        }
        self.apply(batch, Some((stream, asked, renewals)));
    }

    /// The server takes one message off the network and says that it has too much to do.
    pub(super) fn decline_one(&mut self, at: usize) {
        let Some(((client, stream), message)) = self.to_server.remove(at) else { return };
        let not_taken = |session_high, session_low, number| v1::NotTaken {
            session_high,
            session_low,
            number,
            why: v1::NotTakenWhy::Overloaded.into(),
            ..v1::NotTaken::default()
        };
        let mut declined = v1::ServerMessage::default();
        let parts = &mut declined.not_taken;
        parts.extend(message.opens.iter().map(|it| not_taken(it.session_high, it.session_low, 0)));
        parts.extend(message.attaches.iter().map(|it| not_taken(it.session_high, it.session_low, 0)));
        parts.extend(message.keep_alives.iter().map(|it| not_taken(it.session_high, it.session_low, 0)));
        parts.extend(message.requests.iter().map(|it| not_taken(it.session_high, it.session_low, it.number)));
        let it = &mut self.clients[client];
        if it.up && it.stream == stream {
            it.to_client.push_back(declined);
        }
    }

    #[allow(clippy::type_complexity, reason = "who asked what, for one caller")]
    fn apply(&mut self, batch: Batch, asked: Option<(StreamId, Vec<(SessionId, Option<RequestNumber>)>, usize)>) {
        let stamp = self.stamp().max(self.state.stamp());
        let effects = self.state.apply(stamp, batch);
        self.index += 1;
        let mut decided: BTreeMap<StreamId, v1::Decided> = BTreeMap::new();
        let fresh = || v1::Decided { index: self.index, term: 1, stamp_ms: stamp.0, ..v1::Decided::default() };
        if let Some((stream, asked, renewals)) = asked {
            for reply in &effects.replies {
                let place = match reply.to {
                    ReplyTo::Renewal(place) => place,
                    ReplyTo::Operation(place) => renewals + place,
                };
                let (session, number) = asked[place];
                let answer = api::answer_to_wire(session, number, reply);
                decided.entry(stream).or_insert_with(fresh).answers.push(answer);
            }
        }
        for push in &effects.pushes {
            if let Some(stream) = self.attached.get(&api::push_session(push)) {
                decided.entry(*stream).or_insert_with(fresh).pushes.push(api::push_to_wire(push));
            }
        }
        for ((client, stream), decided) in decided {
            let it = &mut self.clients[client];
            if it.up && it.stream == stream {
                it.to_client.push_back(v1::ServerMessage { decided: vec![decided], ..v1::ServerMessage::default() });
            }
        }
    }

    pub(super) fn hear_one(&mut self, client: usize) {
        let it = &mut self.clients[client];
        if let Some(message) = it.to_client.pop_front() {
            it.machine.handle_message(message, self.now).expect("the server speaks our language");
        }
        self.transmit(client);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        for client in 0..self.clients.len() {
            self.clients[client].machine.handle_timeout(self.now);
            self.transmit(client);
        }
    }

    /// The leader ends what is due.
    pub(super) fn beat(&mut self) {
        if self.state.next_deadline().is_some_and(|due| due <= self.stamp()) {
            self.apply(Batch::default(), None);
        }
    }

    /// Lets everything that is under way arrive.
    pub(super) fn settle(&mut self) {
        for _ in 0..1_000 {
            for client in 0..self.clients.len() {
                self.transmit(client);
            }
            while !self.to_server.is_empty() {
                self.serve_one(0);
            }
            self.beat();
            if self.clients.iter().all(|client| client.to_client.is_empty()) && self.to_server.is_empty() {
                return;
            }
            for client in 0..self.clients.len() {
                while !self.clients[client].to_client.is_empty() {
                    self.hear_one(client);
                }
            }
        }
        panic!("it never comes to rest");
    }

    // ---- What users do

    pub(super) fn acquire(&mut self, client: usize, name: &str, wait: Wait, limit: Duration) -> RequestKey {
        self.ask(client, exclusive(name, wait, Terms::default()), limit)
    }

    /// For a named owner, who may enter again what it holds.
    pub(super) fn acquire_as(&mut self, client: usize, owner: &str, name: &str, limit: Duration) -> RequestKey {
        let Action::Acquire(acquire) = exclusive(name, up_to(1_000), Terms::default()) else { unreachable!() };
        let owner = Some(OwnerName::new(owner).unwrap());
        self.ask(client, Action::Acquire(Acquire { owner, ..acquire }), limit)
    }

    pub(super) fn ask(&mut self, client: usize, action: Action, limit: Duration) -> RequestKey {
        let it = &mut self.clients[client];
        let key = it.machine.request(it.session, action, Some(self.now.after(limit)));
        self.transmit(client);
        key
    }

    pub(super) fn release(&mut self, client: usize, grant: GrantKey) -> LetGo {
        let let_go = self.clients[client].machine.let_go(grant, None, false, self.now);
        self.transmit(client);
        let_go
    }

    pub(super) fn state_of(&mut self, client: usize, grant: GrantKey) -> GrantState {
        let state = self.clients[client].machine.grant_state(grant, self.now);
        self.collect(client);
        state
    }

    pub(super) fn believes(&mut self, client: usize, grant: GrantKey) -> bool {
        !matches!(self.state_of(client, grant), GrantState::Lost(_))
    }

    pub(super) fn answer(&self, key: RequestKey) -> Option<&Answer> {
        self.clients.iter().find_map(|client| client.answers.get(&key))
    }

    pub(super) fn granted(&self, key: RequestKey) -> GrantKey {
        match self.answer(key) {
            Some(Answer::Decided(Outcome::Granted { grant, .. })) => GrantKey::new(key.session, *grant),
            other => panic!("{key:?} was not granted: {other:?}"),
        }
    }
}
