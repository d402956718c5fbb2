//! Refusals as answers: a problem document (RFC 9457) over HTTP, a status over gRPC.
//!
//! An answer never contains the error of a failed store: that error is for the service's own log, not for its callers.

use std::fmt::Write;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::json;

use super::header::FENCING_TOKEN_HIGHEST;
use crate::error::Error;
use crate::rules::Stale;

/// The answer to a refused request. For handlers that answer with [`Response`] and use `?`.
pub type Refused = Response<String>;

/// Status codes of gRPC.
const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const ALREADY_EXISTS: i32 = 6;
const FAILED_PRECONDITION: i32 = 9;
const INTERNAL: i32 = 13;

/// Why a request was refused, for its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    kind: &'static str,
    title: &'static str,
    status: StatusCode,
    grpc_code: i32,
    detail: String,
    stale: Option<Stale>,
}

impl Refusal {
    /// The request has no tokens.
    pub(super) fn missing() -> Refusal {
        let detail = "send the token of your lock in the header Fencing-Token, as in `Fencing-Token: 42`";
        Refusal::new("missing-token", "A fencing token is required", StatusCode::PRECONDITION_REQUIRED, detail)
    }

    /// The request has tokens, but none for this name.
    pub(super) fn missing_for(name: &str) -> Refusal {
        let detail = format!(
            "this request also writes {name}: send the token of your lock on it, as in `Fencing-Token: 42, 43;write=\"{name}\"`"
        );
        Refusal::new("missing-token", "A fencing token is required", StatusCode::PRECONDITION_REQUIRED, detail)
    }

    /// The header cannot be parsed.
    pub(super) fn malformed() -> Refusal {
        let detail = "Fencing-Token begins with the token of your lock, a whole number from 1 to 2^53 - 1. After it come, \
            separated by commas, a token and a name for whatever else the request was decided from, as in \
            `42, 17;read=\"price:3\"`, at most 64 in all";
        Refusal::new("malformed-token", "The fencing token cannot be read", StatusCode::BAD_REQUEST, detail)
    }

    fn new(kind: &'static str, title: &'static str, status: StatusCode, detail: impl Into<String>) -> Refusal {
        let grpc_code = match status {
            StatusCode::BAD_REQUEST => INVALID_ARGUMENT,
            StatusCode::PRECONDITION_FAILED | StatusCode::PRECONDITION_REQUIRED => FAILED_PRECONDITION,
            _ => INTERNAL,
        };
        Refusal { kind, title, status, grpc_code, detail: detail.into(), stale: None }
    }

    /// The status over HTTP.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The code over gRPC, for the status that a handler answers with.
    pub fn grpc_code(&self) -> i32 {
        self.grpc_code
    }

    /// What happened, and what to do next.
    pub fn message(&self) -> &str {
        &self.detail
    }

    /// The headers over HTTP, the metadata over gRPC: the highest token seen, if the token was stale.
    pub fn headers(&self) -> HeaderMap {
        let highest = self.stale.iter().map(|stale| (FENCING_TOKEN_HIGHEST, HeaderValue::from(stale.highest.0)));
        highest.collect()
    }

    /// The answer over HTTP.
    pub fn http(&self) -> Response<String> {
        let mut problem = json!({
            "type": format!("urn:fencepost:{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some(stale) = &self.stale {
            problem["name"] = json!(stale.name.as_str());
            problem["token"] = json!(stale.token.0);
            problem["at"] = json!(stale.at.as_str());
            problem["highest"] = json!(stale.highest.0);
        }
        let mut response = Response::new(problem.to_string());
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }

    /// The answer over gRPC: the status in the headers, and no messages.
    pub(super) fn grpc(&self, content_type: HeaderValue) -> Response<String> {
        let mut message = String::new();
        for byte in self.detail.bytes() {
            match byte {
                b'%' => message += "%25",
                b' '..=b'~' => message.push(byte.into()),
                byte => write!(message, "%{byte:02X}").expect("writing to a string cannot fail"),
            }
        }
        let mut response = Response::new(String::new());
        let headers = response.headers_mut();
        *headers = self.headers();
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert("grpc-status", HeaderValue::from(self.grpc_code));
        headers.insert("grpc-message", HeaderValue::try_from(message).expect("only visible ASCII was written"));
        response
    }
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Refusal {
        match error {
            Error::Stale(stale) => Refusal {
                stale: Some(stale.clone()),
                ..Refusal::new(
                    "stale-token",
                    "The fencing token is stale",
                    StatusCode::PRECONDITION_FAILED,
                    stale.to_string(),
                )
            },
            Error::BadName(_) => {
                Refusal::new("bad-name", "The name is not valid", StatusCode::BAD_REQUEST, error.to_string())
            }
            Error::BadKey(_) => {
                Refusal::new("bad-key", "The key is not valid", StatusCode::BAD_REQUEST, error.to_string())
            }
            Error::Before(before) => {
                let refusal =
                    Refusal::new("done-before", "It was done before", StatusCode::CONFLICT, before.to_string());
                Refusal { grpc_code: ALREADY_EXISTS, ..refusal }
            }
            Error::Unsupported(_) | Error::NotInstalled(_) => {
                let detail = "the service is not set up for fencing tokens: tell its operator";
                Refusal::new("not-set-up", "The service is not set up", StatusCode::INTERNAL_SERVER_ERROR, detail)
            }
            Error::Store(_) => {
                let detail = "the store of the service failed, and whether the request was done is unknown: look before you \
                    try again";
                let refusal =
                    Refusal::new("store-failed", "The store failed", StatusCode::INTERNAL_SERVER_ERROR, detail);
                Refusal { grpc_code: UNKNOWN, ..refusal }
            }
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::from(&error)
    }
}

impl From<Refusal> for Response<String> {
    fn from(refusal: Refusal) -> Response<String> {
        refusal.http()
    }
}

impl From<Error> for Response<String> {
    fn from(error: Error) -> Response<String> {
        Refusal::from(error).http()
    }
}
