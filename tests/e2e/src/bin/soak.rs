//! Many clients with mixed load for a long time, killed, stopped and frozen at random; afterwards
//! the bus must be in its initial state. With `--upgrades`, the daemon is upgraded in a loop
//! meanwhile, and no call may fail.
//!
//! Exit code 1: objects are left, the daemon's memory has grown, a client does not receive a death
//! notification or an answer, or a call has failed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use binder_client::{Client, ClientError, Session, registry};
use binder_uapi::Return;
use clap::Parser;
use control::binderd::Status;
use e2e::attacker::{ATTACKS, Attacker, DEVICES, INNOCENT_DEVICE};
use e2e::peer::Word;
use e2e::random::Random;
use e2e::soak::{FAILED, PROGRESS, SERVICES};
use e2e::upgrades::Upgrades;
use e2e::{Bus, BusError, Mapping, Peer, wait};
use rustix::process::Signal;

/// Mean interval of kills, stops and freezes, milliseconds.
const PAUSE_MS: u64 = 30;
/// Maximum duration of a stop or freeze, milliseconds.
const MAX_PAUSE_MS: u64 = 3_000;
/// Limit of every wait. Thousands of threads at the lowest priority may wait long for a kernel lock
/// that one of them holds.
const PATIENCE: Duration = Duration::from_secs(300);
/// Limit of the interval between two upgrades, on average.
const LONGEST_UPGRADE: Duration = Duration::from_secs(2);
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
/// Descriptors and threads that a daemon may have kept since the warm-up: each late access to a
/// client's memory, as on a busy machine, needs one more thread for the event loop. An owner may
/// have eight at a time.
const KEPT: usize = 8;

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
    /// Upgrade the daemon to its own program in a loop, at least so many times; clients are killed
    /// then, but neither stopped nor frozen, and there are no attacks
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    upgrades: usize,
    /// Passthrough, notify-store or auto
    #[arg(long, default_value = "passthrough")]
    mapping: Mapping,
    /// Determines the load; printed at the start
    #[arg(long, default_value_t = Random::fresh_seed())]
    seed: u64,
}

impl Options {
    /// Time after which the run certainly hangs.
    fn longest(&self) -> Duration {
        let load = Duration::from_secs_f64(self.minutes * 60.0);
        load + LONGEST_UPGRADE * self.upgrades as u32 + 4 * PATIENCE
    }
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

/// What the daemon holds. At the end it may be little more than before.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
}

impl Held {
    fn by(bus: &Bus) -> Self {
        let tasks = fs::read_dir(format!("/proc/{}/task", bus.pid()));
        Self { descriptors: bus.descriptors(), threads: tasks.map_or(0, Iterator::count) }
    }

    /// Whether nothing was left by the load since `before`. What each client, kill or upgrade
    /// leaves would be many times as much.
    fn is_clean_since(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors + KEPT && self.threads <= before.threads + KEPT
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

/// A client with mixed load.
struct SoakClient {
    peer: Peer,
    /// It has published its objects.
    ready: bool,
    /// Number of calls that have failed.
    failed: u64,
}

impl SoakClient {
    fn start(peer: Peer) -> Self {
        Self { peer, ready: false, failed: 0 }
    }

    /// Reads the lines that it has printed.
    fn read_lines(&mut self) {
        while let Word::Line(line) = self.peer.line_within(Duration::ZERO) {
            self.read_line(&line);
        }
    }

    fn read_line(&mut self, line: &str) {
        self.ready |= line == "ready";
        self.failed += u64::from(line == FAILED);
    }

    /// Waits until some calls of it have ended since [`read_lines`](Self::read_lines): neither it
    /// nor its receivers wait for a lost wake-up.
    fn expect_progress(&mut self) -> Result<(), String> {
        loop {
            match self.peer.line_within(PATIENCE) {
                Word::Line(line) if line == PROGRESS => return Ok(()),
                Word::Line(line) => self.read_line(&line),
                Word::End => return Err("a client has exited".to_owned()),
                Word::Silence => {
                    let state = wait::describe(self.peer.pid());
                    return Err(format!("a client makes no calls any more ({state})"));
                }
            }
        }
    }
}

/// Receives death notifications of clients.
struct DeathWatch<'c> {
    session: Session<'c>,
    /// The handle of an object of each client that is watched, by the client's number.
    handles: BTreeMap<usize, u32>,
    received: u64,
}

impl<'c> DeathWatch<'c> {
    fn new(client: &'c Client) -> Result<Self, ClientError> {
        let mut session = Session::new(client);
        session.enter_looper()?;
        Ok(Self { session, handles: BTreeMap::new(), received: 0 })
    }

    fn cookie(client: usize) -> u64 {
        client as u64 + 1
    }

    /// Requests a notification of the death of a client that has published its objects.
    fn watch(&mut self, client: usize) -> Result<(), ClientError> {
        if self.handles.contains_key(&client) {
            return Ok(());
        }
        let found = registry::find(&mut self.session, &format!("client{client}.0"))?;
        let handle = found.ok_or(ClientError::Contents("a client that is ready has no object"))?;
        self.session.request_death(handle, Self::cookie(client));
        self.handles.insert(client, handle);
        self.session.flush()
    }

    /// Waits for the notification that a client has died, if it is watched.
    fn expect(&mut self, client: usize) -> Result<(), ClientError> {
        let Some(handle) = self.handles.remove(&client) else { return Ok(()) };
        let cookie = Self::cookie(client);
        self.expect_notice(Return::DeadBinder(cookie))?;
        self.session.clear_death(handle, cookie);
        self.expect_notice(Return::ClearDeathNotificationDone(cookie))?;
        self.session.release(handle);
        self.received += 1;
        self.session.flush()
    }

    fn expect_notice(&mut self, expected: Return) -> Result<(), ClientError> {
        let notice = self.session.wait_notice()?;
        if notice == expected {
            return Ok(());
        }
        Err(ClientError::Contents("another notice than that of the client that was killed"))
    }
}

/// Disturbances of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbances {
    /// Kills, stops, freezes and attacks.
    All,
    /// Kills: no call of another client may fail because of them.
    Kills,
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
    clients: Vec<SoakClient>,
    disturbances: Disturbances,
    paused: Vec<Pause>,
    /// The processes of each attack.
    attackers: Vec<Vec<Attacker>>,
    /// Files that a service has open before the first call to it.
    service_files: Option<usize>,
    killed: u64,
    stopped: u64,
    frozen: u64,
    /// Calls of clients that were killed.
    failed: u64,
}

impl<'a> Load<'a> {
    fn start(bus: &'a Bus, options: &Options) -> Result<Self, String> {
        let random = Random::new(options.seed);
        let disturbances =
            if options.upgrades > 0 { Disturbances::Kills } else { Disturbances::All };
        let mut load = Self {
            bus,
            random,
            services: Vec::new(),
            clients: Vec::new(),
            disturbances,
            paused: Vec::new(),
            attackers: Vec::new(),
            service_files: None,
            killed: 0,
            stopped: 0,
            frozen: 0,
            failed: 0,
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
        if disturbances == Disturbances::All {
            let program = program("peer")?;
            let attacks = ATTACKS.iter().take(options.attacks.into());
            load.attackers = attacks.map(|attack| attack.start(bus, &program)).collect();
        }
        Ok(load)
    }

    fn service(&self, number: usize) -> Result<Peer, String> {
        peer(self.bus, &["soak-service", &format!("service{number}")])
    }

    fn client(&mut self, index: u32, clients: u32) -> Result<SoakClient, String> {
        let seed = self.random.below(1 << 32).to_string();
        peer(self.bus, &["soak-client", &index.to_string(), &clients.to_string(), &seed])
            .map(SoakClient::start)
    }

    /// Disturbs a random client, and now and then ends an attack and begins it again.
    fn disturb(&mut self, freezer: &Client, deaths: &mut DeathWatch<'_>) -> Result<(), String> {
        self.let_go_on(freezer, Instant::now())?;
        if self.random.below(300) == 0 && !self.attackers.is_empty() {
            let place = self.random.below(self.attackers.len() as u64) as usize;
            self.attackers[place].iter_mut().for_each(Attacker::kill);
            self.attackers[place] = ATTACKS[place].start(self.bus, &program("peer")?);
        }
        self.disturb_client(freezer, deaths)
    }

    /// Disturbs a random process: one in three is killed, the others are stopped or frozen for
    /// seconds.
    fn disturb_client(
        &mut self,
        freezer: &Client,
        deaths: &mut DeathWatch<'_>,
    ) -> Result<(), String> {
        let victim = self.random.below(self.clients.len() as u64) as usize;
        let until = Instant::now() + Duration::from_millis(self.random.below(MAX_PAUSE_MS));
        self.clients[victim].read_lines();
        if self.clients[victim].ready {
            deaths.watch(victim).map_err(text)?;
        }
        match self.random.below(300) {
            0 => {
                let number = self.random.below(SERVICES as u64) as usize;
                self.services[number].kill_within(PATIENCE);
                self.killed += 1;
                self.services[number] = self.service(number)?;
            }
            1..100 => {
                self.paused.retain(|pause| pause.client != victim);
                self.kill_client(victim, deaths)?;
                self.clients[victim] = self.client(victim as u32, self.clients.len() as u32)?;
            }
            _ if self.disturbances == Disturbances::Kills => {}
            _ if self.paused.iter().any(|pause| pause.client == victim) => {}
            100..200 => {
                // Freezing fails if the process has pending calls or has not opened the device yet.
                if freezer.freeze(self.clients[victim].peer.pid(), 0).is_ok() {
                    self.frozen += 1;
                    self.paused.push(Pause { client: victim, until, frozen: true });
                }
            }
            _ => {
                self.clients[victim].peer.signal(Signal::STOP);
                self.stopped += 1;
                self.paused.push(Pause { client: victim, until, frozen: false });
            }
        }
        Ok(())
    }

    fn kill_client(&mut self, victim: usize, deaths: &mut DeathWatch<'_>) -> Result<(), String> {
        let client = &mut self.clients[victim];
        client.peer.kill_within(PATIENCE);
        while let Word::Line(line) = client.peer.line_within(PATIENCE) {
            client.read_line(&line);
        }
        self.failed += client.failed;
        self.killed += 1;
        deaths.expect(victim).map_err(|error| format!("death of client {victim}: {error}"))
    }

    fn let_go_on(&mut self, freezer: &Client, now: Instant) -> Result<(), String> {
        for pause in self.paused.extract_if(.., |pause| pause.until <= now) {
            let client = &self.clients[pause.client].peer;
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

    /// Ends the clients, each of which must still be served, and then the services. Files that the
    /// services still have open then are passed files that were leaked.
    fn end(mut self, freezer: &Client, deaths: &mut DeathWatch<'_>) -> Result<(), String> {
        self.attackers.iter_mut().flatten().for_each(Attacker::kill);
        let of_all = Instant::now() + Duration::from_millis(MAX_PAUSE_MS);
        self.let_go_on(freezer, of_all)?;
        self.clients.iter_mut().for_each(SoakClient::read_lines);
        for client in &mut self.clients {
            client.expect_progress()?;
        }
        for client in 0..self.clients.len() {
            self.kill_client(client, deaths)?;
        }
        println!(
            "{} death notifications, {} calls with a receiver that was frozen or short of space",
            deaths.received, self.failed
        );
        if self.disturbances == Disturbances::Kills && self.failed > 0 {
            return Err(format!("{} calls have failed", self.failed));
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

fn text(error: ClientError) -> String {
    error.to_string()
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
    let mut bus = Bus::start_with(options.mapping, with_logs).map_err(|error| match error {
        BusError::Unavailable(reason) | BusError::Broken(reason) => reason,
    })?;
    // Otherwise a lost death notification would be waited for indefinitely.
    bus.limit_time(options.longest());
    // A daemon starts some threads with their first work, and keeps them.
    let warm_up = Options { clients: 20, minutes: WARM_UP_MINUTES, upgrades: 0, ..*options };
    load(&bus, &warm_up)?;
    let (empty, held) = (resident(&bus), Held::by(&bus));
    load(&bus, options)?;
    if options.upgrades > 0 {
        load(&bus, &warm_up)?;
    }
    println!("at the end: {:?}", bus.ls()?);
    for kind in KINDS {
        let left = active(&bus, kind)?;
        if left > 0 {
            return Err(format!("{left} objects of kind {kind} are left"));
        }
    }
    let is_clean = || Held::by(&bus).is_clean_since(&held).then_some(());
    wait::until(PATIENCE, is_clean)
        .ok_or_else(|| format!("the daemon holds {:?}, before {held:?}", Held::by(&bus)))?;
    let left = resident(&bus);
    println!(
        "RSS {empty} KiB before, {left} KiB after; {held:?} before, {:?} after",
        Held::by(&bus)
    );
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
    let freezer =
        Client::open(bus.device(DEVICE), &binder_client::Options::default()).map_err(text)?;
    let mut deaths = DeathWatch::new(&freezer).map_err(text)?;
    let upgrades = (options.upgrades > 0).then(|| Upgrades::start(bus.socket()));
    let begun = Instant::now();
    let status = || between(upgrades.as_ref(), || bus.status());
    let (mut reported, mut transactions) = (begun, status()?.transactions);
    println!(
        "   time  opens  nodes   refs  calls/s  touched pages  RSS KiB  killed  stopped  frozen"
    );
    while begun.elapsed().as_secs_f64() < options.minutes * 60.0
        || count(upgrades.as_ref())? < options.upgrades
    {
        sleep(Duration::from_millis(load.random.below(2 * PAUSE_MS)));
        load.disturb(&freezer, &mut deaths)?;
        if reported.elapsed() >= REPORT_EVERY {
            let status = status()?;
            let calls = (status.transactions - transactions) as f64;
            load.report(begun, calls / reported.elapsed().as_secs_f64(), &status)?;
            (transactions, reported) = (status.transactions, Instant::now());
        }
    }
    if let Some(upgrades) = upgrades {
        println!("{}", upgrades.stop()?);
    }
    load.end(&freezer, &mut deaths)?;
    drop(deaths);
    drop((freezer, manager));
    wait::until(PATIENCE, || bus.wait_until_empty().ok())
        .ok_or_else(|| format!("not everything is gone: {:#?}", bus.ls()))
}

/// Runs a closure that uses the control socket.
fn between<T>(upgrades: Option<&Upgrades>, run: impl FnOnce() -> T) -> T {
    match upgrades {
        Some(upgrades) => upgrades.between(run),
        None => run(),
    }
}

/// Number of upgrades so far.
fn count(upgrades: Option<&Upgrades>) -> Result<usize, String> {
    upgrades.map_or(Ok(0), Upgrades::count)
}
