//! Tables of figures: one row per case, one column per subject.

use bench::results::Measurement;
use maud::{Markup, html};

use crate::figures::{View, range};
use crate::metric;
use crate::number;
use crate::subject;

/// Content of a table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The metric, and its replacements for subjects without it: the mean for a median.
    pub main: &'static [&'static str],
    /// Secondary figures in the same cells.
    pub beside: &'static [&'static str],
}

/// The metrics of a table; for benchmarks unknown to the report they are known only at run time.
struct Metrics<'m> {
    main: &'m [&'m str],
    beside: &'m [&'m str],
}

impl Table {
    /// The table, if its metric was measured.
    pub fn render(&self, view: &View) -> Option<Markup> {
        let own = view.iter().any(|figure| {
            self.main.contains(&figure.metric.as_str()) && !subject::is_published(&figure.subject)
        });
        own.then(|| table(view, &Metrics { main: self.main, beside: self.beside }))
    }

    /// Whether it shows the metric.
    pub fn shows(&self, metric: &str) -> bool {
        self.main.contains(&metric) || self.beside.contains(&metric)
    }
}

/// A table of one metric.
pub fn single(view: &View, metric: &str) -> Markup {
    table(view, &Metrics { main: &[metric], beside: &[] })
}

fn table(view: &View, metrics: &Metrics) -> Markup {
    let key = metrics.main[0];
    let unit = metrics.main.iter().find_map(|key| view.iter().find(|f| f.metric == *key));
    let unit = metric::unit(unit.map_or("", |figure| figure.unit.as_str()));
    let better = metric::known(key).map_or("", |known| known.better.text());
    let parts = view.by_kernel();
    let columns = columns(&parts, metrics);
    html! {
        figure.table {
            figcaption {
                (capital(metric::label(key)))
                @if !unit.is_empty() { ", " (unit) }
                @if !better.is_empty() { span.better { (better) } }
                code { (key) }
            }
            div.scroll tabindex="0" {
                table {
                    thead { tr {
                        th scope="col" { "case" }
                        @for (name, instead) in &columns {
                            th.ours[subject::is_ours(name)]
                              .published[subject::is_published(name)] scope="col" {
                                (name)
                                @if let Some(instead) = instead {
                                    small { (metric::word(instead)) }
                                }
                            }
                        }
                    } }
                    tbody {
                        @for (case, part, kernel) in rows(view, &parts, metrics) {
                            tr {
                                th scope="row" { (row_name(case, kernel)) }
                                @for (name, instead) in &columns {
                                    td.ours[subject::is_ours(name)]
                                      .published[subject::is_published(name)] {
                                        (cell(part, case, name, metrics, *instead))
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The subjects, and the metric that replaces the main one in a whole column: it is named once, in
/// its header.
fn columns<'m>(parts: &[View], metrics: &Metrics<'m>) -> Vec<(String, Option<&'m str>)> {
    let mut names: Vec<&str> = Vec::new();
    for name in parts.iter().flat_map(|part| part.subjects(metrics.main)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| subject::rank(name));
    let column = |name: &&str| ((*name).to_owned(), stands_in(parts, name, metrics));
    names.iter().map(column).collect()
}

/// The metric that replaces the main one in all cells of a subject.
fn stands_in<'m>(parts: &[View], subject: &str, metrics: &Metrics<'m>) -> Option<&'m str> {
    let of_part = |part: &View| {
        let cases = part.cases(metrics.main);
        let found = cases.iter().filter_map(|case| part.first(case, subject, metrics.main));
        found.map(|figure| figure.metric.clone()).collect::<Vec<_>>()
    };
    let mut keys: Vec<String> = parts.iter().flat_map(of_part).collect();
    keys.dedup();
    let [one] = &keys[..] else { return None };
    metrics.main.iter().skip(1).find(|key| *key == one).copied()
}

/// A row for each case and kernel that was measured; a case that was only published has one row.
fn rows<'v>(
    view: &'v View,
    parts: &'v [View],
    metrics: &Metrics,
) -> Vec<(&'v str, &'v View, Option<&'v str>)> {
    let mut rows = Vec::new();
    for case in view.cases(metrics.main) {
        let there = |part: &&View| {
            let mut names = part.subjects(metrics.main).into_iter();
            names.any(|name| {
                !subject::is_published(name) && part.first(case, name, metrics.main).is_some()
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

fn cell(
    view: &View,
    case: &str,
    subject: &str,
    metrics: &Metrics,
    instead: Option<&str>,
) -> Markup {
    let Some(figure) = view.first(case, subject, metrics.main) else {
        return html! { span.muted { "–" } };
    };
    let beside = metrics.beside.iter().filter_map(|key| view.find(case, subject, key));
    html! {
        span title=(format!("{} runs", number::count(figure.runs as u64))) {
            (number::figure(figure.value, &figure.unit))
        }
        @if figure.metric != metrics.main[0] && instead.is_none() {
            small { (metric::word(&figure.metric)) }
        }
        @if let Some((low, high)) = interval(view, figure) {
            small {
                "(" (number::figure(low, &figure.unit)) " – "
                (number::figure(high, &figure.unit)) ")"
            }
        }
        @for lesser in beside {
            small {
                (metric::word(&lesser.metric)) " " (number::figure(lesser.value, &lesser.unit))
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

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// All figures, as they were read.
pub fn everything(view: &View) -> Markup {
    html! {
        div.scroll tabindex="0" {
            table.plain {
                thead { tr {
                    @for head in ["case", "subject", "metric", "value", "unit", "runs"] {
                        th scope="col" { (head) }
                    }
                } }
                tbody {
                    @for figure in view.iter() {
                        tr.ours[subject::is_ours(&figure.subject)] {
                            td { (figure.case) }
                            td { (figure.subject) }
                            td { (figure.metric) }
                            td.number { (figure.value) }
                            td { (figure.unit) }
                            td.number { (figure.runs) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bench::results::{Key, Value};

    use super::*;
    use crate::figures::{Clock, Figure, Figures};

    fn figures() -> Figures {
        let line = |case: &str, subject: &str, metric: &str, value: f64| {
            Figure::measured(Measurement::new(
                Key { bench: "b", case, subject, metric },
                Value { value, unit: "us", runs: 1200 },
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
        for html in [single(&view, "x"), everything(&view)].map(Markup::into_string) {
            assert!(!html.contains("<script"), "{html}");
            assert!(html.contains("&lt;script&gt;alert(1)") && html.contains("a&amp;b"), "{html}");
        }
    }

    #[test]
    fn a_cell_shows_its_interval_and_how_many_runs() {
        let figures = figures();
        let html = single(&figures.view("b", Clock::Wall), "x").into_string();
        for wanted in ["1,235", "(1,000 – 2,000)", "1,200 runs", "0 – 10,000"] {
            assert!(html.contains(wanted), "{wanted} in {html}");
        }
    }
}
