//! Subjects that alternate, and statistics of their times.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::affinity::Bound;
use crate::statistics::ratios;

/// Something whose round trips are timed.
pub trait Subject {
    /// A short name for tables.
    fn name(&self) -> &str;

    /// One round trip with `message`; `reply` has the same length and receives the echo.
    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()>;

    /// A block of round trips follows; returns what has to be kept until its end.
    fn begin_block(&self) -> Result<Option<Bound>> {
        Ok(None)
    }

    /// Other processes that work for the subject: their CPU time is part of its cost.
    fn helpers(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Times of one subject, microseconds.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Worst.
    pub max: f64,
    /// Median of each block.
    pub block_medians: Vec<f64>,
    /// Number of round trips.
    pub runs: usize,
}

/// The value that `fraction` of the sorted samples do not exceed.
pub fn percentile(sorted: &[u64], fraction: f64) -> u64 {
    let rank = (sorted.len() as f64 * fraction).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

impl Summary {
    /// Sums up blocks of nanoseconds.
    pub fn of_blocks(blocks: &[Vec<u64>]) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        let median = |block: &Vec<u64>| {
            let mut sorted = block.clone();
            sorted.sort_unstable();
            us(percentile(&sorted, 0.5))
        };
        let mut all: Vec<u64> = blocks.concat();
        all.sort_unstable();
        let [p50, p90, p99, p999, max] =
            [0.5, 0.9, 0.99, 0.999, 1.0].map(|fraction| us(percentile(&all, fraction)));
        Self {
            p50,
            p90,
            p99,
            p999,
            max,
            block_medians: blocks.iter().map(median).collect(),
            runs: all.len(),
        }
    }

    /// The medians of the blocks over those of another subject, which alternated with them.
    pub fn over(&self, baseline: &Self) -> Vec<f64> {
        ratios(&self.block_medians, &baseline.block_medians)
    }
}

/// Measures the subjects alternately, so often, after a pass to warm up. Returns the results by
/// subject.
pub fn alternate<S, T>(
    subjects: &mut [S],
    passes: usize,
    mut measure: impl FnMut(&mut S) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut all: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for pass in 0..=passes {
        for (subject, results) in subjects.iter_mut().zip(&mut all) {
            let result = measure(subject)?;
            if pass > 0 {
                results.push(result);
            }
        }
    }
    Ok(all)
}

/// A message of `size` bytes in a fixed pattern.
pub fn message(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 31 + 7) as u8).collect()
}

/// Times `runs` round trips, nanoseconds each. The last reply must equal the message.
pub fn block(
    subject: &mut dyn Subject,
    runs: usize,
    message: &[u8],
    reply: &mut [u8],
) -> Result<Vec<u64>> {
    let mut samples = Vec::with_capacity(runs);
    let _bound = subject.begin_block()?;
    reply.fill(0);
    for _ in 0..runs {
        let start = Instant::now();
        let done = subject.round_trip(message, reply);
        samples.push(start.elapsed().as_nanos() as u64);
        done.with_context(|| format!("{}, {} bytes", subject.name(), message.len()))?;
    }
    // Once a block, so that checking costs the measurement nothing.
    anyhow::ensure!(runs == 0 || reply == message, "{}: a reply differs", subject.name());
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let samples: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&samples, 0.5), 50);
        assert_eq!(percentile(&samples, 0.99), 99);
        assert_eq!(percentile(&samples, 1.0), 100);
        assert_eq!(percentile(&[7], 0.01), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn a_summary_has_the_worst_value_and_the_median_of_each_block() {
        let summary = Summary::of_blocks(&[vec![3000, 1000, 2000], vec![5000, 4000, 90_000]]);
        assert_eq!((summary.p50, summary.max, summary.runs), (3.0, 90.0, 6));
        assert_eq!(summary.block_medians, [2.0, 5.0]);
        let baseline = Summary::of_blocks(&[vec![4000], vec![2500]]);
        assert_eq!(summary.over(&baseline), [0.5, 2.0]);
    }

    struct Echo(Vec<&'static str>, &'static str);

    impl Subject for Echo {
        fn name(&self) -> &str {
            self.1
        }

        fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
            self.0.push(self.1);
            reply.copy_from_slice(message);
            if self.1 == "liar" {
                reply[0] ^= 1;
            }
            Ok(())
        }
    }

    #[test]
    fn a_wrong_reply_is_an_error_not_a_fast_result() {
        let (message, mut reply) = (message(4), [0; 4]);
        let error = block(&mut Echo(Vec::new(), "liar"), 2, &message, &mut reply).unwrap_err();
        assert_eq!(error.to_string(), "liar: a reply differs");
        let times = block(&mut Echo(Vec::new(), "honest"), 2, &message, &mut reply).unwrap();
        assert_eq!(times.len(), 2);
    }

    #[test]
    fn subjects_alternate_after_a_pass_that_does_not_count() {
        let mut order = Vec::new();
        let found = alternate(&mut ["a", "b"], 2, |subject| {
            order.push(*subject);
            Ok(order.len())
        });
        assert_eq!(found.unwrap(), [[3, 5], [4, 6]]);
        assert_eq!(order, ["a", "b", "a", "b", "a", "b"]);
    }
}
