//! File modes as they are given on command lines.

use anyhow::Context;

/// Parses an octal mode up to 0777.
pub fn parse(text: &str) -> anyhow::Result<u32> {
    // `from_str_radix` takes a sign.
    let is_octal = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| is_octal && mode <= 0o777);
    mode.context("not an octal mode; give one up to 0777, such as 0660")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse("0660").unwrap(), 0o660);
        assert_eq!(parse("0").unwrap(), 0);
        for mode in ["", "8", "1777", "rw", "+660", "-1", "0o660"] {
            let error = parse(mode).unwrap_err().to_string();
            assert!(error.contains("such as 0660"), "{mode}: {error}");
        }
    }
}
