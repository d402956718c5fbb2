//! The queue of a name, as names of nodes: its path, its contenders, and which node blocks which. Nothing here talks to a server.
//!
//! Each contender has a child under the node of the name. The child's name is the mode, a unique part, and the number that
//! ZooKeeper appends. ZooKeeper counts in signed 32 bits and wraps around, so we compare numbers by distance, not by size. That is
//! right while ZooKeeper has given fewer than two billion numbers since the oldest child came. The transaction that created a node
//! (czxid) never wraps, but a listing does not contain it, and reading every child would be a herd of reads.

use crate::backend::Mode;

/// The node of all locks, below the chroot, so that Fencepost's nodes do not mix with others.
const LOCKS: &str = "fencepost-locks";
/// Length of the unique part.
const UNIQUE_CHARS: usize = 32;

/// What is between a child and the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// Nothing: the child holds the lock.
    Nothing,
    /// This child blocks it, and is the only one to watch.
    Child(String),
    /// The child itself does not exist.
    NotThere,
}

/// The path of all locks. `chroot` is empty, or begins with a slash and does not end with one.
pub(super) fn root(chroot: &str) -> String {
    format!("{chroot}/{LOCKS}")
}

/// The path of a name's node. A slash in a name is escaped, so it makes no deeper nodes, and two names never share a node.
pub(super) fn parent(root: &str, name: &str) -> String {
    let mut path = format!("{root}/");
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' | b'@' => path.push(char::from(byte)),
            // `.` and `..` are not valid names of nodes.
            b'.' if at > 0 => path.push('.'),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

/// The start of a child's name. ZooKeeper appends the number.
pub(super) fn stem(mode: Mode, unique: &str) -> String {
    format!("{}-{unique}-", letter(mode))
}

/// What blocks a child. First come, first served: a reader waits for the last writer before it, a writer for the contender just
/// before it.
pub(super) fn ahead(children: &[String], mine: &str) -> Ahead {
    let Some(me) = parse(mine).filter(|_| children.iter().any(|child| child == mine)) else { return Ahead::NotThere };
    let before = children.iter().filter_map(|child| Some((child, parse(child)?)));
    let before = before.filter(|(_, child)| child.age(&me) > 0 && conflict(child.mode, me.mode));
    match before.min_by_key(|(_, child)| child.age(&me)) {
        Some((child, _)) => Ahead::Child(child.clone()),
        None => Ahead::Nothing,
    }
}

/// Whether a new contender would have to wait.
pub(super) fn is_busy(children: &[String], mode: Mode) -> bool {
    children.iter().filter_map(|child| parse(child)).any(|child| conflict(child.mode, mode))
}

/// A contender in the queue, parsed from the name of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Child {
    mode: Mode,
    number: i32,
}

impl Child {
    /// How much earlier than `than` it came. Positive if it came first.
    fn age(&self, than: &Child) -> i32 {
        than.number.wrapping_sub(self.number)
    }
}

/// `None` for a node that is not from this library.
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
    fn a_writer_waits_for_the_contender_before_it_and_a_reader_for_the_last_writer() {
        let (first, second, third) = (reader("0000000003"), reader("0000000004"), writer("0000000007"));
        let (fourth, fifth) = (reader("0000000008"), reader("0000000009"));
        let others = ["lease-00", "x-short-0000000001", "s-"].map(str::to_owned);
        let mut children = vec![fifth.clone(), third.clone(), second.clone(), fourth.clone(), first.clone()];
        children.extend(others);
        assert_eq!(ahead(&children, &first), Ahead::Nothing);
        assert_eq!(ahead(&children, &second), Ahead::Nothing, "readers share");
        assert_eq!(ahead(&children, &third), Ahead::Child(second));
        assert_eq!(ahead(&children, &fourth), Ahead::Child(third.clone()), "a reader does not pass a writer");
        assert_eq!(ahead(&children, &fifth), Ahead::Child(third));
        assert_eq!(ahead(&children, &writer("0000000001")), Ahead::NotThere);
    }

    #[test]
    fn the_order_stays_right_when_the_numbers_wrap_around() {
        let (last, first, next) = (writer("2147483647"), writer("-2147483648"), writer("-2147483647"));
        let children = [next.clone(), first.clone(), last.clone()];
        assert_eq!(ahead(&children, &last), Ahead::Nothing);
        assert_eq!(ahead(&children, &first), Ahead::Child(last));
        assert_eq!(ahead(&children, &next), Ahead::Child(first));
    }

    #[test]
    fn only_writers_block_a_reader() {
        assert!(!is_busy(&[], Mode::Exclusive));
        assert!(is_busy(&[reader("0000000000")], Mode::Exclusive));
        assert!(!is_busy(&[reader("0000000000")], Mode::Shared));
        assert!(is_busy(&[reader("0000000000"), writer("0000000001")], Mode::Shared));
        assert!(!is_busy(&["not a child of ours".to_owned()], Mode::Exclusive));
    }

    #[test]
    fn different_names_have_different_nodes_and_no_node_is_below_another() {
        let names = ["a", "a/b", "/a/b", "a%2Fb", ".", "..", "a.b", "a b", "ä", "\u{e000}", "zookeeper"];
        let root = root("/team");
        let nodes: Vec<String> = names.iter().map(|name| parent(&root, name)).collect();
        for node in &nodes {
            let last = node.strip_prefix("/team/fencepost-locks/").expect("below the root");
            assert!(!last.contains('/') && last != "." && last != ".." && last.is_ascii(), "{node}");
        }
        let different: std::collections::BTreeSet<&String> = nodes.iter().collect();
        assert_eq!(different.len(), names.len());
        assert_eq!(nodes[6], "/team/fencepost-locks/a.b", "readable characters stay readable");
    }
}
