//! Ends and refusals over HTTP: RFC 9457 problem documents, each with a word for programs and a sentence that says what to do.
//!
//! This is the only place that turns the session protocol's errors into HTTP. gRPC has its own in `status.rs`, frames theirs in
//! `framed_service.rs`. docs/api.md has a row for each type.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fencepost_session::{End, Reason};
use serde_json::json;

/// Why a call is not answered.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    /// For programs. It never changes.
    kind: &'static str,
    /// For people.
    detail: String,
    /// The leader's address for clients, if another node is known to lead.
    leader: Option<String>,
    retry_after: Option<Duration>,
    /// The methods that the path has, if the method was wrong.
    allow: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, kind, detail: detail.into(), leader: None, retry_after: None, allow: None }
    }

    /// The request is wrong, and would be wrong again.
    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    pub(crate) fn wrong_method(allow: &'static str) -> Problem {
        let detail = format!("this path has no such method: use {allow}");
        Problem { allow: Some(allow), ..Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", detail) }
    }
}

impl From<End> for Problem {
    fn from(end: End) -> Problem {
        let (status, kind) = match end.reason {
            Reason::Invalid => (StatusCode::BAD_REQUEST, "invalid"),
            Reason::NotLeader => (StatusCode::SERVICE_UNAVAILABLE, "not-leader"),
            Reason::Removed => (StatusCode::SERVICE_UNAVAILABLE, "removed"),
            Reason::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting-down"),
            Reason::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let End { message, leader, retry_after, .. } = end;
        Problem { leader, retry_after, ..Problem::new(status, kind, message) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem { status, kind, detail, leader, retry_after, allow } = self;
        let mut document = json!({ "type": kind, "status": status.as_u16(), "detail": detail });
        if let Some(leader) = leader {
            document["leader"] = leader.into();
        }
        let mut response = (status, document.to_string() + "\n").into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = retry_after {
            // The header has whole seconds.
            headers.insert(header::RETRY_AFTER, (after.as_millis().div_ceil(1_000) as u64).into());
        }
        if let Some(allow) = allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}
