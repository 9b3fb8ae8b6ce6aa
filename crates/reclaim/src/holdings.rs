//! Memory of a process by kind, and the part that killing it does not free.

use std::fmt;
use std::fs;

use headroom_linux::machine_memory::bytes_of;

use crate::victim::read_proc;

/// Size of the buffer for `/proc/<pid>/status`: 1.5 KiB, and longer only with hundreds of groups;
/// their line comes before those that are read here.
const STATUS: usize = 8192;

/// Memory of a process by kind, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Anonymous memory, which is freed.
    pub anon_bytes: u64,
    /// Minimum of `anon_bytes` that other processes use as well; 0 unless measured.
    pub shared_anon_bytes: u64,
    /// Mapped files, which stay in the page cache.
    pub file_bytes: u64,
    /// Shared memory and tmpfs files.
    pub shmem_bytes: u64,
    /// Swapped-out memory: frees swap, not memory.
    pub swap_bytes: u64,
    /// From the pool of huge pages.
    pub hugetlb_bytes: u64,
    /// Pinned, usually by a device driver.
    pub pinned_bytes: u64,
}

impl Holdings {
    /// Reads the kernel's counters without allocating. `None`: the process has no memory (any
    /// more).
    pub fn of(pid: u32) -> Option<Self> {
        let mut buffer = [0; STATUS];
        let status = read_proc(pid, "status", &mut buffer).ok()?;
        Self::parse(std::str::from_utf8(status).ok()?)
    }

    /// Like [`of`](Self::of), with the shared memory from `smaps_rollup`: the kernel walks all page
    /// tables, 10 ms per GiB and more.
    pub fn measured(pid: u32) -> Option<Self> {
        let holdings = Self::of(pid)?;
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let (all, own) = (bytes_of(&rollup, "Anonymous"), bytes_of(&rollup, "Pss_Anon"));
        let shared_anon_bytes = all.unwrap_or(0).saturating_sub(own.unwrap_or(u64::MAX));
        Some(Self { shared_anon_bytes, ..holdings })
    }

    /// Present anonymous memory, bytes. `None`: the process has released all its memory.
    pub fn anon_now(pid: u32) -> Option<u64> {
        let mut buffer = [0; 128];
        let statm = std::str::from_utf8(read_proc(pid, "statm", &mut buffer).ok()?).ok()?;
        let mut fields =
            statm.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok());
        let (size, resident, shared) = (fields.next()?, fields.next()?, fields.next()?);
        (size > 0).then(|| resident.saturating_sub(shared) * rustix::param::page_size() as u64)
    }

    fn parse(status: &str) -> Option<Self> {
        let or_none = |name| bytes_of(status, name).unwrap_or(0);
        Some(Self {
            anon_bytes: bytes_of(status, "RssAnon")?,
            shared_anon_bytes: 0,
            file_bytes: or_none("RssFile"),
            shmem_bytes: or_none("RssShmem"),
            swap_bytes: or_none("VmSwap"),
            hugetlb_bytes: or_none("HugetlbPages"),
            pinned_bytes: or_none("VmPin"),
        })
    }

    /// Memory that is expected to be freed, bytes.
    pub fn freeable_bytes(&self) -> u64 {
        self.anon_bytes.saturating_sub(self.shared_anon_bytes.max(self.pinned_bytes))
    }

    /// Memory that is not freed, as text; empty if it is less than 1 MiB of each kind.
    pub fn kept(&self) -> String {
        Kept(self).to_string()
    }
}

struct Kept<'a>(&'a Holdings);

impl fmt::Display for Kept<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.0.file_bytes, "of mapped files stay in the page cache"),
            (self.0.shmem_bytes, "of shared memory stay as long as it is shared or has a name"),
            (self.0.shared_anon_bytes, "are used by other processes, too"),
            (self.0.hugetlb_bytes, "go back to the pool of huge pages"),
            (self.0.pinned_bytes, "are pinned until the device lets go of them"),
            (self.0.swap_bytes, "were swapped out and give back swap"),
        ];
        let worth_a_word = kinds.iter().filter(|(bytes, _)| *bytes >= 1 << 20);
        for (at, (bytes, what)) in worth_a_word.enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} MiB {what}", bytes >> 20)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_memory_are_distinguished() {
        let status = "Name:\tx\nVmPin:\t    1024 kB\nVmRSS:\t 99 kB\nRssAnon:\t    4096 kB\n\
                      RssFile:\t 2048 kB\nRssShmem:\t 0 kB\nVmSwap:\t 3072 kB\n\
                      HugetlbPages:\t 0 kB\n";
        let holdings = Holdings::parse(status).unwrap();
        assert_eq!((holdings.anon_bytes, holdings.file_bytes), (4 << 20, 2 << 20));
        assert_eq!((holdings.swap_bytes, holdings.pinned_bytes), (3 << 20, 1 << 20));
        assert_eq!(holdings.freeable_bytes(), 3 << 20);
        assert_eq!(
            holdings.kept(),
            "2 MiB of mapped files stay in the page cache, 1 MiB are pinned until the device lets \
             go of them, 3 MiB were swapped out and give back swap"
        );
        assert_eq!(Holdings::parse("Name:\tkthreadd\n"), None, "a kernel thread has no memory");
        assert_eq!(Holdings::default().kept(), "");
    }

    #[test]
    fn our_own_memory_is_found() {
        let own = std::process::id();
        let holdings = Holdings::measured(own).unwrap();
        assert!(holdings.anon_bytes > 0 && holdings.file_bytes > 0, "{holdings:?}");
        assert!(Holdings::anon_now(own).unwrap() > 0);
        assert_eq!(Holdings::of(u32::MAX), None);
        assert_eq!(Holdings::anon_now(u32::MAX), None);
    }
}
