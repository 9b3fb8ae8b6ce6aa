//! What the report says of each claim, benchmark and metric: `tables.toml`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// The tables.
pub static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    // Part of the program, and read by its tests.
    toml::from_str(include_str!("tables.toml")).unwrap_or_else(|error| panic!("{error}"))
});

/// All tables of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// The claims of the project, in their order.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
    /// The claims that may be missed.
    #[serde(default, rename = "known-miss")]
    pub known_misses: Vec<KnownMiss>,
    /// What was measured last.
    #[serde(default, rename = "last-figure")]
    pub last_figures: Vec<LastFigure>,
    /// The known benchmarks, in their order.
    #[serde(rename = "section")]
    pub sections: Vec<Section>,
    /// The plots of lines.
    #[serde(rename = "curve")]
    pub curves: Vec<Curve>,
    /// The plots of intervals.
    #[serde(rename = "band")]
    pub bands: Vec<Band>,
    /// The known metrics.
    pub metrics: Metrics,
}

/// A claim whose miss does not fail the report.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownMiss {
    /// The claim's text.
    pub claim: String,
    /// The day since when it is known, as YYYY-MM-DD.
    pub since: String,
    /// Why it is missed.
    pub reason: String,
}

/// A figure of a claim in one place, which the next one may not be worse than.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastFigure {
    /// The claim's text.
    pub claim: String,
    /// Case, kernel and clock, as the report prints them.
    pub place: String,
    /// The figure, in the metric's unit.
    pub value: f64,
    /// How much it differs from run to run, in the same unit.
    pub spread: f64,
}

/// A claim about one metric. It must hold in every measured case, on every kernel and clock.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    /// What is claimed.
    pub text: String,
    /// The benchmark.
    pub bench: String,
    /// The metric.
    pub metric: String,
    /// The only case that counts; `None`: all.
    pub case: Option<String>,
    /// Our subject: itself, or followed by a kernel; `None`: `headroom`.
    pub subject: Option<String>,
    /// The bound, and the anchor that our figure is compared with.
    pub at_most: Option<f64>,
    /// The same for a figure that must reach its anchor.
    pub at_least: Option<f64>,
    /// Origin of that anchor.
    #[serde(default)]
    pub origin: String,
    /// Without a fixed anchor: the lowest figure of the subjects with these prefixes in the same
    /// case, by the same clock.
    #[serde(default)]
    pub best_of: Vec<String>,
}

/// The section of a benchmark on the page.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Name of the benchmark in the results.
    pub bench: String,
    /// Title of the section.
    pub title: String,
    /// What is compared.
    pub reading: String,
}

/// A plot of lines: for each subject a figure by case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Curve {
    /// The benchmark.
    pub bench: String,
    /// Title of the plot.
    pub title: String,
    /// The metric, and its replacements for subjects without it.
    pub metrics: Vec<String>,
    /// What the horizontal axis shows.
    pub x: Place,
    /// Label of the vertical axis.
    pub y: String,
    /// The part of a case after its number.
    #[serde(default)]
    pub condition: String,
    /// Each line is relative to its first value.
    #[serde(default)]
    pub over_first: bool,
}

/// Place of a case on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Its size in bytes.
    Size,
    /// The middle of its range of handles.
    Range,
    /// The number of pairs at its start.
    Number,
}

/// A plot of intervals, one for each case and subject.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// The benchmark.
    pub bench: String,
    /// Title of the plot.
    pub title: String,
    /// Unit of the metrics.
    pub unit: String,
    /// Metrics of the lower end: the first that exists.
    pub low: Vec<String>,
    /// Metric of the point between.
    pub middle: String,
    /// Metrics of the upper end.
    pub high: Vec<String>,
}

/// The known metrics.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Those of which higher values are better.
    pub higher: Vec<String>,
    /// Those of which values near one are better.
    pub one: Vec<String>,
    /// Those of which neither is better.
    pub neither: Vec<String>,
    /// Metrics, and those that replace them for subjects without them.
    pub replacements: HashMap<String, Vec<String>>,
    /// Labels by their keys in the results.
    pub labels: HashMap<String, String>,
}
