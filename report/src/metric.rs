//! Known metrics: their meaning, and which direction is better.

/// Description of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its key in the results.
    pub key: &'static str,
    /// Human-readable label.
    pub label: &'static str,
    /// Which direction is better, if one is.
    pub better: Better,
}

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Lower values.
    Lower,
    /// Higher values.
    Higher,
    /// Values near one.
    One,
    /// Neither direction.
    Neither,
}

impl Better {
    /// Description of the direction.
    pub fn text(self) -> &'static str {
        match self {
            Self::Lower => "lower is better",
            Self::Higher => "higher is better",
            Self::One => "nearer to 1 is better",
            Self::Neither => "",
        }
    }
}

const fn metric(key: &'static str, label: &'static str, better: Better) -> Metric {
    Metric { key, label, better }
}

use Better::{Higher, Lower, Neither, One};

const KNOWN: &[Metric] = &[
    metric("rtt_us_p50", "round trip, median", Lower),
    metric("rtt_us_p90", "round trip, 90th percentile", Lower),
    metric("rtt_us_p99", "round trip, 99th percentile", Lower),
    metric("rtt_us_p999", "round trip, 99.9th percentile", Lower),
    metric("rtt_us_max", "round trip, longest", Lower),
    metric("rtt_us_mean", "round trip, mean", Lower),
    metric("over_seqpacket", "median over that of a Unix seqpacket socket", Lower),
    metric("calls_per_s", "calls a second, all pairs", Higher),
    metric("rate_over_seqpacket", "calls a second over those of Unix seqpacket sockets", Higher),
    metric("daemon_cpu_us", "CPU time of the daemon per call", Lower),
    metric("descriptor_us", "what a descriptor adds to the median, each", Lower),
    metric("call_us_p50", "call, median", Lower),
    metric("call_us_p999", "call, 99.9th percentile", Lower),
    metric("call_us_max", "call, longest", Lower),
    metric("probe_us_p999", "delay of the probe, 99.9th percentile", Lower),
    metric("call_over_probe", "99.9th percentile of calls over that of the probe", Lower),
    metric("over_no_attack", "calls over probe, over the same without an attack", One),
    metric("daemon_cpu", "CPUs that the daemon used", Lower),
    metric("allocation_us_p50", "allocation alone, median", Lower),
    metric("allocation_us_p99", "allocation alone, 99th percentile", Lower),
    metric("last_over_first", "last range over first range", One),
    metric("echo_us_p50", "echo, median", Lower),
    metric("echo_us_p99", "echo, 99th percentile", Lower),
    metric("echo_us_max", "echo, longest", Lower),
    metric("echo_us_mean", "echo, mean", Lower),
    metric("cpu_us", "CPU time an echo, all that take part", Lower),
    metric("client_cpu_us", "CPU time an echo, the caller alone", Lower),
    metric("stress_over_idle", "under memory stress over idle", One),
    metric("stress_over_idle_over_seqpacket", "the same over the socket's", One),
    metric("largest_over_smallest", "largest vector over smallest", Lower),
    metric("avg_us", "call, average", Lower),
    metric("min_us", "call, shortest", Lower),
    metric("max_us", "call, longest", Lower),
    metric("p99_us", "call, 99th percentile", Lower),
    metric("alone_us_p50", "call without the others, median", Lower),
    metric("max_over_median", "longest call over the median without the others", Lower),
    metric("max_over_min", "longest call over shortest", Lower),
    metric("pages_reclaimed_per_s", "pages reclaimed a second meanwhile", Neither),
    metric("order3_allocations", "physically contiguous allocations of order 3 and above", Lower),
    metric("daemon_bytes_per_open", "bytes that the daemon keeps for an idle open", Lower),
    metric("back_share", "share of idle buffers' pages given back, percent", Higher),
    metric("back_ms", "until all that is idle is given back, ms", Lower),
    metric("call_warm_us", "call into a warm buffer, median", Lower),
    metric("call_after_us", "the first call after its memory was taken, median", Lower),
    metric("cpu_over_off", "CPU time with the watcher over that without one", One),
    metric("events", "events a page touched, a fork, or a compiler run", Neither),
    metric("event_ns", "of an event, the measuring included, ns", Lower),
    metric("pages_over_at_kill", "pages above the limit at the kill", Lower),
    metric("pages_over_peak", "pages above the limit, most", Lower),
    metric("pages_over", "pages above the limit", Lower),
    metric("victims", "processes killed", Lower),
    metric("kills", "processes killed", Lower),
    metric("mb_per_s", "memory freed a second, from the signal on", Higher),
    metric("over_limit", "rate over the machine's physical limit", Higher),
    metric("cost_over_malloc", "cost over malloc's", Lower),
    metric("usable_share", "share of the limit that could be used", Higher),
    metric(
        "unknown_differences",
        "cases that differ from the kernel's driver without a listed reason",
        Lower,
    ),
    metric("known_differences", "cases that differ for a listed reason", Lower),
    metric(
        "unlike_its_record",
        "cases in which the kernel's driver differs from its own record",
        Lower,
    ),
    metric("cases", "cases played", Neither),
    metric("scan_us_p50", "until the victim is found, median", Lower),
    metric("scan_over_reads", "the same over earlyoom's reads", Lower),
    metric("stall_ms_max", "longest stall of the interactive process", Lower),
    metric("victims_wrong", "wrong victims", Lower),
    metric("recover_ms", "until memory is back", Lower),
    metric("kernel_oom_kills", "kills by the kernel's own OOM killer", Lower),
    metric("observer_late_ms_max", "observer late: how long the host starved the machine", Lower),
    metric("first_death_ms", "until the load first lost a process", Neither),
    metric("load_killed", "processes of the load killed", Neither),
    metric("available_mib_min", "lowest available memory", Neither),
];

/// The description of a metric, if it is known.
pub fn known(key: &str) -> Option<&'static Metric> {
    KNOWN.iter().find(|metric| metric.key == key)
}

/// A metric's label; its key if it is unknown.
pub fn label(key: &str) -> &str {
    known(key).map_or(key, |metric| metric.label)
}

/// The word that marks secondary figures in a cell.
pub fn word(key: &str) -> &str {
    match key {
        "rtt_us_mean" | "echo_us_mean" => "mean",
        "allocation_us_p50" => "allocation alone",
        "max_over_min" => "max ÷ min",
        _ if key.ends_with("p90") => "p90",
        _ if key.ends_with("p999") => "p99.9",
        _ if key.ends_with("p99") || key.starts_with("p99") => "p99",
        _ if key.ends_with("max") || key.starts_with("max") => "max",
        _ if key.ends_with("min") || key.starts_with("min") => "min",
        _ if key.starts_with("alone") => "alone",
        _ => label(key),
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
        assert_eq!(label("rtt_us_p50"), "round trip, median");
        assert_eq!(label("wombats"), "wombats");
    }

    #[test]
    fn ends_of_intervals_belong_to_their_metric() {
        let all = ["mb_per_s", "mb_per_s_min", "max_us", "stall_ms_max"];
        assert_eq!(interval_of("mb_per_s_min", &all), Some("mb_per_s"));
        assert_eq!(interval_of("stall_ms_max", &all), None);
        assert_eq!(interval_of("mb_per_s", &all), None);
    }
}
