//! The folder of one mount's log and control socket, for the daemon of `mount.binder`.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::Context;
use headroom_linux::folders;

/// Folder of the daemons that root starts.
const SYSTEM: &str = "/run/headroom";

/// Users that the daemon serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All users.
    System,
    /// One user, without privileges.
    User,
}

/// A folder that exists.
#[derive(Debug)]
pub struct RunFolder {
    pub path: PathBuf,
    pub scope: Scope,
}

impl RunFolder {
    /// Creates the folder of a mount in `/run/headroom`, or where that is refused, in
    /// `$XDG_RUNTIME_DIR`, or else in the folder for temporary files.
    pub fn create(mount: &Path, namespace: Option<u64>) -> anyhow::Result<Self> {
        let name = name_of(mount, namespace);
        let path = Path::new(SYSTEM).join(&name);
        let system = folders::create_public(Path::new(SYSTEM));
        if system.and_then(|()| create_own(&path, 0o755)).is_ok() {
            return Ok(Self { path, scope: Scope::System });
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let temporary = std::env::temp_dir();
        let path = |parent: &Path| parent.join(format!("headroom-{name}"));
        let runtime = runtime.filter(|runtime| runtime.is_absolute()).map(|runtime| path(&runtime));
        let path = match runtime.filter(|path| create_own(path, 0o700).is_ok()) {
            Some(path) => path,
            None => {
                let path = path(&temporary);
                create_own(&path, 0o700)
                    .with_context(|| format!("{}: cannot make it", path.display()))?;
                path
            }
        };
        Ok(Self { path, scope: Scope::User })
    }

    pub fn socket(&self) -> PathBuf {
        self.path.join("binderd.sock")
    }

    /// Whether a daemon listens on the socket.
    pub fn has_daemon(&self) -> bool {
        // It is a socket of packets: a dead one refuses the connection, a live one its kind.
        match UnixStream::connect(self.socket()) {
            Ok(_) => true,
            Err(error) => error.raw_os_error() == Some(libc::EPROTOTYPE),
        }
    }

    pub fn log(&self) -> PathBuf {
        log_in(&self.path)
    }

    /// The log of a daemon that does not serve yet; that of an earlier one is kept until then.
    pub fn log_of_start(&self) -> PathBuf {
        self.path.join(format!("binderd.log.{}", std::process::id()))
    }
}

/// Removes the log and the folder, after the socket.
pub fn remove(folder: &Path) {
    let _ = std::fs::remove_file(log_in(folder));
    remove_if_empty(folder);
}

/// Removes the folder, unless another daemon uses it.
pub fn remove_if_empty(folder: &Path) {
    let _ = std::fs::remove_dir(folder);
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("binderd.log")
}

/// `binderd@mnt-bus` for `/mnt/bus`, as systemd names units of paths; the same path may be mounted
/// in several mount namespaces.
fn name_of(mount: &Path, namespace: Option<u64>) -> String {
    let path = mount.to_string_lossy();
    let name = path.trim_matches('/').replace('-', "\\x2d").replace('/', "-");
    match namespace {
        Some(inode) => format!("binderd@{name}@{inode}"),
        None => format!("binderd@{name}"),
    }
}

/// Creates a folder, or accepts one of this user that a killed daemon left.
fn create_own(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = path.symlink_metadata()?;
            let is_own = there.is_dir() && there.uid() == rustix::process::geteuid().as_raw();
            if is_own { Ok(()) } else { Err(error) }
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mount_of_each_namespace_has_a_name() {
        assert_eq!(name_of(Path::new("/mnt/a-b/bus"), None), "binderd@mnt-a\\x2db-bus");
        assert_eq!(name_of(Path::new("/mnt"), Some(7)), "binderd@mnt@7");
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, link) = (parent.path().join("folder"), parent.path().join("link"));
        create_own(&folder, 0o700).unwrap();
        create_own(&folder, 0o700).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert_eq!(create_own(&link, 0o700).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn the_folder_is_kept_while_another_daemon_uses_it() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder { path: parent.path().join("folder"), scope: Scope::User };
        create_own(&folder.path, 0o700).unwrap();
        std::fs::write(folder.socket(), "").unwrap();
        std::fs::write(folder.log(), "").unwrap();
        remove(&folder.path);
        assert!(folder.socket().exists() && !folder.log().exists());
        std::fs::remove_file(folder.socket()).unwrap();
        remove(&folder.path);
        assert!(!folder.path.exists());
    }
}
