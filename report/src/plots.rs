//! Plots of each benchmark.

use maud::Markup;

use crate::figures::{View, range, size};
use crate::plot::{self, Interval, Line, Scale};
use crate::tables::{Band, Curve, Place, TABLES};

/// Place of a case on the horizontal axis of a plot; `None`: it is not part of the plot.
fn place(curve: &Curve, case: &str) -> Option<f64> {
    match curve.x {
        Place::Size => size(case)
            .filter(|(_, condition)| *condition == curve.condition)
            .map(|(bytes, _)| bytes as f64),
        Place::Range => range(case).map(|(first, last)| (first + last) as f64 / 2.0),
        Place::Number => {
            let (number, condition) = case.split_once(", ")?;
            number.split(' ').next()?.parse().ok().filter(|_| condition == curve.condition)
        }
    }
}

/// The plots of a benchmark's figures, for each kernel.
pub fn of(view: &View) -> Vec<Markup> {
    view.by_kernel().iter().flat_map(of_part).collect()
}

fn of_part(view: &View) -> Vec<Markup> {
    let kernel = view.kernel.as_ref().map_or(String::new(), |kernel| format!(", Linux {kernel}"));
    let curves = TABLES.curves.iter().filter(|curve| curve.bench == view.bench);
    let curves = curves.filter_map(|curve| {
        let x = match curve.x {
            Place::Size => (Scale::Sizes, "size"),
            Place::Range => (Scale::Linear, "handles in use"),
            Place::Number => (Scale::Logarithmic, "pairs"),
        };
        let y = (Scale::Logarithmic, curve.y.as_str());
        plot::lines(&format!("{}{kernel}", curve.title), x, y, &lines(view, curve))
    });
    let bands = TABLES.bands.iter().filter(|band| band.bench == view.bench).filter_map(|band| {
        let title = format!("{}{kernel}", band.title);
        plot::intervals(&title, &band.unit, &intervals(view, band))
    });
    curves.chain(bands).collect()
}

fn names(metrics: &[String]) -> Vec<&str> {
    metrics.iter().map(String::as_str).collect()
}

/// One line per subject.
fn lines(view: &View, curve: &Curve) -> Vec<Line> {
    let metrics = names(&curve.metrics);
    let cases = view.cases(&metrics);
    let of_subject = |subject: &str| {
        let point = |case: &&str| {
            let value = view.first(case, subject, &metrics)?.value;
            Some((place(curve, case)?, value)).filter(|_| value > 0.0)
        };
        let mut points: Vec<(f64, f64)> = cases.iter().filter_map(point).collect();
        if curve.over_first {
            let first = points.first().map_or(1.0, |(_, value)| *value);
            points.iter_mut().for_each(|(_, value)| *value /= first);
        }
        Line { subject: subject.to_owned(), points }
    };
    view.subjects(&metrics).into_iter().map(of_subject).collect()
}

/// An interval for each case and subject that has a middle, which also replaces missing ends.
fn intervals(view: &View, band: &Band) -> Vec<Interval> {
    let (low, high) = (&names(&band.low)[..], &names(&band.high)[..]);
    let middle = &[band.middle.as_str()][..];
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
