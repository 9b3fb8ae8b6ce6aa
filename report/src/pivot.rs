//! Tables of figures: one row per case, one column per subject.

use bench::results::Measurement;
use maud::{Markup, html};

use crate::figures::{View, range, unique};
use crate::metric;
use crate::number;
use crate::subject;

/// A table of a metric, or of its replacements for subjects without it, as the mean for a median.
/// Empty if nothing of that was measured.
pub fn table(view: &View, metric: &str) -> Markup {
    let metrics = &metric::with_replacements(metric)[..];
    let parts = view.by_kernel();
    let found = |figure: &&Measurement| metrics.contains(&figure.metric.as_str());
    let own = |figure: &&Measurement| found(figure) && !subject::is_published(&figure.subject);
    let Some(first) = view.iter().find(own) else { return html! {} };
    let mut subjects = unique(parts.iter().flat_map(|part| part.subjects(metrics)));
    subjects.sort_by_key(|name| subject::rank(name));
    html! {
        figure.table {
            figcaption {
                (metric::label(metrics[0])) ", " (metric::unit(&first.unit))
                span.better { (metric::better(metrics[0])) }
                code { (metrics[0]) }
            }
            div.scroll tabindex="0" { table {
                thead { tr {
                    th scope="col" { "case" }
                    @for name in &subjects {
                        th class=(subject::class(name)) scope="col" { (name) }
                    }
                } }
                tbody { @for (case, part, kernel) in rows(view, &parts, metrics) { tr {
                    th scope="row" { (row_name(case, kernel)) }
                    @for name in &subjects {
                        td class=(subject::class(name)) { (cell(part, case, name, metrics)) }
                    }
                } } }
            } }
        }
    }
}

/// A row for each case and kernel that was measured; a case that was only published has one row.
fn rows<'v>(
    view: &'v View,
    parts: &'v [View],
    metrics: &[&str],
) -> Vec<(&'v str, &'v View, Option<&'v str>)> {
    let mut rows = Vec::new();
    for case in view.cases(metrics) {
        let there = |part: &&View| {
            let mut names = part.subjects(metrics).into_iter();
            names.any(|name| {
                !subject::is_published(name) && part.first(case, name, metrics).is_some()
            })
        };
        let before = rows.len();
        rows.extend(parts.iter().filter(there).map(|part| (case, part, part.kernel.as_deref())));
        if rows.len() == before {
            rows.extend(parts.first().map(|part| (case, part, None)));
        }
    }
    rows
}

fn row_name(case: &str, kernel: Option<&str>) -> Markup {
    let kernel = kernel.filter(|kernel| !names_kernel(case, kernel));
    html! {
        (case_name(case))
        @if let Some(kernel) = kernel { " " span.kernel { "Linux " (kernel) } }
    }
}

fn cell(view: &View, case: &str, subject: &str, metrics: &[&str]) -> Markup {
    let Some(figure) = view.first(case, subject, metrics) else {
        return html! { span.muted { "–" } };
    };
    html! {
        span title=(format!("{} runs", number::count(figure.runs as u64))) {
            (number::figure(figure.value, &figure.unit))
        }
        @if figure.metric != metrics[0] { small { (metric::label(&figure.metric)) } }
        @if let Some((low, high)) = interval(view, figure) {
            small {
                "(" (number::figure(low, &figure.unit)) " – "
                (number::figure(high, &figure.unit)) ")"
            }
        }
    }
}

/// The interval of a figure, if it has one.
pub fn interval(view: &View, figure: &Measurement) -> Option<(f64, f64)> {
    let end = |ends: [&str; 2]| {
        let keys = ends.map(|end| format!("{}{end}", figure.metric));
        let keys = keys.each_ref().map(String::as_str);
        view.first(&figure.case, &figure.subject, &keys).map(|figure| figure.value)
    };
    let (low, high) = (end(["_low", "_min"])?, end(["_high", "_max"])?);
    // A single run has no interval.
    (low < high).then_some((low, high))
}

/// Whether the case itself names the kernel.
pub fn names_kernel(case: &str, kernel: &str) -> bool {
    case.strip_suffix(kernel).is_some_and(|rest| rest.ends_with(' '))
}

/// Human-readable name of a case.
pub fn case_name(case: &str) -> String {
    match range(case) {
        Some((first, last)) => format!("{} – {}", number::count(first), number::count(last)),
        None => case.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use bench::results::Key;

    use super::*;
    use crate::figures::{Clock, Figure, Figures};

    fn figures() -> Figures {
        let line = |case: &str, subject: &str, metric: &str, value: f64| {
            Figure::of(Measurement::new(
                Key { bench: "b", case, subject, metric },
                value,
                "us",
                1200,
            ))
        };
        Figures::new(vec![
            line("0-10000", "headroom", "x", 1235.0),
            line("0-10000", "headroom", "x_low", 1000.0),
            line("0-10000", "headroom", "x_high", 2000.0),
            line("<script>alert(1)</script>", "a&b", "x", 2.0),
        ])
    }

    #[test]
    fn a_hostile_case_is_text() {
        let figures = figures();
        let view = figures.view("b", Clock::Wall);
        let html = table(&view, "x").into_string();
        assert!(!html.contains("<script"), "{html}");
        assert!(html.contains("&lt;script&gt;alert(1)") && html.contains("a&amp;b"), "{html}");
    }

    #[test]
    fn a_cell_shows_its_interval_and_how_many_runs() {
        let figures = figures();
        let html = table(&figures.view("b", Clock::Wall), "x").into_string();
        for wanted in ["1,235", "(1,000 – 2,000)", "1,200 runs", "0 – 10,000"] {
            assert!(html.contains(wanted), "{wanted} in {html}");
        }
    }
}
