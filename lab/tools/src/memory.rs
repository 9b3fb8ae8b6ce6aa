//! The machine's memory counters, and mappings of this process.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::Result;

/// Bytes in the smallest page of the lab's machines.
pub const PAGE: usize = 4096;
/// Bytes in a MiB.
pub const MIB: usize = 1 << 20;

/// One reading of `/proc/meminfo`, in KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemInfo {
    /// MemTotal.
    pub total_kib: u64,
    /// MemAvailable.
    pub available_kib: u64,
    /// SwapFree.
    pub swap_free_kib: u64,
}

/// Reads it.
pub fn meminfo() -> Result<MemInfo> {
    let text = fs::read_to_string("/proc/meminfo").map_err(|e| format!("/proc/meminfo: {e}"))?;
    Ok(MemInfo {
        total_kib: field(&text, "MemTotal:"),
        available_kib: field(&text, "MemAvailable:"),
        swap_free_kib: field(&text, "SwapFree:"),
    })
}

/// Number of processes killed by the kernel's OOM killer since boot (`oom_kill` of `/proc/vmstat`).
pub fn kernel_oom_kills() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").map_err(|e| format!("/proc/vmstat: {e}"))?;
    Ok(field(&text, "oom_kill"))
}

/// The resident and swapped KiB of all processes of a cgroup.
pub fn cgroup_usage_kib(cgroup: &Path) -> u64 {
    let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let statuses =
        processes.lines().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    statuses.map(|s| field(&s, "RssAnon:") + field(&s, "RssShmem:") + field(&s, "VmSwap:")).sum()
}

/// The number after a word that starts a line; 0 if it is missing.
fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    });
    value.unwrap_or(0)
}

/// A private mapping: anonymous, or of a file.
pub struct Mapping {
    start: *mut u8,
    length: usize,
    writable: bool,
}

impl Mapping {
    /// Anonymous memory, untouched.
    pub fn anonymous(length: usize) -> Result<Self> {
        Self::map(
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        )
    }

    /// Memory for reading only, without swap space that is reserved and without huge pages.
    pub fn unwritten(length: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = Self::map(length, libc::PROT_READ, flags, -1)?;
        // SAFETY: the whole mapping, whose contents do not change.
        unsafe { libc::madvise(mapping.start.cast(), length, libc::MADV_NOHUGEPAGE) };
        Ok(mapping)
    }

    /// All of a file, read only.
    pub fn file(path: &str) -> Result<Self> {
        let file = File::open(path).map_err(|e| format!("{path}: {e}"))?;
        let length = file.metadata().map_err(|e| format!("{path}: {e}"))?.len() as usize;
        Self::map(length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(length: usize, protection: i32, flags: i32, fd: i32) -> Result<Self> {
        // SAFETY: a new mapping at a place the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(format!("cannot map {length} bytes: {}", std::io::Error::last_os_error()));
        }
        Ok(Self { start: start.cast(), length, writable: protection & libc::PROT_WRITE != 0 })
    }

    /// Writes `value` into the first byte of every page. Panics for a mapping of a file.
    pub fn write_pages(&mut self, value: u8) {
        assert!(self.writable, "a mapping of a file is read only");
        for offset in (0..self.length).step_by(PAGE) {
            // SAFETY: inside the mapping, which is writable.
            unsafe { self.start.add(offset).write_volatile(value) };
        }
    }

    /// Reads a byte of every page and returns their sum.
    pub fn read_pages(&self) -> u64 {
        self.read_each(PAGE)
    }

    /// Reads a byte of each `step` bytes and returns their sum.
    pub fn read_each(&self, step: usize) -> u64 {
        // SAFETY: inside the mapping, which is readable.
        (0..self.length)
            .step_by(step)
            .map(|o| u64::from(unsafe { self.start.add(o).read_volatile() }))
            .sum()
    }
}

/// Writes a file of incompressible bytes.
pub fn write_file(path: &str, mib: usize) -> Result<()> {
    use std::io::Write;
    let mut file = File::create(path).map_err(|e| format!("{path}: {e}"))?;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..mib {
        let mut block = Vec::with_capacity(MIB);
        while block.len() < MIB {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            block.extend_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block).map_err(|e| format!("{path}: {e}"))?;
    }
    file.sync_all().map_err(|e| format!("{path}: {e}"))
}
