//! Many clients with mixed load for a long time, killed, stopped and frozen at random; afterwards
//! the bus must be in its initial state.
//!
//! Exit code 1: objects are left, or the daemon's memory has grown.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use binder_client::Client;
use clap::Parser;
use control::binderd::Status;
use e2e::attacker::{ATTACKS, Attacker, DEVICES, INNOCENT_DEVICE};
use e2e::random::Random;
use e2e::soak::SERVICES;
use e2e::{Bus, BusError, Mapping, Peer, wait};
use rustix::process::Signal;

/// Mean interval of kills, stops and freezes, milliseconds.
const PAUSE_MS: u64 = 30;
/// Maximum duration of a stop or freeze, milliseconds.
const MAX_PAUSE_MS: u64 = 3_000;
/// Limit of every wait. Thousands of threads at the lowest priority may wait long for a kernel lock
/// that one of them holds.
const PATIENCE: Duration = Duration::from_secs(300);
/// Device of the load.
const DEVICE: &str = INNOCENT_DEVICE;
/// Duration of the warm-up load.
const WARM_UP_MINUTES: f64 = 0.1;
/// Kinds of objects that the driver counts.
const KINDS: [&str; 7] = ["proc", "thread", "node", "ref", "death", "transaction", "freeze"];
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Permitted growth of the daemon's memory by the load: its allocator keeps some, and tables do not
/// shrink.
const MAX_GROWTH_KIB: u64 = 64 << 10;

/// Runs many clients with mixed load, of which random ones are killed, stopped and frozen, and
/// attacks by other users. Prints every ten seconds the daemon's objects and memory, and at the end
/// what is left. Needs root.
#[derive(Clone, Copy, Parser)]
struct Options {
    /// Clients with mixed load
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Attacks on other devices of the bus, begun again at random
    #[arg(
        long,
        default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(..=ATTACKS.len() as i64)
    )]
    attacks: u8,
    /// Duration of the load
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Passthrough, notify-store or auto
    #[arg(long, default_value = "passthrough")]
    mapping: Mapping,
    /// Determines the load; printed at the start
    #[arg(long, default_value_t = Random::fresh_seed())]
    seed: u64,
}

fn main() -> ExitCode {
    match soak(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

/// State that must be the same at the end as before.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
}

impl Held {
    fn by(bus: &Bus) -> Self {
        let tasks = fs::read_dir(format!("/proc/{}/task", bus.pid()));
        Self { descriptors: bus.descriptors(), threads: tasks.map_or(0, Iterator::count) }
    }
}

/// Resident memory of the daemon in KiB.
fn resident(bus: &Bus) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", bus.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Number of objects of a kind, as the driver counts them.
fn active(bus: &Bus, kind: &str) -> Result<u64, String> {
    let path = bus.device("binder_logs/stats");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(": active "));
    Ok(line.and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or(0))
}

/// A process that is stopped or frozen, and until when.
struct Pause {
    client: usize,
    until: Instant,
    frozen: bool,
}

struct Load<'a> {
    bus: &'a Bus,
    random: Random,
    services: Vec<Peer>,
    clients: Vec<Peer>,
    paused: Vec<Pause>,
    /// The processes of each attack.
    attackers: Vec<Vec<Attacker>>,
    /// Files that a service has open before the first call to it.
    service_files: Option<usize>,
    killed: u64,
    stopped: u64,
    frozen: u64,
}

impl<'a> Load<'a> {
    fn start(bus: &'a Bus, options: &Options) -> Result<Self, String> {
        let random = Random::new(options.seed);
        let mut load = Self {
            bus,
            random,
            services: Vec::new(),
            clients: Vec::new(),
            paused: Vec::new(),
            attackers: Vec::new(),
            service_files: None,
            killed: 0,
            stopped: 0,
            frozen: 0,
        };
        for number in 0..SERVICES {
            let service = load.service(number)?;
            service.expect("ready");
            load.services.push(service);
        }
        load.service_files = most_files(&load.services);
        for index in 0..options.clients {
            let client = load.client(index, options.clients)?;
            load.clients.push(client);
        }
        let program = program("peer")?;
        let attacks = ATTACKS.iter().take(options.attacks.into());
        load.attackers = attacks.map(|attack| attack.start(bus, &program)).collect();
        Ok(load)
    }

    fn service(&self, number: usize) -> Result<Peer, String> {
        peer(self.bus, &["soak-service", &format!("service{number}")])
    }

    fn client(&mut self, index: u32, clients: u32) -> Result<Peer, String> {
        let seed = self.random.below(1 << 32).to_string();
        peer(self.bus, &["soak-client", &index.to_string(), &clients.to_string(), &seed])
    }

    /// Disturbs a random client, and now and then ends an attack and begins it again.
    fn disturb(&mut self, freezer: &Client) -> Result<(), String> {
        self.let_go_on(freezer, Instant::now())?;
        if self.random.below(300) == 0 && !self.attackers.is_empty() {
            let place = self.random.below(self.attackers.len() as u64) as usize;
            self.attackers[place].iter_mut().for_each(Attacker::kill);
            self.attackers[place] = ATTACKS[place].start(self.bus, &program("peer")?);
        }
        self.disturb_client(freezer)
    }

    /// Disturbs a random process: one in three is killed, the others are stopped or frozen for
    /// seconds.
    fn disturb_client(&mut self, freezer: &Client) -> Result<(), String> {
        let victim = self.random.below(self.clients.len() as u64) as usize;
        let until = Instant::now() + Duration::from_millis(self.random.below(MAX_PAUSE_MS));
        match self.random.below(300) {
            0 => {
                let number = self.random.below(SERVICES as u64) as usize;
                self.services[number].kill_within(PATIENCE);
                self.killed += 1;
                self.services[number] = self.service(number)?;
            }
            1..100 => {
                self.paused.retain(|pause| pause.client != victim);
                self.clients[victim].kill_within(PATIENCE);
                self.killed += 1;
                self.clients[victim] = self.client(victim as u32, self.clients.len() as u32)?;
            }
            _ if self.paused.iter().any(|pause| pause.client == victim) => {}
            100..200 => {
                // Freezing fails if the process has pending calls or has not opened the device yet.
                if freezer.freeze(self.clients[victim].pid(), 0).is_ok() {
                    self.frozen += 1;
                    self.paused.push(Pause { client: victim, until, frozen: true });
                }
            }
            _ => {
                self.clients[victim].signal(Signal::STOP);
                self.stopped += 1;
                self.paused.push(Pause { client: victim, until, frozen: false });
            }
        }
        Ok(())
    }

    fn let_go_on(&mut self, freezer: &Client, now: Instant) -> Result<(), String> {
        for pause in self.paused.extract_if(.., |pause| pause.until <= now) {
            let client = &self.clients[pause.client];
            if pause.frozen {
                freezer.thaw(client.pid()).map_err(|error| {
                    format!("client {} cannot be thawed: {error}", pause.client)
                })?;
            } else {
                client.signal(Signal::CONT);
            }
        }
        Ok(())
    }

    fn report(&self, begun: Instant, calls: f64, status: &Status) -> Result<(), String> {
        println!(
            "{:>6.0}s {:>6} {:>6} {:>6} {calls:>8.0} {:>14} {:>8} {:>7} {:>8} {:>7}",
            begun.elapsed().as_secs_f64(),
            status.processes,
            active(self.bus, "node")?,
            active(self.bus, "ref")?,
            status.touched_pages,
            resident(self.bus),
            self.killed,
            self.stopped,
            self.frozen,
        );
        Ok(())
    }

    /// Ends the clients, none of which may have exited by itself, and then the services. Files that
    /// the services still have open then are passed files that were leaked.
    fn end(mut self) -> Result<(), String> {
        self.attackers.iter_mut().flatten().for_each(Attacker::kill);
        for client in &mut self.clients {
            client.kill_within(PATIENCE);
        }
        let at_first = self.service_files;
        let held = |load: &Self| most_files(&load.services);
        let clean = wait::until(PATIENCE, || (held(&self) <= at_first).then_some(()));
        clean
            .ok_or(format!("a service has {:?} files open, {at_first:?} at first", held(&self)))?;
        for service in &mut self.services {
            service.kill_within(PATIENCE);
        }
        Ok(())
    }
}

fn most_files(services: &[Peer]) -> Option<usize> {
    services.iter().map(|service| wait::descriptors(service.pid())).max()
}

fn peer(bus: &Bus, arguments: &[&str]) -> Result<Peer, String> {
    Ok(Peer::start(&program("peer")?, &bus.device(DEVICE), arguments))
}

/// A program of this crate.
fn program(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name(name))
}

fn soak(options: &Options) -> Result<(), String> {
    println!("seed {}", options.seed);
    let with_logs = |command: &mut Command| {
        command.args(["--stats", "global", "--devices", DEVICES]);
    };
    let bus = Bus::start_with(options.mapping, with_logs).map_err(|error| match error {
        BusError::Unavailable(reason) | BusError::Broken(reason) => reason,
    })?;
    // The daemon starts some threads with their first work, and keeps them.
    load(&bus, &Options { clients: 20, minutes: WARM_UP_MINUTES, ..*options })?;
    let (empty, held) = (resident(&bus), Held::by(&bus));
    load(&bus, options)?;
    println!("at the end: {:?}", bus.ls()?);
    for kind in KINDS {
        let left = active(&bus, kind)?;
        if left > 0 {
            return Err(format!("{left} objects of kind {kind} are left"));
        }
    }
    let same = wait::until(PATIENCE, || (Held::by(&bus) == held).then_some(()));
    same.ok_or_else(|| format!("the daemon holds {:?}, before {held:?}", Held::by(&bus)))?;
    let left = resident(&bus);
    println!("RSS {empty} KiB before, {left} KiB after; {held:?} before and after");
    bus.stop()?;
    if left > empty + MAX_GROWTH_KIB {
        return Err(format!("the daemon's memory has grown by {} KiB", left - empty));
    }
    Ok(())
}

/// Runs the load; afterwards no open is left.
fn load(bus: &Bus, options: &Options) -> Result<(), String> {
    let manager = peer(bus, &["manager", "1"])?;
    manager.expect("ready");
    let mut load = Load::start(bus, options)?;
    let freezer = Client::open(bus.device(DEVICE), &binder_client::Options::default())
        .map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let (mut reported, mut transactions) = (begun, bus.status()?.transactions);
    println!(
        "   time  opens  nodes   refs  calls/s  touched pages  RSS KiB  killed  stopped  frozen"
    );
    while begun.elapsed().as_secs_f64() < options.minutes * 60.0 {
        sleep(Duration::from_millis(load.random.below(2 * PAUSE_MS)));
        load.disturb(&freezer)?;
        if reported.elapsed() >= REPORT_EVERY {
            let status = bus.status()?;
            let calls = (status.transactions - transactions) as f64;
            load.report(begun, calls / reported.elapsed().as_secs_f64(), &status)?;
            (transactions, reported) = (status.transactions, Instant::now());
        }
    }
    load.end()?;
    drop((freezer, manager));
    wait::until(PATIENCE, || bus.wait_until_empty().ok())
        .ok_or_else(|| format!("not everything is gone: {:#?}", bus.ls()))
}
