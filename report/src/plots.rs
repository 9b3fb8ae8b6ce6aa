//! Plots of each benchmark.

use bench::histogram;

use crate::axis::Axis;
use crate::figures::{View, range, size};
use crate::interval_plot::{self, Interval};
use crate::line_plot::{self, Line};
use crate::plot::Plot;
use crate::subject;

/// The plots of a benchmark's figures: if there are several kernels, first a comparison of the
/// kernels, then everything measured on each.
pub fn of(view: &View) -> Vec<Plot> {
    let parts = view.by_kernel();
    let mut views = Vec::new();
    if parts.len() > 1 {
        let names = drivers(view, &parts);
        views.push((
            view.only(|name| names.iter().any(|one| one == name)),
            ", the drivers by kernel".to_owned(),
        ));
    }
    for part in parts {
        let note = part.kernel.as_ref().map_or(String::new(), |kernel| format!(", Linux {kernel}"));
        views.push((part, note));
    }
    views.iter().flat_map(|(view, note)| of_part(view, note)).collect()
}

/// The kernels' own drivers, one of our own on each kernel (the first: passthrough, if it was
/// measured), and the published ones.
fn drivers(view: &View, parts: &[View]) -> Vec<String> {
    let all = view.subjects(&view.metrics());
    let wanted = |name: &&str| match subject::split(name) {
        None => subject::is_published(name),
        Some((base, kernel)) => {
            let part = parts.iter().find(|part| part.kernel.as_deref() == Some(kernel));
            let ours = part
                .and_then(|part| part.subjects(&part.metrics()).first().map(|&name| name == base));
            ["kernel", "kernel-rust"].contains(&base)
                || (subject::is_ours(base) && ours == Some(true))
        }
    };
    all.into_iter().filter(wanted).map(str::to_owned).collect()
}

fn of_part(view: &View, note: &str) -> Vec<Plot> {
    let plots = match view.bench.as_str() {
        "roundtrip" => roundtrip(view),
        "throughput" => throughput(view),
        "handles" => handles(view),
        "sendvec" => sendvec(view),
        "contention" => vec![contention(view)],
        "reclaim" => vec![reclaim(view)],
        _ => vec![],
    };
    let named = |plot: Plot| Plot { title: format!("{}{note}", plot.title), ..plot };
    // A plot of only published figures is no comparison.
    let own = |plot: &Plot| plot.subjects.iter().any(|name| !subject::is_published(name));
    plots.into_iter().flatten().filter(own).map(named).collect()
}

/// One line per subject: for each case the position on the x axis, and the first of the metrics.
fn lines(view: &View, metrics: &[&str], place: impl Fn(&str) -> Option<f64>) -> Vec<Line> {
    let cases = view.cases(metrics);
    let of_subject = |subject: &str| {
        let point = |case: &&str| Some((place(case)?, view.first(case, subject, metrics)?.value));
        let points = cases.iter().filter_map(point).filter(|(_, value)| *value > 0.0).collect();
        Line { subject: subject.to_owned(), points }
    };
    view.subjects(metrics).into_iter().map(of_subject).collect()
}

/// Each line relative to its own first point.
fn over_first(lines: &[Line]) -> Vec<Line> {
    let over = |line: &Line| {
        let first = line.points.first().map_or(1.0, |(_, value)| *value);
        let points = line.points.iter().map(|(x, y)| (*x, y / first)).collect();
        Line { subject: line.subject.clone(), points }
    };
    lines.iter().map(over).collect()
}

fn xs(lines: &[Line]) -> impl Iterator<Item = f64> {
    lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x)
}

fn ys(lines: &[Line]) -> impl Iterator<Item = f64> {
    lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y)
}

/// A plot with logarithmic axes, sizes in bytes on the x axis.
fn by_size(title: &str, y_label: &str, lines: &[Line]) -> Option<Plot> {
    let x = Axis::sizes("size", xs(lines));
    line_plot::draw(title, x, Axis::logarithmic(y_label, ys(lines)), lines)
}

/// The bytes of cases under a condition, such as `idle`; empty: of those without one.
fn size_under(condition: &'static str) -> impl Fn(&str) -> Option<f64> {
    move |case| size(case).filter(|(_, found)| *found == condition).map(|(bytes, _)| bytes as f64)
}

/// Conditions of round trips, and their names in titles.
const PLACEMENTS: [(&str, &str); 2] = [("", "one core"), ("any core", "any core")];

fn roundtrip(view: &View) -> Vec<Option<Plot>> {
    let of_placement = |(condition, placement)| {
        let times = lines(view, &["rtt_us_p50"], size_under(condition));
        let ratios = lines(view, &["over_seqpacket"], size_under(condition));
        let over = "Round trip over that of a Unix seqpacket socket on one core";
        [
            by_size(&format!("Round trip by size, median, {placement}"), "µs", &times),
            by_size(&format!("{over}, {placement}"), "ratio", &ratios),
            distribution(view, condition, placement),
        ]
    };
    PLACEMENTS.into_iter().flat_map(of_placement).collect()
}

/// The histogram of the round trips with the smallest message.
fn distribution(view: &View, condition: &'static str, placement: &str) -> Option<Plot> {
    let cases = view.cases(&["rtt_us_p50"]);
    let case = cases.into_iter().find(|case| size_under(condition)(case).is_some())?;
    let of_case = view.iter().filter(|figure| figure.case == case);
    let buckets: Vec<(&str, f64, f64)> = of_case
        .filter_map(|f| Some((f.subject.as_str(), histogram::bound_of(&f.metric)?, f.value)))
        .collect();
    let first = buckets.iter().map(|(_, bound, _)| *bound).reduce(f64::min)?;
    let last = buckets.iter().map(|(_, bound, _)| *bound).reduce(f64::max)?;
    let line = |subject: &str| {
        // Empty buckets are not in the results.
        let percent = |bound: f64| {
            let same = |&&(of, at, _): &&(&str, f64, f64)| of == subject && at == bound;
            buckets.iter().find(same).map_or(0.0, |(_, _, percent)| *percent)
        };
        let points = histogram::bounds_us(first, last).into_iter().map(|at| (at, percent(at)));
        Line { subject: subject.to_owned(), points: points.collect() }
    };
    let lines: Vec<Line> = view.subjects(&["rtt_us_p50"]).into_iter().map(line).collect();
    let x = Axis::logarithmic("µs, upper bound of the bucket", xs(&lines));
    let y = Axis::linear("round trips, %", ys(&lines));
    let smallest = case.split(',').next().unwrap_or(case);
    let title = format!("Distribution of round trips, {smallest}, {placement}");
    line_plot::draw(&title, x, y, &lines)
}

fn throughput(view: &View) -> Vec<Option<Plot>> {
    let with = |handlers: &'static str| {
        move |case: &str| {
            let (pairs, found) = case.split_once(", ")?;
            pairs.split(' ').next()?.parse().ok().filter(|_| found == handlers)
        }
    };
    let plot = |handlers: &'static str| {
        let lines = lines(view, &["calls_per_s"], with(handlers));
        let title = format!("Calls per second by number of pairs, {handlers}");
        let y = Axis::logarithmic("calls per second", ys(&lines));
        line_plot::draw(&title, Axis::logarithmic("pairs", xs(&lines)), y, &lines)
    };
    vec![plot("idle handlers"), plot("busy handlers")]
}

fn handles(view: &View) -> Vec<Option<Plot>> {
    let middle = |case: &str| range(case).map(|(first, last)| (first + last) as f64 / 2.0);
    let all = lines(view, &["rtt_us_p50", "rtt_us_mean", "allocation_us_p50"], middle);
    let grown = over_first(&all);
    let mut ours = lines(view, &["rtt_us_p50"], middle);
    ours.retain(|line| !subject::is_published(&line.subject));
    let x = |lines: &[Line]| Axis::linear("handles in use", xs(lines));
    let ratio = Axis::logarithmic("over the first range", ys(&grown));
    let time = Axis::linear("µs", ys(&ours));
    vec![
        line_plot::draw(
            "Each over its own first range (other machines' figures too)",
            x(&grown),
            ratio,
            &grown,
        ),
        line_plot::draw("Round trip that brings a new node, median", x(&ours), time, &ours),
    ]
}

fn sendvec(view: &View) -> Vec<Option<Plot>> {
    let metrics = ["echo_us_p50", "echo_us_mean"];
    let idle = lines(view, &metrics, size_under("idle"));
    let stress = lines(view, &metrics, size_under("stress"));
    let grown = over_first(&idle);
    let ratios = lines(view, &["stress_over_idle"], size_under(""));
    let ratio = Axis::logarithmic("stress ÷ idle", ys(&ratios).chain([1.0]));
    let sizes = Axis::sizes("size", xs(&ratios));
    vec![
        by_size("Echo by size, idle", "µs", &idle),
        by_size("Echo by size, under memory stress", "µs", &stress),
        by_size("Each over its own smallest vector, idle", "ratio", &grown),
        line_plot::draw("Under memory stress over idle", sizes, ratio, &ratios),
    ]
}

/// An interval for each case and subject that has a middle, which also replaces missing ends.
fn intervals(view: &View, low: &[&str], middle: &str, high: &[&str]) -> Vec<Interval> {
    let mut found = Vec::new();
    for case in view.cases(&[middle]) {
        for subject in view.subjects(&[middle]) {
            let Some(figure) = view.find(case, subject, middle) else { continue };
            let end =
                |metrics| view.first(case, subject, metrics).map_or(figure.value, |end| end.value);
            let (low, middle, high) = (end(low), figure.value, end(high));
            if low > 0.0 && middle > 0.0 && high > 0.0 {
                let (category, subject) = (case.to_owned(), subject.to_owned());
                found.push(Interval { category, subject, low, middle, high });
            }
        }
    }
    found
}

fn contention(view: &View) -> Option<Plot> {
    let found = intervals(view, &["min_us"], "avg_us", &["max_us"]);
    let title = "A call by class: shortest, average, longest";
    interval_plot::draw(title, "µs", &view.cases(&["avg_us"]), &found)
}

fn reclaim(view: &View) -> Option<Plot> {
    let low = ["mb_per_s_min", "mb_per_s_low"];
    let found = intervals(view, &low, "mb_per_s", &["mb_per_s_max", "mb_per_s_high"]);
    let title = "Memory freed a second: least, median, most";
    interval_plot::draw(title, "MB/s", &view.cases(&["mb_per_s"]), &found)
}
