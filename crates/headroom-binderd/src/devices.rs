//! What an operator sets for the devices: their owner, on the command line and in mount(8) options,
//! and links in /dev, for clients that do not know the mount point.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use binder_fuse::DeviceOwner;
use headroom_daemon::permissions;
use owners::Uid;

/// Parses `USER[:GROUP]`.
pub fn parse_owner(text: &str) -> anyhow::Result<DeviceOwner> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    Ok(DeviceOwner { uid: parse_user(user)?, gid: group.map(parse_group).transpose()? })
}

/// The uid of a user, by name or number.
pub fn parse_user(user: &str) -> anyhow::Result<Uid> {
    ensure!(!user.is_empty(), "no user; give a user name or a uid");
    match permissions::uid_of(user).context("cannot read the user database")? {
        Some(uid) => Ok(uid),
        None => parse_id(user).map(Uid).context("no such user; create it, or give a uid"),
    }
}

/// The gid of a group, by name or number.
pub fn parse_group(group: &str) -> anyhow::Result<u32> {
    ensure!(!group.is_empty(), "no group; give a group name or a gid");
    match permissions::gid_of(group).context("cannot read the group database")? {
        Some(gid) => Ok(gid),
        None => parse_id(group).context("no such group; create it, or give a gid"),
    }
}

/// `u32::MAX` means "unchanged" to chown(2).
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&id| id != u32::MAX)
}

/// The links that were created; dropping it removes them.
pub struct Links(Vec<(PathBuf, PathBuf)>);

impl Links {
    /// Makes `/dev/NAME` a link to each device. Existing files are kept, with a warning.
    pub fn make(mount: &Path, devices: &[String]) -> Self {
        Self::make_in(Path::new("/dev"), mount, devices)
    }

    fn make_in(dev: &Path, mount: &Path, devices: &[String]) -> Self {
        let mut made = Vec::new();
        for device in devices {
            let (link, target) = (dev.join(device), mount.join(device));
            let is_ours = || std::fs::read_link(&link).is_ok_and(|old| old == target);
            match symlink(&target, &link) {
                Ok(()) => made.push((link, target)),
                // A link of a daemon that could not clean up.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && is_ours() => {
                    made.push((link, target));
                }
                Err(error) => {
                    tracing::warn!("cannot link {}: {error}; leaving it alone", link.display());
                }
            }
        }
        Self(made)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for (link, target) in &self.0 {
            if std::fs::read_link(link).is_ok_and(|now| now == *target) {
                let _ = std::fs::remove_file(link);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_have_names_or_numbers() {
        assert_eq!(parse_owner("root").unwrap(), DeviceOwner { uid: Uid::ROOT, gid: None });
        let owner = DeviceOwner { uid: Uid(4_000_000_000), gid: Some(0) };
        assert_eq!(parse_owner("4000000000:root").unwrap(), owner);
        for (owner, expected) in [
            ("no such", "no such user"),
            ("4294967295", "no such user"),
            ("0:no such", "no such group"),
            (":0", "no user"),
            ("0:", "no group"),
        ] {
            let error = parse_owner(owner).unwrap_err().to_string();
            assert!(error.contains(expected), "{owner}: {error}");
        }
    }

    #[test]
    fn links_are_made_where_nothing_is_and_removed_again() {
        let dev = tempfile::tempdir().unwrap();
        let (mount, names) =
            (Path::new("/mnt/bus"), ["binder", "taken", "stale"].map(str::to_owned));
        std::fs::write(dev.path().join("taken"), "existing").unwrap();
        symlink("/mnt/bus/stale", dev.path().join("stale")).unwrap();
        let links = Links::make_in(dev.path(), mount, &names);
        assert_eq!(std::fs::read_link(dev.path().join("binder")).unwrap(), mount.join("binder"));
        assert_eq!(std::fs::read_to_string(dev.path().join("taken")).unwrap(), "existing");
        drop(links);
        let left: Vec<_> = std::fs::read_dir(dev.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
