//! The clients of the world: what reaches them, pauses and crashes, and the deeds that they want done.
//!
//! It moves messages between client processes and the network. What a client does is decided in `process.rs` and by its users.

use fencepost_session::Tier;
use fencepost_session::client::DialFailure;
use fencepost_session::edge::StreamId;

use super::hostile::HOSTILE;
use super::jobs::JobRead;
use super::{Happening, Wire, World, node_of};
use crate::fact::WorldTime;
use crate::network::Endpoint;
use crate::process::{Arrival, Deed};
use crate::worker::{Errand, ErrandKind};

impl World {
    /// Hands an arrival to a client. If its process is paused, the arrival waits.
    pub(super) fn reach(&mut self, client: usize, arrival: Arrival) {
        if let Some(process) = self.clients.get_mut(client).filter(|process| process.paused) {
            process.waiting.push_back(arrival);
            return;
        }
        if let Arrival::Ended(stream, _) = &arrival
            && let Some(wire) = self.streams.get_mut(stream)
        {
            wire.client_holds = false;
            self.forget_if_over(*stream);
        }
        if client == HOSTILE {
            return self.reach_hostile(&arrival);
        }
        let process = &mut self.clients[client];
        let (deeds, wake) = process.handle(arrival, self.now, &mut self.observer, &mut self.next_stream);
        for deed in deeds {
            self.do_for(client, deed);
        }
        self.wakes[client] += 1;
        self.agenda.put(wake, Happening::Wake { client, serial: self.wakes[client] });
    }

    /// Ends the pause of a client. It takes everything that arrived meanwhile.
    pub(super) fn resume_client(&mut self, client: usize) {
        if !std::mem::replace(&mut self.clients[client].paused, false) {
            return;
        }
        let process = &self.clients[client];
        self.observer.line(self.now, "world", || format!("{} wakes up", process.tell()));
        // A process that wakes up handles its timers first, then its sockets.
        self.reach(client, Arrival::Wake);
        for arrival in std::mem::take(&mut self.clients[client].waiting) {
            self.reach(client, arrival);
        }
    }

    pub(super) fn crash_client(&mut self, client: usize) {
        if let Some(deed) = self.clients[client].crash(self.now) {
            self.do_for(client, deed);
        }
        self.reach(client, Arrival::Wake);
    }

    pub(super) fn do_for(&mut self, client: usize, deed: Deed) {
        match deed {
            Deed::Dial(stream, tier, address) => self.dial(client, stream, tier, &address),
            Deed::Send(stream, message) => {
                if let Some(at) = self.on_the_way_to_node(stream) {
                    self.agenda.put(at, Happening::FromClient { stream, message: Box::new(message) });
                }
            }
            Deed::HangUp(stream) => {
                if let Some(at) = self.on_the_way_to_node(stream) {
                    self.agenda.put(at, Happening::HungUp { stream });
                }
                if let Some(wire) = self.streams.get_mut(&stream) {
                    wire.client_holds = false;
                }
                self.forget_if_over(stream);
            }
            Deed::StopReading(stream, for_ms) => self.stop_reading(stream, for_ms),
            Deed::Errand(Errand { user: worker, call, what: ErrandKind::Store(what) }) => {
                let delay = self.network.delay(Endpoint::Client(client), Endpoint::Store, &mut self.random);
                let at = WorldTime(self.now.0 + delay);
                self.agenda.put(at, Happening::Store { client, worker, call, what: Box::new(what) });
            }
            Deed::Errand(Errand { user, call, what: ErrandKind::Job(name, key) }) => {
                self.ask_for_job(JobRead { client, user, call, name, key });
            }
        }
    }

    fn dial(&mut self, client: usize, stream: StreamId, tier: Tier, address: &str) {
        let node = node_of(address).unwrap_or_default();
        let (from, to) = (Endpoint::Client(client), Endpoint::Node(node));
        let at = WorldTime(self.now.0 + self.network.delay(from, to, &mut self.random));
        if !self.nodes.contains_key(&node) {
            let arrival = Box::new(Arrival::Ended(stream, DialFailure::Refused));
            self.agenda.put(at, Happening::ToClient { client, arrival });
            return;
        }
        let wire = Wire {
            client,
            node,
            tier,
            to_node: at,
            to_client: at,
            read_from: at,
            client_holds: true,
            node_holds: true,
        };
        self.streams.insert(stream, wire);
        // On a cut link the dial gets no answer and runs into the client's timeout.
        if !self.network.is_cut(from, to) {
            self.agenda.put(at, Happening::Dialled { stream });
        }
    }

    /// When the next message on this stream arrives at the node: not before those in flight.
    fn on_the_way_to_node(&mut self, stream: StreamId) -> Option<WorldTime> {
        let wire = self.streams.get_mut(&stream)?;
        let (from, to) = (Endpoint::Client(wire.client), Endpoint::Node(wire.node));
        let mut delay = self.network.delay(from, to, &mut self.random);
        if self.network.is_cut(from, to) {
            // It waits in buffers on the way, and may arrive long after the client gave up.
            delay += self.random.between(1, 20_000) * 1_000_000;
        }
        wire.to_node = wire.to_node.max(WorldTime(self.now.0 + delay));
        Some(wire.to_node)
    }
}
