//! The installed program that a process runs.
//!
//! A user can mount any file over any path in a mount namespace of its own. So the path of the
//! running file must lead to that file outside of the process's namespace, too.
//!
//! A file that was replaced, as by an upgrade of its package, has no path any more. It counts as
//! the program of its former path if only root could put it there: it belongs to root, no other
//! user can write it, and it was in the folder of the filesystem that is at this path outside. The
//! kernel's lists of mounts show the latter, and no process can change what they say.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headroom_linux::mountinfo::{self, Device};
use memory_watch::process::Proc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags};

const INIT: u32 = 1;
/// The kernel appends it to the path of a file that was removed.
const DELETED: &[u8] = b" (deleted)";
/// Permission of a group or of all others to write.
const OTHERS_WRITE: u16 = 0o022;

/// The path of the program that a process runs, if it was installed there. May block.
pub(super) fn program_of(proc: &Proc, pid: u32) -> Option<String> {
    let exe = proc.root().join(pid.to_string()).join("exe");
    // One handle for all: the process may execute another program meanwhile.
    let file = rustix::fs::open(exe, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let path = if is_at(&file, &path) { path } else { replaced_path(proc, pid, &file, &path)? };
    Some(path.to_string_lossy().into_owned())
}

/// Whether the file is at this path for init or for the daemon (the service's namespace hides some
/// directories).
fn is_at(file: &OwnedFd, path: &Path) -> bool {
    let at = |path: &Path| std::fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    let running = rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    running.is_some() && (running == at(&for_init(path)) || running == at(path))
}

fn for_init(path: &Path) -> PathBuf {
    Path::new("/proc/1/root").join(path.strip_prefix("/").unwrap_or(path))
}

/// The former path of a file that was replaced, whose path the kernel shows as `shown`.
fn replaced_path(proc: &Proc, pid: u32, file: &OwnedFd, shown: &Path) -> Option<PathBuf> {
    let path = shown.as_os_str().as_bytes().strip_suffix(DELETED)?;
    let path = Path::new(OsStr::from_bytes(path));
    let running = stat(file, Path::new(""))?;
    if running.stx_uid != 0 || running.stx_mode & OTHERS_WRITE != 0 {
        return None;
    }
    // A process that has changed its root does not list the mount that it was started from.
    let place_of = |mount, lists: &[u32]| {
        lists.iter().find_map(|list| place(&mounts(proc, *list)?, mount, path))
    };
    let was_at = place_of(running.stx_mnt_id, &[INIT, pid])?;
    let is_place = |folder: &Path, list| {
        let folder = stat(CWD, folder);
        folder.is_some_and(|it| place_of(it.stx_mnt_id, &[list]).as_ref() == Some(&was_at))
    };
    let folder = path.parent()?;
    let is_installed = is_place(&for_init(folder), INIT) || is_place(folder, std::process::id());
    is_installed.then(|| path.to_owned())
}

fn mounts(proc: &Proc, pid: u32) -> Option<Vec<u8>> {
    std::fs::read(proc.root().join(pid.to_string()).join("mountinfo")).ok()
}

/// `None`: the kernel does not report the mount (before Linux 5.8), or the path is gone.
fn stat(folder: impl AsFd, path: &Path) -> Option<Statx> {
    let wanted = StatxFlags::UID | StatxFlags::MODE | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(folder, path, AtFlags::EMPTY_PATH, wanted).ok()?;
    (stat.stx_mask & wanted.bits() == wanted.bits()).then_some(stat)
}

/// The place in its filesystem of a path that is in the mount with this number.
fn place(mounts: &[u8], mount: u64, path: &Path) -> Option<(Device, PathBuf)> {
    let mount = mountinfo::entries(mounts).find(|entry| entry.id == mount)?;
    Some((mount.device, mount.root.join(path.strip_prefix(&mount.mount_point).ok()?)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use rustix::fs::{Gid, Uid};

    use super::*;

    /// A folder with two copies of a program that sleeps.
    struct Folder {
        dir: tempfile::TempDir,
    }

    impl Folder {
        fn new() -> Self {
            let folder = Self { dir: tempfile::tempdir().unwrap() };
            for name in ["protected", "other"] {
                folder.install(name);
            }
            folder
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// Copied by another process: a child that another test forks meanwhile would hold the
        /// copy open for writing, and then it could not be executed (ETXTBSY).
        fn install(&self, name: &str) {
            let new = self.path("new");
            assert!(Command::new("cp").arg("/bin/sleep").arg(&new).status().unwrap().success());
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::rename(&new, self.path(name)).unwrap();
        }
    }

    struct Running(Child);

    impl Running {
        /// Starts a program, and waits until its path is shown as this one.
        fn start(command: &mut Command, shown: &Path) -> Self {
            let running = Self(command.spawn().unwrap());
            let link = format!("/proc/{}/exe", running.0.id());
            let end = Instant::now() + Duration::from_secs(60);
            while std::fs::read_link(&link).is_ok_and(|path| path != shown) {
                assert!(Instant::now() < end, "{:?}", std::fs::read_link(&link));
                std::thread::sleep(Duration::from_millis(5));
            }
            running
        }

        fn program(&self) -> Option<PathBuf> {
            program_of(&Proc::default(), self.0.id()).map(PathBuf::from)
        }

        fn shows_a_deleted_file(&self) {
            let shown = std::fs::read_link(format!("/proc/{}/exe", self.0.id())).unwrap();
            assert!(shown.as_os_str().as_bytes().ends_with(DELETED), "{shown:?}");
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn a_program_that_was_replaced_keeps_its_path() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = Folder::new();
        let path = folder.path("protected");
        let running = Running::start(Command::new(&path).arg("600"), &path);
        // A service has mounts of its own, as by `ProtectSystem`, and may change its root.
        let script = "mount --bind -o ro \"$1\" \"$1\" && exec \"$1/protected\" 600";
        let mut service = Command::new("unshare");
        service.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.dir.path());
        let service = Running::start(&mut service, &path);
        assert_eq!(
            (running.program(), service.program()),
            (Some(path.clone()), Some(path.clone()))
        );
        folder.install("protected");
        running.shows_a_deleted_file();
        service.shows_a_deleted_file();
        assert_eq!(
            (running.program(), service.program()),
            (Some(path.clone()), Some(path.clone()))
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(running.program(), Some(path));
    }

    #[test]
    fn a_replaced_program_that_is_mounted_over_another_ones_path_is_not_that_one() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = Folder::new();
        let (path, other) = (folder.path("protected"), folder.path("other"));
        let script = "mount --bind \"$1\" \"$2\" && exec \"$2\" 600";
        for namespaces in [&["--mount"][..], &["--user", "--map-root-user", "--mount"]] {
            let mut command = Command::new("unshare");
            command.args(namespaces).args(["sh", "-c", script, "sh"]).args([&other, &path]);
            let running = Running::start(&mut command, &path);
            folder.install("other");
            running.shows_a_deleted_file();
            assert_eq!(running.program(), None, "{namespaces:?}");
        }
    }

    #[test]
    fn a_replaced_program_that_another_user_could_write_has_no_path() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = Folder::new();
        let path = folder.path("protected");
        let (user, group) = (Some(Uid::from_raw(62_980)), None::<Gid>);
        let running = Running::start(Command::new(&path).arg("600"), &path);
        let file = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(running.program(), Some(path));
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o775)).unwrap();
        assert_eq!(running.program(), None, "a group can write it");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        rustix::fs::chown(&file, user, group).unwrap();
        assert_eq!(running.program(), None, "it belongs to a user");
    }
}
