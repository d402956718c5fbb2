//! How the story looks: a time line with a lane for each worker, at most a hundred columns wide, in plain letters.
//!
//! Colours and a reading pace on a terminal; neither in a pipe. It knows nothing about locks.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::failure::Result;
use crate::output;

/// Where the lanes begin, left of them the time.
const MARGIN: usize = 10;
/// How wide the lane of A is.
const LANE: usize = 45;
/// A line of the story is read in so long.
const BEAT: Duration = Duration::from_millis(330);

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    A,
    B,
}

/// What a line means to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// Not to be looked at first.
    Quiet,
    Bold,
    Good,
    Bad,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Quiet => "2",
            Tone::Bold => "1",
            Tone::Good => "1;32",
            Tone::Bad => "1;31",
        }
    }
}

pub(crate) struct Stage {
    began: Instant,
    coloured: bool,
    /// Somebody reads along.
    paced: bool,
    /// A stands still: its lane is dotted.
    pub(crate) a_is_paused: bool,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let paced = std::io::stdout().is_terminal();
        Stage { began: Instant::now(), coloured: output::colours(), paced, a_is_paused: false }
    }

    /// Something that a worker does now.
    pub(crate) fn does(&self, lane: Lane, tone: Tone, text: &str) -> Result {
        let (a, b) = match lane {
            Lane::A => (text, ""),
            Lane::B => ("", text),
        };
        let bar_a = if self.a_is_paused { self.paint(Tone::Quiet, ":") } else { self.paint_as("36", "|") };
        let bar_b = self.paint_as("33", "|");
        let gap = " ".repeat(LANE.saturating_sub(a.len() + 2));
        let line = format!("{bar_a} {}{gap}{bar_b} {}", self.paint(tone, a), self.paint(tone, b));
        self.timed(line.trim_end())
    }

    /// Something that happens to the nodes now.
    pub(crate) fn happens(&self, tone: Tone, text: &str) -> Result {
        self.timed(&self.paint(tone, text))
    }

    /// The title of an act, what it is about, and the heads of the lanes.
    pub(crate) fn act(&self, title: &str, about: &str) -> Result {
        output::line(&format!("\n{}\n{:MARGIN$}{about}\n", self.paint(Tone::Bold, title), ""))?;
        let (a, b) = (self.paint_as("1;36", "worker A"), self.paint_as("1;33", "worker B"));
        output::line(&format!("{:MARGIN$}{a}{:gap$}{b}", "", "", gap = LANE - "worker A".len()))
    }

    /// What follows from it.
    pub(crate) fn moral(&self, tone: Tone, text: &str) -> Result {
        output::line(&format!("{:MARGIN$}{}", "", self.paint(tone, text)))
    }

    /// A line without a time.
    pub(crate) fn line(&self, tone: Tone, text: &str) -> Result {
        output::line(&self.paint(tone, text))
    }

    /// Gives a reader on a terminal time to read. Nothing waits for anything here.
    pub(crate) async fn beat(&self) {
        if self.paced {
            tokio::time::sleep(BEAT).await;
        }
    }

    fn timed(&self, text: &str) -> Result {
        let time = format!("{:>6.1} s  ", self.began.elapsed().as_secs_f64());
        output::line(&format!("{}{text}", self.paint(Tone::Quiet, &time)))
    }

    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        self.paint_as(tone.code(), text)
    }

    fn paint_as(&self, code: &str, text: &str) -> String {
        if self.coloured && !code.is_empty() && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
