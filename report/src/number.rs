//! Human-readable figures.

/// Four significant digits, three below one, more only for integers: `0.00123`, `12.35`, `1,235`,
/// `123,457`.
pub fn show(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    // An integer needs no trailing zeros, a measured value keeps them.
    if value.fract() == 0.0 { thousands(&format!("{value:.0}")) } else { digits(value) }
}

fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "∞".to_owned();
    }
    let power = value.abs().log10().floor() as i32;
    let decimals = (if power < 0 { 2 } else { 3 } - power).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}", thousands(whole))
}

/// A figure in its unit: a time or a ratio keeps its digits, so that a column lines up; an integral
/// count has no decimals.
pub fn figure(value: f64, unit: &str) -> String {
    let measured = ["us", "ratio"].contains(&unit) && value != 0.0;
    if measured { digits(value) } else { show(value) }
}

/// Short form for an axis: `0.5`, `20`, `5 k`, `1 M`.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    // Ticks are round numbers with at most six digits.
    let text = format!("{scaled:.6}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// An integer with commas.
pub fn count(n: u64) -> String {
    thousands(&n.to_string())
}

fn thousands(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    format!("{sign}{out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_four_digits() {
        let shown =
            [0.0, 0.001_234_5, 0.694, 1.0, 1.5, 12.345, 1234.56, 123_456.7, -4321.0].map(show);
        assert_eq!(
            shown,
            ["0", "0.00123", "0.694", "1", "1.500", "12.35", "1,235", "123,457", "-4,321"]
        );
        assert_eq!(show(f64::INFINITY), "∞");
    }

    #[test]
    fn times_and_ratios_keep_their_digits_counts_have_none() {
        assert_eq!(
            [("us", 42.0), ("ratio", 1.0), ("pages", 42.0), ("us", 0.0), ("us", 5000.0)]
                .map(|(unit, value)| figure(value, unit)),
            ["42.00", "1.000", "42", "0", "5,000"]
        );
    }

    #[test]
    fn ticks_are_short_and_counts_have_commas() {
        assert_eq!(
            [0.5, 20.0, 5000.0, 20_000.0, 2.5e6].map(short),
            ["0.5", "20", "5000", "20 k", "2.5 M"]
        );
        assert_eq!(count(1_000_000), "1,000,000");
    }
}
