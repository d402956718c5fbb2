//! The hostile client's place in the world: when it acts, what it learns, and which streams it leaves unread.
//!
//! What it does is decided in `hostile.rs`. Here the world carries it out and shows it everything except secrets.

use fencepost_core::{Epoch, Outcome, Reply, SecretHash, SessionId};
use fencepost_session::Tier;
use fencepost_session::edge::StreamId;

use super::{Happening, World};
use crate::fact::StreamCommand;
use crate::hostile::Hostile;
use crate::process::Arrival;
use crate::random::Random;

/// Its client number. It is not an index into `World::clients`.
pub(super) const HOSTILE: usize = usize::MAX;

impl World {
    pub(super) fn add_hostile(&mut self, random: Random) {
        self.hostile = Some(Hostile::new(random));
        self.agenda.put(self.now, Happening::Hostile);
    }

    /// Lets it act, and schedules its next turn. After the world is healed it hangs up for good.
    pub(super) fn hostile_acts(&mut self) {
        let (nodes, now) = (self.ids(), self.now);
        let Some(hostile) = &mut self.hostile else { return };
        let deeds = match self.faults.is_on {
            true => {
                self.agenda.put(now.after_ms(self.random.between(5, 300)), Happening::Hostile);
                hostile.act(&nodes, &mut self.next_stream)
            }
            false => hostile.hang_up(),
        };
        for deed in deeds {
            self.do_for(HOSTILE, deed);
        }
    }

    /// It hears that an administrator evicts a session.
    pub(super) fn tell_hostile_of_evict(&mut self, session: SessionId) {
        let Some(hostile) = &mut self.hostile else { return };
        for deed in hostile.opens_evicted(session) {
            self.do_for(HOSTILE, deed);
        }
    }

    pub(super) fn reach_hostile(&mut self, arrival: &Arrival) {
        if let Some(hostile) = &mut self.hostile {
            hostile.hear(arrival);
        }
    }

    /// Shows it every decision of a lock state. Secrets stay hidden; their hashes do not.
    pub(super) fn tell_hostile(&mut self, tier: Tier, command: StreamCommand, hash: Option<SecretHash>, reply: &Reply) {
        let Some(hostile) = &mut self.hostile else { return };
        let epoch: Option<Epoch> = match &reply.outcome {
            Outcome::Opened { epoch } => Some(*epoch),
            Outcome::Attached(attached) => Some(attached.epoch),
            Outcome::Granted { grant, .. } => {
                hostile.learn_grant(*grant);
                None
            }
            _ => None,
        };
        if let Some((epoch, hash)) = epoch.zip(hash) {
            hostile.learn(tier, command.session, hash, epoch);
        }
    }

    /// Leaves a stream unread for this long.
    pub(super) fn stop_reading(&mut self, stream: StreamId, for_ms: u64) {
        if let Some(wire) = self.streams.get_mut(&stream) {
            self.observer.fault(self.now, "answers left unread", || format!("by the hostile client, for {for_ms} ms"));
            wire.read_from = self.now.after_ms(for_ms);
            self.agenda.put(wire.read_from, Happening::ReadsAgain { stream });
        }
    }
}
