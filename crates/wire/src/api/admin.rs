//! Acts of administrators on locks: the core's acts, to the messages of `admin.proto` and back.
//!
//! A request says what to do and why. It never says who acts: the server knows that from the connection. Acts on the cluster concern
//! no type of the core, so the server reads those messages itself.

use fencepost_core::{Act, Admin, LogicalMs, Outcome, Principal, Reason};

use super::observe::ReadAt;
use crate::error::WireError;
use crate::from_wire::{self, known};
use crate::to_wire;
use crate::v1;

/// An act, as the given principal requests it.
///
/// # Errors
/// [`WireError`] names what is missing, not known or not valid.
pub fn act_from_wire(request: v1::ActRequest, by: Principal) -> Result<Admin, WireError> {
    use v1::act_request::Act as Asked;
    use v1::admin::Act as Logged;
    // The same choice with other field numbers: in the log, the principal comes before it.
    let act = match known("an administrator's act", request.act)? {
        Asked::BreakGrant(grant) => Logged::BreakGrant(grant),
        Asked::Evict(session) => Logged::Evict(session),
        Asked::WaiveRest(grant) => Logged::WaiveRest(grant),
        Asked::Freeze(freeze) => Logged::Freeze(freeze),
        Asked::Thaw(freeze) => Logged::Thaw(freeze),
        Asked::SetLimit(limit) => Logged::SetLimit(limit),
        Asked::CompleteJob(job) => Logged::CompleteJob(job),
        Asked::ForgetJob(job) => Logged::ForgetJob(job),
        Asked::AllowJobs(nothing) => Logged::AllowJobs(nothing),
    };
    Ok(Admin { by, reason: from_wire::reason(&request.reason)?, act: from_wire::act(act)? })
}

/// The request for an act.
pub fn act_to_wire(reason: &Reason, act: &Act) -> v1::ActRequest {
    use v1::act_request::Act as Asked;
    use v1::admin::Act as Logged;
    let act = match to_wire::act(act) {
        Logged::BreakGrant(grant) => Asked::BreakGrant(grant),
        Logged::Evict(session) => Asked::Evict(session),
        Logged::WaiveRest(grant) => Asked::WaiveRest(grant),
        Logged::Freeze(freeze) => Asked::Freeze(freeze),
        Logged::Thaw(freeze) => Asked::Thaw(freeze),
        Logged::SetLimit(limit) => Asked::SetLimit(limit),
        Logged::CompleteJob(job) => Asked::CompleteJob(job),
        Logged::ForgetJob(job) => Asked::ForgetJob(job),
        Logged::AllowJobs(nothing) => Asked::AllowJobs(nothing),
    };
    v1::ActRequest { reason: reason.as_str().to_owned(), act: Some(act) }
}

/// The outcome of an act, with the entry that decided it.
pub fn acted_to_wire(ReadAt { index, term, stamp, .. }: ReadAt, outcome: &Outcome) -> v1::ActResponse {
    v1::ActResponse { index, term, stamp_ms: stamp.0, outcome: Some(to_wire::outcome(outcome)) }
}

/// The outcome of an act, with the entry that decided it.
///
/// # Errors
/// [`WireError`] if this version does not know the outcome.
pub fn acted_from_wire(response: v1::ActResponse) -> Result<(ReadAt, Outcome), WireError> {
    let v1::ActResponse { index, term, stamp_ms, outcome } = response;
    let at = ReadAt { index, term, stamp: LogicalMs(stamp_ms), ..ReadAt::default() };
    Ok((at, from_wire::outcome(outcome)?))
}
