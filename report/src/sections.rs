//! Content of each benchmark's section, and how to read it.

use maud::{Markup, html};

use crate::figures::{Figures, View};
use crate::metric;
use crate::pivot;
use crate::plots;
use crate::scenario;

/// The section of a benchmark on the page.
pub struct Section<'a> {
    /// Name of the benchmark in the results.
    pub bench: &'a str,
    /// Title of the section.
    pub title: &'a str,
    /// The comparison, and which direction is better.
    reading: &'a str,
    /// Tables that are shown at once: a metric, and its replacements for subjects without it.
    tables: &'a [&'a [&'a str]],
}

const fn section<'a>(
    bench: &'a str,
    title: &'a str,
    reading: &'a str,
    tables: &'a [&'a [&'a str]],
) -> Section<'a> {
    Section { bench, title, reading, tables }
}

/// The known benchmarks, in their order.
pub const SECTIONS: &[Section<'static>] = &[
    section(
        "roundtrip",
        "Round trips",
        "A message of each size is echoed, with all processes on one core and with placement by \
         the scheduler (any core). In brackets: the interquartile range of the passes' medians, \
         and of their ratios to a Unix socket on one core.",
        &[&["over_seqpacket"], &["rtt_us_p50"], &["rtt_us_p999"]],
    ),
    section(
        "libraries",
        "Client libraries",
        "A text is echoed through unmodified libraries of other projects. The service and the \
         client of libgbinder are in Python: the time of the service's interpreter is part of the \
         call.",
        &[&["over_seqpacket"], &["rtt_us_p50"]],
    ),
    section(
        "throughput",
        "Calls per second",
        "Pairs of a client and a server call at the same time, with handlers that reply at once \
         (idle) or use CPU time (busy).",
        &[&["rate_over_seqpacket"], &["calls_per_s"], &["daemon_cpu_us"]],
    ),
    section(
        "mix",
        "Mix of operations",
        "Clients replay calls of several sizes, one-way calls, nested calls, descriptors and pings \
         (docs/benchmarks.md). A one-way call lasts until it is accepted.",
        &[&["rate_over_seqpacket"], &["calls_per_s"], &["daemon_cpu_us"], &["over_seqpacket"]],
    ),
    section(
        "descriptors",
        "File descriptors in calls",
        "A call without descriptors and with some; over a Unix socket by SCM_RIGHTS.",
        &[&["descriptor_us"], &["over_seqpacket"], &["rtt_us_p50"]],
    ),
    section(
        "handles",
        "Handles in use",
        "Every call brings a new node that the server keeps. Published figures are from phones: \
         compare shapes.",
        &[&["last_over_first"], &["rtt_us_p50", "rtt_us_mean", "allocation_us_p50"]],
    ),
    section(
        "sendvec",
        "Vectors echoed",
        "Vectors of 4 B to 64 KiB are echoed on an idle machine and beside a process that keeps \
         allocating memory. Published figures are from phones: compare shapes.",
        &[
            &["stress_over_idle"],
            &["stress_over_idle_over_seqpacket"],
            &["echo_us_p50", "echo_us_mean"],
        ],
    ),
    section(
        "contention",
        "Contention between scheduling classes",
        "Clients of several scheduling classes call one server at once; the longest call as a \
         multiple of the median of the same client alone (published: of its shortest call).",
        &[&["max_over_median", "max_over_min"], &["avg_us"], &["max_us"], &["order3_allocations"]],
    ),
    section(
        "attacks",
        "Calls during attacks",
        "A client calls while other users attack the daemon; each case relative to the delay of a \
         real-time probe in the same pass.",
        &[&["over_no_attack"], &["call_us_p50"], &["call_us_p999"], &["daemon_cpu"]],
    ),
    section(
        "buffers",
        "Unused receive buffers",
        "What the daemon keeps for each idle open, and how fast and how much of idle clients' \
         buffers is released when memory is short.",
        &[&["daemon_bytes_per_open"], &["back_share"], &["back_ms"], &["call_after_us"]],
    ),
    section(
        "notifier",
        "Cost of the memory notifier",
        "The same work with and without the notifier. With no limit set it is not attached: what \
         is left is how exact the measurement is.",
        &[&["cpu_over_off"], &["events"], &["event_ns"]],
    ),
    section(
        "overshoot",
        "Memory above the limit",
        "Processes grow past their user's limit. Stopped: what works in the kernel while the \
         daemon does not run.",
        &[&["pages_over_at_kill"], &["pages_over_peak"], &["victims"]],
    ),
    section(
        "reclaim",
        "Reclaim of a killed process",
        "From the signal until the memory is free: by the signal alone (kill), and as the daemon \
         does it. munmap of the same memory is the physical limit. Published figures are from a \
         phone.",
        &[&["over_limit"], &["mb_per_s"]],
    ),
    section(
        "tmalloc",
        "tmalloc",
        "Allocations that are reserved before they are granted.",
        &[&["kills"], &["pages_over"], &["usable_share"], &["cost_over_malloc"]],
    ),
    section(
        "daemon",
        "headroom-oomd itself",
        "What the daemon uses while nothing happens, and the time from its start until all limits \
         are in force.",
        &[&["rss_kib"], &["own_kib"], &["idle_cpu_percent"], &["start_ms"]],
    ),
    section(
        "scan",
        "Victim selection",
        "The whole selection among so many processes, beside the reads of /proc that earlyoom \
         makes.",
        &[&["scan_us_p50"], &["scan_over_reads"]],
    ),
    section(
        "conformance",
        "Conformance",
        "The same cases are played on the kernel's own driver and on ours; each that differs must \
         be listed with its reason.",
        &[&["unknown_differences"], &["known_differences"], &["cases"], &["unlike_its_record"]],
    ),
    section(
        scenario::BENCH,
        "Out-of-memory scenarios",
        "The same small emulated machine runs out of memory with each OOM daemon, beside an \
         interactive process and a bystander. Real time inside the machine; a run whose observer \
         came late measures rather the host.",
        &[&["stall_ms_max"], &["recover_ms"], &["victims_wrong"], &["kernel_oom_kills"]],
    ),
];

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
    SECTIONS.iter().map(|section| section.bench).filter(|name| !measured.contains(name)).collect()
}

/// All sections that have figures: those of known benchmarks, then the others.
pub fn render(figures: &Figures) -> Vec<Rendered> {
    let measured = figures.benches();
    let known = SECTIONS.iter().filter(|section| measured.contains(&section.bench));
    let mut all: Vec<Rendered> = known.map(|one| rendered(one.bench, one, figures)).collect();
    let unknown = |name: &&&str| SECTIONS.iter().all(|section| section.bench != **name);
    for (at, bench) in measured.iter().filter(unknown).enumerate() {
        let title = if bench.is_empty() { "(no name)" } else { bench };
        let reading = "A benchmark that this report does not know: its figures as they are.";
        let section = Section { bench, title, reading, tables: &[] };
        all.push(rendered(&format!("other-{at}"), &section, figures));
    }
    all
}

fn rendered(anchor: &str, section: &Section<'_>, figures: &Figures) -> Rendered {
    let Section { bench, title, reading, tables } = *section;
    let markup = html! {
        section id=(anchor) {
            h2 { (title) }
            p.reading { (reading) }
            @for clock in figures.clocks(bench) {
                // Neither counts of cases nor scenarios have one of the clocks.
                @if ![scenario::BENCH, "conformance"].contains(&bench) {
                    h3 { (clock.name()) }
                    p.clock { (clock.explanation()) }
                }
                (body(&figures.view(bench, clock), tables))
            }
        }
    };
    Rendered { anchor: anchor.to_owned(), title: title.to_owned(), markup }
}

fn body(view: &View, tables: &[&[&str]]) -> Markup {
    let plots = plots::of(view);
    let all = view.metrics();
    let shown = |metric: &str| tables.iter().any(|table| table.contains(&metric));
    // Ends of intervals are in the cells of their metric.
    let others: Vec<&str> = all
        .iter()
        .copied()
        .filter(|metric| !shown(metric) && metric::interval_of(metric, &all).is_none())
        .collect();
    html! {
        @if !plots.is_empty() { div.plots { @for plot in &plots { (plot) } } }
        div.tables { @for table in tables { (pivot::table(view, table)) } }
        @if !others.is_empty() {
            details open[tables.is_empty()] {
                summary { "Other figures" }
                div.tables { @for metric in others { (pivot::table(view, &[metric])) } }
            }
        }
    }
}
