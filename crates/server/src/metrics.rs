//! The metrics of a node, shown at `/metrics`: what the server counts itself, and what the replica, the disk and the system say.
//!
//! What the server counts are plain numbers, increased by the engine thread where things happen. Everything else is read only when
//! `/metrics` is read. `docs/operating.md` lists every metric, and a test compares the two.

use fencepost_core::{Nanos, Outcome, Reply, ReplyTo, Ticket};
use fencepost_replica::{GrantTally, Histogram, NotTaken, RequestTally, SessionTally, Tally};
use fencepost_session::Tier;

use crate::arrivals::Arrivals;
use crate::engine::Engine;
use crate::exposition::{Exposition, Labels};
use crate::process;

/// What the server counts since the process began.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) pushes: u64,
    pub(crate) turns: u64,
    pub(crate) peers_lost: u64,
    pub(crate) peers_found: u64,
    answers: u64,
    not_taken_overloaded: u64,
    not_taken_disk_short: u64,
    correctness: Answering,
    efficiency: Answering,
}

/// How long answers take in one tier.
#[derive(Default)]
struct Answering {
    arrivals: Arrivals,
    acquire: Histogram,
}

impl Metrics {
    /// An operation of a stream, which arrived at `at`, got this ticket.
    pub(crate) fn taken(&mut self, tier: Tier, ticket: Ticket, at: Nanos) {
        self.answering(tier).arrivals.note(ticket, at);
    }

    /// A command of a stream was not taken.
    pub(crate) fn not_taken(&mut self, why: &NotTaken) {
        match why {
            NotTaken::Overloaded => self.not_taken_overloaded += 1,
            NotTaken::DiskShort => self.not_taken_disk_short += 1,
            // The stream ends, and the client asks the leader.
            _ => {}
        }
    }

    /// A command is answered now.
    pub(crate) fn answered(&mut self, tier: Tier, ticket: Ticket, reply: &Reply, now: Nanos) {
        self.answers += 1;
        let ReplyTo::Operation(_) = reply.to else { return };
        let Answering { arrivals, acquire } = self.answering(tier);
        let took = arrivals.answered(ticket, now);
        let asked_for_grant = matches!(
            reply.outcome,
            Outcome::Granted { .. } | Outcome::Queued { .. } | Outcome::Busy(_) | Outcome::Deadlock(_)
        );
        if let Some(took) = took.filter(|_| asked_for_grant && reply.repeat.is_none()) {
            acquire.observe(took);
        }
    }

    /// The term in which this node serves has changed: what was not answered will not be answered here.
    pub(crate) fn follow_leadership(&mut self) {
        self.correctness.arrivals.clear();
        self.efficiency.arrivals.clear();
    }

    fn answering(&mut self, tier: Tier) -> &mut Answering {
        match tier {
            Tier::Correctness => &mut self.correctness,
            Tier::Efficiency => &mut self.efficiency,
        }
    }
}

/// All metrics of a node as text.
pub(crate) fn show(engine: &Engine) -> String {
    let mut shown = Exposition::default();
    show_node(&mut shown, engine);
    show_times(&mut shown, engine);
    show_ends(&mut shown, engine);
    show_work(&mut shown, engine);
    process::show(&mut shown);
    shown.into_text()
}

/// What the node is, and what its state holds.
fn show_node(shown: &mut Exposition, engine: &Engine) {
    let (replica, counts) = (engine.replica(), engine.replica().state().counts());
    let known = replica.known();
    let (oldest, newest) = (known.oldest().to_string(), known.newest().to_string());
    shown.facts(
        "fencepost_build_info",
        "The release of this node, and the format versions that it knows",
        &[("version", env!("CARGO_PKG_VERSION")), ("oldest_format", &oldest), ("newest_format", &newest)],
    );
    shown.gauge("fencepost_term", "The term of consensus", replica.term());
    shown.gauge("fencepost_leads", "1 if this node leads and serves", u8::from(replica.serves()));
    shown.gauge("fencepost_applied_index", "The last log entry in the state", replica.applied().index);
    shown.gauge("fencepost_streams", "Streams of clients that are connected here", engine.streams());
    shown.gauge("fencepost_sessions", "Living sessions", counts.sessions);
    shown.gauge("fencepost_grants", "Held locks and permits", counts.grants);
    shown.gauge("fencepost_waiters", "Requests that wait in a queue", counts.waiters);
    let help = "Grants that ended against their holder's will and still keep their resources busy";
    shown.gauge("fencepost_rests", help, counts.rests);
    shown.gauge("fencepost_freezes", "Freezes", counts.freezes);
    shown.gauge("fencepost_jobs", "Remembered jobs", counts.jobs);
    shown.gauge("fencepost_jobs_held", "Jobs that a client holds", counts.jobs_held);
    shown.gauge("fencepost_job_bytes", "Bytes that the records of jobs count for", counts.job_bytes);
    shown.gauge("fencepost_last_token", "The last fencing token given", counts.last_token.0);
    let help = "Nodes that this node should hear and has not heard for three seconds";
    shown.gauge("fencepost_peers_silent", help, replica.silent_peers());
    let help = "1 if the disk is nearly full, and only releases and expiries are carried out";
    shown.gauge("fencepost_disk_short", help, u8::from(engine.node().is_disk_short()));
}

/// How long things take.
fn show_times(shown: &mut Exposition, engine: &Engine) {
    let (metrics, node) = (&engine.metrics, engine.node());
    let [correctness, efficiency] = tallies(engine);
    shown.histograms(
        "fencepost_acquire_seconds",
        "From the arrival of a request for a lock or permits at the leader to its first answer: granted, queued, busy or deadlock",
        [(CORRECTNESS, &metrics.correctness.acquire), (EFFICIENCY, &metrics.efficiency.acquire)],
    );
    shown.histograms(
        "fencepost_wait_seconds",
        "How long the requests waited in a queue that were granted from it, in logical time",
        [(CORRECTNESS, &correctness.waits), (EFFICIENCY, &efficiency.waits)],
    );
    let help = "From the moment when the leader gave an entry to disk and peers until it was committed";
    shown.histograms("fencepost_commit_seconds", help, [(NO_LABELS, node.times().commit())]);
    let help = "Writing and syncing one record of the log";
    shown.histograms("fencepost_sync_seconds", help, [(NO_LABELS, node.log_counts().sync_times())]);
    let help = "Steps of this node that applied committed entries to the state, without disk and network";
    shown.histograms("fencepost_apply_seconds", help, [(NO_LABELS, node.times().apply())]);
}

/// What ended, and how.
fn show_ends(shown: &mut Exposition, engine: &Engine) {
    let [correctness, efficiency] = tallies(engine);
    let both = [("correctness", correctness), ("efficiency", efficiency)];
    let mut family = |name, help, label, values: &dyn Fn(&Tally) -> Vec<(&'static str, u64)>| {
        let each = both.iter().flat_map(|(tier, tally)| values(tally).into_iter().map(move |it| (*tier, it)));
        let each: Vec<_> = each.map(|(tier, (value, count))| ([("tier", tier), (label, value)], count)).collect();
        shown.counters(name, help, each.iter().map(|(labels, count)| (&labels[..], *count)));
    };
    let help = "Requests for locks and permits that ended while this node led, by outcome";
    family("fencepost_requests_total", help, "outcome", &|tally| {
        let RequestTally { granted, busy, timed_out, cancelled, deadlock, completed, bound, refused, session_ended } =
            tally.requests;
        vec![
            ("granted", granted),
            ("busy", busy),
            ("timed_out", timed_out),
            ("cancelled", cancelled),
            ("deadlock", deadlock),
            ("completed", completed),
            ("bound", bound),
            ("refused", refused),
            ("session_ended", session_ended),
        ]
    });
    let help = "Held locks and permits that ended while this node led: the last four against their holder's will";
    family("fencepost_grants_ended_total", help, "how", &|tally| {
        let GrantTally { released, expired, max_hold, broken, evicted } = tally.grants;
        vec![
            ("released", released),
            ("expired", expired),
            ("max_hold", max_hold),
            ("broken", broken),
            ("evicted", evicted),
        ]
    });
    let help = "Sessions that ended while this node led";
    family("fencepost_sessions_ended_total", help, "how", &|tally| {
        let SessionTally { closed, expired, evicted } = tally.sessions;
        vec![("closed", closed), ("expired", expired), ("evicted", evicted)]
    });
}

/// What the node did.
fn show_work(shown: &mut Exposition, engine: &Engine) {
    let (metrics, log, sent) = (&engine.metrics, engine.node().log_counts(), engine.peers.sent());
    let help = "Commands of clients that this node did not take, as leader";
    let not_taken: [(Labels<'_>, u64); 2] = [
        (&[("why", "overloaded")], metrics.not_taken_overloaded),
        (&[("why", "disk_short")], metrics.not_taken_disk_short),
    ];
    shown.counters("fencepost_not_taken_total", help, not_taken);
    for (name, help, count) in [
        (
            "fencepost_answers_total",
            "Answers to operations and keep-alives that this node gave as leader",
            metrics.answers,
        ),
        ("fencepost_pushes_total", "Pushes to sessions", metrics.pushes),
        ("fencepost_turns_total", "Turns of the loop", metrics.turns),
        ("fencepost_peers_lost_total", "How often a node that should be heard became silent", metrics.peers_lost),
        ("fencepost_peers_found_total", "How often a silent node was heard again", metrics.peers_found),
        (
            "fencepost_log_entries_total",
            "Entries that this node appended to its log, including consensus entries",
            log.entries(),
        ),
        ("fencepost_log_syncs_total", "Log records that were written and synced, each with one sync", log.syncs()),
        ("fencepost_log_bytes_total", "Bytes of the log records", log.bytes()),
        (
            "fencepost_peer_messages_total",
            "Consensus messages and snapshots that were sent to other nodes",
            sent.messages,
        ),
        (
            "fencepost_peer_bytes_total",
            "Bytes of the consensus messages and snapshots sent to other nodes, without framing",
            sent.bytes,
        ),
    ] {
        shown.counter(name, help, count);
    }
}

const NO_LABELS: Labels<'_> = &[];
const CORRECTNESS: Labels<'_> = &[("tier", "correctness")];
const EFFICIENCY: Labels<'_> = &[("tier", "efficiency")];

fn tallies(engine: &Engine) -> [&Tally; 2] {
    [engine.replica().tally(), engine.efficiency().tally()]
}
