//! The `Key:   value kB` form that several files of `/proc` share.

/// Splits `Key:   value` lines; lines of another form are left out.
pub fn keys_and_values(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key, value.trim()))
}

/// `1234 kB` in bytes; `None` for any other form.
pub fn kib_to_bytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The value of a key.
pub fn value_of<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    keys_and_values(text).find_map(|(name, value)| (name == key).then_some(value))
}

/// The value of a key with an amount of memory, in bytes.
pub fn bytes_of(text: &str, key: &str) -> Option<u64> {
    kib_to_bytes(value_of(text, key)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_key_and_counts_only_with_its_unit() {
        let text = "VmRSSX:\t  1 kB\nVmRSS:\t  4260 kB\nThreads:\t3\n";
        assert_eq!((value_of(text, "Threads"), value_of(text, "Vm")), (Some("3"), None));
        assert_eq!(bytes_of(text, "VmRSS"), Some(4260 << 10));
        assert_eq!((bytes_of(text, "Threads"), bytes_of(text, "VmSwap")), (None, None));
    }
}
