//! Control groups: for a victim, throttled or frozen; with a memory limit of the kernel's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// Five percent of one CPU, in microseconds of a period.
const QUOTA: (u32, u32) = (5_000, 100_000);
/// Limit for a group to freeze, or to become empty after its members were killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// The folder of a private group; removed on drop, after its members have exited.
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
        // A killed process stays a member for a moment.
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Effect of the group on its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// They get five percent of one CPU.
    Throttled,
    /// They do not run at all.
    Frozen,
}

/// A private group, of version 1 or 2. Opened and removed on drop, after its members have exited.
pub struct ControlGroup {
    folder: Folder,
    rule: Rule,
    /// Version 2.
    unified: bool,
}

impl ControlGroup {
    /// Makes an empty group that does not have an effect yet.
    pub fn create(rule: Rule) -> Result<Self> {
        let controller = if rule == Rule::Throttled { "cpu" } else { "freezer" };
        let first = Path::new(ROOT).join(controller);
        let unified = !first.is_dir();
        let parent = if unified { PathBuf::from(ROOT) } else { first };
        if unified && rule == Rule::Throttled {
            // Fails where the controller is enabled already. Any other failure shows below with a
            // better message, when the quota is set.
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

    /// Moves a process into the group, and freezes it if that is the rule.
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

    /// Removes the quota, or thaws the members.
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

/// A private group with a memory limit, at which the kernel kills. Removed on drop, after its
/// members have exited.
pub struct Memory {
    folder: Folder,
    unified: bool,
}

impl Memory {
    /// Makes an empty group, without swap for its members.
    pub fn create(limit_bytes: u64) -> Result<Self> {
        let first = Path::new(ROOT).join("memory");
        let unified = !first.is_dir();
        let parent = if unified { PathBuf::from(ROOT) } else { first };
        if unified {
            // Fails where the controller is enabled already. Any other failure shows below with a
            // better message, when the limit is set.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let group = Self { folder: Folder::create(&parent, "memory")?, unified };
        let (limit, swap) = if unified {
            ("memory.max", "memory.swap.max")
        } else {
            ("memory.limit_in_bytes", "memory.swappiness")
        };
        group.folder.write(limit, &limit_bytes.to_string())?;
        // On a kernel without swap the file does not exist.
        let _ = group.folder.write(swap, "0");
        Ok(group)
    }

    /// Moves a process into the group; memory that it has already stays charged to its old group.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.folder.write("cgroup.procs", &pid.to_string())
    }

    /// Maximum of the charged memory, bytes.
    pub fn most(&self) -> Result<u64> {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        let text = self.folder.read(file)?;
        text.trim_end().parse().with_context(|| format!("{}/{file}", self.folder.0.display()))
    }
}
