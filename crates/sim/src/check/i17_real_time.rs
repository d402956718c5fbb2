//! I17 and I18: a linearizable read includes every position that was acknowledged before it began (I17). Real-time order agrees with log
//! order: a request that is sent after a client heard an answer is decided after that answer (I18).

use fencepost_session::client::RequestKey;

use super::findings::Findings;
use super::recent::Recent;

/// How many unanswered requests, and how many unanswered reads, are remembered.
const ASKED_MAX: usize = 1_000_000;

/// The highest index that any client has heard of, and its value at the start of each pending read and request.
#[derive(Debug)]
pub(super) struct RealTime {
    heard: u64,
    reads: Recent<u64, u64>,
    asked: Recent<RequestKey, u64>,
}

impl Default for RealTime {
    fn default() -> RealTime {
        RealTime { heard: 0, reads: Recent::up_to(ASKED_MAX), asked: Recent::up_to(ASKED_MAX) }
    }
}

impl RealTime {
    pub(super) fn restored(&mut self) {
        *self = RealTime::default();
    }

    /// A client heard an answer from this entry.
    pub(super) fn heard(&mut self, index: u64) {
        self.heard = self.heard.max(index);
    }

    /// A request is sent for the first time: the log must not have decided it already.
    pub(super) fn asked(&mut self, request: RequestKey, is_decided: bool, findings: &mut Findings) {
        findings.ensure(!is_decided, "I18", || format!("{request:?} was decided before it was sent"));
        self.asked.note(request, self.heard);
    }

    /// A request is decided, for the first time, in the entry at this index.
    pub(super) fn decided(&mut self, request: RequestKey, index: u64, findings: &mut Findings) {
        let Some(heard) = self.asked.take(&request) else { return };
        findings.report.ordered_requests += 1;
        findings.ensure(index > heard, "I18", || {
            format!("{request:?} is decided at {index}, but was sent after an answer from {heard} was heard")
        });
    }

    pub(super) fn read_asked(&mut self, read: u64) {
        self.reads.note(read, self.heard);
    }

    // Rule: read
    pub(super) fn read_answered(&mut self, read: u64, index: u64, findings: &mut Findings) {
        let Some(heard) = self.reads.take(&read) else { return };
        findings.report.reads += 1;
        findings.ensure(index >= heard, "I17", || {
            format!("read {read} shows the state at {index}, but began after {heard} was acknowledged")
        });
        // A later read must not show an older state.
        self.heard(index);
    }
}
