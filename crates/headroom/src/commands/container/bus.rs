//! The bus of a container: one that is served, or a new one.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use headroom_linux::folders;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::helpers::programs;

/// Mount points of named buses, as in `headroom-binderd@.service`.
const BUSES: &str = "/run/headroom/bus";
/// Exists if systemd runs, see sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// Entries of a bus that are no devices. The first is in each bus.
const OTHER_ENTRIES: [&str; 3] = ["binder-control", "features", "binder_logs"];

/// A bus that is served.
pub struct Bus {
    /// Its mount point.
    pub folder: PathBuf,
    /// Names of its devices.
    pub devices: Vec<String>,
}

impl Bus {
    /// The bus with this name. If it does not exist, systemd starts its daemon; without systemd the
    /// mount helper does.
    pub fn find_or_start(name: &str) -> anyhow::Result<Self> {
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
pub fn folder(name: &str) -> PathBuf {
    Path::new(BUSES).join(name)
}

/// Unmounts what a daemon that was killed has left.
pub fn unmount_dead(folder: &Path) {
    if rustix::fs::statfs(folder).err() == Some(Errno::NOTCONN) {
        let _ = unmount(folder, UnmountFlags::DETACH);
    }
}

/// Whether a bus is mounted on the folder and served.
pub fn is_bus(folder: &Path) -> bool {
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
pub fn has_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// The command that starts or stops the unit of a bus.
pub fn systemctl(verb: &str, name: &str) -> Command {
    let mut systemctl = Command::new("systemctl");
    systemctl.arg(verb).arg(format!("headroom-binderd@{name}.service"));
    systemctl
}

/// Runs a command; a failure is an error.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// Whether an entry of a bus is a device.
pub fn is_device(name: &str) -> bool {
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
}
