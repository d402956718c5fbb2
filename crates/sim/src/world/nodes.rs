//! The nodes of the world: start, crash, pause, turns, syncs, snapshots, and messages between nodes.
//!
//! It drives real replicas as the server's engine does, and decides nothing for them. After each turn it compares the entries that the
//! node applied, and its state, with those of the other nodes, and reports new entries as facts.

use fencepost_core::{KnownVersions, LogPosition};
use std::sync::Arc;

use fencepost_replica::{
    Log, Message, Output, PeerMessage, Replica, Settings, Stop, decode_peer, encode_peer, read_entry,
};
use fencepost_session::Tier;
use fencepost_session::client::DialFailure;
use fencepost_session::edge::StreamId;
use fencepost_wire::Member;
use xxhash_rust::xxh3::xxh3_64;

use super::upgrades::{NEW_RELEASE, OLD_RELEASE};
use super::{Happening, World, address};
use crate::clock::Clock;
use crate::disk::{Disk, Durable};
use crate::fact::{Fact, LoggedEntry, WorldTime};
use crate::network::Endpoint;
use crate::node::{Doorway, NodeArrival, SimNode};

/// Entries that the world remembers, to compare with what other nodes apply later.
const LOG_KEPT: usize = 20_000;

/// The member record of a node.
pub(super) fn member(id: u64) -> Member {
    Member::new(id, &address(id), &format!("n{id}:7422"), &address(id)).expect("a plain member")
}

impl World {
    /// Adds a node that is a founding voter.
    pub(super) fn found(&mut self, id: u64, voters: &[u64]) {
        let durable = Durable { log: Log::new(voters), snapshot: None };
        self.put_node(id, durable, OLD_RELEASE);
    }

    /// Adds a new, empty node, which joins later.
    pub(super) fn join(&mut self, id: u64, known: KnownVersions) {
        self.put_node(id, Durable { log: Log::joining(), snapshot: None }, known);
    }

    pub(super) fn put_node(&mut self, id: u64, durable: Durable, known: KnownVersions) {
        let clock = Clock::draw(&mut self.random);
        self.nodes.insert(id, SimNode::new(Disk::new(durable), clock, known));
        self.start(id);
    }

    /// Starts a node's process from its durable state.
    pub(super) fn start(&mut self, id: u64) {
        let seed = self.random.number();
        let node = self.nodes.get_mut(&id).expect("a node that exists");
        let settings = Settings { id, seed, known: node.known, ..self.settings };
        let Durable { log, snapshot } = node.disk.durable().clone();
        let replica = match Replica::new(settings, log, snapshot.as_deref(), node.local(self.now)) {
            Ok(replica) => replica,
            // Correct: the node notices that its snapshot is damaged, and stays down.
            Err(Stop::BadSnapshot { .. }) if node.damaged => return,
            Err(stop) => {
                self.stopped = Some(format!("node {id} does not start: {stop}"));
                return;
            }
        };
        if node.damaged {
            self.stopped = Some(format!("node {id} did not notice that its snapshot is damaged"));
            return;
        }
        // Not `replica.applied()`: on start the replica applies the committed rest of its log, and those entries are not compared yet.
        node.applied = replica.newest_snapshot().map_or(1, |snapshot| snapshot.index).min(replica.applied().index);
        (node.replica, node.door, node.paused) = (Some(replica), Doorway::default(), false);
        node.life += 1;
        self.turn(id);
    }

    /// Crashes a node's process. Unsynced writes may be lost, and all its streams break.
    pub(super) fn crash(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        (node.replica, node.door, node.paused) = (None, Doorway::default(), false);
        node.waiting.clear();
        node.life += 1;
        node.disk.crash(&mut self.random);
        self.tell_lead();
        let streams: Vec<StreamId> =
            self.streams.iter().filter(|(_, wire)| wire.node == id).map(|(stream, _)| *stream).collect();
        for stream in streams {
            self.end_stream(stream, DialFailure::Unreachable);
        }
    }

    /// Ends the pause of a node. It takes everything that arrived meanwhile.
    pub(super) fn resume(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !std::mem::replace(&mut node.paused, false) {
            return;
        }
        let waiting = std::mem::take(&mut node.waiting);
        self.observer.line(self.now, "world", || format!("node {id} wakes up"));
        for arrival in waiting {
            self.take_in(id, arrival);
        }
        self.turn(id);
        self.begin_sync(id);
    }

    pub(super) fn peer_arrives(&mut self, message: Message, snapshot: Option<Arc<[u8]>>, known: KnownVersions) {
        self.arrive(message.to, NodeArrival::Peer(Box::new(message), snapshot, known));
    }

    pub(super) fn arrive(&mut self, id: u64, arrival: NodeArrival) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.replica.is_some() && node.paused {
            node.waiting.push_back(arrival);
        } else if node.replica.is_some() {
            self.take_in(id, arrival);
            self.turn(id);
        } else if let NodeArrival::Dial(stream) = arrival {
            self.end_stream(stream, DialFailure::Refused);
        }
    }

    fn take_in(&mut self, id: u64, arrival: NodeArrival) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(replica) = &mut node.replica else { return };
        if let NodeArrival::Peer(message, _, known) = &arrival {
            replica.handle_hello(message.from, *known);
        }
        let taken = match arrival {
            NodeArrival::Peer(message, None, _) => replica.handle_message(*message),
            NodeArrival::Peer(message, Some(bytes), _) => replica.handle_snapshot(*message, bytes),
            NodeArrival::Dial(stream) => return self.take_dial(id, stream),
            NodeArrival::Said(stream, message) => return self.take_message(id, stream, *message),
            NodeArrival::Gone(stream) => return self.take_farewell(id, stream),
        };
        if let Err(stop) = taken {
            self.stop(id, &stop);
        }
    }

    /// Notes that a node stopped itself. The disks of running nodes are sound here, so this is always a bug.
    fn stop(&mut self, id: u64, stop: &Stop) {
        self.stopped.get_or_insert(format!("node {id} stopped: {stop}"));
    }

    pub(super) fn synced(&mut self, id: u64, life: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.life == life) else { return };
        let Some(replica) = &mut node.replica else { return };
        if let Some(number) = node.disk.end_sync() {
            replica.handle_persisted(number);
        }
        self.turn(id);
        self.begin_sync(id);
    }

    pub(super) fn begin_sync(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(took) = node.disk.begin_sync(&mut self.random) {
            self.agenda.put(WorldTime(self.now.0 + took), Happening::Synced { node: id, life: node.life });
        }
    }

    pub(super) fn snapshot_made(&mut self, id: u64, life: u64) {
        let group = self.settings.group;
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.life == life) else { return };
        let Some(replica) = &mut node.replica else { return };
        if node.snapshots_stalled {
            let later = self.now.after_ms(500);
            self.agenda.put(later, Happening::SnapshotMade { node: id, life });
            return;
        }
        let Some((through, _)) = node.disk.making.clone() else { return };
        // Now and then the disk has no room for the snapshot.
        if self.random.one_in(20) {
            node.disk.making = None;
            replica.handle_snapshot_put_off(through);
        } else {
            let made = match node.disk.make_snapshot(group, node.known) {
                None => return,
                // A peer's snapshot replaced the log in the meantime.
                Some(Err(Stop::SnapshotIncomplete { .. })) => {
                    replica.handle_snapshot_put_off(through);
                    Ok(())
                }
                Some(Ok((position, state_hash))) => {
                    self.snapshots_made += 1;
                    replica.handle_snapshot_made(position, state_hash)
                }
                Some(Err(stop)) => Err(stop),
            };
            if let Err(stop) = made {
                self.stop(id, &stop);
                return;
            }
        }
        self.turn(id);
    }

    /// Runs one turn of a node, carries out its outputs, and schedules its next turn.
    pub(super) fn turn(&mut self, id: u64) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.runs()) else { return };
        let (local, wall_ms) = (node.local(now), node.wall_ms(now));
        let replica = node.replica.as_mut().expect("it runs");
        replica.set_wall_clock(wall_ms);
        let outputs = match replica.turn(local) {
            Ok(outputs) => outputs,
            Err(stop) => return self.stop(id, &stop),
        };
        self.tell_lead();
        self.look_at_log(id);
        for output in outputs {
            let Some(node) = self.nodes.get_mut(&id) else { return };
            let Some(replica) = &mut node.replica else { return };
            match output {
                Output::Reply { .. } | Output::Push { .. } | Output::Abandoned(_) => {
                    self.hand_out(id, Tier::Correctness, output);
                }
                Output::Send(message) => self.send_to_peer(message, None),
                Output::SendSnapshot { message, .. } => {
                    let (peer, bytes) = (message.to, node.disk.durable().snapshot.clone());
                    replica.handle_snapshot_sent(peer, true);
                    self.send_to_peer(message, bytes);
                }
                Output::Write(write) => {
                    if node.disk.write(write) {
                        self.begin_sync(id);
                    }
                }
                Output::MakeSnapshot { through, first_voters } => {
                    node.disk.making = Some((through, first_voters));
                    let at = now.after_ms(self.random.between(1, 200));
                    self.agenda.put(at, Happening::SnapshotMade { node: id, life: node.life });
                }
                Output::Compact { before, .. } => node.disk.compact(before),
                Output::ReadReady { ticket, position } => self.read_ready(id, ticket, position),
                Output::PeerLost { peer, silent_ms } => {
                    self.observer
                        .line(now, &format!("node {id}"), || format!("node {peer} has been silent for {silent_ms} ms"));
                }
                Output::PeerFound { peer, silent_ms } => {
                    let said = || format!("node {peer} is heard again after {silent_ms} ms");
                    self.observer.line(now, &format!("node {id}"), said);
                }
                Output::MembersChanged { .. } | Output::TransferBegun { .. } | Output::JobsFill { .. } => {}
            }
        }
        self.follow_lead(id, local);
        let node = self.nodes.get_mut(&id).expect("it has turned");
        let version = node.replica.as_ref().expect("it has turned").state().version();
        let in_memory = node.door.efficiency.turn(version, local);
        in_memory.into_iter().for_each(|output| self.hand_out(id, Tier::Efficiency, output));
        let node = self.nodes.get_mut(&id).expect("it has turned");
        let Some(replica) = &node.replica else { return };
        let next_turn = node.door.efficiency.next_turn().map_or(replica.next_turn(), |at| at.min(replica.next_turn()));
        node.serial += 1;
        let (next, serial) = (node.clock.when(next_turn.0), node.serial);
        // At least 1 us later: a node that always wants to turn at once must not stop the world's time.
        self.agenda.put(next.max(WorldTime(now.0 + 1_000)), Happening::Turn { node: id, serial });
        self.transmit(id);
    }

    fn send_to_peer(&mut self, message: Message, snapshot: Option<Arc<[u8]>>) {
        // Encoded and decoded, as over a real network, so that only what the format carries arrives.
        let (cluster, group) = (self.settings.group.cluster, self.settings.group.group);
        let bytes = encode_peer(&PeerMessage { cluster, group, message }).expect("a message for a peer");
        let message = decode_peer(&bytes).expect("what was written can be read").message;
        let known = self.nodes.get(&message.from).map_or(OLD_RELEASE, |node| node.known);
        let (from, to) = (Endpoint::Node(message.from), Endpoint::Node(message.to));
        for at in self.network.datagram(from, to, self.now, &mut self.random) {
            let snapshot = snapshot.clone();
            self.agenda.put(at, Happening::Peer { message: Box::new(message.clone()), snapshot, known });
        }
    }

    /// Looks at the entries that a node applied since the last look. New entries are reported; known ones must be the same as on the
    /// node that applied them first.
    fn look_at_log(&mut self, id: u64) {
        let node = self.nodes.get_mut(&id).expect("it has turned");
        let replica = node.replica.as_ref().expect("it runs");
        let applied = replica.applied();
        if applied.index == node.applied {
            return;
        }
        let newest = self.log.back().map_or(1, |(position, _)| position.index);
        let mut raises = Vec::new();
        for entry in replica.entries_from(node.applied + 1).take_while(|entry| entry.index <= applied.index) {
            let position = LogPosition { index: entry.index, term: entry.term };
            let hash = xxh3_64(&entry.data);
            if entry.index <= newest {
                let known = self.log.iter().rev().nth((newest - entry.index) as usize);
                if known.is_some_and(|known| *known != (position, hash)) {
                    self.stopped =
                        Some(format!("node {id} applied an entry at {position:?} that differs from {known:?}"));
                    return;
                }
                continue;
            }
            self.log.push_back((position, hash));
            if self.log.len() > LOG_KEPT {
                self.log.pop_front();
            }
            let read = match read_entry(entry, NEW_RELEASE) {
                Ok(Some(read)) if read.term == entry.term => read,
                Ok(_) => continue,
                Err(stop) => {
                    self.stopped = Some(format!("node {id}: {stop}"));
                    return;
                }
            };
            raises.extend(read.batch.raise_to.map(|version| (entry.index, version)));
            let effects = self.witness.apply(read.stamp, read.batch.clone());
            let logged = LoggedEntry {
                position,
                stamp: read.stamp,
                wall_clock_ms: read.wall_clock_ms,
                batch: read.batch,
                effects,
            };
            self.observer.fact(self.now, &Fact::Logged(&logged));
        }
        node.applied = applied.index;
        let state_hash = replica.state().state_hash();
        self.observer.fact(self.now, &Fact::Applied { node: id, position: applied, state_hash });
        let newest = self.log.back().map_or(1, |(position, _)| position.index);
        if applied.index == newest && state_hash != self.witness.state_hash() {
            let what = format!("node {id} has at {applied:?} a state that does not follow from the log");
            self.observer.checkers.found("I16", self.now, what);
        }
        raises.into_iter().for_each(|(index, version)| self.look_at_raise(id, index, version));
    }
}
