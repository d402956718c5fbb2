//! Output: tables or JSON on standard output, messages for people on standard error.
//!
//! Plain text when piped, so that `cut` and `grep` see no colours. `NO_COLOR` turns colours off on a terminal, too.
//! `printable` escapes text that other users chose, so that it cannot control the terminal.

use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Result;

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns, for people.
    #[default]
    Table,
    /// JSON, for programs: stable names, times in milliseconds.
    Json,
}

/// The `--output` option of every command that prints results.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result {
    let text = serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?;
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Prints a value as one line of JSON, for streams.
pub(crate) fn json_line(value: &impl Serialize) -> Result {
    let text = serde_json::to_string(value).map_err(anyhow::Error::from)?;
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Prints a line of text.
pub(crate) fn line(text: &str) -> Result {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Prints a message on standard error. Ignores a closed standard error: there is no other place to report it.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints rows under a heading. Without rows it prints only `if_empty`, on standard error.
pub(crate) fn table<const COLUMNS: usize>(
    heading: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
    if_empty: &str,
) -> Result {
    if rows.is_empty() {
        say(if_empty);
        return Ok(());
    }
    let mut widths = heading.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(printable(cell).chars().count());
        }
    }
    let mut out = std::io::stdout().lock();
    let bold = colours();
    let heading = join(&heading.map(str::to_owned), &widths);
    if bold {
        writeln!(out, "\x1b[1m{heading}\x1b[0m")?
    } else {
        writeln!(out, "{heading}")?
    }
    for row in rows {
        writeln!(out, "{}", join(row, &widths))?;
    }
    Ok(())
}

fn join<const COLUMNS: usize>(row: &[String; COLUMNS], widths: &[usize; COLUMNS]) -> String {
    let mut text = String::new();
    for (cell, width) in row.iter().zip(widths) {
        let cell = printable(cell);
        text.push_str(&cell);
        text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
    }
    text.trim_end().to_owned()
}

/// Shows control characters as escapes such as `\u{1b}`: text from other users must not control the terminal or break a row.
pub(crate) fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, it| {
        if it.is_control() {
            shown.extend(it.escape_default())
        } else {
            shown.push(it)
        }
        shown
    })
}

/// Whether to use colours: standard output is a terminal, and `NO_COLOR` is not set.
pub(crate) fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_control_characters_are_shown() {
        let row = ["a\x1b[2J".to_owned(), "b".to_owned()];
        assert_eq!(join(&row, &[12, 1]), "a\\u{1b}[2J    b");
        assert_eq!(printable("é\n"), "é\\n");
    }
}
