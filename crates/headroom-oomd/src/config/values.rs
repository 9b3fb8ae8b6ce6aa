//! Keys and values of the configuration. Each error has a place in the text.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// An error at a place in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigDiagnostic {
    /// Range of the text that the error refers to, bytes.
    pub(crate) at: Range<usize>,
    pub(crate) message: String,
}

impl ConfigDiagnostic {
    pub(crate) fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// Rejects unknown keys. The error contains a hint.
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

/// Suggests the nearest known word within two edits, otherwise lists all words known in `place`.
pub(crate) fn hint(word: &str, known: &[&str], place: &str) -> String {
    let nearest = known.iter().min_by_key(|known| distance(word, known));
    match nearest.filter(|known| distance(word, known) <= 2) {
        Some(known) => format!("did you mean \"{known}\"?"),
        None => format!("{place} accepts \"{}\"", known.join("\", \"")),
    }
}

/// Edit distance (insertions, deletions, replacements) between two words.
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

pub(crate) fn truth(value: &Spanned<DeValue>) -> Result<bool, ConfigDiagnostic> {
    let wrong = || ConfigDiagnostic::new(value.span(), "expected true or false");
    value.get_ref().as_bool().ok_or_else(wrong)
}

/// The error of a value that is not a whole number of this range.
pub(crate) fn not_in_range(value: &Spanned<DeValue>, least: u64, most: u64) -> ConfigDiagnostic {
    let found = match value.get_ref().as_integer() {
        Some(integer) => integer.as_str().to_owned(),
        None => format!("a {}", value.get_ref().type_str()),
    };
    let message = format!("{found} is not a whole number from {least} to {most}");
    ConfigDiagnostic::new(value.span(), message)
}

/// A whole number up to `most`.
pub(crate) fn number(value: &Spanned<DeValue>, most: u64) -> Result<u64, ConfigDiagnostic> {
    let wrong = || not_in_range(value, 0, most);
    let number = value.get_ref().as_integer().ok_or_else(wrong)?;
    let number = u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())?;
    if number <= most { Ok(number) } else { Err(wrong()) }
}
