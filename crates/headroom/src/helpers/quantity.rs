//! Sizes, durations and points in time, in arguments and in output.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use headroom_linux::machine_memory::size::{self, SizeError};
use memory_ledger::limit::Bytes;
use memory_ledger::limit::NO_LIMIT_BYTES;

/// The limit of an account that is exempt.
const NONE: &str = "none";

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        size::parse(text, None).map(Self)
    }
}

/// An amount of memory that may be a percentage, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount(String);

impl Amount {
    /// The amount in bytes; a percentage is of `whole` bytes.
    pub fn of(&self, whole: u64) -> Result<Size, SizeError> {
        if self.0 == NONE {
            return Ok(Size(NO_LIMIT_BYTES));
        }
        size::parse(&self.0, Some(whole)).map(Size)
    }
}

impl FromStr for Amount {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        if text == NONE {
            return Ok(Self(text.to_owned()));
        }
        // Any whole suffices to validate: percentages above 100 are refused for each.
        size::parse(text, Some(u64::MAX)).map(|_| Self(text.to_owned()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == NO_LIMIT_BYTES { f.pad(NONE) } else { Bytes(self.0).fmt(f) }
    }
}

/// `2026-11-20 14:03:22.123` in local time, from microseconds since the epoch.
pub fn point_in_time(micros: u64) -> String {
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
pub fn duration(micros: u64) -> String {
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
    fn an_amount_may_be_a_percentage_and_a_size_may_not() {
        let amount: Amount = "25%".parse().unwrap();
        assert_eq!(amount.of(1 << 30), Ok(Size(256 << 20)));
        assert_eq!("1.5G".parse::<Amount>().unwrap().of(1), Ok(Size(3 << 29)));
        assert_eq!("101%".parse::<Amount>(), Err(SizeError::AboveTheWhole("101%".into())));
        assert_eq!("25%".parse::<Size>(), Err(SizeError::NoWhole("25%".into())));
        assert_eq!("512M".parse(), Ok(Size(512 << 20)));
        assert_eq!("none".parse::<Amount>().unwrap().of(1).unwrap().to_string(), "none");
    }

    #[test]
    fn sizes_are_printed_with_one_decimal() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (256 << 20, "256.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Size(bytes).to_string(), text, "{bytes}");
        }
        assert_eq!(format!("{:>10}|", Size(1024)), "   1.0 KiB|");
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        let cases = [(0, "0 µs"), (999, "999 µs"), (12_345, "12.3 ms"), (4_200_000, "4.20 s")];
        for (micros, text) in cases {
            assert_eq!(duration(micros), text);
        }
    }

    #[test]
    fn points_keep_their_milliseconds_whatever_the_time_zone() {
        assert!(point_in_time(1_700_000_000_123_456).ends_with(":20.123"));
        let last = point_in_time(u64::MAX);
        assert_eq!(last.split('.').nth(1), Some("551"), "{last}");
    }
}
