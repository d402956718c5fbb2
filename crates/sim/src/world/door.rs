//! The driver of a node's edge: streams that open and close, the messages of clients, and the replies and pushes of the two lock states.
//!
//! Like the server's engine it drives the real edge and decides nothing. It reports what happens on both sides of the edge as facts:
//! which stream asked for which command, what the lock states decided, and which message left on which stream.

use fencepost_core::{Nanos, Principal};
use fencepost_replica::Output;
use fencepost_session::client::DialFailure;
use fencepost_session::edge::{StreamId, Transmit};
use fencepost_session::{End, Tier};
use fencepost_wire::v1;

use super::{Happening, Wire, World};
use crate::fact::{Fact, WorldTime};
use crate::network::Endpoint;
use crate::node::{NodeArrival, SimNode};
use crate::port::{lead, not_leader};
use crate::process::Arrival;

impl World {
    pub(super) fn dialled(&mut self, stream: StreamId) {
        let Some(wire) = self.streams.get(&stream) else { return };
        self.arrive(wire.node, NodeArrival::Dial(stream));
    }

    pub(super) fn client_said(&mut self, stream: StreamId, message: v1::ClientMessage) {
        let Some(wire) = self.streams.get(&stream) else { return };
        let node = wire.node;
        if !message.requests.is_empty() && self.faults.doubles(&mut self.random) {
            // As if the client retried. Only requests have numbers, so only they may be repeated.
            self.observer.fault(self.now, "request doubled", || format!("to node {node}"));
            let at = self.now.after_ms(self.random.delay(1, 3_000));
            let again = v1::ClientMessage { requests: message.requests.clone(), ..Default::default() };
            self.agenda.put(at, Happening::FromClient { stream, message: Box::new(again) });
        }
        self.arrive(node, NodeArrival::Said(stream, Box::new(message)));
    }

    pub(super) fn hung_up(&mut self, stream: StreamId) {
        let Some(wire) = self.streams.get_mut(&stream) else { return };
        wire.node_holds = false;
        let node = wire.node;
        self.arrive(node, NodeArrival::Gone(stream));
        self.forget_if_over(stream);
    }

    /// Sends something to a client. It arrives no earlier than what is already in flight on this stream.
    fn send_to_client(&mut self, stream: StreamId, arrival: Arrival) {
        let Some(wire) = self.streams.get_mut(&stream) else { return };
        let (from, to) = (Endpoint::Node(wire.node), Endpoint::Client(wire.client));
        let mut delay = self.network.delay(from, to, &mut self.random);
        if self.network.is_cut(from, to) {
            // It waits in buffers on the way, and may arrive long after the link works again.
            delay += self.random.between(1, 20_000) * 1_000_000;
        }
        wire.to_client = wire.to_client.max(WorldTime(self.now.0 + delay));
        let (client, arrival) = (wire.client, Box::new(arrival));
        self.agenda.put(wire.to_client, Happening::ToClient { client, arrival });
    }

    pub(super) fn take_dial(&mut self, id: u64, stream: StreamId) {
        let Some(&Wire { client, tier, .. }) = self.streams.get(&stream) else { return };
        let node = self.nodes.get_mut(&id).expect("it was dialled");
        let replica = node.replica.as_ref().expect("it is up");
        let principal = Principal::new("workers").expect("a plain word");
        let connected = node.door.edge.handle_connected(stream, principal, tier, lead(replica));
        match connected.map(|()| node.door.edge.poll_transmit(stream)) {
            Ok(Some(Transmit::Message(v1::ServerMessage { hello: Some(hello), .. }))) => {
                self.observer.fact(self.now, &Fact::Connected { stream, client, node: id, tier });
                self.send_to_client(stream, Arrival::Connected(stream, hello));
            }
            Ok(other) => panic!("the first message on a stream must be a greeting, not {other:?}"),
            Err(End { leader, .. }) => self.end_stream(stream, DialFailure::NotLeader { leader }),
        }
    }

    pub(super) fn take_message(&mut self, id: u64, stream: StreamId, message: v1::ClientMessage) {
        self.observer.fact(self.now, &Fact::Said { stream, message: &message });
        let node = self.nodes.get_mut(&id).expect("it was told something");
        let (edge, mut port) = node.door.open(node.replica.as_mut().expect("it is up"), stream);
        edge.handle_message(stream, message, &mut port);
        self.tell_submitted(id);
    }

    pub(super) fn take_farewell(&mut self, id: u64, stream: StreamId) {
        self.observer.fact(self.now, &Fact::StreamOver { stream });
        self.nodes.get_mut(&id).expect("it was told something").door.edge.handle_disconnected(stream);
    }

    /// Hands an output of a lock state to the node's edge.
    pub(super) fn hand_out(&mut self, id: u64, tier: Tier, output: Output) {
        let node = self.nodes.get_mut(&id).expect("it has turned");
        match output {
            Output::Reply { ticket, position, stamp, reply } => {
                // A command without a stream is an administrator's.
                let Some((command, hash)) = node.door.submitted.undecided.remove(&(tier, ticket)) else { return };
                self.observer.fact(self.now, &Fact::Decided { command, position, reply: &reply });
                self.tell_hostile(tier, command, hash, &reply);
                let node = self.nodes.get_mut(&id).expect("it has turned");
                let (edge, mut port) = node.door.open(node.replica.as_mut().expect("it has turned"), command.stream);
                edge.handle_reply((tier, ticket), (position, stamp), reply, &mut port);
                self.tell_submitted(id);
            }
            Output::Push { position, stamp, push } => {
                self.observer.fact(self.now, &Fact::Pushed { node: id, tier, position, push: &push });
                node.door.edge.handle_push(tier, (position, stamp), &push);
            }
            Output::Abandoned(ticket) => {
                node.door.submitted.undecided.remove(&(tier, ticket));
                node.door.edge.handle_abandoned(tier, ticket);
            }
            other => unreachable!("{other:?} is not for the edge"),
        }
    }

    fn tell_submitted(&mut self, id: u64) {
        let submitted = &mut self.nodes.get_mut(&id).expect("it has a door").door.submitted;
        for command in submitted.news.drain(..) {
            self.observer.fact(self.now, &Fact::Submitted(command));
        }
    }

    /// Lets the efficiency tier and the edge follow a change of leader or term: both belong to one term.
    // Rule: tier-efficiency
    pub(super) fn follow_lead(&mut self, id: u64, local: Nanos) {
        let node = self.nodes.get_mut(&id).expect("it has turned");
        let Some(replica) = &node.replica else { return };
        let serves_in = replica.serves().then(|| replica.term());
        if node.door.efficiency.follow(serves_in, || 0, local) {
            self.observer.fact(self.now, &Fact::TermOver { node: id });
            node.door.submitted.undecided.retain(|(tier, _), _| *tier == Tier::Correctness);
            node.door.edge.handle_lead(serves_in, || not_leader(replica));
        }
    }

    /// Sends the messages that the edge has ready, except on streams that the client leaves unread.
    pub(super) fn transmit(&mut self, id: u64) {
        let edge = &mut self.nodes.get_mut(&id).expect("it has turned").door.edge;
        let mut ready: Vec<StreamId> = std::iter::from_fn(|| edge.poll_ready()).collect();
        ready.sort_unstable();
        ready.retain(|stream| self.streams.get(stream).is_none_or(|wire| wire.read_from <= self.now));
        self.transmit_to(id, ready);
    }

    pub(super) fn read_again(&mut self, stream: StreamId) {
        let Some(&Wire { node, .. }) = self.streams.get(&stream) else { return };
        if self.nodes.get(&node).is_some_and(SimNode::runs) {
            self.transmit_to(node, vec![stream]);
        }
    }

    fn transmit_to(&mut self, id: u64, streams: Vec<StreamId>) {
        let edge = &mut self.nodes.get_mut(&id).expect("it runs").door.edge;
        let (mut messages, mut ends) = (Vec::new(), Vec::new());
        for stream in streams {
            while let Some(transmit) = edge.poll_transmit(stream) {
                match transmit {
                    Transmit::Message(message) => messages.push((stream, message)),
                    Transmit::End(end) => ends.push((stream, end)),
                }
            }
        }
        ends.iter().for_each(|(stream, _)| edge.handle_disconnected(*stream));
        for (stream, message) in messages {
            self.observer.fact(self.now, &Fact::Sent { stream, message: &message });
            self.send_to_client(stream, Arrival::Message(stream, message));
        }
        for (stream, End { leader, .. }) in ends {
            self.end_stream(stream, DialFailure::NotLeader { leader });
        }
    }
}
