//! Links in /dev, for clients that do not know the mount point.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

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
