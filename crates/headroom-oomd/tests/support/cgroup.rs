//! Control groups of version 2, in the machine's own hierarchy.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memory_watch::cgroups::Cgroups;

use super::PATIENCE;
use super::hog::Hog;

/// One of our own; removed on drop, when its processes are gone.
pub struct Cgroup {
    folder: PathBuf,
    /// From the root of the hierarchy.
    pub path: String,
}

impl Cgroup {
    /// `None`: there is no hierarchy of version 2 in which we may make one.
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

    /// One below it.
    pub fn below(&self, name: &str) -> Self {
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        Self { folder, path: format!("{}/{name}", self.path) }
    }

    /// Moves a hog here; what it has already stays charged where it was.
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
