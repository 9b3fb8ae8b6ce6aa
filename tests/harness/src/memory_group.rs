//! A control group to which the kernel charges a program's memory, including memory that no process
//! has mapped or open.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The hierarchy of the memory controller: version 1, and version 2.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
/// Names of lines in `memory.stat`: anonymous memory (version 1, version 2), shared memory and, in
/// version 1, swap.
const COUNTED: [&str; 4] = ["rss ", "anon ", "shmem ", "swap "];

/// A control group with a memory controller, removed on drop.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None`: the machine has no memory controller, or this process may not use it.
    pub fn create() -> Option<Self> {
        let name = format!("headroom-test-{}", std::process::id());
        ROOTS.iter().find_map(|root| {
            let group = Self(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            group.0.join("memory.stat").exists().then_some(group)
        })
    }

    /// Starts the program in the group.
    pub fn contain(&self, command: &mut Command) -> io::Result<()> {
        let procs = fs::OpenOptions::new().write(true).open(self.0.join("cgroup.procs"))?;
        // SAFETY: between fork and exec only a system call is made.
        unsafe {
            command.pre_exec(move || rustix::io::write(&procs, b"0").map(drop).map_err(Into::into))
        };
        Ok(())
    }

    /// Memory that the kernel charges to the group: anonymous and shared memory and swap, bytes.
    pub fn charged(&self) -> u64 {
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap_or_default();
        let counted = |line: &str| {
            let number = COUNTED.iter().find_map(|name| line.strip_prefix(name))?;
            number.trim().parse::<u64>().ok()
        };
        let swap = fs::read_to_string(self.0.join("memory.swap.current")).unwrap_or_default();
        stat.lines().filter_map(counted).sum::<u64>() + swap.trim().parse().unwrap_or(0)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Fails if the group still has processes, which is reported where they are ended.
        let _ = fs::remove_dir(&self.0);
    }
}
