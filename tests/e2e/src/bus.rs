//! A private `headroom-binderd`.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use control::binderd::{Device, Reply, Request, Status};
use ioctl_trap::Launcher;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::wait;

/// The folder with the daemon's program, if it is not beside the running one.
pub const BIN_DIR: &str = "HEADROOM_BIN_DIR";
/// Variable of the daemon's environment: how a `peer` fails that the daemon is to be upgraded to.
pub const FAILING_UPGRADE: &str = "HEADROOM_FAILING_UPGRADE";
const DAEMON: &str = "headroom-binderd";

/// How the daemon maps receive buffers into clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// FUSE passthrough to a memfd.
    Passthrough,
    /// `FUSE_NOTIFY_STORE` into the page cache.
    NotifyStore,
    /// The daemon's default.
    Auto,
}

impl Mapping {
    /// Value of the daemon's option.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::NotifyStore => "notify-store",
            Self::Auto => "auto",
        }
    }
}

impl FromStr for Mapping {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Passthrough, Self::NotifyStore, Self::Auto];
        let found = all.into_iter().find(|mapping| mapping.argument() == text);
        found.ok_or("not passthrough, notify-store or auto")
    }
}

/// Variable that makes every bus accept rings.
pub const RINGS: &str = "HEADROOM_TEST_RINGS";

/// Why there is no bus.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// Not supported on this machine; the test is skipped.
    #[error("{0}")]
    Unavailable(String),
    /// It should have started, or stopped, and did not.
    #[error("{0}")]
    Broken(String),
}

/// A private daemon, with its mount and socket in a temporary folder. Stopped on drop.
pub struct Bus {
    folder: TempDir,
    mount: PathBuf,
    socket: PathBuf,
    child: Child,
    stopped: bool,
    /// Dropping it ends the watchdog.
    watchdog: Option<Sender<()>>,
    /// Starts clients under seccomp filters.
    launcher: Option<Mutex<Launcher>>,
}

/// Finds the daemon: in [`BIN_DIR`], else in the folder of the running program or a parent folder.
pub fn daemon_program() -> Result<PathBuf, BusError> {
    let mut tried = Vec::new();
    let folders: Vec<PathBuf> = match std::env::var_os(BIN_DIR) {
        Some(folder) => vec![folder.into()],
        None => {
            let here = std::env::current_exe().map_err(|e| BusError::Broken(e.to_string()))?;
            here.ancestors().skip(1).take(2).map(Path::to_owned).collect()
        }
    };
    for folder in folders {
        let program = folder.join(DAEMON);
        if program.is_file() {
            return Ok(program);
        }
        tried.push(program.display().to_string());
    }
    Err(BusError::Broken(format!(
        "no {DAEMON} at {}; build it first (cargo build -p {DAEMON}) or set {BIN_DIR}",
        tried.join(" or ")
    )))
}

fn unavailable() -> Option<String> {
    if !geteuid().is_root() {
        return Some("a bus for several users needs root".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse is missing".to_owned());
    }
    None
}

/// Linux 6.9 introduced FUSE passthrough.
fn has_passthrough() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(9))
}

impl Bus {
    /// Starts a daemon and waits until it answers.
    pub fn start(mapping: Mapping) -> Result<Self, BusError> {
        Self::start_with(mapping, |_| ())
    }

    /// As [`start`](Self::start); `adjust` may change the command first.
    pub fn start_with(
        mapping: Mapping,
        adjust: impl FnOnce(&mut Command),
    ) -> Result<Self, BusError> {
        if let Some(reason) = unavailable() {
            return Err(BusError::Unavailable(reason));
        }
        if mapping == Mapping::Passthrough && !has_passthrough() {
            return Err(BusError::Unavailable("FUSE passthrough needs Linux 6.9".to_owned()));
        }
        let program = daemon_program()?;
        let broken = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| BusError::Broken(format!("{what}: {error}"))
        };
        // Other users must be able to reach the mount.
        let folder = tempfile::Builder::new()
            .prefix("headroom-e2e-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .map_err(broken("temporary folder"))?;
        let mount = folder.path().join("binderfs");
        let socket = folder.path().join("binderd.sock");
        let log = File::create(folder.path().join("log")).map_err(broken("log file"))?;
        fs::create_dir(&mount).map_err(broken("mount point"))?;
        let mut command = Command::new(&program);
        command.arg("--mount").arg(&mount).arg("--socket").arg(&socket);
        command.args(["--mapping", mapping.argument()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if std::env::var_os(RINGS).is_some() {
            command.arg("--rings").env_remove("LD_PRELOAD");
        }
        adjust(&mut command);
        let child = command.spawn().map_err(broken(&program.display().to_string()))?;
        let (watchdog, launcher) = (None, None);
        let mut bus = Self { folder, mount, socket, child, stopped: false, watchdog, launcher };
        bus.wait_until_ready()?;
        Ok(bus)
    }

    /// As [`start`](Self::start); clients that [`spawn`](Self::spawn) starts run under seccomp
    /// filters.
    pub fn start_with_filters(mapping: Mapping) -> Result<Self, BusError> {
        let broken = |error: io::Error| BusError::Broken(format!("sockets: {error}"));
        let mut launcher = Launcher::new().map_err(broken)?;
        let mut bus = Self::start_with(mapping, |command| launcher.connect(command))?;
        bus.launcher = Some(Mutex::new(launcher));
        Ok(bus)
    }

    /// Whether its clients run under seccomp filters.
    pub fn has_filters(&self) -> bool {
        self.launcher.is_some()
    }

    /// Starts a client.
    pub fn spawn(&self, mut command: Command) -> io::Result<Child> {
        let Some(launcher) = &self.launcher else { return command.spawn() };
        let mut launcher = launcher.lock().unwrap_or_else(PoisonError::into_inner);
        launcher.bait(&mut command);
        let child = command.spawn()?;
        launcher.serve().map(|()| child)
    }

    fn wait_until_ready(&mut self) -> Result<(), BusError> {
        let mut exited = None;
        let ready = wait::until(wait::PATIENCE, || {
            exited = self.child.try_wait().ok().flatten();
            (exited.is_some() || self.status().is_ok()).then_some(())
        });
        match (exited, ready) {
            (Some(status), _) => {
                self.stopped = true;
                Err(BusError::Broken(format!("{DAEMON} ended at once ({status}):\n{}", self.log())))
            }
            (None, None) => {
                let pid = self.pid();
                let (state, log) = (wait::describe(pid), self.log());
                Err(BusError::Broken(format!("{DAEMON} is not ready ({state}):\n{log}")))
            }
            (None, Some(())) => Ok(()),
        }
    }

    /// Starts a watchdog that ends the bus if it still exists after `limit`: then every call on it
    /// fails, and no client stays blocked.
    pub fn limit_time(&mut self, limit: Duration) {
        let (hang_up, hung_up): (Sender<()>, Receiver<()>) = channel();
        self.watchdog = Some(hang_up);
        let pid = self.pid();
        let mount = self.mount.clone();
        thread::spawn(move || {
            if hung_up.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "the bus of {DAEMON} {pid} is in use for more than {} s: tearing it down; {}",
                    limit.as_secs(),
                    wait::describe(pid)
                );
                end_connection(&mount);
                let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
            }
        });
    }

    /// Pid of the daemon.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Number of descriptors that the daemon has open.
    pub fn descriptors(&self) -> usize {
        wait::descriptors(self.pid())
    }

    /// Mount point of the bus.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Path of a device (or any other file) of the bus.
    pub fn device(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    /// The daemon's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request to the daemon.
    pub fn request(&self, request: Request) -> Result<Reply, String> {
        let mut client = control::Client::connect(&self.socket).map_err(|e| e.to_string())?;
        client.call(&request).map_err(|e| e.to_string())
    }

    /// The daemon's status.
    pub fn status(&self) -> Result<Status, String> {
        match self.request(Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(format!("{other:?}")),
        }
    }

    /// All opens.
    pub fn ls(&self) -> Result<Vec<Device>, String> {
        match self.request(Request::Ls)? {
            Reply::Ls { devices } => Ok(devices),
            other => Err(format!("{other:?}")),
        }
    }

    /// Waits until no open is left: no process, and so no node, handle, buffer or manager.
    pub fn wait_until_empty(&self) -> Result<(), String> {
        let mut last = Ok(Vec::new());
        let is_empty = |d: &Device| d.processes.is_empty() && d.manager.is_none();
        wait::until(wait::PATIENCE, || {
            last = self.ls();
            last.as_ref().is_ok_and(|devices| devices.iter().all(is_empty)).then_some(())
        })
        .ok_or_else(|| format!("not everything is gone: {last:#?}"))
    }

    /// Stops the daemon with SIGTERM, and checks that it leaves nothing behind.
    pub fn stop(mut self) -> Result<(), String> {
        self.shut_down()
    }

    /// Pid of the daemon's guardian process, if there is one; waits for it, as it sets its name
    /// after its fork.
    pub fn guardian(&self) -> Option<u32> {
        wait::until(wait::PATIENCE, || self.guardian_now())
    }

    /// As [`guardian`](Self::guardian), without a wait.
    pub fn guardian_now(&self) -> Option<u32> {
        // Of all processes: another file could wait for an `execve` of one of them.
        let is_guardian = |pid: &u32| {
            let status = wait::status(*pid).unwrap_or_default();
            let parent = wait::field(&status, "PPid:");
            wait::field(&status, "Name:") == Some("binder-guardian")
                && parent == Some(self.pid().to_string().as_str())
        };
        let entries = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(is_guardian)
    }

    /// Kills the daemon with SIGKILL, and checks that it and its mount are gone.
    pub fn kill(mut self) -> Result<(), String> {
        self.stopped = true;
        let pid = self.pid();
        let guardian = self.guardian().ok_or("there is no guardian")?;
        self.child.kill().map_err(|e| format!("SIGKILL to the daemon: {e}"))?;
        let ended = wait::until(wait::PATIENCE, || self.child.try_wait().ok().flatten());
        if ended.is_none() {
            let state = wait::describe(pid);
            end_connection(&self.mount);
            return Err(format!("the daemon cannot be killed ({state})"));
        }
        let gone = || (!is_mounted(&self.mount) && wait::state(guardian).is_none()).then_some(());
        match wait::until(wait::PATIENCE, gone) {
            Some(()) => Ok(()),
            None => Err(format!(
                "mounted still: {}; the guardian: {}\n{}",
                is_mounted(&self.mount),
                wait::describe(guardian),
                self.log()
            )),
        }
    }

    /// Waits for the exit of the daemon, and unmounts the dead mount that it has left.
    pub fn wait_until_dead(mut self) -> Result<(), String> {
        self.stopped = true;
        let ended = wait::until(wait::PATIENCE, || self.child.try_wait().ok().flatten());
        end_connection(&self.mount);
        ended.map(drop).ok_or_else(|| format!("the daemon runs ({})", wait::describe(self.pid())))
    }

    fn shut_down(&mut self) -> Result<(), String> {
        self.stopped = true;
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).map_err(|e| format!("SIGTERM to the daemon: {e}"))?;
        let status = wait::until(wait::PATIENCE, || self.child.try_wait().ok().flatten());
        let mut faults = Vec::new();
        match status {
            Some(status) if status.success() => {}
            Some(status) => faults.push(format!("the daemon's end: {}", end(status))),
            None => {
                let state = wait::describe(self.pid());
                faults.push(format!("the daemon does not end after SIGTERM ({state})"));
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
        if is_mounted(&self.mount) {
            faults.push(format!("{} is still mounted", self.mount.display()));
            let flags = rustix::mount::UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(&self.mount, flags);
        }
        if self.socket.exists() {
            faults.push(format!("{} is still there", self.socket.display()));
        }
        if faults.is_empty() {
            return Ok(());
        }
        Err(format!("{}\nits log:\n{}", faults.join("\n"), self.log()))
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        if !self.stopped {
            if thread::panicking() {
                eprintln!("the daemon's log:\n{}", self.log());
            }
            if let Err(faults) = self.shut_down() {
                eprintln!("{faults}");
            }
        }
    }
}

fn end(status: ExitStatus) -> String {
    status.signal().map_or(status.to_string(), |signal| format!("killed by signal {signal}"))
}

fn is_mounted(path: &Path) -> bool {
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return false };
    let path = path.to_string_lossy();
    table.lines().any(|line| line.split(' ').nth(4) == Some(&path))
}

/// Makes every request on a FUSE mount fail, whatever its daemon does.
fn end_connection(mount: &Path) {
    let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    let _ = rustix::mount::unmount(mount, flags);
}
