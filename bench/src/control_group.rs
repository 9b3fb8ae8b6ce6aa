//! Control groups: for a victim, throttled or frozen; with a limit of the kernel's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// Five percent of one CPU, in microseconds of a period.
const QUOTA: (u32, u32) = (5_000, 100_000);
/// How long a group may take to freeze, or to be left by its dead.
const PATIENCE: Duration = Duration::from_secs(20);

/// The folder of a group of our own; removed on drop, when its members are dead.
struct Folder(PathBuf);

impl Folder {
    /// Makes an empty group.
    fn create(parent: &Path, name: &str) -> Result<Self> {
        let folder = parent.join(format!("headroom-bench-{}-{name}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.0.join(file);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let start = Instant::now();
        // Who has just died is a member for a moment more.
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What the group does to its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// They get five percent of one CPU.
    Throttled,
    /// They do not run at all.
    Frozen,
}

/// A group of our own, of version 1 or 2. Opened and removed on drop, when its members are dead.
pub struct ControlGroup {
    folder: Folder,
    rule: Rule,
    /// Version 2.
    unified: bool,
}

impl ControlGroup {
    /// Makes an empty group that does not do anything yet.
    pub fn create(rule: Rule) -> Result<Self> {
        let controller = if rule == Rule::Throttled { "cpu" } else { "freezer" };
        let first = Path::new(ROOT).join(controller);
        let unified = !first.is_dir();
        let parent = if unified { PathBuf::from(ROOT) } else { first };
        if unified && rule == Rule::Throttled {
            // Refused where it is so already, or where the quota below then fails with a better
            // word.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+cpu");
        }
        let group = Self { folder: Folder::create(&parent, controller)?, rule, unified };
        if rule == Rule::Throttled {
            let (quota, period) = QUOTA;
            if unified {
                group.folder.write("cpu.max", &format!("{quota} {period}"))?;
            } else {
                group.folder.write("cpu.cfs_period_us", &period.to_string())?;
                group.folder.write("cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        Ok(group)
    }

    /// Takes a process in, and freezes it where that is the rule.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.folder.write("cgroup.procs", &pid.to_string())?;
        if self.rule == Rule::Throttled {
            return Ok(());
        }
        if self.unified {
            self.folder.write("cgroup.freeze", "1")?;
        } else {
            self.folder.write("freezer.state", "FROZEN")?;
        }
        let start = Instant::now();
        while !self.is_frozen() {
            let folder = self.folder.0.display();
            anyhow::ensure!(start.elapsed() < PATIENCE, "{folder} does not freeze");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Where a member of a version 1 group moves to the group above.
    pub fn parent(&self) -> Option<PathBuf> {
        let parent = self.folder.0.parent().filter(|_| !self.unified)?;
        Some(parent.join("cgroup.procs"))
    }

    /// Its members run again as they like.
    pub fn open(&self) {
        let (file, value) = match (self.rule, self.unified) {
            (Rule::Throttled, true) => ("cpu.max", "max"),
            (Rule::Throttled, false) => ("cpu.cfs_quota_us", "-1"),
            (Rule::Frozen, true) => ("cgroup.freeze", "0"),
            (Rule::Frozen, false) => ("freezer.state", "THAWED"),
        };
        let _ = self.folder.write(file, value);
    }

    fn is_frozen(&self) -> bool {
        let read = |file| self.folder.read(file).unwrap_or_default();
        if self.unified {
            read("cgroup.events").lines().any(|line| line == "frozen 1")
        } else {
            read("freezer.state").trim_end() == "FROZEN"
        }
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        self.open();
    }
}

/// A group of our own that may have so much memory, and kills where it has more. Removed on drop,
/// when its members are dead.
pub struct Memory {
    folder: Folder,
    unified: bool,
}

impl Memory {
    /// Makes an empty group; none of its memory will be swapped.
    pub fn create(limit_bytes: u64) -> Result<Self> {
        let first = Path::new(ROOT).join("memory");
        let unified = !first.is_dir();
        let parent = if unified { PathBuf::from(ROOT) } else { first };
        if unified {
            // Refused where it is so already, or where the limit below then fails with a better
            // word.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let group = Self { folder: Folder::create(&parent, "memory")?, unified };
        let (limit, swap) = if unified {
            ("memory.max", "memory.swap.max")
        } else {
            ("memory.limit_in_bytes", "memory.swappiness")
        };
        group.folder.write(limit, &limit_bytes.to_string())?;
        // Without swap there is no such file.
        let _ = group.folder.write(swap, "0");
        Ok(group)
    }

    /// Takes a process in; what it has already stays charged where it was.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.folder.write("cgroup.procs", &pid.to_string())
    }

    /// The most that was charged at a time, bytes.
    pub fn most(&self) -> Result<u64> {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        let text = self.folder.read(file)?;
        text.trim_end().parse().with_context(|| format!("{}/{file}", self.folder.0.display()))
    }
}
