//! A private /dev: everything of the old one, and the bus.

use std::ffi::OsStr;
use std::fs::{DirEntry, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount, mount_bind_recursive};

use crate::helpers::output;

/// Where the bus is mounted.
pub const BUS: &str = "/dev/binderfs";
/// `BUS`, for system calls.
pub const BUS_C: &std::ffi::CStr = c"/dev/binderfs";
/// Control socket of the bus's daemon.
pub const SOCKET: &str = "/dev/headroom/binderd.sock";
/// The folder of that socket.
const OURS: &str = "headroom";

/// Covers /dev with a tmpfs that contains everything that /dev had (devices, folders and the mounts
/// in them as bind mounts, links as they are), an empty [`BUS`], and a link to each device on it.
pub fn build(devices: &[String]) -> anyhow::Result<()> {
    let entries: Vec<DirEntry> =
        std::fs::read_dir("/dev").and_then(Iterator::collect).context("cannot list /dev")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let old = rustix::fs::open("/dev", flags, Mode::empty()).context("cannot open /dev")?;
    mount("devices", "/dev", "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=755,size=1m")
        .context("cannot mount a private /dev")?;
    let is_ours = |name: &OsStr| {
        name == OURS || name == "binderfs" || devices.iter().any(|device| name == device.as_str())
    };
    for entry in entries.iter().filter(|entry| !is_ours(&entry.file_name())) {
        // An entry that cannot be moved is missing for the command; the others are there.
        if let Err(error) = adopt(entry, old.as_raw_fd()) {
            output::warn(format_args!("{} is left out: {error}", entry.path().display()));
        }
    }
    for folder in [BUS, "/dev/headroom"] {
        std::fs::create_dir(folder).with_context(|| format!("cannot make {folder}"))?;
    }
    for device in devices {
        let link = Path::new("/dev").join(device);
        symlink(Path::new("binderfs").join(device), &link)
            .with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

/// Makes an entry of the old /dev appear under the same name in the new one.
fn adopt(entry: &DirEntry, old: i32) -> std::io::Result<()> {
    let kind = entry.file_type()?;
    let source = Path::new("/proc/self/fd").join(old.to_string()).join(entry.file_name());
    let target = entry.path();
    if kind.is_symlink() {
        return symlink(std::fs::read_link(source)?, target);
    }
    if kind.is_dir() {
        std::fs::create_dir(&target)?;
    } else {
        File::create_new(&target)?;
    }
    Ok(mount_bind_recursive(source, target)?)
}
