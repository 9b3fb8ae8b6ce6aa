//! Plays one scenario: the interactive process and the bystander, the load, and an observer that cannot be delayed.
//!
//! Each part has a control group of its own below ours, so that everything can be ended whatever it forked, and so that
//! a killer that thinks in control groups has some to choose from.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering::Relaxed;

use crate::Result;
use crate::clock::{now_ns, sleep_until};
use crate::interactive::{FILE_MIB, PERIOD_NS};
use crate::memory::{self, MemInfo};
use crate::options::Options;
use crate::shared::{self, Shared};

const SAMPLE_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Time for the interactive process to show how it fares without a load.
const WARM_UP_NS: u64 = 3 * SECOND_NS;
/// After the memory is back, for a late wrong victim to show.
const SETTLE_NS: u64 = SECOND_NS;
const BYSTANDER_MIB: usize = 64;
/// The pressure begins when less than this much of all memory is available.
const LOW_PERCENT: u64 = 10;
/// It is over when this much of what was available before the load is available again.
const BACK_PERCENT: u64 = 90;
/// thrash: memory taken, of what is available, and the file read, of all memory.
const THRASH_ANONYMOUS_PERCENT: usize = 90;
const THRASH_FILE_PERCENT: usize = 20;
/// The person who works here, runs the load, and owns all of it; in user-limit the load is another user's.
const PERSON_UID: u32 = 1000;
const OTHER_UID: u32 = 1001;
/// user-limit: how fast the load grows, its limit (`--limit-mib` overrides) and where it stops by itself, of all memory.
const LIMITED_MIB_PER_S: usize = 25;
const LIMIT_PERCENT: usize = 20;
const LIMITED_CAP_PERCENT: usize = 40;

/// A started process and, once it ended, when and how.
struct Part {
    name: &'static str,
    child: Child,
    ended: Option<(u64, ExitStatus)>,
}

impl Part {
    fn reap(&mut self) -> bool {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some((now_ns(), status));
        }
        self.ended.is_some()
    }
}

/// What the observer saw.
#[derive(Default)]
struct Observed {
    lowest_available_kib: u64,
    lowest_swap_free_kib: u64,
    stall_ns_max: u64,
    pressed_at_ns: Option<u64>,
    back_at_ns: Option<u64>,
    over_limit_kib_max: u64,
}

/// Runs `--scenario NAME` for at most `--seconds`, with its files in `--scratch`; prints one JSON object.
pub fn run(options: &Options) -> Result<()> {
    let name: String = options.get("scenario")?;
    let seconds = options.get_or("seconds", 60_u64)?;
    let scratch: String = options.get_or("scratch", "/scratch".to_owned())?;
    stay_undelayed()?;
    let groups = Groups::new(&options.get_or("cgroup", own_cgroup()?)?)?;
    let total = memory::meminfo()?;
    let total_mib = (total.total_kib / 1024) as usize;
    let limit_mib = options.get_or("limit-mib", total_mib * LIMIT_PERCENT / 100)?;

    let page = "/dev/shm/lab-scenario";
    let shared = shared::map(page)?;
    let felt = format!("{scratch}/interactive");
    memory::write_file(&felt, FILE_MIB)?;
    let read = format!("{scratch}/thrash");
    if name == "thrash" {
        memory::write_file(&read, total_mib * THRASH_FILE_PERCENT / 100)?;
    }
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("drop_caches: {e}"))?;

    let neighbour = if name == "user-limit" { OTHER_UID } else { PERSON_UID };
    let mut interactive = groups.start(
        "interactive",
        neighbour,
        &["interactive", "--shared", page, "--file", &felt],
    )?;
    let mut bystander = groups.start(
        "bystander",
        neighbour,
        &["bystander", "--mib", &BYSTANDER_MIB.to_string()],
    )?;
    let baseline_stall_ns = warm_up(shared)?;
    let before = memory::meminfo()?;
    let kills_before = memory::kernel_oom_kills()?;

    let available_mib = (before.available_kib / 1024) as usize;
    let (anonymous, cap) =
        (available_mib * THRASH_ANONYMOUS_PERCENT / 100, total_mib * LIMITED_CAP_PERCENT / 100);
    let (anonymous, cap, rate) =
        (anonymous.to_string(), cap.to_string(), LIMITED_MIB_PER_S.to_string());
    let words = match name.as_str() {
        "leak" => vec!["leak"],
        "herd" => vec!["herd", "--shared", page],
        "forkbomb" => vec!["forkbomb"],
        "thrash" => vec!["thrash", "--mib", &anonymous, "--file", &read],
        "user-limit" => vec!["leak", "--rate", &rate, "--cap", &cap],
        _ => return Err(format!("no scenario {name}: leak, herd, forkbomb, thrash, user-limit")),
    };
    let started = now_ns();
    let mut load = groups.start("load", PERSON_UID, &words)?;
    let limit_kib = (name == "user-limit").then_some(limit_mib as u64 * 1024);
    let seen = observe(
        shared,
        &groups,
        &mut [&mut interactive, &mut bystander, &mut load],
        before,
        started,
        seconds,
        limit_kib,
    )?;
    let kernel_kills = memory::kernel_oom_kills()?.saturating_sub(kills_before);

    let victims_wrong =
        [&interactive, &bystander].iter().filter(|part| part.ended.is_some()).count();
    let first = [shared.first_death_ns.load(Relaxed), load.ended.map_or(0, |(at, _)| at)];
    let first = first.into_iter().filter(|at| *at > 0).min();
    let load_killed = shared.load_deaths.load(Relaxed)
        + load.ended.is_some_and(|(_, how)| how.signal().is_some()) as u64;
    let died: Vec<String> =
        [&interactive, &bystander, &load].iter().filter_map(|part| story(part, started)).collect();
    groups.end_all();
    for part in [&mut interactive, &mut bystander, &mut load] {
        let _ = part.child.wait();
    }
    println!(
        "{{\"stall_ms_max\":{},\"victims_wrong\":{victims_wrong},\"recover_ms\":{},\"kernel_oom_kills\":{kernel_kills},\
         \"stall_ms_sum\":{},\"stall_ms_max_before_load\":{},\"first_death_ms\":{},\"load_killed\":{load_killed},\
         \"available_mib_min\":{},\"swap_free_mib_min\":{},\"available_mib_before\":{available_mib},\
         \"pressed_after_ms\":{},\"limit_mib\":{},\"over_limit_mib_max\":{},\"died\":[{}]}}",
        seen.stall_ns_max / 1_000_000,
        json_ms(seen.back_at_ns.zip(seen.pressed_at_ns).map(|(back, pressed)| back - pressed)),
        shared.sum_lag_ns.load(Relaxed) / 1_000_000,
        baseline_stall_ns / 1_000_000,
        json_ms(first.map(|at| at.saturating_sub(started))),
        seen.lowest_available_kib / 1024,
        seen.lowest_swap_free_kib / 1024,
        json_ms(seen.pressed_at_ns.map(|at| at.saturating_sub(started))),
        limit_kib.map_or("null".into(), |kib| (kib / 1024).to_string()),
        limit_kib
            .map_or("null".into(), |_| format!("{:.1}", seen.over_limit_kib_max as f64 / 1024.0)),
        died.join(","),
    );
    Ok(())
}

/// Samples until the memory is back and things have settled, or time is up.
fn observe(
    shared: &Shared,
    groups: &Groups,
    parts: &mut [&mut Part; 3],
    before: MemInfo,
    started: u64,
    seconds: u64,
    limit_kib: Option<u64>,
) -> Result<Observed> {
    let mut seen = Observed {
        lowest_available_kib: before.available_kib,
        lowest_swap_free_kib: before.swap_free_kib,
        ..Observed::default()
    };
    let mut next = started;
    loop {
        next += SAMPLE_NS;
        sleep_until(next);
        let now = now_ns();
        let memory = memory::meminfo()?;
        seen.lowest_available_kib = seen.lowest_available_kib.min(memory.available_kib);
        seen.lowest_swap_free_kib = seen.lowest_swap_free_kib.min(memory.swap_free_kib);
        for part in parts.iter_mut() {
            part.reap();
        }
        if parts[0].ended.is_none() {
            let waiting = now.saturating_sub(shared.last_beat_ns.load(Relaxed) + PERIOD_NS);
            seen.stall_ns_max = seen.stall_ns_max.max(waiting).max(shared.max_lag_ns.load(Relaxed));
        }
        let load_gone = groups.is_empty("load");
        let (pressed, back) = match limit_kib {
            Some(limit) => {
                let usage = memory::cgroup_usage_kib(&groups.path("load"));
                seen.over_limit_kib_max = seen.over_limit_kib_max.max(usage.saturating_sub(limit));
                (usage > limit, usage <= limit)
            }
            None => (
                memory.available_kib * 100 < memory.total_kib * LOW_PERCENT,
                memory.available_kib * 100 >= before.available_kib * BACK_PERCENT,
            ),
        };
        if pressed {
            seen.pressed_at_ns = seen.pressed_at_ns.or(Some(now));
            seen.back_at_ns = None;
        } else if back && seen.pressed_at_ns.is_some() {
            seen.back_at_ns = seen.back_at_ns.or(Some(now));
        }
        let settled = load_gone && seen.back_at_ns.is_some_and(|at| now > at + SETTLE_NS);
        // A killer may act before the memory is low by our measure: then there is no pressure to recover from.
        let never_pressed = load_gone
            && seen.pressed_at_ns.is_none()
            && parts[2].ended.is_some_and(|(at, _)| now > at + SETTLE_NS);
        if settled || never_pressed || now > started + seconds * SECOND_NS {
            return Ok(seen);
        }
    }
}

/// Lets the interactive process find its beat and returns its longest delay in the last second; then its account starts anew.
fn warm_up(shared: &Shared) -> Result<u64> {
    let until = now_ns() + WARM_UP_NS;
    sleep_until(until - SECOND_NS);
    shared.max_lag_ns.store(0, Relaxed);
    sleep_until(until);
    if shared.beats.load(Relaxed) == 0 {
        return Err("the interactive process does not run".into());
    }
    shared.sum_lag_ns.store(0, Relaxed);
    Ok(shared.max_lag_ns.swap(0, Relaxed))
}

/// Locks our memory and asks for real-time priority; nothing here may wait for what it measures.
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

/// The directory of our own control group.
fn own_cgroup() -> Result<String> {
    let text =
        fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("/proc/self/cgroup: {e}"))?;
    let path = text.lines().find_map(|l| l.strip_prefix("0::")).ok_or("no cgroup v2")?;
    Ok(format!("/sys/fs/cgroup{}", path.trim_end_matches('/')))
}

/// The control groups below ours.
struct Groups {
    base: PathBuf,
}

impl Groups {
    /// Makes `observer` (and moves us there, since a group with children must be empty), `interactive`, `bystander`, `load`.
    fn new(base: &str) -> Result<Self> {
        let groups = Self { base: PathBuf::from(base) };
        for name in ["observer", "interactive", "bystander", "load"] {
            fs::create_dir_all(groups.path(name)).map_err(|e| format!("{base}/{name}: {e}"))?;
        }
        let procs = fs::read_to_string(groups.base.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            // Kernel threads stay in the root group.
            let _ = fs::write(groups.path("observer/cgroup.procs"), pid);
        }
        fs::write(groups.base.join("cgroup.subtree_control"), "+memory")
            .map_err(|e| format!("{base}: memory: {e}"))?;
        // For systemd-oomd, the only killer here that does not look at oom_score_adj.
        let attribute = c"trusted.oomd_omit".as_ptr();
        let path =
            std::ffi::CString::new(groups.path("observer").into_os_string().into_encoded_bytes());
        let path = path.map_err(|_| "a NUL in the cgroup's path")?;
        // SAFETY: both strings are terminated, and the value has one byte.
        let done = unsafe { libc::setxattr(path.as_ptr(), attribute, c"1".as_ptr().cast(), 1, 0) };
        if done != 0 {
            eprintln!(
                "lab-tools: no extended attributes on cgroups ({}), going on",
                std::io::Error::last_os_error()
            );
        }
        Ok(groups)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Starts ourselves in the group of that name.
    fn start(&self, name: &'static str, uid: u32, words: &[&str]) -> Result<Part> {
        let procs = self.path(name).join("cgroup.procs");
        let mut command =
            Command::new(std::env::current_exe().map_err(|e| format!("our own path: {e}"))?);
        command.args(words);
        // SAFETY: only plain writes between fork and exec, and we have one thread.
        unsafe {
            command.pre_exec(move || {
                fs::write(&procs, "0")?;
                fs::write("/proc/self/oom_score_adj", "0")?;
                // std's own uid() would be applied before this closure, which needs root.
                let dropped = uid == 0
                    || (libc::setgroups(0, std::ptr::null()) == 0
                        && libc::setgid(uid) == 0
                        && libc::setuid(uid) == 0);
                if !dropped {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        Ok(Part { name, child, ended: None })
    }

    fn is_empty(&self, name: &str) -> bool {
        is_unpopulated(&self.path(name))
    }

    /// Ends whatever is left in them.
    fn end_all(&self) {
        for name in ["interactive", "bystander", "load"] {
            let _ = fs::write(self.path(name).join("cgroup.kill"), "1");
        }
    }
}

fn is_unpopulated(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.events")).is_ok_and(|text| text.contains("populated 0"))
}

fn story(part: &Part, started: u64) -> Option<String> {
    let (at, how) = part.ended?;
    let end = how
        .signal()
        .map_or_else(|| format!("exit {}", how.code().unwrap_or(-1)), |s| format!("signal {s}"));
    Some(format!(
        "{{\"who\":\"{}\",\"how\":\"{end}\",\"after_ms\":{}}}",
        part.name,
        at.saturating_sub(started) / 1_000_000
    ))
}

fn json_ms(nanoseconds: Option<u64>) -> String {
    nanoseconds.map_or("null".into(), |ns| (ns / 1_000_000).to_string())
}
