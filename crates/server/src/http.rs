//! HTTP for monitoring: `/healthz`, `/readyz` and `/metrics`.
//!
//! It only reads the state of the node. Everything that changes something goes through the services.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use fencepost_wire::ShownNode;

use crate::engine::Shared;
use crate::status;

pub(crate) fn router(shared: Shared) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .with_state(shared)
}

/// The process answers.
async fn health() -> &'static str {
    "ok\n"
}

/// The node is ready if it is a member, and leads or knows the leader.
async fn readiness(State(shared): State<Shared>) -> Response {
    let engine = shared.engine();
    let replica = engine.replica();
    match replica.leader() {
        _ if replica.was_removed() => {
            let text = "not ready: this node was removed from the cluster; stop it and delete its directory\n";
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
        Some(leader) if leader == replica.id() && replica.serves() => "ready: this node leads\n".into_response(),
        Some(leader) if leader != replica.id() => format!("ready: node {} leads\n", ShownNode(leader)).into_response(),
        _ => {
            let text = format!("not ready: {}\n", status::without_leader(&replica.hearing()));
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let engine = shared.engine();
    let (replica, counts) = (engine.replica(), engine.replica().state().counts());
    let text = engine.metrics.show(|levels| {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        levels.term.set(replica.term() as i64);
        levels.leads.set(i64::from(replica.serves()));
        levels.applied_index.set(replica.applied().index as i64);
        levels.streams.set(number(engine.streams()));
        levels.sessions.set(number(counts.sessions));
        levels.grants.set(number(counts.grants));
        levels.waiters.set(number(counts.waiters));
        levels.rests.set(number(counts.rests));
        levels.freezes.set(number(counts.freezes));
        levels.last_token.set(counts.last_token.0 as i64);
        levels.peers_silent.set(number(replica.silent_peers()));
        levels.disk_short.set(i64::from(engine.node().is_disk_short()));
        let (log, sent) = (engine.node().log_counts(), engine.peers.sent());
        levels.log_entries.set(log.entries());
        levels.log_syncs.set(log.syncs());
        levels.log_bytes.set(log.bytes());
        levels.peer_messages.set(sent.messages);
        levels.peer_bytes.set(sent.bytes);
    });
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

async fn unknown() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "nothing is here: try /healthz, /readyz or /metrics\n")
}
