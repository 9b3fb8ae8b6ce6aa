//! `headroom status` and `headroom metrics`: state and counters of the daemons, and what else acts
//! on a shortage of memory.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use control::metrics::{self, NameOf};
use control::{binderd, oomd};
use headroom_daemon::message::plain;
use owners::bounds::{self, Bound};
use serde::Serialize;

use crate::arguments::{Globals, UserLabels};
use crate::helpers::client;
use crate::helpers::output::{self, count, printable};
use crate::helpers::quantity::Size;
use crate::helpers::user;

/// For an operator: the limits that a killed daemon has left in force, and how they end.
pub const STILL_ENFORCED: &str =
    "limits that it has set are still enforced in the kernel; `headroom oom detach` ends them";
/// Process names of other programs that kill processes when memory runs short, at most 15 bytes.
const OTHER_OOM_DAEMONS: [&str; 4] = ["earlyoom", "systemd-oomd", "nohang", "oomd"];
/// Processes with such a name whose programs are looked at.
const MOST_CANDIDATES: usize = 64;
/// Longest wait for these. The link to the program of a process waits for its `execve`, which the
/// process can delay without end.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Both {
    binderd: DaemonState<binderd::Status>,
    oomd: DaemonState<oomd::Status>,
    /// Without the OOM daemon: whether its limits are still enforced in the kernel. `None`: it
    /// runs, or only root sees it.
    limits_left_in_kernel: Option<bool>,
    /// Other programs that act on a shortage of memory.
    other_oom_daemons: Vec<&'static str>,
}

/// One daemon; exactly one of the two fields is set.
#[derive(Serialize)]
struct DaemonState<S> {
    status: Option<S>,
    error: Option<String>,
}

impl<S> From<anyhow::Result<S>> for DaemonState<S> {
    fn from(result: anyhow::Result<S>) -> Self {
        match result {
            Ok(status) => Self { status: Some(status), error: None },
            Err(error) => Self { status: None, error: Some(plain(&format!("{error:#}"))) },
        }
    }
}

/// A row of `headroom status --bounds`.
#[derive(Serialize)]
struct BoundRow {
    name: &'static str,
    daemon: &'static str,
    resource: &'static str,
    all: String,
    root: String,
    owner: String,
    beyond: &'static str,
}

impl From<&Bound> for BoundRow {
    fn from(bound: &Bound) -> Self {
        let [all, root, owner] = bound.cells();
        let Bound { name, daemon, resource, share: _, beyond, test: _ } = *bound;
        Self { name, daemon: daemon.name(), resource, all, root, owner, beyond }
    }
}

/// Runs `headroom status --bounds`.
pub fn bounds(globals: &Globals) -> anyhow::Result<()> {
    let rows: Vec<BoundRow> = bounds::ALL.iter().map(BoundRow::from).collect();
    output::print_as(globals.format(), &rows, || {
        let mut text = String::new();
        for BoundRow { name, daemon, resource, all, root, owner, beyond } in &rows {
            let _ = writeln!(text, "{name} ({daemon}): {resource}");
            for (label, cell) in [("all", all), ("root", root), ("an owner", owner)] {
                if !cell.is_empty() {
                    let _ = writeln!(text, "        {label}: {cell}");
                }
            }
            let _ = writeln!(text, "        beyond: {beyond}");
        }
        text
    })?;
    Ok(())
}

/// Runs the command. The exit code is 1 if no daemon runs.
pub fn status(globals: &Globals) -> anyhow::Result<ExitCode> {
    let oomd = client::oomd_status(&globals.oomd_socket);
    let both = Both {
        binderd: client::binderd_status(&globals.binderd_socket).into(),
        limits_left_in_kernel: oomd.is_err().then(limits_are_left).flatten(),
        oomd: oomd.into(),
        other_oom_daemons: other_oom_daemons(Path::new("/proc")),
    };
    output::print_as(globals.format(), &both, || {
        let mut text = paragraph("binder", &both.binderd, binderd_line, |s| &s.degraded);
        text += &paragraph("oom", &both.oomd, oomd_line, |s| &s.degraded);
        if both.limits_left_in_kernel == Some(true) {
            let _ = writeln!(text, "        {STILL_ENFORCED}");
        }
        if !both.other_oom_daemons.is_empty() {
            let names = both.other_oom_daemons.join(", ");
            let _ = writeln!(text, "        also running: {names} (see `headroom doctor`)");
        }
        text
    })?;
    let runs = both.binderd.status.is_some() || both.oomd.status.is_some();
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn paragraph<S>(
    name: &str,
    daemon: &DaemonState<S>,
    line: fn(&S) -> String,
    degraded: fn(&S) -> &Vec<String>,
) -> String {
    let mut text = String::new();
    match (&daemon.status, &daemon.error) {
        (Some(status), _) => {
            let _ = writeln!(text, "{name:<7} {}", line(status));
            for sentence in degraded(status) {
                let _ = writeln!(text, "        degraded: {}", printable(sentence));
            }
        }
        (None, error) => {
            let _ = writeln!(text, "{name:<7} {}", error.as_deref().unwrap_or("no answer"));
        }
    }
    text
}

/// `headroom-binderd` in a line.
pub fn binderd_line(s: &binderd::Status) -> String {
    let mut line = format!(
        "serves {} on {} (mapping: {}, pid {}): {}, {}; {} in buffers, {} of it idle; \
         largest owner: {} of {}",
        count(s.devices, "device", "devices"),
        printable(&s.mount),
        s.mapping,
        s.pid,
        count(s.processes, "process", "processes"),
        count(s.transactions, "transaction", "transactions"),
        Size(s.touched_pages * binderd::PAGE_BYTES),
        Size(s.idle_pages * binderd::PAGE_BYTES),
        Size(s.largest_owner_bytes),
        Size(s.owner_quota_bytes),
    );
    if s.rings > 0 {
        line += &format!("; {} over rings", count(s.rings, "thread calls", "threads call"));
    }
    line
}

/// `headroom-oomd` in a line.
pub fn oomd_line(s: &oomd::Status) -> String {
    let attached = if s.attached { "attached" } else { "detached: no user has a limit" };
    let mut line = format!(
        "watches memory (notifier: {}, {attached}, pid {}): {}, {}, {} given back by others",
        s.notifier,
        s.pid,
        count(s.limited_users, "limited user", "limited users"),
        count(s.kills, "kill", "kills"),
        Size(s.given_back_bytes),
    );
    if s.limited_cgroups > 0 {
        line += &format!("; {}", count(s.limited_cgroups, "limited cgroup", "limited cgroups"));
    }
    for (source, users) in &s.usage_sources {
        let measured = count(*users, "user", "users");
        line += &format!("; usage of {measured} by {}", printable(source));
    }
    if s.leaseholders > 0 || s.refused > 0 {
        let holders = count(s.leaseholders, "process leases", "processes lease");
        let refusals = count(s.refused, "request", "requests");
        line += &format!("; {holders} memory, {refusals} refused");
    }
    line
}

/// Runs `headroom metrics`: counters of both daemons, for Prometheus. The exit code is 1 if no
/// daemon runs.
pub fn metrics(globals: &Globals, labels: UserLabels) -> anyhow::Result<ExitCode> {
    let sources = metrics::collect(&globals.oomd_socket, &globals.binderd_socket);
    let names: Option<NameOf> = match labels {
        UserLabels::Uid => None,
        UserLabels::UidAndName => Some(|uid| Some(user::name(uid))),
    };
    output::print_as(globals.format(), &sources, || metrics::text(&sources, names))?;
    let runs = sources.oomd.is_ok() || sources.binderd.is_ok();
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether limits of a killed daemon are in force. `None`: only root sees them.
#[cfg(feature = "bpf")]
pub fn limits_are_left() -> Option<bool> {
    let root = rustix::process::geteuid().is_root();
    root.then(|| memory_watch::enforces_without_daemon(Path::new(control::PINS_FOLDER)))
}

/// Whether limits of a killed daemon are in force. The static program cannot use BPF.
#[cfg(not(feature = "bpf"))]
pub fn limits_are_left() -> Option<bool> {
    None
}

/// The other OOM daemons that run, according to the `/proc` in this folder.
pub fn other_oom_daemons(proc: &Path) -> Vec<&'static str> {
    let candidates = fs::read_dir(proc)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| Some((name_of(&entry.path())?, entry.path())))
        .take(MOST_CANDIDATES);
    let (results, found) = channel();
    for (name, process) in candidates {
        let results = results.clone();
        std::thread::spawn(move || {
            let _ = results.send(is_of_root(process).then_some(name));
        });
    }
    drop(results);
    let end = Instant::now() + LONGEST;
    let next = || found.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    let mut found: Vec<&str> = std::iter::from_fn(next).flatten().collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The name of an OOM daemon.
fn name_of(process: &Path) -> Option<&'static str> {
    let comm = fs::read_to_string(process.join("comm")).ok()?;
    OTHER_OOM_DAEMONS.into_iter().find(|name| *name == comm.trim_end())
}

/// A process can choose its name, so its program must be owned by root.
fn is_of_root(process: PathBuf) -> bool {
    fs::metadata(process.join("exe")).is_ok_and(|program| program.uid() == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn process(proc: &Path, pid: &str, comm: &str, exe: &Path) {
        let folder = proc.join(pid);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
        symlink(exe, folder.join("exe")).unwrap();
    }

    #[test]
    fn a_daemon_is_known_by_its_name_and_by_a_program_of_root() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let proc = tempfile::tempdir().unwrap();
        let [roots, users] = ["roots", "users"].map(|name| proc.path().join(name));
        fs::write(&roots, "").unwrap();
        fs::write(&users, "").unwrap();
        chown(&users, Some(1000), Some(1000)).unwrap();
        process(proc.path(), "1", "earlyoom", &roots);
        process(proc.path(), "2", "earlyoom", &roots);
        process(proc.path(), "3", "systemd-oomd", &users);
        process(proc.path(), "4", "headroom-oomd", &roots);
        process(proc.path(), "5", "nohang", &roots);
        assert_eq!(other_oom_daemons(proc.path()), ["earlyoom", "nohang"]);
        assert!(other_oom_daemons(Path::new("/nonexistent")).is_empty());
        // A program that cannot be looked at hides no other.
        let Some(hung) = test_support::hung::Hung::mount() else { return };
        process(proc.path(), "6", "oomd", &hung.path().join("program"));
        assert_eq!(other_oom_daemons(proc.path()), ["earlyoom", "nohang"]);
        assert!(hung.is_waited_for());
    }
}
