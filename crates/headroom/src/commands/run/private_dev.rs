//! A private /dev: everything of the old one, and the bus.

use std::ffi::OsStr;
use std::fs::{DirEntry, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind_recursive, move_mount, open_tree,
};

use crate::helpers::output;

/// Where the bus is mounted.
pub const BUS: &str = "/dev/binderfs";
/// `BUS`, for system calls.
pub const BUS_C: &std::ffi::CStr = c"/dev/binderfs";
/// Control socket of the bus's daemon.
pub const SOCKET: &str = "/dev/headroom/binderd.sock";
/// The folder of that socket, and of the old /dev.
const OURS: &str = "headroom";
/// The old /dev as a whole. The kernel looks for the folder `pts` beside the opened `ptmx`,
/// within its mount, which a mount of that file alone does not have.
const OLD: &str = "headroom/outside";
const PTMX: &str = "ptmx";

/// Covers /dev with a tmpfs that contains everything that /dev had (devices, folders and the mounts
/// in them as bind mounts, links as they are), an empty [`BUS`], and a link to each device on it.
pub fn build(devices: &[String]) -> anyhow::Result<()> {
    let entries: Vec<DirEntry> =
        std::fs::read_dir("/dev").and_then(Iterator::collect).context("cannot list /dev")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let old = rustix::fs::open("/dev", flags, Mode::empty()).context("cannot open /dev")?;
    // Before the other is mounted over it, which would be a part of the copy.
    let copy = open_tree(
        CWD,
        "/dev",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    );
    mount("devices", "/dev", "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=755,size=1m")
        .context("cannot mount a private /dev")?;
    let outside = Path::new("/dev").join(OLD);
    for folder in [Path::new(BUS), &outside] {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if let Err(error) = copy.and_then(|copy| move_mount(copy, "", CWD, &outside, flags)) {
        output::warn(format_args!("pseudo-terminals cannot be opened: {error}"));
    }
    let is_ours = |name: &OsStr| {
        name == OURS || name == "binderfs" || devices.iter().any(|device| name == device.as_str())
    };
    let old = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
    for entry in entries.iter().filter(|entry| !is_ours(&entry.file_name())) {
        // An entry that cannot be moved is missing for the command; the others are there.
        if let Err(error) = adopt(entry, &old) {
            output::warn(format_args!("{} is left out: {error}", entry.path().display()));
        }
    }
    for device in devices {
        let link = Path::new("/dev").join(device);
        symlink(Path::new("binderfs").join(device), &link)
            .with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

/// Makes an entry of the old /dev appear under the same name in the new one.
fn adopt(entry: &DirEntry, old: &Path) -> std::io::Result<()> {
    let kind = entry.file_type()?;
    let source = old.join(entry.file_name());
    let target = entry.path();
    if entry.file_name() == PTMX && kind.is_char_device() {
        return symlink(Path::new(OLD).join(PTMX), target);
    }
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
