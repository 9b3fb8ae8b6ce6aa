//! Amounts of memory as text: bytes, a number with a unit, or a percentage.

/// Reason why a text is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Neither a number nor a number with a unit.
    #[error(
        "\"{0}\" is not an amount of memory: use bytes, a number with K, M, G, T or P \
         (\"512M\", \"1.5G\"), or a percentage (\"25%\")"
    )]
    Malformed(String),
    /// More than 64 bits can represent.
    #[error("\"{0}\" is more memory than can be counted")]
    TooMuch(String),
    /// A percentage where no total is defined.
    #[error("\"{0}\" is a percentage: use bytes or a number with a unit (\"512M\")")]
    NoWhole(String),
    /// A percentage above 100.
    #[error("\"{0}\" is more than 100%")]
    AboveTheWhole(String),
}

/// Bytes from `512M`, `1.5G`, `64KiB`, `1000` (bytes) or `25%` (of `whole` bytes; `None`:
/// percentages are refused). Units are powers of 1024, in any case, with or without `B` or `iB`.
pub fn parse(text: &str, whole: Option<u64>) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed(text.to_owned());
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let scale: u128 = match unit.as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1 << 40,
        "P" | "PB" | "PIB" => 1 << 50,
        "%" => u128::from(whole.ok_or_else(|| SizeError::NoWhole(text.to_owned()))?),
        _ => return Err(malformed()),
    };
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction_of_a_byte = scale == 1 && number.contains('.');
    if integer.is_empty()
        || (number.contains('.') && fraction.is_empty())
        || fraction.len() > 9
        || fraction_of_a_byte
    {
        return Err(malformed());
    }
    // Fixed point instead of floating point, so that the result is exact to the byte.
    let digits: u128 = format!("{integer}{fraction}").parse().map_err(|_| malformed())?;
    let denominator = 10u128.pow(fraction.len() as u32) * if unit == "%" { 100 } else { 1 };
    let product = digits.checked_mul(scale).ok_or_else(|| SizeError::TooMuch(text.to_owned()))?;
    let bytes = product / denominator;
    if unit == "%" && bytes > scale {
        return Err(SizeError::AboveTheWhole(text.to_owned()));
    }
    u64::try_from(bytes).map_err(|_| SizeError::TooMuch(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_accepted_in_many_notations() {
        let cases: &[(&str, u64)] = &[
            ("0", 0),
            ("1000", 1000),
            ("64K", 64 << 10),
            ("512M", 512 << 20),
            ("512 mib", 512 << 20),
            ("1.5G", 3 << 29),
            ("0.001T", 1_099_511_627),
            (" 2GB ", 2 << 30),
            ("25%", 250),
            ("12.5%", 125),
            ("100%", 1000),
            ("16383P", 16_383 << 50),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text, Some(1000)), Ok(*bytes), "{text:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "M",
            "-5M",
            "5X",
            "1.2.3G",
            ".5G",
            "5.G",
            "1e9",
            "0x10",
            "5 M M",
            "٣M",
            "1.5",
            "1.5B",
            "1iB",
            "5 Mi",
            "1.0000000001G",
            "ten",
            " ",
            "+1M",
        ] {
            assert_eq!(parse(text, Some(1000)), Err(SizeError::Malformed(text.into())), "{text:?}");
        }
        assert_eq!(parse("101%", Some(1000)), Err(SizeError::AboveTheWhole("101%".into())));
        assert_eq!(parse("5%", None), Err(SizeError::NoWhole("5%".into())));
        for text in ["99999999999T", "16777216T", "340282366920938463463374607431768211455T"] {
            assert_eq!(parse(text, None), Err(SizeError::TooMuch(text.into())), "{text:?}");
        }
    }
}
