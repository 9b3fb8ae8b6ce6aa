//! `headroom-oomd`: kills one process of a user that exceeds its memory limit, and logs the reason.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use control::{BINDERD_SOCKET, OOMD_SOCKET, PINS_FOLDER, STATE_FOLDER, Server, check_free};
use headroom_daemon::message::plain;
use headroom_daemon::privileges::{self, PrivilegeError};
use headroom_daemon::{ServiceManager, Signal, Signals};
use headroom_oomd::config::Enforcement;
use headroom_oomd::config::{Config, Files, ordinary_users};
use headroom_oomd::daemon::Daemon;
use headroom_oomd::history::History;
use headroom_oomd::leases::Leases;
use headroom_oomd::limits_file::LimitsFile;
use headroom_oomd::log::Log;
use headroom_oomd::names::{Keep, Names};
use headroom_oomd::notifications::queue::NotificationQueue;
use headroom_oomd::oom::{AfterExit, OomManager, control as oom_control, reconfigure};
use headroom_oomd::records::Records;
use headroom_oomd::reload::Reload;
use headroom_oomd::self_test::SelfTest;
use headroom_oomd::shrink::PerCpuLists;
use headroom_oomd::shrink::Shrinker;
use headroom_oomd::usage::UsageWorker;
use headroom_oomd::victim_details::VictimDetails;
use headroom_oomd::watchdog::{self, Finding, Pulse};
use memory_watch::{Chosen, NotifierError, ProcPoller};
use reclaim::Reaper;

/// Default path of the configuration.
const DEFAULT_CONFIG: &str = "/etc/headroom/oomd.toml";
/// Every user may connect, which needs write permission; requests are authorized by uid.
const SOCKET_MODE: u32 = 0o666;
/// `SCHED_FIFO` priority of the reapers.
const REAPER_PRIORITY: u32 = 1;
/// `SCHED_FIFO` priority of the event loop: above its reapers, which can be busy for hundreds of
/// milliseconds.
const EVENT_LOOP_PRIORITY: u32 = 2;
/// Reapers on a machine with at least three CPUs: the number of victims whose memory is released at
/// the same time.
const REAPERS: usize = 2;

/// Descriptors for which the table has room from the start: one for each victim, of a fork bomb
/// too.
const DESCRIPTORS: u32 = 16_384;

/// How long `--check-config` waits for the user database, three times at most.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);

/// Watches the memory of limited users; of a user that breaks its limit the largest process dies.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The control socket
    #[arg(long, default_value = OOMD_SOCKET)]
    socket: PathBuf,
    /// The configuration, with drop-ins in the folder whose name has `.d` in place of `.toml`
    /// [default: /etc/headroom/oomd.toml, which may be missing]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Control socket of a headroom-binderd that releases idle memory before a kill (repeatable)
    /// [default: /run/headroom/binderd.sock; none with another --socket]
    #[arg(long, value_name = "PATH")]
    reclaimer: Vec<PathBuf>,
    /// File with UID_MIN and UID_MAX, the range of ordinary users
    #[arg(long, value_name = "FILE", default_value = "/etc/login.defs")]
    login_defs: PathBuf,
    /// Print the effective configuration as JSON and exit; `headroom config check` prints text
    #[arg(long)]
    check_config: bool,
    /// Source of memory events
    #[arg(long, value_enum, default_value_t)]
    notifier: Wanted,
    /// Folder on a BPF file system that keeps limits and accounts if the daemon is killed, or
    /// `none` [default: /sys/fs/bpf/headroom; `none` with another --socket]
    #[arg(long, value_name = "DIR")]
    bpf_pin_dir: Option<PathBuf>,
    /// Folder of the recorded decisions, or `none` [default: /var/lib/headroom; `none` with another
    /// --socket]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Keep the limits in force in the kernel when the daemon is stopped, until another daemon
    /// takes over or `headroom oom detach` removes them
    #[arg(long)]
    keep_limits: bool,
    /// Send no signal: record what would have been killed, as `observe = true` does
    #[arg(long)]
    observe: bool,
}

impl Arguments {
    /// The directory as given, or else the default. A daemon with another control socket than the
    /// default one has no default directories.
    fn folder(&self, given: Option<&PathBuf>, default: &str) -> Option<PathBuf> {
        let folder = given.cloned().or((!self.has_own_socket()).then(|| default.into()));
        folder.filter(|folder| folder != Path::new("none"))
    }

    fn has_own_socket(&self) -> bool {
        self.socket != Path::new(OOMD_SOCKET)
    }

    /// The daemons that release idle memory. A daemon with another control socket does not make
    /// the daemon of the whole machine shrink unless it is named.
    fn reclaimers(&self) -> Vec<PathBuf> {
        if self.reclaimer.is_empty() && !self.has_own_socket() {
            return vec![BINDERD_SOCKET.into()];
        }
        self.reclaimer.clone()
    }

    fn files(&self) -> Files {
        match &self.config {
            Some(path) => Files { main: path.clone(), may_be_missing: false },
            None => Files { main: DEFAULT_CONFIG.into(), may_be_missing: true },
        }
    }

    fn after_exit(&self) -> AfterExit {
        if self.keep_limits { AfterExit::KeepLimits } else { AfterExit::EndLimits }
    }
}

fn main() -> ExitCode {
    privileges::set_mmap_threshold();
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("headroom-oomd: {}", plain(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let consequence = "a kill of many processes may take seconds, or leave some of them";
    let mut degraded =
        Vec::from_iter(refused(privileges::prepare_descriptors(DESCRIPTORS), consequence));
    let folder = arguments.folder(arguments.state_dir.as_ref(), STATE_FOLDER);
    // Before the threads with other priorities, and with the signals blocked.
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    let signals = Signals::block(&signals).context("cannot block SIGINT, SIGTERM and SIGHUP")?;
    let keep = if arguments.check_config { Keep::Nothing } else { Keep::Answers };
    let names = Names::start(folder.as_deref(), keep);
    let names = names.context("cannot start the thread for names")?;
    let mut reload = Reload::new(arguments.files(), names, ram_bytes());
    if arguments.observe {
        reload.override_enforcement(Enforcement::Observe);
    }
    let config = reload.load()?;
    if arguments.check_config {
        return print_config(&reload.settle(CHECK_PATIENCE)?, arguments);
    }
    let _log = Log::start().context("cannot start the log thread")?;
    // Checked before anything is killed. The socket itself is bound last, as the sign that limits
    // are in force.
    check_free(&arguments.socket)?;

    let (manager, warning) = ServiceManager::from_environment();
    degraded.extend(warning);
    let pins = arguments.folder(arguments.bpf_pin_dir.as_ref(), PINS_FOLDER);
    let chosen = select_watch(arguments.notifier, pins.as_deref());
    let chosen = chosen.context("cannot watch memory")?;
    degraded.extend(chosen.degraded);
    let (reaper, pulse) = start_threads(&manager, &mut degraded)?;

    let (records, problem) = open_records(arguments);
    degraded.extend(problem);
    let (ordinary, problem) = match ordinary_users::ordinary(&arguments.login_defs) {
        Ok(uids) => (uids, None),
        Err(warning) => (ordinary_users::ORDINARY, Some(warning)),
    };
    degraded.extend(problem);
    let limits = LimitsFile::open(arguments.socket.parent().unwrap_or(Path::new(".")));
    let (limits, filed) = limits.context("cannot start the thread for the file of limits")?;
    let shrinker = Shrinker::start(arguments.reclaimers());
    let lists = PerCpuLists::start(Path::new("/proc"));
    let mut oom = OomManager::builder(chosen.watch, reaper)
        .records(records)
        .shrinker(shrinker.context("cannot start the shrinker")?)
        .per_cpu_lists(lists.context("cannot start the thread for lists of the CPUs")?)
        .usage_worker(UsageWorker::start().context("cannot start the measuring thread")?)
        .victim_details(VictimDetails::start().context("cannot start the thread for details")?)
        .ordinary_users(ordinary)
        .after_exit(arguments.after_exit())
        .filed_limits(filed)
        .build()
        .context("cannot make epoll")?;
    oom.records_mut().notify_through(
        NotificationQueue::start().context("cannot start the notification thread")?,
    );

    degraded.extend(run_self_test(&oom).err());
    let consequence = "under heavy swapping a kill may be late";
    degraded.extend(refused(privileges::lock_resident_memory(), consequence));
    degraded.extend(reconfigure::start(&mut oom, &config).problems);
    reload.notify(&config.notifications, &mut oom);
    for what in &degraded {
        tracing::warn!("degraded: {what}");
    }
    reload.started(degraded);
    let server = Server::bind(&arguments.socket, SOCKET_MODE)?;
    let leases = Leases::start(&arguments.socket, server.closers(), &mut oom)
        .context("cannot offer leases beside the control socket")?;
    let notifier = oom_control::status(&oom, &[]).notifier;
    tracing::info!(notifier, socket = %arguments.socket.display(), "ready");
    manager.ready(&oom_control::status_line(&oom));
    let mut daemon = Daemon { leases, server, oom, signals, pulse, manager, reload, limits };
    daemon.run()?;
    daemon.limits.end(&daemon.oom, arguments.after_exit());
    match arguments.after_exit() {
        AfterExit::KeepLimits => {
            tracing::info!("stopping; the kernel keeps enforcing the limits where it can");
        }
        AfterExit::EndLimits => {
            tracing::info!("stopping; limits are no longer enforced");
        }
    }
    Ok(())
}

fn print_config(config: &Config, arguments: &Arguments) -> anyhow::Result<()> {
    let description = config.describe(ordinary_users::ordinary(&arguments.login_defs));
    println!("{}", serde_json::to_string(&description).context("cannot write JSON")?);
    Ok(())
}

/// Starts the reapers and the watchdog. A thread inherits the scheduling policy of its parent, so
/// the policy of the reapers is set first, and then that of the event loop.
fn start_threads(
    manager: &ServiceManager,
    degraded: &mut Vec<String>,
) -> anyhow::Result<(Reaper, Pulse)> {
    let consequence = "on a busy machine a kill may be milliseconds late";
    degraded.extend(refused(privileges::set_realtime(REAPER_PRIORITY), consequence));
    let reaper = Reaper::start(Reaper::enough(REAPERS)).context("cannot start the reapers")?;
    let interval = watchdog::interval(manager.watchdog());
    let when_lost = if manager.is_there() { WhenLost::Abort } else { WhenLost::GoOn };
    let pulse = watchdog::start(interval, move |found| act_on(found, interval, when_lost));
    let pulse = pulse.context("cannot start the watchdog")?;
    // If this is refused, so was the priority of the reapers, which has been reported.
    let _ = privileges::set_realtime(EVENT_LOOP_PRIORITY);
    let consequence = "the kernel's own OOM killer may choose the daemon";
    degraded.extend(refused(privileges::exempt_from_oom_killer(), consequence));
    Ok((reaper, pulse))
}

/// The decisions of earlier daemons if they are kept, or why they are not.
fn open_records(arguments: &Arguments) -> (Records, Option<String>) {
    let Some(folder) = arguments.folder(arguments.state_dir.as_ref(), STATE_FOLDER) else {
        return (Records::default(), None);
    };
    let problem = |e| {
        let folder = folder.display();
        format!(
            "cannot keep decisions in {folder} ({e}), so they are lost when the daemon stops; \
             choose another --state-dir"
        )
    };
    match History::open(&folder) {
        Ok((history, before)) => (Records::of(history, before), None),
        Err(e) => (Records::default(), Some(problem(e))),
    }
}

/// The reaction to an event loop that does not recover.
#[derive(Clone, Copy)]
enum WhenLost {
    /// Abort: a service manager restarts the daemon.
    Abort,
    /// Continue: nothing would restart the daemon.
    GoOn,
}

/// The degradation message in the daemon's status for a refused privilege.
fn refused(result: Result<(), PrivilegeError>, consequence: &str) -> Option<String> {
    result.err().map(|error| error.with_consequence(consequence))
}

/// Handles a report of the watchdog.
fn act_on(found: Finding, interval: Duration, when_lost: WhenLost) {
    match (found, when_lost) {
        (Finding::Stuck(questions), _) => {
            let silent = interval * questions;
            tracing::error!(
                ?silent,
                "the event loop is stuck; the kernel's part of the limits goes on"
            );
        }
        (Finding::Back, _) => tracing::warn!("the event loop goes on"),
        (Finding::Lost, WhenLost::Abort) => {
            // Written to standard error directly: the log thread may be what is stuck.
            eprintln!(
                "headroom-oomd: the event loop is stuck for good; ending, to be started again"
            );
            std::process::abort();
        }
        (Finding::Lost, WhenLost::GoOn) => {}
    }
}

/// Makes the kill path resident. Returns the reason if that is incomplete.
fn run_self_test(oom: &OomManager) -> Result<(), String> {
    let ready = SelfTest::prepare(oom.accounts().watch());
    // Pages used from here on belong to the kill path and stay resident.
    privileges::page_out_startup();
    let done = ready.and_then(SelfTest::run);
    privileges::trim_heap();
    done.map_err(|e| {
        format!("the self-test of the kill path failed: {e}; a real kill may fail too")
    })
}

/// Which watch is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Wanted {
    /// The BPF notifier where it works, else polling.
    #[default]
    Auto,
    /// The BPF notifier or nothing.
    Bpf,
    /// Polling of `/proc`.
    Proc,
}

/// Returns the watch, and what is degraded if it is not the notifier. With `pins`, a directory of a
/// BPF filesystem, the notifier's accounts outlive a daemon that is killed.
fn select_watch(wanted: Wanted, pins: Option<&Path>) -> Result<Chosen, NotifierError> {
    match wanted {
        Wanted::Auto => memory_watch::choose_source(pins),
        Wanted::Bpf => memory_watch::choose_notifier(pins),
        Wanted::Proc => Ok(Chosen {
            watch: Box::new(ProcPoller::new()?),
            degraded: Some(
                "--notifier proc reads /proc on a timer, which acts later than the BPF notifier"
                    .to_owned(),
            ),
        }),
    }
}

fn ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // Of type c_ulong, which is u32 on 32-bit machines.
    #[allow(clippy::useless_conversion)]
    let units = u64::try_from(info.totalram).unwrap_or(u64::MAX);
    units.saturating_mul(info.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_documents_are_valid() {
        test_support::documents::check_command_lines::<Arguments>("headroom-oomd");
    }

    #[test]
    fn a_daemon_with_its_own_socket_shrinks_only_named_daemons() {
        let reclaimers = |words: &[&str]| {
            let words = std::iter::once("headroom-oomd").chain(words.iter().copied());
            Arguments::try_parse_from(words).unwrap().reclaimers()
        };
        assert_eq!(reclaimers(&[]), [Path::new(BINDERD_SOCKET)]);
        assert_eq!(reclaimers(&["--socket", OOMD_SOCKET]), [Path::new(BINDERD_SOCKET)]);
        assert!(reclaimers(&["--socket", "/tmp/oomd.sock"]).is_empty());
        let named = reclaimers(&["--socket", "/tmp/oomd.sock", "--reclaimer", "/tmp/b.sock"]);
        assert_eq!(named, [Path::new("/tmp/b.sock")]);
    }
}
