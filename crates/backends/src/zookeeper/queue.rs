//! The queue of a name, as names of nodes: where it is, who stands in it, and who is in the way of whom. Nothing here speaks to a server.
//!
//! Everybody who wants a name has a child under its node: the mode, something unique, and the number that ZooKeeper appends.
//! ZooKeeper counts in 32 bits with a sign and wraps around, so numbers are compared by their distance and not by their size. That
//! is right while fewer than two thousand million were given since the oldest child came. The transaction that created a node
//! (czxid) never wraps, but a listing does not tell it, and asking for each child would be a herd of reads.

use crate::backend::Mode;

/// Below the root of a client, so that the locks of Fencepost are not mixed with nodes of others.
const LOCKS: &str = "fencepost-locks";
/// Of the unique part.
const UNIQUE_CHARS: usize = 32;

/// What stands between a child and the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// Nothing: it holds the lock.
    Nobody,
    /// This child; it is the only one to watch.
    Somebody(String),
    /// The child is not there itself.
    NotThere,
}

/// Where all locks are. `chroot` is empty, or begins with a slash and does not end with one.
pub(super) fn root(chroot: &str) -> String {
    format!("{chroot}/{LOCKS}")
}

/// The node of a name. A slash in a name makes no nodes below nodes, and two names never share a node.
pub(super) fn parent(root: &str, name: &str) -> String {
    let mut path = format!("{root}/");
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' | b'@' => path.push(char::from(byte)),
            // Dots alone are no node.
            b'.' if at > 0 => path.push('.'),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

/// What a child's name begins with. ZooKeeper appends the number.
pub(super) fn stem(mode: Mode, unique: &str) -> String {
    format!("{}-{unique}-", letter(mode))
}

/// Who is in the way of a child. First come, first served: a reader waits for the last writer before it, a writer for whoever
/// came just before.
pub(super) fn ahead(children: &[String], mine: &str) -> Ahead {
    let Some(me) = parse(mine).filter(|_| children.iter().any(|child| child == mine)) else { return Ahead::NotThere };
    let before = children.iter().filter_map(|child| Some((child, parse(child)?)));
    let before = before.filter(|(_, child)| child.age(&me) > 0 && conflict(child.mode, me.mode));
    match before.min_by_key(|(_, child)| child.age(&me)) {
        Some((child, _)) => Ahead::Somebody(child.clone()),
        None => Ahead::Nobody,
    }
}

/// Whether somebody who came now would have to wait.
pub(super) fn is_busy(children: &[String], mode: Mode) -> bool {
    children.iter().filter_map(|child| parse(child)).any(|child| conflict(child.mode, mode))
}

/// One who stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Child {
    mode: Mode,
    number: i32,
}

impl Child {
    /// How much earlier than another it came.
    fn age(&self, than: &Child) -> i32 {
        than.number.wrapping_sub(self.number)
    }
}

/// None for nodes that others may have put there.
fn parse(child: &str) -> Option<Child> {
    let mode = [Mode::Exclusive, Mode::Shared].into_iter().find(|mode| child.starts_with(letter(*mode)))?;
    let rest = child.get(1..)?.strip_prefix('-')?;
    let (unique, number) = (rest.get(..UNIQUE_CHARS)?, rest.get(UNIQUE_CHARS..)?);
    let number = number.strip_prefix('-').filter(|_| unique.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some(Child { mode, number: number.parse().ok()? })
}

fn letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "x",
        Mode::Shared => "s",
    }
}

fn conflict(one: Mode, other: Mode) -> bool {
    one == Mode::Exclusive || other == Mode::Exclusive
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(mode: Mode, number: &str) -> String {
        format!("{}{number}", stem(mode, &"0123456789abcdef".repeat(2)))
    }

    fn writer(number: &str) -> String {
        child(Mode::Exclusive, number)
    }

    fn reader(number: &str) -> String {
        child(Mode::Shared, number)
    }

    #[test]
    fn a_writer_waits_for_the_one_before_it_and_a_reader_for_the_last_writer() {
        let (first, second, third) = (reader("0000000003"), reader("0000000004"), writer("0000000007"));
        let (fourth, fifth) = (reader("0000000008"), reader("0000000009"));
        let others = ["lease-00", "x-short-0000000001", "s-"].map(str::to_owned);
        let mut children = vec![fifth.clone(), third.clone(), second.clone(), fourth.clone(), first.clone()];
        children.extend(others);
        assert_eq!(ahead(&children, &first), Ahead::Nobody);
        assert_eq!(ahead(&children, &second), Ahead::Nobody, "readers share");
        assert_eq!(ahead(&children, &third), Ahead::Somebody(second));
        assert_eq!(ahead(&children, &fourth), Ahead::Somebody(third.clone()), "nobody passes a writer");
        assert_eq!(ahead(&children, &fifth), Ahead::Somebody(third));
        assert_eq!(ahead(&children, &writer("0000000001")), Ahead::NotThere);
    }

    #[test]
    fn the_order_goes_on_when_the_numbers_wrap_around() {
        let (last, first, next) = (writer("2147483647"), writer("-2147483648"), writer("-2147483647"));
        let children = [next.clone(), first.clone(), last.clone()];
        assert_eq!(ahead(&children, &last), Ahead::Nobody);
        assert_eq!(ahead(&children, &first), Ahead::Somebody(last));
        assert_eq!(ahead(&children, &next), Ahead::Somebody(first));
    }

    #[test]
    fn a_reader_is_kept_out_by_writers_alone() {
        assert!(!is_busy(&[], Mode::Exclusive));
        assert!(is_busy(&[reader("0000000000")], Mode::Exclusive));
        assert!(!is_busy(&[reader("0000000000")], Mode::Shared));
        assert!(is_busy(&[reader("0000000000"), writer("0000000001")], Mode::Shared));
        assert!(!is_busy(&["somebody else's".to_owned()], Mode::Exclusive));
    }

    #[test]
    fn names_that_differ_have_nodes_that_differ_and_none_is_below_another() {
        let names = ["a", "a/b", "/a/b", "a%2Fb", ".", "..", "a.b", "a b", "ä", "\u{e000}", "zookeeper"];
        let root = root("/team");
        let nodes: Vec<String> = names.iter().map(|name| parent(&root, name)).collect();
        for node in &nodes {
            let last = node.strip_prefix("/team/fencepost-locks/").expect("below the root");
            assert!(!last.contains('/') && last != "." && last != ".." && last.is_ascii(), "{node}");
        }
        let different: std::collections::BTreeSet<&String> = nodes.iter().collect();
        assert_eq!(different.len(), names.len());
        assert_eq!(nodes[6], "/team/fencepost-locks/a.b", "what can be read stays readable");
    }
}
