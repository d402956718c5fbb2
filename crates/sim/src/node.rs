//! A simulated node: a real replica with a simulated disk, clock and edge.

use fencepost_core::{KnownVersions, Nanos};
use std::collections::VecDeque;
use std::sync::Arc;

use fencepost_replica::{EfficiencyTier, Message, Replica};
use fencepost_session::edge::{Edge, StreamId};
use fencepost_wire::v1;

use crate::clock::Clock;
use crate::disk::Disk;
use crate::fact::WorldTime;
use crate::port::{Port, Submitted};

/// Something that reaches a node.
pub(crate) enum NodeArrival {
    /// A message of a peer, and what that peer said in its hello.
    Peer(Box<Message>, Option<Arc<[u8]>>, KnownVersions),
    /// A client dials.
    Dial(StreamId),
    /// A client says something.
    Said(StreamId, Box<v1::ClientMessage>),
    /// A client is gone.
    Gone(StreamId),
}

/// Everything at a node that has to do with its streams.
pub(crate) struct Doorway {
    pub(crate) edge: Edge,
    pub(crate) efficiency: EfficiencyTier,
    pub(crate) submitted: Submitted,
}

impl Default for Doorway {
    /// That of a node that starts. Every run hashes alike.
    fn default() -> Doorway {
        Doorway { edge: Edge::new(0), efficiency: EfficiencyTier::default(), submitted: Submitted::default() }
    }
}

impl Doorway {
    /// The edge, and the port to submit through while it takes something of this stream.
    pub(crate) fn open<'a>(&'a mut self, replica: &'a mut Replica, stream: StreamId) -> (&'a mut Edge, Port<'a>) {
        let (efficiency, submitted) = (self.efficiency.of_term(), &mut self.submitted);
        (&mut self.edge, Port { replica, efficiency, stream, submitted })
    }
}

/// A node.
pub(crate) struct SimNode {
    /// The format versions that its release knows.
    pub(crate) known: KnownVersions,
    /// None while it is down.
    pub(crate) replica: Option<Replica>,
    /// Its streams.
    pub(crate) door: Doorway,
    /// Its disk.
    pub(crate) disk: Disk,
    /// Its clock, which counts while it is paused.
    pub(crate) clock: Clock,
    /// The process is stopped; what arrives waits.
    pub(crate) paused: bool,
    /// What has arrived meanwhile.
    pub(crate) waiting: VecDeque<NodeArrival>,
    /// Which of its lives this is: what was begun in an earlier one does not count.
    pub(crate) life: u64,
    /// The turn that counts.
    pub(crate) serial: u64,
    /// The last entry that it has applied.
    pub(crate) applied: u64,
    /// Snapshots are not made.
    pub(crate) snapshots_stalled: bool,
    /// Its disk is damaged: it must not come back.
    pub(crate) damaged: bool,
    /// How far its wall clock is off, in milliseconds.
    pub(crate) wall_off_ms: i64,
}

impl SimNode {
    /// A node that is down, with this disk.
    pub(crate) fn new(disk: Disk, clock: Clock, known: KnownVersions) -> SimNode {
        SimNode {
            known,
            replica: None,
            door: Doorway::default(),
            disk,
            clock,
            paused: false,
            waiting: VecDeque::new(),
            life: 0,
            serial: 0,
            applied: 0,
            snapshots_stalled: false,
            damaged: false,
            wall_off_ms: 0,
        }
    }

    /// Whether it is up and runs.
    pub(crate) fn runs(&self) -> bool {
        self.replica.is_some() && !self.paused
    }

    /// What its wall clock shows, in milliseconds since some noon.
    pub(crate) fn wall_ms(&self, now: WorldTime) -> u64 {
        (1_u64 << 40).saturating_add_signed(self.wall_off_ms) + now.ms()
    }

    /// What its clock shows.
    pub(crate) fn local(&self, now: WorldTime) -> Nanos {
        Nanos(self.clock.shows(now))
    }

    /// How it is, for people.
    pub(crate) fn tell(&self, id: u64) -> String {
        let Some(replica) = &self.replica else {
            return format!("node {id} is down{}", if self.damaged { ", its disk is damaged" } else { "" });
        };
        let members: Vec<String> =
            replica.members().iter().map(|view| format!("{} {:?}", view.node, view.role)).collect();
        let (term, applied, members) = (replica.term(), replica.applied().index, members.join(", "));
        format!("node {id} in term {term} has applied {applied} and knows {members}")
    }
}
