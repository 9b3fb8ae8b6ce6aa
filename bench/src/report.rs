//! Results that several benchmarks have.

use crate::measure::Summary;
use crate::results::Row;
use crate::statistics::{Estimate, interquartile, ratios};

/// A number of bytes with its unit.
pub fn bytes(n: usize) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// A number of things: `1 process`, `4 processes`, for a word with this plural.
pub fn number(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Prints the rows of one case: the baseline, which is the first subject, and the others with their
/// ratio to it. The ratio is that of the medians in each pass, so load that lasts longer than a
/// pass affects both alike.
pub fn round_trips(bench: &str, case: &str, results: &[(&str, Summary)]) {
    for (at, (subject, s)) in results.iter().enumerate() {
        let mut row = Row::new(bench, case, subject, s.runs);
        // The median of all round trips, with the range of the passes.
        if let Some(range) = interquartile(&s.block_medians) {
            row.estimate("rtt_us_p50", &Estimate { median: s.p50, ..range }, "us");
        }
        row.value("rtt_us_p90", s.p90, "us");
        row.value("rtt_us_p99", s.p99, "us");
        row.value("rtt_us_p999", s.p999, "us");
        row.value("rtt_us_max", s.max, "us");
        if at > 0 {
            row.quartiles("over_seqpacket", &s.over(&results[0].1), "ratio");
        }
    }
}

/// Prints the rows of one case: rates of the baseline, which is the first subject, and of the
/// others with their ratio to it pass by pass, and CPU time of the daemon per call, microseconds.
pub fn rates(bench: &str, case: &str, results: &[(&str, Vec<f64>, Vec<f64>)]) {
    for (at, (subject, rates, daemon_us)) in results.iter().enumerate() {
        let mut row = Row::new(bench, case, subject, rates.len());
        row.quartiles("calls_per_s", rates, "calls/s");
        if at > 0 {
            row.quartiles("rate_over_seqpacket", &ratios(rates, &results[0].1), "ratio");
        }
        row.quartiles("daemon_cpu_us", daemon_us, "us");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_read_well() {
        let shown = [0, 4, 1023, 1024, 1500, 65_536, 1 << 20].map(bytes);
        assert_eq!(shown, ["0 B", "4 B", "1023 B", "1 KiB", "1500 B", "64 KiB", "1 MiB"]);
        let shown = [1, 4].map(|n| number(n, "process", "processes"));
        assert_eq!(shown, ["1 process", "4 processes"]);
    }
}
