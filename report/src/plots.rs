//! Plots of each benchmark.

use maud::Markup;

use crate::figures::{View, range, size};
use crate::plot::{self, Interval, Line, Scale};

/// A plot of lines: for each subject a figure by case.
struct Curve {
    bench: &'static str,
    title: &'static str,
    /// The metric, and its replacements for subjects without it.
    metrics: &'static [&'static str],
    /// Place of a case on the horizontal axis; `None`: it is not part of the plot.
    place: fn(&str) -> Option<f64>,
    x: (Scale, &'static str),
    y: (Scale, &'static str),
    relation: Relation,
}

/// What the values of a line are relative to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// Nothing.
    Absolute,
    /// The line's own first value.
    First,
}

use Relation::{Absolute, First};
use Scale::{Linear, Logarithmic, Sizes};

const SIZE: (Scale, &str) = (Sizes, "size");
const HANDLES: (Scale, &str) = (Linear, "handles in use");
const ECHO: &[&str] = &["echo_us_p50", "echo_us_mean"];

const fn curve(
    bench: &'static str,
    title: &'static str,
    metrics: &'static [&'static str],
    place: fn(&str) -> Option<f64>,
) -> Curve {
    Curve { bench, title, metrics, place, x: SIZE, y: (Logarithmic, "µs"), relation: Absolute }
}

const CURVES: &[Curve] = &[
    curve("roundtrip", "Round trip, median, one core", &["rtt_us_p50"], |case| at(case, "")),
    curve("roundtrip", "Round trip, median, any core", &["rtt_us_p50"], |case| {
        at(case, "any core")
    }),
    Curve {
        x: (Logarithmic, "pairs"),
        y: (Logarithmic, "calls per second"),
        ..curve("throughput", "Idle handlers", &["calls_per_s"], |case| pairs(case, "idle"))
    },
    Curve {
        x: (Logarithmic, "pairs"),
        y: (Logarithmic, "calls per second"),
        ..curve("throughput", "Busy handlers", &["calls_per_s"], |case| pairs(case, "busy"))
    },
    Curve {
        x: HANDLES,
        y: (Logarithmic, "ratio"),
        relation: First,
        ..curve("handles", "Over the first range", &["rtt_us_p50", "rtt_us_mean"], middle)
    },
    curve("sendvec", "Echo by size, idle", ECHO, |case| at(case, "idle")),
    curve("sendvec", "Echo by size, under memory stress", ECHO, |case| at(case, "stress")),
    Curve {
        y: (Logarithmic, "ratio"),
        ..curve("sendvec", "Stress over idle", &["stress_over_idle"], |case| at(case, ""))
    },
];

/// A plot of intervals: benchmark, title, unit, and the metrics of low ends, middle and high ends.
type Band = (&'static str, &'static str, &'static str, [&'static [&'static str]; 3]);

const BANDS: &[Band] = &[
    (
        "contention",
        "A call by class: shortest, average, longest",
        "µs",
        [&["min_us"], &["avg_us"], &["max_us"]],
    ),
    (
        "reclaim",
        "Memory freed a second: least, median, most",
        "MB/s",
        [&["mb_per_s_min", "mb_per_s_low"], &["mb_per_s"], &["mb_per_s_max", "mb_per_s_high"]],
    ),
];

/// The bytes of cases under a condition, such as `idle`; empty: of those without one.
fn at(case: &str, condition: &str) -> Option<f64> {
    size(case).filter(|(_, found)| *found == condition).map(|(bytes, _)| bytes as f64)
}

fn middle(case: &str) -> Option<f64> {
    range(case).map(|(first, last)| (first + last) as f64 / 2.0)
}

fn pairs(case: &str, handlers: &str) -> Option<f64> {
    let (pairs, found) = case.split_once(", ")?;
    pairs.split(' ').next()?.parse().ok().filter(|_| found.starts_with(handlers))
}

/// The plots of a benchmark's figures, for each kernel.
pub fn of(view: &View) -> Vec<Markup> {
    view.by_kernel().iter().flat_map(of_part).collect()
}

fn of_part(view: &View) -> Vec<Markup> {
    let kernel = view.kernel.as_ref().map_or(String::new(), |kernel| format!(", Linux {kernel}"));
    let curves = CURVES.iter().filter(|curve| curve.bench == view.bench).filter_map(|curve| {
        plot::lines(&format!("{}{kernel}", curve.title), curve.x, curve.y, &curve.lines(view))
    });
    let bands = BANDS.iter().filter(|band| band.0 == view.bench).filter_map(|band| {
        let (_, title, unit, metrics) = band;
        plot::intervals(&format!("{title}{kernel}"), unit, &intervals(view, metrics))
    });
    curves.chain(bands).collect()
}

impl Curve {
    /// One line per subject.
    fn lines(&self, view: &View) -> Vec<Line> {
        let cases = view.cases(self.metrics);
        let of_subject = |subject: &str| {
            let point = |case: &&str| {
                let figure = view.first(case, subject, self.metrics)?;
                Some(((self.place)(case)?, figure.value)).filter(|(_, value)| *value > 0.0)
            };
            let mut points: Vec<(f64, f64)> = cases.iter().filter_map(point).collect();
            if self.relation == First {
                let first = points.first().map_or(1.0, |(_, value)| *value);
                points.iter_mut().for_each(|(_, value)| *value /= first);
            }
            Line { subject: subject.to_owned(), points }
        };
        view.subjects(self.metrics).into_iter().map(of_subject).collect()
    }
}

/// An interval for each case and subject that has a middle, which also replaces missing ends.
fn intervals(view: &View, [low, middle, high]: &[&[&str]; 3]) -> Vec<Interval> {
    let mut found = Vec::new();
    for case in view.cases(middle) {
        for subject in view.subjects(middle) {
            let value = |metrics| view.first(case, subject, metrics).map(|figure| figure.value);
            let Some(middle) = value(middle).filter(|middle| *middle > 0.0) else { continue };
            let end = |metrics| value(metrics).filter(|end| *end > 0.0).unwrap_or(middle);
            let (low, high) = (end(low), end(high));
            let (category, subject) = (case.to_owned(), subject.to_owned());
            found.push(Interval { category, subject, low, middle, high });
        }
    }
    found
}
