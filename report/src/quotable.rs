//! The key figures: a table after the claims, and the same for a terminal.

use std::fmt::Write as _;

use bench::results::Measurement;
use maud::{Markup, html};

use crate::figures::{Clock, Figures, View};
use crate::metric;
use crate::number;
use crate::pivot;
use crate::sections::SECTIONS;
use crate::subject;

/// Quotable metrics, and their cases.
const WORTH: &[(&str, &str, Cases)] = &[
    ("roundtrip", "rtt_us_p50", Cases::Ends),
    ("roundtrip", "over_seqpacket", Cases::Ends),
    ("libraries", "over_seqpacket", Cases::All),
    ("throughput", "rate_over_seqpacket", Cases::All),
    ("mix", "rate_over_seqpacket", Cases::All),
    ("handles", "last_over_first", Cases::All),
    ("sendvec", "stress_over_idle", Cases::First),
    ("sendvec", "largest_over_smallest", Cases::All),
    ("contention", "max_over_median", Cases::All),
    ("contention", "order3_allocations", Cases::All),
    ("buffers", "daemon_bytes_per_open", Cases::All),
    ("buffers", "back_share", Cases::All),
    ("buffers", "back_ms", Cases::All),
    ("notifier", "cpu_over_off", Cases::All),
    ("overshoot", "pages_over_at_kill", Cases::All),
    ("overshoot", "victims", Cases::All),
    ("reclaim", "mb_per_s", Cases::All),
    ("reclaim", "over_limit", Cases::All),
    ("tmalloc", "cost_over_malloc", Cases::All),
    ("tmalloc", "kills", Cases::All),
    ("tmalloc", "pages_over", Cases::All),
    ("tmalloc", "usable_share", Cases::All),
    ("daemon", "rss_kib", Cases::All),
    ("daemon", "idle_cpu_percent", Cases::All),
    ("daemon", "start_ms", Cases::All),
    ("conformance", "unknown_differences", Cases::All),
    ("scenario", "stall_ms_max", Cases::All),
    ("scenario", "recover_ms", Cases::All),
    ("scenario", "victims_wrong", Cases::All),
    ("scenario", "kernel_oom_kills", Cases::All),
];

/// Selection of the cases of a metric.
#[derive(Clone, Copy)]
enum Cases {
    All,
    /// The smallest and the largest.
    Ends,
    /// The summary of the others: it is sorted before them.
    First,
}

/// One line: the figures of each subject.
struct Quote {
    what: String,
    clock: Clock,
    metric: String,
    unit: String,
    figures: Vec<(String, String)>,
}

fn quotes(figures: &Figures) -> Vec<(&'static str, Vec<Quote>)> {
    let mut all = Vec::new();
    for section in &SECTIONS {
        let mut quotes = Vec::new();
        for clock in figures.clocks(section.bench) {
            let parts = figures.view(section.bench, clock).by_kernel();
            for (_, metric, cases) in WORTH.iter().filter(|(bench, _, _)| *bench == section.bench) {
                quotes.extend(parts.iter().flat_map(|part| of_metric(part, metric, *cases)));
            }
        }
        if !quotes.is_empty() {
            all.push((section.title, quotes));
        }
    }
    all
}

fn of_metric(view: &View, metric: &str, wanted: Cases) -> Vec<Quote> {
    let mut cases = view.cases(&[metric]);
    // Without a measurement of our own there is nothing to quote.
    cases.retain(|case| {
        let own = |f: &Measurement| {
            !subject::is_published(&f.subject) && f.case == *case && f.metric == metric
        };
        view.iter().any(own)
    });
    match wanted {
        Cases::All => {}
        Cases::Ends if cases.len() > 2 => cases = vec![cases[0], cases[cases.len() - 1]],
        Cases::Ends => {}
        Cases::First => cases.truncate(1),
    }
    let of_case = |case: &str| {
        let subjects = view.subjects(&[metric, "max_over_min", "stall_ms_max"]);
        let mut figures = Vec::new();
        let mut unit = String::new();
        for name in subjects {
            // The published tables have no median: their own ratio is shown instead, with a note.
            let instead = ["max_over_min"];
            let instead: &[&str] = if metric == "max_over_median" { &instead } else { &[] };
            let found = view.find(case, name, metric).map(|f| (f, ""));
            let found =
                found.or_else(|| view.first(case, name, instead).map(|f| (f, " (max ÷ min)")));
            let Some((figure, note)) = found else {
                // Subjects that took part, but did not get memory back in most runs, are mentioned.
                if metric == "recover_ms" && view.find(case, name, "stall_ms_max").is_some() {
                    figures.push((name.to_owned(), "never".to_owned()));
                }
                continue;
            };
            if unit.is_empty() {
                metric::unit(&figure.unit).clone_into(&mut unit);
            }
            let range = pivot::interval(view, figure).map_or(String::new(), |(low, high)| {
                format!(
                    " ({}–{})",
                    number::figure(low, &figure.unit),
                    number::figure(high, &figure.unit)
                )
            });
            figures.push((
                name.to_owned(),
                format!("{}{range}{note}", number::figure(figure.value, &figure.unit)),
            ));
        }
        let (mut what, clock) = (pivot::case_name(case), view.clock);
        if let Some(kernel) =
            view.kernel.as_ref().filter(|kernel| !pivot::names_kernel(case, kernel))
        {
            what += &format!(" on Linux {kernel}");
        }
        Quote { what, clock, metric: metric.to_owned(), unit, figures }
    };
    cases.into_iter().map(of_case).collect()
}

/// Text for a terminal: one paragraph per benchmark, one line per figure, with its subjects.
pub fn text(figures: &Figures) -> String {
    let mut out = String::new();
    for (title, quotes) in quotes(figures) {
        let _ = writeln!(out, "{}", clean(title));
        for quote in quotes {
            let each: Vec<String> =
                quote.figures.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let head = format!("{}{} {}", quote.clock.prefix(), quote.what, quote.metric);
            let _ = writeln!(
                out,
                "  {:<42} {}: {}",
                clean(&head),
                quote.unit,
                clean(&each.join(" · "))
            );
        }
    }
    out
}

/// Removes control characters: a file must not control the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// The same figures as a table of the page.
pub fn render(figures: &Figures) -> Markup {
    let all = quotes(figures);
    html! {
        @if !all.is_empty() {
            section id="short" {
                h2 { "Key figures" }
                div.scroll tabindex="0" {
                    table.short {
                        @for (title, quotes) in &all {
                            tbody {
                                tr { th.group colspan="2" scope="colgroup" { (title) } }
                                @for quote in quotes {
                                    tr {
                                        th scope="row" {
                                            (quote.what) ", " (metric::label(&quote.metric))
                                            @if !quote.unit.is_empty() { ", " (quote.unit) }
                                            @if quote.clock != Clock::Wall {
                                                small { (quote.clock.name()) }
                                            }
                                        }
                                        td { ul.figures {
                                            @for (name, value) in &quote.figures {
                                                li.ours[subject::is_ours(name)]
                                                  .published[subject::is_published(name)] {
                                                    (name) " " b { (value) }
                                                }
                                            }
                                        } }
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
