//! Runs one scenario: the interactive process and the bystander, the load, and an observer that
//! cannot be delayed.
//!
//! Each part has its own control group below this process's group, so that all processes can be
//! killed however they fork, and so that a daemon that kills whole control groups has several to
//! select from.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use crate::Result;
use crate::clock::{now_ns, sleep_until};
use crate::groups::{Groups, own_cgroup};
use crate::interactive::FILE_MIB;
use crate::memory;
use crate::observer::{Observed, Parts, SECOND_NS, Terms, observe};
use crate::options::Options;
use crate::shared::{self, Shared};

/// Rounds of the interactive process before the load starts, after which its pages are present, and
/// the limit for them.
const WARM_UP_BEATS: u64 = 50;
const WARM_UP_MAX_NS: u64 = 60 * SECOND_NS;
const BYSTANDER_MIB: usize = 64;
/// thrash: allocated part of the available memory, and size of the file relative to all memory,
/// percent.
const THRASH_ANONYMOUS_PERCENT: usize = 90;
const THRASH_FILE_PERCENT: usize = 20;
/// The user of the load, and of the interactive process and the bystander, except in user-limit,
/// memfd and page-tables: there these two belong to `OTHER_UID`.
const USER_UID: u32 = 1000;
const OTHER_UID: u32 = 1001;
/// user-limit: growth of the load, its limit (`--limit-mib` overrides) and where it stops by
/// itself, percent of all memory.
const LIMITED_MIB_PER_S: usize = 25;
const LIMIT_PERCENT: usize = 20;
const LIMITED_CAP_PERCENT: usize = 40;
/// Path of [`Shared`].
const PAGE: &str = "/dev/shm/lab-scenario";

/// Runs `--scenario NAME` for at most `--seconds`, with its files in `--scratch`; prints one JSON
/// object.
pub fn run(options: &Options) -> Result<()> {
    let name: String = options.get("scenario")?;
    let scratch: String = options.get_or("scratch", "/scratch".to_owned())?;
    stay_undelayed()?;
    let groups = Groups::new(&options.get_or("cgroup", own_cgroup()?)?)?;
    let total_mib = (memory::meminfo()?.total_kib / 1024) as usize;
    let limit_mib = options.get_or("limit-mib", total_mib * LIMIT_PERCENT / 100)?;

    let shared = shared::map(PAGE)?;
    let (felt, read) = (format!("{scratch}/interactive"), format!("{scratch}/thrash"));
    memory::write_file(&felt, FILE_MIB)?;
    if name == "thrash" {
        memory::write_file(&read, total_mib * THRASH_FILE_PERCENT / 100)?;
    }
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("drop_caches: {e}"))?;

    let neighbour = match name.as_str() {
        "user-limit" | "memfd" | "ramfs" | "page-tables" => OTHER_UID,
        _ => USER_UID,
    };
    let words = ["interactive", "--shared", PAGE, "--file", &felt];
    let interactive = groups.start("interactive", neighbour, &words)?;
    let words = ["bystander", "--mib", &BYSTANDER_MIB.to_string()];
    let bystander = groups.start("bystander", neighbour, &words)?;
    let floor_ns = warm_up(shared)?;

    let before = memory::meminfo()?;
    let kernel_kills = memory::kernel_oom_kills()?;
    let words = load(&name, total_mib, (before.available_kib / 1024) as usize, &read)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let terms = Terms {
        before,
        started_ns: now_ns(),
        seconds: options.get_or("seconds", 60)?,
        limit_kib: (name == "user-limit").then_some(limit_mib as u64 * 1024),
    };
    let load = groups.start("load", USER_UID, &words)?;
    let mut parts = Parts { interactive, bystander, load };
    let seen = observe(shared, &groups, &mut parts, &terms)?;
    let kernel_kills = memory::kernel_oom_kills()?.saturating_sub(kernel_kills);
    report(shared, &parts, &terms, &seen, floor_ns, kernel_kills);
    groups.end_all();
    for part in [&mut parts.interactive, &mut parts.bystander, &mut parts.load] {
        part.wait();
    }
    Ok(())
}

/// The arguments that start the load of a scenario.
fn load(name: &str, total_mib: usize, available_mib: usize, file: &str) -> Result<Vec<String>> {
    let taken = (available_mib * THRASH_ANONYMOUS_PERCENT / 100).to_string();
    let cap = (total_mib * LIMITED_CAP_PERCENT / 100).to_string();
    let rate = LIMITED_MIB_PER_S.to_string();
    let words = match name {
        "leak" => vec!["leak"],
        "herd" => vec!["herd", "--shared", PAGE],
        "forkbomb" => vec!["forkbomb"],
        "thrash" => vec!["thrash", "--mib", &taken, "--file", file],
        "memfd" | "ramfs" | "page-tables" => vec![name],
        "user-limit" => vec!["leak", "--rate", &rate, "--cap", &cap],
        _ => {
            return Err(format!(
                "no scenario {name}: leak, herd, forkbomb, thrash, memfd, ramfs, page-tables, \
                 user-limit"
            ));
        }
    };
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// Prints the result.
fn report(
    shared: &Shared,
    parts: &Parts,
    terms: &Terms,
    seen: &Observed,
    floor_ns: u64,
    kernel_kills: u64,
) {
    let others = [&parts.interactive, &parts.bystander];
    let wrong = others.iter().filter(|part| part.ended.is_some()).count();
    let deaths = [shared.first_death_ns.load(Relaxed), parts.load.ended.map_or(0, |(at, _)| at)];
    let first = deaths.into_iter().filter(|at| *at > 0).min();
    let killed = shared.load_deaths.load(Relaxed) + u64::from(parts.load.was_killed());
    let all = [&parts.interactive, &parts.bystander, &parts.load];
    let died: Vec<String> = all.iter().filter_map(|part| part.story(terms.started_ns)).collect();
    let since_start = |at: Option<u64>| json_ms(at.map(|at| at.saturating_sub(terms.started_ns)));
    let recovery = seen.back_at_ns.zip(seen.pressed_at_ns).map(|(back, pressed)| back - pressed);
    let over_kib = terms.limit_kib.map(|_| seen.over_limit_kib_max.to_string());
    let fields = [
        ("stall_ms_max", (seen.stall_ns_max / 1_000_000).to_string()),
        ("victims_wrong", wrong.to_string()),
        ("recover_ms", json_ms(recovery)),
        ("kernel_oom_kills", kernel_kills.to_string()),
        ("stall_ms_sum", (shared.sum_lag_ns.load(Relaxed) / 1_000_000).to_string()),
        ("stall_ms_max_before_load", (floor_ns / 1_000_000).to_string()),
        ("observer_late_ms_max", (seen.own_lateness_ns_max / 1_000_000).to_string()),
        ("first_death_ms", since_start(first)),
        ("load_killed", killed.to_string()),
        ("available_mib_before", (terms.before.available_kib / 1024).to_string()),
        ("available_mib_min", (seen.lowest_available_kib / 1024).to_string()),
        ("swap_free_mib_min", (seen.lowest_swap_free_kib / 1024).to_string()),
        ("pressed_after_ms", since_start(seen.pressed_at_ns)),
        ("limit_mib", terms.limit_kib.map_or("null".into(), |kib| (kib / 1024).to_string())),
        ("over_limit_kib_max", over_kib.unwrap_or("null".into())),
        ("died", format!("[{}]", died.join(","))),
    ];
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    println!("{{{}}}", fields.join(","));
}

/// Waits until the interactive process runs regularly, and returns its longest delay in one more
/// second; then its counters are reset.
fn warm_up(shared: &Shared) -> Result<u64> {
    let deadline = now_ns() + WARM_UP_MAX_NS;
    while shared.beats.load(Relaxed) < WARM_UP_BEATS {
        if now_ns() > deadline {
            return Err(
                "the interactive process does not find its beat: is the host too busy?".into()
            );
        }
        sleep_until(now_ns() + SECOND_NS / 10);
    }
    shared.max_lag_ns.store(0, Relaxed);
    sleep_until(now_ns() + SECOND_NS);
    shared.sum_lag_ns.store(0, Relaxed);
    Ok(shared.max_lag_ns.swap(0, Relaxed))
}

/// Locks this process's memory and sets real-time priority; the observer must not wait for what it
/// measures.
fn stay_undelayed() -> Result<()> {
    // SAFETY: takes flags only.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        return Err(format!("mlockall: {}", std::io::Error::last_os_error()));
    }
    let parameters = libc::sched_param { sched_priority: 50 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameters` lives through the call.
    if unsafe { libc::sched_setscheduler(0, policy, &parameters) } != 0 {
        return Err(format!("SCHED_FIFO: {}", std::io::Error::last_os_error()));
    }
    fs::write("/proc/self/oom_score_adj", "-1000").map_err(|e| format!("oom_score_adj: {e}"))
}

fn json_ms(nanoseconds: Option<u64>) -> String {
    nanoseconds.map_or("null".into(), |ns| (ns / 1_000_000).to_string())
}
