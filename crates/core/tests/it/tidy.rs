//! Checks the workspace itself:
//! - A crate uses only the crates that the design allows. No deliberate fault is shipped.
//! - Every rule of the lock semantics has code and a scenario.
//! - Every file says what it is for, and tables of files are complete.
//! - No text uses a vague word in place of the client, the leader or the holder that acts. Nothing unfinished is left.
//!
//! It checks the whole workspace but is in `core`, because a test needs a package, and a crate for this test alone would be
//! one more crate to know. Each check is a function of plain text, and the tests at the end show that each check can fail.
#![allow(clippy::disallowed_methods, reason = "reads the files of the workspace; the crate itself may not")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Which crates of this workspace a crate may use, by directory. Build- and dev-dependencies follow the same arrows: a test
/// that needs another crate belongs in a crate that may use it. No crate uses `sim`.
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("wire", &["core"]),
    ("session", &["core", "wire"]),
    ("replica", &["core", "wire"]),
    // What observers read: the command line and HTTP show the same.
    ("json", &["core", "wire"]),
    ("server", &["core", "json", "wire", "replica", "session", "testbed"]),
    // The server, and `testing` around it, for its own tests alone.
    ("client", &["core", "wire", "session", "server", "testing"]),
    // A server in the process, for the tests of programs that use the library.
    ("testing", &["client", "server"]),
    // The guards only for the code of the guides, which ends at the store.
    ("backends", &["client", "fence", "testbed", "testing"]),
    ("fence", &["core", "testbed"]),
    // What `fencepost bench` and the comparison have in common.
    ("load", &["client"]),
    ("bench", &["client", "load", "testbed"]),
    // Programs to copy from. Real servers, for their test alone.
    ("examples", &["client", "fence", "backends", "testbed", "testing"]),
    ("cli", &["core", "json", "client", "server", "fence", "backends", "load", "testbed"]),
    ("sim", &["core", "wire", "replica", "session", "fence"]),
    // Servers of other projects, for tests and benchmarks only.
    ("testbed", &[]),
    // In `sdk/`: the extension module of the Python package. The server reaches its tests as a program, never as a library.
    ("python", &["client", "backends"]),
];

/// The external crates that the core may use: those without I/O, clock, threads or randomness, as configured here.
const CORE_LIBRARIES: &[&str] = &["foldhash", "hashbrown", "smallvec", "thiserror", "xxhash-rust"];

/// The crates that do not use the operating system. Each has a `clippy.toml`, and all forbid the same.
const PURE_CRATES: &[&str] = &["core", "wire", "session"];

/// The parts of Fencepost that can enforce a rule.
const PARTS: &[&str] = &["core", "replica", "server", "client", "guards"];

/// The features that compile in code for tests only: deliberate faults, and a version of the formats that no release has. Only
/// a command line may turn them on, and the first may turn on the second.
const FAULTS: &[&str] = &["planted-bugs", "made-up-version"];

/// Packages that the client library must not depend on: consensus, and the protobuf library below it, which has a known
/// vulnerability (RUSTSEC-2024-0437).
const HEAVY: &[&str] =
    &["raft v", "raft-proto v", "raft-engine v", "protobuf v2", "fencepost-replica v", "fencepost-server v"];

/// The libraries for other languages. Each is a workspace of its own, so that the workspace of the root needs no other language.
const SDKS: &str = "sdk/";

const MAP_FILE: &str = "ARCHITECTURE.md";
const WALK_HEADING: &str = "### The files that one acquire passes";

/// The heading of the table of files at the top of a crate.
const FILES_HEADING: &str = "//! # Files";

const RULES_FILE: &str = "docs/semantics.md";
const CORE_SOURCE: &str = "crates/core/src/";
const SCENARIOS: &str = "crates/core/tests/scenarios/";

/// Text that no file may contain, and what to do instead. Written in two halves, so that this file passes.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("../", "shared"), "name only what is in this repository"),
    (concat!("todo", "!("), "finish it, or leave it out"),
    (concat!("unimplemented", "!("), "finish it, or leave it out"),
    (concat!("#[", "ignore"), "repair the test or delete it: an ignored test proves nothing"),
];

/// Words that hide who acts. No text and no identifier may have them: name the client, the leader, the holder, another task.
/// Written in two halves, so that this file passes.
const VAGUE_WORDS: &[&str] = &[
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("who", "ever"),
    concat!("every", "body"),
    concat!("any", "body"),
    concat!("any", "one"),
    concat!("some", "one"),
    concat!("no ", "one"),
    concat!("an", "ew"),
];

/// Old versions of the guards, as they were installed. They stay as they are.
const OLD_TEXTS: &str = "crates/fence/tests/fixtures/";
/// Calls of libraries of others, whose names are not ours.
const FOREIGN_NAMES: &[&str] = &[concat!("any", "one_all")];

/// Directories that hold home directories. A path into one works on one machine only.
const HOMES: &[&str] = &[concat!("/home", "/"), concat!("/Users", "/"), concat!("/root", "/")];

#[test]
fn crates_use_only_what_the_design_allows() {
    let metadata = metadata();
    let mut problems = Vec::new();
    for package in metadata.packages.iter().chain(&sdk_packages()) {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("cargo has read it, too");
        let dependencies = package.dependencies.iter().map(|dependency| Dependency {
            name: dependency.name.clone(),
            ours: dependency.path.as_ref().and_then(|path| path.file_name()).map(str::to_owned),
            shipped: dependency.kind == DependencyKind::Normal,
        });
        let directory = package.manifest_path.parent().and_then(|path| path.file_name()).unwrap_or_default();
        problems.extend(arrow_problems(directory, &manifest, &dependencies.collect::<Vec<_>>()));
    }
    assert!(metadata.packages.len() == metadata.workspace_members.len(), "--no-deps lists the members and no others");
    report(problems);
}

#[test]
fn deliberate_faults_are_compiled_in_only_when_asked_for() {
    let mut problems = Vec::new();
    for package in metadata().packages.iter().chain(&sdk_packages()) {
        let features = package.features.iter().map(|(name, turns_on)| (name.as_str(), turns_on.as_slice()));
        let dependencies = package.dependencies.iter().map(|it| (it.name.as_str(), it.features.as_slice()));
        problems.extend(fault_problems(&package.name, features, dependencies));
    }
    problems.extend(workspace_files().iter().flat_map(wheel_fault_problems));
    report(problems);
}

/// A program that takes locks must not have to build consensus. Asks cargo for the tree of the library alone, because in the
/// metadata of the workspace other crates turn its features on.
#[test]
#[expect(clippy::disallowed_types, reason = "the core does no I/O, but this test runs cargo")]
fn the_client_library_is_light() {
    for features in [&[][..], &["--features", "blocking"]] {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args([
            "tree",
            "--package",
            "fencepost",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--offline",
            "--locked",
        ]);
        let asked = cargo.args(features).current_dir(root()).output().expect("cargo runs this test");
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        let tree = String::from_utf8_lossy(&asked.stdout);
        assert!(tree.contains("fencepost-session v"), "this is not the tree of the library: {tree}");
        report(weight_problems(&tree));
    }
}

#[test]
fn every_rule_of_the_core_has_code_and_scenario() {
    let files = workspace_files();
    let rules_file = files.iter().find(|file| file.path == RULES_FILE).expect("docs/semantics.md states the rules");
    let (rules, mut problems) = parse_rules(rules_file);
    problems.extend(rule_problems(&rules, &files));
    report(problems);
}

#[test]
fn pure_crates_forbid_the_same() {
    let files = workspace_files();
    let lists = PURE_CRATES.iter().map(|name| {
        let path = format!("crates/{name}/clippy.toml");
        files
            .iter()
            .find(|file| file.path == path)
            .unwrap_or_else(|| panic!("{path} must list what a pure crate may not call"))
    });
    report(purity_problems(&lists.collect::<Vec<_>>()));
}

#[test]
fn the_server_leaves_sessions_to_the_edge() {
    let files = workspace_files();
    let server = files.iter().filter(|file| file.path.starts_with("crates/server/src/"));
    report(server.flat_map(session_problems).collect());
}

#[test]
fn the_walk_of_an_acquire_names_files_that_exist() {
    let files = workspace_files();
    let map = files.iter().find(|file| file.path == MAP_FILE).expect("ARCHITECTURE.md is the map");
    report(walk_problems(map, |path| files.iter().any(|file| file.path == path)));
}

#[test]
fn every_source_file_says_what_it_is_for() {
    report(workspace_files().iter().filter_map(opening_problem).collect());
}

#[test]
fn every_table_of_files_is_complete() {
    let files = workspace_files();
    let find = |path: String| files.iter().find(|file| file.path == path);
    let mut problems = Vec::new();
    for package in metadata().packages.iter().chain(&sdk_packages()) {
        let source = package.manifest_path.strip_prefix(root()).expect("a member is below the root").as_str();
        let source = source.replace("Cargo.toml", "src/");
        let root = find(format!("{source}lib.rs")).or_else(|| find(format!("{source}main.rs")));
        let root = root.unwrap_or_else(|| panic!("{source} has neither lib.rs nor main.rs"));
        let sources = files.iter().filter_map(|file| file.path.strip_prefix(&source));
        problems.extend(table_problems(root, &sources.collect::<Vec<_>>()));
    }
    report(problems);
}

#[test]
fn the_page_for_contributors_names_every_package_that_the_tests_install() {
    let files = workspace_files();
    let text = |path: &str| &files.iter().find(|file| file.path == path).expect("a file at the root").text;
    report(package_problems(text("test"), text("CONTRIBUTING.md")));
}

#[test]
fn nothing_is_unfinished_or_tied_to_one_machine() {
    report(workspace_files().iter().flat_map(text_problems).collect());
}

#[test]
fn texts_and_identifiers_name_who_acts() {
    let files = workspace_files();
    let is_checked = |file: &&File| !file.path.starts_with(OLD_TEXTS);
    report(files.iter().filter(is_checked).flat_map(vague_problems).collect());
}

// ---- The input of the checks

struct File {
    /// Relative to the root of the workspace, with `/` between the parts.
    path: String,
    text: String,
}

struct Dependency {
    name: String,
    /// Its directory, if it is a crate of this workspace.
    ours: Option<String>,
    /// Whether users get it: neither for tests nor for build scripts.
    shipped: bool,
}

#[derive(Debug, PartialEq)]
struct Rule {
    name: String,
    line: usize,
    by_core: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is two levels up")
}

/// What cargo knows about the packages of the workspace.
fn metadata() -> Metadata {
    metadata_of("Cargo.toml")
}

/// The crates of the libraries for other languages.
fn sdk_packages() -> Vec<Package> {
    let files = workspace_files();
    let manifests = files.iter().filter(|file| file.path.starts_with(SDKS) && file.path.ends_with("/Cargo.toml"));
    manifests.flat_map(|manifest| metadata_of(&manifest.path).packages).collect()
}

fn metadata_of(manifest: &str) -> Metadata {
    let mut command = MetadataCommand::new();
    let asked = command.manifest_path(root().join(manifest)).no_deps().exec();
    asked.expect("cargo metadata --no-deps works wherever cargo test does")
}

/// Every text file of the workspace, by path. Version control and build output are left out.
fn workspace_files() -> Vec<File> {
    let root = root();
    let mut files = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("the workspace can be read") {
            let path = entry.expect("the workspace can be read").path();
            if path.file_name().is_some_and(|name| name == ".git") || path.join("CACHEDIR.TAG").exists() {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let parts = path.strip_prefix(&root).expect("found below the root").iter();
                let parts = parts.map(|part| part.to_string_lossy()).collect::<Vec<_>>();
                files.push(File { path: parts.join("/"), text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} to put right:\n{}\n", problems.len(), problems.join("\n"));
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

// ---- The checks

fn arrow_problems(directory: &str, manifest: &str, dependencies: &[Dependency]) -> Vec<String> {
    let file = format!("{directory}/Cargo.toml");
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == directory) else {
        return vec![format!(
            "{file}:1: the design knows no crate `{directory}`: give it a row in ARCHITECTURE.md and in ARROWS"
        )];
    };
    let line_of = |name: &str| lines(manifest).find(|(_, line)| line.starts_with(name)).map_or(1, |(line, _)| line);
    let mut problems = Vec::new();
    for Dependency { name, ours, shipped } in dependencies {
        let line = line_of(name);
        match ours {
            Some(ours) if !allowed.contains(&ours.as_str()) => problems.push(format!(
                "{file}:{line}: `{directory}` may not use `{ours}`, only {allowed:?}: move the code, or change the \
                 design, ARCHITECTURE.md and ARROWS together"
            )),
            None if *shipped && directory == "core" && !CORE_LIBRARIES.contains(&name.as_str()) => problems.push(format!(
                "{file}:{line}: the core may not use `{name}`: do without, or show that it has no I/O, clock, threads or \
                 randomness and add it to CORE_LIBRARIES"
            )),
            _ => {}
        }
    }
    problems
}

/// Features of a package that turn on deliberate faults, and dependencies with such features. Only a feature of that kind may.
fn fault_problems<'a>(
    package: &str,
    features: impl Iterator<Item = (&'a str, &'a [String])>,
    dependencies: impl Iterator<Item = (&'a str, &'a [String])>,
) -> Vec<String> {
    let is_fault = |name: &&String| name.split('/').next_back().is_some_and(|name| FAULTS.contains(&name));
    let features = features.filter(|(name, _)| !FAULTS.contains(name));
    let features = features.filter_map(|(name, turns_on)| {
        turns_on.iter().find(is_fault).map(|fault| format!("{package}: feature `{name}` turns on `{fault}`"))
    });
    let dependencies = dependencies.filter_map(|(name, asked)| {
        asked.iter().find(is_fault).map(|fault| format!("{package}: asks `{name}` for `{fault}`"))
    });
    features.chain(dependencies).map(|what| what + ": remove it, or shipped programs would have faults").collect()
}

/// Wheels that turn on deliberate faults. A wheel names the features of its crate in `pyproject.toml`.
fn wheel_fault_problems(file: &File) -> Vec<String> {
    if !file.path.ends_with("pyproject.toml") {
        return Vec::new();
    }
    let faults =
        |(line, text)| FAULTS.iter().filter(move |fault| str::contains(text, **fault)).map(move |it| (line, it));
    let problem = |(line, fault)| format!("{}:{line}: turns on `{fault}`: remove it, or a wheel has faults", file.path);
    lines(&file.text).flat_map(faults).map(problem).collect()
}

/// The packages of a dependency tree, one a line, that the client library must not depend on.
fn weight_problems(tree: &str) -> Vec<String> {
    let is_heavy = |line: &&str| HEAVY.iter().any(|package| line.starts_with(package));
    tree.lines()
        .filter(is_heavy)
        .map(|line| format!("crates/client: depends on {line}: remove the dependency that leads to it"))
        .collect()
}

/// The numbered files of the walk: each must exist and be named once, and the text must say how many there are.
fn walk_problems(map: &File, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let walk = lines(&map.text).skip_while(|(_, line)| *line != WALK_HEADING).skip(1);
    let walk: Vec<(usize, &str)> = walk.take_while(|(_, line)| !line.starts_with('#')).collect();
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for (line, text) in &walk {
        let Some((number, rest)) = text.split_once(". `") else { continue };
        let Some((path, _)) = rest.split_once('`') else { continue };
        if !exists(path) {
            problems.push(format!("{MAP_FILE}:{line}: there is no file {path}: follow the acquire again"));
        }
        if !seen.insert(path) {
            problems.push(format!("{MAP_FILE}:{line}: {path} is named twice: name each file once"));
        }
        if number != seen.len().to_string() {
            problems.push(format!("{MAP_FILE}:{line}: this is file {}, not {number}", seen.len()));
        }
    }
    let says_count = walk.iter().any(|(_, line)| line.contains(&format!(" {} files, in order", seen.len())));
    if !says_count {
        problems.push(format!("{MAP_FILE}: the walk has {} files: say so above it", seen.len()));
    }
    problems
}

/// Places where a driver looks at the outcome of a session command. Only the edge of the session protocol may decide about
/// sessions, because the simulation runs the edge and not the driver.
fn session_problems(file: &File) -> Vec<String> {
    const EDGE_WORDS: &[&str] = &["Outcome::Opened", "Outcome::Attached", "Outcome::Closed"];
    let found = lines(&file.text).filter(|(_, text)| EDGE_WORDS.iter().any(|word| text.contains(word)));
    let problem =
        |(line, _)| format!("{}:{line}: only the edge decides about sessions: move it to crates/session", file.path);
    found.map(problem).collect()
}

/// The rules of a document: each is a heading of the third level, followed by a line that names the parts that enforce it.
fn parse_rules(file: &File) -> (Vec<Rule>, Vec<String>) {
    let mut rules: Vec<Rule> = Vec::new();
    let mut problems = Vec::new();
    let mut rest = lines(&file.text).filter(|(_, line)| !line.is_empty()).peekable();
    while let Some((line, text)) = rest.next() {
        let Some(name) = text.strip_prefix("### ") else { continue };
        let at = format!("{}:{line}", file.path);
        if rules.iter().any(|rule| rule.name == name) {
            problems.push(format!("{at}: rule `{name}` is stated twice: merge the two"));
        }
        let Some(parts) = rest.peek().and_then(|(_, next)| next.strip_prefix("Enforced by: ")) else {
            problems.push(format!(
                "{at}: rule `{name}` does not say who enforces it: add a line `Enforced by: core` or the like"
            ));
            continue;
        };
        let parts = parts.split(", ").collect::<Vec<_>>();
        for part in parts.iter().filter(|part| !PARTS.contains(part)) {
            problems.push(format!("{at}: `{part}` cannot enforce rule `{name}`: say one of {PARTS:?}"));
        }
        rules.push(Rule { name: name.to_owned(), line, by_core: parts.contains(&"core") });
    }
    (rules, problems)
}

/// The rules that a file cites after `marker`, with their lines. Several rules are separated by commas; a full stop, colon,
/// semicolon or bracket begins a remark. A marker directly after a quotation mark or backtick is not a citation.
fn citations<'a>(text: &'a str, marker: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (line, text) in lines(text) {
        let Some(at) = text.find(marker) else { continue };
        if text[..at].ends_with(['`', '"']) {
            continue;
        }
        let names = text[at + marker.len()..].split(['.', ':', ';', '(']).next().unwrap_or_default();
        found.extend(names.split(',').map(|name| (line, name.trim())));
    }
    found
}

fn rule_problems(rules: &[Rule], files: &[File]) -> Vec<String> {
    let known = rules.iter().map(|rule| rule.name.as_str()).collect::<BTreeSet<_>>();
    let mut problems = Vec::new();
    let (mut enforced, mut shown) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let is_scenario = file.path.starts_with(SCENARIOS) && file.path.ends_with(".txt");
        if !is_scenario && !file.path.ends_with(".rs") {
            continue;
        }
        // A scenario shows the rules that its first lines name.
        let opening = file.text.lines().take_while(|line| line.starts_with("# Rule: ")).count();
        if is_scenario && opening == 0 {
            problems.push(format!("{}:1: a scenario opens with its rule: begin with `# Rule: name`", file.path));
        }
        for (line, name) in citations(&file.text, if is_scenario { "# Rule: " } else { "// Rule: " }) {
            if !known.contains(name) {
                problems.push(format!(
                    "{}:{line}: there is no rule `{name}`: correct the name, or state the rule in {RULES_FILE}",
                    file.path
                ));
            } else if is_scenario && line <= opening {
                shown.insert(name);
            } else if file.path.starts_with(CORE_SOURCE) {
                enforced.insert(name);
            }
        }
    }
    for Rule { name, line, .. } in rules.iter().filter(|rule| rule.by_core) {
        if !enforced.contains(name.as_str()) {
            problems.push(format!(
                "{RULES_FILE}:{line}: nothing in {CORE_SOURCE} enforces `{name}`: write `// Rule: {name}` where it is \
                 enforced, or take `core` out of its `Enforced by:`"
            ));
        }
        if !shown.contains(name.as_str()) {
            problems.push(format!(
                "{RULES_FILE}:{line}: no scenario shows `{name}`: add a file in {SCENARIOS} that opens with `# Rule: {name}`"
            ));
        }
    }
    problems
}

/// The lists of pure crates must forbid the same paths. The reasons may differ.
fn purity_problems(lists: &[&File]) -> Vec<String> {
    let forbidden = |file: &File| {
        let path = |(_, line)| str::split(line, '"').nth(1).filter(|_| line.contains("path = ")).map(str::to_owned);
        lines(&file.text).filter_map(path).collect::<BTreeSet<_>>()
    };
    let mut problems = Vec::new();
    for (one, other) in lists.iter().flat_map(|one| lists.iter().map(move |other| (one, other))) {
        for path in forbidden(other).difference(&forbidden(one)) {
            problems.push(format!("{}:1: does not forbid `{path}`, as {} does: add it", one.path, other.path));
        }
    }
    problems
}

/// The table under `# Files` at the top of a crate's root file: its first column must name every file below `src/` and no
/// other. Paths are relative to `src/` and in backticks; a directory such as `edge/` names all files below it. A root file
/// without the heading is not checked.
fn table_problems(root: &File, sources: &[&str]) -> Vec<String> {
    let opening = lines(&root.text).take_while(|(_, line)| line.starts_with("//!"));
    let mut section = opening.skip_while(|(_, line)| *line != FILES_HEADING);
    let Some((heading, _)) = section.next() else { return Vec::new() };
    let rows =
        section.take_while(|(_, line)| !line.starts_with("//! # ")).filter(|(_, line)| line.starts_with("//! | "));
    let named = rows.flat_map(|(line, row)| {
        let column = row.split('|').nth(1).unwrap_or_default();
        column.split('`').skip(1).step_by(2).map(move |name| (line, name))
    });
    let named = named.collect::<Vec<_>>();
    let covers = |name: &str, source: &str| name == source || (name.ends_with('/') && source.starts_with(name));
    let gone = named.iter().filter(|(_, name)| !sources.iter().any(|source| covers(name, source)));
    let gone = gone.map(|(line, name)| format!("{}:{line}: there is no file {name}: take it out", root.path));
    let missing = sources.iter().filter(|source| !named.iter().any(|(_, name)| covers(name, source)));
    let missing = missing.map(|source| format!("{}:{heading}: {source} is not in the table: add it", root.path));
    gone.chain(missing).collect()
}

fn opening_problem(file: &File) -> Option<String> {
    let opening = match file.path.rsplit_once('.') {
        Some((_, "rs")) => "//! ",
        Some((_, "py" | "pyi")) => "\"\"\"",
        _ => return None,
    };
    (!file.text.starts_with(opening)).then(|| {
        let opening = opening.trim_end();
        format!("{}:1: open the file with `{opening}`: what it owns, what it refuses to do, why it exists", file.path)
    })
}

fn text_problems(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    for (line, text) in lines(&file.text) {
        for (forbidden, advice) in FORBIDDEN.iter().filter(|(forbidden, _)| text.contains(forbidden)) {
            problems.push(format!("{}:{line}: `{forbidden}`: {advice}", file.path));
        }
        for home in HOMES {
            let absolute =
                |at: usize| !text[..at].ends_with(|before: char| before.is_alphanumeric() || "._-".contains(before));
            if text.match_indices(home).any(|(at, _)| absolute(at)) {
                problems
                    .push(format!("{}:{line}: a path below `{home}`: write it relative to the repository", file.path));
            }
        }
    }
    problems
}

/// The vague words of a file, also as parts of identifiers in snake case and in camel case.
/// `./test` lists what it installs as `missing+=(PACKAGE ...)`.
fn package_problems(test: &str, contributing: &str) -> Vec<String> {
    let lists = test.split("missing+=(").skip(1).filter_map(|rest| rest.split(')').next());
    let packages: Vec<&str> = lists.flat_map(str::split_whitespace).collect();
    let unnamed = packages.iter().filter(|package| !contributing.contains(&format!("`{package}`")));
    let mut problems: Vec<String> =
        unnamed.map(|package| format!("CONTRIBUTING.md:1: `./test` installs `{package}`: say so there")).collect();
    if packages.is_empty() {
        problems.push("test:1: no `missing+=(...)` was found: this check reads them".to_owned());
    }
    problems
}

fn vague_problems(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    let mut previous = String::new();
    for (line, text) in lines(&file.text) {
        let text = FOREIGN_NAMES.iter().fold(text.to_owned(), |text, name| text.replace(name, ""));
        for word in words(&text) {
            let pair = format!("{previous} {word}");
            for vague in VAGUE_WORDS.iter().filter(|vague| **vague == word || **vague == pair) {
                problems.push(format!("{}:{line}: `{vague}`: name who acts", file.path));
            }
            previous = word;
        }
    }
    problems
}

/// The words of a line in lower case, with identifiers in snake case and camel case taken apart. Punctuation becomes a word of its
/// own, so that the words before and after it are no pair.
fn words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut before = ' ';
    for letter in text.chars() {
        if letter.is_uppercase() && before.is_lowercase() {
            spaced.push(' ');
        }
        match letter {
            '.' | ',' | ';' | ':' | '?' | '(' | ')' | '"' => spaced.push_str(" . "),
            _ if letter.is_alphanumeric() => spaced.extend(letter.to_lowercase()),
            _ => spaced.push(' '),
        }
        before = letter;
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

// ---- Each check can fail

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

fn assert_says(problems: &[String], parts: &[&str]) {
    assert_eq!(problems.len(), 1, "exactly one problem: {problems:?}");
    for part in parts {
        assert!(problems[0].contains(part), "{:?} does not say {part:?}", problems[0]);
    }
}

fn ours(name: &str, shipped: bool) -> Dependency {
    Dependency { name: format!("fencepost-{name}"), ours: Some(name.to_owned()), shipped }
}

#[test]
fn an_arrow_against_the_design_is_found() {
    let manifest = "[dependencies]\nfencepost-wire.workspace = true\nfencepost-server.workspace = true\n";
    assert!(arrow_problems("replica", manifest, &[ours("core", true), ours("wire", true)]).is_empty());
    let found = arrow_problems("replica", manifest, &[ours("wire", true), ours("server", true)]);
    assert_says(&found, &["replica/Cargo.toml:3:", "`server`"]);
    assert_says(&arrow_problems("server", "", &[ours("sim", false)]), &["`sim`"]);
}

#[test]
fn a_crate_that_the_design_does_not_know_is_found() {
    assert_says(&arrow_problems("helpers", "", &[]), &["helpers/Cargo.toml:1:", "ARCHITECTURE.md"]);
}

#[test]
fn a_library_in_the_core_is_found_unless_it_is_known_or_for_tests() {
    let library = |name: &str, shipped| [Dependency { name: name.to_owned(), ours: None, shipped }];
    assert!(arrow_problems("core", "", &library("smallvec", true)).is_empty());
    assert!(arrow_problems("core", "", &library("proptest", false)).is_empty());
    assert!(arrow_problems("server", "", &library("tokio", true)).is_empty());
    assert_says(&arrow_problems("core", "tokio = \"1\"", &library("tokio", true)), &["Cargo.toml:1:", "`tokio`"]);
}

#[test]
fn a_package_that_would_ship_deliberate_faults_is_found() {
    let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let problems = |feature, turns_on: &[&str], asked: &[&str]| {
        let (turns_on, asked) = (list(turns_on), list(asked));
        fault_problems("a", [(feature, turns_on.as_slice())].into_iter(), [("b", asked.as_slice())].into_iter())
    };
    assert!(problems("planted-bugs", &["b/planted-bugs", "b/made-up-version"], &["rt"]).is_empty());
    assert_says(&problems("default", &["b/made-up-version"], &[]), &["a: feature `default`"]);
    assert_says(&problems("default", &["planted-bugs"], &[]), &["a: feature `default`"]);
    assert_says(&problems("full", &["rt", "b/planted-bugs"], &[]), &["a: feature `full`"]);
    assert_says(&problems("full", &["b?/planted-bugs"], &[]), &["a: feature `full`"]);
    assert_says(&problems("full", &[], &["planted-bugs"]), &["a: asks `b`"]);
    let wheel = |path, features: &str| wheel_fault_problems(&file(path, &format!("[tool.maturin]\n{features}\n")));
    assert!(wheel("sdk/a/pyproject.toml", "features = [\"stores\"]").is_empty());
    assert!(wheel("sdk/a/README.md", "planted-bugs").is_empty());
    let found = wheel("sdk/a/pyproject.toml", "features = [\"stores\", \"fencepost-sim/planted-bugs\"]");
    assert_says(&found, &["sdk/a/pyproject.toml:2:", "`planted-bugs`"]);
}

#[test]
fn a_library_for_python_that_links_the_server_is_found() {
    let allowed = [ours("client", true), ours("backends", true)];
    assert!(arrow_problems("python", "", &allowed).is_empty());
    let manifest = "[dependencies]\nfencepost-server = { path = \"../../crates/server\" }\n";
    assert_says(&arrow_problems("python", manifest, &[ours("server", true)]), &["python/Cargo.toml:2:", "`server`"]);
    assert_says(&arrow_problems("python", "", &[ours("core", true)]), &["`core`"]);
}

#[test]
fn rules_are_read_with_who_enforces_them() {
    let text = "# Page\n\n### fifo\nEnforced by: core\n\nText.\n\n### read\n\nEnforced by: replica, server\n";
    let (rules, problems) = parse_rules(&file("p.md", text));
    assert!(problems.is_empty(), "{problems:?}");
    let rule = |name: &str, line, by_core| Rule { name: name.to_owned(), line, by_core };
    assert_eq!(rules, [rule("fifo", 3, true), rule("read", 8, false)]);
}

#[test]
fn a_rule_without_enforcer_with_a_strange_one_or_stated_twice_is_found() {
    let problems = |text: &str| parse_rules(&file("p.md", text)).1;
    assert_says(&problems("### fifo\nSome text.\n"), &["p.md:1:", "`fifo`", "who enforces it"]);
    assert_says(&problems("### fifo\nEnforced by: core, hope\n"), &["p.md:1:", "`hope`"]);
    assert_says(&problems("### a\nEnforced by: core\n### a\nEnforced by: core\n"), &["p.md:3:", "twice"]);
}

#[test]
fn a_rule_of_the_core_without_code_or_scenario_is_found() {
    let rules = [Rule { name: "fifo".to_owned(), line: 7, by_core: true }];
    let code = || file("crates/core/src/queue.rs", "//! Queues.\nlet a = 1; // Rule: fifo. No waiter is passed.\n");
    let scenario = || file("crates/core/tests/scenarios/fifo.txt", "# Rule: fifo\n# A story.\n");
    let elsewhere = file("crates/core/tests/model.rs", "// Rule: fifo\n");
    assert!(rule_problems(&rules, &[code(), scenario()]).is_empty());
    assert_says(&rule_problems(&rules, &[scenario(), elsewhere]), &["docs/semantics.md:7:", "`// Rule: fifo`"]);
    assert_says(&rule_problems(&rules, &[code()]), &["docs/semantics.md:7:", "no scenario"]);
    let in_passing = file("crates/core/tests/scenarios/b.txt", "# Rule: read\n# A story.\n# Rule: fifo\n");
    let rules =
        rules.into_iter().chain([Rule { name: "read".to_owned(), line: 9, by_core: false }]).collect::<Vec<_>>();
    assert_says(&rule_problems(&rules, &[code(), in_passing]), &["docs/semantics.md:7:", "no scenario"]);
}

#[test]
fn a_client_library_that_depends_on_consensus_is_found() {
    assert!(
        weight_problems("fencepost v0.1.0 (/somewhere)\nprost v0.14.4\nrafter v1.0.0\nprotobuf v3.7.2\n").is_empty()
    );
    assert_says(&weight_problems("raft v0.7.0 (*)\n"), &["raft v0.7.0"]);
    assert_says(&weight_problems("protobuf v2.28.0\n"), &["protobuf v2.28.0"]);
}

#[test]
fn a_walk_with_a_missing_repeated_or_miscounted_file_is_found() {
    let walk = |lines: &str| file("ARCHITECTURE.md", &format!("{WALK_HEADING}\n{lines}\n## Next\n3. `c.rs`: x\n"));
    let exists = |path: &str| path != "gone.rs";
    assert!(walk_problems(&walk("Now 2 files, in order.\n1. `a.rs`: x\n2. `b.rs`: y"), exists).is_empty());
    assert_says(&walk_problems(&walk("Now 1 files, in order.\n1. `gone.rs`: x"), exists), &["no file gone.rs"]);
    assert_says(&walk_problems(&walk("Now 1 files, in order.\n1. `a.rs`: x\n1. `a.rs`: x"), exists), &["twice"]);
    assert_says(&walk_problems(&walk("Now 1 files, in order.\n2. `a.rs`: x"), exists), &["this is file 1, not 2"]);
    assert_says(&walk_problems(&walk("Now 7 files, in order.\n1. `a.rs`: x"), exists), &["has 1 files"]);
}

#[test]
fn a_driver_that_decides_about_sessions_is_found() {
    let driver = file("crates/server/src/a.rs", "match outcome {\n    Outcome::Attached(_) => bind(),\n}\n");
    assert_says(&session_problems(&driver), &["crates/server/src/a.rs:2:", "crates/session"]);
    assert!(session_problems(&file("crates/server/src/a.rs", "Outcome::Granted { .. }\n")).is_empty());
}

#[test]
fn a_rule_of_another_part_needs_no_code_and_no_scenario() {
    let rules = [Rule { name: "read".to_owned(), line: 1, by_core: false }];
    assert!(rule_problems(&rules, &[]).is_empty());
}

#[test]
fn citing_a_rule_that_does_not_exist_is_found() {
    let rules = [Rule { name: "read".to_owned(), line: 1, by_core: false }];
    let code = file("crates/core/src/a.rs", "// Rule: read, ghost\n//! says `// Rule: name`\n");
    assert_says(&rule_problems(&rules, &[code]), &["crates/core/src/a.rs:1:", "`ghost`"]);
    let scenario = file("crates/core/tests/scenarios/a.txt", "# Rule: read\n# Story.\n# Rule: spectre\n");
    assert_says(&rule_problems(&rules, &[scenario]), &["scenarios/a.txt:3:", "`spectre`"]);
}

#[test]
fn a_scenario_that_does_not_open_with_its_rule_is_found() {
    let scenario = file("crates/core/tests/scenarios/a.txt", "# A story without a rule.\n");
    assert_says(&rule_problems(&[], &[scenario]), &["scenarios/a.txt:1:", "opens with its rule"]);
}

#[test]
fn a_pure_crate_that_forbids_less_is_found() {
    let list = |path, forbidden: &[&str]| {
        let line = |path: &&str| format!("    {{ path = \"{path}\", reason = \"of {path}\" }},\n");
        file(path, &forbidden.iter().map(line).collect::<String>())
    };
    let (core, wire) = (list("core.toml", &["std::a", "std::b"]), list("wire.toml", &["std::b", "std::a"]));
    assert!(purity_problems(&[&core, &wire]).is_empty());
    let less = list("wire.toml", &["std::b"]);
    assert_says(&purity_problems(&[&core, &less]), &["wire.toml:1:", "`std::a`", "core.toml"]);
}

#[test]
fn a_source_file_that_does_not_say_what_it_is_for_is_found() {
    assert_eq!(opening_problem(&file("crates/core/src/a.rs", "//! Owns a.\n")), None);
    assert_eq!(opening_problem(&file("notes.md", "Notes.\n")), None);
    assert!(opening_problem(&file("crates/core/src/a.rs", "use b;\n")).is_some_and(|found| found.contains("a.rs:1:")));
    assert_eq!(opening_problem(&file("sdk/a/b.py", "\"\"\"Owns b.\"\"\"\n")), None);
    assert_eq!(opening_problem(&file("sdk/a/b.pyi", "\"\"\"The types of b.\"\"\"\n")), None);
    for path in ["sdk/a/b.py", "sdk/a/b.pyi"] {
        let found = opening_problem(&file(path, "import os\n"));
        assert!(found.is_some_and(|found| found.contains(&format!("{path}:1:")) && found.contains("`\"\"\"`")));
    }
}

#[test]
fn a_table_of_files_with_a_file_too_many_or_too_few_is_found() {
    let root = |rows: &str| {
        let text =
            format!("//! A crate.\n//! | `not.rs` | x |\n{FILES_HEADING}\n//!\n//! | file | what |\n{rows}mod a;\n");
        file("crates/a/src/lib.rs", &text)
    };
    let rows = "//! | `lib.rs`, `a.rs` | reads `b.rs` |\n//! | `edge/` | y |\n";
    let sources = ["a.rs", "edge/mod.rs", "edge/door.rs", "lib.rs"];
    assert!(table_problems(&root(rows), &sources).is_empty());
    assert_says(&table_problems(&root(rows), &sources[1..]), &["lib.rs:6:", "no file a.rs"]);
    assert_says(&table_problems(&root(rows), &["a.rs", "lib.rs"]), &["lib.rs:7:", "no file edge/"]);
    let more = [&sources[..], &["b.rs"]].concat();
    assert_says(&table_problems(&root(rows), &more), &["lib.rs:3:", "b.rs is not in the table"]);
    let other_section = format!("{rows}//! # Else\n//! | `c.rs` | z |\n");
    assert!(table_problems(&root(&other_section), &sources).is_empty());
    assert!(table_problems(&file("crates/a/src/lib.rs", "//! A crate without a table.\n"), &sources).is_empty());
}

#[test]
fn unfinished_work_and_paths_of_one_machine_are_found() {
    assert!(text_problems(&file("a.txt", "lock /orders/home/1 and /rooted\n")).is_empty());
    for (forbidden, _) in FORBIDDEN {
        assert_says(&text_problems(&file("a.rs", &format!("//! A.\n{forbidden}\n"))), &["a.rs:2:", forbidden]);
    }
    for home in HOMES {
        assert_says(&text_problems(&file("a.md", &format!("see {home}ann/notes\n"))), &["a.md:1:", home]);
    }
}

#[test]
fn words_that_hide_who_acts_are_found() {
    let problems = |text: &str| vague_problems(&file("a.rs", text));
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    for vague in VAGUE_WORDS {
        let (snake, camel) = (vague.replace(' ', "_"), vague.split(' ').map(capital).collect::<String>());
        assert_says(&problems(&format!("//! A.\n//! {} acts.\n", capital(vague))), &["a.rs:2:", vague]);
        assert_says(&problems(&format!("fn wakes_{snake}_else() {{}}\n")), &["a.rs:1:", vague]);
        assert_says(&problems(&format!("Bug::Wakes{camel}\n")), &["a.rs:1:", vague]);
        assert!(problems(&format!("part{vague}ish\n")).is_empty(), "only whole words are found");
    }
    let wrapped = concat!("// It wakes no\n", "// one at all.\n");
    assert_says(&problems(wrapped), &["a.rs:2:"]);
    assert!(problems("no. One waits, and no: one more; renewed, one no\n").is_empty());
}

#[test]
fn a_package_that_the_page_for_contributors_does_not_name_is_found() {
    let test = "[[ -x a ]] || missing+=(redis-server)\n[[ -x b ]] || missing+=(jre headless)\n";
    assert_eq!(package_problems(test, "`redis-server`, `jre` and `headless`"), Vec::<String>::new());
    assert_eq!(package_problems(test, "`redis-server`, jre and `headless`").len(), 1);
    assert_eq!(package_problems("nothing", "").len(), 1);
}
