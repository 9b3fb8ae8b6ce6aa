//! Latency of root's requests and of another user's kills, without and under an attack, against the
//! wake-ups of a real-time probe in the same pass.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use harness::MIB;
use harness::backend::Backend;
use harness::client::Client;
use harness::daemon::Daemon;
use harness::probe::{MAX_STEAL, REALTIME, Steal, delays_until, set_realtime};
use rustix::process::Pid;
use serde_json::json;

use crate::attack::{ATTACKER, Attack, BYSTANDER};
use crate::run::{Others, programs, start};

/// Duration of the measurement without the attack.
const CALM: Duration = Duration::from_millis(1200);
/// Maximum duration of an attack, seconds.
const LONGEST: u32 = 2;
/// Between two requests.
const REQUEST_PAUSE: Duration = Duration::from_millis(2);
/// Time after which a request has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit of the user whose processes are killed, and the memory that each of them fills, MiB.
const BYSTANDER_MIB: (u64, u64) = (8, 64);
/// Maximum ratio of a latency under an attack to that without it.
const MOST: f64 = 3.0;

/// Latencies, nanoseconds, sorted.
struct Sample {
    requests: Vec<u64>,
    kills: Vec<u64>,
    delays: Vec<u64>,
}

impl Sample {
    fn new(daemon: &Daemon, duration: Duration) -> anyhow::Result<Self> {
        let ended = AtomicBool::new(false);
        let mut killed = start_victims(duration)?;
        let (requests, kills, delays) = scope(|scope| {
            let probe = scope.spawn(|| delays_until(&ended));
            let requests = scope.spawn(|| requests_until(daemon, Instant::now() + duration));
            let kills = kill_times(&mut killed);
            let requests = requests.join();
            ended.store(true, Ordering::Relaxed);
            (requests, kills, probe.join())
        });
        let panicked = |_| anyhow!("a thread has panicked");
        let sorted = |mut values: Vec<u64>| {
            values.sort_unstable();
            values
        };
        Ok(Self {
            requests: sorted(requests.map_err(panicked)??),
            kills: sorted(kills?),
            delays: sorted(delays.map_err(panicked)??),
        })
    }
}

/// The value that 95 % do not exceed.
fn p95(sorted: &[u64]) -> f64 {
    sorted.get(sorted.len() * 95 / 100).copied().unwrap_or(0).max(1) as f64
}

/// Starts processes of another user that exceed its limit one after the other.
fn start_victims(duration: Duration) -> anyhow::Result<Child> {
    let mut command = BYSTANDER.command(programs().join("timed_kills"));
    command.args(["-".to_owned(), duration.as_secs_f64().to_string()]);
    command.arg(BYSTANDER_MIB.1.to_string()).stdout(Stdio::piped());
    let killed = command.spawn().context("cannot start the victims")?;
    REALTIME.apply(Some(Pid::from_child(&killed))).context("SCHED_FIFO")?;
    Ok(killed)
}

/// From the start of each process to its end, nanoseconds.
fn kill_times(killed: &mut Child) -> anyhow::Result<Vec<u64>> {
    let stdout = killed.stdout.take().context("no standard output")?;
    let lines = BufReader::new(stdout).lines();
    let times = lines.map(|line| Ok(line?.parse()?)).collect::<anyhow::Result<Vec<u64>>>()?;
    anyhow::ensure!(killed.wait()?.success(), "a victim was not killed");
    Ok(times)
}

fn requests_until(daemon: &Daemon, end: Instant) -> anyhow::Result<Vec<u64>> {
    set_realtime()?;
    let mut times = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let client = Client::connect(&daemon.socket(), PATIENCE)?;
        client.call(&json!({"request": "status"}))?;
        times.push(begun.elapsed().as_nanos() as u64);
        sleep(REQUEST_PAUSE);
    }
    Ok(times)
}

/// A pass: ratios of the latencies under the attack to those without it, each in relation to the
/// probe of its phase.
struct Pass {
    calm: Sample,
    attacked: Sample,
}

impl Pass {
    fn ratio(&self, of: fn(&Sample) -> &[u64]) -> f64 {
        let relative = |sample| p95(of(sample)) / p95(&sample.delays);
        relative(&self.attacked) / relative(&self.calm)
    }
}

/// `None`: the hypervisor took too much time.
fn run_pass(attack: &Attack, backend: Backend) -> anyhow::Result<Option<Pass>> {
    let daemon = Daemon::start(backend, "")?;
    let mut others = Others { attack, processes: Vec::new() };
    others.processes.extend(attack.witness.prepare(&daemon)?);
    daemon.set_limit(BYSTANDER.uid, BYSTANDER_MIB.0 * MIB)?;
    daemon.set_limit(ATTACKER.uid, attack.limit_mib * MIB)?;
    let steal = Steal::now()?;
    let calm = Sample::new(&daemon, CALM)?;
    let mut process = start(attack, &daemon, None)?;
    attack.witness.begun(&mut process)?;
    let duration = Duration::from_secs(attack.seconds.min(LONGEST).into());
    let attacked = Sample::new(&daemon, duration)?;
    let stolen = Steal::now()?.since(&steal);
    others.processes.push(process);
    Ok((stolen <= MAX_STEAL).then_some(Pass { calm, attacked }))
}

/// Runs passes of an attack and prints the medians. `false`: a latency is more than three times
/// that without the attack.
pub fn measure(attack: &Attack, backend: Backend, passes: u32) -> anyhow::Result<bool> {
    let mut kept = Vec::new();
    for _ in 0..passes {
        kept.extend(run_pass(attack, backend).with_context(|| attack.name)?);
    }
    if kept.is_empty() {
        println!("{:24} {:5} stolen time in each of {passes} passes", attack.name, backend.name());
        return Ok(true);
    }
    let median = |of: &dyn Fn(&Pass) -> f64| {
        let mut values: Vec<f64> = kept.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let us = |of: &dyn Fn(&Pass) -> f64| median(of) / 1e3;
    let requests = median(&|pass| pass.ratio(|sample| &sample.requests));
    let kills = median(&|pass| pass.ratio(|sample| &sample.kills));
    println!(
        "{:24} {:5} {:>8.0} {:>8.0} {requests:>6.2} {:>8.0} {:>8.0} {kills:>6.2} {:>6.0} {:>6.0} \
         {:>3}/{passes}",
        attack.name,
        backend.name(),
        us(&|pass| p95(&pass.calm.requests)),
        us(&|pass| p95(&pass.attacked.requests)),
        us(&|pass| p95(&pass.calm.kills)),
        us(&|pass| p95(&pass.attacked.kills)),
        us(&|pass| p95(&pass.calm.delays)),
        us(&|pass| p95(&pass.attacked.delays)),
        kept.len(),
    );
    Ok(requests <= MOST && kills <= MOST)
}

/// Prints the headers of the columns. Times are 95th percentiles, microseconds.
pub fn print_header() {
    println!(
        "{:24} {:5} {:>8} {:>8} {:>6} {:>8} {:>8} {:>6} {:>6} {:>6} passes",
        "attack", "by", "request", "attacked", "ratio", "kill", "attacked", "ratio", "probe", ""
    );
}
