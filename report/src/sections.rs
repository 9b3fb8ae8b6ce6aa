//! Content of each benchmark's section, and how to read it.

use bench::histogram;
use maud::{Markup, html};

use crate::figures::{Clock, Figures, View};
use crate::metric;
use crate::pivot::{self, Table};
use crate::plots;
use crate::scenario::{self, RunSet};
use crate::scenario_table;

/// The section of a benchmark on the page.
pub struct Section<'a> {
    /// Name of the benchmark in the results.
    pub bench: &'a str,
    /// Title of the section.
    pub title: &'a str,
    /// The comparison, and which direction is better.
    reading: &'a str,
    tables: &'static [Table],
}

const fn table(main: &'static [&'static str], beside: &'static [&'static str]) -> Table {
    Table { main, beside }
}

const ROUND_TRIPS: Table = table(&["rtt_us_p50"], &["rtt_us_p90", "rtt_us_p99", "rtt_us_p999"]);

/// The known benchmarks, in their order.
pub const SECTIONS: [Section<'static>; 18] = [
    Section {
        bench: "roundtrip",
        title: "Round trips",
        reading: "A message of each size goes to another process and the same comes back, over \
                  binder devices and over a Unix socket, a pipe and a futex in the same run, with \
                  all processes on one core, and with placement by the scheduler (any core); \
                  shorter is better. The subjects alternate in passes: in brackets is the \
                  interquartile range of the passes' medians, and of their ratios to the socket \
                  on one core.",
        tables: &[ROUND_TRIPS, table(&["over_seqpacket"], &[])],
    },
    Section {
        bench: "libraries",
        title: "Client libraries",
        reading: "A text is echoed through unmodified libraries of other projects, with placement \
                  by the scheduler, beside a message over a Unix socket on one core in the same \
                  run; shorter is better. The service and the client of libgbinder are in Python: \
                  the time of the service's interpreter is part of the call.",
        tables: &[ROUND_TRIPS, table(&["over_seqpacket"], &[])],
    },
    Section {
        bench: "throughput",
        title: "Calls per second",
        reading: "Pairs of a client and a server call at the same time, with handlers that reply \
                  at once (idle) or use 75 µs of CPU time (busy), beside as many pairs over Unix \
                  sockets in the same run; more calls, and less CPU time of the daemon per call, \
                  are better. In brackets: the interquartile range.",
        tables: &[
            table(&["calls_per_s"], &[]),
            table(&["rate_over_seqpacket"], &[]),
            table(&["daemon_cpu_us"], &[]),
        ],
    },
    Section {
        bench: "mix",
        title: "Mix of operations",
        reading: "Clients replay calls of several sizes, one-way calls, nested calls, descriptors \
                  and pings at the same time, the same ones over Unix sockets in the same run; \
                  more per second, and shorter, are better. The shares are chosen \
                  (docs/benchmarks.md). A one-way call lasts until it is accepted.",
        tables: &[
            table(&["calls_per_s"], &[]),
            table(&["rate_over_seqpacket"], &[]),
            table(&["daemon_cpu_us"], &[]),
            ROUND_TRIPS,
            table(&["over_seqpacket"], &[]),
        ],
    },
    Section {
        bench: "descriptors",
        title: "File descriptors in calls",
        reading: "A call without descriptors and with some, given to the receiver by ptrace or by \
                  a seccomp listener, which every call pays for, and over a Unix socket by \
                  SCM_RIGHTS in the same run; shorter is better.",
        tables: &[table(&["descriptor_us"], &[]), ROUND_TRIPS, table(&["over_seqpacket"], &[])],
    },
    Section {
        bench: "handles",
        title: "Handles in use",
        reading: "Every call brings a new node that the server keeps, so more and more handles are \
                  in use; a flat line (last range over first near 1) is better. Published figures \
                  are from phones: compare shapes, not microseconds.",
        tables: &[
            table(&["last_over_first"], &[]),
            table(
                &["rtt_us_p50", "rtt_us_mean", "allocation_us_p50"],
                &["rtt_us_p99", "allocation_us_p99"],
            ),
        ],
    },
    Section {
        bench: "sendvec",
        title: "Vectors echoed",
        reading: "Vectors of 4 B to 64 KiB are echoed on an idle machine and beside a process that \
                  eats memory; shorter is better, and stress over idle should stay near 1. \
                  Published figures are from phones: compare shapes.",
        tables: &[
            table(&["stress_over_idle"], &[]),
            table(&["stress_over_idle_over_seqpacket"], &[]),
            table(&["largest_over_smallest"], &[]),
            table(&["echo_us_p50", "echo_us_mean"], &["echo_us_p99"]),
        ],
    },
    Section {
        bench: "contention",
        title: "Contention between scheduling classes",
        reading: "Clients of several scheduling classes call one server at once; a short longest \
                  call is better, above all as a multiple of the median of the same client alone \
                  (published: of its shortest call).",
        tables: &[
            table(&["max_over_median", "max_over_min"], &[]),
            table(&["avg_us"], &["min_us", "max_us"]),
            table(&["order3_allocations"], &[]),
            table(&["pages_reclaimed_per_s"], &[]),
        ],
    },
    Section {
        bench: "attacks",
        title: "Calls during attacks",
        reading: "A client calls while other users attack the daemon, one attack at a time and all \
                  at once; over the case without an attack, each relative to the delay of a \
                  real-time probe in the same pass; near 1 is better.",
        tables: &[
            table(&["over_no_attack"], &[]),
            table(&["call_us_p50"], &["call_us_p999", "call_us_max"]),
            table(&["probe_us_p999"], &[]),
            table(&["daemon_cpu"], &[]),
        ],
    },
    Section {
        bench: "buffers",
        title: "Unused receive buffers",
        reading: "What the daemon keeps for each idle open, and how fast and how much of idle \
                  clients' warm buffers goes back when memory is short; less, faster, and all of \
                  it are better.",
        tables: &[
            table(&["daemon_bytes_per_open"], &[]),
            table(&["back_share"], &[]),
            table(&["back_ms"], &["back_ms_max"]),
            table(&["call_warm_us", "call_after_us"], &[]),
        ],
    },
    Section {
        bench: "notifier",
        title: "Cost of the memory notifier",
        reading: "The same work with and without a watcher; CPU time over \
                  that without one, nearer to 1 is better. Beside ours: one that looks at all \
                  processes at every event, and one that does five times a second. With no limit \
                  set ours is not attached: what is left is how exact the measurement is.",
        tables: &[
            table(&["cpu_over_off"], &[]),
            table(&["events"], &[]),
            table(&["event_ns"], &[]),
        ],
    },
    Section {
        bench: "overshoot",
        title: "Memory above the limit",
        reading: "Processes grow past their user's limit; fewer pages above it when the kill \
                  comes, and fewer victims, are better. Stopped: what works in the kernel while \
                  the daemon does not run. The control group's limit is the kernel's own: it \
                  refuses a page before it kills.",
        tables: &[
            table(&["pages_over_at_kill"], &[]),
            table(&["pages_over_peak"], &[]),
            table(&["victims"], &[]),
        ],
    },
    Section {
        bench: "reclaim",
        title: "Reclaim of a killed process",
        reading: "How fast a killed process's memory comes back, from the signal until it is free: \
                  by the signal alone (kill), with process_mrelease from the thread that sent the \
                  signal (headroom kill), and from a reaper thread (headroom); munmap of the same \
                  memory is the physical limit. Faster is better, the slowest case counts most. \
                  Published figures are from a phone.",
        tables: &[table(&["mb_per_s"], &[]), table(&["over_limit"], &[])],
    },
    Section {
        bench: "tmalloc",
        title: "tmalloc",
        reading: "Allocations that are reserved before they are granted: a cost near plain \
                  malloc's, no kills, no page above the limit and a large usable share of it are \
                  better.",
        tables: &[
            table(&["cost_over_malloc"], &[]),
            table(&["kills"], &[]),
            table(&["pages_over"], &[]),
            table(&["usable_share"], &[]),
        ],
    },
    Section {
        bench: "daemon",
        title: "headroom-oomd itself",
        reading: "What the daemon takes while nothing happens, and how soon after its start all \
                  limits are in force; less is better.",
        tables: &[
            table(&["rss_kib"], &[]),
            table(&["own_kib"], &[]),
            table(&["idle_cpu_percent"], &[]),
            table(&["start_ms"], &[]),
        ],
    },
    Section {
        bench: "scan",
        title: "Finding the victim",
        reading: "From the decision to look until the verdict, among so many processes: our whole \
                  choice beside the reads of /proc that earlyoom makes; less is better.",
        tables: &[
            table(&["scan_us_p50", "scan_us_p99", "scan_us_max"], &[]),
            table(&["scan_over_reads"], &[]),
        ],
    },
    Section {
        bench: "conformance",
        title: "Conformance",
        reading: "The same cases are played on the kernel's own driver and on ours; each that \
                  differs must be listed with its reason, so fewer unknown differences are better, \
                  and none is the aim.",
        tables: &[
            table(&["unknown_differences"], &[]),
            table(&["known_differences"], &[]),
            table(&["cases"], &[]),
            table(&["unlike_its_record"], &[]),
        ],
    },
    Section {
        bench: scenario::BENCH,
        title: "Out-of-memory scenarios",
        reading: "The same small emulated machine runs out of memory with each OOM daemon, \
                  beside an interactive process and a bystander that must live; shorter \
                  stalls, memory back sooner and no wrong victim are better.",
        tables: &[
            table(&["stall_ms_max"], &[]),
            table(&["recover_ms"], &[]),
            table(&["victims_wrong"], &[]),
            table(&["kernel_oom_kills"], &[]),
        ],
    },
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
pub fn render(figures: &Figures, sets: &[RunSet]) -> Vec<Rendered> {
    let measured = figures.benches();
    let known = SECTIONS.iter().filter(|section| measured.contains(&section.bench));
    let mut all: Vec<Rendered> = known.map(|section| one(section, figures, sets)).collect();
    let unknown = |name: &&&str| SECTIONS.iter().all(|section| section.bench != **name);
    for (at, bench) in measured.iter().filter(unknown).enumerate() {
        let title = if bench.is_empty() { "(no name)" } else { bench };
        let reading = "A benchmark that this report has no words for: its figures as they are.";
        let section = Section { bench, title, reading, tables: &[] };
        let anchor = format!("other-{at}");
        let markup = markup(&anchor, &section, figures, &[]);
        all.push(Rendered { anchor, title: title.to_owned(), markup });
    }
    all
}

fn one(known: &Section<'_>, figures: &Figures, sets: &[RunSet]) -> Rendered {
    let Section { bench, title, .. } = known;
    let sets = if *bench == scenario::BENCH { sets } else { &[] };
    let markup = markup(bench, known, figures, sets);
    Rendered { anchor: (*bench).to_owned(), title: (*title).to_owned(), markup }
}

fn markup(anchor: &str, section: &Section<'_>, figures: &Figures, sets: &[RunSet]) -> Markup {
    let Section { bench, title, reading, tables } = *section;
    let clocks = figures.clocks(bench);
    html! {
        section id=(anchor) {
            h2 { (title) }
            p.reading { (reading) }
            @for clock in clocks {
                @let view = figures.view(bench, clock);
                // Conformance counts cases: there is no clock.
                @if ![scenario::BENCH, "conformance"].contains(&bench) { (clock_head(clock)) }
                @if sets.is_empty() { (body(&view, tables)) } @else {
                    p.clock { strong { "Clock." } " Real time inside the emulated machine, many \
                        times slower than hardware; a run whose observer came late measures rather \
                        the host." }
                    (scenario_table::render(sets))
                    (all_figures(&view))
                }
            }
        }
    }
}

fn clock_head(clock: Clock) -> Markup {
    html! {
        h3 { (clock.name()) }
        p.clock { (clock.explanation()) }
    }
}

fn body(view: &View, tables: &[Table]) -> Markup {
    let plots = plots::of(view);
    let all = view.metrics();
    let shown = |metric: &str| tables.iter().any(|table| table.shows(metric));
    // Ends of intervals are in the cells of their metric, and buckets in a plot.
    let part = |metric: &str| {
        metric::interval_of(metric, &all).is_some() || histogram::bound_of(metric).is_some()
    };
    let others: Vec<&str> =
        all.iter().copied().filter(|metric| !shown(metric) && !part(metric)).collect();
    let others = html! { @for metric in &others { (pivot::single(view, metric)) } };
    html! {
        @if !plots.is_empty() { div.plots { @for plot in &plots { (plot.render()) } } }
        div.tables {
            @for table in tables { @if let Some(table) = table.render(view) { (table) } }
            @if tables.is_empty() { (others) }
        }
        @if !tables.is_empty() && !others.0.is_empty() {
            details { summary { "More of what was measured" } div.tables { (others) } }
        }
        (all_figures(view))
    }
}

fn all_figures(view: &View) -> Markup {
    html! { details { summary { "All " (view.len()) " figures" } (pivot::everything(view)) } }
}
