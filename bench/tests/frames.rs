//! Runs benchmarks briefly: they succeed, print what the report reads, and leave no processes
//! behind.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use bench::results::{Measurement, parse};

/// One at a time: any child of this process after a program has exited was left behind by it.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a program with `--quick` and further arguments. Returns its lines; `None` if something that
/// it needs is missing.
fn quick(bench: &str, program: &str, more: &[&str]) -> Option<Vec<Measurement>> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !test_support::privileged() {
        return None;
    }
    if matches!(bench, "overshoot" | "notifier")
        && let Err(error) = memory_watch::Notifier::load()
    {
        test_support::skip(format_args!("{bench}: {error}"));
        return None;
    }
    // Orphans become children of this process instead of init's.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    assert_eq!(children(), [""; 0], "before {bench}");
    let output =
        Command::new(program).arg("--quick").args(more).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{bench}: {}: {stderr}", output.status);
    assert_eq!(children(), [""; 0], "{bench} left them behind");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = parse(&text).unwrap();
    assert_eq!(lines.len(), text.lines().count(), "a figure was printed twice: {text}");
    assert!(lines.iter().all(|line| line.bench == bench && line.runs > 0), "{lines:?}");
    Some(lines)
}

/// Children of this process in `/proc`: name and state.
fn children() -> Vec<String> {
    let ours = std::process::id().to_string();
    let stats = fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let child = |stat: &String| {
        let after_name = stat.rsplit_once(") ").map(|(_, rest)| rest);
        after_name.and_then(|rest| rest.split(' ').nth(1)) == Some(&ours)
    };
    stats.filter(child).map(|stat| stat.split(' ').take(3).collect::<Vec<_>>().join(" ")).collect()
}

/// The value of a metric in all of these cases.
fn values(lines: &[Measurement], subject: &str, metric: &str, wanted: &[&str]) -> Vec<f64> {
    let missing = |case: &str| format!("{case}, {subject}: no {metric} in {lines:#?}");
    let value = |case: &&str| {
        let same = |line: &&Measurement| {
            (line.case.as_str(), line.subject.as_str(), line.metric.as_str())
                == (*case, subject, metric)
        };
        lines.iter().find(same).unwrap_or_else(|| panic!("{}", missing(case))).value
    };
    wanted.iter().map(value).collect()
}

const ONE_MAPPING: [&str; 3] = ["--headroom", "--mapping", "notify-store"];
const PROCESSES: [&str; 3] = ["1 process", "4 processes", "8 processes"];

#[test]
fn overshoot_reports_pages_and_victims_of_each_guard() {
    let Some(lines) = quick("overshoot", env!("CARGO_BIN_EXE_overshoot"), &[]) else { return };
    for subject in ["headroom", "headroom proc"] {
        for metric in ["pages_over_at_kill", "pages_over_peak", "victims", "memory_back_ms"] {
            for metric in [metric.to_owned(), format!("{metric}_max")] {
                let found = values(&lines, subject, &metric, &PROCESSES);
                assert!(found.iter().all(|value| *value > 0.0), "{subject}, {metric}: {found:?}");
            }
        }
        let at_kill = values(&lines, subject, "pages_over_at_kill_max", &PROCESSES);
        let peak = values(&lines, subject, "pages_over_peak_max", &PROCESSES);
        assert!(at_kill.iter().zip(&peak).all(|(at, peak)| at <= peak), "{at_kill:?} {peak:?}");
    }
    // What a fork has brought is known within a second; sixteen pages are not worth a measurement.
    // A busy machine may not measure all of several in time: then it is less than what they have
    // inherited.
    const RESTED: [&str; 3] = ["1 process, rested", "4 processes, rested", "8 processes, rested"];
    let inherited = values(&lines, "headroom stopped", "pages_over_at_kill_max", &PROCESSES);
    for subject in ["headroom", "headroom stopped"] {
        let over = values(&lines, subject, "pages_over_at_kill_max", &RESTED);
        let bounds = [16.0, inherited[1] / 2.0, inherited[2] / 2.0];
        assert!(over.iter().zip(bounds).all(|(over, bound)| *over <= bound), "{subject}: {over:?}");
    }
    let victims = values(&lines, "headroom stopped", "victims", &PROCESSES);
    assert!(victims.iter().all(|value| *value > 0.0), "{victims:?}");
    assert!(inherited.iter().all(|value| *value >= 0.0), "{inherited:?}");
    let in_kernel = values(&lines, "headroom proc", "killed_in_kernel", &PROCESSES);
    assert_eq!(in_kernel, [0.0; 3]);
}

#[test]
fn buffers_reports_what_idle_opens_cost_and_how_fast_their_memory_goes_back() {
    // The daemon is beside the program once the workspace is built, as `make test` does first.
    let Some(lines) = quick("buffers", env!("CARGO_BIN_EXE_buffers"), &[]) else { return };
    for subject in ["headroom passthrough", "headroom notify-store"] {
        if subject.ends_with("passthrough") && !lines.iter().any(|line| line.subject == subject) {
            test_support::skip("FUSE passthrough needs Linux 6.9");
            continue;
        }
        let each = values(&lines, subject, "daemon_bytes_per_open", &["100 idle opens"]);
        assert!(each[0] >= 0.0, "{each:?}");
        let clients = ["20 clients with 64 KiB"];
        assert_eq!(values(&lines, subject, "back_share", &clients), [100.0]);
        assert!(values(&lines, subject, "back_ms", &clients)[0] > 0.0);
    }
}

#[test]
fn throughput_reports_the_rate_of_idle_and_busy_handlers_beside_that_of_sockets() {
    let program = env!("CARGO_BIN_EXE_throughput");
    let Some(lines) = quick("throughput", program, &ONE_MAPPING) else { return };
    let idle = ["1 pair, idle handlers", "2 pairs, idle handlers"];
    let busy = ["1 pair, busy handlers", "2 pairs, busy handlers"];
    let ours = "headroom notify-store";
    for (subject, metric) in
        [("seqpacket", "calls_per_s"), (ours, "calls_per_s"), (ours, "daemon_cpu_us")]
    {
        let found = values(&lines, subject, metric, &[idle, busy].concat());
        assert!(found.iter().all(|value| *value > 0.0), "{subject}, {metric}: {found:?}");
    }
    // A handler that uses 75 µs cannot reply more often than that.
    let one = values(&lines, "seqpacket", "calls_per_s_high", &busy[..1]);
    assert!(one[0] <= 1e6 / 75.0, "{one:?}");
}

#[test]
fn mix_reports_the_times_of_each_kind_of_operation() {
    let program = env!("CARGO_BIN_EXE_mix");
    let Some(lines) = quick("mix", program, &ONE_MAPPING) else { return };
    let kinds = ["call", "one-way call", "nested call", "call with a descriptor", "ping"];
    for subject in ["seqpacket", "headroom notify-store"] {
        let found = values(&lines, subject, "rtt_us_p50", &kinds);
        assert!(found.iter().all(|value| *value > 0.0), "{subject}: {found:?}");
        let rate = values(&lines, subject, "calls_per_s", &["4 clients, seed 1"]);
        assert!(rate[0] > 0.0, "{subject}: {rate:?}");
    }
}

#[test]
fn notifier_reports_cpu_time_over_that_without_it() {
    let Some(lines) = quick("notifier", env!("CARGO_BIN_EXE_notifier"), &[]) else { return };
    let faults = ["1 process", "4 processes", "8 processes", "8 processes, above the soft limit"];
    let other = ["1 process, huge pages", "forks", "compiler"];
    let everywhere = [&faults[..], &other[..]].concat();
    for (subject, cases) in [("headroom", &everywhere[..]), ("headroom, no limit", &everywhere[..])]
    {
        let [low, middle, high] = ["cpu_over_off_low", "cpu_over_off", "cpu_over_off_high"]
            .map(|metric| values(&lines, subject, metric, cases));
        for ((low, middle), high) in low.iter().zip(&middle).zip(&high) {
            assert!(0.0 < *low && low <= middle && middle <= high, "{low} {middle} {high}");
        }
        assert!(values(&lines, subject, "fault_ns", &cases[..3]).iter().all(|ns| *ns > 0.0));
    }
    assert!(values(&lines, "no notifier", "fault_ns", &faults[..3]).iter().all(|ns| *ns > 0.0));
    assert!(values(&lines, "headroom", "events", &faults).iter().all(|count| *count > 0.0));
}

#[test]
fn reclaim_reports_rates_of_every_kind_of_victim_with_and_without_help() {
    let Some(lines) = quick("reclaim", env!("CARGO_BIN_EXE_reclaim"), &[]) else { return };
    let conditions = [
        "idle core",
        "SCHED_IDLE under competition",
        "nice 19 under competition",
        "throttled to 5 %",
        "stopped",
        "frozen",
        "64 threads",
        "many mappings",
        "8 victims at once",
    ];
    let wanted: Vec<String> = ["32 MiB", "32 MiB THP"]
        .iter()
        .flat_map(|size| conditions.map(|condition| format!("{size}, {condition}")))
        .collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    for subject in ["kill", "headroom"] {
        for metric in ["mb_per_s", "mb_per_s_min", "over_limit"] {
            let found = values(&lines, subject, metric, &wanted);
            // By the signal alone a victim that hardly runs may free nothing in time.
            let least = if subject == "kill" { 0.0 } else { f64::MIN_POSITIVE };
            assert!(found.iter().all(|value| *value >= least), "{subject}, {metric}: {found:?}");
        }
    }
    let worst = values(&lines, "headroom", "over_limit", &["worst of all"])[0];
    let all = values(&lines, "headroom", "over_limit", &wanted);
    assert_eq!(all.into_iter().reduce(f64::min), Some(worst));
    let sizes = ["32 MiB", "32 MiB THP", "32 MiB, many mappings", "32 MiB THP, many mappings"];
    let limits = values(&lines, "munmap", "mb_per_s", &sizes);
    assert!(limits.iter().all(|rate| *rate > 0.0), "{limits:?}");
}

/// Bound of each process's memory that no allocator requests, `docs/tmalloc.md`.
const UNASKED_PAGES: f64 = 16.0;

#[test]
fn malloc_gets_its_callers_killed_and_tmalloc_refuses_in_time() {
    let Some(lines) = quick("tmalloc", env!("CARGO_BIN_EXE_tmalloc"), &[]) else { return };
    assert_eq!(values(&lines, "malloc", "kills", &PROCESSES), [1.0, 4.0, 8.0]);
    let over = values(&lines, "malloc", "pages_over", &PROCESSES);
    assert!(over.iter().all(|pages| *pages > 0.0), "{over:?}");
    for nothing in ["kills", "failed"] {
        assert_eq!(values(&lines, "tmalloc", nothing, &PROCESSES), [0.0; 3], "{nothing}");
    }
    // Pages that no allocator requests and that may be shared cause no kill before they are
    // measured.
    let over = values(&lines, "tmalloc", "pages_over", &PROCESSES);
    let tolerated = [1.0, 4.0, 8.0].map(|processes| processes * UNASKED_PAGES);
    assert!(over.iter().zip(tolerated).all(|(over, most)| *over <= most), "{over:?}");
    let shares = values(&lines, "tmalloc", "usable_share", &PROCESSES);
    // In reservations, shared pages count for each process: a few percent of the small limit here.
    assert!(shares.iter().all(|share| *share >= 0.9 && *share <= 1.0), "{shares:?}");
}
