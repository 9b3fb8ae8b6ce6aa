//! `headroom up`: both daemons in the foreground.
//!
//! The daemons are children in a process group of their own, so that Ctrl-C signals this process
//! only and they get one request to stop. If this process exits, the kernel sends them SIGTERM. One
//! thread per daemon watches its control socket and prints changes. Degradations are not printed
//! here: the daemons log them on standard error.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use control::{binderd, oomd};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::arguments::{Globals, Up};
use crate::commands::status::{binderd_line, oomd_line};
use crate::helpers::programs::{self, beside_us};
use crate::helpers::signals::{BlockedSignals, TERMINATION};
use crate::helpers::{client, decision, output};

/// Names of the daemons in the output.
const BINDER: &str = "binder";
const OOM: &str = "oom";
/// Variable with the daemons' log level.
const LOG_LEVEL: &str = "HEADROOM_LOG";
/// Limit for a daemon to answer its first request.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Limit for a daemon to clean up after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
/// Interval at which the main loop checks the limits.
const TICK: Duration = Duration::from_millis(200);
/// Interval of the requests to a daemon.
const WATCH_INTERVAL: Duration = Duration::from_millis(300);
/// Maximum of kills that are printed per interval, one line each.
const MAX_KILLS_PRINTED: u32 = 16;

/// A daemon that this command has started.
struct Daemon {
    name: &'static str,
    child: Child,
    ready: Ready,
    ended: Option<ExitStatus>,
}

/// Runs the command.
pub fn up(globals: &Globals, options: &Up) -> anyhow::Result<ExitCode> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "`up` needs root: mounting the bus, reading every process and loading BPF programs do; \
         try `sudo headroom up`"
    );
    let watched = [&TERMINATION[..], &[Signal::CHILD]].concat();
    let signals = BlockedSignals::block(&watched).context("cannot block signals")?;
    let mut daemons = Vec::new();
    let outcome = start(globals, options, &mut daemons)
        .and_then(|()| supervise(globals, options, &mut daemons, &signals));
    let stopped = stop(&mut daemons, &signals);
    daemons.iter().for_each(|daemon| sweep(daemon, globals, options));
    let clean = outcome? && stopped;
    print_line("headroom", if clean { "stopped" } else { "stopped, but not cleanly" });
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn start(globals: &Globals, options: &Up, daemons: &mut Vec<Daemon>) -> anyhow::Result<()> {
    if !options.no_binder {
        let mut command = programs::binderd()?;
        command.arg("--mount").arg(&options.mount).arg("--socket").arg(&globals.binderd_socket);
        if options.link_dev {
            command.arg("--link-dev");
        }
        if let Some(priority) = options.priority {
            command.args(["--priority", &priority.to_string()]);
        }
        if options.rings {
            command.arg("--rings");
        }
        if options.binder_logs {
            command.args(["--stats", "global"]);
        }
        if let Some(mode) = &options.mode {
            command.args(["--mode", mode]);
        }
        if let Some(owner) = &options.owner {
            command.args(["--owner", owner]);
        }
        daemons.push(Daemon::spawn(BINDER, command, Watcher::binderd(&globals.binderd_socket))?);
    }
    if !options.no_oom {
        let mut command = Command::new(beside_us("headroom-oomd")?);
        command.arg("--socket").arg(&globals.oomd_socket);
        command.arg("--reclaimer").arg(&globals.binderd_socket);
        if let Some(config) = &options.config {
            command.arg("--config").arg(config);
        }
        daemons.push(Daemon::spawn(OOM, command, Watcher::oomd(&globals.oomd_socket))?);
    }
    Ok(())
}

impl Daemon {
    fn spawn(name: &'static str, mut command: Command, watcher: Watcher) -> anyhow::Result<Self> {
        let parent = rustix::process::getpid();
        command.process_group(0);
        // Their usual log lines would repeat the lines of this command.
        if std::env::var_os(LOG_LEVEL).is_none() {
            command.env(LOG_LEVEL, "warn");
        }
        // SAFETY: only async-signal-safe calls between fork and exec, and no allocation.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
                // The parent may have exited before the signal was set.
                match rustix::process::getppid() {
                    Some(pid) if pid == parent => Ok(()),
                    _ => Err(rustix::io::Errno::SRCH.into()),
                }
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let ready = watcher.spawn(name, child.id());
        Ok(Self { name, child, ready, ended: None })
    }

    fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    /// What continues when it has ended, and how to start it again.
    fn consequence(&self) -> &'static str {
        if self.name == OOM {
            "the bus is still served; start it again: headroom up --no-binder"
        } else {
            "limits are still enforced; start it again: headroom up --no-oom"
        }
    }

    fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            // A child that is not reaped yet, so its pid is not reused.
            let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }
}

/// Runs until a signal requests the end; returns whether all daemons ran until then. An error if
/// one does not become ready, or if none runs any more. One that ends later is reported, and the
/// other one runs on: the crash of one must not end the other's calls or limits.
fn supervise(
    globals: &Globals,
    options: &Up,
    daemons: &mut Vec<Daemon>,
    signals: &BlockedSignals,
) -> anyhow::Result<bool> {
    let start = Instant::now();
    let mut all_ready = false;
    let mut all_run = true;
    loop {
        if signals.termination_within(TICK) {
            return Ok(all_run);
        }
        if let Some(at) = daemons.iter_mut().position(Daemon::has_ended) {
            let daemon = daemons.remove(at);
            // At once: another daemon may have the socket later.
            sweep(&daemon, globals, options);
            let end = format!("{} {}", daemon.name, describe(daemon.ended));
            ensure!(all_ready && !daemons.is_empty(), end);
            output::warn(format_args!("{end}; {}", daemon.consequence()));
            all_run = false;
        }
        let late = |daemon: &&Daemon| !daemon.ready.is_set() && start.elapsed() > READY_PATIENCE;
        if let Some(daemon) = daemons.iter().find(late) {
            bail!("{} did not answer within {} s", daemon.name, READY_PATIENCE.as_secs());
        }
        if !all_ready && daemons.iter().all(|daemon| daemon.ready.is_set()) {
            all_ready = true;
            print_line("headroom", &ready_line(globals));
        }
    }
}

fn ready_line(globals: &Globals) -> String {
    let mut hint = String::from("ready; Ctrl-C stops it.");
    let defaults = globals.oomd_socket == Path::new(control::OOMD_SOCKET)
        && globals.binderd_socket == Path::new(control::BINDERD_SOCKET);
    if defaults {
        hint += " Elsewhere: headroom status, headroom limit set USER 512M, headroom binder ls";
    }
    hint
}

/// Stops the daemons that still run. True if every daemon exited with code 0.
fn stop(daemons: &mut [Daemon], signals: &BlockedSignals) -> bool {
    for daemon in daemons.iter() {
        daemon.signal(Signal::TERM);
    }
    let start = Instant::now();
    while !daemons.iter_mut().all(Daemon::has_ended) {
        if start.elapsed() > STOP_PATIENCE {
            for daemon in daemons.iter_mut().filter(|daemon| daemon.ended.is_none()) {
                output::warn(format_args!(
                    "{} did not stop within {} s and is killed; `headroom doctor` has \
                     what it left",
                    daemon.name,
                    STOP_PATIENCE.as_secs()
                ));
                daemon.signal(Signal::KILL);
                daemon.ended = daemon.child.wait().ok();
            }
            break;
        }
        signals.wait(Some(TICK));
    }
    daemons.iter().all(|daemon| daemon.ended.is_some_and(|status| status.success()))
}

/// Removes the socket and mount of a daemon if it was killed. (A daemon that exited has cleaned up,
/// and the socket may belong to another daemon, which it found in use.)
fn sweep(daemon: &Daemon, globals: &Globals, options: &Up) {
    let was_killed = daemon.ended.is_some_and(|end| end.signal().is_some());
    if !was_killed {
        return;
    }
    if daemon.name == OOM {
        let _ = std::fs::remove_file(&globals.oomd_socket);
        return;
    }
    let _ = std::fs::remove_file(&globals.binderd_socket);
    // Only a mount without a server returns this error.
    if rustix::fs::statfs(&options.mount).err() == Some(Errno::NOTCONN) {
        let mount = options.mount.display();
        match unmount(&options.mount, UnmountFlags::DETACH) {
            Ok(()) => print_line(BINDER, &format!("unmounted {mount}")),
            Err(errno) => output::warn(format_args!("cannot unmount {mount}: {errno}")),
        }
    }
}

fn describe(ended: Option<ExitStatus>) -> String {
    match ended.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("ended with exit code {code}"),
        Some((None, Some(signal))) => format!("was killed by signal {signal}"),
        _ => "ended".into(),
    }
}

/// Set once the daemon has answered.
#[derive(Clone, Default)]
struct Ready(Arc<AtomicBool>);

impl Ready {
    /// The daemon has answered.
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// State of a daemon, and the line to print when it changes.
struct Summary {
    pid: u32,
    line: String,
    /// Compared with the previous one; the line is printed if it differs.
    key: String,
    kills: u64,
}

/// Watches a daemon through its control socket, and prints changes.
struct Watcher {
    socket: PathBuf,
    query: fn(&Path) -> anyhow::Result<Summary>,
}

impl Watcher {
    /// Watches `headroom-binderd`.
    fn binderd(socket: &Path) -> Self {
        fn query(socket: &Path) -> anyhow::Result<Summary> {
            let status: binderd::Status = client::binderd_status(socket)?;
            Ok(Summary {
                pid: status.pid,
                line: binderd_line(&status),
                key: format!("{} {} {}", status.mount, status.mapping, status.devices),
                kills: 0,
            })
        }
        Self { socket: socket.to_owned(), query }
    }

    /// Watches `headroom-oomd`.
    fn oomd(socket: &Path) -> Self {
        fn query(socket: &Path) -> anyhow::Result<Summary> {
            let status: oomd::Status = client::oomd_status(socket)?;
            Ok(Summary {
                pid: status.pid,
                line: oomd_line(&status),
                key: format!("{} {} {}", status.notifier, status.attached, status.limited_users),
                kills: status.kills,
            })
        }
        Self { socket: socket.to_owned(), query }
    }

    /// Starts a thread that runs until this process exits. Answers of another process than `pid` (a
    /// daemon that was running before) are ignored.
    fn spawn(self, name: &'static str, pid: u32) -> Ready {
        let ready = Ready::default();
        let set = ready.clone();
        std::thread::spawn(move || self.watch(name, pid, &set));
        ready
    }

    fn watch(&self, name: &str, pid: u32, ready: &Ready) {
        let mut last: Option<Summary> = None;
        loop {
            if let Some(summary) =
                (self.query)(&self.socket).ok().filter(|summary| summary.pid == pid)
            {
                self.print_changes(name, last.as_ref(), &summary);
                ready.0.store(true, Ordering::Release);
                last = Some(summary);
            }
            std::thread::sleep(WATCH_INTERVAL);
        }
    }

    fn print_changes(&self, name: &str, last: Option<&Summary>, summary: &Summary) {
        if last.is_none_or(|last| last.key != summary.key) {
            print_line(name, &summary.line);
        }
        let kills = summary.kills.saturating_sub(last.map_or(0, |last| last.kills));
        if kills > 0 {
            let number = u32::try_from(kills).unwrap_or(u32::MAX).min(MAX_KILLS_PRINTED);
            let records = client::records(&self.socket, number).unwrap_or_default();
            for record in records.iter().rev() {
                print_line(
                    name,
                    &format!("{}; see `headroom why {}`", decision::headline(record), record.id),
                );
            }
        }
    }
}

/// Prints a line under a daemon's name.
fn print_line(name: &str, text: &str) {
    // A closed output is not a reason to stop the daemons.
    let _ = output::print(&format!("{name:<9} {text}\n"));
}
