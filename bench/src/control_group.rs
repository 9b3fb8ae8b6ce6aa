//! Control groups for a victim, throttled or frozen.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::wait;

const ROOT: &str = "/sys/fs/cgroup";
/// Five percent of one CPU, in microseconds of a period.
const QUOTA: (u32, u32) = (5_000, 100_000);
/// Limit for a group to freeze, or to become empty after its members were killed.
const PATIENCE: Duration = Duration::from_secs(20);

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
    folder: PathBuf,
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
        let folder = parent.join(format!("headroom-bench-{}-{controller}", std::process::id()));
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

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }

    /// Moves a process into the group, and freezes it if that is the rule.
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
        let frozen = wait::until(PATIENCE, || self.is_frozen().then_some(()));
        frozen.with_context(|| format!("{} does not freeze", self.folder.display()))
    }

    /// Removes the quota, or thaws the members.
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
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        self.open();
        // A killed process stays a member for a moment.
        wait::until(PATIENCE, || fs::remove_dir(&self.folder).ok());
    }
}
