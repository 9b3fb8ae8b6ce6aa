//! Changes of the system's memory that no page fault of an account's processes shows.

use std::path::Path;

use machine_memory::{MachineReader, Meminfo};

/// Growth after which the daemon searches for its owner, bytes: half of what an account may exceed
/// its limit by for more than a second.
pub(crate) const GROWTH_BYTES: u64 = 16 << 20;
/// Number of counters of [`counters`].
const COUNTERS: usize = 6;

/// The counters of the system that are watched, each by itself: one that shrinks hides no growth of
/// another.
fn counters(info: &Meminfo) -> [Option<u64>; COUNTERS] {
    [
        info.shmem,
        info.page_tables,
        info.unevictable,
        info.mlocked,
        info.slab_unreclaimable,
        info.kernel_stack,
    ]
}

/// Changes since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnseenChanges {
    /// A counter has grown by [`GROWTH_BYTES`].
    pub(super) grown: bool,
    /// Number of pages that any processes have lazily freed (`MADV_FREE`).
    pub(super) lazily_freed_pages: u64,
}

/// The system's memory at the last look.
pub(super) struct UnseenGrowth {
    reader: Option<MachineReader>,
    /// Each counter at the last growth, or its minimum since, bytes.
    before: [Option<u64>; COUNTERS],
    lazily_freed_pages: u64,
}

impl UnseenGrowth {
    pub(super) fn new() -> Self {
        Self::of(Path::new("/proc"))
    }

    fn of(proc: &Path) -> Self {
        let reader = MachineReader::open(proc, Path::new("/sys"));
        let reader = reader.inspect_err(|error| tracing::warn!("{error}")).ok();
        Self { reader, before: [None; COUNTERS], lazily_freed_pages: 0 }
    }

    /// No account is limited: growth until the next look does not count.
    pub(super) fn forget(&mut self) {
        self.before = [None; COUNTERS];
    }

    pub(super) fn look(&mut self) -> UnseenChanges {
        let mut changes = UnseenChanges::default();
        let Some(reader) = &mut self.reader else { return changes };
        let freed_pages = reader.lazily_freed_pages().unwrap_or(0);
        changes.lazily_freed_pages = freed_pages.saturating_sub(self.lazily_freed_pages);
        self.lazily_freed_pages = freed_pages;
        let Ok(info) = reader.meminfo() else { return changes };
        for (before, now) in self.before.iter_mut().zip(counters(&info)) {
            let Some(now) = now else { continue };
            let least = before.map_or(now, |before| before.min(now));
            let grown = now >= least + GROWTH_BYTES;
            *before = Some(if grown { now } else { least });
            changes.grown |= grown;
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write(proc: &Path, meminfo: &str, lazily_freed_pages: u64) {
        let text = format!("MemTotal: 9000000 kB\nMemAvailable: 9000000 kB\n{meminfo}");
        std::fs::write(proc.join("meminfo"), text).unwrap();
        std::fs::write(proc.join("vmstat"), format!("pglazyfree {lazily_freed_pages}\n")).unwrap();
    }

    #[test]
    fn each_counter_grows_by_itself() {
        let names = ["Shmem", "PageTables", "Unevictable", "Mlocked", "SUnreclaim", "KernelStack"];
        for name in names {
            let proc = tempfile::tempdir().unwrap();
            // Another counter shrinks meanwhile.
            let other = if name == "Shmem" { "Mlocked" } else { "Shmem" };
            let meminfo = |bytes: u64, other_bytes: u64| {
                format!("{name}: {} kB\n{other}: {} kB\n", bytes >> 10, other_bytes >> 10)
            };
            write(proc.path(), &meminfo(50 * MIB, 100 * MIB), 0);
            let mut growth = UnseenGrowth::of(proc.path());
            let mut grown = |bytes, other_bytes| {
                write(proc.path(), &meminfo(bytes, other_bytes), 0);
                growth.look().grown
            };
            assert!(!grown(50 * MIB, 100 * MIB) && !grown(40 * MIB, 100 * MIB));
            assert!(!grown(55 * MIB, 80 * MIB));
            assert!(grown(56 * MIB, 60 * MIB), "{name}: 16 MiB above the minimum");
            assert!(!grown(71 * MIB, 60 * MIB));
        }
    }

    #[test]
    fn pages_that_are_lazily_freed_are_counted_once() {
        let proc = tempfile::tempdir().unwrap();
        write(proc.path(), "", 7);
        let mut growth = UnseenGrowth::of(proc.path());
        let mut freed = |pages| {
            write(proc.path(), "", pages);
            growth.look().lazily_freed_pages
        };
        assert_eq!([freed(7), freed(7), freed(19)], [7, 0, 12], "those before the start, too");
    }
}
