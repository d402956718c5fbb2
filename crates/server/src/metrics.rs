//! The metrics of a node, shown at `/metrics`.
//!
//! Counters are increased where things happen. Gauges are set only when `/metrics` is read.

use std::sync::atomic::Ordering;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counters that are increased as things happen.
pub(crate) struct Metrics {
    pub(crate) answers: Counter,
    pub(crate) pushes: Counter,
    pub(crate) turns: Counter,
    pub(crate) peers_lost: Counter,
    pub(crate) peers_found: Counter,
    levels: Levels,
    registry: Registry,
}

/// Values that are set when `/metrics` is read.
#[derive(Default)]
pub(crate) struct Levels {
    pub(crate) term: Gauge,
    pub(crate) leads: Gauge,
    pub(crate) applied_index: Gauge,
    pub(crate) streams: Gauge,
    pub(crate) sessions: Gauge,
    pub(crate) grants: Gauge,
    pub(crate) waiters: Gauge,
    pub(crate) rests: Gauge,
    pub(crate) freezes: Gauge,
    pub(crate) last_token: Gauge,
    pub(crate) peers_silent: Gauge,
    pub(crate) disk_short: Gauge,
    pub(crate) log_entries: Looked,
    pub(crate) log_syncs: Looked,
    pub(crate) log_bytes: Looked,
    pub(crate) peer_messages: Looked,
    pub(crate) peer_bytes: Looked,
}

/// A counter whose value is kept elsewhere and only rises.
#[derive(Clone, Default)]
pub(crate) struct Looked(Counter);

impl Looked {
    pub(crate) fn set(&self, count: u64) {
        self.0.inner().store(count, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("fencepost");
        let (answers, pushes, turns) = (Counter::default(), Counter::default(), Counter::default());
        registry.register(
            "answers",
            "Answers to operations and keep-alives that this node gave as leader",
            answers.clone(),
        );
        registry.register("pushes", "Pushes to sessions", pushes.clone());
        registry.register("turns", "Turns of the loop", turns.clone());
        let (peers_lost, peers_found) = (Counter::default(), Counter::default());
        registry.register("peers_lost", "How often a node that should be heard became silent", peers_lost.clone());
        registry.register("peers_found", "How often a silent node was heard again", peers_found.clone());
        let levels = Levels::default();
        let Levels {
            term,
            leads,
            applied_index,
            streams,
            sessions,
            grants,
            waiters,
            rests,
            freezes,
            last_token,
            peers_silent,
            disk_short,
            log_entries,
            log_syncs,
            log_bytes,
            peer_messages,
            peer_bytes,
        } = &levels;
        for (name, help, gauge) in [
            ("term", "The term of consensus", term),
            ("leads", "1 if this node leads and serves", leads),
            ("applied_index", "The last log entry in the state", applied_index),
            ("streams", "Streams of clients that are connected here", streams),
            ("sessions", "Living sessions", sessions),
            ("grants", "Held locks and permits", grants),
            ("waiters", "Requests that wait in a queue", waiters),
            ("rests", "Grants that ended against their holder's will and still keep their resources busy", rests),
            ("freezes", "Freezes", freezes),
            ("last_token", "The last fencing token given", last_token),
            ("peers_silent", "Nodes that this node should hear and has not heard for three seconds", peers_silent),
            ("disk_short", "1 if the disk is nearly full, and only releases and expiries are carried out", disk_short),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, looked) in [
            ("log_entries", "Entries that this node appended to its log, including consensus entries", log_entries),
            ("log_syncs", "Log records that were written and synced, each with one sync", log_syncs),
            ("log_bytes", "Bytes of the log records", log_bytes),
            ("peer_messages", "Consensus messages and snapshots that were sent to other nodes", peer_messages),
            (
                "peer_bytes",
                "Bytes of the consensus messages and snapshots sent to other nodes, without framing",
                peer_bytes,
            ),
        ] {
            registry.register(name, help, looked.0.clone());
        }
        Metrics { answers, pushes, turns, peers_lost, peers_found, levels, registry }
    }

    /// Everything in the text format of Prometheus.
    pub(crate) fn show(&self, set: impl FnOnce(&Levels)) -> String {
        set(&self.levels);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}
