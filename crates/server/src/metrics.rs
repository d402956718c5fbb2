//! What a node counts, and shows at `/metrics`.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counted as it happens.
pub(crate) struct Metrics {
    pub(crate) answers: Counter,
    pub(crate) pushes: Counter,
    pub(crate) turns: Counter,
    levels: Levels,
    registry: Registry,
}

/// Looked up when somebody asks.
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
    pub(crate) disk_short: Gauge,
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
        registry.register("pushes", "What sessions were told unasked", pushes.clone());
        registry.register("turns", "Turns of the loop", turns.clone());
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
            disk_short,
        } = &levels;
        for (name, help, gauge) in [
            ("term", "The term of consensus", term),
            ("leads", "1 if this node leads and serves", leads),
            ("applied_index", "The last log entry in the state", applied_index),
            ("streams", "Streams of clients that are connected here", streams),
            ("sessions", "Living sessions", sessions),
            ("grants", "Held locks and permits", grants),
            ("waiters", "Requests that wait", waiters),
            ("rests", "Resources that rest after an involuntary end", rests),
            ("freezes", "Freezes", freezes),
            ("last_token", "The last fencing token given", last_token),
            ("disk_short", "1 if the disk is nearly full, and only releases and expiry go on", disk_short),
        ] {
            registry.register(name, help, gauge.clone());
        }
        Metrics { answers, pushes, turns, levels, registry }
    }

    /// Everything in the text format of Prometheus.
    pub(crate) fn show(&self, set: impl FnOnce(&Levels)) -> String {
        set(&self.levels);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}
