//! Points in time and durations in human-readable form.

use std::time::Duration;

/// `2026-11-20 14:03:22.123` in local time, from microseconds since the epoch.
pub fn point(micros: u64) -> String {
    let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
    // SAFETY: all-zero is a valid tm: numbers and a null pointer.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of ours; a null result leaves `local` as it was.
    if unsafe { libc::localtime_r(&seconds, &mut local) }.is_null() {
        return format!("{seconds} s after 1970");
    }
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}",
        i64::from(local.tm_year) + 1900,
        local.tm_mon + 1,
        local.tm_mday,
        local.tm_hour,
        local.tm_min,
        local.tm_sec,
        micros / 1000 % 1000
    )
}

/// `39 µs`, `12.3 ms`, `4.20 s`.
pub fn length(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} µs"),
        1000..1_000_000 => format!("{:.1} ms", Duration::from_micros(micros).as_secs_f64() * 1e3),
        _ => format!("{:.2} s", Duration::from_micros(micros).as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_unit_that_fits() {
        let cases = [(0, "0 µs"), (999, "999 µs"), (12_345, "12.3 ms"), (4_200_000, "4.20 s")];
        for (micros, text) in cases {
            assert_eq!(length(micros), text);
        }
    }

    #[test]
    fn points_keep_their_milliseconds_whatever_the_time_zone() {
        assert!(point(1_700_000_000_123_456).ends_with(":20.123"));
        assert_eq!(point(u64::MAX).split('.').nth(1), Some("551"), "{}", point(u64::MAX));
    }
}
