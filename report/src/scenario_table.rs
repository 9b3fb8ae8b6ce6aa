//! The table of scenarios: OOM daemons by scenario, one row each.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::number;
use crate::scenario::{RunSet, Spread};
use crate::subject;

/// Limit of the observer's delay, milliseconds: beyond it the host starved the emulated machine so
/// long that the run is not meaningful. The stalls to be distinguished are some hundreds of
/// milliseconds.
const OBSERVER_LATE_MS: f64 = 1000.0;

/// Renders the sets, one table per machine.
pub fn render(sets: &[RunSet]) -> Markup {
    let mut machines: Vec<&str> = Vec::new();
    for set in sets {
        if !machines.contains(&set.machine.as_str()) {
            machines.push(&set.machine);
        }
    }
    html! {
        @for machine in machines {
            figure.table {
            figcaption {
                "Median of the runs (least – most)" @if !machine.is_empty() { ": " (machine) }
            }
            div.scroll tabindex="0" {
                table.scenario {
                    thead { tr {
                        @for head in [
                            "scenario", "OOM daemon", "killed", "longest stall",
                            "memory back after", "wrong victims", "kernel OOM kills",
                            "first death", "lowest available", "observer late", "runs",
                        ] {
                            th scope="col" { (head) }
                        }
                    } }
                    @for case in cases(sets, machine) {
                        tbody {
                            @for (at, set) in of(sets, machine, case).iter().enumerate() {
                                tr.ours[subject::is_ours(&set.subject)] {
                                    @if at == 0 {
                                        th.case scope="rowgroup"
                                            rowspan=(of(sets, machine, case).len()) { (case) }
                                    }
                                    th scope="row" { (set.subject) }
                                    (cells(set))
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

fn cases<'s>(sets: &'s [RunSet], machine: &str) -> Vec<&'s str> {
    let mut cases: Vec<&str> = Vec::new();
    for set in sets.iter().filter(|set| set.machine == machine) {
        if !cases.contains(&set.case.as_str()) {
            cases.push(&set.case);
        }
    }
    cases
}

/// OOM daemons of a scenario, our own first.
fn of<'s>(sets: &'s [RunSet], machine: &str, case: &str) -> Vec<&'s RunSet> {
    let same = |set: &&RunSet| set.machine == machine && set.case == case;
    let mut found: Vec<&RunSet> = sets.iter().filter(same).collect();
    found.sort_by_key(|set| subject::rank(&set.subject));
    found
}

fn cells(set: &RunSet) -> Markup {
    let late = set.spread("observer_late_ms_max");
    let starved = late.is_some_and(|late| late.max > OBSERVER_LATE_MS);
    let mib = |value: f64| format!("{} MiB", number::show(value));
    let kib_over = set.spread("over_limit_kib_max");
    html! {
        td.died { (died(set)) }
        td { (spread(set.spread("stall_ms_max"), number::milliseconds, "-")) }
        td { (spread(set.spread("recover_ms"), number::milliseconds, "never")) }
        td { (spread(set.spread("victims_wrong"), number::short, "-")) }
        td { (spread(set.spread("kernel_oom_kills"), number::short, "-")) }
        td { (spread(set.spread("first_death_ms"), number::milliseconds, "none")) }
        td {
            (spread(set.spread("available_mib_min"), mib, "-"))
            @if let Some(over) = kib_over {
                small { "over its limit by " (number::show(over.median)) " KiB" }
            }
        }
        td.doubtful[starved] {
            (spread(late, number::milliseconds, "-"))
            @if starved { small { "host starved it" } }
        }
        td { (set.len()) }
    }
}

fn died(set: &RunSet) -> Markup {
    let others = set.bystanders_died();
    let killed = set.spread("load_killed").filter(|killed| killed.max > 0.0);
    let ended = set.load_ended();
    let lost = set.daemon_lost();
    html! {
        @if let Some(killed) = killed {
            div {
                "load, " (spread(Some(killed), number::short, "-"))
                @if !ended.is_empty() { small { (listed(&ended, set.len())) } }
            }
        }
        @if killed.is_none() && !ended.is_empty() { div { "load: " (listed(&ended, set.len())) } }
        @if !others.is_empty() { div.wrong { (listed(&others, set.len())) } }
        @if lost > 0 { div.wrong { "the OOM daemon itself" (times(lost, set.len())) } }
        @if killed.is_none() && ended.is_empty() && others.is_empty() && lost == 0 { "none" }
    }
}

fn listed(counts: &BTreeMap<String, usize>, runs: usize) -> String {
    let each = counts.iter().map(|(name, count)| format!("{name}{}", times(*count, runs)));
    each.collect::<Vec<_>>().join(", ")
}

fn times(count: usize, runs: usize) -> String {
    if count == runs { String::new() } else { format!(" in {count} of {runs}") }
}

fn spread(value: Option<Spread>, show: impl Fn(f64) -> String, missing: &str) -> Markup {
    let Some(value) = value else { return html! { span.muted { (missing) } } };
    let Spread { median, min, max, never, runs } = value;
    let ends = if min == max { show(min) } else { format!("{} – {}", show(min), show(max)) };
    html! {
        @if median.is_infinite() {
            span.muted { (missing) }
            small { "in " (never) " of " (runs) ", else " (ends) }
        } @else {
            (show(median))
            @if min != max { small { "(" (ends) ")" } }
            @if never > 0 { small { (missing) " in " (never) " of " (runs) } }
        }
    }
}
