//! Runs every scenario in `tests/scenarios/` against the state machine and compares the output of each step, line by line.
//!
//! `scenario/mod.rs` describes the language. `FENCEPOST_RECORD=1 cargo test -p fencepost-core --test it scenarios` writes the
//! output of each step into the files instead; read the diff before you commit it. A file opens with the rules that it
//! shows; `tidy.rs` checks that these rules exist and that every rule has a file.
#![allow(clippy::disallowed_methods, reason = "reads and records the scenario files; the crate itself may not")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::scenario::file::{self, Piece};
use crate::scenario::parse;
use crate::scenario::world::World;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(directory()).expect("the directory of scenarios can be read");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a directory entry can be read").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
}

/// Runs one file. Returns all differences and errors, each with file and line.
fn run_file(path: &Path, record: bool) -> Vec<String> {
    let shown = format!("tests/scenarios/{}", path.file_name().expect("a file has a name").to_string_lossy());
    let text = fs::read_to_string(path).expect("a listed file can be read");
    let mut pieces = match file::parse(&text) {
        Ok(pieces) => pieces,
        Err(problem) => return vec![format!("{shown}:{}: {}", problem.line, problem.what)],
    };
    let mut wrong = Vec::new();
    let mut world = World::new();
    for piece in &mut pieces {
        let step = match piece {
            Piece::Comment(_) => continue,
            Piece::Reset => {
                world = World::new();
                continue;
            }
            Piece::Step(step) => step,
        };
        let place = format!("{shown}:{}: {}", step.line, step.input.join(" / "));
        let doing = match parse::step(&step.input) {
            Ok(doing) => doing,
            Err(bad) => {
                wrong.push(format!("{shown}:{}: {bad}", step.line));
                return wrong;
            }
        };
        // A broken invariant panics in the core. The other files still run.
        let ran =
            catch_unwind(AssertUnwindSafe(|| world.run(&doing))).unwrap_or(Err("panicked (see above)".to_string()));
        match ran {
            Err(what) => {
                wrong.push(format!("{place}\n  {what}"));
                return wrong;
            }
            Ok(got) if record => step.expected = got,
            Ok(got) if got != step.expected => wrong.push(format!("{place}\n{}", difference(&step.expected, &got))),
            Ok(_) => {}
        }
    }
    if record {
        fs::write(path, file::render(&pieces)).expect("a scenario file can be written");
    }
    wrong
}

/// The expected lines and the actual ones, with a mark at the lines that differ.
fn difference(expected: &[String], got: &[String]) -> String {
    let marked = |title: &str, lines: &[String], others: &[String]| {
        let mark = |line| if others.contains(line) { ' ' } else { '>' };
        let lines = lines.iter().map(|line| format!("  {} {line}\n", mark(line)));
        format!("  {title}:\n{}", lines.collect::<String>())
    };
    marked("expected", expected, got) + &marked("got", got, expected)
}

#[test]
fn every_scenario_gives_its_expected_output() {
    let record = std::env::var("FENCEPOST_RECORD").is_ok_and(|value| value == "1");
    let wrong: Vec<_> = files().iter().flat_map(|path| run_file(path, record)).collect();
    assert!(wrong.is_empty(), "{} steps gave another output:\n\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_file_opens_with_its_rules_and_its_story() {
    for path in files() {
        let text = fs::read_to_string(&path).expect("a listed file can be read");
        let pieces = file::parse(&text).unwrap_or_else(|problem| panic!("{path:?}:{}: {}", problem.line, problem.what));
        let rules = file::rules(&pieces);
        assert!(rules > 0, "{path:?} does not open with '# Rule: name'");
        let story = pieces.get(rules);
        assert!(
            matches!(story, Some(Piece::Comment(_))),
            "{path:?} does not tell its story in a sentence after its rules"
        );
    }
}

/// Tests the tests: with any one fault switched on, at least one scenario gives another output.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found_by_a_scenario() {
    use fencepost_core::{Bug, plant};

    let run_all = || files().iter().flat_map(|path| run_file(path, false)).collect::<Vec<_>>();
    let without = run_all();
    let mut missed = Vec::new();
    for bug in Bug::ALL.iter().copied() {
        plant(Some(bug));
        if run_all() == without {
            missed.push(bug);
        }
        plant(None);
    }
    assert!(missed.is_empty(), "no scenario gives another output with {missed:?}");
}
