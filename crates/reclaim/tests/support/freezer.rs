//! A control group with a freezer, version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

/// A frozen control group; thawed and removed on drop.
pub struct Freezer {
    folder: PathBuf,
    version: Version,
}

/// Version of the cgroup hierarchy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

impl Freezer {
    /// Creates an empty group under a mount; `None` if there is no mount, or no permission.
    pub fn create(version: Version) -> Option<Self> {
        let unified = version == Version::V2;
        let kind = if unified { "cgroup2" } else { "cgroup" };
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let fits =
                fields[2] == kind && (unified || fields[3].split(',').any(|o| o == "freezer"));
            fits.then(|| Path::new(fields[1]).to_owned())
        })?;
        let folder = mount.join(format!("reclaim-test-{}-{unified}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(Self { folder, version })
    }

    pub fn freeze(&self, pid: u32) {
        self.write("cgroup.procs", &pid.to_string());
        self.write(self.switch(), if self.version == Version::V2 { "1" } else { "FROZEN" });
        super::until("frozen", || {
            let read = |file| fs::read_to_string(self.folder.join(file)).unwrap();
            if self.version == Version::V2 {
                read("cgroup.events").contains("frozen 1")
            } else {
                read("freezer.state") == "FROZEN\n"
            }
        });
    }

    /// Version 1 only.
    pub fn is_frozen(&self) -> bool {
        fs::read_to_string(self.folder.join("freezer.state")).unwrap() == "FROZEN\n"
    }

    /// Thaws the group on drop. To be created after the processes, so that a failing test does not
    /// wait for frozen processes.
    pub fn thaw_on_drop(&self) -> impl Drop {
        struct Thaws(PathBuf, &'static str);
        impl Drop for Thaws {
            fn drop(&mut self) {
                let _ = fs::write(&self.0, self.1);
            }
        }
        let thawed = if self.version == Version::V2 { "0" } else { "THAWED" };
        Thaws(self.folder.join(self.switch()), thawed)
    }

    fn switch(&self) -> &'static str {
        if self.version == Version::V2 { "cgroup.freeze" } else { "freezer.state" }
    }

    fn write(&self, file: &str, value: &str) {
        fs::write(self.folder.join(file), value).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(
            self.folder.join(self.switch()),
            if self.version == Version::V2 { "0" } else { "THAWED" },
        );
        super::until("the group empty", || fs::remove_dir(&self.folder).is_ok());
    }
}
