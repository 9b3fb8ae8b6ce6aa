//! Carries out one attack.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use harness::MIB;
use harness::backend::Backend;
use harness::daemon::Daemon;
use harness::memory::Held;
use harness::memory_group::MemoryGroup;
use harness::outcome::{Check, Outcome};
use harness::sampler::{Latencies, MemoryHistory, MemorySampler, RequestSampler};
use harness::users::User;
use serde_json::json;

use crate::attack::{ATTACKER, Attack, BYSTANDER, Guarantee, INNOCENT, NEWCOMER, RECEIVER};

/// Memory above the limit that may be held for more than a second: the larger of this percentage of
/// the limit, and of these bytes.
const OVER_PERCENT: u64 = 5;
const OVER_BYTES: u64 = 32 * MIB;
/// Maximum CPU time of the daemon, percent of one CPU.
const CPU_PERCENT: u64 = 10;
/// Maximum ratio of the duration of root's requests to that without the attack.
const SLOWDOWN: u32 = 3;
/// Additional duration that the scheduler of a busy machine may cause.
const SLOWDOWN_SLACK: Duration = Duration::from_millis(15);
/// Makes the daemon find the programs of all processes.
const RULES: &str = "[[rule]]\nkill = \"avoid\"\nexe = \"/usr/sbin/sshd\"\n";
/// Time for which the daemon is measured without an attack.
const CALM: Duration = Duration::from_millis(1500);

/// Result of an attack.
pub struct AttackOutcome {
    memory: MemoryHistory,
    limit: u64,
    guarantee: Guarantee,
    kills: usize,
    cpu_percent: u64,
    /// How the daemon measured usage at the height of the attack.
    sources: String,
    calm: Latencies,
    latencies: Latencies,
    checks: Vec<Check>,
}

static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Copies the attacks to where other users can execute them, for as long as the folder exists.
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

/// The folder of the attacks.
pub fn programs() -> &'static Path {
    PROGRAMS.get().map_or(Path::new(env!("OUT_DIR")), PathBuf::as_path)
}

/// Carries out an attack once, against a private daemon.
pub fn play(attack: &Attack, backend: Backend) -> anyhow::Result<AttackOutcome> {
    let mut others = Others { attack, processes: Vec::new() };
    play_once(attack, backend, &mut others).with_context(|| attack.name)
}

/// The processes besides the attack. On drop, all processes of all users are killed, whatever
/// happened.
pub struct Others<'a> {
    pub attack: &'a Attack,
    pub processes: Vec<Child>,
}

impl Others<'_> {
    /// Checks that all of them are running, and that none was killed for a limit.
    fn check(&mut self, daemon: &Daemon) -> anyhow::Result<Check> {
        let ended = self.processes.iter_mut().filter_map(|it| it.try_wait().transpose());
        let ended = ended.collect::<Result<Vec<ExitStatus>, _>>()?;
        let kills = daemon.decisions(|uid| INNOCENT.has(uid) || RECEIVER.has(uid))?.len();
        let found = format!("{} of them, ended: {ended:?}, {kills} killed", self.processes.len());
        Ok(Check::new("others-live", ended.is_empty() && kills == 0, found))
    }
}

impl Drop for Others<'_> {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
        }
        for user in [ATTACKER, BYSTANDER, NEWCOMER, INNOCENT, RECEIVER] {
            user.end(&mut self.processes);
        }
        self.attack.witness.clean_up();
    }
}

/// Starts the process of the innocent user.
fn start_innocent(attack: &Attack, daemon: &Daemon) -> anyhow::Result<Child> {
    daemon.set_limit(INNOCENT.uid, 64 * MIB)?;
    hold(INNOCENT, attack, 40)
}

/// Starts a process that holds `mib` until the attack is over.
pub fn hold(user: User, attack: &Attack, mib: u64) -> anyhow::Result<Child> {
    let seconds = attack.seconds + 60;
    let mut command = user.command(programs().join("hold"));
    command.args(["-".to_owned(), seconds.to_string(), mib.to_string()]).current_dir("/");
    command.spawn().context("cannot start a process of another user")
}

fn play_once(
    attack: &Attack,
    backend: Backend,
    others: &mut Others<'_>,
) -> anyhow::Result<AttackOutcome> {
    let limit = attack.limit_mib * MIB;
    let mut daemon = Daemon::start(backend, RULES)?;
    daemon.set_limit(ATTACKER.uid, limit)?;
    others.processes.push(start_innocent(attack, &daemon)?);
    others.processes.extend(attack.witness.prepare(&daemon)?);
    let calm = RequestSampler::start(daemon.socket());
    std::thread::sleep(CALM);
    let calm = calm.end();

    let (cpu, begun) = (daemon.cpu_time(), Instant::now());
    let requests = RequestSampler::start(daemon.socket());
    let group = MemoryGroup::create(ATTACKER).map(Arc::new);
    let memory = MemorySampler::start(ATTACKER, group.clone());
    let mut process = start(attack, &daemon, group.as_deref())?;
    let duration = Duration::from_secs(attack.seconds.into());
    let looked = attack.witness.begun(&mut process).and_then(|()| {
        std::thread::sleep((duration / 2).saturating_sub(begun.elapsed()));
        attack.witness.look(&daemon)
    });
    let sources = usage_sources(&daemon);
    // It exits, or is killed.
    let end = duration + Duration::from_secs(2);
    while process.try_wait()?.is_none() && begun.elapsed() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Processes that it left behind continue to hold memory for a while.
    let rest = Duration::from_millis(1500).saturating_sub(begun.elapsed());
    std::thread::sleep(rest);
    let elapsed = begun.elapsed();
    let cpu = daemon.cpu_time().saturating_sub(cpu);
    let (memory, latencies) = (memory.end(), requests.end());
    // Before the processes with the attack's uids are killed: a container of root has some of these
    // uids.
    let others_live = others.check(&daemon)?;
    let attacked = attack_check(process.try_wait()?);
    ATTACKER.end(std::slice::from_mut(&mut process));
    let kills = daemon.decisions(|uid| ATTACKER.has(uid));
    let cpu_percent = (cpu.as_millis() * 100 / elapsed.as_millis().max(1)) as u64;
    let kills = kills.map_or(0, |kills| kills.iter().filter(|it| !it["victim"].is_null()).count());
    let alive = daemon.is_alive();
    let mut checks = vec![Check::new("alive", alive, if alive { "it runs" } else { "it ended" })];
    checks.extend([attacked, others_live]);
    let guarantee = attack.guarantee;
    let mut outcome = AttackOutcome {
        memory,
        limit,
        guarantee,
        kills,
        cpu_percent,
        sources,
        calm,
        latencies,
        checks: Vec::new(),
    };
    checks.extend(outcome.bounds());
    checks.extend(looked?);
    checks.extend(attack.witness.after(&daemon)?);
    outcome.checks = checks;
    Ok(outcome)
}

/// How the daemon measures usage at present; empty: not at all.
fn usage_sources(daemon: &Daemon) -> String {
    let status = daemon.request(&json!({"request": "status"})).unwrap_or_default();
    let sources = status["usage_sources"].as_object();
    let names: Vec<&str> = sources.iter().flat_map(|by| by.keys()).map(String::as_str).collect();
    names.join(", ")
}

/// Starts an attack.
pub fn start(
    attack: &Attack,
    daemon: &Daemon,
    group: Option<&MemoryGroup>,
) -> anyhow::Result<Child> {
    let mut command = Command::new(programs().join(attack.program));
    if let Some(group) = group {
        group.contain(&mut command)?;
    }
    ATTACKER.run_as_self(&mut command);
    command.arg(daemon.socket()).arg(attack.seconds.to_string()).args((attack.arguments)(daemon));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir(Path::new("/"));
    command.spawn().context("cannot start the attack")
}

/// An attack that could not be carried out exits with code 2.
fn attack_check(status: Option<ExitStatus>) -> Check {
    let failed = status.and_then(|status| status.code()) == Some(2);
    Check::new("attack", !failed, if failed { "it could not be carried out" } else { "it ran" })
}

fn mib(bytes: u64) -> u64 {
    bytes / MIB
}

impl AttackOutcome {
    fn measure(&self) -> fn(&Held) -> u64 {
        match self.guarantee {
            Guarantee::AllMemory => Held::with_hidden,
            Guarantee::VisibleMemory => Held::total,
        }
    }

    fn bounds(&self) -> Vec<Check> {
        let allowed = self.limit + (self.limit * OVER_PERCENT / 100).max(OVER_BYTES);
        let sustained = self.memory.sustained(self.measure());
        let hidden = self.memory.sustained(Held::with_hidden).saturating_sub(sustained);
        let mut held = format!("{} MiB for a second, {} allowed", mib(sustained), mib(allowed));
        if self.guarantee == Guarantee::VisibleMemory {
            held += &format!("; {} MiB are not seen", mib(hidden));
        }
        let (calm, slow) = (self.calm.percentile(95), self.latencies.percentile(95));
        let bound = calm * SLOWDOWN + SLOWDOWN_SLACK;
        let unanswered = self.latencies.unanswered;
        let latency = format!("95 % within {slow:.1?}, {bound:.1?} allowed");
        let cpu = format!("{} % of a CPU, {CPU_PERCENT} allowed", self.cpu_percent);
        let mut checks = vec![
            Check::new("held", sustained <= allowed, held),
            Check::new("answered", unanswered == 0, format!("{unanswered} requests were not")),
        ];
        // Times are not significant in a build without optimisation, beside other tests.
        if !cfg!(debug_assertions) {
            checks.push(Check::new("latency", slow <= bound, latency));
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
            "{scenario:24} {:5} {:>5} {:>6} {:>6} {:>7.1} {:>5} {:>4} {:>8.1?} {:>8.1?} {:>8.1?} \
             {}",
            backend.name(),
            mib(self.limit),
            mib(over),
            mib(self.memory.sustained(self.measure()).saturating_sub(self.limit)),
            self.memory.time_above(self.limit).as_secs_f64(),
            self.kills,
            self.cpu_percent,
            self.calm.percentile(50),
            self.latencies.percentile(50),
            self.latencies.percentile(100),
            self.sources,
        );
    }
}

/// Prints the headers of the columns.
pub fn print_header() {
    println!(
        "{:24} {:5} {:>5} {:>6} {:>6} {:>7} {:>5} {:>4} {:>8} {:>8} {:>8} usage",
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
