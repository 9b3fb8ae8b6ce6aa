//! Checks for `headroom-oomd`.

use std::path::Path;

use control::configuration::Configuration;
use headroom_daemon::privileges;
use headroom_linux::{features, pidfd};
use memory_watch::Capability;
use memory_watch::capability::Description;
use memory_watch::cgroups::Cgroups;
use rustix::thread::CapabilitySet;

use super::{Check, require};
use crate::commands::{config, status};
use crate::helpers::output::count;
use crate::helpers::programs::beside_us;

const DAEMON: &str = "headroom-oomd";

/// All checks.
pub fn checks() -> Vec<Check> {
    // Reads the configuration at its default path, as the daemon does.
    let read = config::read(None).map_err(|error| format!("{error:#}"));
    let configuration = Check::new(
        "configuration",
        configuration(&read),
        "the daemon does not start with it; one that runs keeps the one before",
        "correct the file and the line that is named; `headroom config check` looks again",
    )
    .needed_by(DAEMON);
    let own = vec![
        Check::new("pidfd", pidfd_open(), "no process can be killed safely", "kernel 5.3 or newer")
            .needed_by(DAEMON),
        Check::new(
            "cap-kill",
            require("CAP_KILL", CapabilitySet::KILL),
            "processes of other users cannot be killed",
            "run the daemon as root",
        )
        .needed_by(DAEMON)
        .of_root(),
        Check::new(
            "proc",
            proc(),
            "processes of other users are not seen",
            "run the daemon as root; mount /proc with hidepid=0, or with gid= of the daemon",
        )
        .needed_by(DAEMON)
        .of_root(),
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
        )
        .of_root(),
        match beside_us(DAEMON) {
            Ok(_) => configuration.of_root(),
            Err(_) => configuration.untested(),
        },
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
            features::since(5, 18),
            "the memory controller is not used for the usage of users: their processes are added \
             up",
            "kernel 5.18 or newer",
        ),
    ];
    let watching = Capability::ALL.map(|capability| {
        let Description { name, lost, remedy } = capability.description();
        let found = capability.probe();
        let found = found.map(|detail| if detail.is_empty() { "present".into() } else { detail });
        let check = Check::new(name, found, lost, remedy);
        if capability.needs_privilege() { check.of_root() } else { check }
    });
    own.into_iter().chain(watching).collect()
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

fn pidfd_open() -> Result<String, String> {
    let opened = pidfd::open(std::process::id());
    opened.map(|_| "pidfd_open works".into()).map_err(|error| format!("pidfd_open: {error}"))
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

fn mrelease() -> Result<String, String> {
    let found = reclaim::check_mrelease();
    found.map(|()| "the kernel has it".into()).map_err(|errno| errno.to_string())
}

/// Tries it on a thread of its own.
fn fifo() -> Result<String, String> {
    let set = std::thread::spawn(|| privileges::set_realtime(1)).join();
    let set = set.map_err(|_| "the thread has panicked".to_owned())?;
    set.map(|()| "a thread can be made SCHED_FIFO".into()).map_err(|error| error.to_string())
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
