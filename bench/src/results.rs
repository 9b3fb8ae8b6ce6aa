//! Results as lines of JSON, printed by benchmarks and read by the report.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::statistics::{Estimate, estimate, interquartile};

/// One result, one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the benchmark.
    pub bench: String,
    /// The varied parameter, as `4 B`.
    pub case: String,
    /// The measured program.
    pub subject: String,
    /// The measured quantity: `rtt_us_p50`, `over_seqpacket`...
    pub metric: String,
    /// The figure.
    pub value: f64,
    /// Its unit: `us`, `ratio`...
    pub unit: String,
    /// Number of runs that it summarizes.
    pub runs: usize,
}

/// Identifies a [`Measurement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// The benchmark.
    pub bench: &'a str,
    /// The varied parameter, as `4 B`.
    pub case: &'a str,
    /// The measured program.
    pub subject: &'a str,
    /// The measured quantity: `rtt_us_p50`, `over_seqpacket`...
    pub metric: &'a str,
}

impl Measurement {
    /// Creates a measurement. The value is rounded to a meaningful precision: three decimals, and
    /// never fewer than four digits.
    pub fn new(key: Key<'_>, value: f64, unit: &str, runs: usize) -> Self {
        let Key { bench, case, subject, metric } = key;
        let [bench, case, subject] = [bench, case, subject].map(str::to_owned);
        let (metric, unit) = (metric.to_owned(), unit.to_owned());
        Self { bench, case, subject, metric, value: rounded(value), unit, runs }
    }

    /// What identifies it.
    pub fn key(&self) -> Key<'_> {
        let Self { bench, case, subject, metric, .. } = self;
        Key { bench, case, subject, metric }
    }
}

/// The figures of a subject in a case. Each is printed as a line of JSON on stdout; all together
/// are a line on stderr once it is dropped.
pub struct Row<'a> {
    key: Key<'a>,
    runs: usize,
    text: String,
}

impl<'a> Row<'a> {
    /// For figures that summarize this number of runs.
    pub fn new(bench: &'a str, case: &'a str, subject: &'a str, runs: usize) -> Self {
        let key = Key { bench, case, subject, metric: "" };
        Self { key, runs, text: format!("{case:<28} {subject:<24}") }
    }

    fn print(&self, metric: &str, value: f64, unit: &str) -> f64 {
        let measurement = Measurement::new(Key { metric, ..self.key }, value, unit, self.runs);
        if let Ok(line) = serde_json::to_string(&measurement) {
            println!("{line}");
        }
        measurement.value
    }

    /// Prints a figure, unless it is not a finite number.
    pub fn value(&mut self, metric: &str, value: f64, unit: &str) {
        if value.is_finite() {
            let value = self.print(metric, value, unit);
            self.text += &format!("  {metric} {value} {unit}");
        }
    }

    /// Prints a median as `METRIC`, and the ends of its interval as `METRIC_low` and `METRIC_high`.
    pub fn estimate(&mut self, metric: &str, estimate: &Estimate, unit: &str) {
        self.value(metric, estimate.median, unit);
        let low = self.print(&format!("{metric}_low"), estimate.low, unit);
        let high = self.print(&format!("{metric}_high"), estimate.high, unit);
        self.text += &format!(" ({low} - {high})");
    }

    /// Prints the median and the quartiles; nothing without values.
    pub fn quartiles(&mut self, metric: &str, values: &[f64], unit: &str) {
        if let Some(range) = interquartile(values) {
            self.estimate(metric, &range, unit);
        }
    }

    /// Prints the median as `METRIC`, and the least and the most as `METRIC_min` and `METRIC_max`
    /// if they are in `ends`; nothing without values.
    pub fn median(&mut self, metric: &str, values: &[f64], unit: &str, ends: &[End]) {
        let Some(found) = estimate(values) else { return };
        self.value(metric, found.median, unit);
        for (name, best) in ends {
            if let Some(value) = values.iter().copied().reduce(*best) {
                self.value(&format!("{metric}_{name}"), value, unit);
            }
        }
    }
}

impl Drop for Row<'_> {
    fn drop(&mut self) {
        eprintln!("{}", self.text);
    }
}

/// An end of the range of some values: its name, and which of two values it is.
pub type End = (&'static str, fn(f64, f64) -> f64);
/// The least value.
pub const MIN: End = ("min", f64::min);
/// The largest value.
pub const MAX: End = ("max", f64::max);

fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let decimals = (3 - value.abs().log10().floor() as i32).clamp(3, 12);
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

/// Adds a figure. If it was measured again, the last one counts, at the place of the first.
pub fn put(all: &mut Vec<Measurement>, new: Measurement) {
    match all.iter_mut().find(|old| old.key() == new.key()) {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

/// Parses lines of results, each figure once, as [`put`] does. An invalid line is an error that
/// quotes it.
pub fn parse(text: &str) -> Result<Vec<Measurement>> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let new: Measurement = serde_json::from_str(line)
            .with_context(|| format!("line {} is no result: {line}", index + 1))?;
        anyhow::ensure!(new.value.is_finite(), "line {}: not a number: {line}", index + 1);
        put(&mut found, new);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(case: &str, value: f64) -> Measurement {
        let key = Key { bench: "roundtrip", case, subject: "pipe", metric: "rtt_us_p50" };
        Measurement::new(key, value, "us", 10)
    }

    #[test]
    fn a_measurement_is_one_line_with_the_agreed_keys() {
        assert_eq!(
            serde_json::to_string(&line("4 B", 2.07)).unwrap(),
            concat!(
                r#"{"bench":"roundtrip","case":"4 B","subject":"pipe","metric":"rtt_us_p50","#,
                r#""value":2.07,"unit":"us","runs":10}"#
            )
        );
    }

    #[test]
    fn printed_results_can_be_read_again_and_the_last_one_counts() {
        let [first, other, again] = [line("4 B", 1.0), line("8 B", 2.0), line("4 B", 3.0)];
        let lines = [&first, &other, &again].map(|m| serde_json::to_string(m).unwrap());
        assert_eq!(parse(&lines.join("\n\n")).unwrap(), [again, other]);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn an_invalid_result_line_is_reported() {
        let good = serde_json::to_string(&line("4 B", 1.0)).unwrap();
        for bad in ["oops", "{}", r#"{"bench":"x"}"#, "[1]"] {
            let error = parse(&format!("{good}\n{bad}\n")).unwrap_err().to_string();
            assert!(error.starts_with("line 2") && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn small_figures_keep_their_digits() {
        let shown = [1.23456, 1234.56789, 0.000123456, 0.0].map(rounded);
        assert_eq!(shown, [1.235, 1234.568, 0.0001235, 0.0]);
    }
}
