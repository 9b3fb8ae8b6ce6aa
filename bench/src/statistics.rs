//! Medians of a few runs and their confidence intervals.

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

/// The median of `values`. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    estimate(values).map(|estimate| estimate.median)
}

/// Each of some values over one of a baseline.
pub fn ratios(values: &[f64], baseline: &[f64]) -> Vec<f64> {
    values.iter().zip(baseline).map(|(value, base)| value / base).collect()
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
}
