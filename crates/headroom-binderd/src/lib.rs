//! The binder daemon: mounts the devices, serves them, and replies on its control socket.
//!
//! A library, so that the static `headroom` contains it: see [`main`].

mod answer;
mod devices;
mod memory_report;
mod mount_helper;
mod next_program;
mod pressure;
mod upgrade;

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use binder_fuse::{Config, DeviceOwner, Event, MappingChoice, MountNamespace, RingPolicy, Server};
use clap::Parser;
use control::binderd::Reply;
use headroom_daemon::message::{plain, prompt_stderr};
use headroom_daemon::permissions::parse_mode;
use headroom_daemon::{ServiceManager, Signal, Signals, privileges};
use ioctl_trap::{HeldCalls, Listener};
use owners::Uid;
use tracing_subscriber::EnvFilter;

use crate::next_program::UpgradeRequests;
use crate::upgrade::Resumed;

/// Tokens of event sources in the server's event loop.
const SIGNALS: u32 = 0;
const CONTROL: u32 = 1;
const STALLS: u32 = 2;
const MEMORY_TIMER: u32 = 3;
const LISTENERS: u32 = 4;
/// Every user may connect; permissions are checked per request.
const SOCKET_MODE: u32 = 0o666;

/// Serves binder devices to unmodified clients, without a kernel driver.
///
/// Runs in the foreground, logs to standard error (more with HEADROOM_LOG=debug), and unmounts on
/// SIGINT and SIGTERM.
#[derive(Parser)]
#[command(name = "headroom-binderd", version)]
struct Args {
    /// Mount point, created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "/dev/binderfs")]
    mount: PathBuf,
    /// The control socket.
    #[arg(long, value_name = "PATH", default_value = control::BINDERD_SOCKET)]
    socket: PathBuf,
    /// The control socket of headroom-oomd, to which root's daemon reports the memory of receive
    /// buffers.
    #[arg(long, value_name = "PATH", default_value = control::OOMD_SOCKET)]
    oomd_socket: PathBuf,
    /// Devices to create, separated by commas.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "binder,hwbinder,vndbinder"
    )]
    devices: Vec<String>,
    /// How receive buffers reach clients: auto, passthrough or notify-store.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    mapping: MappingChoice,
    /// Release the memory of idle buffers while less than this share of the machine's memory is
    /// available.
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 10,
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    low_memory: u8,
    /// Share of the machine's memory that messages of one owner may have, in percent. An owner is a
    /// user with its containers; root has no quota.
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 25,
        value_parser = clap::value_parser!(u8).range(1..=100)
    )]
    owner_memory: u8,
    /// `SCHED_FIFO` priority of the event loop. The default precedes all ordinary tasks, and no
    /// real-time task of others; set it above programs that must not delay calls.
    #[arg(
        long,
        value_name = "PRIORITY",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=99)
    )]
    priority: u32,
    /// Accept calls that clients submit by shared memory (`headroom binder attach`), 32 KiB for a
    /// thread, instead of requests.
    #[arg(long)]
    rings: bool,
    /// Maximum number of devices, those of --devices included.
    #[arg(long, value_name = "NUMBER")]
    max: Option<u32>,
    /// Mode of all devices. Default: 0666 for those of --devices, as on Android, and 0600 for those
    /// that are added through binder-control.
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    mode: Option<u32>,
    /// Owner of the devices, by name or number. Default: the daemon's user and group.
    #[arg(long, value_name = "USER[:GROUP]", value_parser = devices::parse_owner)]
    owner: Option<DeviceOwner>,
    /// "global": add a folder binder_logs that shows all traffic to every user, as binderfs does.
    #[arg(long, value_name = "WHICH")]
    stats: Option<Stats>,
    /// Link /dev/NAME to each device of --devices. Existing files are kept.
    #[arg(long)]
    link_dev: bool,
    /// The bus belongs to one user: do not warn of missing privileges.
    #[arg(long)]
    session: bool,
    /// The source of the mount in /proc/mounts; umount(8) accepts it.
    #[arg(long, value_name = "NAME")]
    mount_source: Option<String>,
    /// Exit with status 0 when the bus is unmounted.
    #[arg(long)]
    until_unmounted: bool,
    /// Move to a copy of the mount namespace without the mount, so that the bus ends with the last
    /// process of the namespace; used by mount.binder.
    #[arg(long)]
    leave_mount_namespace: bool,
    /// Remove this folder, with the log in it, when the bus is unmounted or the daemon is stopped;
    /// used by mount.binder.
    #[arg(long, value_name = "DIR")]
    run_folder: Option<PathBuf>,
    /// Write a line to this file descriptor when the bus is ready, and close it.
    #[arg(long, value_name = "FD")]
    ready_fd: Option<i32>,
    /// Receive listeners of seccomp filters from this socket; used by `headroom run`.
    #[arg(long, value_name = "FD")]
    listeners: Option<i32>,
    /// Verify the state in standard input, and exit; used by `headroom binder upgrade`.
    #[arg(long)]
    check_state: bool,
    /// Continue with the state and the descriptors of the program that was replaced; used by
    /// `headroom binder upgrade`.
    #[arg(long, value_name = "FD")]
    resume: Option<i32>,
}

/// Scope of binder_logs.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Stats {
    Global,
}

/// The program's `main`: the first argument of the process is its name, `headroom-binderd` or
/// `mount.binder`. Call it while the process has one thread.
pub fn main() -> ExitCode {
    // Tests that create a `Bus` start an installed daemon as its server.
    binder_fuse::Bus::serve_if_started();
    if let Some(code) = mount_helper::run_if_requested() {
        return code;
    }
    let args = Args::parse();
    if args.check_state {
        return ExitCode::from(exit_code(upgrade::check_state()));
    }
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let filter = EnvFilter::try_from_env("HEADROOM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal() && !no_color)
        .with_writer(prompt_stderr)
        .init();
    let run_folder = args.run_folder.clone();
    binder_fuse::serve(move || {
        let code = exit_code(run(&args));
        if let (0, Some(folder)) = (code, run_folder) {
            mount_helper::remove_run_folder(&folder);
        }
        code.into()
    })
}

/// The exit code for this result; an error is reported.
fn exit_code(result: anyhow::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("headroom-binderd: {}", plain(&format!("{error:#}")));
            1
        }
    }
}

/// What the daemon serves, and how it is controlled.
struct Daemon {
    server: Server,
    control: control::Server,
    listeners: Option<Listeners>,
    /// Present after an upgrade.
    completion: Option<upgrade::Completion>,
}

impl Daemon {
    /// Mounts, or takes over the bus of the program that this one replaces.
    fn start(args: &Args, config: &Config) -> anyhow::Result<Self> {
        if let Some(fd) = args.resume {
            let Resumed { server, control, listeners, completion } =
                upgrade::resume(config, &args.socket, fd)?;
            return Ok(Self { server, control, listeners, completion: Some(completion) });
        }
        // Bound first: this fails if another daemon is running.
        let control = control::Server::bind(&args.socket, SOCKET_MODE)?;
        let server = Server::new(config)?;
        let listeners = args.listeners.map(Listeners::new).transpose()?;
        Ok(Self { server, control, listeners, completion: None })
    }

    /// Reports that clients are served from now on.
    fn report_ready(&mut self, args: &Args, config: &Config) -> anyhow::Result<()> {
        if let Some(completion) = self.completion.take() {
            completion.report(&mut self.control);
            return Ok(());
        }
        tracing::info!(
            "serving {} on {} by {}, control socket {}",
            config.devices.join(", "),
            self.server.mount_point().display(),
            self.server.mapping().name(),
            self.control.path().display(),
        );
        args.ready_fd
            .map_or(Ok(()), |fd| report_ready(fd).with_context(|| format!("--ready-fd {fd}")))
    }

    /// Replies to requests, and replaces the program if one of them is for that.
    fn serve_control(&mut self, upgrades: &mut UpgradeRequests) {
        let Self { server, control, .. } = self;
        control.serve_requests(|request| answer::answer(server, upgrades, request));
        let Some(request) = upgrades.take() else { return };
        let error = upgrade::replace_program(server, control, self.listeners.as_ref(), &request);
        tracing::warn!("{error:#}; the running program continues");
        let message = format!("{error:#}; the running program continues");
        control.reply(request.id, &Reply::Error { message });
    }

    fn take_listener(&mut self) {
        let Self { server, listeners, .. } = self;
        if let Some(done) = listeners.take_if(|listeners| !listeners.take(server)) {
            server.remove_external(done.as_fd());
        }
    }
}

fn configuration(args: &Args) -> Config {
    let defaults = Config::new(&args.mount);
    Config {
        devices: args.devices.clone(),
        mapping: args.mapping,
        max_devices: args.max,
        logs: args.stats.is_some(),
        device_mode: args.mode,
        device_owner: args.owner,
        owner_quota_bytes: Some(pressure::share_of_memory(args.owner_memory)),
        rings: if args.rings { RingPolicy::Accepted } else { RingPolicy::Refused },
        session: args.session,
        source: args.mount_source.clone().unwrap_or(defaults.source),
        mount_namespace: if args.leave_mount_namespace {
            MountNamespace::Leave
        } else {
            MountNamespace::Keep
        },
        ..defaults
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    // Blocked before any thread is started, so that no thread receives these signals.
    let signals = Signals::block(&[Signal::SIGINT, Signal::SIGTERM])
        .context("cannot block SIGINT and SIGTERM")?;
    let config = configuration(args);
    let mut daemon = Daemon::start(args, &config)?;
    let own_user = Uid(rustix::process::geteuid().as_raw());
    let mut upgrades = UpgradeRequests::new(args.session.then_some(own_user));
    let (life_signs, unheard) = LifeSigns::for_manager();
    let (memory, lacking) = pressure::Pressure::watch(args.low_memory, life_signs.interval())
        .context("cannot watch the machine's memory")?;
    // Privileges that only root can have are not expected in a session.
    let lacking = if args.session {
        Vec::new()
    } else {
        [lacking.into_iter().collect(), refused_privileges(args.priority)].concat()
    };
    daemon.server.share_priority();
    for lacking in lacking.into_iter().chain(unheard) {
        daemon.server.note_degraded(lacking);
    }
    // Only root may report, and a session's buffers are its user's page cache.
    let reports_memory = !args.session && rustix::process::geteuid().is_root();
    let mut reports = reports_memory
        .then(|| memory_report::MemoryReports::start(args.oomd_socket.clone()))
        .transpose()
        .context("cannot start a thread")?;
    let server = &mut daemon.server;
    let _links = args.link_dev.then(|| devices::Links::make(server.mount_point(), &config.devices));
    server.add_external(signals.as_fd(), SIGNALS)?;
    server.add_external(daemon.control.as_fd(), CONTROL)?;
    if let Some(listeners) = &daemon.listeners {
        server.add_external(listeners.as_fd(), LISTENERS)?;
    }
    if let Some(stalls) = memory.stalls() {
        server.add_urgent_external(stalls, STALLS)?;
    }
    server.add_external(memory.timer(), MEMORY_TIMER)?;
    daemon.report_ready(args, &config)?;
    life_signs.ready(&in_a_line(&daemon.server));
    loop {
        match daemon.server.next_event()? {
            Event::External(CONTROL) => daemon.serve_control(&mut upgrades),
            Event::External(LISTENERS) => daemon.take_listener(),
            Event::External(STALLS) => daemon.server.reclaim_idle(),
            Event::External(MEMORY_TIMER) => {
                life_signs.came_round(|| in_a_line(&daemon.server));
                if let Some(reports) = &mut reports {
                    reports.update(&daemon.server);
                }
                let idle = daemon.server.page_counts().idle;
                if memory.is_low(idle) {
                    daemon.server.reclaim_idle();
                }
            }
            Event::External(_) => {
                if let Some(signal) = signals.next() {
                    tracing::info!(
                        "{signal}: unmounting, {} opens end",
                        daemon.server.open_count()
                    );
                    life_signs.stopping();
                    return Ok(());
                }
            }
            Event::Unmounted if args.until_unmounted => {
                tracing::info!("{}: unmounted", daemon.server.mount_point().display());
                return Ok(());
            }
            Event::Unmounted => {
                anyhow::bail!(
                    "{}: unmounted by another program",
                    daemon.server.mount_point().display()
                )
            }
        }
    }
}

/// Acquires the privileges that the daemon needs to respond promptly; returns a line of the status
/// for each that is refused.
fn refused_privileges(priority: u32) -> Vec<String> {
    let attempts = [
        (privileges::set_realtime(priority), "on a busy machine calls wait for a time slice"),
        (privileges::lock_memory(), "under heavy swapping calls may be late"),
        (
            privileges::exempt_from_oom_killer(),
            "the kernel's own OOM killer may choose the daemon, and with it all calls",
        ),
    ];
    let refused = attempts.into_iter().filter_map(|(result, consequence)| {
        result.err().map(|error| error.with_consequence(consequence))
    });
    refused.collect()
}

/// A status line for users.
fn in_a_line(server: &Server) -> String {
    format!("{} opens on {}", server.open_count(), server.mount_point().display())
}

/// Reports readiness to the process that started us.
fn report_ready(fd: i32) -> anyhow::Result<()> {
    anyhow::ensure!(fd > 2, "that one has another use");
    // SAFETY: the descriptor was passed to us for this purpose and is not used elsewhere in this
    // process; if it is not open, the write below fails.
    let mut ready = unsafe { std::fs::File::from_raw_fd(fd) };
    Ok(std::io::Write::write_all(&mut ready, b"ready\n")?)
}

/// The socket from which listeners of seccomp filters are received; the process that starts the
/// clients passes them. Each one gets a reply: 0 if it is served from now on, else an errno.
struct Listeners(OwnedFd);

impl Listeners {
    /// Takes the descriptor with the number on the command line.
    fn new(fd: i32) -> anyhow::Result<Self> {
        anyhow::ensure!(fd > 2, "--listeners {fd}: that one has another use");
        // SAFETY: the descriptor was passed to us for this purpose and is not used elsewhere in
        // this process; if it is no socket, operations on it fail.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::ioctl_fionbio(&socket, true).with_context(|| format!("--listeners {fd}"))?;
        Ok(Self(socket))
    }

    /// Continues with the socket of the program that this one replaces.
    fn from_socket(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Serves the next listener, if there is one. False: the other end is closed.
    fn take(&self, server: &mut Server) -> bool {
        let received = match ioctl_trap::receive(self.0.as_fd()) {
            Ok((_, fds)) => parse_listener(fds),
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        let served = received.and_then(|(listener, held_calls)| {
            server.add_listener(listener, held_calls).map_err(io::Error::other)
        });
        let errno = match served {
            Ok(()) => 0,
            Err(error) => {
                tracing::warn!("cannot serve a seccomp filter: {error}");
                error.raw_os_error().unwrap_or(libc::EIO)
            }
        };
        // Fails only if the process that passed the listener has exited.
        let _ = ioctl_trap::send(self.0.as_fd(), errno, &[]);
        true
    }
}

impl AsFd for Listeners {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn parse_listener(fds: Vec<OwnedFd>) -> io::Result<(Listener, HeldCalls)> {
    let [listener, memory] =
        <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok((Listener::new(listener), HeldCalls::map(memory)?))
}

/// Notifications to the watchdog of a service manager that requires them, in half its interval, so
/// that one may be late.
struct LifeSigns {
    manager: ServiceManager,
    last: Cell<Instant>,
}

impl LifeSigns {
    /// Reads the service manager's address from the environment; also returns an error in that.
    fn for_manager() -> (Self, Option<String>) {
        let (manager, error) = ServiceManager::from_environment();
        (Self { manager, last: Cell::new(Instant::now()) }, error)
    }

    /// Maximum time between two calls of [`came_round`](Self::came_round).
    fn interval(&self) -> Option<Duration> {
        self.manager.watchdog().map(|wait| wait / 2)
    }

    /// Reports that the bus is ready.
    fn ready(&self, status: &str) {
        self.manager.ready(status);
    }

    /// Called once per turn of the event loop; `status` is called for a status line if a
    /// notification is due.
    fn came_round(&self, status: impl FnOnce() -> String) {
        let due = self.interval().is_some_and(|interval| self.last.get().elapsed() >= interval / 2);
        if due {
            self.last.set(Instant::now());
            self.manager.alive(&status());
        }
    }

    /// Reports that the daemon is stopping on request.
    fn stopping(&self) {
        self.manager.stopping();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_lines_of_the_documents_are_valid() {
        test_support::documents::check_command_lines::<super::Args>("headroom-binderd");
    }
}
