//! Memory that idle clients cost the daemon, and how fast their buffers' pages are reclaimed.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::devices::path_text;
use bench::machine;
use bench::peer::{self, Peer};
use bench::pingpong;
use bench::results::{MAX, Row};
use bench::rings;
use bench::stressor::{self, Stressor};
use binder_client::{Client, Options, Payload, Session};
use clap::Parser;
use control::binderd::{Reclaimed, Reply, Request};
use e2e::{Bus, Mapping};
use headroom_linux::machine_memory::{Meminfo, bytes_of};

const BENCH: &str = "buffers";
const PAGE: u64 = 4096;
/// Bytes of one message to each client.
const MESSAGE: usize = 65_536;

/// Measures the memory that the daemon keeps for idle opens, and the time until the memory of idle
/// buffers is released. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Number of times that their memory is released and used again
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// 100 opens, 20 clients, 2 rounds
    #[arg(long)]
    quick: bool,
    /// Allocate memory until the machine is short of it, and time how fast the daemon releases idle
    /// buffers by itself. Use it in a dedicated virtual machine only: it leaves little memory to
    /// other programs
    #[arg(long, conflicts_with = "quick")]
    pressure: bool,
}

fn main() -> Result<()> {
    let peer = peer::serve(|words| match words {
        [stressor::KIND, mib, core] => stressor::serve(mib, core),
        rest => pingpong::serve(rest),
    });
    peer.unwrap_or_else(run)
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let (opens, clients, rounds) =
        if arguments.quick { (100, 20, 2) } else { (3_000, 200, arguments.rounds) };
    raise_file_limit();
    let modes = [
        ("headroom passthrough", Mapping::Passthrough),
        ("headroom notify-store", Mapping::NotifyStore),
    ];
    for (subject, mapping) in modes {
        let Some(bus) = rings::start_bus(subject, mapping, &[])? else { continue };
        if !arguments.pressure {
            idle_opens(opens, subject, &bus)?;
        }
        let measure = if arguments.pressure { under_pressure } else { warm_clients };
        with_clients(clients, &bus, |clients| measure(rounds, subject, clients))?;
        bus.stop().map_err(|fault| anyhow::anyhow!("{subject}: {fault}"))?;
    }
    Ok(())
}

/// Raises the limit of open files to the maximum that is permitted.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With a lower limit, an open fails with an error.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Anonymous memory of the daemon, bytes: its own state without the buffers.
fn anonymous_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    bytes_of(&text, "Anonymous").with_context(|| format!("{path} has no Anonymous line"))
}

fn open(bus: &Bus) -> Result<Client> {
    Ok(Client::open(bus.device("binder"), &Options::default())?)
}

fn idle_opens(opens: u32, subject: &str, bus: &Bus) -> Result<()> {
    let case = format!("{opens} idle opens");
    // The first opens make the daemon allocate its own tables.
    let first = open(bus)?;
    let before = anonymous_bytes(bus.pid())?;
    let clients: Vec<Client> = (0..opens).map(|_| open(bus)).collect::<Result<_>>()?;
    let after = anonymous_bytes(bus.pid())?;
    let each = after.saturating_sub(before) as f64 / f64::from(opens);
    Row::new(BENCH, &case, subject, 1).value("daemon_bytes_per_open", each, "B");
    drop((first, clients));
    bus.wait_until_empty().map_err(|left| anyhow::anyhow!(left))
}

/// Pages that hold memory and no buffer.
fn idle_pages(bus: &Bus) -> Result<u64> {
    Ok(bus.status().map_err(|error| anyhow::anyhow!(error))?.idle_pages)
}

/// Reclaims all idle pages, as the OOM manager does. Returns milliseconds, and the idle pages left.
fn give_back(socket: &Path) -> Result<(f64, u64)> {
    let start = Instant::now();
    let mut daemon = control::Client::connect(socket)?;
    loop {
        match daemon.call(&Request::Reclaim { pages: u64::MAX })? {
            Reply::Reclaimed(Reclaimed { pages, idle_pages }) => {
                if pages == 0 || idle_pages == 0 {
                    return Ok((start.elapsed().as_secs_f64() * 1e3, idle_pages));
                }
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
}

/// Clients of a bus with a service.
struct Clients<'c> {
    bus: &'c Bus,
    sessions: Vec<Session<'c>>,
    message: Vec<u8>,
}

impl Clients<'_> {
    /// One call of each client. Returns microseconds.
    fn call(&mut self) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for session in &mut self.sessions {
            let start = Instant::now();
            let received = session.call(0, 1, Payload::bytes(&self.message))?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            anyhow::ensure!(received.data()? == self.message, "an echo differs");
            session.free(received);
            session.flush()?;
        }
        Ok(times)
    }
}

/// Starts a service and the measured clients.
fn with_clients(
    count: u32,
    bus: &Bus,
    measure: impl FnOnce(&mut Clients<'_>) -> Result<()>,
) -> Result<()> {
    let device = bus.device("binder");
    let device = path_text(&device)?;
    let _manager = Peer::start(&["binder", device], Stdio::null(), Stdio::null())?;
    let clients: Vec<Client> = (0..count).map(|_| open(bus)).collect::<Result<_>>()?;
    let sessions = clients.iter().map(Session::new).collect();
    measure(&mut Clients { bus, sessions, message: bench::measure::message(MESSAGE) })
}

fn warm_clients(rounds: u32, subject: &str, clients: &mut Clients<'_>) -> Result<()> {
    let bus = clients.bus;
    let case = format!("{} clients with {} KiB", clients.sessions.len(), MESSAGE / 1024);
    let (mut ms, mut shares, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    clients.call()?;
    for _ in 0..rounds {
        warm.extend(clients.call()?);
        let idle = idle_pages(bus)?;
        // Counts what is left, not what this request reclaimed: the daemon also reclaims on its own
        // when other programs on the machine stall for memory.
        let (took, left) = give_back(bus.socket())?;
        ms.push(took);
        shares.push(idle.saturating_sub(left) as f64 / idle as f64 * 100.0);
        cold.extend(clients.call()?);
    }
    let mut row = Row::new(BENCH, &case, subject, ms.len());
    row.value("idle_kib", (idle_pages(bus)? * PAGE / 1024) as f64, "KiB");
    row.median("back_ms", &ms, "ms", &[MAX]);
    row.median("back_share", &shares, "%", &[]);
    drop(row);
    let mut row = Row::new(BENCH, &case, subject, warm.len());
    row.median("call_warm_us", &warm, "us", &[]);
    row.median("call_after_us", &cold, "us", &[]);
    Ok(())
}

/// The daemon's threshold: `headroom-binderd --help`.
const LOW_PERCENT: u64 = 10;
/// Memory that the stressor leaves available, percent of the total.
const LEFT_PERCENT: u64 = 6;
/// Time after which a reclaim that has not happened is an error.
const PATIENCE: Duration = Duration::from_secs(30);
/// Share of the idle pages that must come back: pages of buffers in use, and of calls made
/// meanwhile, are not idle.
const BACK_SHARE: f64 = 0.95;

/// Detects the shortage of memory by the daemon's own threshold.
fn is_short() -> Result<bool> {
    let info = Meminfo::read(Path::new("/proc"))?;
    let available = info.available.context("/proc/meminfo has no MemAvailable")?;
    Ok(available * 100 < info.total.unwrap_or(0) * LOW_PERCENT)
}

/// Measures reclaim without a request: the daemon detects the shortage by itself.
fn under_pressure(rounds: u32, subject: &str, clients: &mut Clients<'_>) -> Result<()> {
    let bus = clients.bus;
    let case = format!("{} clients under pressure", clients.sessions.len());
    let total_mib = Meminfo::read(Path::new("/proc"))?.total.unwrap_or(0) >> 20;
    let (mut ms, mut shares) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        clients.call()?;
        let idle = idle_pages(bus)?;
        let left = total_mib * LEFT_PERCENT / 100;
        let mib = machine::available_mib()?.saturating_sub(left);
        let mut stressor = Stressor::start(mib, 0)?;
        let (took, rest) = std::thread::scope(|scope| {
            let eating = scope.spawn(|| stressor.go());
            let measured = time_until_back(bus, idle);
            eating.join().map_err(|_| anyhow::anyhow!("the stressor's thread panicked"))??;
            measured
        })?;
        stressor.rest()?;
        ms.push(took);
        shares.push((idle - rest) as f64 / idle as f64 * 100.0);
        drop(stressor);
    }
    clients.call()?;
    let mut row = Row::new(BENCH, &case, subject, ms.len());
    row.median("pressure_back_ms", &ms, "ms", &[MAX]);
    row.median("pressure_back_share", &shares, "%", &[]);
    Ok(())
}

/// Milliseconds from the shortage until [`BACK_SHARE`] is back, and the pages that are left.
fn time_until_back(bus: &Bus, idle: u64) -> Result<(f64, u64)> {
    let begun = Instant::now();
    let mut short_since = None;
    let enough = (idle as f64 * (1.0 - BACK_SHARE)) as u64;
    loop {
        if short_since.is_none() && is_short()? {
            short_since = Some(Instant::now());
        }
        let rest = idle_pages(bus)?;
        if rest <= enough {
            // The daemon may have detected the shortage before this program did.
            let took = short_since.map_or(0.0, |since| since.elapsed().as_secs_f64() * 1e3);
            return Ok((took, rest));
        }
        anyhow::ensure!(begun.elapsed() < PATIENCE, "{rest} of {idle} idle pages do not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
}
