//! Ends and refusals as gRPC statuses: a code, a reason for programs, and a sentence that says what to do.
//!
//! This is the only place that turns the session protocol's errors into gRPC. Frames have theirs in `framed_service.rs`.

use std::collections::HashMap;

use fencepost_replica::Hearing;
use fencepost_session::{End, Reason};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

const DOMAIN: &str = "fencepost";

/// The end of a stream, or a refused call, as a gRPC status.
pub(crate) fn of(end: End) -> Status {
    let metadata: HashMap<String, String> =
        end.leader.map(|leader| ("leader".to_owned(), leader)).into_iter().collect();
    let mut details = ErrorDetails::with_error_info(end.reason.word(), DOMAIN, metadata);
    if let Some(retry_after) = end.retry_after {
        details.set_retry_info(Some(retry_after));
    }
    match end.reason {
        Reason::Done => Status::ok(end.message),
        reason => Status::with_error_details(code(reason), end.message, details),
    }
}

fn code(reason: Reason) -> Code {
    match reason {
        Reason::Done => Code::Ok,
        Reason::Invalid => Code::InvalidArgument,
        Reason::UnknownNode => Code::NotFound,
        Reason::AlreadyMember | Reason::NameTaken => Code::AlreadyExists,
        Reason::Compacted => Code::OutOfRange,
        Reason::NotTransferred => Code::DeadlineExceeded,
        Reason::ShuttingDown | Reason::OutcomeUnknown => Code::Unavailable,
        Reason::Overloaded
        | Reason::DiskShort
        | Reason::SlowReader
        | Reason::TooManyStreams
        | Reason::TooManyWatchers => Code::ResourceExhausted,
        Reason::Internal => Code::Internal,
        // The node or the cluster must be in another state first.
        _ => Code::FailedPrecondition,
    }
}

/// The message of a node that knows no leader: which nodes it hears, and what to do.
pub(crate) fn without_leader(hearing: &Hearing) -> String {
    if hearing.voters == 0 {
        return "this node does not know the members yet: if it is joining, see in its log whether it reaches the cluster".to_owned();
    }
    if hearing.has_majority {
        return format!("no node leads at the moment ({hearing}): ask again soon");
    }
    format!(
        "no node leads: {hearing}. Nothing is granted and nothing ends until a majority is back: start the nodes that are down, or \
         repair the network between them"
    )
}

/// A refusal of a peer. Peers have their own reasons.
pub(crate) fn reason(code: Code, reason: &str, message: impl Into<String>) -> Status {
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new()))
}
