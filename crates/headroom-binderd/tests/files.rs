//! The directory tree, as programs without knowledge of binder see it.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use binder_client::binderfs::add_device;
use binder_client::{Client, ClientError, Errno, Options};
use common::{Daemon, cannot_mount, is_mounted, open};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn errno_of<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn the_mount_holds_the_devices_the_control_file_and_the_features() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let mount = daemon.mount();
    assert!(is_mounted(&mount));
    let expected = ["binder", "binder-control", "features", "hwbinder", "vndbinder"];
    assert_eq!(names(&mount), expected);
    for feature in names(&mount.join("features")) {
        assert_eq!(fs::read_to_string(mount.join("features").join(&feature)).unwrap(), "1\n");
    }
    let mode = |name: &str| fs::metadata(mount.join(name)).unwrap().mode() & 0o7777;
    assert_eq!(mode("binder"), 0o666, "every user's clients get in");
    assert_eq!(mode("binder-control"), 0o600);
    let statfs = rustix::fs::statfs(&mount).unwrap();
    assert_eq!(statfs.f_namelen, 255);
}

#[test]
fn other_device_names_can_be_chosen() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start_with(&["--devices", "anbox-binder"]);
    assert_eq!(names(&daemon.mount()), ["anbox-binder", "binder-control", "features"]);
}

#[test]
fn devices_are_added_by_control_and_removed_by_unlink() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let (mount, control) = (daemon.mount(), daemon.mount().join("binder-control"));
    add_device(&control, b"extra").unwrap();
    let extra = mount.join("extra");
    assert_eq!(fs::metadata(&extra).unwrap().mode() & 0o777, 0o600);
    assert_eq!(open(&extra).version(), Ok(8));

    let refused = |name: &[u8]| add_device(&control, name).unwrap_err().errno().unwrap();
    assert_eq!(refused(b"extra"), Errno::EXIST);
    assert_eq!(refused(b"binder-control"), Errno::EXIST);
    assert_eq!(refused(b""), Errno::ACCESS);
    assert_eq!(refused(b"a/b"), Errno::ACCESS);
    assert_eq!(refused(b".."), Errno::ACCESS);
    assert_eq!(refused(b"\xff\xfe"), Errno::INVAL);
    add_device(&control, &[b'x'; 256]).unwrap();
    assert_eq!(refused(&[b'x'; 255]), Errno::EXIST, "as the kernel takes its first 255 bytes");

    let still_open = open(&extra);
    fs::remove_file(&extra).unwrap();
    assert!(!extra.exists());
    assert_eq!(still_open.version(), Ok(8), "who has it open goes on");
    add_device(&control, b"extra").unwrap();
    assert!(extra.exists(), "the name is free again");

    assert_eq!(errno_of(fs::remove_file(&control)), libc::EPERM);
    assert_eq!(errno_of(fs::remove_file(mount.join("features/extended_error"))), libc::EPERM);
}

#[test]
fn the_tree_is_otherwise_fixed() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let mount = daemon.mount();
    assert_eq!(errno_of(fs::create_dir(mount.join("dir"))), libc::EPERM);
    assert_eq!(errno_of(fs::write(mount.join("file"), "x")), libc::EPERM);
    let below = mount.join("features/binder");
    assert_eq!(errno_of(fs::rename(mount.join("binder"), below)), libc::EPERM);
    assert_eq!(errno_of(fs::metadata(mount.join("nothing"))), libc::ENOENT);
    assert_eq!(errno_of(fs::metadata(mount.join("binder/below"))), libc::ENOTDIR);
}

#[test]
fn mode_and_owner_belong_to_the_device() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let binder = daemon.binder();
    fs::set_permissions(&binder, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&binder, Some(7), Some(8)).unwrap();
    let metadata = fs::metadata(&binder).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o640, 7, 8));
    assert_eq!(fs::metadata(daemon.mount().join("hwbinder")).unwrap().mode() & 0o7777, 0o666);
}

#[test]
fn a_device_is_not_a_file_to_read_write_or_truncate() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start_with(&["--mapping", "passthrough"]);
    use std::io::{Read, Write};
    let mut file = fs::OpenOptions::new().read(true).write(true).open(daemon.binder()).unwrap();
    assert_eq!(errno_of(file.read(&mut [0; 8])), libc::EINVAL);
    assert_eq!(errno_of(file.write(b"x")), libc::EINVAL);
    assert_eq!(errno_of(file.set_len(0)), libc::EINVAL);
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);
    drop(file);
    let daemon = Daemon::start_with(&["--mapping", "notify-store"]);
    let mut file = fs::OpenOptions::new().read(true).write(true).open(daemon.binder()).unwrap();
    assert_eq!(errno_of(file.write(b"x")), libc::EINVAL);
}

#[test]
fn every_open_is_a_file_of_its_own() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let inode = || fs::File::open(daemon.binder()).unwrap().metadata().unwrap().ino();
    let clients: Vec<_> = (0..32).map(|_| open(daemon.binder())).collect();
    assert_ne!(inode(), inode());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = daemon.binder();
    let mine = |line: &&str| line.contains(path.to_str().unwrap());
    let mut inodes: Vec<_> = maps
        .lines()
        .filter(mine)
        .map(|line| line.split_ascii_whitespace().nth(4).unwrap().to_owned())
        .collect();
    inodes.sort();
    inodes.dedup();
    assert_eq!(inodes.len(), clients.len());
}

#[test]
fn an_open_file_cannot_be_opened_again_through_the_back_door() {
    if cannot_mount() {
        return;
    }
    use std::os::fd::{AsFd, AsRawFd};
    let daemon = Daemon::start();
    let client = open(daemon.binder());
    let door = format!("/proc/self/fd/{}", client.as_fd().as_raw_fd());
    let refused = Client::open(&door, &Options::default()).err().unwrap();
    assert!(matches!(refused, ClientError::Open { errno: Errno::BUSY, .. }), "{refused}");
    assert_eq!(client.version(), Ok(8));
}

#[test]
fn unknown_ioctls_are_invalid_and_files_that_are_no_devices_have_none() {
    if cannot_mount() {
        return;
    }
    use std::os::fd::AsRawFd;
    let daemon = Daemon::start();
    let ioctl = |name: &str, request: u32| {
        let file = fs::File::open(daemon.mount().join(name)).unwrap();
        let mut argument = [0_u8; 4096];
        // SAFETY: no request below encodes more than the argument's size.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, &mut argument) };
        assert_eq!(result, -1);
        std::io::Error::last_os_error().raw_os_error().unwrap()
    };
    const BINDER_SET_IDLE_TIMEOUT: u32 = 0x4008_6203;
    const BINDER_VERSION: u32 = 0xc004_6209;
    assert_eq!(ioctl("binder", BINDER_SET_IDLE_TIMEOUT), libc::EINVAL);
    assert_eq!(ioctl("binder", 0xc800_62ff), libc::EINVAL, "2 KiB in and out");
    assert_eq!(ioctl("binder-control", BINDER_VERSION), libc::EINVAL);
    assert_eq!(ioctl("features", BINDER_VERSION), libc::ENOTTY);
    assert_eq!(ioctl("features/extended_error", BINDER_VERSION), libc::ENOTTY);
}
