//! `/proc/meminfo`.

use std::path::Path;

use crate::error::ReadError;
use crate::text::{keys_and_values, kib_to_bytes};

/// The machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// `MemTotal`.
    pub total: Option<u64>,
    /// `MemFree`.
    pub free: Option<u64>,
    /// `MemAvailable`: the kernel's estimate of what new programs can have without swapping.
    pub available: Option<u64>,
    /// `Buffers`.
    pub buffers: Option<u64>,
    /// `Cached`; includes `Shmem`.
    pub cached: Option<u64>,
    /// `AnonPages`.
    pub anon: Option<u64>,
    /// `Shmem`.
    pub shmem: Option<u64>,
    /// `PageTables`.
    pub page_tables: Option<u64>,
    /// `Unevictable`: locked memory, ramfs and others that the kernel cannot take back.
    pub unevictable: Option<u64>,
    /// `Mlocked`.
    pub mlocked: Option<u64>,
    /// `SUnreclaim`.
    pub slab_unreclaimable: Option<u64>,
    /// `KernelStack`.
    pub kernel_stack: Option<u64>,
    /// `SReclaimable`.
    pub slab_reclaimable: Option<u64>,
    /// `SwapTotal`.
    pub swap_total: Option<u64>,
    /// `SwapFree`.
    pub swap_free: Option<u64>,
}

impl Meminfo {
    /// Reads `meminfo` in the folder `proc`.
    pub fn read(proc: &Path) -> Result<Self, ReadError> {
        let path = proc.join("meminfo");
        let text = std::fs::read_to_string(&path).map_err(|e| ReadError::io(&path, e))?;
        let info = Self::parse(&text);
        if info.total.is_none() {
            return Err(ReadError::parse(&path, "MemTotal"));
        }
        Ok(info)
    }

    /// Memory that all programs have and could have: `MemAvailable` + `AnonPages` + `Shmem` +
    /// `PageTables` + `Unevictable` - `Mlocked`. The last two are files of a ramfs and secret
    /// memory; locked shared memory counts twice.
    pub fn of_programs(&self) -> u64 {
        let kinds = [self.available, self.anon, self.shmem, self.page_tables];
        let files = self.unevictable.unwrap_or(0).saturating_sub(self.mlocked.unwrap_or(0));
        let sum = kinds.into_iter().flatten().sum::<u64>() + files;
        sum.min(self.total.unwrap_or(u64::MAX))
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut info = Self::default();
        for (key, value) in keys_and_values(text) {
            let field = match key {
                "MemTotal" => &mut info.total,
                "MemFree" => &mut info.free,
                "MemAvailable" => &mut info.available,
                "Buffers" => &mut info.buffers,
                "Cached" => &mut info.cached,
                "AnonPages" => &mut info.anon,
                "Shmem" => &mut info.shmem,
                "PageTables" => &mut info.page_tables,
                "Unevictable" => &mut info.unevictable,
                "Mlocked" => &mut info.mlocked,
                "SUnreclaim" => &mut info.slab_unreclaimable,
                "KernelStack" => &mut info.kernel_stack,
                "SReclaimable" => &mut info.slab_reclaimable,
                "SwapTotal" => &mut info.swap_total,
                "SwapFree" => &mut info.swap_free,
                _ => continue,
            };
            *field = kib_to_bytes(value);
        }
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_machine() {
        let info = Meminfo::read(Path::new("/proc")).unwrap();
        assert!(info.available <= info.total);
        assert!(info.swap_free <= info.swap_total);
        assert!(info.free.unwrap() > 0);
    }

    #[test]
    fn files_that_cannot_be_reclaimed_are_memory_of_programs() {
        let text = "MemTotal: 100 kB\nMemAvailable: 20 kB\nAnonPages: 30 kB\nShmem: 5 kB\n\
                    PageTables: 1 kB\nUnevictable: 12 kB\nMlocked: 2 kB\n";
        let info = Meminfo::parse(text);
        assert_eq!(info.of_programs(), 66 << 10);
        let locked = Meminfo { mlocked: Some(13 << 10), ..info };
        assert_eq!(locked.of_programs(), 56 << 10);
        let twice = Meminfo { unevictable: Some(90 << 10), ..info };
        assert_eq!(twice.of_programs(), 100 << 10, "not more than there is");
    }

    #[test]
    fn a_line_that_is_missing_or_odd_is_none() {
        let info = Meminfo::parse("MemTotal:  12 kB\nMemFree: lots\nHugePages_Total: 0\n");
        assert_eq!(info, Meminfo { total: Some(12 * 1024), ..Meminfo::default() });
    }

    #[test]
    fn a_file_without_a_total_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("meminfo"), "nothing\n").unwrap();
        let message = Meminfo::read(dir.path()).unwrap_err().to_string();
        assert!(message.contains("meminfo") && message.contains("MemTotal"), "{message}");
    }
}
