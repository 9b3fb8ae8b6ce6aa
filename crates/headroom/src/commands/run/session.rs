//! The first process of a session: starts everything in it, waits for the command, and ends the
//! remaining processes.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ioctl_trap::Launcher;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::namespaces::{self, Isolation};
use super::private_dev::{BUS, SOCKET};
use super::rings;
use crate::arguments::{BINDERD_SOCKET_VARIABLE, BUS_VARIABLE, FdPassing, Run};
use crate::commands::binder::service_manager;
use crate::helpers::signals::{BlockedSignals, Origin};
use crate::helpers::{output, programs};

/// Limit for the service manager to become context manager.
const MANAGER_PATIENCE: Duration = Duration::from_secs(30);
/// Limit for processes to exit after a signal.
const GRACE: Duration = Duration::from_secs(2);
/// Limit for the daemon to unmount.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(5);
/// Interval of polling for changes that no signal reports.
const TICK: Duration = Duration::from_millis(5);
/// Capabilities that the daemon uses: it mounts, and reads and traces clients.
const DAEMON_CAPABILITIES: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_PTRACE);
/// Variable with the daemon's log level.
const LOG_LEVEL: &str = "HEADROOM_LOG";

/// Parameters of a session.
pub struct Session<'a> {
    /// The command line.
    pub options: &'a Run,
    /// The namespaces of the session.
    pub isolation: Isolation,
    /// The folders of [`rings`] are there.
    pub has_rings: bool,
    /// The signals to pass on, blocked already.
    pub signals: BlockedSignals,
    /// The guardian ends the bus when this is closed.
    pub _guarded: OwnedFd,
}

/// A child of the session.
struct Running {
    pid: Pid,
    name: &'static str,
    ended: Option<ExitStatus>,
}

impl Running {
    fn new(name: &'static str, child: &Child) -> Self {
        Self { pid: Pid::from_child(child), name, ended: None }
    }

    fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            // Only this process reaps, so the pid is not reused.
            let _ = kill_process(self.pid, signal);
        }
    }
}

/// Processes that have been started so far.
#[derive(Default)]
struct Children {
    daemon: Option<Running>,
    manager: Option<Running>,
    command: Option<Running>,
    /// Starts processes under a seccomp filter, if that is requested.
    trap: Option<Launcher>,
    /// The unexpected exit of a process was reported.
    daemon_exit_reported: bool,
}

impl Children {
    fn all(&mut self) -> impl Iterator<Item = &mut Running> {
        [&mut self.daemon, &mut self.manager, &mut self.command].into_iter().flatten()
    }

    /// Reports once which processes have exited although the command needs them.
    fn report_exits(&mut self) {
        if self.daemon_exit_reported {
            return;
        }
        let gone = [&self.daemon, &self.manager].into_iter().flatten();
        for (name, ended) in gone.filter_map(|one| Some((one.name, one.ended?))) {
            self.daemon_exit_reported = true;
            output::warn(format_args!(
                "{name} is gone while the command runs: {}",
                describe(ended)
            ));
        }
    }

    /// Reaps all children that have exited, including adopted orphans.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let status = ExitStatus::from_raw(status.as_raw());
            if let Some(one) = self.all().find(|one| one.ended.is_none() && one.pid == pid) {
                one.ended = Some(status);
            }
        }
        if self.daemon.as_ref().is_some_and(|daemon| daemon.ended.is_some())
            && let Some(Err(error)) = self.trap.as_mut().map(Launcher::stand_in)
        {
            output::warn(format_args!("calls on the dead bus fail with ENOSYS: {error}"));
        }
    }

    /// Starts a client of the bus, under the seccomp filter if there is one.
    fn spawn(&mut self, mut command: Command) -> std::io::Result<Child> {
        if let Some(trap) = &self.trap {
            trap.bait(&mut command);
        }
        let child = command.spawn()?;
        if let Some(Err(error)) = self.trap.as_mut().map(Launcher::serve) {
            output::warn(format_args!(
                "fd passing by seccomp is unavailable ({error}): using ptrace"
            ));
        }
        Ok(child)
    }
}

impl Session<'_> {
    /// Runs the session to its end. `daemon` starts the daemon; `hangs_up` hangs up when `headroom
    /// run` exits.
    pub fn run(mut self, daemon: Command, hangs_up: &OwnedFd) -> ! {
        let mut children = Children::default();
        let code = match self.play(&mut children, daemon, hangs_up) {
            Ok(code) => code,
            Err(error) => {
                output::warn(format_args!("{error:#}"));
                programs::RUN_FAILED
            }
        };
        self.finish(&mut children);
        // SAFETY: ends the process. The parent does the cleanup that `exit` would do.
        unsafe { libc::_exit(code.into()) }
    }

    fn play(
        &mut self,
        children: &mut Children,
        daemon: Command,
        hangs_up: &OwnedFd,
    ) -> anyhow::Result<u8> {
        self.settle(hangs_up)?;
        self.start_daemon(children, daemon)?;
        if let Some(code) = self.start_manager(children)? {
            return Ok(code);
        }
        match children.spawn(self.command()) {
            Ok(child) => children.command = Some(Running::new("the command", &child)),
            Err(error) => {
                output::warn(format_args!("{}: {error}", self.options.command[0].display()));
                return Ok(programs::exit_code_of_failed_exec(&error));
            }
        }
        Ok(self.wait_for_command(children))
    }

    /// Makes this process die with `headroom run`, and makes it the reaper of orphans.
    fn settle(&self, hangs_up: &OwnedFd) -> anyhow::Result<()> {
        die_with_parent().context("cannot be notified of the end of `headroom run`")?;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(hangs_up, PollFlags::IN)];
        if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
            bail!("`headroom run` was killed before it began");
        }
        if self.isolation.pids {
            namespaces::mount_proc().context("cannot mount /proc for the pid namespace")?;
        } else {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
                .context("cannot adopt orphans")?;
        }
        Ok(())
    }

    fn start_daemon(&self, children: &mut Children, mut command: Command) -> anyhow::Result<()> {
        let (ready_reader, ready_writer) = pipe().context("cannot make a pipe")?;
        command.args(["--mount", BUS, "--socket", SOCKET, "--session"]);
        command.args(["--stats", "global"]);
        if !self.options.no_ring {
            command.arg("--rings");
        }
        command.args(["--devices", &self.options.devices.join(",")]);
        command.args(["--ready-fd", &ready_writer.as_raw_fd().to_string()]);
        if self.isolation.users {
            // The kernel permits passthrough to root only.
            command.args(["--mapping", "notify-store"]);
        }
        if std::env::var_os(LOG_LEVEL).is_none() {
            command.env(LOG_LEVEL, "warn");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.apart(&mut command);
        if self.options.fd_passing == FdPassing::Seccomp {
            let mut trap = Launcher::new().context("cannot make sockets")?;
            trap.connect(&mut command);
            children.trap = Some(trap);
        }
        let (keep, inherited) = (self.isolation.users, ready_writer.as_raw_fd());
        // SAFETY: system calls without allocation, on a descriptor that is open until the parent
        // has spawned.
        unsafe {
            command.pre_exec(move || {
                if keep {
                    keep_capabilities(DAEMON_CAPABILITIES)?;
                }
                match libc::fcntl(inherited, libc::F_SETFD, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        children.daemon = Some(Running::new(programs::BINDERD, &child));
        drop(ready_writer);
        // The daemon writes one line when it is ready, or exits.
        let mut line = Vec::new();
        std::fs::File::from(ready_reader)
            .read_to_end(&mut line)
            .context("cannot read from the daemon")?;
        if line.is_empty() {
            bail!("there is no bus: headroom-binderd did not come up");
        }
        Ok(())
    }

    /// `Some`: the exit code, as a signal ended the wait for the service manager.
    fn start_manager(&mut self, children: &mut Children) -> anyhow::Result<Option<u8>> {
        let Some(line) = &self.options.service_manager else { return Ok(None) };
        let mut command = service_manager::command(line);
        self.surroundings(&mut command);
        self.apart(&mut command);
        let child = children.spawn(command).context("cannot start the service manager")?;
        children.manager = Some(Running::new("the service manager", &child));
        let end = Instant::now() + MANAGER_PATIENCE;
        while !service_manager::is_there(Path::new(SOCKET), line) {
            children.reap();
            if let Some(ended) = children.manager.as_ref().and_then(|manager| manager.ended) {
                let remedy = match ended.code() {
                    // The shell's for a program that it does not find.
                    Some(127) => {
                        "; is it installed? `--service-manager` without a value starts headroom's"
                    }
                    _ => "",
                };
                let ended = describe(ended);
                bail!("the service manager ended before it served: `{line}`: {ended}{remedy}");
            }
            if Instant::now() > end {
                let seconds = MANAGER_PATIENCE.as_secs();
                bail!(
                    "the service manager did not become context manager within {seconds} s: \
                     `{line}`"
                );
            }
            let taken = self.signals.wait(Some(TICK)).map(|taken| taken.signal);
            if let Some(signal) = taken.filter(|it| ![Signal::CHILD, Signal::WINCH].contains(it)) {
                return Ok(Some(128 + signal.as_raw() as u8));
            }
        }
        Ok(None)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.options.command[0]);
        command.args(&self.options.command[1..]);
        self.surroundings(&mut command);
        self.signals.restore_in(&mut command);
        self.bind_life(&mut command);
        command
    }

    /// Sets the variables that name the bus and its daemon, and preload the library of rings.
    fn surroundings(&self, command: &mut Command) {
        command.env(BUS_VARIABLE, BUS).env(BINDERD_SOCKET_VARIABLE, SOCKET);
        if self.has_rings {
            rings::preload_in(command);
        }
    }

    /// Detaches it from the terminal, which belongs to the command.
    fn apart(&self, command: &mut Command) {
        self.signals.restore_in(command);
        self.bind_life(command);
        // SAFETY: one system call.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    }

    fn bind_life(&self, command: &mut Command) {
        // SAFETY: one system call.
        unsafe { command.pre_exec(die_with_parent) };
    }

    /// Passes signals on until the command has exited; returns its exit code.
    fn wait_for_command(&mut self, children: &mut Children) -> u8 {
        loop {
            if let Some(taken) = self.signals.wait(None) {
                if taken.signal == Signal::CHILD {
                    children.reap();
                } else if let (Origin::Process, Some(command)) = (taken.origin, &children.command) {
                    command.signal(taken.signal);
                }
            }
            children.report_exits();
            if let Some(ended) = children.command.as_ref().and_then(|command| command.ended) {
                return programs::exit_code_of(ended);
            }
        }
    }

    /// Ends the remaining processes: the service manager and the command's background processes,
    /// then the daemon, which unmounts. (Clients first: a daemon that exits during their calls may
    /// have to wait for them.)
    fn finish(&mut self, children: &mut Children) {
        let daemon =
            children.daemon.as_ref().map(|daemon| daemon.pid.as_raw_nonzero().get() as u32);
        for (signal, grace) in [(Signal::TERM, GRACE), (Signal::KILL, GRACE)] {
            if signal_descendants(signal, daemon) == 0 {
                break;
            }
            self.wait_until(grace, children, |_| descendants(daemon).is_empty());
        }
        for (signal, grace) in [(Signal::TERM, UNMOUNT_PATIENCE), (Signal::KILL, GRACE)] {
            if let Some(daemon) = &children.daemon {
                daemon.signal(signal);
            }
            let has_ended = |children: &Children| {
                children.daemon.as_ref().is_none_or(|one| one.ended.is_some())
            };
            if self.wait_until(grace, children, has_ended) {
                break;
            }
        }
        // A killed daemon may exit later than its clients, which notice the loss of the bus and
        // exit.
        let ended = children.daemon.as_ref().and_then(|daemon| daemon.ended);
        if children.command.is_some() && ended.is_some_and(|ended| !ended.success()) {
            children.manager = None;
            children.report_exits();
        }
    }

    fn wait_until(
        &mut self,
        limit: Duration,
        children: &mut Children,
        done: impl Fn(&Children) -> bool,
    ) -> bool {
        let end = Instant::now() + limit;
        loop {
            children.reap();
            if done(children) {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            self.signals.wait(Some(TICK));
        }
    }
}

fn die_with_parent() -> std::io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Makes the next executed program keep these capabilities although its user is not root.
fn keep_capabilities(keep: CapabilitySet) -> std::io::Result<()> {
    let sets = rustix::thread::capabilities(None)?;
    let sets = CapabilitySets { inheritable: sets.inheritable | keep, ..sets };
    rustix::thread::set_capabilities(None, sets)?;
    for capability in keep.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

fn describe(ended: ExitStatus) -> String {
    match ended.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit code {}", ended.code().unwrap_or_default()),
    }
}

/// Sends a signal to all descendants of this process except `except` and its own; returns their
/// number.
fn signal_descendants(signal: Signal, except: Option<u32>) -> usize {
    let all = descendants(except);
    for pid in all.iter().filter_map(|&pid| Pid::from_raw(pid as i32)) {
        // A process that has exited meanwhile needs no signal.
        let _ = kill_process(pid, signal);
    }
    all.len()
}

/// A living process.
struct Process {
    pid: u32,
    parent: u32,
}

/// Descendants of this process, found in /proc, without `except` and its own.
fn descendants(except: Option<u32>) -> Vec<u32> {
    let all = processes();
    let us = std::process::id();
    let excepted = |pid: u32| except.is_some_and(|one| one == pid || descends(&all, pid, one));
    let ours = |pid: &u32| !excepted(*pid) && descends(&all, *pid, us);
    all.iter().map(|process| process.pid).filter(ours).collect()
}

fn descends(all: &[Process], pid: u32, from: u32) -> bool {
    let parent_of = |pid: u32| all.iter().find(|one| one.pid == pid).map(|one| one.parent);
    // Processes start and exit while they are listed, so the chain may look like a cycle: it is
    // bounded.
    std::iter::successors(parent_of(pid), |&at| parent_of(at)).take(all.len()).any(|at| at == from)
}

/// Every living process.
fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        // Not `stat`: it waits for an `execve`, which any user can delay without end.
        let status = headroom_linux::task_status(pid).ok()?;
        parent(&status).map(|parent| Process { pid, parent })
    })
    .collect()
}

/// The parent, out of a status file; `None` for a zombie. No name breaks a line: the kernel escapes
/// it.
fn parent(status: &str) -> Option<u32> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("State:")?.starts_with(['Z', 'X']) { None } else { field("PPid:")?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_and_garbage_have_no_parent() {
        let status = |state| format!("Name:\tPPid:\\nPPid:\t3\nState:\t{state}\nPPid:\t7\n");
        assert_eq!(parent(&status("S (sleeping)")), Some(7));
        assert_eq!(parent(&status("Z (zombie)")), None);
        assert_eq!(parent("garbage"), None);
    }

    #[test]
    fn grandchildren_descend_and_strangers_do_not() {
        let all = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 7), (7, 6)]
            .map(|(pid, parent)| Process { pid, parent });
        assert!(descends(&all, 4, 2));
        assert!(!descends(&all, 5, 2));
        assert!(!descends(&all, 6, 2), "a circle ends");
        assert!(!descends(&all, 2, 2), "no process descends from itself");
    }
}
