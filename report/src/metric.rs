//! Known metrics: their meaning, and which direction is better.

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
    /// Values near one.
    One,
    Neither,
}

use Better::{Higher, Lower, Neither, One};

/// Key in the results, label, direction.
const KNOWN: &[(&str, &str, Better)] = &[
    ("rtt_us_p50", "Round trip, median", Lower),
    ("rtt_us_p90", "Round trip, 90th percentile", Lower),
    ("rtt_us_p99", "Round trip, 99th percentile", Lower),
    ("rtt_us_p999", "Round trip, 99.9th percentile", Lower),
    ("rtt_us_max", "Round trip, longest", Lower),
    ("rtt_us_mean", "Round trip, mean", Lower),
    ("over_seqpacket", "Median over that of a Unix seqpacket socket", Lower),
    ("calls_per_s", "Calls a second, all pairs", Higher),
    ("rate_over_seqpacket", "Calls a second over those of Unix seqpacket sockets", Higher),
    ("daemon_cpu_us", "CPU time of the daemon per call", Lower),
    ("descriptor_us", "What a descriptor adds to the median, each", Lower),
    ("call_us_p50", "Call, median", Lower),
    ("call_us_p999", "Call, 99.9th percentile", Lower),
    ("call_us_max", "Call, longest", Lower),
    ("probe_us_p999", "Delay of the probe, 99.9th percentile", Lower),
    ("call_over_probe", "99.9th percentile of calls over that of the probe", Lower),
    ("over_no_attack", "Calls over probe, over the same without an attack", One),
    ("daemon_cpu", "CPUs that the daemon used", Lower),
    ("allocation_us_p50", "Allocation alone, median", Lower),
    ("allocation_us_p99", "Allocation alone, 99th percentile", Lower),
    ("last_over_first", "Last range over first range", One),
    ("echo_us_p50", "Echo, median", Lower),
    ("echo_us_p99", "Echo, 99th percentile", Lower),
    ("echo_us_max", "Echo, longest", Lower),
    ("echo_us_mean", "Echo, mean", Lower),
    ("cpu_us", "CPU time an echo, all that take part", Lower),
    ("client_cpu_us", "CPU time an echo, the caller alone", Lower),
    ("stress_over_idle", "Under memory stress over idle", One),
    ("stress_over_idle_over_seqpacket", "The same over the socket's", One),
    ("avg_us", "Call, average", Lower),
    ("min_us", "Call, shortest", Lower),
    ("max_us", "Call, longest", Lower),
    ("p99_us", "Call, 99th percentile", Lower),
    ("alone_us_p50", "Call without the others, median", Lower),
    ("max_over_median", "Longest call over the median without the others", Lower),
    ("max_over_min", "Longest call over shortest", Lower),
    ("order3_allocations", "Physically contiguous allocations of order 3 and above", Lower),
    ("daemon_bytes_per_open", "Bytes that the daemon keeps for an idle open", Lower),
    ("back_share", "Share of idle buffers' pages given back, percent", Higher),
    ("back_ms", "Until all that is idle is given back, ms", Lower),
    ("call_warm_us", "Call into a warm buffer, median", Lower),
    ("call_after_us", "The first call after its memory was taken, median", Lower),
    ("cpu_over_off", "CPU time with the watcher over that without one", One),
    ("events", "Events a page touched, a fork, or a compiler run", Neither),
    ("event_ns", "Of an event, the measuring included, ns", Lower),
    ("pages_over_at_kill", "Pages above the limit at the kill", Lower),
    ("pages_over_peak", "Pages above the limit, most", Lower),
    ("pages_over", "Pages above the limit", Lower),
    ("victims", "Processes killed", Lower),
    ("kills", "Processes killed", Lower),
    ("mb_per_s", "Memory freed a second, from the signal on", Higher),
    ("over_limit", "Rate over the machine's physical limit", Higher),
    ("cost_over_malloc", "Cost over malloc's", Lower),
    ("usable_share", "Share of the limit that could be used", Higher),
    (
        "unknown_differences",
        "Cases that differ from the kernel's driver without a listed reason",
        Lower,
    ),
    ("known_differences", "Cases that differ for a listed reason", Lower),
    ("unlike_its_record", "Cases in which the kernel's driver differs from its own record", Lower),
    ("cases", "Cases played", Neither),
    ("scan_us_p50", "Until the victim is found, median", Lower),
    ("scan_over_reads", "The same over earlyoom's reads", Lower),
    ("stall_ms_max", "Longest stall of the interactive process", Lower),
    ("victims_wrong", "Wrong victims", Lower),
    ("recover_ms", "Until memory is back", Lower),
    ("kernel_oom_kills", "Kills by the kernel's own OOM killer", Lower),
    ("observer_late_ms_max", "Observer late: how long the host starved the machine", Lower),
    ("first_death_ms", "Until the load first lost a process", Neither),
    ("load_killed", "Processes of the load killed", Neither),
    ("available_mib_min", "Lowest available memory", Neither),
];

fn known(key: &str) -> Option<&'static (&'static str, &'static str, Better)> {
    KNOWN.iter().find(|metric| metric.0 == key)
}

/// A metric's label; its key if it is unknown.
pub fn label(key: &str) -> &str {
    known(key).map_or(key, |metric| metric.1)
}

/// Which direction of a metric is better, if one is.
pub fn better(key: &str) -> &'static str {
    match known(key).map(|metric| metric.2) {
        Some(Lower) => " · lower is better",
        Some(Higher) => " · higher is better",
        Some(One) => " · nearer to 1 is better",
        Some(Neither) | None => "",
    }
}

/// Human-readable form of a unit.
pub fn unit(unit: &str) -> &str {
    match unit {
        "us" => "µs",
        "mb_per_s" => "MB/s",
        "ratio" => "×",
        other => other,
    }
}

/// The metric of which this one is an end of the interval: `x` for `x_low`, if `x` exists.
pub fn interval_of<'k>(key: &'k str, all: &[&str]) -> Option<&'k str> {
    let ends = ["_low", "_high", "_min", "_max"];
    let base = ends.iter().find_map(|end| key.strip_suffix(end))?;
    all.contains(&base).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_metric_is_called_by_its_key() {
        assert_eq!(label("rtt_us_p50"), "Round trip, median");
        assert_eq!((label("wombats"), better("wombats")), ("wombats", ""));
    }

    #[test]
    fn ends_of_intervals_belong_to_their_metric() {
        let all = ["mb_per_s", "mb_per_s_min", "max_us", "stall_ms_max"];
        assert_eq!(interval_of("mb_per_s_min", &all), Some("mb_per_s"));
        assert_eq!(interval_of("stall_ms_max", &all), None);
        assert_eq!(interval_of("mb_per_s", &all), None);
    }
}
