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
use crate::exposition::CONTENT_TYPE;
use crate::{metrics, status};

pub(crate) fn router(shared: Shared) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/metrics", get(show_metrics))
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

async fn show_metrics(State(shared): State<Shared>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics::show(&shared.engine())).into_response()
}

async fn unknown() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "nothing is here: try /healthz, /readyz or /metrics\n")
}
