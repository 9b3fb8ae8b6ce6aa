//! `headroom container`: a bus for containers, which is found or started, described to their
//! runtimes, and removed.

mod cdi;
mod link;
mod waydroid;

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use control::binderd::{Process, Reply, Request};
use headroom_linux::folders;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::arguments::{ContainerCommand, Globals};
use crate::helpers::client::{binderd_status, call_binderd, unexpected};
use crate::helpers::output::{self, printable};
use crate::helpers::programs;

/// Mount points of named buses, as in `headroom-binderd@.service`.
const BUSES: &str = "/run/headroom/bus";
/// Exists if systemd runs, see sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// Entries of a bus that are no devices. The first is in each bus.
const OTHER_ENTRIES: [&str; 3] = ["binder-control", "features", "binder_logs"];
/// Folder of the control sockets.
const SOCKETS: &str = "/run/headroom";
/// Limit for a daemon to unmount its bus after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which the bus is checked.
const TICK: Duration = Duration::from_millis(20);
/// Maximum of processes that an error names.
const MAX_NAMED: usize = 5;

/// Runs the command.
pub fn container(globals: &Globals, command: &ContainerCommand) -> anyhow::Result<()> {
    match command {
        ContainerCommand::Cdi { name, spec_dir } => cdi::cdi(globals, name, spec_dir),
        ContainerCommand::Remove { name, spec_dir, force } => {
            let clients = if *force { Clients::Disconnect } else { Clients::Keep };
            remove(globals, name, spec_dir, clients)
        }
        ContainerCommand::Waydroid { name, config } => waydroid::waydroid(globals, name, config),
        ContainerCommand::Link { devices } => match std::env::var_os(link::LXC_ROOT) {
            Some(root) => link::link_all(Path::new(&root)),
            None => link::link(std::io::stdin().lock(), devices),
        },
    }
}

/// A bus that is served.
struct Bus {
    /// Its mount point.
    folder: PathBuf,
    /// Names of its devices.
    devices: Vec<String>,
}

impl Bus {
    /// The bus with this name. If it does not exist, systemd starts its daemon; without systemd the
    /// mount helper does.
    fn find_or_start(name: &str) -> anyhow::Result<Self> {
        let folder = folder(name);
        if !is_bus(&folder) {
            start(name, &folder)?;
        }
        ensure!(is_bus(&folder), "{}: no bus is mounted", folder.display());
        let devices = devices(&folder)?;
        Ok(Self { folder, devices })
    }
}

/// The mount point of the bus with this name.
fn folder(name: &str) -> PathBuf {
    Path::new(BUSES).join(name)
}

/// Unmounts what a daemon that was killed has left.
fn unmount_dead(folder: &Path) {
    if rustix::fs::statfs(folder).err() == Some(Errno::NOTCONN) {
        let _ = unmount(folder, UnmountFlags::DETACH);
    }
}

/// Whether a bus is mounted on the folder and served.
fn is_bus(folder: &Path) -> bool {
    folder.join(OTHER_ENTRIES[0]).exists()
}

fn start(name: &str, folder: &Path) -> anyhow::Result<()> {
    let mut command = if has_systemd() {
        systemctl("start", name)
    } else {
        let is_root = rustix::process::geteuid().is_root();
        ensure!(is_root, "{}: only root can create this bus; use sudo", folder.display());
        unmount_dead(folder);
        folders::create_public(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let mut helper = programs::binderd()?;
        helper.arg0("mount.binder").arg(name).arg(folder);
        helper
    };
    run(&mut command).with_context(|| format!("{}: no bus", folder.display()))
}

/// Whether systemd runs.
fn has_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// The command that starts or stops the unit of a bus.
fn systemctl(verb: &str, name: &str) -> Command {
    let mut systemctl = Command::new("systemctl");
    systemctl.arg(verb).arg(format!("headroom-binderd@{name}.service"));
    systemctl
}

/// Runs a command; a failure is an error.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// Whether an entry of a bus is a device.
fn is_device(name: &str) -> bool {
    !OTHER_ENTRIES.contains(&name)
}

fn devices(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names
        .collect::<std::io::Result<Vec<String>>>()
        .with_context(|| format!("cannot read {}", folder.display()))?;
    names.retain(|name| is_device(name));
    names.sort();
    Ok(names)
}

/// Parses the name of a bus: it is part of a path, of a unit's name and of a CDI device name.
pub fn parse_name(name: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = name.as_bytes();
    if bytes.iter().copied().all(is_valid)
        && ends(bytes.first().copied())
        && ends(bytes.last().copied())
    {
        Ok(name.to_owned())
    } else {
        Err("use letters, digits, and '_' or '-' between them".into())
    }
}

/// Processes that have a device of the bus open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    /// The bus stays while there are any.
    Keep,
    /// They are disconnected: their calls fail.
    Disconnect,
}

/// Result of `container remove`: what was removed.
#[derive(Serialize)]
struct Removed {
    bus: Option<PathBuf>,
    specification: Option<PathBuf>,
}

/// Runs `headroom container remove`: ends a bus and removes its CDI file.
fn remove(globals: &Globals, name: &str, spec_dir: &Path, clients: Clients) -> anyhow::Result<()> {
    let folder = folder(name);
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "{}: only root can remove this bus; use sudo", folder.display());
    let served = is_bus(&folder);
    let daemon = if served { Some(BusDaemon::of(&folder)?) } else { None };
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
    unmount_dead(&folder);
    waydroid::unlink_devices(Path::new("/dev"), &folder);
    let had_folder = std::fs::remove_dir(&folder).is_ok();
    ensure!(
        served || had_folder || had_file,
        "there is no bus {name}: neither {} nor {}",
        folder.display(),
        file.display()
    );
    let report = Removed {
        bus: (served || had_folder).then_some(folder),
        specification: had_file.then_some(file),
    };
    output::print_as(globals.format(), &report, || {
        let removed = report.bus.iter().chain(&report.specification);
        removed.map(|path| format!("{}: removed\n", path.display())).collect()
    })
}

/// The daemon of a bus.
struct BusDaemon {
    socket: PathBuf,
    pid: u32,
}

impl BusDaemon {
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
        if has_systemd() && self.socket == of_unit {
            return run(&mut systemctl("stop", name));
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
    while is_bus(folder) {
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
    fn names_of_buses_are_safe_in_paths_and_in_cdi_names() {
        for name in ["a", "ci-1", "Build_7"] {
            assert_eq!(parse_name(name).as_deref(), Ok(name));
        }
        for name in ["", "-a", "a-", "..", "a/b", "a b", "a=b", "a@b", "ü"] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn all_other_entries_are_devices() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_bus(folder.path()));
        for name in ["vndbinder", "binder", "binder-control", "features", "binder_logs", "mine"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert!(is_bus(folder.path()));
        assert_eq!(devices(folder.path()).unwrap(), ["binder", "mine", "vndbinder"]);
    }

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
