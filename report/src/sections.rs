//! The section of each benchmark.

use maud::{Markup, html};

use crate::figures::{Figures, View};
use crate::metric;
use crate::pivot;
use crate::plots;
use crate::scenario;
use crate::tables::{Section, TABLES};

/// A rendered section of the page: anchor, title, content.
pub struct Rendered {
    /// Anchor of the section.
    pub anchor: String,
    /// Title of the section.
    pub title: String,
    /// Content, including the title.
    pub markup: Markup,
}

/// Known benchmarks without measurements.
pub fn missing(figures: &Figures) -> Vec<&'static str> {
    let measured = figures.benches();
    TABLES
        .sections
        .iter()
        .map(|one| one.bench.as_str())
        .filter(|it| !measured.contains(it))
        .collect()
}

/// All sections that have figures: those of known benchmarks, then the others.
pub fn render(figures: &Figures) -> Vec<Rendered> {
    let measured = figures.benches();
    let known = TABLES.sections.iter().filter(|section| measured.contains(&section.bench.as_str()));
    let mut all: Vec<Rendered> = known.map(|one| rendered(&one.bench, one, figures)).collect();
    let unknown = |name: &&&str| TABLES.sections.iter().all(|section| section.bench != **name);
    for (at, bench) in measured.iter().filter(unknown).enumerate() {
        let title = if bench.is_empty() { "(no name)" } else { bench };
        let reading = "A benchmark that this report does not know: its figures as they are.";
        let [bench, title, reading] = [bench, title, reading].map(str::to_owned);
        let section = Section { bench, title, reading };
        all.push(rendered(&format!("other-{at}"), &section, figures));
    }
    all
}

fn rendered(anchor: &str, section: &Section, figures: &Figures) -> Rendered {
    let Section { bench, title, reading } = section;
    let markup = html! {
        section id=(anchor) {
            h2 { (title) }
            p.reading { (reading) }
            @for clock in figures.clocks(bench) {
                // Neither counts of cases nor scenarios have one of the clocks.
                @if ![scenario::BENCH, "conformance"].contains(&bench.as_str()) {
                    h3 { (clock.name()) }
                    p.clock { (clock.explanation()) }
                }
                (body(&figures.view(bench, clock)))
            }
        }
    };
    Rendered { anchor: anchor.to_owned(), title: title.clone(), markup }
}

fn body(view: &View) -> Markup {
    let plots = plots::of(view);
    let all = view.metrics();
    // Ends of intervals and replacements are in the cells of their metric.
    let own = |metric: &&&str| {
        metric::interval_of(metric, &all).is_none() && !metric::is_replacement(metric, &all)
    };
    html! {
        @if !plots.is_empty() { div.plots { @for plot in &plots { (plot) } } }
        div.tables { @for metric in all.iter().filter(own) { (pivot::table(view, metric)) } }
    }
}
