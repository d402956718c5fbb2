//! The members of a group: one member with its name and addresses, and all members as a snapshot holds them.
//!
//! A [`Member`] is always valid: its constructor checks it. The replica decides what a change does to [`Members`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::bounds::{MEMBER_ADDRESS_BYTES_MAX, MEMBER_NAME_BYTES_MAX};
use crate::error::WireError;
use crate::v1 as wire;

/// The id of a node as people read and type it: twelve hex digits. Logs, errors, tables and JSON all show it in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownNode(pub u64);

impl fmt::Display for ShownNode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:012x}", self.0)
    }
}

/// A node, its name for people, and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    node: u64,
    name: String,
    peer_address: String,
    client_address: String,
}

/// Why a description of a member is not valid. For the author of the description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMember {
    /// Zero is not a valid id.
    #[error("a member's id must not be 0: draw it at random")]
    Node,
    /// The name cannot be used.
    #[error(
        "a member's name has 1 to {MEMBER_NAME_BYTES_MAX} bytes and no control characters: this one has {bytes} bytes"
    )]
    Name {
        /// Its length.
        bytes: usize,
    },
    /// An address cannot be used.
    #[error(
        "a member's address has at most {MEMBER_ADDRESS_BYTES_MAX} bytes and no control characters: this one has {bytes} bytes"
    )]
    Address {
        /// Its length.
        bytes: usize,
    },
}

impl Member {
    /// A member. An address that is not known yet is empty.
    ///
    /// # Errors
    /// [`BadMember`] if the id is zero, a text is too long, the name is empty, or a text contains a control character.
    pub fn new(node: u64, name: &str, peer_address: &str, client_address: &str) -> Result<Member, BadMember> {
        let is_plain = |text: &str, bytes_max| text.len() <= bytes_max && !text.contains(char::is_control);
        if node == 0 {
            return Err(BadMember::Node);
        }
        if name.is_empty() || !is_plain(name, MEMBER_NAME_BYTES_MAX) {
            return Err(BadMember::Name { bytes: name.len() });
        }
        for address in [peer_address, client_address] {
            if !is_plain(address, MEMBER_ADDRESS_BYTES_MAX) {
                return Err(BadMember::Address { bytes: address.len() });
            }
        }
        let (name, peer_address) = (name.to_owned(), peer_address.to_owned());
        Ok(Member { node, name, peer_address, client_address: client_address.to_owned() })
    }

    /// The node's id.
    pub fn node(&self) -> u64 {
        self.node
    }

    /// Its name for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address for the other nodes.
    pub fn peer_address(&self) -> &str {
        &self.peer_address
    }

    /// Its address for clients.
    pub fn client_address(&self) -> &str {
        &self.client_address
    }

    pub(crate) fn to_wire(&self) -> wire::Member {
        let Member { node, name, peer_address, client_address } = self.clone();
        wire::Member { node, name, peer_address, client_address }
    }

    pub(crate) fn from_wire(what: &'static str, member: &wire::Member) -> Result<Member, WireError> {
        let wire::Member { node, name, peer_address, client_address } = member;
        Member::new(*node, name, peer_address, client_address)
            .map_err(|bad| WireError::Damaged { what, detail: bad.to_string() })
    }
}

/// All members of a group, as of one entry of its log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The nodes that vote.
    pub voters: BTreeSet<u64>,
    /// The nodes that get the log and have no vote.
    pub learners: BTreeSet<u64>,
    /// During a change in two steps: the voters before the change.
    pub voters_outgoing: BTreeSet<u64>,
    /// During a change in two steps: the outgoing voters that become learners.
    pub learners_next: BTreeSet<u64>,
    /// During a change in two steps: whether consensus starts the second step by itself.
    pub auto_leave: bool,
    /// Names and addresses of the described members.
    /// Invariant: each is under its own id, and the id is in one of the sets.
    pub directory: BTreeMap<u64, Member>,
}

impl Members {
    /// No members.
    pub const NONE: Members = Members {
        voters: BTreeSet::new(),
        learners: BTreeSet::new(),
        voters_outgoing: BTreeSet::new(),
        learners_next: BTreeSet::new(),
        auto_leave: false,
        directory: BTreeMap::new(),
    };

    /// Every member's id, whatever its role.
    pub fn nodes(&self) -> BTreeSet<u64> {
        let sets = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        sets.into_iter().flatten().copied().collect()
    }

    /// Whether this node has any role.
    pub fn has(&self, node: u64) -> bool {
        let sets = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        sets.into_iter().any(|set| set.contains(&node))
    }

    pub(crate) fn to_wire(&self) -> wire::GroupMembers {
        let list = |set: &BTreeSet<u64>| set.iter().copied().collect();
        wire::GroupMembers {
            voters: list(&self.voters),
            learners: list(&self.learners),
            voters_outgoing: list(&self.voters_outgoing),
            learners_next: list(&self.learners_next),
            auto_leave: self.auto_leave,
            directory: self.directory.values().map(Member::to_wire).collect(),
        }
    }

    /// Takes only what [`Members::to_wire`] writes: in order, without duplicates, and no description of a node that is not a member.
    pub(crate) fn from_wire(what: &'static str, wire: &wire::GroupMembers) -> Result<Members, WireError> {
        let set = |list: &[u64]| list.iter().copied().collect::<BTreeSet<u64>>();
        let described = wire.directory.iter().map(|member| Ok((member.node, Member::from_wire(what, member)?)));
        let members = Members {
            voters: set(&wire.voters),
            learners: set(&wire.learners),
            voters_outgoing: set(&wire.voters_outgoing),
            learners_next: set(&wire.learners_next),
            auto_leave: wire.auto_leave,
            directory: described.collect::<Result<_, WireError>>()?,
        };
        let all_are_members = members.directory.keys().all(|node| members.has(*node));
        if members.has(0) || !all_are_members || members.to_wire() != *wire {
            let detail = "members are out of order, duplicated, or described without being members".to_owned();
            return Err(WireError::Damaged { what, detail });
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_of_a_member_is_bounded() {
        let (name, address) = ("n".repeat(MEMBER_NAME_BYTES_MAX), "a".repeat(MEMBER_ADDRESS_BYTES_MAX));
        assert!(Member::new(u64::MAX, &name, &address, &address).is_ok());
        assert!(Member::new(1, "n", "", "").is_ok());
        assert_eq!(Member::new(0, &name, &address, &address), Err(BadMember::Node));
        for bad in ["", &format!("{name}n"), "two\nlines"] {
            assert_eq!(Member::new(1, bad, &address, &address), Err(BadMember::Name { bytes: bad.len() }));
        }
        for bad in [&format!("{address}a"), "two\nlines"] {
            assert_eq!(Member::new(1, &name, bad, &address), Err(BadMember::Address { bytes: bad.len() }));
            assert_eq!(Member::new(1, &name, &address, bad), Err(BadMember::Address { bytes: bad.len() }));
        }
    }

    #[test]
    fn only_members_in_their_written_form_are_read() {
        let member = |node| Member::new(node, &format!("n{node}"), "peer", "client").unwrap();
        let members = Members {
            voters: [1, 2].into(),
            learners: [3].into(),
            voters_outgoing: [2, 4].into(),
            learners_next: [4].into(),
            auto_leave: true,
            directory: [(1, member(1)), (4, member(4))].into(),
        };
        let good = members.to_wire();
        assert_eq!(Members::from_wire("", &good), Ok(members));
        let mut doubled = good.clone();
        doubled.voters.push(2);
        let mut disordered = good.clone();
        disordered.directory.reverse();
        let mut stranger = good.clone();
        stranger.directory[0].node = 9;
        let mut zero = good.clone();
        zero.learners.insert(0, 0);
        let mut nameless = good;
        nameless.directory[0].name.clear();
        for bad in [doubled, disordered, stranger, zero, nameless] {
            assert!(matches!(Members::from_wire("", &bad), Err(WireError::Damaged { .. })), "{bad:?}");
        }
    }
}
