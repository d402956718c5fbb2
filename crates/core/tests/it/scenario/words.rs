//! Splits a line of a scenario into words, and reads numbers, times, names and modes.
//!
//! Every error says what was expected and what was found, so that a mistake in a scenario is easy to find.

use fencepost_core::{BadWord, JobKey, LockMode, LogicalMs, Millis, Name, Permits, Ttl};

/// An error in a command, as text.
pub(crate) type Bad = String;

/// The words of a line that are not read yet.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    words: std::collections::VecDeque<Word>,
}

#[derive(Clone, Debug, PartialEq)]
struct Word {
    text: String,
    quoted: bool,
}

impl Words {
    /// Splits at spaces; a text in double quotes is one word.
    pub(crate) fn new(line: &str) -> Result<Words, Bad> {
        let mut words = std::collections::VecDeque::new();
        let mut rest = line.trim();
        while !rest.is_empty() {
            let (word, after) = match rest.strip_prefix('"') {
                Some(quoted) => {
                    let end = quoted.find('"').ok_or("a quote is not closed")?;
                    (Word { text: quoted[..end].to_string(), quoted: true }, &quoted[end + 1..])
                }
                None => {
                    let end = rest.find(' ').unwrap_or(rest.len());
                    (Word { text: rest[..end].to_string(), quoted: false }, &rest[end..])
                }
            };
            words.push_back(word);
            rest = after.trim_start();
        }
        Ok(Words { words })
    }

    /// Whether all words are read.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The next word, unread.
    pub(crate) fn peek(&self) -> Option<&str> {
        self.words.front().filter(|word| !word.quoted).map(|word| word.text.as_str())
    }

    /// Reads the next word if it is this one.
    pub(crate) fn take(&mut self, keyword: &str) -> bool {
        let found = self.peek() == Some(keyword);
        if found {
            self.words.pop_front();
        }
        found
    }

    /// Reads this word, or fails.
    pub(crate) fn expect(&mut self, keyword: &str) -> Result<(), Bad> {
        if self.take(keyword) { Ok(()) } else { Err(format!("expected '{keyword}', found {}", self.found())) }
    }

    /// Reads a word.
    pub(crate) fn word(&mut self, what: &str) -> Result<String, Bad> {
        let found = self.found();
        match self.words.pop_front() {
            Some(word) if !word.quoted => Ok(word.text),
            _ => Err(format!("expected {what}, found {found}")),
        }
    }

    /// Reads a text in quotes.
    pub(crate) fn quoted(&mut self, what: &str) -> Result<String, Bad> {
        let found = self.found();
        match self.words.pop_front() {
            Some(word) if word.quoted => Ok(word.text),
            _ => Err(format!("expected {what} in quotes, found {found}")),
        }
    }

    /// Reads a word or a text in quotes.
    pub(crate) fn text(&mut self, what: &str) -> Result<String, Bad> {
        self.words.pop_front().map(|word| word.text).ok_or(format!("expected {what}, found the end of the line"))
    }

    /// Reads a number.
    pub(crate) fn number(&mut self, what: &str) -> Result<u64, Bad> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("expected {what}, found '{word}'"))
    }

    /// Reads a duration.
    pub(crate) fn duration(&mut self) -> Result<Millis, Bad> {
        let word = self.word("a duration")?;
        duration(&word).ok_or(format!("expected a duration such as 5s or 250ms, found '{word}'"))
    }

    /// Reads a stamp.
    pub(crate) fn stamp(&mut self) -> Result<LogicalMs, Bad> {
        Ok(LogicalMs(self.duration()?.get()))
    }

    /// Reads a time to live.
    pub(crate) fn ttl(&mut self) -> Result<Ttl, Bad> {
        Ttl::new(self.duration()?.get()).map_err(bad)
    }

    /// Reads a number of permits.
    pub(crate) fn permits(&mut self) -> Result<Permits, Bad> {
        let number = self.number("a number of permits")?;
        Permits::new(u32::try_from(number).map_err(|_| format!("{number} permits are too many"))?).map_err(bad)
    }

    /// Reads a resource name.
    pub(crate) fn name(&mut self) -> Result<Name, Bad> {
        Name::new(&self.word("a resource name")?).map_err(bad)
    }

    /// Reads a job's key.
    pub(crate) fn key(&mut self) -> Result<JobKey, Bad> {
        JobKey::new(&self.quoted("a job's key")?).map_err(bad)
    }

    /// Reads a mode that a user may ask for.
    pub(crate) fn mode(&mut self) -> Result<LockMode, Bad> {
        let word = self.word("a mode")?;
        mode(&word).ok_or(format!("expected S, U or X, found '{word}'"))
    }

    /// Fails if something is left over.
    pub(crate) fn end(&self) -> Result<(), Bad> {
        if self.is_empty() { Ok(()) } else { Err(format!("did not expect {}", self.found())) }
    }

    fn found(&self) -> String {
        self.words.front().map_or("the end of the line".to_string(), |word| format!("'{}'", word.text))
    }
}

/// The error text of a word that the core refused.
pub(crate) fn bad(word: BadWord) -> Bad {
    word.to_string()
}

/// `5s`, `250ms`, `1m` or `1h`.
pub(crate) fn duration(word: &str) -> Option<Millis> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    let (number, unit_ms) = units.iter().find_map(|(unit, ms)| Some((word.strip_suffix(unit)?, ms)))?;
    Millis::new(number.parse::<u64>().ok()?.checked_mul(*unit_ms)?).ok()
}

/// `S`, `U` or `X`.
pub(crate) fn mode(word: &str) -> Option<LockMode> {
    match word {
        "S" => Some(LockMode::Shared),
        "U" => Some(LockMode::Update),
        "X" => Some(LockMode::Exclusive),
        _ => None,
    }
}

/// A stamp or a duration as people write it: `5s`, `4999ms`.
pub(crate) fn time(ms: u64) -> String {
    if ms.is_multiple_of(1_000) { format!("{}s", ms / 1_000) } else { format!("{ms}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_times_and_quotes() {
        let mut words = Words::new(r#"a set r "two words" 250ms"#).unwrap();
        assert_eq!(words.word("a session").unwrap(), "a");
        assert!(words.take("set"));
        assert_eq!(words.name().unwrap().as_str(), "r");
        assert_eq!(words.quoted("a value").unwrap(), "two words");
        assert_eq!(words.duration().unwrap().get(), 250);
        assert!(words.end().is_ok());
        assert_eq!(words.mode().unwrap_err(), "expected a mode, found the end of the line");
        assert!(Words::new("\"open").is_err());
        assert_eq!((time(5_000), time(4_999), time(0)), ("5s".into(), "4999ms".into(), "0s".into()));
    }
}
