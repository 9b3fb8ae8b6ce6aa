//! Control groups (v2) in the system's own hierarchy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use control::Uid;
use memory_watch::cgroups::Cgroups;

use super::PATIENCE;
use super::hog::Hog;

/// A cgroup for a test; removed on drop, when its processes have exited.
pub struct Cgroup {
    folder: PathBuf,
    /// Path from the root of the hierarchy.
    pub path: String,
}

impl Cgroup {
    /// Creates a cgroup. `None`: there is no cgroup v2 hierarchy that can be written to.
    pub fn make(test: &str) -> Option<Self> {
        let root = Cgroups::find(Path::new("/proc")).unwrap().map(|tree| tree.root().to_owned());
        let path = format!("/headroom-test-{}-{test}", std::process::id());
        let folder = root.map(|root| root.join(&path[1..]));
        let Some(folder) = folder.filter(|folder| std::fs::create_dir(folder).is_ok()) else {
            test_support::skip("no cgroup hierarchy of version 2 that can be written to");
            return None;
        };
        Some(Self { folder, path })
    }

    /// Creates the slice of a user, as systemd does. `None`: the memory controller is not
    /// available.
    pub fn user_slice(uid: Uid) -> Option<Self> {
        let root = Cgroups::find(Path::new("/proc")).unwrap().filter(Cgroups::has_memory);
        let root = root?.root().to_owned();
        let path = format!("/user.slice/user-{uid}.slice");
        let folder = root.join(&path[1..]);
        std::fs::create_dir_all(&folder).unwrap();
        for parent in [&root, &root.join("user.slice")] {
            std::fs::write(parent.join("cgroup.subtree_control"), "+memory").unwrap();
        }
        Some(Self { folder, path })
    }

    /// Writes this amount to a file, by a root process in this cgroup that has exited on return.
    pub fn write_file(&self, path: &Path, mib: u64) {
        let mut command = self.command(Path::new("head"));
        command.args(["-c", &(mib << 20).to_string(), "/dev/zero"]);
        let status = command.stdout(std::fs::File::create(path).unwrap()).status();
        assert!(status.unwrap().success());
    }

    /// A program that starts in this cgroup.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$1\" && shift && exec \"$@\"", "sh"]);
        command.arg(self.folder.join("cgroup.procs")).arg(program);
        command
    }

    /// Creates a child cgroup.
    pub fn below(&self, name: &str) -> Self {
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        Self { folder, path: format!("{}/{name}", self.path) }
    }

    /// Moves a hog to this cgroup. Memory that it has already stays charged to its old cgroup.
    pub fn take(&self, hog: &Hog) {
        std::fs::write(self.folder.join("cgroup.procs"), hog.pid().to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        while let Err(error) = std::fs::remove_dir(&self.folder) {
            if Instant::now() > end {
                eprintln!("{} stays: {error}", self.folder.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
