//! Many clients with mixed load for a long time, killed and stopped at random; then everything must be as before.
//!
//! `soak [--clients N] [--minutes M] [--mapping passthrough|notify-store] [--seed S]` prints every ten seconds what the
//! daemon holds and what memory it has, and at the end what is left. Exit code 1: something is, or its memory has grown.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use e2e::random::Random;
use e2e::{Bus, BusError, Mapping, Peer};
use rustix::process::Signal;

const SERVICES: usize = 8;
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// What the daemon may have more after the load than before it: its allocator keeps some, and tables do not shrink.
const MAX_GROWTH_KIB: u64 = 64 << 10;

struct Options {
    clients: usize,
    minutes: f64,
    mapping: Mapping,
    seed: u64,
}

fn main() -> ExitCode {
    match options().and_then(|options| soak(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        clients: 1000,
        minutes: 60.0,
        mapping: Mapping::Passthrough,
        seed: Random::fresh_seed(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        let bad = || format!("{name} {value}: not a value for it");
        match &*name {
            "--clients" => options.clients = value.parse().map_err(|_| bad())?,
            "--minutes" => options.minutes = value.parse().map_err(|_| bad())?,
            "--seed" => options.seed = value.parse().map_err(|_| bad())?,
            "--mapping" => {
                let all = [Mapping::Passthrough, Mapping::NotifyStore];
                options.mapping =
                    all.into_iter().find(|one| one.argument() == value).ok_or_else(bad)?;
            }
            _ => return Err(format!("{name}: --clients, --minutes, --mapping or --seed")),
        }
    }
    Ok(options)
}

fn start(bus: &Bus, arguments: &[&str]) -> Result<Peer, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(Peer::start(&program.with_file_name("peer"), &bus.device("binder"), arguments))
}

fn client(bus: &Bus, number: usize, random: &mut Random) -> Result<Peer, String> {
    let seed = random.below(1 << 32).to_string();
    start(bus, &["soak", &number.to_string(), &seed])
}

/// Resident memory of the daemon in KiB.
fn resident(bus: &Bus) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", bus.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn soak(options: &Options) -> Result<(), String> {
    println!("seed {}", options.seed);
    let mut random = Random::new(options.seed);
    let bus = Bus::start(options.mapping).map_err(|error| match error {
        BusError::Unavailable(reason) | BusError::Broken(reason) => reason,
    })?;
    let empty = resident(&bus);
    let manager = start(&bus, &["manager", "1"])?;
    manager.expect("ready");
    let services = (0..SERVICES)
        .map(|number| start(&bus, &["echo", &format!("service{number}")]))
        .collect::<Result<Vec<_>, _>>()?;
    let mut clients = (0..options.clients)
        .map(|number| client(&bus, number, &mut random))
        .collect::<Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    let mut reported = begun;
    let (mut killed, mut stopped, mut transactions) = (0_u64, 0_u64, 0);
    println!("   time  opens  transactions/s  touched pages  RSS KiB  killed  stopped");
    while begun.elapsed().as_secs_f64() < options.minutes * 60.0 {
        sleep(Duration::from_millis(random.below(40)));
        let victim = random.below(clients.len() as u64) as usize;
        if random.below(3) == 0 {
            clients[victim].kill();
            killed += 1;
            clients[victim] = client(&bus, victim, &mut random)?;
        } else {
            clients[victim].signal(Signal::STOP);
            stopped += 1;
            // It goes on when the next one is chosen, so there is one at each moment.
            sleep(Duration::from_millis(random.below(10)));
            clients[victim].signal(Signal::CONT);
        }
        if reported.elapsed() >= REPORT_EVERY {
            let status = bus.status()?;
            let rate =
                (status.transactions - transactions) as f64 / reported.elapsed().as_secs_f64();
            println!(
                "{:>6.0}s {:>6} {rate:>15.0} {:>14} {:>8} {killed:>7} {stopped:>8}",
                begun.elapsed().as_secs_f64(),
                status.processes,
                status.touched_pages,
                resident(&bus),
            );
            (transactions, reported) = (status.transactions, Instant::now());
        }
    }
    drop((clients, services, manager));
    bus.wait_until_empty()?;
    let left = resident(&bus);
    println!("at the end: {:?}", bus.ls()?);
    println!("RSS {empty} KiB before, {left} KiB after; {killed} killed, {stopped} stopped");
    bus.stop()?;
    if left > empty + MAX_GROWTH_KIB {
        return Err(format!("the daemon's memory has grown by {} KiB", left - empty));
    }
    Ok(())
}
