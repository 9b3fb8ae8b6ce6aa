//! Subjects that alternate, and statistics of their times.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::affinity::{self, Bound};
use crate::histogram::Histogram;

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

/// A subject on one core, whatever the placement of the others.
pub struct OnCore<S> {
    subject: S,
    core: usize,
}

impl<S: Subject> OnCore<S> {
    /// Starts a subject whose processes are bound to the core.
    pub fn start(core: usize, start: impl FnOnce() -> Result<S>) -> Result<Self> {
        let _bound = affinity::bind(core)?;
        Ok(Self { subject: start()?, core })
    }
}

impl<S: Subject> Subject for OnCore<S> {
    fn name(&self) -> &str {
        self.subject.name()
    }

    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
        self.subject.round_trip(message, reply)
    }

    fn begin_block(&self) -> Result<Option<Bound>> {
        affinity::bind(self.core).map(Some)
    }

    fn helpers(&self) -> Vec<u32> {
        self.subject.helpers()
    }
}

/// Number of round trips to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Blocks per subject.
    pub blocks: usize,
    /// Round trips in a block.
    pub block: usize,
    /// Round trips before the first block, discarded.
    pub warm_up: usize,
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
    /// All round trips.
    pub histogram: Histogram,
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
            histogram: Histogram::of(&all),
            runs: all.len(),
        }
    }

    /// The medians of the blocks over those of another subject, which alternated with them.
    pub fn over(&self, baseline: &Self) -> Vec<f64> {
        self.block_medians.iter().zip(&baseline.block_medians).map(|(a, b)| a / b).collect()
    }
}

/// Measures the subjects alternately with messages of `size` bytes; every reply must equal its
/// message.
pub fn interleave(
    subjects: &mut [Box<dyn Subject>],
    size: usize,
    plan: Plan,
) -> Result<Vec<Summary>> {
    let message = message(size);
    let mut reply = vec![0; size];
    let mut samples: Vec<Vec<Vec<u64>>> = vec![Vec::new(); subjects.len()];
    for subject in subjects.iter_mut() {
        block(subject.as_mut(), plan.warm_up, &message, &mut reply)?;
    }
    for _ in 0..plan.blocks {
        for (subject, samples) in subjects.iter_mut().zip(&mut samples) {
            samples.push(block(subject.as_mut(), plan.block, &message, &mut reply)?);
        }
    }
    Ok(samples.iter().map(|blocks| Summary::of_blocks(blocks)).collect())
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
        let plan = Plan { blocks: 1, block: 2, warm_up: 0 };
        let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(Echo(Vec::new(), "liar"))];
        let error = interleave(&mut subjects, 4, plan).unwrap_err();
        assert_eq!(error.to_string(), "liar: a reply differs");
        let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(Echo(Vec::new(), "honest"))];
        let summaries = interleave(&mut subjects, 4, plan).unwrap();
        assert_eq!(summaries[0].runs, 2);
    }
}
