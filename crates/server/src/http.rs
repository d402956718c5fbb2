//! HTTP: `/healthz`, `/readyz` and `/metrics` for monitoring, and reads of the lock state below `/v1`.
//!
//! It only reads. Everything that changes something goes through the services.
//!
//! A web page that a browser on this network shows must not be able to look into the locks. A browser lets no page of another site read an
//! answer, unless that site takes a name for itself that leads here. So what is below `/v1` is answered only to a host that is an address,
//! `localhost`, or a name that the operator allows, and never to another origin.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use fencepost_wire::ShownNode;

use crate::engine::Shared;
use crate::exposition::CONTENT_TYPE;
use crate::problem::Problem;
use crate::{http_reads, metrics, status};

/// What the handlers share.
#[derive(Clone)]
struct Web {
    shared: Shared,
    /// The names, beside addresses and `localhost`, under which this node is called.
    hosts: Arc<[String]>,
}

pub(crate) fn router(shared: Shared, hosts: Vec<String>) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/metrics", get(show_metrics))
        .route("/v1", any(read))
        .route("/v1/{*path}", any(read))
        .fallback(unknown)
        .with_state(Web { shared, hosts: hosts.into() })
}

/// The process answers.
async fn health() -> &'static str {
    "ok\n"
}

/// The node is ready if it is a member, and leads or knows the leader.
async fn readiness(State(Web { shared, .. }): State<Web>) -> Response {
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

async fn show_metrics(State(Web { shared, .. }): State<Web>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics::show(&shared.engine())).into_response()
}

async fn unknown() -> (StatusCode, String) {
    let paths = http_reads::paths();
    (StatusCode::NOT_FOUND, format!("nothing is here: try /healthz, /readyz, /metrics, {paths}\n"))
}

/// Everything below `/v1`.
async fn read(State(web): State<Web>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let answered = match refusal(&web.hosts, &method, &headers) {
        Some(problem) => Err(problem),
        None => http_reads::answer(&web.shared, &uri).await,
    };
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let mut response =
        answered.map_or_else(Problem::into_response, |json_value| (json, format!("{json_value:#}\n")).into_response());
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Why a call is not answered, whatever it asks.
fn refusal(hosts: &[String], method: &Method, headers: &HeaderMap) -> Option<Problem> {
    if method != Method::GET && method != Method::HEAD {
        return Some(Problem::wrong_method("GET"));
    }
    let text =
        |name| headers.get(name).map(|value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let Some(host) = text(header::HOST) else {
        return Some(Problem::invalid("the header Host is missing: HTTP/1.1 demands it"));
    };
    if !is_own(&host, hosts) {
        let detail = format!(
            "this node is not called {:?}: use its address, or start it with --http-host NAME",
            fencepost_core::shortened(&host)
        );
        return Some(Problem::new(StatusCode::FORBIDDEN, "foreign-host", detail));
    }
    let origin = text(header::ORIGIN)?;
    let is_same = origin.split_once("://").is_some_and(|(_, place)| place.eq_ignore_ascii_case(&host));
    (!is_same).then(|| {
        let detail =
            "a page of another site asked: call this node from a program, or from a page that it serves itself";
        Problem::new(StatusCode::FORBIDDEN, "foreign-origin", detail)
    })
}

/// Whether a `Host` is one of this node: an address, which no site can take for itself, `localhost`, or a name that the operator allows.
fn is_own(host: &str, allowed: &[String]) -> bool {
    let without_port = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    without_port.parse::<std::net::IpAddr>().is_ok()
        || without_port.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|name| name.eq_ignore_ascii_case(without_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_another_site_can_take_is_not_our_host() {
        let allowed = ["locks.internal".to_owned()];
        for own in [
            "127.0.0.1",
            "127.0.0.1:7421",
            "10.0.0.7:7421",
            "[::1]:7421",
            "[::1]",
            "localhost:1",
            "LOCALHOST",
            "Locks.internal:80",
        ] {
            assert!(is_own(own, &allowed), "{own}");
        }
        for foreign in
            ["evil.example", "localhost.evil.example:7421", "127.0.0.1.evil.example", "", ":7421", "[::1", "1.2.3.4.5"]
        {
            assert!(!is_own(foreign, &allowed), "{foreign}");
        }
    }
}
