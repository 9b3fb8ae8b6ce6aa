//! Sizes in arguments and in output.

use std::fmt;
use std::str::FromStr;

use machine_memory::size::{self, SizeError};
use memory_ledger::bytes::Bytes;
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
}
