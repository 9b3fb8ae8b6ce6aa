//! Checks for `headroom-oomd`.

use std::path::Path;

use control::configuration::Configuration;
use memory_watch::capability::{Capability as Feature, probe};
use memory_watch::cgroups::Cgroups;

use super::{Capability, Check, System};
use crate::commands::{config, status};
use crate::helpers::output::count;

const DAEMON: &str = "headroom-oomd";

/// Features with which the daemon watches memory, with the remedy for an operator if one is
/// missing. None is indispensable: without BPF, `/proc` is read on a timer.
const WANTED: [(Feature, &str); 11] = [
    (Feature::CapBpf, "run the daemon as root, or with CAP_BPF"),
    (Feature::CapPerfmon, "run the daemon as root, or with CAP_PERFMON"),
    (Feature::KernelTypes, "a kernel with CONFIG_DEBUG_INFO_BTF"),
    (
        Feature::Notifier,
        "kernel 6.1 or newer with BTF and tp_btf/rss_stat; no seccomp filter, lockdown or LSM that \
         forbids bpf()",
    ),
    (Feature::RingBuffer, "kernel 5.8 or newer"),
    (Feature::TaskIterator, "kernel 5.8 or newer"),
    (Feature::SendSignalTask, "kernel 6.13 or newer"),
    (Feature::MemoryOwner, "a kernel with CONFIG_MEMCG"),
    (Feature::CapSysResource, "give the daemon CAP_SYS_RESOURCE"),
    (Feature::Pressure, "a kernel with CONFIG_PSI, started with psi=1"),
    (Feature::PressureTrigger, "kernel 5.2 or newer; run the daemon as root"),
];

/// All checks.
pub fn checks(system: &System) -> Vec<Check> {
    // Reads the configuration at its default path, as the daemon does.
    let read = config::read(None).map_err(|error| format!("{error:#}"));
    let own = vec![
        Check::new("pidfd", pidfd(), "no process can be killed safely", "kernel 5.3 or newer")
            .needed_by(DAEMON),
        Check::new(
            "cap-kill",
            system.capabilities.require(Capability::Kill),
            "processes of other users cannot be killed",
            "run the daemon as root",
        )
        .needed_by(DAEMON),
        Check::new(
            "proc",
            proc(),
            "processes of other users are not seen",
            "run the daemon as root; mount /proc with hidepid=0, or with gid= of the daemon",
        )
        .needed_by(DAEMON),
        Check::new(
            "process-mrelease",
            mrelease(),
            "a victim's memory comes back only as fast as the victim itself frees it",
            "kernel 5.15 or newer; no seccomp filter that forbids it",
        ),
        Check::new(
            "sched-fifo",
            fifo(),
            "the daemon competes for the CPU with those it watches",
            "give the daemon CAP_SYS_NICE; RT bandwidth in its cgroup",
        ),
        Check::new(
            "configuration",
            configuration(&read),
            "the daemon does not start with it; one that runs keeps the one before",
            "correct the file and the line that is named; `headroom config check` looks again",
        )
        .needed_by(DAEMON),
        Check::new(
            "ordinary-users",
            ordinary_users(&read),
            "a limit for every ordinary user is one for other uids than you may think",
            "correct UID_MIN and UID_MAX of /etc/login.defs",
        ),
        Check::new(
            "other-oom-daemons",
            other_daemons(),
            "two daemons kill two processes for one shortage",
            "disable them, or set enabled = false in [machine]; limits of users do not conflict",
        ),
        Check::new(
            "cgroup",
            cgroups(),
            "limits of cgroups and sessions are not enforced; those of users are",
            "mount -t cgroup2 none /sys/fs/cgroup, or start the kernel with \
             systemd.unified_cgroup_hierarchy=1",
        ),
        Check::new(
            "cgroup-kernel-memory",
            system.since(5, 18),
            "the memory controller is not used for the usage of users: their processes are added \
             up",
            "kernel 5.18 or newer",
        ),
    ];
    own.into_iter().chain(WANTED.map(watching)).collect()
}

/// The probe of the library that does the watching.
fn watching((feature, remedy): (Feature, &'static str)) -> Check {
    let found = probe(feature).found;
    let found = found.map(|detail| if detail.is_empty() { "present".into() } else { detail });
    Check::new(feature.name(), found, feature.lost_without(), remedy)
}

fn other_daemons() -> Result<String, String> {
    let running = status::other_oom_daemons(Path::new("/proc"));
    if running.is_empty() {
        return Ok("none runs".to_owned());
    }
    Err(format!("{} also acts on a shortage", running.join(", ")))
}

fn configuration(read: &Result<Configuration, String>) -> Result<String, String> {
    let read = read.as_ref().map_err(String::clone)?;
    if read.files.is_empty() {
        return Ok("no file, which is fine".into());
    }
    let limits = count(read.limits.len() as u64, "limit", "limits");
    Ok(format!("{limits} in {}", read.files.join(", ")))
}

fn ordinary_users(read: &Result<Configuration, String>) -> Result<String, String> {
    // Errors of the configuration are reported by its own check.
    let Ok(read) = read else { return Ok("not looked for".into()) };
    let [first, last] = read.ordinary_uids;
    if read.warnings.is_empty() {
        Ok(format!("uid {first} to {last}"))
    } else {
        Err(read.warnings.join("; "))
    }
}

fn pidfd() -> Result<String, String> {
    let us = rustix::process::getpid();
    match rustix::process::pidfd_open(us, rustix::process::PidfdFlags::empty()) {
        Ok(_) => Ok("pidfd_open works".into()),
        Err(errno) => Err(format!("pidfd_open: {errno}")),
    }
}

/// With hidepid, a process without permission does not see the folders of other users' processes.
fn proc() -> Result<String, String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let hidepid = mounts
        .lines()
        .filter_map(|line| {
            line.split(' ').nth(3).filter(|_| line.split(' ').nth(1) == Some("/proc"))
        })
        .flat_map(|options| options.split(','))
        .find(|option| option.starts_with("hidepid=") && *option != "hidepid=0");
    let note = hidepid.map_or(String::new(), |option| format!(" ({option})"));
    match std::fs::read_to_string("/proc/1/status") {
        Ok(_) => Ok(format!("the processes of others are seen{note}")),
        Err(error) => Err(format!("/proc/1/status: {error}{note}")),
    }
}

/// Without a pidfd the call fails before it has an effect; the errno shows whether it is
/// implemented.
fn mrelease() -> Result<String, String> {
    // SAFETY: plain numbers.
    let rc = unsafe { libc::syscall(libc::SYS_process_mrelease, -1, 0) };
    let error = std::io::Error::last_os_error();
    if rc == -1 && error.raw_os_error() == Some(libc::EBADF) {
        Ok("the kernel has it".into())
    } else {
        Err(error.to_string())
    }
}

/// Tries it on the calling thread, and restores the old policy.
fn fifo() -> Result<String, String> {
    let fifo = libc::sched_param { sched_priority: 1 };
    let other = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the parameter is ours.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &fifo) } != 0 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: as above. Returning to the old policy is always allowed.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &other) };
    Ok("a thread can be made SCHED_FIFO".into())
}

/// Describes the cgroup hierarchy. Limits of users do not need one.
fn cgroups() -> Result<String, String> {
    match Cgroups::find(Path::new("/proc")).map_err(|error| error.to_string())? {
        None => Err("no hierarchy of version 2 is mounted".into()),
        Some(tree) if tree.has_memory() => {
            Ok(format!("version 2 with the memory controller at {}", tree.root().display()))
        }
        Some(tree) => Ok(format!(
            "version 2 at {}, without the memory controller: a cgroup's processes are added up, \
             and what they share counts more than once",
            tree.root().display()
        )),
    }
}
