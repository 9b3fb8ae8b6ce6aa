//! Medians of a few runs and their confidence intervals.

use serde::{Deserialize, Serialize};

/// A median with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Number of values.
    pub runs: usize,
}

/// The median of `values` and its 95 % interval, by ranks: independent of their distribution. Fewer
/// than six values do not suffice for 95 %; then it is the lowest and the highest. `None` without
/// values.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (&lowest, &highest) = (sorted.first()?, sorted.last()?);
    let runs = sorted.len();
    let median = (sorted[(runs - 1) / 2] + sorted[runs / 2]) / 2.0;
    let (low, high) = match interval_rank(runs) {
        0 => (lowest, highest),
        rank => (sorted[rank - 1], sorted[runs - rank]),
    };
    Some(Estimate { median, low, high, runs })
}

/// The median of `values` with the interquartile range as its interval. `None` without values.
pub fn interquartile(values: &[f64]) -> Option<Estimate> {
    quartiles(values).map(|[low, median, high]| Estimate { median, low, high, runs: values.len() })
}

/// The first quartile, the median and the third quartile, interpolated between ranks. `None`
/// without values.
pub fn quartiles(values: &[f64]) -> Option<[f64; 3]> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some([1, 2, 3].map(|quarter| {
        let rank = (last * quarter) as f64 / 4.0;
        let (below, part) = (rank.floor() as usize, rank.fract());
        sorted[below] + part * (sorted[(below + 1).min(last)] - sorted[below])
    }))
}

/// The largest `rank` for which the values of that rank from either end enclose the median with 95
/// %: fewer than `rank` of `n` fair coins show heads with at most 2.5 %. 0 when there is none.
fn interval_rank(n: usize) -> usize {
    let mut probability = 0.5f64.powi(n.min(1000) as i32);
    let mut below = 0.0;
    for heads in 0..n {
        below += probability;
        if below > 0.025 {
            return heads;
        }
        probability *= (n - heads) as f64 / (heads + 1) as f64;
    }
    0
}

/// Times of one client, nanoseconds: all are counted, the first [`Tally::MAX_SAMPLES`] are kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Number of times.
    pub count: u64,
    /// Sum, nanoseconds.
    pub sum: u64,
    /// Maximum, nanoseconds.
    pub max: u64,
    /// Minimum, nanoseconds; 0 if there is none.
    pub min: u64,
    /// Kept samples, in order of arrival until they are sorted.
    pub samples: Vec<u64>,
}

impl Tally {
    /// Bound of the memory in a long run (8 MiB).
    pub const MAX_SAMPLES: usize = 1 << 20;

    /// Adds one time.
    pub fn add(&mut self, ns: u64) {
        self.min = if self.count == 0 { ns } else { self.min.min(ns) };
        self.max = self.max.max(ns);
        self.count += 1;
        self.sum += ns;
        if self.samples.len() < Self::MAX_SAMPLES {
            self.samples.push(ns);
        }
    }

    /// Adds the samples of another tally.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
        let room = Self::MAX_SAMPLES - self.samples.len().min(Self::MAX_SAMPLES);
        self.samples.extend(other.samples.iter().take(room));
    }

    /// The mean, microseconds.
    pub fn average_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 / 1000.0 }
    }

    /// The value that `fraction` of the kept samples do not exceed, microseconds.
    pub fn percentile_us(&self, fraction: f64) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        crate::measure::percentile(&sorted, fraction) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_few_values_is_their_whole_range() {
        assert_eq!(estimate(&[]), None);
        let one = estimate(&[3.0]).unwrap();
        assert_eq!((one.median, one.low, one.high, one.runs), (3.0, 3.0, 3.0, 1));
        let five = estimate(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((five.median, five.low, five.high), (3.0, 1.0, 5.0));
        assert_eq!(estimate(&[1.0, 2.0]).unwrap().median, 1.5);
    }

    #[test]
    fn quartiles_lie_between_ranks() {
        assert_eq!(quartiles(&[]), None);
        assert_eq!(quartiles(&[7.0]), Some([7.0; 3]));
        assert_eq!(quartiles(&[5.0, 1.0, 4.0, 2.0, 3.0]), Some([2.0, 3.0, 4.0]));
        assert_eq!(quartiles(&[1.0, 2.0]), Some([1.25, 1.5, 1.75]));
        let estimate = Estimate { median: 1.5, low: 1.25, high: 1.75, runs: 2 };
        assert_eq!(interquartile(&[1.0, 2.0]), Some(estimate));
    }

    #[test]
    fn an_interval_narrows_as_in_the_tables_of_the_sign_test() {
        // Ranks from any table of confidence intervals for a median, 95 %.
        for (n, rank) in [(1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (20, 6), (100, 40)] {
            assert_eq!(interval_rank(n), rank, "{n}");
        }
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        let twenty = estimate(&values).unwrap();
        assert_eq!((twenty.median, twenty.low, twenty.high), (10.5, 6.0, 15.0));
    }

    #[test]
    fn one_wild_value_does_not_move_a_median() {
        assert_eq!(estimate(&[1.0, 1.0, 1.0, 1.0, 1e9]).unwrap().median, 1.0);
    }

    #[test]
    fn tallies_add_up() {
        let mut a = Tally::default();
        let mut b = Tally::default();
        [4000, 2000].into_iter().for_each(|ns| a.add(ns));
        [9000, 1000, 3000].into_iter().for_each(|ns| b.add(ns));
        a.merge(&b);
        a.merge(&Tally::default());
        assert_eq!((a.count, a.min, a.max, a.samples.len()), (5, 1000, 9000, 5));
        assert_eq!((a.average_us(), a.percentile_us(0.5)), (3.8, 3.0));
        let mut empty = Tally::default();
        empty.merge(&b);
        assert_eq!((empty.min, empty.average_us()), (1000, b.average_us()));
        assert_eq!(Tally::default().average_us(), 0.0);
    }
}
