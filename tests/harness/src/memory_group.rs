//! A control group to which the kernel charges a program's memory, including memory that no process
//! has mapped or open.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::users::User;

/// The hierarchy of the memory controller: version 1, and version 2.
const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";
/// Names of lines in `memory.stat`: anonymous memory (version 1, version 2), and swap (version 1).
const ANONYMOUS: [&str; 3] = ["rss ", "anon ", "swap "];
/// Names of lines in `memory.stat`: shared memory.
const SHARED: [&str; 1] = ["shmem "];

/// Memory that the kernel charges to a group, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Anonymous memory, and all swap.
    pub anonymous: u64,
    /// Shared memory.
    pub shared: u64,
}

/// A control group with a memory controller, removed on drop.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None`: the machine has no memory controller, or this process may not use it. With version
    /// 2 the group is the user's slice, as if the user had logged in: Headroom reads its charge.
    pub fn create(user: User) -> Option<Self> {
        let name = format!("headroom-test-{}", std::process::id());
        Self::create_at(Path::new(V1).join(name)).or_else(|| {
            let users = Path::new(V2).join("user.slice");
            let _ = fs::create_dir(&users);
            for folder in [Path::new(V2), &users] {
                // Refused where the controller is missing.
                let _ = fs::write(folder.join("cgroup.subtree_control"), "+memory");
            }
            Self::create_at(users.join(format!("user-{}.slice", user.uid)))
        })
    }

    fn create_at(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        group.0.join("memory.stat").exists().then_some(group)
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

    /// Memory that the kernel charges to the group at present.
    pub fn charge(&self) -> Charge {
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap_or_default();
        let swap = fs::read_to_string(self.0.join("memory.swap.current")).unwrap_or_default();
        let sum = |names: &[&str]| {
            let number = |line: &str| {
                let number = names.iter().find_map(|name| line.strip_prefix(name))?;
                number.trim().parse::<u64>().ok()
            };
            stat.lines().filter_map(number).sum::<u64>()
        };
        let anonymous = sum(&ANONYMOUS) + swap.trim().parse().unwrap_or(0);
        Charge { anonymous, shared: sum(&SHARED) }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Fails if the group still has processes, which is reported where they are ended.
        let _ = fs::remove_dir(&self.0);
    }
}
