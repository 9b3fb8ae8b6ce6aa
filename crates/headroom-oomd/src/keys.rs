//! Keys that nobody would read are refused, with the one that was probably meant.

use toml::de::DeTable;

use crate::config::Complaint;

/// Refuses keys that nobody would read, with the one that was probably meant.
pub(crate) fn only_keys(table: &DeTable, known: &[&str], place: &str) -> Result<(), Complaint> {
    let unknown = table.keys().find(|key| !known.contains(&key.get_ref().as_ref()));
    let Some(key) = unknown else { return Ok(()) };
    let name = key.get_ref();
    let hint = hint(name, known, place);
    Err((key.span(), format!("unknown key \"{name}\"; {hint}")))
}

/// The word that was probably meant, or all that `place` knows.
pub(crate) fn hint(word: &str, known: &[&str], place: &str) -> String {
    let nearest = known.iter().min_by_key(|known| distance(word, known));
    match nearest.filter(|known| distance(word, known) <= 2) {
        Some(known) => format!("did you mean \"{known}\"?"),
        None => format!("{place} knows \"{}\"", known.join("\", \"")),
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
