//! A cluster of one node and its clients, on a network that loses streams.
//!
//! The cluster is the core's own lock state behind the real edge, so that every answer is a real one. The clients are the machines
//! under test. Messages move only when a test says so.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fencepost_core::{
    Acquire, Action, Lock, LockMode, Locks, LogicalMs, Metadata, Millis, Name, Nanos, Outcome, OwnerName, Principal,
    SessionId, Terms, Ttl, Wait, bounds,
};
use fencepost_wire::v1;
use prost::Message;

use crate::client::{Answer, Connection, Event, GrantKey, GrantState, LetGo, NewSession, RequestKey};
use crate::edge::{Edge, Lead, StreamId, Transmit};
use crate::testing::LoneState;
use crate::tier::Tier;

pub(super) const MS: u64 = 1_000_000;

pub(super) struct World {
    pub(super) now: Nanos,
    /// The real lock state behind the real edge.
    pub(super) lone: LoneState,
    edge: Edge,
    last_stream: u64,
    pub(super) clients: Vec<Client>,
    /// Messages on their way to the node, including those of closed streams: the node never learns that a client hung up.
    pub(super) to_server: VecDeque<(StreamId, v1::ClientMessage)>,
}

pub(super) struct Client {
    pub(super) machine: Connection,
    pub(super) session: SessionId,
    pub(super) stream: StreamId,
    pub(super) up: bool,
    pub(super) to_client: VecDeque<v1::ServerMessage>,
    /// The answers to the requests that have a listener.
    pub(super) answers: BTreeMap<RequestKey, Answer>,
    /// What it was told about losses, ended sessions, jeopardy and keep-alives.
    pub(super) news: Vec<Event>,
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
            let (secret, metadata) = (secret.into(), Metadata::default());
            machine.open_session(NewSession { id: session, secret, ttl, metadata });
            let (to_client, answers, news) = Default::default();
            Client { machine, session, stream: StreamId(0), up: false, to_client, answers, news }
        };
        World {
            now: Nanos(1_000_000_000),
            lone: LoneState::default(),
            edge: Edge::new(0),
            last_stream: 0,
            clients: (0..clients).map(client).collect(),
            to_server: VecDeque::new(),
        }
    }

    /// Logical time. It starts at zero with the world.
    fn stamp(&self) -> LogicalMs {
        LogicalMs((self.now.0 - 1_000_000_000) / MS)
    }

    pub(super) fn connect(&mut self, client: usize) {
        self.last_stream += 1;
        let (stream, principal) = (StreamId(self.last_stream), Principal::new("tests").unwrap());
        let lead = Lead { cluster: 9, group: 1, node: 1, term: 1 };
        self.edge.handle_connected(stream, principal, Tier::Correctness, Ok(lead)).expect("the node leads");
        let Some(Transmit::Message(v1::ServerMessage { hello: Some(hello), .. })) = self.edge.poll_transmit(stream)
        else {
            panic!("a stream begins with a hello")
        };
        let it = &mut self.clients[client];
        (it.up, it.stream) = (true, stream);
        it.to_client.clear();
        it.machine.handle_connected(&hello, self.now);
        self.transmit(client);
    }

    /// The stream breaks. Messages on their way to the client are lost; messages on their way to the server may still arrive.
    pub(super) fn cut(&mut self, client: usize) {
        let it = &mut self.clients[client];
        it.up = false;
        it.to_client.clear();
        it.machine.handle_disconnected(self.now);
        self.collect(client);
    }

    pub(super) fn lose_what_is_under_way(&mut self, client: usize) {
        let stream = self.clients[client].stream;
        self.to_server.retain(|(of, _)| *of != stream);
    }

    pub(super) fn transmit(&mut self, client: usize) {
        let it = &mut self.clients[client];
        while let Some(message) = it.machine.poll_transmit(self.now) {
            assert!(message.encoded_len() <= bounds::MESSAGE_BYTES_MAX, "the server would not read it");
            self.to_server.push_back((it.stream, message));
        }
        self.collect(client);
    }

    fn collect(&mut self, client: usize) {
        let it = &mut self.clients[client];
        while let Some(event) = it.machine.poll_event() {
            match event {
                Event::Answered(key, answer) => {
                    let before = it.answers.insert(key, answer);
                    assert_eq!(before, None, "{key:?} ended twice");
                }
                Event::Queued(_) | Event::GrantChanged(_) | Event::SessionChanged(_) => {}
                news => it.news.push(news),
            }
        }
    }

    /// The node takes one message off the network, and the next entry answers it.
    pub(super) fn serve_one(&mut self, at: usize) {
        let Some((stream, message)) = self.to_server.remove(at) else { return };
        self.edge.handle_message(stream, message, &mut self.lone);
        self.apply();
    }

    /// The node takes one message off the network and answers that it has too much to do.
    pub(super) fn decline_one(&mut self, at: usize) {
        self.lone.is_overloaded = true;
        self.serve_one(at);
        self.lone.is_overloaded = false;
    }

    fn apply(&mut self) {
        let stamp = self.stamp();
        self.lone.apply(stamp, &mut self.edge);
        while let Some(stream) = self.edge.poll_ready() {
            while let Some(transmit) = self.edge.poll_transmit(stream) {
                let Transmit::Message(message) = transmit else { panic!("no stream ends here: {transmit:?}") };
                let it = self.clients.iter_mut().find(|client| client.up && client.stream == stream);
                if let Some(it) = it {
                    it.to_client.push_back(message);
                }
            }
        }
    }

    pub(super) fn hear_one(&mut self, client: usize) {
        let it = &mut self.clients[client];
        if let Some(message) = it.to_client.pop_front() {
            it.machine.handle_message(message, self.now).expect("the server's message is valid");
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

    /// The leader writes an entry if something is due, which ends it.
    pub(super) fn beat(&mut self) {
        if self.lone.state.next_deadline().is_some_and(|due| due <= self.stamp()) {
            self.apply();
        }
    }

    /// Delivers all messages, and those that follow from them, until none is left.
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
        panic!("messages keep coming");
    }

    // ---- Calls of users

    pub(super) fn acquire(&mut self, client: usize, name: &str, wait: Wait, limit: Duration) -> RequestKey {
        self.ask(client, exclusive(name, wait, Terms::default()), limit)
    }

    /// For a named owner, which may enter a lock again that it holds.
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
