//! The planted faults that need a replica's fields.
//!
//! Without the feature `planted-bugs` each method here is constant or does nothing. `crate::planted` lists all faults, and
//! has the methods of the faults that need no fields.

use fencepost_core::{LogicalMs, Outcome, Renewal, Reply, ReplyTo, Ticket};
use raft::eraftpb::{Message, MessageType};

use super::{Lead, Replica};
use crate::members::{Role, role};
use crate::planted::{Bug, planted};
use crate::ports::Output;

impl Replica {
    /// True: a renewal counts only when its entry is applied. The fault confirms a keep-alive here and never logs it.
    pub(super) fn must_go_through_the_log(&mut self, ticket: Ticket, renewal: &Renewal) -> bool {
        if planted(Bug::RenewsWithoutTheLog)
            && let (Renewal::KeepAlive { .. }, Lead::Running { clock, .. }) = (renewal, &self.lead)
        {
            let reply = Reply { to: ReplyTo::Renewal(0), outcome: Outcome::Renewed, repeat: None };
            let (position, stamp) = (self.applied, clock.stamp());
            self.outputs.push(Output::Reply { ticket, position, stamp, reply });
            return false;
        }
        true
    }

    /// True: a read waits until consensus confirms that this node still leads. The fault answers it here.
    pub(super) fn must_ask_consensus(&mut self, ticket: Ticket) -> bool {
        if planted(Bug::ReadsWithoutConsensus) {
            self.outputs.push(Output::ReadReady { ticket, position: self.applied });
            return false;
        }
        true
    }

    /// True for every member: it must know a version before the leader raises the active one to it.
    pub(super) fn must_know_the_version(&self, node: u64) -> bool {
        let is_other = node != self.settings.id;
        let is_learner = role(&self.members, node) == Role::Learner;
        !(is_other && planted(Bug::RaisesWithoutAsking) || is_learner && planted(Bug::LearnersDoNotCount))
    }

    /// Does nothing: the leader's time travels in the log alone. The fault puts it into a heartbeat.
    pub(super) fn put_stamp_into(&self, message: &mut Message) {
        if message.msg_type == MessageType::MsgHeartbeat && planted(Bug::TimeInHeartbeats) {
            message.index = self.stamp().0;
        }
    }

    /// Does nothing, as [`Replica::put_stamp_into`]. The fault keeps the latest stamp that came in a heartbeat.
    pub(super) fn take_stamp_from(&mut self, message: &Message) {
        if message.msg_type == MessageType::MsgHeartbeat && planted(Bug::TimeInHeartbeats) {
            self.heard_stamp = self.heard_stamp.max(LogicalMs(message.index));
        }
    }
}
