//! Keeps the promises that the workspace makes about itself: which crate may use which, that every rule of the lock
//! semantics has its code and its scenario, that deliberate faults stay out of what is shipped, that every file says what
//! it is for, and that nothing unfinished is left.
//!
//! It speaks about the whole workspace but lives in `core`: a test needs a package, every other crate may come and go,
//! and a crate that holds only this would be one more room in the house. Each check is a function of plain text, and
//! the tests at the end show that each of them can fail.
#![allow(clippy::disallowed_methods, reason = "reads the files of the workspace; the crate itself may not")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Which crate may use which of ours, by directory. Build- and dev-dependencies follow the same arrows:
/// a test that needs another one belongs in the crate that may have it. `sim` is used by no one.
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("wire", &["core"]),
    ("session", &["core", "wire"]),
    ("replica", &["core", "wire"]),
    ("server", &["core", "wire", "replica", "session"]),
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
    ("cli", &["core", "client", "server", "fence", "backends", "load", "testbed"]),
    ("sim", &["core", "wire", "replica", "session", "fence"]),
    // Real servers of others, for tests and benchmarks alone.
    ("testbed", &[]),
];

/// What the core may use of others: crates without I/O, clock, threads or randomness (as they are configured here).
const CORE_LIBRARIES: &[&str] = &["foldhash", "hashbrown", "smallvec", "thiserror", "xxhash-rust"];

/// The crates that ask the operating system for nothing. Each has a `clippy.toml`, and all forbid the same.
const PURE_CRATES: &[&str] = &["core", "wire", "session"];

/// Who can enforce a rule.
const PARTS: &[&str] = &["core", "replica", "server", "client", "guards"];

/// The features that compile in what is for tests alone: deliberate faults, and a version of the formats that no release has. Only a
/// command line may ask for them, and the first may turn on the second.
const FAULTS: &[&str] = &["planted-bugs", "made-up-version"];

/// What the client library must not bring along: consensus, and the protobuf library under it, which has a known flaw
/// (RUSTSEC-2024-0437).
const HEAVY: &[&str] =
    &["raft v", "raft-proto v", "raft-engine v", "protobuf v2", "fencepost-replica v", "fencepost-server v"];

const MAP_FILE: &str = "ARCHITECTURE.md";
const WALK_HEADING: &str = "### The files that one acquire passes";

const RULES_FILE: &str = "docs/semantics.md";
const CORE_SOURCE: &str = "crates/core/src/";
const SCENARIOS: &str = "crates/core/tests/scenarios/";

/// Text that must stand in no file, and what to do instead. Written in two halves so that this file may be read, too.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("../", "shared"), "name only what is in this repository"),
    (concat!("todo", "!("), "finish it, or leave it out"),
    (concat!("unimplemented", "!("), "finish it, or leave it out"),
    (concat!("#[", "ignore"), "repair the test or delete it: an ignored test proves nothing"),
];

/// Where people's home directories are. A path into one works on one machine only.
const HOMES: &[&str] = &[concat!("/home", "/"), concat!("/Users", "/"), concat!("/root", "/")];

#[test]
fn crates_use_only_what_the_design_allows() {
    let metadata = metadata();
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("cargo has just read it");
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
    let metadata = metadata();
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let features = package.features.iter().map(|(name, turns_on)| (name.as_str(), turns_on.as_slice()));
        let dependencies = package.dependencies.iter().map(|it| (it.name.as_str(), it.features.as_slice()));
        problems.extend(fault_problems(&package.name, features, dependencies));
    }
    report(problems);
}

/// A program that takes locks need not build consensus. Asks cargo for the tree of the library alone: in the metadata of the workspace
/// other crates would switch its features on.
#[test]
#[expect(clippy::disallowed_types, reason = "the core does no I/O, and this test of all crates asks cargo")]
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
        assert!(tree.contains("fencepost-session v"), "this is no tree of the library: {tree}");
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
            .unwrap_or_else(|| panic!("{path} says what a pure crate may not call"))
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
fn nothing_unfinished_and_nothing_of_one_machine_is_left() {
    report(workspace_files().iter().flat_map(text_problems).collect());
}

// ---- What the checks look at

struct File {
    /// From the workspace's root, with `/` between the parts.
    path: String,
    text: String,
}

struct Dependency {
    name: String,
    /// Its directory, if it is a crate of this workspace.
    ours: Option<String>,
    /// Part of what users get: neither for tests nor for build scripts.
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

/// What cargo knows of the workspace's own packages.
fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    let asked = command.manifest_path(root().join("Cargo.toml")).no_deps().exec();
    asked.expect("cargo metadata --no-deps works wherever cargo test does")
}

/// Every text file of the workspace, in order of path. Version control and build output are left out.
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

/// What a package's features turn on, and what it asks of its dependencies: the faults only for the faults' sake.
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
    features.chain(dependencies).map(|what| what + ": leave it out, what is shipped would have faults").collect()
}

/// The packages of a tree, one a line, that a client library must not bring along.
fn weight_problems(tree: &str) -> Vec<String> {
    let is_heavy = |line: &&str| HEAVY.iter().any(|package| line.starts_with(package));
    tree.lines().filter(is_heavy).map(|line| format!("crates/client: brings {line} along: cut the way to it")).collect()
}

/// The numbered files of the walk: each must exist, stand once, and the text must say how many there are.
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
            problems.push(format!("{MAP_FILE}:{line}: {path} stands there twice: name each file once"));
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

/// Places where a driver looks at what became of a session. The edge of the session protocol decides about that, where the simulation runs
/// it.
fn session_problems(file: &File) -> Vec<String> {
    const EDGE_WORDS: &[&str] = &["Outcome::Opened", "Outcome::Attached", "Outcome::Closed"];
    let found = lines(&file.text).filter(|(_, text)| EDGE_WORDS.iter().any(|word| text.contains(word)));
    let problem =
        |(line, _)| format!("{}:{line}: the edge decides about sessions: move it to crates/session", file.path);
    found.map(problem).collect()
}

/// The rules of a document: each is a heading of the third level, followed by a line that says who enforces it.
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
            problems
                .push(format!("{at}: rule `{name}` does not say by whom: add a line `Enforced by: core` or the like"));
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

/// The rules that a file cites after `marker`, with their lines. Several stand in a row with commas between them, and a
/// full stop, colon or bracket begins a remark. A marker in quotation marks speaks about citing and cites nothing.
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
        // The rules that a scenario is about are those of its first lines.
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

/// The lists of what a crate may not call must name the same paths; the reasons may differ.
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

fn opening_problem(file: &File) -> Option<String> {
    (file.path.ends_with(".rs") && !file.text.starts_with("//! ")).then(|| {
        format!("{}:1: open the file with `//!`: what it owns, what it refuses to do, why it exists", file.path)
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
                    .push(format!("{}:{line}: a path below `{home}`: say it relative to the repository", file.path));
            }
        }
    }
    problems
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
    assert_says(&problems("### fifo\nSome text.\n"), &["p.md:1:", "`fifo`", "by whom"]);
    assert_says(&problems("### fifo\nEnforced by: core, hope\n"), &["p.md:1:", "`hope`"]);
    assert_says(&problems("### a\nEnforced by: core\n### a\nEnforced by: core\n"), &["p.md:3:", "twice"]);
}

#[test]
fn a_rule_of_the_core_without_code_or_scenario_is_found() {
    let rules = [Rule { name: "fifo".to_owned(), line: 7, by_core: true }];
    let code = || file("crates/core/src/queue.rs", "//! Queues.\nlet a = 1; // Rule: fifo. Nobody is passed.\n");
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
fn a_library_that_brings_consensus_along_is_found() {
    assert!(
        weight_problems("fencepost v0.1.0 (/somewhere)\nprost v0.14.4\nrafter v1.0.0\nprotobuf v3.7.2\n").is_empty()
    );
    assert_says(&weight_problems("raft v0.7.0 (*)\n"), &["raft v0.7.0"]);
    assert_says(&weight_problems("protobuf v2.28.0\n"), &["protobuf v2.28.0"]);
}

#[test]
fn a_walk_with_a_file_that_is_gone_doubled_or_miscounted_is_found() {
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
fn a_rule_of_another_part_needs_neither() {
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
