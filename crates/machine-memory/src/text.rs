//! The `Key:   value kB` form that several files of `/proc` share.

/// Splits `Key:   value` lines; lines of another form are left out.
pub fn keys_and_values(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key, value.trim()))
}

/// `1234 kB` in bytes; `None` if it is not that.
pub fn kib_to_bytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}
