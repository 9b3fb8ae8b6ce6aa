//! `/proc/<pid>/smaps_rollup`: exact, but the kernel walks the page tables (9.6 ms per GiB was
//! measured), so for a second measurement only.

use super::Proc;
use machine_memory::ReadError;
use machine_memory::text::{keys_and_values, kib_to_bytes};

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmapsRollup {
    /// Resident.
    pub rss_bytes: Option<u64>,
    /// Resident, each shared page divided by the number of processes that map it.
    pub pss_bytes: Option<u64>,
    /// Part of `pss_bytes`: anonymous memory.
    pub pss_anon_bytes: Option<u64>,
    /// Part of `pss_bytes`: shared memory.
    pub pss_shmem_bytes: Option<u64>,
    /// Part of `pss_bytes`: files.
    pub pss_file_bytes: Option<u64>,
    /// Swapped out, each page divided by the number of processes that share it.
    pub swap_pss_bytes: Option<u64>,
    /// Lazily freed (`MADV_FREE`) and not written to since, each page in full for each sharer.
    pub lazy_free_bytes: Option<u64>,
    /// Resident pages that other processes map and that were not written to; in full.
    pub shared_clean_bytes: Option<u64>,
}

impl SmapsRollup {
    /// Lazily freed memory that no other process has, at least: the kernel can take it at any time.
    /// It is a part of `pss_anon_bytes`. Shared pages are left out, since each sharer would take
    /// off the whole page.
    pub fn lazily_freed_bytes(&self) -> u64 {
        let all_bytes = self.lazy_free_bytes.unwrap_or(0);
        all_bytes.saturating_sub(self.shared_clean_bytes.unwrap_or(all_bytes))
    }
}

impl Proc {
    /// Reads `/proc/<pid>/smaps_rollup`. Returns `ESRCH` for a process without an address space.
    pub fn smaps_rollup(&mut self, pid: u32) -> Result<SmapsRollup, ReadError> {
        let content = self.read(pid, "smaps_rollup")?;
        let mut sizes = SmapsRollup::default();
        for (key, value) in keys_and_values(content.text()?) {
            let field = match key {
                "Rss" => &mut sizes.rss_bytes,
                "Pss" => &mut sizes.pss_bytes,
                "Pss_Anon" => &mut sizes.pss_anon_bytes,
                "Pss_Shmem" => &mut sizes.pss_shmem_bytes,
                "Pss_File" => &mut sizes.pss_file_bytes,
                "SwapPss" => &mut sizes.swap_pss_bytes,
                "LazyFree" => &mut sizes.lazy_free_bytes,
                "Shared_Clean" => &mut sizes.shared_clean_bytes,
                _ => continue,
            };
            *field = kib_to_bytes(value);
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_pages_count_less_than_resident_ones() {
        let sizes = Proc::default().smaps_rollup(std::process::id()).unwrap();
        assert!(sizes.pss_bytes.unwrap() > 0);
        assert!(sizes.pss_bytes <= sizes.rss_bytes);
        assert!(sizes.pss_anon_bytes <= sizes.pss_bytes);
    }
}
