//! A simulated node: a real replica, a real edge and a real efficiency tier, with a simulated disk and clock.
//!
//! This file owns the state of a node. What happens to it is in `world/nodes.rs`, and its streams are in `world/door.rs`.

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
    /// A message of a peer, perhaps a snapshot, and the format versions that the peer announced.
    Peer(Box<Message>, Option<Arc<[u8]>>, KnownVersions),
    /// A client dials.
    Dial(StreamId),
    /// A message of a client.
    Said(StreamId, Box<v1::ClientMessage>),
    /// A client closed its stream.
    Gone(StreamId),
}

/// The parts of a node that serve streams. A crash loses them.
pub(crate) struct Doorway {
    pub(crate) edge: Edge,
    pub(crate) efficiency: EfficiencyTier,
    pub(crate) submitted: Submitted,
}

impl Default for Doorway {
    /// The doorway of a node that starts. The hash seed of the edge is fixed, so that every run is the same.
    fn default() -> Doorway {
        Doorway { edge: Edge::new(0), efficiency: EfficiencyTier::default(), submitted: Submitted::default() }
    }
}

impl Doorway {
    /// The edge, and the port through which it submits commands of this stream.
    pub(crate) fn open<'a>(&'a mut self, replica: &'a mut Replica, stream: StreamId) -> (&'a mut Edge, Port<'a>) {
        let (efficiency, submitted) = (self.efficiency.of_term(), &mut self.submitted);
        (&mut self.edge, Port { replica, efficiency, stream, submitted })
    }
}

/// A simulated node.
pub(crate) struct SimNode {
    /// The format versions that its release knows.
    pub(crate) known: KnownVersions,
    /// `None` while the node is down.
    pub(crate) replica: Option<Replica>,
    pub(crate) door: Doorway,
    pub(crate) disk: Disk,
    /// Its clock. It runs on while the node is paused.
    pub(crate) clock: Clock,
    /// While paused the process does nothing; arrivals go to `waiting`.
    pub(crate) paused: bool,
    /// What arrived during the pause.
    pub(crate) waiting: VecDeque<NodeArrival>,
    /// Counts starts and crashes. Syncs and snapshots that were begun in an earlier life are ignored.
    pub(crate) life: u64,
    /// The serial of the valid turn timer. Timers with other serials are ignored.
    pub(crate) serial: u64,
    /// The index of the last entry that the world has compared.
    pub(crate) applied: u64,
    /// Snapshots are not made for now.
    pub(crate) snapshots_stalled: bool,
    /// Its snapshot is damaged: it must refuse to start.
    pub(crate) damaged: bool,
    /// Offset of its wall clock, in milliseconds.
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

    /// Whether it is up and not paused.
    pub(crate) fn runs(&self) -> bool {
        self.replica.is_some() && !self.paused
    }

    /// What its wall clock shows, in milliseconds since an arbitrary epoch.
    pub(crate) fn wall_ms(&self, now: WorldTime) -> u64 {
        (1_u64 << 40).saturating_add_signed(self.wall_off_ms) + now.ms()
    }

    /// What its monotonic clock shows.
    pub(crate) fn local(&self, now: WorldTime) -> Nanos {
        Nanos(self.clock.shows(now))
    }

    /// Its state in words, for violations.
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
