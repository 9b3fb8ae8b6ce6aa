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
    folder: PathBuf,
    rule: Rule,
    /// Version 2.
    unified: bool,
}

impl ControlGroup {
    /// Makes an empty group that does not do anything yet.
    pub fn create(rule: Rule) -> Result<Self> {
        let controller = if rule == Rule::Throttled { "cpu" } else { "freezer" };
        let name = format!("headroom-bench-{}-{controller}", std::process::id());
        let first = Path::new(ROOT).join(controller);
        let unified = !first.is_dir();
        let parent = if unified { PathBuf::from(ROOT) } else { first };
        if unified && rule == Rule::Throttled {
            // Refused where it is so already, or where the quota below then fails with a better word.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+cpu");
        }
        let folder = parent.join(name);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let group = Self { folder, rule, unified };
        if rule == Rule::Throttled {
            let (quota, period) = QUOTA;
            if unified {
                group.write("cpu.max", &format!("{quota} {period}"))?;
            } else {
                group.write("cpu.cfs_period_us", &period.to_string())?;
                group.write("cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        Ok(group)
    }

    /// Takes a process in, and freezes it where that is the rule.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())?;
        if self.rule == Rule::Throttled {
            return Ok(());
        }
        if self.unified {
            self.write("cgroup.freeze", "1")?;
        } else {
            self.write("freezer.state", "FROZEN")?;
        }
        let start = Instant::now();
        while !self.is_frozen() {
            let folder = self.folder.display();
            anyhow::ensure!(start.elapsed() < PATIENCE, "{folder} does not freeze");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Its members run again as they like.
    pub fn open(&self) {
        let (file, value) = match (self.rule, self.unified) {
            (Rule::Throttled, true) => ("cpu.max", "max"),
            (Rule::Throttled, false) => ("cpu.cfs_quota_us", "-1"),
            (Rule::Frozen, true) => ("cgroup.freeze", "0"),
            (Rule::Frozen, false) => ("freezer.state", "THAWED"),
        };
        let _ = self.write(file, value);
    }

    fn is_frozen(&self) -> bool {
        let read = |file| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        if self.unified {
            read("cgroup.events").lines().any(|line| line == "frozen 1")
        } else {
            read("freezer.state").trim_end() == "FROZEN"
        }
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        self.open();
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    let start = Instant::now();
    // Who has just died is a member for a moment more.
    while fs::remove_dir(folder).is_err() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A group of our own that may have so much memory, and kills where it has more. Removed on drop, when its members are
/// dead.
pub struct Memory {
    folder: PathBuf,
    unified: bool,
}

impl Memory {
    /// Makes an empty group; none of its memory will be swapped.
    pub fn create(limit_bytes: u64) -> Result<Self> {
        let first = Path::new(ROOT).join("memory");
        let unified = !first.is_dir();
        let parent = if unified { PathBuf::from(ROOT) } else { first };
        if unified {
            // Refused where it is so already, or where the limit below then fails with a better word.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let folder = parent.join(format!("headroom-bench-{}-memory", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let group = Self { folder, unified };
        let (limit, swap) = match unified {
            true => ("memory.max", "memory.swap.max"),
            false => ("memory.limit_in_bytes", "memory.swappiness"),
        };
        group.write(limit, &limit_bytes.to_string())?;
        // Without swap there is no such file.
        let _ = group.write(swap, "0");
        Ok(group)
    }

    /// Takes a process in; what it has already stays charged where it was.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// The most that was charged at a time, bytes.
    pub fn most(&self) -> Result<u64> {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        text.trim_end().parse().with_context(|| path.display().to_string())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}
