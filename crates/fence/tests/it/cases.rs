//! The cases of other languages. Their guards for SQLite run the rules in their own process, so there is a second copy of [`rules`].
//! This file plays histories by the rules, and writes the steps and their verdicts to a file. The Python package plays that file
//! against its copy of the rules, and against real stores.
//!
//! The file also has the tables of SQLite, which other languages create as well, and texts that are names or keys, and that are not.
//!
//! The test fails if the file is not what the rules say now. After a change of the rules, this command writes it:
//!
//! ```text
//! FENCEPOST_WRITE_CASES=1 cargo test -p fencepost-fence --features full --test it cases
//! ```
//!
//! [`rules`]: fencepost_fence::rules
#![cfg(feature = "sqlite")]

use std::collections::BTreeMap;
use std::path::Path;

use fencepost_core::JobKey;
use fencepost_fence::rules::{MarkTable, Shown, Stale, Use};
use fencepost_fence::{Access, Before, Error, Name, Token, sqlite};
use serde_json::{Value, json};

use crate::suite::{AnyAccess, NAMES, Random, random_access, reader, writer};

const FILE: &str = "../../sdk/python/tests/fence_cases.json";

/// Few enough that the file stays small, and enough that each kind of step is refused often.
const HISTORIES: u64 = 14;
const STEPS: u64 = 110;
const KEYS: [&str; 4] = ["2026-11", "2026-11 ", "it's %_\\ \"quoted\" ü", "2026-11/40"];

/// Stories that a person can read. Each line is one transaction. `+` joins several names to one access. `!` means that it is refused.
const STORIES: &[(&str, &str)] = &[
    (
        "rising and equal pass, and stale is refused",
        "write wallet 5
         write wallet 5
         write wallet 7
         !write wallet 5
         !write wallet 6
         !claim wallet 6
         write another 5
         write wallet 9007199254740991
         !write wallet 9007199254740990",
    ),
    (
        "a claim shuts out older writers before anything is written",
        "claim wallet 5
         write wallet 5
         claim wallet 7
         !write wallet 5
         write wallet 7",
    ),
    (
        "readers share and shut out older writers",
        "write wallet 5
         read wallet 8
         read wallet 7
         !write wallet 7
         write wallet 9
         !read wallet 8
         read wallet 9",
    ),
    (
        "a write is refused if anything that it was decided from is stale",
        "read price 4
         claim order 5
         write price 6
         !write order 5 + read price 4
         write order 5 + read price 6
         !write order 4 + read price 5
         !claim price 7 + claim order 4
         claim price 7 + claim order 7
         write price 7 + write order 7",
    ),
    (
        "a name that is shown twice is checked before any mark moves",
        "write a 6 + read a 5
         read a 6
         !read a 5
         write /a/b 6 + read /a 5",
    ),
    (
        "a holder of a path shuts out older holders below it but not its neighbours",
        "claim /a/b 5
         claim /a 7
         !write /a/b 5
         write /c/b 5
         write /a/b 7
         write /a/c 8
         write /a/b 7
         write /ab 1
         write a/b 1",
    ),
    (
        "a token seen below a path shuts out an older holder of the path",
        "claim /a 5
         read /a/b 7
         !write /a 5
         !write /a/b 5
         write /a/c 5",
    ),
    (
        "a reader of a path is refused after a newer write below or above",
        "read /a/b 5
         write /a/b/c 6
         !read /a/b 5
         read /a/b 6
         write /a 7
         !read /a/b 6",
    ),
    (
        "forgotten marks leave the base floor behind",
        "write old 5
         write young 9
         forget below 8
         !write old 7
         !write never-seen 7
         !read /a/path 7
         write never-seen 8
         !write young 8
         write young 9
         forget below 3
         !write old 7",
    ),
    (
        "the second transaction with a key is refused",
        "once billing 2026-11 5
         !once billing 2026-11 5
         !once billing 2026-11 7
         !once billing 2026-11 5
         once billing 2026-12 5
         once shipping 2026-11 5",
    ),
    (
        "a late holder records no key",
        "claim billing 7
         !once billing 2026-11 5
         once billing 2026-11 7
         forget below 9
         !once billing 2026-12 8
         !once billing 2026-11 9
         once billing 2026-12 9",
    ),
];

/// One transaction.
enum Step {
    Show(Vec<Shown>),
    Once { name: Name, key: String, token: Token },
    ForgetBelow(Token),
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Admitted,
    Stale(Stale),
    Before(Before),
    Forgotten { names: u64, base: Token },
}

/// The rules, with the keys of finished work beside the marks.
#[derive(Clone, Default)]
struct Model {
    table: MarkTable,
    keys: BTreeMap<(Name, String), Token>,
}

impl Model {
    fn play(&mut self, step: &Step) -> Verdict {
        let admitted = |outcome: Result<(), Stale>| outcome.map_or_else(Verdict::Stale, |()| Verdict::Admitted);
        match step {
            Step::Show(shown) => admitted(self.table.admit(shown)),
            Step::ForgetBelow(floor) => {
                let names = self.table.forget_below(*floor) as u64;
                Verdict::Forgotten { names, base: self.table.base() }
            }
            Step::Once { name, key, token } => {
                let before = self.clone();
                let shown = Shown { name: name.clone(), token: *token, used_to: Use::Write };
                let verdict = admitted(self.table.admit(&[shown]));
                let recorded = self.keys.get(&(name.clone(), key.clone())).copied();
                let (Verdict::Admitted, Some(recorded)) = (&verdict, recorded) else {
                    if verdict == Verdict::Admitted {
                        self.keys.insert((name.clone(), key.clone()), *token);
                    }
                    return verdict;
                };
                // The caller rolls back, and the marks with it.
                *self = before;
                let own = recorded == *token;
                Verdict::Before(Before { name: name.clone(), key: key.clone(), token: recorded, own })
            }
        }
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

fn number(text: &str) -> Token {
    Token(text.parse().expect("a number"))
}

/// The steps of a story, and which of them are refused.
fn steps_of(story: &str) -> Vec<(Step, bool)> {
    let one = |text: &str| match text.split_whitespace().collect::<Vec<_>>()[..] {
        [used_to, at, token] => {
            let used_to = match used_to {
                "read" => Use::Read,
                "claim" => Use::Claim,
                "write" => Use::Write,
                other => panic!("{other} is no use"),
            };
            Shown { name: name(at), token: number(token), used_to }
        }
        _ => panic!("cannot play {text:?}"),
    };
    let step = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["forget", "below", floor] => Step::ForgetBelow(number(floor)),
        ["once", at, key, token] => Step::Once { name: name(at), key: key.to_owned(), token: number(token) },
        _ => Step::Show(line.split('+').map(one).collect()),
    };
    let lines = story.lines().map(str::trim);
    lines.map(|line| (step(line.trim_start_matches('!')), line.starts_with('!'))).collect()
}

/// The random accesses that the stores of this crate are tested with, and keys.
fn random_steps(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut steps = Vec::new();
    for step in 0..STEPS {
        steps.push(if step % 40 == 39 {
            Step::ForgetBelow(Token(step / 2))
        } else if random.below(4) == 0 {
            // Every second name, so that the same pair of a name and a key comes again.
            let (at, key) = (NAMES[1 + 2 * random.below(NAMES.len() / 2)], KEYS[random.below(KEYS.len())]);
            let token = Token(1 + (step + random.below(40) as u64).saturating_sub(10));
            Step::Once { name: name(at), key: key.to_owned(), token }
        } else {
            Step::Show(random_access(&mut random, step, true).shown().to_vec())
        });
    }
    steps
}

/// Plays a step against the guard of SQLite, in a transaction of its own.
fn play_in_sqlite(database: &mut rusqlite::Connection, step: &Step) -> Verdict {
    if let Step::ForgetBelow(floor) = step {
        let forgotten = sqlite::forget_below(database, *floor).expect("it serves");
        return Verdict::Forgotten { names: forgotten.names, base: forgotten.base };
    }
    let transaction = database.transaction().expect("there is no other transaction");
    let outcome = match step {
        Step::Once { name, key, token } => sqlite::once(&transaction, name.as_str(), key, writer(token.0)),
        Step::Show(shown) => match access_of(shown) {
            AnyAccess::Reads(access) => sqlite::admit(&transaction, &access),
            AnyAccess::Claims(access) => sqlite::admit(&transaction, &access),
            AnyAccess::Writes(access) => sqlite::admit(&transaction, &access),
        },
        Step::ForgetBelow(_) => unreachable!("see above"),
    };
    match outcome {
        Ok(()) => {
            transaction.commit().expect("it is the only writer");
            Verdict::Admitted
        }
        Err(Error::Stale(stale)) => Verdict::Stale(stale),
        Err(Error::Before(before)) => Verdict::Before(before),
        Err(other) => panic!("{other}"),
    }
}

/// The access that shows this. The first name decides which kind it is.
fn access_of(shown: &[Shown]) -> AnyAccess {
    let (first, rest) = shown.split_first().expect("an access shows something");
    let (at, token) = (first.name.as_str(), first.token.0);
    let reads = |access, one: &Shown| Access::and_read(access, one.name.as_str(), reader(one.token.0));
    match first.used_to {
        Use::Read => AnyAccess::Reads(rest.iter().fold(Access::read(at, reader(token)), reads)),
        Use::Claim => AnyAccess::Claims(rest.iter().fold(Access::claim(at, writer(token)), |access, one| {
            if one.used_to == Use::Read {
                return access.and_read(one.name.as_str(), reader(one.token.0));
            }
            access.and_claim(one.name.as_str(), writer(one.token.0))
        })),
        Use::Write => AnyAccess::Writes(rest.iter().fold(Access::write(at, writer(token)), |access, one| {
            if one.used_to == Use::Read {
                return access.and_read(one.name.as_str(), reader(one.token.0));
            }
            access.and_write(one.name.as_str(), writer(one.token.0))
        })),
    }
}

/// Plays a history by the rules and against SQLite, which must agree, and returns it as lines of JSON.
fn lines_of(history: &str, steps: impl IntoIterator<Item = (Step, Option<bool>)>) -> Vec<String> {
    let mut model = Model::default();
    let mut database = rusqlite::Connection::open_in_memory().expect("memory");
    sqlite::install(&mut database).expect("a database of our own");
    let line = |(at, (step, refused)): (usize, (Step, Option<bool>))| {
        let verdict = model.play(&step);
        assert_eq!(play_in_sqlite(&mut database, &step), verdict, "{history}, step {at}");
        if let Some(refused) = refused {
            let is_refused = matches!(verdict, Verdict::Stale(_) | Verdict::Before(_));
            assert_eq!(is_refused, refused, "{history}, step {at}: {verdict:?}");
        }
        json_of(&step, &verdict).to_string()
    };
    steps.into_iter().enumerate().map(line).collect()
}

fn json_of(step: &Step, verdict: &Verdict) -> Value {
    let mut line = match step {
        Step::Show(shown) => {
            let used_to = |one: &Shown| format!("{:?}", one.used_to).to_lowercase();
            let shown: Value = shown.iter().map(|one| json!([used_to(one), one.name.as_str(), one.token.0])).collect();
            json!({ "show": shown })
        }
        Step::Once { name, key, token } => json!({ "once": [name.as_str(), key, token.0] }),
        Step::ForgetBelow(floor) => json!({ "forget_below": floor.0 }),
    };
    let (verdict, said) = match verdict {
        Verdict::Admitted => return line,
        Verdict::Stale(stale) => {
            ("stale", json!([stale.name.as_str(), stale.token.0, stale.at.as_str(), stale.highest.0]))
        }
        Verdict::Before(before) => ("recorded", json!([before.token.0, before.own])),
        Verdict::Forgotten { names, base } => ("forgotten", json!([names, base.0])),
    };
    line[verdict] = said;
    line
}

/// Texts that are names or keys, and texts that are not. The constructors decide which.
fn words() -> Value {
    let long = |unit: &str, times: usize| unit.repeat(times);
    let texts = [
        "a".to_owned(),
        "orders/42".to_owned(),
        "a//b/".to_owned(),
        "/a/b".to_owned(),
        " ".to_owned(),
        "／a".to_owned(),
        "😀".to_owned(),
        "\u{2028}".to_owned(),
        "\u{200b}".to_owned(),
        long("ü", 128),
        long("ü", 128) + "n",
        long("ü", 256),
        long("ü", 256) + "n",
        long("/a", 16),
        long("/a", 17),
        String::new(),
        "/".to_owned(),
        "/a/".to_owned(),
        "/a//b".to_owned(),
        "//a".to_owned(),
        "a\nb".to_owned(),
        "a\0".to_owned(),
        "\u{7f}".to_owned(),
        "\u{85}".to_owned(),
        "\u{9f}".to_owned(),
    ];
    let sorted = |valid: &dyn Fn(&str) -> bool| {
        let (good, bad): (Vec<&String>, Vec<&String>) = texts.iter().partition(|text| valid(text));
        assert!(good.len() > 5 && bad.len() > 5, "both happen");
        json!({ "invalid": bad, "valid": good })
    };
    json!({ "keys": sorted(&|text| JobKey::new(text).is_ok()), "names": sorted(&|text| Name::new(text).is_ok()) })
}

/// The whole file. One step is one line, so that a change of the rules can be read as a difference of lines. The keys of each object are
/// in alphabetical order, because serde_json sorts them, or keeps their order, by the features that other crates turn on.
fn cases() -> String {
    let stories = STORIES.iter().map(|(title, story)| {
        let steps = steps_of(story).into_iter().map(|(step, refused)| (step, Some(refused)));
        (title.to_string(), lines_of(title, steps))
    });
    let random = (1..=HISTORIES).map(|seed| {
        let title = format!("random history {seed}");
        let lines = lines_of(&title, random_steps(seed).into_iter().map(|step| (step, None)));
        (title, lines)
    });
    let histories: Vec<String> = stories
        .chain(random)
        .map(|(title, lines)| format!("{{\"history\": {}, \"steps\": [\n{}\n]}}", json!(title), lines.join(",\n")))
        .collect();
    let about = "Written by crates/fence/tests/it/cases.rs from the rules of the guards. Its first lines say how to write it again.";
    format!(
        "{{\n\"about\": {},\n\"sqlite\": {},\n\"words\": {},\n\"histories\": [\n{}\n]\n}}\n",
        json!(about),
        json!({ "script": sqlite::SCRIPT, "version": sqlite::VERSION }),
        words(),
        histories.join(",\n"),
    )
}

// Rule: fence, fence-hierarchy, claim-before-read, fence-gc, once
#[test]
fn the_cases_of_other_languages_say_what_the_rules_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let expected = cases();
    for verdict in ["\"stale\"", "\"recorded\"", "\"forgotten\""] {
        assert!(expected.matches(verdict).count() > 10, "{verdict} happens often");
    }
    if std::env::var_os("FENCEPOST_WRITE_CASES").is_some() {
        std::fs::write(&path, &expected).expect("the file can be written");
    }
    let found = std::fs::read_to_string(&path).expect("the file is there: see the top of this test");
    for (at, (found, expected)) in (1..).zip(found.lines().zip(expected.lines())) {
        assert_eq!(found, expected, "{FILE}:{at}: the top of this test says how to write the file again");
    }
    assert_eq!(found.len(), expected.len(), "{FILE} has another length");
}
