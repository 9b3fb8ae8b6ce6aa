//! One attack.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Context;
use harness::MIB;
use harness::backend::Backend;
use harness::daemon::Daemon;
use harness::outcome::{Check, Outcome};
use harness::sampler::{Latencies, MemoryHistory, MemorySampler, RequestSampler};
use harness::users::User;

use crate::attack::{ATTACKER, Attack, BYSTANDER, NEWCOMER};

/// What may be held above the limit for more than a second: the larger of this part of it, percent,
/// and of these bytes.
const OVER_PERCENT: u64 = 5;
const OVER_BYTES: u64 = 32 * MIB;
/// CPU time of the daemon, percent of one CPU.
const CPU_PERCENT: u64 = 10;
/// Requests of root may take so many times as long as without the attack.
const SLOWDOWN: u32 = 3;
/// What the scheduler of a busy machine may add to that.
const SLOWDOWN_SLACK: Duration = Duration::from_millis(15);
/// How long the daemon is watched without an attack.
const CALM: Duration = Duration::from_millis(1500);

/// What came of an attack.
pub struct AttackOutcome {
    memory: MemoryHistory,
    limit: u64,
    kills: usize,
    cpu_percent: u64,
    calm: Latencies,
    latencies: Latencies,
    checks: Vec<Check>,
}

static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Copies the attacks to where other users can reach them, as long as the folder is there.
pub fn copy_programs() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let for_all = || std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), for_all())?;
    for program in std::fs::read_dir(env!("OUT_DIR"))?.flatten() {
        let copy = folder.path().join(program.file_name());
        std::fs::copy(program.path(), &copy)?;
        std::fs::set_permissions(&copy, for_all())?;
    }
    let _ = PROGRAMS.set(folder.path().to_owned());
    Ok(folder)
}

/// Where they are.
pub fn programs() -> &'static Path {
    PROGRAMS.get().map_or(Path::new(env!("OUT_DIR")), PathBuf::as_path)
}

/// Plays it once, against a daemon of its own.
pub fn play(attack: &Attack, backend: Backend) -> anyhow::Result<AttackOutcome> {
    let ended = Ended;
    let outcome = play_once(attack, backend).with_context(|| attack.name);
    drop(ended);
    outcome
}

/// No process of these users is left, whatever happened.
struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        [ATTACKER, BYSTANDER, NEWCOMER].iter().for_each(|user| user.end(&mut []));
    }
}

fn play_once(attack: &Attack, backend: Backend) -> anyhow::Result<AttackOutcome> {
    let limit = attack.limit_mib * MIB;
    let mut daemon = Daemon::start(backend, "")?;
    daemon.set_limit(ATTACKER.uid, limit)?;
    attack.witness.prepare(&daemon)?;
    let calm = RequestSampler::start(daemon.socket());
    std::thread::sleep(CALM);
    let calm = calm.end();

    let (cpu, begun) = (daemon.cpu_time(), Instant::now());
    let requests = RequestSampler::start(daemon.socket());
    let memory = MemorySampler::start(ATTACKER);
    let mut process = start(ATTACKER, attack, &daemon)?;
    let duration = Duration::from_secs(attack.seconds.into());
    let looked = attack.witness.begun(&mut process).and_then(|()| {
        std::thread::sleep((duration / 2).saturating_sub(begun.elapsed()));
        attack.witness.look(&daemon)
    });
    // It ends by itself, or is killed.
    let end = duration + Duration::from_secs(2);
    while process.try_wait()?.is_none() && begun.elapsed() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    // What it left behind goes on holding memory for a while.
    let rest = Duration::from_millis(1500).saturating_sub(begun.elapsed());
    std::thread::sleep(rest);
    let elapsed = begun.elapsed();
    let cpu = daemon.cpu_time().saturating_sub(cpu);
    let (memory, latencies) = (memory.end(), requests.end());
    ATTACKER.end(std::slice::from_mut(&mut process));
    let kills = daemon.decisions(|uid| ATTACKER.has(uid));
    let cpu_percent = (cpu.as_millis() * 100 / elapsed.as_millis().max(1)) as u64;
    let kills = kills.map_or(0, |kills| kills.iter().filter(|it| !it["victim"].is_null()).count());
    let alive = daemon.is_alive();
    let mut checks = vec![Check::new("alive", alive, if alive { "it runs" } else { "it ended" })];
    let mut outcome =
        AttackOutcome { memory, limit, kills, cpu_percent, calm, latencies, checks: vec![] };
    checks.extend(outcome.bounds());
    checks.extend(looked?);
    checks.extend(attack.witness.after(&daemon)?);
    outcome.checks = checks;
    Ok(outcome)
}

fn start(user: User, attack: &Attack, daemon: &Daemon) -> anyhow::Result<std::process::Child> {
    let mut command = user.command(programs().join(attack.program));
    command.arg(daemon.socket()).arg(attack.seconds.to_string()).args((attack.arguments)(daemon));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir(Path::new("/"));
    command.spawn().context("cannot start the attack")
}

fn mib(bytes: u64) -> u64 {
    bytes / MIB
}

impl AttackOutcome {
    fn bounds(&self) -> Vec<Check> {
        let allowed = self.limit + (self.limit * OVER_PERCENT / 100).max(OVER_BYTES);
        let sustained = self.memory.sustained();
        let held = format!("{} MiB for a second, {} allowed", mib(sustained), mib(allowed));
        let (calm, slow) = (self.calm.percentile(95), self.latencies.percentile(95));
        let bound = calm * SLOWDOWN + SLOWDOWN_SLACK;
        let unanswered = self.latencies.unanswered;
        let prompt = slow <= bound && unanswered == 0;
        let latency =
            format!("95 % within {slow:.1?}, {bound:.1?} allowed, {unanswered} unanswered");
        let cpu = format!("{} % of a CPU, {CPU_PERCENT} allowed", self.cpu_percent);
        let mut checks = vec![
            Check::new("held", sustained <= allowed, held),
            Check::new("latency", prompt, latency),
        ];
        // A build without optimisation says nothing about it.
        if !cfg!(debug_assertions) {
            checks.push(Check::new("cpu", self.cpu_percent <= CPU_PERCENT, cpu));
        }
        checks
    }
}

impl Outcome for AttackOutcome {
    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn print(&self, scenario: &str, backend: Backend) {
        let peak = self.memory.peak();
        let over = peak.total().saturating_sub(self.limit);
        println!(
            "{scenario:24} {:5} {:>5} {:>6} {:>6} {:>7.1} {:>5} {:>4} {:>8.1?} {:>8.1?} {:>8.1?}",
            backend.name(),
            mib(self.limit),
            mib(over),
            mib(self.memory.sustained().saturating_sub(self.limit)),
            self.memory.time_above(self.limit).as_secs_f64(),
            self.kills,
            self.cpu_percent,
            self.calm.percentile(50),
            self.latencies.percentile(50),
            self.latencies.percentile(100),
        );
    }
}

/// What the columns are.
pub fn print_header() {
    println!(
        "{:24} {:5} {:>5} {:>6} {:>6} {:>7} {:>5} {:>4} {:>8} {:>8} {:>8}",
        "attack",
        "by",
        "limit",
        "over",
        "over1s",
        "s over",
        "kills",
        "cpu%",
        "calm p50",
        "p50",
        "max"
    );
}
