//! A scenario file as text: comments, steps with their expected output, and resets, in order and with line numbers.
//!
//! A file that is parsed and rendered again is the same except for blank lines, so that recording changes only outputs.
//! Nothing here knows what a command means.

/// A piece of a scenario file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    /// A comment line, with its `#`.
    Comment(String),
    /// Starts again with an empty state.
    Reset,
    /// A step.
    Step(Step),
}

/// Commands, or a question, with the expected output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// The number of its first line, from one.
    pub(crate) line: usize,
    /// The lines above the ruler.
    pub(crate) input: Vec<String>,
    /// The expected output: the lines below the ruler.
    pub(crate) expected: Vec<String>,
}

/// A syntax error and its line.
#[derive(Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) line: usize,
    pub(crate) what: String,
}

/// The line between the input of a step and its output.
const RULER: &str = "----";

/// The pieces of a file, without blank lines.
pub(crate) fn parse(text: &str) -> Result<Vec<Piece>, Problem> {
    let mut pieces = Vec::new();
    let mut lines = text.lines().map(str::trim_end).zip(1..);
    while let Some((first, line)) = lines.next() {
        if first.is_empty() {
            continue;
        }
        if first.starts_with('#') {
            pieces.push(Piece::Comment(first.to_string()));
            continue;
        }
        if first == "reset" {
            pieces.push(Piece::Reset);
            continue;
        }
        let mut step = Step { line, input: vec![first.to_string()], expected: Vec::new() };
        loop {
            match lines.next() {
                Some((RULER, _)) => break,
                Some((more, _)) if !more.is_empty() => step.input.push(more.trim_start().to_string()),
                _ => return Err(Problem { line, what: format!("no '{RULER}' under this step") }),
            }
        }
        step.expected.extend(lines.by_ref().map(|(text, _)| text.to_string()).take_while(|text| !text.is_empty()));
        pieces.push(Piece::Step(step));
    }
    Ok(pieces)
}

/// The number of lines at the top that name the file's rules.
pub(crate) fn rules(pieces: &[Piece]) -> usize {
    pieces.iter().take_while(|piece| matches!(piece, Piece::Comment(text) if text.starts_with("# Rule: "))).count()
}

/// The pieces as text.
pub(crate) fn render(pieces: &[Piece]) -> String {
    let mut text = String::new();
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Comment(comment) => {
                text.push_str(comment);
                text.push('\n');
                // A comment stands directly above its step. Only a comment before a reset has a blank line after it.
                if matches!(pieces.get(at + 1), Some(Piece::Reset)) {
                    text.push('\n');
                }
            }
            Piece::Reset => text.push_str("reset\n\n"),
            Piece::Step(step) => {
                for line in
                    step.input.iter().map(String::as_str).chain([RULER]).chain(step.expected.iter().map(String::as_str))
                {
                    text.push_str(line);
                    text.push('\n');
                }
                if at + 1 < pieces.len() {
                    text.push('\n');
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# Rule: fifo\n# Rule: wait\n# A story.\nopen a\n----\na: opened\n\nreset\n\n# Again.\nafter 5s\nopen a\n----\na: opened\n";

    #[test]
    fn a_parsed_file_renders_to_the_same_text() {
        let pieces = parse(FILE).unwrap();
        assert_eq!(render(&pieces), FILE);
        assert_eq!(rules(&pieces), 2);
        let Piece::Step(last) = pieces.last().unwrap() else { panic!("the last piece is a step") };
        assert_eq!((last.line, last.input.len(), last.expected.len()), (11, 2, 1));
    }

    #[test]
    fn a_step_without_a_ruler_is_reported_with_its_line() {
        assert_eq!(parse("# x\nopen a\n\n").unwrap_err().line, 2);
        assert_eq!(parse("open a").unwrap_err().line, 1);
    }
}
