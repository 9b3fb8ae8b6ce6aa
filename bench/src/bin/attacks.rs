//! Latency of a client's calls while other users attack the daemon.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bench::machine::process_cpu_ns;
use bench::measure::percentile;
use bench::results::Row;
use bench::statistics;
use binder_client::{Client, Options, Payload, Session};
use clap::Parser;
use e2e::attacker::{ATTACKS, Attack, Attacker, DEVICES, INNOCENT, INNOCENT_DEVICE};
use e2e::{Bus, Mapping, Peer, wait};
use harness::probe::{MAX_STEAL, REALTIME, Steal, delays_until, set_realtime};
use rustix::process::Pid;

const BENCH: &str = "attacks";
/// Between two calls.
const INTERVAL: Duration = Duration::from_micros(500);
/// Time in which the daemon must have its former number of descriptors again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures the 99.9th percentile of an innocent client's calls and, in the same pass, of the
/// wake-ups of a probe, both at SCHED_FIFO: without an attack, under each attack, and under all at
/// once. Each case has a fresh bus, which must have its former number of descriptors afterwards.
/// Passes with more than 2 % of stolen CPU time are discarded. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Duration of a case in a pass, seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Passes over all cases
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
}

/// Attacks that run at the same time.
struct Case {
    name: &'static str,
    attacks: &'static [Attack],
}

fn cases() -> Vec<Case> {
    let none = Case { name: "no attack", attacks: &[] };
    let one =
        |attack: &'static Attack| Case { name: attack.name, attacks: std::slice::from_ref(attack) };
    let all = Case { name: "all at once", attacks: ATTACKS };
    std::iter::once(none).chain(ATTACKS.iter().map(one)).chain([all]).collect()
}

/// A case in one pass.
struct Sample {
    /// Latencies of calls, nanoseconds, sorted.
    calls: Vec<u64>,
    /// Delays of the probe's wake-ups, nanoseconds, sorted.
    delays: Vec<u64>,
    /// CPU time of the daemon over the time of the case.
    daemon_cpu: f64,
    /// Part of the machine's CPU time that the hypervisor took.
    steal: f64,
}

impl Sample {
    /// The 99.9th percentile of the calls over that of the probe.
    fn ratio(&self) -> f64 {
        percentile(&self.calls, 0.999) as f64 / percentile(&self.delays, 0.999).max(1) as f64
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let peer = std::env::current_exe()?.with_file_name("peer");
    ensure!(peer.exists(), "{}: build it with `cargo build --release -p e2e`", peer.display());
    let cases = cases();
    let mut kept: Vec<Vec<Sample>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..arguments.passes {
        for (case, kept) in cases.iter().zip(&mut kept) {
            let sample = run(case, &arguments, &peer).with_context(|| case.name)?;
            if sample.steal <= MAX_STEAL {
                kept.push(sample);
            }
        }
    }
    print_results(&cases, &kept)
}

fn run(case: &Case, arguments: &Arguments, peer: &Path) -> Result<Sample> {
    let bus = Bus::start_with(Mapping::Passthrough, |command| {
        command.args(["--devices", DEVICES]);
    })?;
    let words = ["as", &INNOCENT.to_string(), "manager", "1"];
    let mut service = Peer::start_on(&bus, peer, INNOCENT_DEVICE, &words);
    service.expect("ready");
    REALTIME.apply(Pid::from_raw(service.pid() as i32))?;
    let client = Client::open(bus.device(INNOCENT_DEVICE), &Options::default())?;
    // The daemon opens a descriptor for a client's address space at its first call.
    call_until(&client, Instant::now() + Duration::from_millis(100))?;
    let before = bus.descriptors();
    let mut attackers: Vec<Attacker> =
        case.attacks.iter().flat_map(|attack| attack.start(&bus, peer)).collect();
    let sample = measure(&client, &bus, Duration::from_secs(arguments.seconds))?;
    attackers.iter_mut().for_each(Attacker::kill);
    let settled = wait::until(PATIENCE, || (bus.descriptors() <= before + 1).then_some(()));
    settled.ok_or_else(|| anyhow!("{} descriptors, {before} before", bus.descriptors()))?;
    drop(client);
    service.kill();
    bus.wait_until_empty().and_then(|()| bus.stop()).map_err(|fault| anyhow!(fault))?;
    Ok(sample)
}

fn measure(client: &Client, bus: &Bus, duration: Duration) -> Result<Sample> {
    let (begun, steal, cpu) = (Instant::now(), Steal::now()?, process_cpu_ns(bus.pid())?);
    let end = begun + duration;
    let ended = AtomicBool::new(false);
    let (calls, delays) = scope(|scope| {
        let probe = scope.spawn(|| delays_until(&ended));
        let calls = scope.spawn(|| set_realtime().and_then(|()| call_until(client, end))).join();
        ended.store(true, Ordering::Relaxed);
        (calls, probe.join())
    });
    let panicked = |_| anyhow!("a thread has panicked");
    let (mut calls, mut delays) = (calls.map_err(panicked)??, delays.map_err(panicked)??);
    calls.sort_unstable();
    delays.sort_unstable();
    let cpu_ns = process_cpu_ns(bus.pid())? - cpu;
    let daemon_cpu = cpu_ns as f64 / begun.elapsed().as_nanos() as f64;
    Ok(Sample { calls, delays, daemon_cpu, steal: Steal::now()?.since(&steal) })
}

/// Latencies of calls, nanoseconds.
fn call_until(client: &Client, end: Instant) -> Result<Vec<u64>> {
    let mut session = Session::new(client);
    let mut times = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let reply = session.call(0, 1, Payload::bytes(b"data"))?;
        times.push(begun.elapsed().as_nanos() as u64);
        session.free(reply);
        session.flush()?;
        sleep(INTERVAL);
    }
    Ok(times)
}

fn print_results(cases: &[Case], kept: &[Vec<Sample>]) -> Result<()> {
    let none = median(&kept[0], Sample::ratio)
        .context("each pass without an attack had more than 2 % of stolen time")?;
    for (case, samples) in cases.iter().zip(kept) {
        let Some(ratio) = median(samples, Sample::ratio) else {
            eprintln!("{:16} each pass had more than 2 % of stolen time", case.name);
            continue;
        };
        let us = |of: fn(&Sample) -> u64| median(samples, |s| of(s) as f64 / 1e3).unwrap_or(0.0);
        let mut row = Row::new(BENCH, case.name, "headroom", samples.len());
        row.value("call_us_p50", us(|s| percentile(&s.calls, 0.5)), "us");
        row.value("call_us_p999", us(|s| percentile(&s.calls, 0.999)), "us");
        row.value("call_us_max", us(|s| percentile(&s.calls, 1.0)), "us");
        row.value("probe_us_p999", us(|s| percentile(&s.delays, 0.999)), "us");
        row.value("call_over_probe", ratio, "ratio");
        row.value("over_no_attack", ratio / none, "ratio");
        row.value("daemon_cpu", median(samples, |s| s.daemon_cpu).unwrap_or(0.0), "CPUs");
    }
    Ok(())
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    statistics::median(&samples.iter().map(of).collect::<Vec<f64>>())
}
