//! Sizes as people write and read them. Units are powers of 1024, with or without `i` and `B`.

use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [char; 6] = ['B', 'K', 'M', 'G', 'T', 'P'];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("'{text}' is not a size: write bytes, or a number with a unit (512M, 1.5G)");
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_end);
        let exponent = unit_exponent(unit.trim_start()).ok_or_else(bad)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        // In whole numbers: floats would round sizes of some petabytes.
        let scale = 1u128 << (10 * exponent);
        let whole: u128 = whole.parse().map_err(|_| bad())?;
        let fraction_digits = u32::try_from(fraction.len()).map_err(|_| bad())?;
        if fraction_digits > 9 || number.ends_with('.') || (exponent == 0 && fraction_digits > 0) {
            return Err(bad());
        }
        let fraction: u128 = format!("0{fraction}").parse().map_err(|_| bad())?;
        let bytes = whole
            .checked_mul(scale)
            .map(|bytes| bytes + fraction * scale / 10u128.pow(fraction_digits))
            .and_then(|bytes| u64::try_from(bytes).ok());
        bytes.map(Size).ok_or_else(|| format!("'{text}' is more than any memory can hold"))
    }
}

fn unit_exponent(unit: &str) -> Option<usize> {
    let upper = unit.to_ascii_uppercase();
    if upper.is_empty() {
        return Some(0);
    }
    let stem = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    match stem {
        "" => (upper == "B").then_some(0),
        stem => UNITS.iter().skip(1).position(|u| stem == u.to_string()).map(|i| i + 1),
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        if bytes < 1024 {
            return f.pad(&format!("{bytes} B"));
        }
        let mut exponent = 1;
        // Compare what will be printed, so that 1023.96 KiB reads 1.0 MiB and not 1024.0 KiB.
        let tenths = |exponent: usize| (bytes * 10 + (1 << (10 * exponent - 1))) >> (10 * exponent);
        while tenths(exponent) >= 10240 && exponent + 1 < UNITS.len() {
            exponent += 1;
        }
        let tenths = tenths(exponent);
        f.pad(&format!("{}.{} {}iB", tenths / 10, tenths % 10, UNITS[exponent]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("512MiB", 512 << 20),
            ("512 MB", 512 << 20),
            ("1.5G", 3 << 29),
            ("0.5K", 512),
            ("2T", 2 << 40),
            ("16383P", 16383 << 50),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_by_name() {
        let bad = [
            "",
            " ",
            "M",
            "-1",
            "+1M",
            "1.5",
            "1.",
            ".5G",
            "1..5G",
            "1.5.5G",
            "12X",
            "1MM",
            "1iB",
            "0x10",
            "1e6",
            "ten",
            "5 Mi",
            "1.0000000001G",
            "\u{661}M",
        ];
        for text in bad {
            let error = text.parse::<Size>().expect_err(text);
            assert!(error.contains(&format!("'{text}' is not a size")), "{error}");
        }
        for text in ["16384P", "18446744073709551616", "99999999999999999999999T"] {
            let error = text.parse::<Size>().expect_err(text);
            assert!(error.contains("more than any memory"), "{error}");
        }
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
}
