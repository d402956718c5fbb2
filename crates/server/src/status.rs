//! Errors as callers see them: a code of gRPC, a reason that programs can read, and a sentence that says what to do.

use std::collections::HashMap;
use std::time::Duration;

use fencepost_replica::{Hearing, NotTaken};
use fencepost_wire::WireError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

const DOMAIN: &str = "fencepost";
/// Long enough for an election.
const NO_LEADER_RETRY: Duration = Duration::from_millis(500);
const OVERLOADED_RETRY: Duration = Duration::from_millis(100);

/// What a node says that knows of no leader: whom it hears, and what to do.
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

/// Another node leads, at this address for clients; or none is known to lead.
pub(crate) fn not_leader(leader: Option<&str>, hearing: &Hearing) -> Status {
    let metadata: HashMap<String, String> = leader.map(|it| ("leader".to_owned(), it.to_owned())).into_iter().collect();
    let mut details = ErrorDetails::with_error_info("NOT_LEADER", DOMAIN, metadata);
    let message = match leader {
        Some(leader) => format!("this node does not lead: ask {leader}"),
        None => {
            details.set_retry_info(Some(NO_LEADER_RETRY));
            without_leader(hearing)
        }
    };
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

/// The lead was lost before the outcome could be learnt.
pub(crate) fn outcome_unknown() -> Status {
    let details = ErrorDetails::with_error_info("OUTCOME_UNKNOWN", DOMAIN, HashMap::new());
    let message = "this node lost the lead while it was at it: it may have been done or not; look before you ask again";
    Status::with_error_details(Code::Unavailable, message, details)
}

/// This node is no member any more, and knows it.
pub(crate) fn removed() -> Status {
    let message = "this node was removed from the cluster: ask another one, and stop this one and delete its directory";
    reason(Code::FailedPrecondition, "REMOVED", message)
}

pub(crate) fn shutting_down() -> Status {
    let mut details = ErrorDetails::with_error_info("SHUTTING_DOWN", DOMAIN, HashMap::new());
    details.set_retry_info(Some(NO_LEADER_RETRY));
    Status::with_error_details(Code::Unavailable, "this node is shutting down: ask another one", details)
}

/// The command was not taken, though this node leads.
pub(crate) fn not_taken(why: &NotTaken) -> Status {
    let (code, reason, retry) = match why {
        NotTaken::Overloaded => (Code::ResourceExhausted, "OVERLOADED", Some(OVERLOADED_RETRY)),
        NotTaken::DiskShort => (Code::ResourceExhausted, "DISK_SHORT", Some(NO_LEADER_RETRY)),
        NotTaken::ChangeUnderWay => (Code::FailedPrecondition, "CHANGE_UNDER_WAY", Some(NO_LEADER_RETRY)),
        NotTaken::NotCaughtUp { .. } => (Code::FailedPrecondition, "NOT_CAUGHT_UP", Some(NO_LEADER_RETRY)),
        NotTaken::UnknownNode { .. } => (Code::NotFound, "UNKNOWN_NODE", None),
        NotTaken::AlreadyMember { .. } => (Code::AlreadyExists, "ALREADY_MEMBER", None),
        NotTaken::NameTaken { .. } => (Code::AlreadyExists, "NAME_TAKEN", None),
        NotTaken::VersionUnknown { .. } => (Code::FailedPrecondition, "FORMAT_VERSION", None),
        _ => (Code::FailedPrecondition, "REFUSED", None),
    };
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    if let Some(retry) = retry {
        details.set_retry_info(Some(retry));
    }
    Status::with_error_details(code, why.to_string(), details)
}

/// What was asked is no valid request.
pub(crate) fn invalid(error: &WireError) -> Status {
    reason(Code::InvalidArgument, "INVALID", error.for_caller())
}

/// Any other refusal.
pub(crate) fn reason(code: Code, reason: &str, message: impl Into<String>) -> Status {
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new()))
}
