//! The first section: one row per claim of the project, with its anchor, our figure and a verdict.

use std::fmt::Write as _;

use bench::results::Measurement;
use maud::{Markup, html};

use crate::figures::{Clock, Figures, View};
use crate::metric;
use crate::number;
use crate::pivot;

/// A claim about one metric. It must hold in every measured case, on every kernel and clock.
struct Claim {
    text: &'static str,
    bench: &'static str,
    metric: &'static str,
    /// The only case that counts; `None`: all.
    case: Option<&'static str>,
    /// Our subject: itself, or followed by a kernel.
    subject: &'static str,
    bound: Bound,
    anchor: Anchor,
}

/// The direction in which the anchor limits our figure.
#[derive(Clone, Copy)]
enum Bound {
    AtMost,
    AtLeast,
}

/// The figure that ours is compared with.
enum Anchor {
    /// A published figure, or a goal, with its origin.
    Fixed(f64, &'static str),
    /// The best of the subjects with these prefixes in the same case, by the same clock.
    BestOf(&'static [&'static str]),
}

use Anchor::{BestOf, Fixed};
use Bound::{AtLeast, AtMost};

const fn claim(text: &'static str, bench: &'static str, metric: &'static str) -> Claim {
    let (bound, anchor) = (AtMost, Fixed(0.0, "goal"));
    Claim { text, bench, metric, case: None, subject: "headroom", bound, anchor }
}

impl Claim {
    const fn of(mut self, subject: &'static str) -> Self {
        self.subject = subject;
        self
    }

    const fn case(mut self, case: &'static str) -> Self {
        self.case = Some(case);
        self
    }

    const fn bound(mut self, bound: Bound, anchor: Anchor) -> Self {
        self.bound = bound;
        self.anchor = anchor;
        self
    }
}

const PASSTHROUGH: &str = "headroom passthrough";
const PEERS: Anchor = BestOf(&["earlyoom", "nohang", "systemd-oomd", "none"]);

/// One screen: at most [`MOST`] rows.
const CLAIMS: &[Claim] = &[
    claim("Call of 4 B, multiple of a Unix socket's", "roundtrip", "over_seqpacket")
        .of(PASSTHROUGH)
        .case("4 B")
        .bound(AtMost, BestOf(&["kernel"])),
    claim("Last 10,000 of 100,000 handles over the first", "handles", "last_over_first")
        .of(PASSTHROUGH)
        .bound(AtMost, Fixed(1.05, "published bitmap")),
    claim("Echo beside a memory stressor over an idle one", "sendvec", "stress_over_idle")
        .of(PASSTHROUGH)
        .case("all")
        .bound(AtMost, Fixed(1.0075, "published kvcalloc")),
    claim("Allocations of order 3 to open and map", "contention", "order3_allocations"),
    claim("Longest call during reclaim over its median, fifo-99", "contention", "max_over_median")
        .case("fifo-99")
        .bound(AtMost, Fixed(54.0, "published spinlock")),
    claim("the same, fifo-1", "contention", "max_over_median")
        .case("fifo-1")
        .bound(AtMost, Fixed(291.0, "published spinlock")),
    claim("the same, nice -20", "contention", "max_over_median")
        .case("nice -20")
        .bound(AtMost, Fixed(390.0, "published spinlock")),
    claim("the same, nice 19", "contention", "max_over_median")
        .case("nice 19")
        .bound(AtMost, Fixed(3228.0, "published spinlock")),
    claim("Daemon's memory per idle open", "buffers", "daemon_bytes_per_open")
        .bound(AtMost, Fixed(1024.0, "goal")),
    claim("Unknown differences from the kernel's driver", "conformance", "unknown_differences"),
    claim("CPU time with limits over without, 8 processes", "notifier", "cpu_over_off")
        .case("8 processes")
        .bound(AtMost, Fixed(1.1, "published notifier")),
    claim("CPU time while no limit is set, over without", "notifier", "cpu_over_off")
        .of("headroom, no limit")
        .bound(AtMost, Fixed(1.0, "published notifier")),
    claim("Memory over the limit at the kill", "overshoot", "pages_over_at_kill")
        .bound(AtMost, Fixed(1.0, "published scan")),
    claim("the same while the daemon is stopped", "overshoot", "pages_over_at_kill")
        .of("headroom stopped")
        .bound(AtMost, Fixed(297.0, "published notifier")),
    claim("Reclaim of a killed process over munmap", "reclaim", "over_limit")
        .bound(AtLeast, Fixed(0.8, "goal")),
    claim("Victim selection over reading /proc", "scan", "scan_over_reads")
        .of("headroom, machine")
        .bound(AtMost, Fixed(1.0, "earlyoom's reads")),
    claim("Kills of programs that use tmalloc", "tmalloc", "kills").of("tmalloc"),
    claim("Memory over the limit with tmalloc", "tmalloc", "pages_over").of("tmalloc"),
    claim("Longest stall of an interactive process", "scenario", "stall_ms_max")
        .bound(AtMost, PEERS),
    claim("Time until memory is back", "scenario", "recover_ms").bound(AtMost, PEERS),
    claim("Processes killed without need", "scenario", "victims_wrong"),
];

/// Largest number of rows that fit one screen with the header.
#[cfg(test)]
const MOST: usize = 24;

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
    fn badness(&self, bound: Bound) -> f64 {
        let (ours, anchor) = match bound {
            AtMost => (self.ours.value, self.anchor),
            AtLeast => (self.anchor, self.ours.value),
        };
        // There is no ratio to an anchor of zero, which is the same in all cases of a claim.
        if anchor == 0.0 { ours } else { ours / anchor }
    }
}

impl Claim {
    /// The comparison of the worst case; `None` if nothing was measured.
    fn worst(&self, figures: &Figures) -> Option<Comparison> {
        let clocks = figures.clocks(self.bench);
        let views =
            clocks.into_iter().flat_map(|clock| figures.view(self.bench, clock).by_kernel());
        let all = views.flat_map(|view| self.comparisons(&view));
        all.max_by(|a, b| a.badness(self.bound).total_cmp(&b.badness(self.bound)))
    }

    fn comparisons(&self, view: &View) -> Vec<Comparison> {
        let wanted = |figure: &&Measurement| {
            figure.metric == self.metric
                && self.case.is_none_or(|case| case == figure.case)
                && self.is_subject(&figure.subject)
        };
        view.iter().filter(wanted).filter_map(|ours| self.compare(view, ours)).collect()
    }

    fn is_subject(&self, name: &str) -> bool {
        name == self.subject
            || crate::subject::split(name).is_some_and(|(base, _)| base == self.subject)
            || (self.subject == "headroom" && is_device(name))
    }

    fn compare(&self, view: &View, ours: &Measurement) -> Option<Comparison> {
        let (anchor, anchor_name) = match &self.anchor {
            Fixed(value, name) => (*value, (*name).to_owned()),
            BestOf(prefixes) => self.best(view, ours, prefixes)?,
        };
        let holds = |value: f64| match self.bound {
            AtMost => value <= anchor,
            AtLeast => value >= anchor,
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

    /// The best figure of other subjects in the case of ours.
    fn best(&self, view: &View, ours: &Measurement, names: &[&str]) -> Option<(f64, String)> {
        let other = |figure: &&Measurement| {
            figure.metric == self.metric
                && figure.case == ours.case
                && names.iter().any(|prefix| figure.subject.starts_with(prefix))
        };
        let sign = match self.bound {
            AtMost => 1.0,
            AtLeast => -1.0,
        };
        let better =
            |a: &&Measurement, b: &&Measurement| (sign * a.value).total_cmp(&(sign * b.value));
        let best = view.iter().filter(other).min_by(better)?;
        Some((best.value, best.subject.clone()))
    }
}

/// A mapping of our device: a claim about `headroom` holds for all of them.
fn is_device(name: &str) -> bool {
    [PASSTHROUGH, "headroom notify-store"].iter().any(|device| name.starts_with(device))
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
        let bound = match claim.bound {
            AtMost => "≤",
            AtLeast => "≥",
        };
        let unit = &worst.ours.unit;
        let anchor = format!("{bound} {} ({})", shown(worst.anchor, unit), worst.anchor_name);
        let ours = shown(worst.ours.value, unit);
        Row { claim, anchor, ours, place: worst.place, verdict: worst.verdict }
    };
    CLAIMS.iter().map(row).collect()
}

/// The anchor of a claim without a measurement.
fn fixed(claim: &Claim) -> String {
    match &claim.anchor {
        Fixed(value, name) => format!("{} ({name})", number::show(*value)),
        BestOf(names) => format!("best of {}", names.join(", ")),
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
                    @for head in ["claim", "anchor", "ours", "worst case", "verdict"] {
                        th scope="col" { (head) }
                    }
                } }
                tbody { @for row in rows(figures) {
                    tr {
                        th scope="row" {
                            @if measured.contains(&row.claim.bench) {
                                a href=(format!("#{}", row.claim.bench)) { (row.claim.text) }
                            } @else { (row.claim.text) }
                        }
                        td { (row.anchor) }
                        td.ours { (row.ours) }
                        td { (row.place) }
                        td.wrong[row.verdict == Verdict::Missed] { (row.verdict.text()) }
                    }
                } }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use bench::results::{Key, Value};

    use super::*;
    use crate::figures::Figure;
    use crate::sections::SECTIONS;

    fn figure(case: &str, subject: &str, metric: &str, value: f64) -> Figure {
        let key = Key { bench: "scenario", case, subject, metric };
        Figure::measured(Measurement::new(key, Value { value, unit: "ms", runs: 3 }))
    }

    fn verdict(claim: &Claim, all: &[Figure]) -> Option<Verdict> {
        claim.worst(&Figures::new(all.to_vec())).map(|worst| worst.verdict)
    }

    #[test]
    fn the_claims_fit_one_screen_and_name_known_benchmarks_and_metrics() {
        assert!(CLAIMS.len() <= MOST);
        for claim in CLAIMS {
            assert!(SECTIONS.iter().any(|section| section.bench == claim.bench), "{}", claim.text);
            assert_ne!(metric::label(claim.metric), claim.metric);
        }
    }

    #[test]
    fn the_worst_case_decides() {
        let claim = claim("", "scenario", "m").bound(AtMost, Fixed(10.0, "goal"));
        let [good, bad] = [("leak", 9.0), ("herd", 11.0)]
            .map(|(case, value)| figure(case, "headroom", "m", value));
        assert_eq!(verdict(&claim, std::slice::from_ref(&good)), Some(Verdict::Met));
        assert_eq!(verdict(&claim, &[bad, good]), Some(Verdict::Missed));
        assert_eq!(verdict(&claim, &[]), None);
    }

    #[test]
    fn an_anchor_inside_of_the_interval_is_within_the_error() {
        let claim = claim("", "scenario", "m").bound(AtMost, Fixed(10.0, "goal"));
        let ends = |low: f64| {
            [("m", 11.0), ("m_low", low), ("m_high", 12.0)]
                .map(|(metric, value)| figure("leak", "headroom", metric, value))
        };
        assert_eq!(verdict(&claim, &ends(9.0)), Some(Verdict::WithinError));
        assert_eq!(verdict(&claim, &ends(10.5)), Some(Verdict::Missed));
    }

    #[test]
    fn a_rate_must_reach_its_anchor() {
        let claim = claim("", "scenario", "m").bound(AtLeast, Fixed(0.8, "goal"));
        let all = [("a", 0.9), ("b", 0.7)].map(|(case, v)| figure(case, "headroom", "m", v));
        assert_eq!(verdict(&claim, &all[..1]), Some(Verdict::Met));
        assert_eq!(verdict(&claim, &all), Some(Verdict::Missed));
    }

    #[test]
    fn the_best_other_subject_of_the_same_case_is_the_anchor() {
        let claim = claim("", "scenario", "m").bound(AtMost, PEERS);
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
