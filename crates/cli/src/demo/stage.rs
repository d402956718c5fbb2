//! Prints the demo: a time line with a lane for each worker, at most 100 columns wide, in ASCII.
//!
//! On a terminal it uses colours and pauses for reading; in a pipe neither. It knows nothing about locks.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::failure::Result;
use crate::output;

/// The column where the lanes begin. The time is left of it.
const MARGIN: usize = 10;
/// The width of A's lane.
const LANE: usize = 45;
/// How long a person needs to read a line.
const BEAT: Duration = Duration::from_millis(330);

/// The worker that a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    A,
    B,
}

/// What a line means to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// Less important.
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
    /// Whether a person reads along at a terminal.
    paced: bool,
    /// Whether A is paused. Then its lane is dotted.
    pub(crate) a_is_paused: bool,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let paced = std::io::stdout().is_terminal();
        Stage { began: Instant::now(), coloured: output::colours(), paced, a_is_paused: false }
    }

    /// Prints what a worker does now.
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

    /// Prints what happens to the nodes now.
    pub(crate) fn happens(&self, tone: Tone, text: &str) -> Result {
        self.timed(&self.paint(tone, text))
    }

    /// Prints the title of an act, what it is about, and the heads of the lanes.
    pub(crate) fn act(&self, title: &str, about: &str) -> Result {
        output::line(&format!("\n{}\n{:MARGIN$}{about}\n", self.paint(Tone::Bold, title), ""))?;
        let (a, b) = (self.paint_as("1;36", "worker A"), self.paint_as("1;33", "worker B"));
        output::line(&format!("{:MARGIN$}{a}{:gap$}{b}", "", "", gap = LANE - "worker A".len()))
    }

    /// Prints a conclusion.
    pub(crate) fn moral(&self, tone: Tone, text: &str) -> Result {
        output::line(&format!("{:MARGIN$}{}", "", self.paint(tone, text)))
    }

    /// Prints a line without a time.
    pub(crate) fn line(&self, tone: Tone, text: &str) -> Result {
        output::line(&self.paint(tone, text))
    }

    /// Gives a reader at a terminal time to read. The outcome never depends on it.
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
