//! The table of promises, as rows for `fencepost backends` and as the page `docs/backends.md`.
//!
//! All facts come from [`System`] and [`Promise`]. This file adds only the headings and the text around the tables.

use std::fmt::{Result, Write};

use serde::Serialize;

use crate::promises::{Kept, Promise, System};

/// What one system is and promises, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The name of the system.
    pub system: &'static str,
    /// The form of its addresses.
    pub address: &'static str,
    /// How it locks.
    pub how: &'static str,
    /// Where its tokens come from; `None` if it gives no tokens.
    pub token: Option<&'static str>,
    /// What its locks may be used for.
    pub tier: &'static str,
    /// Every promise, in the order of [`Promise::ALL`].
    pub promises: Vec<Cell>,
}

/// Whether one system keeps one promise, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The name of the promise.
    pub promise: &'static str,
    /// `yes`, `if` or `no`.
    pub kept: &'static str,
    /// The condition, or the reason.
    pub remark: Option<&'static str>,
}

/// The rows of the table of `fencepost backends`, one for each system.
pub fn rows() -> Vec<Row> {
    System::ALL.into_iter().map(row).collect()
}

/// One system.
pub fn row(system: System) -> Row {
    let cell = |promise: Promise| {
        let kept = system.keeps(promise);
        Cell { promise: promise.name(), kept: word(kept), remark: kept.remark() }
    };
    Row {
        system: system.name(),
        address: system.address(),
        how: system.how(),
        token: system.token(),
        tier: system.tier(),
        promises: Promise::ALL.into_iter().map(cell).collect(),
    }
}

/// Whether a promise is kept: `yes`, `if` or `no`.
pub fn word(kept: Kept) -> &'static str {
    match kept {
        Kept::Always => "yes",
        Kept::If(_) => "if",
        Kept::Never(_) => "no",
    }
}

/// The page `docs/backends.md`.
pub fn markdown() -> String {
    let mut page = String::from(OPENING);
    write_page(&mut page, &rows()).expect("writing to a string cannot fail");
    page
}

const OPENING: &str = "\
# What each lock system promises

The library `fencepost-backends` gives locks over all of these systems. They promise different things, and the library does not hide that.
If you ask a system for something that it does not promise, you get an error before anything is sent. The error names the systems that do
promise it. [guides/choosing.md](guides/choosing.md) helps you to choose a system.

None of these locks, by itself, stops a process that was paused past its lease from writing. Only the token does, and only if
[the store checks it](guides/fencing.md). So a system without tokens is for efficiency: its locks save work that may occasionally be done
twice.

A test writes this page from [`promises.rs`](../crates/backends/src/promises.rs), which also decides what the library refuses. To update it:
`FENCEPOST_WRITE_DOCS=1 cargo test -p fencepost-backends --test it page`.
";

const NATIVE: &str = "\
## What only Fencepost has

Only Fencepost's own client has these: `Client::native` of the library gives that client for a name.
`Client::promised` fails for a name that goes to a system without them, before anything is sent.
";

fn write_page(page: &mut String, rows: &[Row]) -> Result {
    writeln!(page, "\n## The systems\n\n| system | address | how it locks | token | tier |\n|---|---|---|---|---|")?;
    for Row { system, address, how, token, tier, .. } in rows {
        writeln!(page, "| {system} | `{address}` | {how} | {} | {tier} |", token.unwrap_or("none"))?;
    }

    writeln!(page, "\n## The promises about locks\n\n| promise | means |\n|---|---|")?;
    let (native, about_locks): (Vec<Promise>, Vec<Promise>) = Promise::ALL.iter().partition(|it| it.is_native());
    for promise in &about_locks {
        writeln!(page, "| {} | {} |", promise.name(), promise.meaning())?;
    }

    writeln!(page, "\n## Which system keeps which promise\n")?;
    writeln!(
        page,
        "*yes*: always. *if*: on a condition that you must ensure. *no*: never. The conditions and reasons follow.\n"
    )?;
    write!(page, "| |")?;
    about_locks.iter().try_for_each(|promise| write!(page, " {} |", promise.name()))?;
    write!(page, "\n|---|")?;
    about_locks.iter().try_for_each(|_| write!(page, "---|"))?;
    for Row { system, promises, .. } in rows {
        write!(page, "\n| {system} |")?;
        promises[..about_locks.len()].iter().try_for_each(|cell| write!(page, " {} |", cell.kept))?;
    }

    writeln!(page, "\n\n## Conditions and reasons")?;
    for Row { system, promises, .. } in rows {
        writeln!(page, "\n**{system}**\n")?;
        let mut without_remark = true;
        for Cell { promise, kept, remark } in &promises[..about_locks.len()] {
            if let Some(remark) = remark {
                without_remark = false;
                let joint = if *kept == "if" { "if" } else { "no:" };
                writeln!(page, "- {promise}: {joint} {remark}")?;
            }
        }
        if without_remark {
            writeln!(page, "- every promise about locks, always")?;
        }
    }

    write!(page, "\n{NATIVE}")?;
    writeln!(page, "\n| | means | fencepost | fencepost, efficiency tier | other systems |\n|---|---|---|---|---|")?;
    for promise in native {
        write!(page, "| {} | {} |", promise.name(), promise.meaning())?;
        // A test checks that the other systems have one reason in common.
        for system in [System::Fencepost, System::Memory, System::Redis] {
            let kept = system.keeps(promise);
            let joint = if kept.remark().is_some() { ": " } else { "" };
            write!(page, " {}{joint}{} |", word(kept), kept.remark().unwrap_or_default())?;
        }
        writeln!(page)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_the_system_says() {
        let rows = rows();
        assert_eq!(rows.len(), System::ALL.len());
        let redis = rows.iter().find(|row| row.system == "redis").expect("a row for each");
        assert_eq!((redis.token, redis.tier), (None, "efficiency"));
        let token = redis.promises.iter().find(|cell| cell.promise == "fencing token").expect("a cell for each");
        assert_eq!((token.kept, token.remark), ("no", System::Redis.keeps(Promise::FencingToken).remark()));
    }

    #[test]
    fn the_page_has_every_condition_and_reason() {
        let page = markdown();
        for row in rows() {
            let (_, from_here) = page.split_once(&format!("**{}**", row.system)).expect("a section for each");
            let section = from_here.split("**").next().unwrap_or_default();
            let (_, natives) = page.split_once("## What only Fencepost has").expect("a section for them");
            for (promise, cell) in Promise::ALL.iter().zip(&row.promises) {
                let Some(remark) = cell.remark else { continue };
                let place = if promise.is_native() { natives } else { section };
                assert!(place.contains(remark), "{}, {}: {remark}", row.system, cell.promise);
            }
        }
    }

    #[test]
    fn the_other_systems_have_one_reason_for_each_native_promise() {
        for promise in Promise::ALL.into_iter().filter(|promise| promise.is_native()) {
            let is_other = |system: &System| !matches!(system, System::Fencepost | System::Memory);
            for system in System::ALL.into_iter().filter(is_other) {
                assert_eq!(system.keeps(promise), System::Redis.keeps(promise), "{system:?}, {promise:?}");
            }
        }
    }

    #[test]
    fn no_text_breaks_a_column() {
        let page = markdown();
        let columns = |line: &&str| line.matches('|').count();
        let tables: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        let widths: std::collections::BTreeSet<usize> = tables.iter().map(columns).collect();
        let about_locks = Promise::ALL.iter().filter(|promise| !promise.is_native()).count();
        assert_eq!(
            widths,
            [3, 6, about_locks + 2].into(),
            "a row has a wrong number of columns: does one of its texts contain `|`?"
        );
    }
}
