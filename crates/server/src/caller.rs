//! Who calls: the one place that decides about the identity of a caller, for every door of a node.
//!
//! There is no access control yet. The principal of a session is the name that its client gives itself, so quotas bind only honest
//! clients. The author of an act, a member change or a leadership transfer is the name in the caller's certificate. Without one, the
//! author is what the caller says about itself, marked as `unverified`.

use std::net::SocketAddr;
use std::sync::Arc;

use fencepost_core::{Principal, Reason};
use fencepost_session::End;
use fencepost_wire::{Cause, Member};
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::bounds::CALLER_BYTES_MAX;

/// The header in which a client names itself.
const CLIENT_HEADER: &str = "fencepost-client";
/// The header in which a caller says USER@HOST about itself.
const CALLER_HEADER: &str = "fencepost-caller";

/// What is known of the other side of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherSide {
    /// The names in the certificate that it has shown. Empty if it has shown none.
    pub(crate) names: Arc<[String]>,
    /// `None` if the connection is gone already.
    pub(crate) address: Option<SocketAddr>,
}

/// The principal of a client that calls over gRPC.
pub(crate) fn principal<T>(request: &Request<T>) -> Result<Principal, End> {
    match request.metadata().get(CLIENT_HEADER).map(|value| value.to_str()) {
        None => named(None),
        Some(Ok(name)) => named(Some(name)),
        Some(Err(_)) => Err(End::invalid("the header fencepost-client must be text of visible ASCII characters")),
    }
}

/// The principal for a client's name.
pub(crate) fn named(name: Option<&str>) -> Result<Principal, End> {
    Principal::new(name.unwrap_or("anonymous"))
        .map_err(|error| End::invalid(format!("the name of the client: {error}")))
}

/// The author of what a caller orders.
pub(crate) fn author<T>(request: &Request<T>) -> Principal {
    let side = request.extensions().get::<OtherSide>();
    if let Some(verified) = side.and_then(|side| side.names.first()).and_then(|name| Principal::new(name).ok()) {
        return verified;
    }
    let claim = request.metadata().get(CALLER_HEADER).map(|value| plain(&String::from_utf8_lossy(value.as_bytes())));
    let address = side.and_then(|side| side.address).map(|address| address.to_string());
    let text = match claim.filter(|claim| !claim.is_empty()).or(address) {
        Some(claim) => format!("unverified {claim}"),
        None => "unverified".to_owned(),
    };
    Principal::new(&text).expect("the claim is bounded and has no control characters")
}

/// Who orders something of the cluster, and why.
///
/// # Errors
/// [`End`] if the reason is too long.
pub(crate) fn cause<T>(request: &Request<T>, reason: &str) -> Result<Cause, End> {
    let reason = Reason::new(reason).map_err(|error| End::invalid(error.to_string()))?;
    Ok(Cause { by: author(request), reason })
}

/// What a node orders itself.
pub(crate) fn by_node(member: &Member, reason: &str) -> Cause {
    let by = Principal::new(&own_name(member)).expect("a member's name is short and has no control characters");
    Cause { by, reason: Reason::new(reason).expect("our own reasons are short") }
}

/// A call of a node, which says its name. A name that is not valid in a header is not sent.
pub(crate) fn call_of_node<T>(member: &Member, call: T) -> Request<T> {
    let mut request = Request::new(call);
    if let Ok(name) = MetadataValue::try_from(own_name(member)) {
        request.metadata_mut().insert(CALLER_HEADER, name);
    }
    request
}

fn own_name(member: &Member) -> String {
    format!("node {}", member.name())
}

/// What a caller says about itself: the beginning of it, on one line.
fn plain(claim: &str) -> String {
    let line: String = claim.trim().chars().map(|it| if it.is_control() { '?' } else { it }).collect();
    line[..line.floor_char_boundary(CALLER_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(claim: Option<&'static [u8]>, names: &[&str]) -> String {
        let mut request = Request::new(());
        if let Some(claim) = claim {
            let value = tonic::codegen::http::HeaderValue::from_bytes(claim).expect("a header can carry it");
            let mut headers = request.metadata().clone().into_headers();
            headers.insert(CALLER_HEADER, value);
            *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
        }
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let address = "192.0.2.7:4711".parse().ok();
        request.extensions_mut().insert(OtherSide { names: names.into(), address });
        author(&request).as_str().to_owned()
    }

    #[test]
    fn the_author_is_the_certificates_name_or_is_marked_as_unverified() {
        assert_eq!(asked(Some(b"root@db-1"), &["ops.example.org", "other"]), "ops.example.org");
        assert_eq!(asked(Some(b"ann@db-1"), &[]), "unverified ann@db-1");
        assert_eq!(asked(None, &[]), "unverified 192.0.2.7:4711");
        assert_eq!(asked(Some(b"  "), &[]), "unverified 192.0.2.7:4711");
        assert_eq!(author(&Request::new(())).as_str(), "unverified");
    }

    #[test]
    fn a_claim_is_cut_and_put_on_one_line() {
        let long: &'static [u8] = &[b'x'; 4096];
        assert_eq!(asked(Some(long), &[]), format!("unverified {}", "x".repeat(CALLER_BYTES_MAX)));
        // A tab is all that a header can carry of control characters. Other bytes need not be UTF-8.
        assert_eq!(asked(Some(b"ann\t@db-1"), &[]), "unverified ann?@db-1");
        assert_eq!(asked(Some(b"ann\xff@db-1"), &[]), "unverified ann\u{fffd}@db-1");
        let umlauts: &'static [u8] = "ü".repeat(CALLER_BYTES_MAX).leak().as_bytes();
        assert_eq!(asked(Some(umlauts), &[]), format!("unverified {}", "ü".repeat(CALLER_BYTES_MAX / 2)));
    }
}
