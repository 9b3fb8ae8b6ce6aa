//! Histograms of times, with buckets that are the same in all results.
//!
//! Two buckets for each factor of two: up to 1, 1.5, 2, 3, 4, 6, 8, 12 ... µs.

use std::collections::BTreeMap;

/// Number of times by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: BTreeMap<u32, usize>,
    total: usize,
}

impl Histogram {
    /// The histogram of times in nanoseconds.
    pub fn of(times: &[u64]) -> Self {
        let mut counts = BTreeMap::new();
        for time in times {
            *counts.entry(bucket_of(*time)).or_default() += 1;
        }
        Self { counts, total: times.len() }
    }

    /// The buckets that are not empty, ascending: upper bound in microseconds, and the share of all
    /// times in percent.
    pub fn shares(&self) -> impl Iterator<Item = (f64, f64)> {
        let percent = |count: usize| count as f64 / self.total as f64 * 100.0;
        self.counts.iter().map(move |(bucket, count)| (bound_us(*bucket), percent(*count)))
    }
}

/// Upper bound of a bucket, microseconds.
fn bound_us(bucket: u32) -> f64 {
    let power = 2f64.powi((bucket / 2) as i32);
    if bucket.is_multiple_of(2) { power } else { 1.5 * power }
}

fn bucket_of(ns: u64) -> u32 {
    let us = ns as f64 / 1000.0;
    (0..).find(|bucket| us <= bound_us(*bucket)).unwrap_or(u32::MAX)
}

/// All bounds from `first` to `last`, microseconds.
pub fn bounds_us(first: f64, last: f64) -> Vec<f64> {
    (0..).map(bound_us).skip_while(|bound| *bound < first).take_while(|at| *at <= last).collect()
}

/// Metric of the share of round trips in the bucket with this upper bound: `rtt_percent_to_12_us`.
pub fn metric(bound_us: f64) -> String {
    format!("{PREFIX}{bound_us}{SUFFIX}")
}

/// The upper bound of the bucket that a metric is about, microseconds; `None` for other metrics.
pub fn bound_of(metric: &str) -> Option<f64> {
    metric.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

const PREFIX: &str = "rtt_percent_to_";
const SUFFIX: &str = "_us";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_belongs_to_the_first_bucket_that_contains_it() {
        let times = [0, 1000, 1001, 1500, 12_000, 12_001, 12_002, 16_000];
        let shares: Vec<(f64, f64)> = Histogram::of(&times).shares().collect();
        assert_eq!(shares, [(1.0, 25.0), (1.5, 25.0), (12.0, 12.5), (16.0, 37.5)]);
        assert_eq!(Histogram::of(&[]).shares().count(), 0);
    }

    #[test]
    fn metrics_name_the_bound_of_their_bucket() {
        assert_eq!([1.5, 12.0].map(metric), ["rtt_percent_to_1.5_us", "rtt_percent_to_12_us"]);
        assert_eq!([1.5, 96.0].map(|bound| bound_of(&metric(bound))), [Some(1.5), Some(96.0)]);
        assert_eq!(bound_of("rtt_us_p50"), None);
    }

    #[test]
    fn bounds_are_listed_without_gaps() {
        assert_eq!(bounds_us(1.5, 8.0), [1.5, 2.0, 3.0, 4.0, 6.0, 8.0]);
    }
}
