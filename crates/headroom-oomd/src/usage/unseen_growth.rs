//! Changes of the system's memory that no page fault of an account's processes shows.

use std::path::Path;
use std::time::Instant;

use machine_memory::{MachineReader, Meminfo};

use super::worker::LOOK;

/// Growth after which the daemon searches for its owner, bytes: half of what an account may exceed
/// its limit by for more than a second.
pub(crate) const GROWTH_BYTES: u64 = 16 << 20;
/// Number of looks that count as growth after memory was freed that no resident set shows. A killed
/// process frees its page tables and files after its resident set: within a second.
const DOUBTFUL_LOOKS: u32 = 4;
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
    /// Number of looks that count as growth, [`LOOK`] apart.
    doubtful_looks: u32,
    next_doubtful: Option<Instant>,
}

impl UnseenGrowth {
    pub(super) fn new() -> Self {
        Self::of(Path::new("/proc"))
    }

    fn of(proc: &Path) -> Self {
        let reader = MachineReader::open(proc, Path::new("/sys"));
        let reader = reader.inspect_err(|error| tracing::warn!("{error}")).ok();
        Self {
            reader,
            before: [None; COUNTERS],
            lazily_freed_pages: 0,
            doubtful_looks: 0,
            next_doubtful: None,
        }
    }

    /// No account is limited: growth until the next look does not count.
    pub(super) fn forget(&mut self) {
        self.before = [None; COUNTERS];
    }

    /// Memory is being freed that no resident set shows: if other memory grows by as much between
    /// two looks, no counter shows it. Some of the next looks count as growth.
    pub(super) fn doubt(&mut self, now: Instant) {
        (self.doubtful_looks, self.next_doubtful) = (DOUBTFUL_LOOKS, Some(now + LOOK));
    }

    fn is_doubtful(&mut self, now: Instant) -> bool {
        let is_due = self.doubtful_looks > 0 && self.next_doubtful.is_none_or(|next| now >= next);
        if is_due {
            (self.doubtful_looks, self.next_doubtful) = (self.doubtful_looks - 1, Some(now + LOOK));
        }
        is_due
    }

    pub(super) fn look(&mut self, now: Instant) -> UnseenChanges {
        let grown = self.is_doubtful(now);
        let mut changes = UnseenChanges { grown, ..UnseenChanges::default() };
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
                growth.look(Instant::now()).grown
            };
            assert!(!grown(50 * MIB, 100 * MIB) && !grown(40 * MIB, 100 * MIB));
            assert!(!grown(55 * MIB, 80 * MIB));
            assert!(grown(56 * MIB, 60 * MIB), "{name}: 16 MiB above the minimum");
            assert!(!grown(71 * MIB, 60 * MIB));
        }
    }

    #[test]
    fn four_looks_after_a_fall_count_as_growth() {
        let proc = tempfile::tempdir().unwrap();
        write(proc.path(), "", 0);
        let mut growth = UnseenGrowth::of(proc.path());
        let start = Instant::now();
        growth.doubt(start);
        let looks = (0..12).map(|half| growth.look(start + half * LOOK / 2).grown);
        let grown: Vec<u32> =
            looks.zip(0..).filter(|(grown, _)| *grown).map(|(_, at)| at).collect();
        assert_eq!(grown, [2, 4, 6, 8]);
    }

    #[test]
    fn pages_that_are_lazily_freed_are_counted_once() {
        let proc = tempfile::tempdir().unwrap();
        write(proc.path(), "", 7);
        let mut growth = UnseenGrowth::of(proc.path());
        let mut freed = |pages| {
            write(proc.path(), "", pages);
            growth.look(Instant::now()).lazily_freed_pages
        };
        assert_eq!([freed(7), freed(7), freed(19)], [7, 0, 12], "those before the start, too");
    }
}
