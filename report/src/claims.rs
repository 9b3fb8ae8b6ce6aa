//! The first section: one row per claim of the project, with its anchor, our figure and a verdict.

use std::fmt::Write as _;

use bench::results::Measurement;
use maud::{Markup, html};

use crate::figures::{Clock, Figures, View};
use crate::metric;
use crate::number;
use crate::pivot;
use crate::tables::{Claim, KnownMiss, LastFigure, TABLES};

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    /// The anchor is inside of our figure's interval.
    WithinError,
    Missed,
    NotMeasured,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::WithinError => "within error",
            Self::Missed => "missed",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Our figure of a claim in one case, and the anchor there.
struct Comparison {
    ours: Measurement,
    /// The case with kernel and clock, if they matter.
    place: String,
    anchor: f64,
    anchor_name: String,
    verdict: Verdict,
}

impl Comparison {
    /// Order of the cases of one claim; larger is worse.
    fn badness(&self, claim: &Claim) -> f64 {
        let (mut ours, mut anchor) = (self.ours.value, self.anchor);
        if claim.at_least.is_some() {
            std::mem::swap(&mut ours, &mut anchor);
        }
        // There is no ratio to an anchor of zero, which is the same in all cases of a claim.
        if anchor == 0.0 { ours } else { ours / anchor }
    }
}

impl Claim {
    /// The comparison of the worst case; `None` if nothing was measured.
    fn worst(&self, figures: &Figures) -> Option<Comparison> {
        self.all(figures).max_by(|a, b| a.badness(self).total_cmp(&b.badness(self)))
    }

    fn all<'a>(&'a self, figures: &'a Figures) -> impl Iterator<Item = Comparison> + 'a {
        let clocks = figures.clocks(&self.bench).into_iter();
        let views = clocks.flat_map(|clock| figures.view(&self.bench, clock).by_kernel());
        views.flat_map(|view| self.comparisons(&view))
    }

    /// How much worse than the last figure in its place this one is, beyond the spread.
    fn worse_than_last(&self, now: &Comparison, last: &[LastFigure]) -> Option<String> {
        let last = last.iter().find(|last| last.claim == self.text && last.place == now.place)?;
        let (value, unit, place) = (now.ours.value, &now.ours.unit, &now.place);
        let worse_by = (value - last.value) * if self.at_least.is_none() { 1.0 } else { -1.0 };
        (worse_by > last.spread).then(|| {
            let [value, before, spread] = [value, last.value, last.spread].map(|v| shown(v, unit));
            format!("worse: {} in {place}: {value} after {before} ± {spread}", self.text)
        })
    }

    fn comparisons(&self, view: &View) -> Vec<Comparison> {
        let wanted = |figure: &&Measurement| {
            figure.metric == self.metric
                && self.case.as_ref().is_none_or(|case| *case == figure.case)
                && self.is_subject(&figure.subject)
        };
        view.iter().filter(wanted).filter_map(|ours| self.compare(view, ours)).collect()
    }

    fn is_subject(&self, name: &str) -> bool {
        let subject = self.subject.as_deref().unwrap_or("headroom");
        name == subject
            || crate::subject::split(name).is_some_and(|(base, _)| base == subject)
            // A claim about `headroom` holds for every mapping of a device.
            || (subject == "headroom"
                && (name.starts_with("headroom passthrough")
                    || name.starts_with("headroom notify-store")))
    }

    fn compare(&self, view: &View, ours: &Measurement) -> Option<Comparison> {
        let (anchor, anchor_name) = match self.at_most.or(self.at_least) {
            Some(value) => (value, self.origin.clone()),
            None => self.best(view, ours)?,
        };
        let holds = |value: f64| match self.at_least {
            Some(_) => value >= anchor,
            None => value <= anchor,
        };
        let inside = |(low, high)| holds(low) || holds(high);
        let verdict = if holds(ours.value) {
            Verdict::Met
        } else if pivot::interval(view, ours).is_some_and(inside) {
            Verdict::WithinError
        } else {
            Verdict::Missed
        };
        let place = place(view, &ours.case);
        Some(Comparison { ours: ours.clone(), place, anchor, anchor_name, verdict })
    }

    /// The lowest figure of other subjects in the case of ours.
    fn best(&self, view: &View, ours: &Measurement) -> Option<(f64, String)> {
        let other = |figure: &&Measurement| {
            figure.metric == self.metric
                && figure.case == ours.case
                && self.best_of.iter().any(|prefix| figure.subject.starts_with(prefix))
        };
        let lowest = view.iter().filter(other).min_by(|a, b| a.value.total_cmp(&b.value))?;
        Some((lowest.value, lowest.subject.clone()))
    }
}

fn place(view: &View, case: &str) -> String {
    let mut words = vec![pivot::case_name(case)];
    if let Some(kernel) = view.kernel.as_ref().filter(|kernel| !pivot::names_kernel(case, kernel)) {
        words.push(format!("Linux {kernel}"));
    }
    if view.clock != Clock::Wall {
        words.push(view.clock.name().to_lowercase());
    }
    words.join(", ")
}

fn shown(value: f64, unit: &str) -> String {
    format!("{} {}", number::figure(value, unit), metric::unit(unit))
}

/// A row of the section, as text.
struct Row {
    claim: &'static Claim,
    anchor: String,
    ours: String,
    place: String,
    verdict: Verdict,
}

fn rows(figures: &Figures) -> Vec<Row> {
    let row = |claim: &'static Claim| {
        let Some(worst) = claim.worst(figures) else {
            let (anchor, ours, place) = (fixed(claim), String::new(), String::new());
            return Row { claim, anchor, ours, place, verdict: Verdict::NotMeasured };
        };
        let bound = if claim.at_least.is_some() { "≥" } else { "≤" };
        let unit = &worst.ours.unit;
        let anchor = format!("{bound} {} ({})", shown(worst.anchor, unit), worst.anchor_name);
        let ours = shown(worst.ours.value, unit);
        Row { claim, anchor, ours, place: worst.place, verdict: worst.verdict }
    };
    TABLES.claims.iter().map(row).collect()
}

fn known_miss(claim: &Claim) -> Option<&'static KnownMiss> {
    TABLES.known_misses.iter().find(|known| known.claim == claim.text)
}

/// Each claim that is missed and not known to be, and each figure that is worse than the last one.
/// `report/src/tables.toml` has the reasons and the figures that are accepted.
pub fn failures(figures: &Figures) -> Vec<String> {
    let is_missed = |row: &Row| row.verdict == Verdict::Missed && known_miss(row.claim).is_none();
    let missed = rows(figures).into_iter().filter(is_missed).map(|row| {
        let Row { claim: Claim { text, .. }, anchor, ours, place, .. } = row;
        format!("missed, and no [[known-miss]]: {text} in {place}: {ours}, {anchor}")
    });
    let worse = TABLES.claims.iter().flat_map(|claim| {
        claim.all(figures).filter_map(|now| claim.worse_than_last(&now, &TABLES.last_figures))
    });
    missed.chain(worse).collect()
}

/// The anchor of a claim without a measurement.
fn fixed(claim: &Claim) -> String {
    match claim.at_most.or(claim.at_least) {
        Some(value) => format!("{} ({})", number::show(value), claim.origin),
        None => format!("best of {}", claim.best_of.join(", ")),
    }
}

/// The rows for a terminal.
pub fn text(figures: &Figures) -> String {
    let mut out = String::new();
    for Row { claim, anchor, ours, place, verdict } in rows(figures) {
        let ours = if place.is_empty() { ours } else { format!("{ours} ({place})") };
        let _ = writeln!(out, "{:<12}  {}: {ours}; {anchor}", verdict.text(), claim.text);
    }
    out
}

/// The section of the page.
pub fn render(figures: &Figures) -> Markup {
    let measured = figures.benches();
    html! {
        section id="claims" {
            h2 { "Claims" }
            p.reading {
                "Each row shows the worst measured case. \"Within error\": the anchor is inside of \
                 the interval of our figure."
            }
            div.scroll tabindex="0" { table.claims {
                thead { tr {
                    @for head in ["claim", "anchor", "ours", "worst case", "verdict", "accepted"] {
                        th scope="col" { (head) }
                    }
                } }
                tbody { @for row in rows(figures) {
                    tr {
                        th scope="row" {
                            @if measured.contains(&row.claim.bench.as_str()) {
                                a href=(format!("#{}", row.claim.bench)) { (row.claim.text) }
                            } @else { (row.claim.text) }
                        }
                        td { (row.anchor) }
                        td.ours { (row.ours) }
                        td { (row.place) }
                        td.wrong[row.verdict == Verdict::Missed] { (row.verdict.text()) }
                        @let known = known_miss(row.claim);
                        td { @if let (Verdict::Missed, Some(known)) = (row.verdict, known) {
                            "since " (known.since) ": " (known.reason)
                        } }
                    }
                } }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use bench::results::Key;

    use super::*;
    use crate::figures::Figure;

    /// Rows that fit one screen with the header.
    const MOST: usize = 24;

    fn claim() -> Claim {
        Claim { bench: "scenario".into(), metric: "m".into(), ..Claim::default() }
    }

    fn figure(case: &str, subject: &str, metric: &str, value: f64) -> Figure {
        let key = Key { bench: "scenario", case, subject, metric };
        Figure::of(Measurement::new(key, value, "ms", 3))
    }

    fn verdict(claim: &Claim, all: &[Figure]) -> Option<Verdict> {
        claim.worst(&Figures::new(all.to_vec())).map(|worst| worst.verdict)
    }

    #[test]
    fn the_claims_fit_one_screen_and_name_known_benchmarks_and_metrics() {
        assert!(TABLES.claims.len() <= MOST);
        for claim in &TABLES.claims {
            let anchors = [claim.at_most, claim.at_least].into_iter().flatten().count();
            assert_eq!(anchors + usize::from(!claim.best_of.is_empty()), 1, "{}", claim.text);
            assert!(
                TABLES.sections.iter().any(|section| section.bench == claim.bench),
                "{}",
                claim.text
            );
            assert_ne!(metric::label(&claim.metric), claim.metric);
        }
    }

    #[test]
    fn each_known_miss_is_a_claim_once() {
        for known in &TABLES.known_misses {
            let claims = TABLES.claims.iter().filter(|claim| claim.text == known.claim).count();
            let same = TABLES.known_misses.iter().filter(|other| other.claim == known.claim);
            assert_eq!((claims, same.count()), (1, 1), "{}", known.claim);
            assert_eq!(known.since.len(), "2026-01-01".len(), "{}", known.claim);
            assert!(!known.reason.is_empty(), "{}", known.claim);
        }
    }

    #[test]
    fn an_unknown_miss_fails_by_name_and_a_known_one_does_not() {
        let of = |claim: &Claim, value| {
            let key = Key {
                bench: &claim.bench,
                case: claim.case.as_deref().unwrap_or("any"),
                subject: claim.subject.as_deref().unwrap_or("headroom"),
                metric: &claim.metric,
            };
            Figures::new(vec![Figure::of(Measurement::new(key, value, "pages", 3))])
        };
        let bounded = || TABLES.claims.iter().filter(|claim| claim.at_most.is_some());
        let unknown = bounded().find(|claim| known_miss(claim).is_none()).expect("such a claim");
        let found = failures(&of(unknown, 1e9)).join(", ");
        assert!(found.contains(&unknown.text), "{found}");
        assert!(failures(&of(unknown, 0.0)).is_empty());
        for known in bounded().filter(|claim| known_miss(claim).is_some()) {
            assert!(failures(&of(known, 1e9)).is_empty(), "{}", known.text);
        }
    }

    #[test]
    fn a_figure_that_is_worse_than_the_last_by_more_than_its_spread_is_named() {
        let claim = Claim { text: "Pages".into(), at_most: Some(10.0), ..claim() };
        let last =
            LastFigure { claim: claim.text.clone(), place: "leak".into(), value: 2.0, spread: 1.0 };
        let worse = |claim: &Claim, case, value| {
            let figures = Figures::new(vec![figure(case, "headroom", "m", value)]);
            let now: Vec<Comparison> = claim.all(&figures).collect();
            now.iter().find_map(|now| claim.worse_than_last(now, slice::from_ref(&last)))
        };
        assert_eq!(worse(&claim, "leak", 3.0), None);
        let line = worse(&claim, "leak", 3.1).expect("worse");
        assert!(line.contains("Pages in leak"), "{line}");
        assert_eq!(worse(&claim, "herd", 9.0), None, "of another place");
        let rate = Claim { at_most: None, at_least: Some(1.0), ..claim };
        assert_eq!(worse(&rate, "leak", 1.0), None);
        assert!(worse(&rate, "leak", 0.9).is_some());
    }

    #[test]
    fn each_last_figure_is_of_a_claim_and_once_in_its_place() {
        for last in &TABLES.last_figures {
            let claims = TABLES.claims.iter().filter(|claim| claim.text == last.claim).count();
            let same = |other: &&LastFigure| other.claim == last.claim && other.place == last.place;
            let same = TABLES.last_figures.iter().filter(same).count();
            assert_eq!((claims, same), (1, 1), "{} in {}", last.claim, last.place);
        }
    }

    #[test]
    fn the_worst_case_decides() {
        let claim = Claim { at_most: Some(10.0), ..claim() };
        let [good, bad] = [("leak", 9.0), ("herd", 11.0)]
            .map(|(case, value)| figure(case, "headroom", "m", value));
        assert_eq!(verdict(&claim, std::slice::from_ref(&good)), Some(Verdict::Met));
        assert_eq!(verdict(&claim, &[bad, good]), Some(Verdict::Missed));
        assert_eq!(verdict(&claim, &[]), None);
    }

    #[test]
    fn an_anchor_inside_of_the_interval_is_within_the_error() {
        let claim = Claim { at_most: Some(10.0), ..claim() };
        let ends = |low: f64| {
            [("m", 11.0), ("m_low", low), ("m_high", 12.0)]
                .map(|(metric, value)| figure("leak", "headroom", metric, value))
        };
        assert_eq!(verdict(&claim, &ends(9.0)), Some(Verdict::WithinError));
        assert_eq!(verdict(&claim, &ends(10.5)), Some(Verdict::Missed));
    }

    #[test]
    fn a_rate_must_reach_its_anchor() {
        let claim = Claim { at_least: Some(0.8), ..claim() };
        let all = [("a", 0.9), ("b", 0.7)].map(|(case, v)| figure(case, "headroom", "m", v));
        assert_eq!(verdict(&claim, &all[..1]), Some(Verdict::Met));
        assert_eq!(verdict(&claim, &all), Some(Verdict::Missed));
    }

    #[test]
    fn the_best_other_subject_of_the_same_case_is_the_anchor() {
        let claim = Claim { best_of: vec!["earlyoom".into(), "none".into()], ..claim() };
        let all = [
            figure("leak", "headroom", "m", 8.0),
            figure("leak", "earlyoom", "m", 9.0),
            figure("leak", "none", "m", 90.0),
            figure("herd", "earlyoom", "m", 1.0),
        ];
        let worst = claim.worst(&Figures::new(all.to_vec())).expect("a comparison");
        assert_eq!((worst.anchor, worst.anchor_name.as_str()), (9.0, "earlyoom"));
        assert_eq!(worst.verdict, Verdict::Met);
    }
}
