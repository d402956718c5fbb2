//! "Do you mean ...?" for a word that is not known. Clap does this for commands, flags and values of flags; this file does it for
//! keys of the file, environment variables and names of lock systems.

/// `; do you mean `listen-client`?`, or nothing if no known word is similar.
pub(crate) fn suggestion<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    closest(word, known).map(|known| format!("; do you mean `{known}`?")).unwrap_or_default()
}

/// The known word that is most similar, if one is.
pub(crate) fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &str| strsim::osa_distance(&plain(word), &plain(known));
    let (edits, known) = known.map(|known| (distance(known), known)).min()?;
    // One wrong letter in three: with more it is another word.
    (edits * 3 <= known.len()).then_some(known)
}

/// Lower case, and `-` for `_`.
fn plain(word: &str) -> String {
    word.replace('_', "-").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_recognised_and_another_word_is_not() {
        let known = ["server", "server-name", "listen-client", "ca"];
        let table = [
            ("servr", "; do you mean `server`?"),
            ("serevr", "; do you mean `server`?"),
            ("SERVER_NAME", "; do you mean `server-name`?"),
            ("listen_client", "; do you mean `listen-client`?"),
            ("colour", ""),
            ("xy", ""),
            ("", ""),
        ];
        for (word, expected) in table {
            assert_eq!(suggestion(word, known.into_iter()), expected, "{word}");
        }
    }
}
