//! What a session's client says about itself.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// What a session's client says about itself, by key.
pub type Facts = BTreeMap<String, String>;

/// Reads the metadata of a session: `key=value` lines. Other clients may write anything, so this never fails: spaces around keys and
/// values do not count, bytes that are not UTF-8 are replaced, and a line without a key, without a value or without `=` is skipped.
/// If a key comes twice, the last one counts.
pub fn metadata(bytes: &[u8]) -> Facts {
    let text = String::from_utf8_lossy(bytes);
    let facts = text.split(['\n', '\r']).filter_map(|line| line.split_once('='));
    let facts =
        facts.map(|(key, value)| (key.trim_matches(is_blank).to_owned(), value.trim_matches(is_blank).to_owned()));
    facts.filter(|(key, value)| !key.is_empty() && !value.is_empty()).collect()
}

/// A space, or the mark with which some editors begin a file.
fn is_blank(character: char) -> bool {
    character.is_whitespace() || character == '\u{feff}'
}

/// What a client says about itself, for programs. The pid is a number.
pub fn client(facts: &Facts) -> Value {
    let value = |key: &str, value: &String| match value.parse::<u64>() {
        Ok(number) if key == "pid" => json!(number),
        _ => json!(value),
    };
    facts.iter().map(|(key, fact)| (key.clone(), value(key, fact))).collect()
}
