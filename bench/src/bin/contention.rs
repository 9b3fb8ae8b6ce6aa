//! Clients of several scheduling classes, each thousands of calls of mixed sizes to one server.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bench::affinity::Class;
use bench::contention::{self, Contender, ServerOptions, Transport};
use bench::devices::{self, DeviceArguments};
use bench::order3::{self, Order3};
use bench::peer;
use bench::progress::Progress;
use bench::results::{Key, Measurement, Value};
use bench::shrink::{Shrinking, Shrunk};
use bench::statistics::{Tally, estimate};
use clap::Parser;

const BENCH: &str = "contention";
/// How long a single client may take for its calls.
const PATIENCE: Duration = Duration::from_secs(120);

/// Times calls of clients of several scheduling classes that call one server at once.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// The clients' classes: fifo-1 to fifo-99 (needs root), "nice -20" (needs root) to "nice 19".
    #[arg(long, value_delimiter = ',', default_value = "fifo-99,fifo-1,nice -20,nice 19")]
    classes: Vec<String>,
    /// Calls of each class in a round; each client continues until all classes have theirs.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// Rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Longest duration of a round, seconds.
    #[arg(long, default_value_t = 60)]
    limit_seconds: u64,
    /// Release the memory of idle buffers all the time: by requests to a private daemon; for
    /// --device by the kernel's shrinkers (needs root), which also drop other programs' caches.
    #[arg(long)]
    reclaim: bool,
    /// Clients that connect while allocations of order 3 and higher are counted; 0: do not count.
    #[arg(long, default_value_t = 100)]
    newcomers: usize,
    /// Threads of the server.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    server_threads: u32,
    /// CPU time of each call in the server besides the echo, microseconds.
    #[arg(long, default_value_t = 0)]
    work_us: u64,
    /// Run the servers as this user, which may not raise its nice values (needs root).
    #[arg(long, value_name = "UID")]
    server_uid: Option<u32>,
    /// A program of this class spins on each CPU all the time.
    #[arg(long, value_name = "CLASS")]
    spinner: Option<String>,
    /// Number of other users, uids from 60001 on, whose clients call the same server without pause
    /// while the classes call (needs root).
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    users: u32,
}

impl Arguments {
    /// What a case has besides its class.
    fn circumstances(&self) -> String {
        let mut text = String::new();
        if self.work_us > 0 {
            text += &format!(", handlers of {} ms", self.work_us as f64 / 1000.0);
        }
        if self.server_uid.is_some() {
            text += ", unprivileged server";
        }
        if let Some(class) = &self.spinner {
            text += &format!(", beside spinners of {class}");
        }
        if self.users > 0 {
            text += &format!(", beside {} other users", self.users);
        }
        if !self.reclaim {
            text += " without reclaim";
        }
        text
    }
}

/// Uid of the first of the other users.
const FIRST_USER: u32 = 60_001;

/// One transport, its server running.
struct Field {
    name: String,
    transport: Transport,
    path: PathBuf,
    daemon: Option<u32>,
    /// Control socket of a private daemon, over which reclaim is requested.
    control: Option<PathBuf>,
    server: peer::Peer,
    /// Times of each class, without and (below) with the other classes.
    alone: Vec<Tally>,
    together: Vec<Tally>,
    /// Result of the shrinkers in each round.
    shrunk: Vec<Shrunk>,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &words[..] {
        [peer::PEER, rest @ ..] => contention::serve(rest),
        _ => run(&Arguments::parse()),
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    let wanted: Result<Vec<Class>> =
        arguments.classes.iter().map(|name| Class::parse(name)).collect();
    let devices = arguments.devices.open(None)?;
    let folder = tempfile::tempdir().context("temporary folder")?;
    // A server of another user makes its socket there, and other users call over it.
    open_to_all(folder.path(), 0o777)?;
    let mut fields = Vec::new();
    let socket = folder.path().join("socket");
    let sockets = ("seqpacket".to_owned(), Transport::SeqPacket, socket, None, None);
    let binders = devices.iter().map(|d| {
        let control = d.control_socket().map(PathBuf::from);
        (d.name.clone(), Transport::Binder, d.path.clone(), d.daemon, control)
    });
    for (name, transport, path, daemon, control) in std::iter::once(sockets).chain(binders) {
        let options = ServerOptions {
            threads: arguments.server_threads as usize,
            work: Duration::from_micros(arguments.work_us),
            uid: arguments.server_uid,
        };
        let server = contention::start_server(transport, devices::path_text(&path)?, options);
        let server = server.with_context(|| name.clone())?;
        if matches!(transport, Transport::SeqPacket) {
            open_to_all(&path, 0o666)?;
        }
        let (alone, together, shrunk) = (vec![], vec![], vec![]);
        let field =
            Field { name, transport, path, daemon, control, server, alone, together, shrunk };
        fields.push(field);
    }
    count_order3(arguments.newcomers, &fields);
    let classes = permitted(&wanted?, &fields[0])?;
    let _spinners = start_spinners(arguments)?;
    for field in &mut fields {
        field.alone = vec![Tally::default(); classes.len()];
        field.together = field.alone.clone();
    }
    let mut progress = Progress::new(BENCH, arguments.rounds as usize * fields.len());
    for round in 0..arguments.rounds {
        for field in &mut fields {
            progress.step(&format!("{}, round {}", field.name, round + 1));
            let shrinking = arguments.reclaim.then(|| field.shrink()).flatten().transpose()?;
            one_round(arguments, &classes, round, field)?;
            field.shrunk.extend(shrinking.map(Shrinking::stop).transpose()?);
        }
    }
    drop(progress);
    print_results(&classes, &fields, arguments);
    drop(fields);
    devices::close(devices)
}

impl Field {
    /// Starts to reclaim idle buffers' memory, by the daemon or the kernel; `None` for a socket,
    /// which has none.
    fn shrink(&self) -> Option<Result<Shrinking>> {
        match (&self.control, self.transport) {
            (Some(socket), _) => Some(Shrinking::of_daemon(socket)),
            (None, Transport::Binder) => Some(Shrinking::of_kernel()),
            (None, Transport::SeqPacket) => None,
        }
    }
}

fn open_to_all(path: &Path, mode: u32) -> Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot change the mode of {}", path.display()))
}

/// One on each CPU, by the scheduler's choice.
fn start_spinners(arguments: &Arguments) -> Result<Vec<peer::Peer>> {
    let Some(class) = &arguments.spinner else { return Ok(Vec::new()) };
    let class = Class::parse(class)?;
    let cpus = std::thread::available_parallelism().context("how many CPUs?")?.get();
    (0..cpus).map(|_| contention::start_spinner(class)).collect()
}

/// The classes that this process is permitted to use.
fn permitted(wanted: &[Class], field: &Field) -> Result<Vec<Class>> {
    let mut classes = Vec::new();
    for class in wanted {
        match Contender::start(field.transport, &field.path, *class, 0) {
            Ok(_) => classes.push(*class),
            Err(error) => eprintln!("{}: skipped: {error}", class.name()),
        }
    }
    anyhow::ensure!(!classes.is_empty(), "no class is left");
    Ok(classes)
}

fn one_round(
    arguments: &Arguments,
    classes: &[Class],
    round: u64,
    field: &mut Field,
) -> Result<()> {
    let start = |(at, class): (usize, &Class)| {
        let seed = round * 1000 + at as u64 + 1;
        Contender::start(field.transport, &field.path, *class, seed)
    };
    let contenders: Result<Vec<Contender>> = classes.iter().enumerate().map(start).collect();
    let mut contenders = contenders.with_context(|| field.name.clone())?;
    for (contender, tally) in contenders.iter_mut().zip(&mut field.alone) {
        contender.alone(arguments.calls / 10 + 1, PATIENCE)?;
        tally.merge(&contender.alone(arguments.calls, PATIENCE)?);
    }
    let user = |number| {
        let uid = Some(FIRST_USER + number);
        let seed = u64::from(FIRST_USER + number);
        Contender::start_as(uid, field.transport, &field.path, Class::Nice(0), seed)
    };
    let users: Result<Vec<Contender>> = (0..arguments.users).map(user).collect();
    let mut users = users.with_context(|| format!("{}, other users", field.name))?;
    users.iter_mut().try_for_each(Contender::call_without_end)?;
    let limit = Duration::from_secs(arguments.limit_seconds);
    let tallies = contention::together(&mut contenders, arguments.calls, limit);
    drop(users);
    let tallies = tallies.with_context(|| field.name.clone())?;
    for ((contender, new), tally) in contenders.iter().zip(&tallies).zip(&mut field.together) {
        if new.count < arguments.calls {
            eprintln!(
                "{}, {}: only {} of {} calls in {} s",
                field.name,
                contender.class().name(),
                new.count,
                arguments.calls,
                arguments.limit_seconds
            );
        }
        tally.merge(new);
    }
    Ok(())
}

fn print_results(classes: &[Class], fields: &[Field], arguments: &Arguments) {
    eprintln!(
        "{:<24} {:<24} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}  max / alone",
        "class", "us a call", "alone p50", "average", "min", "p99", "max", "calls"
    );
    for (at, class) in classes.iter().enumerate() {
        for field in fields {
            let case = format!("{}{}", class.name(), arguments.circumstances());
            print_row(&case, &field.name, &field.alone[at], &field.together[at]);
        }
    }
    eprintln!("({} rounds)", arguments.rounds);
    fields.iter().for_each(print_reclaim_rate);
}

/// Reports the shrinkers' work while a binder device was in use. The kernel's counters do not
/// include the pages of a daemon that this program has not started.
fn print_reclaim_rate(field: &Field) {
    let rates: Vec<f64> = field.shrunk.iter().filter_map(|shrunk| shrunk.pages_per_s).collect();
    let Some(rate) = estimate(&rates) else { return };
    if field.daemon.is_some() && field.control.is_none() {
        return;
    }
    let calls: u64 = field.shrunk.iter().map(|shrunk| shrunk.rounds).sum();
    eprintln!(
        "{:<24} {:.0} binder pages a second given back, shrinkers called {calls} times",
        field.name, rate.median
    );
    let (metric, runs) = ("pages_reclaimed_per_s", rates.len());
    Measurement::new(
        Key { bench: BENCH, case: "all", subject: &field.name, metric },
        Value { value: rate.median, unit: "pages/s", runs },
    )
    .print();
}

/// Reports the allocations that new clients cost, where they can be counted.
fn count_order3(newcomers: usize, fields: &[Field]) {
    if newcomers == 0 {
        return;
    }
    for field in fields.iter().filter(|field| field.transport == Transport::Binder) {
        let mut pids = vec![field.server.pid()];
        pids.extend(field.daemon);
        match order3::count(&field.path, newcomers, &pids) {
            Ok(Order3 { all, required }) => {
                eprintln!(
                    "{:<24} {newcomers} clients opened, mapped 4 MiB and called: {all} \
                     allocations of order 3 or higher, {required} of them required",
                    field.name
                );
                let case = format!("{newcomers} clients");
                for (metric, count) in [("order3_allocations", all), ("order3_required", required)]
                {
                    let count = count as f64;
                    Measurement::new(
                        Key { bench: BENCH, case: &case, subject: &field.name, metric },
                        Value { value: count, unit: "", runs: newcomers },
                    )
                    .print();
                }
            }
            Err(why) => eprintln!("{}: order3_allocations: skipped: {why:#}", field.name),
        }
    }
}

fn print_row(class: &str, name: &str, alone: &Tally, together: &Tally) {
    let us = |ns: u64| ns as f64 / 1000.0;
    let runs = together.count as usize;
    let base = alone.percentile_us(0.5);
    let (average, p99) = (together.average_us(), together.percentile_us(0.99));
    let over = us(together.max) / base;
    eprintln!(
        "{class:<24} {name:<24} {base:>9.2} {average:>9.2} {:>9.2} {p99:>9.2} {:>10.1} \
         {runs:>9}  {over:.1}",
        us(together.min),
        us(together.max),
    );
    let line = |metric, value, unit, runs| {
        Measurement::new(
            Key { bench: BENCH, case: class, subject: name, metric },
            Value { value, unit, runs },
        )
        .print();
    };
    line("alone_us_p50", base, "us", alone.count as usize);
    line("avg_us", average, "us", runs);
    line("max_us", us(together.max), "us", runs);
    line("min_us", us(together.min), "us", runs);
    line("p99_us", p99, "us", runs);
    line("max_over_median", over, "ratio", runs);
}
