//! `headroom container remove NAME`: ends a bus and removes its CDI file.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use control::binderd::{Process, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::{bus, cdi, waydroid};
use crate::arguments::Globals;
use crate::helpers::client::{binderd_status, call_binderd, unexpected};
use crate::helpers::output::{self, printable};

/// Folder of the control sockets.
const SOCKETS: &str = "/run/headroom";
/// Limit for a daemon to unmount its bus after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which the bus is checked.
const TICK: Duration = Duration::from_millis(20);
/// Maximum of processes that an error names.
const MAX_NAMED: usize = 5;

/// Processes that have a device of the bus open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// The bus stays while there are any.
    Keep,
    /// They are disconnected: their calls fail.
    Disconnect,
}

/// Result of `container remove`: what was removed.
#[derive(Serialize)]
struct Report {
    bus: Option<PathBuf>,
    specification: Option<PathBuf>,
}

/// Runs the command.
pub fn remove(
    globals: &Globals,
    name: &str,
    spec_dir: &Path,
    clients: Clients,
) -> anyhow::Result<()> {
    let folder = bus::folder(name);
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "{}: only root can remove this bus; use sudo", folder.display());
    let served = bus::is_bus(&folder);
    let daemon = if served { Some(Daemon::of(&folder)?) } else { None };
    if let (Some(daemon), Clients::Keep) = (&daemon, clients) {
        daemon.has_no_client(&folder)?;
    }
    let file = cdi::path(spec_dir, name);
    // First, so that no container gets the bus meanwhile.
    let had_file = remove_file(&file)?;
    if let Some(daemon) = &daemon {
        daemon.stop(name)?;
        wait_until_unmounted(&folder)?;
    }
    bus::unmount_dead(&folder);
    waydroid::unlink_devices(Path::new("/dev"), &folder);
    let had_folder = std::fs::remove_dir(&folder).is_ok();
    ensure!(
        served || had_folder || had_file,
        "there is no bus {name}: neither {} nor {}",
        folder.display(),
        file.display()
    );
    let report = Report {
        bus: (served || had_folder).then_some(folder),
        specification: had_file.then_some(file),
    };
    output::print_as(globals.format(), &report, || {
        let removed = report.bus.iter().chain(&report.specification);
        removed.map(|path| format!("{}: removed\n", path.display())).collect()
    })
}

/// The daemon of a bus.
struct Daemon {
    socket: PathBuf,
    pid: u32,
}

impl Daemon {
    /// Finds it by its control socket, of which `--mount` and the mount helper choose the path.
    fn of(folder: &Path) -> anyhow::Result<Self> {
        let namespace = std::fs::metadata("/proc/self/ns/mnt")?.ino();
        let entries =
            std::fs::read_dir(SOCKETS).with_context(|| format!("cannot read {SOCKETS}"))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        for socket in paths.filter_map(|path| socket(path, namespace)) {
            if let Ok(status) = binderd_status(&socket)
                && Path::new(&status.mount) == folder
            {
                return Ok(Self { socket, pid: status.pid });
            }
        }
        bail!(
            "{}: no daemon with a socket in {SOCKETS} serves this bus; unmount it",
            folder.display()
        )
    }

    fn has_no_client(&self, folder: &Path) -> anyhow::Result<()> {
        let devices = match call_binderd(&self.socket, &Request::Ls)? {
            Reply::Ls { devices } => devices,
            reply => return Err(unexpected(&reply)),
        };
        let processes: Vec<&Process> = devices.iter().flat_map(|it| &it.processes).collect();
        if processes.is_empty() {
            return Ok(());
        }
        let name = |it: &&Process| {
            format!("{} (pid {})", it.comm.as_deref().map_or("?".into(), printable), it.pid)
        };
        let mut names: Vec<String> = processes.iter().take(MAX_NAMED).map(name).collect();
        if processes.len() > MAX_NAMED {
            names.push(format!("{} more", processes.len() - MAX_NAMED));
        }
        bail!(
            "{}: in use by {}; stop their containers, or use --force to disconnect them",
            folder.display(),
            names.join(", ")
        )
    }

    fn stop(&self, name: &str) -> anyhow::Result<()> {
        let of_unit = Path::new(SOCKETS).join(format!("binderd@{name}.sock"));
        if bus::has_systemd() && self.socket == of_unit {
            return bus::run(&mut bus::systemctl("stop", name));
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} is not a process id", self.pid))?;
        kill_process(pid, Signal::TERM)
            .with_context(|| format!("cannot stop headroom-binderd, pid {}", self.pid))
    }
}

/// The control socket of this entry of [`SOCKETS`]: `binderd@NAME.sock`, or `binderd.sock` in
/// `binderd@PATH` or `binderd@PATH@NAMESPACE`. Buses of other mount namespaces are left out.
fn socket(entry: PathBuf, namespace: u64) -> Option<PathBuf> {
    let name = entry.file_name()?.to_str()?.strip_prefix("binderd@")?;
    let elsewhere = name
        .rsplit_once('@')
        .is_some_and(|(_, inode)| inode.parse::<u64>().is_ok_and(|inode| inode != namespace));
    if elsewhere {
        return None;
    }
    let is_socket = entry.extension() == Some(OsStr::new("sock"));
    Some(if is_socket { entry } else { entry.join("binderd.sock") })
}

fn remove_file(path: &Path) -> anyhow::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
}

fn wait_until_unmounted(folder: &Path) -> anyhow::Result<()> {
    let start = Instant::now();
    while bus::is_bus(folder) {
        ensure!(
            start.elapsed() < PATIENCE,
            "{}: still mounted {} s after its daemon was stopped; unmount it",
            folder.display(),
            PATIENCE.as_secs()
        );
        std::thread::sleep(TICK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_this_mount_namespace_are_candidates() {
        let candidate = |name: &str| socket(Path::new(SOCKETS).join(name), 7);
        let found = |name: &str| Some(Path::new(SOCKETS).join(name));
        assert_eq!(candidate("binderd@ci.sock"), found("binderd@ci.sock"));
        assert_eq!(candidate("binderd@run-bus-ci"), found("binderd@run-bus-ci/binderd.sock"));
        assert_eq!(candidate("binderd@run-bus-ci@7"), found("binderd@run-bus-ci@7/binderd.sock"));
        for name in ["binderd@run-bus-ci@8", "binderd.sock", "oomd.sock", "bus"] {
            assert_eq!(candidate(name), None, "{name}");
        }
    }
}
