//! Renamed options: the old name is accepted, with a hint, for one release.

/// The value given under the old name, if any. Prints the new name.
pub fn renamed<'a, T>(old: &str, value: Option<&'a T>, new: &str) -> Option<&'a T> {
    if value.is_some() {
        eprintln!("option {old} is deprecated: use {new}");
    }
    value
}
