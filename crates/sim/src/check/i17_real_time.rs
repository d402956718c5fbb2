//! I17 and I18: a linearizable read is at or after every position acknowledged before it began, and real-time order agrees with log
//! order: what is asked after an answer was heard is decided after it.

use std::collections::VecDeque;

use fencepost::machine::RequestKey;

use super::findings::Findings;
use super::ledger::Map;

/// Requests that were asked and not decided; the oldest are forgotten first.
const ASKED_MAX: usize = 1_000_000;

/// The highest index that anybody has heard of, and what it was when something began.
#[derive(Debug, Default)]
pub(super) struct RealTime {
    heard: u64,
    reads: Map<u64, u64>,
    asked: Map<RequestKey, u64>,
    asked_in_order: VecDeque<RequestKey>,
}

impl RealTime {
    pub(super) fn restored(&mut self) {
        *self = RealTime::default();
    }

    /// Somebody heard an answer from this entry.
    pub(super) fn heard(&mut self, index: u64) {
        self.heard = self.heard.max(index);
    }

    pub(super) fn asked(&mut self, request: RequestKey) {
        self.asked.entry(request).or_insert(self.heard);
        self.asked_in_order.push_back(request);
        if self.asked_in_order.len() > ASKED_MAX
            && let Some(oldest) = self.asked_in_order.pop_front()
        {
            self.asked.remove(&oldest);
        }
    }

    /// A request is decided, for the first time, in the entry at this index.
    pub(super) fn decided(&mut self, request: RequestKey, index: u64, findings: &mut Findings) {
        let Some(heard) = self.asked.remove(&request) else { return };
        findings.report.ordered_requests += 1;
        findings.ensure(index > heard, "I18", || {
            format!("{request:?} is decided at {index}, and was asked after an answer from {heard} was heard")
        });
    }

    pub(super) fn read_asked(&mut self, read: u64) {
        self.reads.insert(read, self.heard);
    }

    // Rule: read
    pub(super) fn read_answered(&mut self, read: u64, index: u64, findings: &mut Findings) {
        let Some(heard) = self.reads.remove(&read) else { return };
        findings.report.reads += 1;
        findings.ensure(index >= heard, "I17", || {
            format!("read {read} is answered as of {index}, and began after {heard} was acknowledged")
        });
        // Who reads after this one reads no older state.
        self.heard(index);
    }
}
