//! Diagnostics of the configuration: a place in the text, and what is wrong there.

use std::ops::Range;

use toml::de::DeTable;

/// An error at a place in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigDiagnostic {
    /// Bytes of the text that the error is about.
    pub(crate) at: Range<usize>,
    pub(crate) message: String,
}

impl ConfigDiagnostic {
    pub(crate) fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// Refuses unknown keys, and names the known one that is nearest.
pub(crate) fn only_keys(
    table: &DeTable,
    known: &[&str],
    place: &str,
) -> Result<(), ConfigDiagnostic> {
    let unknown = table.keys().find(|key| !known.contains(&key.get_ref().as_ref()));
    let Some(key) = unknown else { return Ok(()) };
    let name = key.get_ref();
    let hint = hint(name, known, place);
    Err(ConfigDiagnostic::new(key.span(), format!("unknown key \"{name}\"; {hint}")))
}

/// The nearest known word, or all words that `place` knows.
pub(crate) fn hint(word: &str, known: &[&str], place: &str) -> String {
    let nearest = known.iter().min_by_key(|known| distance(word, known));
    match nearest.filter(|known| distance(word, known) <= 2) {
        Some(known) => format!("did you mean \"{known}\"?"),
        None => format!("{place} accepts \"{}\"", known.join("\", \"")),
    }
}

/// Edits (insert, delete, replace) from one word to another.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}
