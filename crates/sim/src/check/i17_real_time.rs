//! I17 and I18: a linearizable read is at or after every position acknowledged before it began, and real-time order agrees with log
//! order: what is asked after an answer was heard is decided after it.

use fencepost_session::client::RequestKey;

use super::findings::Findings;
use super::recent::Recent;

/// Requests and reads that were asked and not answered, as far as they are remembered.
const ASKED_MAX: usize = 1_000_000;

/// The highest index that anybody has heard of, and what it was when something began.
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

    /// Somebody heard an answer from this entry.
    pub(super) fn heard(&mut self, index: u64) {
        self.heard = self.heard.max(index);
    }

    /// A request is asked for the first time; the log cannot have decided it already.
    pub(super) fn asked(&mut self, request: RequestKey, is_decided: bool, findings: &mut Findings) {
        findings.ensure(!is_decided, "I18", || format!("{request:?} was decided before it was asked"));
        self.asked.note(request, self.heard);
    }

    /// A request is decided, for the first time, in the entry at this index.
    pub(super) fn decided(&mut self, request: RequestKey, index: u64, findings: &mut Findings) {
        let Some(heard) = self.asked.take(&request) else { return };
        findings.report.ordered_requests += 1;
        findings.ensure(index > heard, "I18", || {
            format!("{request:?} is decided at {index}, and was asked after an answer from {heard} was heard")
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
            format!("read {read} is answered as of {index}, and began after {heard} was acknowledged")
        });
        // Who reads after this one reads no older state.
        self.heard(index);
    }
}
