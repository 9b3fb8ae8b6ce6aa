//! Clients of several scheduling classes, each thousands of calls of mixed sizes to one server.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bench::affinity::Class;
use bench::contention::{self, Contender, Role, Transport};
use bench::devices::{self, DeviceArguments};
use bench::measure::Summary;
use bench::results::Row;
use bench::shrink::Shrinking;
use bench::{order3, peer};
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
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "fifo-99,fifo-1,nice -20,nice 19",
        value_parser = Class::parse
    )]
    classes: Vec<Class>,
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
    /// CPU time of each call in the server besides the echo, microseconds.
    #[arg(long, default_value_t = 0)]
    work_us: u64,
    /// Run the servers as this user, which may not raise its nice values (needs root).
    #[arg(long, value_name = "UID")]
    server_uid: Option<u32>,
    /// A program of this class spins on each CPU all the time.
    #[arg(long, value_name = "CLASS", value_parser = Class::parse)]
    spinner: Option<Class>,
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
        if let Some(class) = self.spinner {
            text += &format!(", beside spinners of {}", class.name());
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
    /// Pid of a private daemon.
    daemon: Option<u32>,
    /// Control socket of a private daemon, over which reclaim is requested.
    control: Option<PathBuf>,
    server: peer::Peer,
    /// Times of each class, nanoseconds, without and (below) with the other classes.
    alone: Vec<Vec<u64>>,
    together: Vec<Vec<u64>>,
}

fn main() -> Result<()> {
    peer::serve(contention::serve).unwrap_or_else(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    let devices = arguments.devices.open(None)?;
    let folder = tempfile::tempdir().context("temporary folder")?;
    // A server of another user makes its socket there, and other users call over it.
    open_to_all(folder.path(), 0o777)?;
    let mut fields = Vec::new();
    let socket = folder.path().join("socket");
    let sockets = ("seqpacket".to_owned(), Transport::SeqPacket, socket, None, None);
    let binders = devices.iter().map(|d| {
        let control = d.control_socket().map(PathBuf::from);
        (d.name.clone(), Transport::Binder, d.path.clone(), d.daemon(), control)
    });
    for (name, transport, path, daemon, control) in std::iter::once(sockets).chain(binders) {
        let work = Duration::from_micros(arguments.work_us);
        let role = Role::Server(transport, path.clone(), work);
        let server = role.start(arguments.server_uid).with_context(|| name.clone())?;
        if matches!(transport, Transport::SeqPacket) {
            open_to_all(&path, 0o666)?;
        }
        let (alone, together) = (vec![], vec![]);
        fields.push(Field { name, transport, path, daemon, control, server, alone, together });
    }
    count_order3(arguments.newcomers, &fields);
    let classes = permitted(&arguments.classes, &fields[0])?;
    let _spinners = start_spinners(arguments)?;
    for field in &mut fields {
        field.alone = vec![Vec::new(); classes.len()];
        field.together = field.alone.clone();
    }
    for round in 0..arguments.rounds {
        for field in &mut fields {
            let shrinking = arguments.reclaim.then(|| field.shrink()).flatten().transpose()?;
            one_round(arguments, &classes, round, field)?;
            shrinking.map(Shrinking::stop).transpose()?;
        }
    }
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
    let Some(class) = arguments.spinner else { return Ok(Vec::new()) };
    let cpus = std::thread::available_parallelism().context("how many CPUs?")?.get();
    (0..cpus).map(|_| Role::Spinner(class).start(None)).collect()
}

/// The classes that this process is permitted to use.
fn permitted(wanted: &[Class], field: &Field) -> Result<Vec<Class>> {
    let mut classes = Vec::new();
    for class in wanted {
        match Contender::start(None, field.transport, &field.path, *class, 0) {
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
        Contender::start(None, field.transport, &field.path, *class, seed)
    };
    let contenders: Result<Vec<Contender>> = classes.iter().enumerate().map(start).collect();
    let mut contenders = contenders.with_context(|| field.name.clone())?;
    for (contender, times) in contenders.iter_mut().zip(&mut field.alone) {
        contender.alone(arguments.calls / 10 + 1, PATIENCE)?;
        times.extend(contender.alone(arguments.calls, PATIENCE)?);
    }
    let user = |number| {
        let uid = Some(FIRST_USER + number);
        let seed = u64::from(FIRST_USER + number);
        Contender::start(uid, field.transport, &field.path, Class::Nice(0), seed)
    };
    let users: Result<Vec<Contender>> = (0..arguments.users).map(user).collect();
    let mut users = users.with_context(|| format!("{}, other users", field.name))?;
    users.iter_mut().try_for_each(Contender::call_without_end)?;
    let limit = Duration::from_secs(arguments.limit_seconds);
    let found = contention::together(&mut contenders, arguments.calls, limit);
    drop(users);
    let found = found.with_context(|| field.name.clone())?;
    for ((contender, new), times) in contenders.iter().zip(found).zip(&mut field.together) {
        if (new.len() as u64) < arguments.calls {
            eprintln!(
                "{}, {}: only {} of {} calls in {} s",
                field.name,
                contender.class().name(),
                new.len(),
                arguments.calls,
                arguments.limit_seconds
            );
        }
        times.extend(new);
    }
    Ok(())
}

fn print_results(classes: &[Class], fields: &[Field], arguments: &Arguments) {
    for (at, class) in classes.iter().enumerate() {
        for field in fields {
            let case = format!("{}{}", class.name(), arguments.circumstances());
            print_row(&case, &field.name, &field.alone[at], &field.together[at]);
        }
    }
}

fn print_row(case: &str, name: &str, alone: &[u64], together: &[u64]) {
    let base = Summary::of_blocks(&[alone.to_vec()]).p50;
    let all = Summary::of_blocks(&[together.to_vec()]);
    let us = |ns: u64| ns as f64 / 1000.0;
    let mut row = Row::new(BENCH, case, name, all.runs);
    row.value("alone_us_p50", base, "us");
    row.value("avg_us", us(together.iter().sum()) / all.runs as f64, "us");
    row.value("min_us", us(together.iter().copied().min().unwrap_or(0)), "us");
    row.value("p99_us", all.p99, "us");
    row.value("max_us", all.max, "us");
    row.value("max_over_median", all.max / base, "ratio");
}

/// Reports the allocations that new clients cost, where they can be counted.
fn count_order3(newcomers: usize, fields: &[Field]) {
    let binders = fields.iter().filter(|field| field.transport == Transport::Binder);
    for field in binders.filter(|_| newcomers > 0) {
        let mut pids = vec![field.server.pid()];
        pids.extend(field.daemon);
        match order3::count(&field.path, newcomers, &pids) {
            Ok(count) => {
                let case = format!("{newcomers} clients");
                let mut row = Row::new(BENCH, &case, &field.name, newcomers);
                row.value("order3_allocations", count as f64, "");
            }
            Err(why) => eprintln!("{}: order3_allocations: skipped: {why:#}", field.name),
        }
    }
}
