//! Actual memory of users, measured without Headroom.
//!
//! Each address space counts once: its proportional share of anonymous and shared memory and of
//! swap, and its page tables. In addition each open file of a tmpfs (a memfd) counts once, as far
//! as it is not mapped.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headroom_linux::machine_memory::bytes_of;

use crate::memory_group::{Charge, MemoryGroup};
use crate::users::User;

/// Resource that kcmp(2) is to compare: the address space.
const KCMP_VM: libc::c_int = 1;
/// Magic number of tmpfs, the file system of memfds (`linux/magic.h`).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Held memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Anonymous memory, including its part in swap.
    pub anonymous: u64,
    /// Mapped shared memory.
    pub shared: u64,
    /// Open files of a tmpfs, as far as they are larger than their mapped part.
    pub files: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Resident memory summed over processes, for comparison: shared memory counts once per
    /// process.
    pub rss_sum: u64,
    /// Number of address spaces.
    pub spaces: u32,
    /// Memory that the kernel charges to the programs' control group; 0: they have none.
    pub charged: u64,
}

impl Held {
    /// Memory that a limit covers: mapped or open in a process.
    pub fn total(&self) -> u64 {
        self.anonymous + self.shared + self.files + self.page_tables
    }

    /// As [`total`](Self::total), with memory that no process has mapped or open, as far as that is
    /// known.
    pub fn with_hidden(&self) -> u64 {
        self.total().max(self.charged)
    }
}

/// A task that gives access to an address space in `/proc`.
struct Space {
    /// The process, or a thread of it: the main thread may have exited.
    task: PathBuf,
    tid: u32,
}

/// Measures the memory of a user.
pub fn held_by(user: User) -> Held {
    held_by_processes(&user.processes())
}

/// Measures the memory of a user whose programs are all in the group, by the kernel's charge. It
/// walks no page tables, so it is exact at one moment however many processes share memory.
pub fn charged_to(group: &MemoryGroup, user: User) -> Held {
    let Charge { anonymous, shared } = group.charge();
    let held = Held { anonymous, shared, charged: anonymous + shared, ..Held::default() };
    add_page_tables(held, &address_spaces(&user.processes()))
}

/// Measures the memory of these processes.
pub fn held_by_processes(pids: &[u32]) -> Held {
    let mut held = Held::default();
    let mut files: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    pids.iter().for_each(|pid| open_files(*pid, &mut files));
    let spaces = address_spaces(pids);
    for space in &spaces {
        let Ok(rollup) = fs::read_to_string(space.task.join("smaps_rollup")) else { continue };
        let bytes = |key: &str| bytes_of(&rollup, key).unwrap_or(0);
        held.anonymous += bytes("Pss_Anon") + bytes("SwapPss");
        held.shared += bytes("Pss_Shmem");
    }
    held.files = files.values().sum::<u64>().saturating_sub(held.shared);
    add_page_tables(held, &spaces)
}

/// Adds the page tables, and the sum of resident sets for comparison.
fn add_page_tables(mut held: Held, spaces: &[Space]) -> Held {
    for space in spaces {
        held.page_tables += status_bytes(&space.task, &["VmPTE"]);
        held.rss_sum += status_bytes(&space.task, &["RssAnon", "RssShmem"]);
        held.spaces += 1;
    }
    held
}

/// One task per address space of these processes.
fn address_spaces(pids: &[u32]) -> Vec<Space> {
    let mut spaces: Vec<Space> = Vec::new();
    for space in pids.iter().filter_map(|pid| living_task(*pid)) {
        // Processes that share an address space are found by the kernel's ordering of address
        // spaces.
        if let Err(at) = spaces.binary_search_by(|known| order(known.tid, space.tid)) {
            spaces.insert(at, space);
        }
    }
    spaces
}

/// The process, or a thread of it, that still has an address space.
fn living_task(pid: u32) -> Option<Space> {
    let folder = Path::new("/proc").join(pid.to_string());
    let lives = |task: &Path| status_bytes(task, &["VmSize"]) > 0;
    if lives(&folder) {
        return Some(Space { task: folder, tid: pid });
    }
    let threads = fs::read_dir(folder.join("task")).ok()?.flatten();
    threads.filter(|thread| lives(&thread.path())).find_map(|thread| {
        let tid = thread.file_name().to_str()?.parse().ok()?;
        Some(Space { task: thread.path(), tid })
    })
}

fn order(one: u32, other: u32) -> Ordering {
    // SAFETY: the call takes integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        0 => Ordering::Equal,
        1 => Ordering::Less,
        2 => Ordering::Greater,
        // One of them has exited, and will be measured as empty.
        _ => one.cmp(&other),
    }
}

/// Adds the sizes of the tmpfs files that a process has open, by device and inode.
fn open_files(pid: u32, files: &mut BTreeMap<(u64, u64), u64>) {
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_tmpfs = fs::read_link(&path).is_ok_and(|target| {
            target.to_string_lossy().starts_with("/memfd:")
                || rustix::fs::statfs(&path).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC)
        });
        // Opening a path below fd would open the device or socket: only metadata is requested.
        if let Some(file) = is_tmpfs.then(|| fs::metadata(&path).ok()).flatten()
            && file.is_file()
        {
            files.insert((file.dev(), file.ino()), file.blocks() * 512);
        }
    }
}

fn status_bytes(task: &Path, keys: &[&str]) -> u64 {
    let Ok(status) = fs::read_to_string(task.join("status")) else { return 0 };
    keys.iter().filter_map(|key| bytes_of(&status, key)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both tests measure this process: allocations of one would show in the other.
    fn alone() -> std::sync::MutexGuard<'static, ()> {
        static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[test]
    fn our_own_memory_is_measured_to_a_few_percent() {
        let _alone = alone();
        let before = held_by_processes(&[std::process::id()]);
        let block = vec![1u8; 64 << 20];
        let after = held_by_processes(&[std::process::id(), std::process::id()]);
        let grown = after.total() - before.total();
        assert!((64 << 20..66 << 20).contains(&grown), "{grown} {before:?} {after:?}");
        assert_eq!(after.spaces, 1, "the same address space twice");
        assert!(after.page_tables > before.page_tables);
        drop(block);
    }

    #[test]
    fn a_memfd_that_is_written_to_and_not_mapped_counts() {
        let _alone = alone();
        use std::io::Write;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let before = held_by_processes(&[std::process::id()]);
        let mut file = fs::File::from(rustix::fs::memfd_create("test", flags).unwrap());
        file.write_all(&vec![1; 8 << 20]).unwrap();
        let after = held_by_processes(&[std::process::id()]);
        assert!(after.files >= before.files + (8 << 20), "{before:?} {after:?}");
    }
}
