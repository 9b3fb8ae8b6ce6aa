//! Axes: their ranges and ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::number;

/// A linear or logarithmic axis with ticks at round values.
#[derive(Clone)]
pub struct Axis {
    /// Quantity on the axis, with its unit.
    pub label: String,
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A logarithmic axis that contains all these values; those at or below zero are left out.
    pub fn logarithmic(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values.filter(|value| *value > 0.0)).unwrap_or((0.1, 10.0));
        // Margins at both ends, and at least a factor of two in total.
        let air = 1.08f64.max((2.0 * low / high).sqrt());
        let (low, high) = (low / air, high * air);
        let ticks = round_values(low, high).into_iter().map(|tick| (tick, number::short(tick)));
        Self { label: label.to_owned(), low, high, logarithmic: true, ticks: ticks.collect() }
    }

    /// A linear axis that contains zero and all these values.
    pub fn linear(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values.chain([0.0])).unwrap_or((0.0, 1.0));
        let high = if high > low { high + (high - low) * 0.04 } else { low + 1.0 };
        let step = step((high - low) / 6.0);
        let first = (low / step).ceil() as i64;
        let last = (high / step).floor() as i64;
        let ticks = (first..=last).map(|at| at as f64 * step).map(|at| (at, number::short(at)));
        Self { label: label.to_owned(), low, high, logarithmic: false, ticks: ticks.collect() }
    }

    /// A logarithmic axis of sizes in bytes, with ticks at powers of four.
    pub fn sizes(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let mut axis = Self::logarithmic(label, values);
        let powers = (0..20).map(|power| 4f64.powi(power));
        let inside = powers.filter(|size| (axis.low..=axis.high).contains(size));
        let name = |size: f64| bench::report::bytes(size as usize).replace("iB", "");
        axis.ticks = inside.map(|size| (size, name(size))).collect();
        axis
    }

    /// An axis of categories: the n-th one reaches from n to n + 1. The first is on top.
    pub fn categories(names: &[String]) -> Self {
        let middle = |at: usize| (names.len() - at) as f64 - 0.5;
        let ticks = names.iter().enumerate().map(|(at, name)| (middle(at), name.clone()));
        let high = names.len().max(1) as f64;
        Self { label: String::new(), low: 0.0, high, logarithmic: false, ticks: ticks.collect() }
    }

    /// Lower end of the range.
    pub fn low(&self) -> f64 {
        self.low
    }

    /// Upper end of the range.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// Positions of the ticks.
    pub fn ticks(&self) -> impl Iterator<Item = f64> {
        self.ticks.iter().map(|(at, _)| *at)
    }

    fn share(&self, value: f64) -> f64 {
        if self.logarithmic {
            let value = value.clamp(self.low, self.high);
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    let low = values.iter().copied().reduce(f64::min)?;
    Some((low, values.iter().copied().reduce(f64::max)?))
}

/// The smallest of 1, 2 or 5 times a power of ten that is at least this.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// Round values within the range, as dense as readable: at most nine.
fn round_values(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let dense: [&[f64]; 5] = [
        &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 3.0],
        &[1.0],
    ];
    let mut found = Vec::new();
    for factors in dense {
        let decade = |power: i32| factors.iter().map(move |factor| factor * 10f64.powi(power));
        let all = decades.clone().flat_map(decade);
        found = all.filter(|value| (low..=high).contains(value)).collect();
        if found.len() <= 9 {
            break;
        }
    }
    found
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.share(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks().collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        number::short(*value)
    }

    fn format_ext(&self, value: &f64) -> String {
        let named = self.ticks.iter().find(|(at, _)| at == value);
        named.map_or_else(|| Self::format(value), |(_, name)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_few_whatever_the_range() {
        assert_eq!(
            labels(&Axis::logarithmic("", [1.0, 100.0].into_iter())),
            ["1", "2", "5", "10", "20", "50", "100"]
        );
        assert_eq!(
            labels(&Axis::logarithmic("", [9.0, 11.0].into_iter())),
            ["8", "9", "10", "12", "14"]
        );
        assert_eq!(
            labels(&Axis::linear("", [100_000.0].into_iter())),
            ["0", "20 k", "40 k", "60 k", "80 k", "100 k"]
        );
        assert_eq!(
            labels(&Axis::sizes("", [4.0, 65_536.0].into_iter())).join(" "),
            "4 B 16 B 64 B 256 B 1 K 4 K 16 K 64 K"
        );
        for (low, high) in [(1e-6, 1e9), (0.5, 0.5), (3.0, 3.1), (1.0, 1e4)] {
            let axis = Axis::logarithmic("", [low, high].into_iter());
            assert!((2..=16).contains(&axis.ticks.len()), "{low} {high}: {:?}", labels(&axis));
        }
    }

    #[test]
    fn no_values_or_wild_ones_still_make_an_axis() {
        for values in [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY], vec![-1.0]] {
            for axis in [
                Axis::logarithmic("", values.iter().copied()),
                Axis::linear("", values.iter().copied()),
            ] {
                assert!(axis.low < axis.high, "{values:?}");
                assert!((0..=100).contains(&axis.map(&axis.high, (0, 100))));
            }
        }
    }

    #[test]
    fn values_are_placed_by_their_logarithm() {
        let axis = Axis::logarithmic("", [1.0, 100.0].into_iter());
        assert_eq!(axis.map(&10.0, (0, 100)), 50);
        assert_eq!(axis.map(&0.0, (0, 100)), 0);
    }
}
