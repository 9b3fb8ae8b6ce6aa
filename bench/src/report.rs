//! Human-readable tables, on stderr.

use crate::histogram;
use crate::measure::Summary;
use crate::results::{Key, Measurement, Value, print_estimate};
use crate::statistics::{Estimate, interquartile};

/// A number of bytes with its unit.
pub fn bytes(n: usize) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Prints the rows of one case: each subject, and its ratio to the baseline. The ratio is that of
/// the medians in each pass, so load that lasts longer than a pass affects both alike.
pub fn round_trips(bench: &str, case: &str, baseline: (&str, &str), results: &[(&str, Summary)]) {
    let (baseline, over_baseline) = baseline;
    let base = results.iter().find(|(name, _)| *name == baseline).map(|(_, summary)| summary);
    for (subject, s) in results {
        let key = |metric| Key { bench, case, subject, metric };
        // The median of all round trips, with the range of the passes.
        let medians = interquartile(&s.block_medians);
        let medians = medians.map(|range| Estimate { median: s.p50, runs: s.runs, ..range });
        if let Some(medians) = &medians {
            print_estimate(key("rtt_us_p50"), "us", medians);
        }
        let line = |metric: &str, value: f64, unit| {
            let key = Key { bench, case, subject, metric };
            Measurement::new(key, Value { value, unit, runs: s.runs }).print();
        };
        line("rtt_us_p90", s.p90, "us");
        line("rtt_us_p99", s.p99, "us");
        line("rtt_us_p999", s.p999, "us");
        line("rtt_us_max", s.max, "us");
        for (bound, percent) in s.histogram.shares() {
            line(&histogram::metric(bound), percent, "%");
        }
        let ratios = base.and_then(|base| interquartile(&s.over(base)));
        if let Some(ratios) = ratios.as_ref().filter(|_| *subject != baseline) {
            print_estimate(key(over_baseline), "ratio", ratios);
        }
        let [medians, ratios] = [medians, ratios].map(|e| e.map_or(String::new(), |e| e.text(2)));
        eprintln!(
            "{case:>8}  {subject:<24} {medians:>23} {:>9.2} {:>9.2} {:>9.2} {:>10.1}  {ratios}",
            s.p90, s.p99, s.p999, s.max
        );
    }
}

/// Prints the median and the quartiles of a metric. Returns them for a table; empty without values.
pub fn quartiles(key: Key<'_>, unit: &str, values: &[f64], decimals: usize) -> String {
    interquartile(values).map_or(String::new(), |estimate| {
        print_estimate(key, unit, &estimate);
        estimate.text(decimals)
    })
}

/// Prints the head of the table of [`round_trips`].
pub fn round_trips_head(baseline: &str) {
    eprintln!(
        "{:>8}  {:<24} {:>23} {:>9} {:>9} {:>9} {:>10}  over {baseline} (quartiles)",
        "bytes", "round trip, us", "p50 (quartiles)", "p90", "p99", "p99.9", "max"
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
