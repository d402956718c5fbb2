//! Between the streams of clients and a replica: who asked what, and where the answer goes. What the server's engine does with
//! sockets, done with the world's streams.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{
    LogPosition, Operation, Outcome, Principal, Push, RequestNumber, SecretHash, SessionId, Ticket, bounds,
};
use fencepost_replica::{NotTaken, Output, Replica};
use fencepost_wire::{api, v1};
use sha2::{Digest, Sha256};

/// One stream between a client and a node, by the number that the world gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId(pub u64);

#[derive(Debug, Default)]
struct Stream {
    /// Sessions that were opened or attached here. Only for those may this stream act.
    sessions: BTreeSet<SessionId>,
    /// Sessions whose open is not answered yet, with the requests that came behind it.
    opening: BTreeMap<SessionId, Vec<v1::Request>>,
}

struct Asked {
    stream: StreamId,
    session: SessionId,
    number: Option<RequestNumber>,
}

/// The streams of one node that is up.
#[derive(Default)]
pub(crate) struct Edge {
    streams: BTreeMap<StreamId, Stream>,
    /// Where each session is connected.
    connected: BTreeMap<SessionId, StreamId>,
    asked: BTreeMap<Ticket, Asked>,
    /// The term whose streams these are.
    serves_in: Option<u64>,
    /// What goes out after this turn.
    outgoing: BTreeMap<StreamId, v1::ServerMessage>,
}

impl Edge {
    /// Begins to serve a stream, or says who leads.
    ///
    /// # Errors
    /// The node that leads, if this one does not and knows who does.
    pub(crate) fn connect(&mut self, stream: StreamId, replica: &Replica) -> Result<v1::Hello, Option<u64>> {
        if !replica.serves() {
            return Err(replica.leader().filter(|leader| *leader != replica.id()));
        }
        self.streams.insert(stream, Stream::default());
        let group = replica.group();
        let (cluster_high, cluster_low) = api::halves(group.cluster);
        Ok(v1::Hello { cluster_high, cluster_low, group: group.group, node: replica.id(), term: replica.term() })
    }

    /// The stream is gone; its sessions live on.
    pub(crate) fn disconnect(&mut self, id: StreamId) {
        self.streams.remove(&id);
        self.connected.retain(|_, stream| *stream != id);
    }

    /// Takes what a client said.
    pub(crate) fn take(&mut self, id: StreamId, message: v1::ClientMessage, replica: &mut Replica) {
        if !self.streams.contains_key(&id) {
            return;
        }
        for open in message.opens {
            let session = SessionId(api::whole(open.session_high, open.session_low));
            let principal = Principal::new("workers").expect("a plain word");
            let asked = api::open_from_wire(&open, principal).expect("the library opens what is valid");
            if self.submit(id, session, None, replica.submit(Operation::Open(asked)))
                && let Some(stream) = self.streams.get_mut(&id)
            {
                stream.opening.insert(session, Vec::new());
            }
        }
        for attach in message.attaches {
            let session = SessionId(api::whole(attach.session_high, attach.session_low));
            let renewal = api::attach_from_wire(&attach, |secret| SecretHash(Sha256::digest(secret).into()));
            self.submit(id, session, None, replica.submit_renewal(renewal));
        }
        for keep_alive in message.keep_alives {
            let session = SessionId(api::whole(keep_alive.session_high, keep_alive.session_low));
            match self.may_act(id, session) {
                true => {
                    let renewal = api::keep_alive_from_wire(&keep_alive);
                    self.submit(id, session, None, replica.submit_renewal(renewal));
                }
                false => self.not_here(id, session, None),
            }
        }
        for request in message.requests {
            self.take_request(id, request, replica);
        }
    }

    fn take_request(&mut self, id: StreamId, request: v1::Request, replica: &mut Replica) {
        let session = SessionId(api::whole(request.session_high, request.session_low));
        let number = Some(RequestNumber(request.number));
        if self.may_act(id, session) {
            let request = api::request_from_wire(request).expect("the library asks what is valid");
            self.submit(id, session, number, replica.submit(Operation::Request(request)));
            return;
        }
        let opening = self.streams.get_mut(&id).and_then(|stream| stream.opening.get_mut(&session));
        match opening {
            // Not before the open is answered: if the id is somebody else's, the request must not be theirs.
            Some(held) if held.len() < bounds::UNSEEN_ANSWERS_MAX => held.push(request),
            _ => self.not_here(id, session, number),
        }
    }

    fn may_act(&self, id: StreamId, session: SessionId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.sessions.contains(&session))
    }

    fn submit(
        &mut self,
        stream: StreamId,
        session: SessionId,
        number: Option<RequestNumber>,
        submitted: Result<Ticket, NotTaken>,
    ) -> bool {
        match submitted {
            Ok(ticket) => {
                self.asked.insert(ticket, Asked { stream, session, number });
                true
            }
            // The stream will end, with where to go.
            Err(NotTaken::NotLeader { .. }) => false,
            Err(why) => {
                let (code, retry_after_ms) = match why {
                    NotTaken::DiskShort => (v1::NotTakenWhy::DiskShort, 1_000),
                    _ => (v1::NotTakenWhy::Overloaded, 100),
                };
                self.refuse(stream, session, number, code, why.to_string(), Some(retry_after_ms));
                false
            }
        }
    }

    fn not_here(&mut self, id: StreamId, session: SessionId, number: Option<RequestNumber>) {
        let message = "this session was neither opened nor attached on this stream: attach it first, with its secret";
        self.refuse(id, session, number, v1::NotTakenWhy::Invalid, message.to_owned(), None);
    }

    fn refuse(
        &mut self,
        id: StreamId,
        session: SessionId,
        number: Option<RequestNumber>,
        why: v1::NotTakenWhy,
        message: String,
        retry_after_ms: Option<u64>,
    ) {
        let (session_high, session_low) = api::halves(session.0);
        let (number, why) = (number.map_or(0, |number| number.0), why.into());
        self.outgoing(id).not_taken.push(v1::NotTaken {
            session_high,
            session_low,
            number,
            why,
            message,
            retry_after_ms,
        });
    }

    fn outgoing(&mut self, id: StreamId) -> &mut v1::ServerMessage {
        self.outgoing.entry(id).or_default()
    }

    /// Takes what a turn gave out. What is not for a stream comes back.
    pub(crate) fn give_out(&mut self, output: Output, replica: &mut Replica) -> Option<Output> {
        match output {
            Output::Reply { ticket, position, stamp, reply } => {
                let Some(Asked { stream: id, session, number }) = self.asked.remove(&ticket) else {
                    return Some(Output::Reply { ticket, position, stamp, reply });
                };
                if !self.streams.contains_key(&id) {
                    return None;
                }
                let answer = api::answer_to_wire(session, number, &reply);
                decided(self.outgoing(id), position, stamp.0).answers.push(answer);
                let stream = self.streams.get_mut(&id)?;
                match reply.outcome {
                    Outcome::Opened { .. } | Outcome::Attached(_) => {
                        stream.sessions.insert(session);
                        let held = stream.opening.remove(&session).unwrap_or_default();
                        self.connected.insert(session, id);
                        held.into_iter().for_each(|request| self.take_request(id, request, replica));
                    }
                    Outcome::Closed => self.unbind(session),
                    Outcome::Refused(_) if number.is_none() => {
                        let held = stream.opening.remove(&session).unwrap_or_default();
                        for request in held {
                            self.not_here(id, session, Some(RequestNumber(request.number)));
                        }
                    }
                    _ => {}
                }
            }
            Output::Push { position, stamp, push } => {
                let session = api::push_session(&push);
                if let Some(id) = self.connected.get(&session).copied() {
                    decided(self.outgoing(id), position, stamp.0).pushes.push(api::push_to_wire(&push));
                }
                if let Push::SessionEnded { .. } = push {
                    self.unbind(session);
                }
            }
            Output::Abandoned(ticket) => {
                if self.asked.remove(&ticket).is_none() {
                    return Some(Output::Abandoned(ticket));
                }
            }
            other => return Some(other),
        }
        None
    }

    fn unbind(&mut self, session: SessionId) {
        if let Some(stream) = self.connected.remove(&session).and_then(|id| self.streams.get_mut(&id)) {
            stream.sessions.remove(&session);
        }
    }

    /// The messages of this turn, one a stream; and, if the node does not lead any more, the streams that end.
    pub(crate) fn flush(&mut self, replica: &Replica) -> (BTreeMap<StreamId, v1::ServerMessage>, Vec<StreamId>) {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.retain(|id, _| self.streams.contains_key(id));
        let serves_in = replica.serves().then(|| replica.term());
        let mut ended = Vec::new();
        if std::mem::replace(&mut self.serves_in, serves_in) != serves_in {
            ended.extend(self.streams.keys().copied());
            self.streams.clear();
            self.connected.clear();
        }
        (outgoing, ended)
    }
}

/// The part of a message for one entry: the last one, or a new one behind it.
fn decided(message: &mut v1::ServerMessage, position: LogPosition, stamp_ms: u64) -> &mut v1::Decided {
    let LogPosition { index, term } = position;
    if message.decided.last().is_none_or(|last| (last.index, last.term) != (index, term)) {
        message.decided.push(v1::Decided { index, term, stamp_ms, ..Default::default() });
    }
    message.decided.last_mut().expect("there is one")
}
