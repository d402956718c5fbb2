//! One case: what each stream does, and what it receives. Runs the case over frames and over gRPC, renders the two records as one
//! text, and compares it with the golden file.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

/// The protocol of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Frames,
    Grpc,
}

const BOTH: [Door; 2] = [Door::Frames, Door::Grpc];

/// The record of a case at one door.
pub(crate) struct Story {
    pub(crate) door: Door,
    steps: RefCell<Vec<Step>>,
    /// Texts that differ from run to run, and the names that stand in the golden file instead.
    names: RefCell<Vec<(String, String)>>,
    /// A line that contains this text is cut behind it.
    cut_behind: Cell<Option<&'static str>>,
    last_session: Cell<u128>,
}

#[derive(PartialEq, Eq)]
struct Step {
    /// What a stream does.
    done: String,
    /// What it receives then, one line each.
    received: Vec<String>,
}

/// One thing that a stream received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The subject: a session, the stream, or a call.
    pub(crate) about: String,
    /// The number of the request that it answers, if there is one.
    pub(crate) number: Option<u64>,
    pub(crate) text: String,
}

impl Line {
    pub(crate) fn of_stream(text: impl Into<String>) -> Line {
        Line { about: "stream".to_owned(), number: None, text: text.into() }
    }
}

impl Story {
    fn new(door: Door) -> Rc<Story> {
        let (steps, names, last_session) = (RefCell::default(), RefCell::default(), Cell::new(1 << 32));
        Rc::new(Story { door, steps, names, cut_behind: Cell::new(None), last_session })
    }

    /// A record for streams that are not part of the golden file. They speak frames.
    pub(crate) fn unheard() -> Rc<Story> {
        Story::new(Door::Frames)
    }

    /// Replaces this text, for example an address, by a name in the golden file.
    pub(crate) fn call(&self, text: impl ToString, name: &str) {
        let mut names = self.names.borrow_mut();
        names.push((text.to_string(), name.to_owned()));
        // Longest first, because an address can be the beginning of a longer one.
        names.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    }

    /// Leaves out of the golden file what follows this text in a line, because it depends on timing.
    pub(crate) fn cut_behind(&self, text: &'static str) {
        self.cut_behind.set(Some(text));
    }

    /// The id of a session that no case has used.
    pub(crate) fn fresh_session(&self) -> u128 {
        self.last_session.update(|last| last + 1);
        self.last_session.get()
    }

    pub(crate) fn record(&self, done: String, received: &[Line]) {
        let received = fold(received).into_iter().map(|line| self.stable(line)).collect();
        self.steps.borrow_mut().push(Step { done, received });
    }

    /// The text without the parts that differ from run to run.
    fn stable(&self, mut text: String) -> String {
        for (found, name) in self.names.borrow().iter() {
            text = text.replace(found, name);
        }
        if let Some(cut) = self.cut_behind.get()
            && let Some((before, _)) = text.split_once(cut)
        {
            text = format!("{before}{cut} ...");
        }
        let text = hide_number(&text, "LogicalMs(", "STAMP");
        hide_number(&text, " silent for ", "SECONDS")
    }
}

/// Replaces the number behind each `before`.
fn hide_number(text: &str, before: &str, name: &str) -> String {
    let mut parts = text.split(before);
    let mut hidden = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        hidden = hidden + before + name + part.trim_start_matches(|it: char| it.is_ascii_digit());
    }
    hidden
}

/// One text for each line; a run of requests with the same answer becomes one text.
fn fold(lines: &[Line]) -> Vec<String> {
    let is_run = |one: &Line, next: &Line| {
        let is_next = one.number.is_some_and(|number| next.number == Some(number + 1));
        is_next && (&one.about, &one.text) == (&next.about, &next.text)
    };
    let mut texts = Vec::new();
    for run in lines.chunk_by(is_run) {
        let Line { about, number, text } = &run[0];
        texts.push(match (number, run.last().and_then(|last| last.number)) {
            (Some(first), Some(last)) if first != &last => format!("{about}, requests {first} to {last}: {text}"),
            (Some(number), _) => format!("{about}, request {number}: {text}"),
            (None, _) => format!("{about}: {text}"),
        });
    }
    texts
}

/// Runs a case through both doors and compares the record with the golden file of this name. `about` are the lines of its headline.
pub(crate) async fn golden(name: &str, about: &[&str], case: impl AsyncFn(Rc<Story>)) {
    golden_at(&BOTH, name, about, case).await;
}

/// The same for a case that exists for one door only.
pub(crate) async fn golden_at(doors: &[Door], name: &str, about: &[&str], case: impl AsyncFn(Rc<Story>)) {
    let mut told = Vec::new();
    for door in doors {
        let story = Story::new(*door);
        case(story.clone()).await;
        told.push(story.steps.take());
    }
    let mut text: String = about.iter().map(|line| format!("# {line}\n")).collect();
    if let [door] = doors {
        text += &format!("# Only over {}.\n", label(*door));
    }
    text += "\n";
    match &told[..] {
        [alone] => alone.iter().for_each(|step| write_step(&mut text, step, None)),
        [frames, grpc] => write_both(&mut text, frames, grpc),
        _ => unreachable!("a case has one or two doors"),
    }
    compare(name, &text);
}

fn label(door: Door) -> &'static str {
    match door {
        Door::Frames => "frames",
        Door::Grpc => "gRPC",
    }
}

/// Writes a step once if both doors gave the same.
fn write_both(text: &mut String, frames: &[Step], grpc: &[Step]) {
    assert_eq!(frames.len(), grpc.len(), "a case takes the same steps at both doors");
    for (frames, grpc) in frames.iter().zip(grpc) {
        assert_eq!(frames.done, grpc.done, "a case takes the same steps at both doors");
        write_step(text, frames, (frames != grpc).then_some(&grpc.received));
    }
}

fn write_step(text: &mut String, step: &Step, over_grpc: Option<&Vec<String>>) {
    *text += &format!("{}\n", step.done);
    match over_grpc {
        None => step.received.iter().for_each(|line| *text += &format!("    {line}\n")),
        Some(over_grpc) => {
            step.received.iter().for_each(|line| *text += &format!("    over frames: {line}\n"));
            over_grpc.iter().for_each(|line| *text += &format!("    over gRPC:   {line}\n"));
        }
    }
}

fn compare(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    if std::env::var_os("FENCEPOST_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, text).expect("the directory is there");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{name}: {error}. Take it from version control; main.rs says how a new one is written")
    });
    for (at, (expected, found)) in (1..).zip(expected.lines().zip(text.lines())) {
        assert_eq!(found, expected, "{name}.txt:{at}");
    }
    assert_eq!(text, expected, "{name}.txt has another length");
}
