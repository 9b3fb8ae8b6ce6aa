//! Runs one program: its actual peak, and its behaviour under a limit.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::MIB;
use harness::backend::Backend;
use harness::daemon::Daemon;
use harness::memory::Held;
use harness::memory_group::MemoryGroup;
use harness::outcome::{Check, Outcome};
use harness::sampler::MemorySampler;
use harness::users::{Uid, User};
use serde_json::Value;

use crate::programs::Program;

/// The user that runs them unless another one is given.
pub const USER: Uid = Uid(64_300);
/// Limits that the program stays below, percent of the peak, with the names of their checks.
const ENOUGH: [(u64, &str); 2] = [(125, "spared"), (110, "spared at 110 %")];
/// Limits that it exceeds, percent of the peak, with the names of their checks.
const TOO_LITTLE: [(u64, &str); 2] = [(90, "victim"), (60, "victim at 60 %")];
/// Additional time that a program may take beyond its load.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a program is run.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Number of runs with a limit that it stays below.
    pub runs: u32,
    /// Duration of its load, seconds.
    pub seconds: u32,
    /// The user that runs it.
    pub uid: Uid,
}

impl Effort {
    fn user(self) -> User {
        User { uid: self.uid, subordinate: 0, count: 0 }
    }
}

/// Result of a program.
pub struct ProgramOutcome {
    peak: Held,
    checks: Vec<Check>,
}

impl Outcome for ProgramOutcome {
    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn print(&self, scenario: &str, backend: Backend) {
        println!(
            "{scenario:16} {:5} peak {} MiB (sum of RSS {} MiB), {} address spaces",
            backend.name(),
            self.peak.total() / MIB,
            self.peak.rss_sum / MIB,
            self.peak.spaces,
        );
    }
}

/// Runs it without a limit, and then with each of the limits.
pub fn play(program: &Program, backend: Backend, effort: Effort) -> anyhow::Result<ProgramOutcome> {
    let peak = unlimited_peak(program, effort)?;
    let mut checks = Vec::new();
    let mut finished = true;
    for (percent, name) in ENOUGH {
        let limit = peak.total() * percent / 100;
        let spared = spare(program, effort, Conditions::Limit { backend, limit })?;
        finished &= spared.finished;
        checks.push(Check::new(name, spared.signals == 0, text(spared.signals, limit)));
    }
    checks.push(Check::new(
        "finished",
        finished,
        if finished { "it succeeds" } else { "it fails" },
    ));
    for (percent, name) in TOO_LITTLE {
        let limit = peak.total() * percent / 100;
        let done = run(program, effort, Conditions::Limit { backend, limit })?;
        let fair = done.victims.len() == 1 && done.victims.first() == done.grower.as_ref();
        let mut found = text(done.victims.len(), limit);
        found.push_str(&format!(", to {:?}; {:?} grows", done.victims, done.grower));
        checks.push(Check::new(name, fair, found));
    }
    Ok(ProgramOutcome { peak, checks })
}

fn text(signals: usize, limit: u64) -> String {
    format!("{signals} signals at {} MiB", limit / MIB)
}

/// Runs under a limit that the program stays below, up to the first signal.
struct Spared {
    /// The most of a run.
    signals: usize,
    /// All runs succeeded.
    finished: bool,
}

fn spare(program: &Program, effort: Effort, conditions: Conditions<'_>) -> anyhow::Result<Spared> {
    let mut spared = Spared { signals: 0, finished: true };
    for _ in 0..effort.runs {
        let done = run(program, effort, conditions)?;
        spared.signals = spared.signals.max(done.victims.len());
        spared.finished &= done.finished;
        if spared.signals > 0 {
            break;
        }
    }
    Ok(spared)
}

/// Maximum number of runs without a limit: what some programs need differs by a tenth between runs
/// (a JVM, whose collector decides by time).
const UNLIMITED_RUNS: u32 = 5;

/// The sample with the highest total of all runs without a limit. The limited runs are not sampled:
/// that occupies a CPU.
fn unlimited_peak(program: &Program, effort: Effort) -> anyhow::Result<Held> {
    let mut highest = one_peak(program, effort)?;
    for _ in 1..effort.runs.min(UNLIMITED_RUNS) {
        let peak = one_peak(program, effort)?;
        if peak.total() > highest.total() {
            highest = peak;
        }
    }
    Ok(highest)
}

fn one_peak(program: &Program, effort: Effort) -> anyhow::Result<Held> {
    let group = MemoryGroup::create(effort.user()).map(Arc::new);
    let memory = match &group {
        Some(group) => MemorySampler::by_charge(effort.user(), group.clone()),
        None => MemorySampler::start(effort.user(), None),
    };
    let done = run(program, effort, Conditions::Unlimited { group: group.as_deref() });
    let peak = memory.end().peak();
    let done = done?;
    ensure!(done.finished, "{} fails without a limit:\n{}", program.name, done.log);
    Ok(peak)
}

/// Conditions of a run.
#[derive(Clone, Copy)]
enum Conditions<'a> {
    /// No limit; the programs are in the group, if there is one.
    Unlimited { group: Option<&'a MemoryGroup> },
    /// A daemon, and a limit in bytes.
    Limit { backend: Backend, limit: u64 },
}

/// Result of a run.
struct Run {
    /// The program succeeded.
    finished: bool,
    /// The process that must be the victim if there is one.
    grower: Option<u32>,
    /// The processes that got a signal.
    victims: Vec<u32>,
    log: String,
}

fn run(program: &Program, effort: Effort, conditions: Conditions<'_>) -> anyhow::Result<Run> {
    let folder = tempfile::tempdir()?;
    let user = effort.user();
    let mut command = command(program, folder.path(), effort)?;
    // Removed when the processes have ended.
    let slice = match conditions {
        Conditions::Limit { .. } => MemoryGroup::create(user),
        Conditions::Unlimited { .. } => None,
    };
    let (group, daemon) = match conditions {
        Conditions::Unlimited { group } => (group, None),
        Conditions::Limit { backend, limit } => {
            let daemon = Daemon::start(backend, "")?;
            daemon.set_limit(user.uid, limit)?;
            (slice.as_ref(), Some(daemon))
        }
    };
    group.map(|group| group.contain(&mut command)).transpose()?;
    let ended = Ended(user);
    let log = folder.path().join("output");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log)?)
        .stderr(fs::File::options().append(true).open(&log)?)
        .spawn()
        .context("cannot start unshare")?;
    let end = Instant::now() + Duration::from_secs(effort.seconds.into()) + PATIENCE;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() > end => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    drop(ended);
    let _ = child.wait();
    let victims = daemon.as_ref().map(|daemon| victims(daemon, user)).transpose()?;
    let grower = fs::read_to_string(folder.path().join("home/grower")).ok();
    Ok(Run {
        finished: status.is_some_and(|status| status.success()),
        grower: grower.and_then(|pid| pid.trim().parse().ok()),
        victims: victims.unwrap_or_default(),
        log: fs::read_to_string(&log).unwrap_or_default(),
    })
}

/// The command as the leader of a session, in a mount namespace in which the user has a name:
/// PostgreSQL refuses to run without one.
fn command(program: &Program, folder: &Path, effort: Effort) -> anyhow::Result<Command> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let (home, uid) = (folder.join("home"), effort.uid.0);
    fs::create_dir(&home)?;
    chown(&home, Some(uid), Some(uid))?;
    let mut users = fs::read_to_string("/etc/passwd")?;
    users.push_str(&format!("innocent:x:{uid}:{uid}::{}:/bin/sh\n", home.display()));
    let passwd = folder.join("passwd");
    fs::write(&passwd, users)?;
    let enter = "mount --bind \"$1\" /etc/passwd && shift && exec setsid setpriv --reuid=\"$1\" \
                 --regid=\"$1\" --clear-groups sh -c \"$2\" sh \"$3\" \"$4\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", enter, "sh"]).arg(&passwd).arg(uid.to_string());
    command.arg(program.script).arg(&home).arg(effort.seconds.to_string());
    command.env("HOME", &home).env("LC_ALL", "C.UTF-8").current_dir(&home);
    Ok(command)
}

/// All processes of all decisions, oldest first.
fn victims(daemon: &Daemon, user: User) -> anyhow::Result<Vec<u32>> {
    let pid = |process: &Value| process["pid"].as_u64().and_then(|pid| pid.try_into().ok());
    let decisions = daemon.decisions(|uid| user.has(uid))?;
    let of_one = |decision: &Value| {
        let others = decision["others"].as_array().cloned().unwrap_or_default();
        std::iter::once(decision["victim"].clone()).chain(others).collect::<Vec<Value>>()
    };
    Ok(decisions.iter().flat_map(of_one).filter_map(|process| pid(&process)).collect())
}

/// Ends all processes of the user on drop, whatever happened.
struct Ended(User);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end(&mut []);
    }
}
