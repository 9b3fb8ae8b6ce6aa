//! Human-readable tables, on stderr.

use crate::measure::Summary;
use crate::results::{Key, Measurement, Value};

/// A number of bytes with its unit.
pub fn bytes(n: usize) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Prints the rows of one case: each subject, and its ratio to the baseline's median.
pub fn round_trips(bench: &str, case: &str, baseline: (&str, &str), results: &[(&str, Summary)]) {
    let (baseline, over_baseline) = baseline;
    let base = results.iter().find(|(name, _)| *name == baseline).map(|(_, summary)| summary.p50);
    for (subject, s) in results {
        let ratio = base.map(|base| s.p50 / base);
        let shown = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let blocks = format!("{:.2}-{:.2}", s.fastest_block, s.slowest_block);
        eprintln!(
            "{case:>8}  {subject:<24} {:>9.2} {:>9.2} {:>10.1}  {blocks:>15}  {shown:>6}",
            s.p50, s.p99, s.max
        );
        let line = |metric, value: f64, unit| {
            Measurement::new(
                Key { bench, case, subject, metric },
                Value { value, unit, runs: s.runs },
            )
        };
        line("rtt_us_p50", s.p50, "us").print();
        line("rtt_us_p99", s.p99, "us").print();
        line("rtt_us_max", s.max, "us").print();
        if let Some(ratio) = ratio.filter(|_| *subject != baseline) {
            line(over_baseline, ratio, "ratio").print();
        }
    }
}

/// Prints the head of the table of [`round_trips`].
pub fn round_trips_head(baseline: &str) {
    eprintln!(
        "{:>8}  {:<24} {:>9} {:>9} {:>10}  {:>15}  over {baseline}",
        "bytes", "round trip, us", "p50", "p99", "max", "blocks' p50"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let shown = [0, 4, 1023, 1024, 1500, 65_536, 1 << 20].map(bytes);
        assert_eq!(shown, ["0 B", "4 B", "1023 B", "1 KiB", "1500 B", "64 KiB", "1 MiB"]);
    }
}
