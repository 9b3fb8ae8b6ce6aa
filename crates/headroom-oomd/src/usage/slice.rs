//! The memory controller's charge of a user's slice, `user.slice/user-UID.slice`.
//!
//! It is the user's actual usage if the slice contains all processes of the user and no others. A
//! [bounded reader](super::bounded) reads it: the kernel first adds up the statistics of all
//! cgroups below and of all CPUs, and a user may have many cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use headroom_linux::clock::monotonic_ns;
use memory_ledger::measurement::OLDEST_MS;
use memory_ledger::{AccountId, Count, NS_PER_MS, Order, Uid};
use memory_watch::cgroups::{CgroupMemory, Cgroups, Members};
use memory_watch::process::Proc;
use owners::Owner;

use super::bounded::{Answer, BoundedReader, Question};

/// How long a slice is not read after a read that timed out, milliseconds: a slow slice may occupy
/// a reader once in a while.
const PAUSE_MS: u64 = 5_000;
/// A slice with more cgroups than this is not read.
const MAX_CGROUPS: usize = 256;
/// Maximum number of processes that are in the slice or in the account only; each is checked
/// separately.
const MAX_STRAY: usize = 64;

/// Reads slices and caches the results.
pub(super) struct Controller {
    cgroups: Option<Arc<Cgroups>>,
    accounts: BTreeMap<AccountId, KnownCharge>,
}

/// The slice's charge in relation to the account's sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeDifference {
    /// The charge less the sum, bytes.
    pub(super) bytes: i64,
    /// Maximum of the part of the charge that is lazily freed, bytes.
    pub(super) lazily_freed_bytes: u64,
}

impl ChargeDifference {
    /// The difference if all that may be lazily freed is, bytes.
    pub(super) fn least_bytes(self) -> i64 {
        self.bytes.saturating_sub_unsigned(self.lazily_freed_bytes)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownCharge {
    /// The last charge, and when it was read, nanoseconds.
    latest: Option<(ChargeDifference, u64)>,
    /// When the slice may be read again, nanoseconds.
    retry_ns: u64,
}

impl Controller {
    /// `cgroups`: the hierarchy, if there is one. It is used if it has the memory controller.
    pub(super) fn new(cgroups: Option<Cgroups>) -> Self {
        Self {
            cgroups: cgroups.filter(Cgroups::has_memory).map(Arc::new),
            accounts: BTreeMap::new(),
        }
    }

    /// The slice's charge less the account's sum; the cached one if the read times out.
    /// `None`: the charge is not the user's usage, or not known.
    pub(super) fn difference(
        &mut self,
        order: &Order,
        query: SliceQuery,
        reader: &mut BoundedReader,
    ) -> Option<ChargeDifference> {
        let cgroups = self.cgroups.as_ref()?;
        let known = self.accounts.entry(order.account).or_default();
        let now_ns = monotonic_ns();
        if now_ns >= known.retry_ns {
            let owner = Owner::User(query.uid);
            match reader.read(owner, Question::Slice(Arc::clone(cgroups), query)) {
                Some(Answer::Slice(charged)) => {
                    let difference = |charge: SliceCharge| ChargeDifference {
                        bytes: charge.bytes as i64 - order.summed_bytes as i64,
                        lazily_freed_bytes: charge.lazily_freed_bytes,
                    };
                    known.latest = charged.map(|charge| (difference(charge), now_ns));
                }
                _ => known.retry_ns = now_ns + PAUSE_MS * NS_PER_MS,
            }
        }
        let (difference, at_ns) = known.latest?;
        (now_ns - at_ns < OLDEST_MS * NS_PER_MS).then_some(difference)
    }

    /// Drops the cached charge of an account that is measured in another way.
    pub(super) fn forget(&mut self, account: AccountId) {
        if let Some(known) = self.accounts.get_mut(&account) {
            known.latest = None;
        }
        let now_ns = monotonic_ns();
        self.accounts.retain(|_, known| known.latest.is_some() || known.retry_ns > now_ns);
    }
}

/// The cgroup hierarchy of the system.
pub(super) fn hierarchy() -> Option<Cgroups> {
    Cgroups::find(Path::new("/proc")).unwrap_or_else(|error| {
        tracing::warn!("{error}; the memory controller is not used");
        None
    })
}

/// A query of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SliceQuery {
    pub(super) uid: Uid,
    /// All processes that are charged to the user.
    pub(super) pids: Vec<u32>,
    pub(super) count: Count,
    /// Tolerated memory of other processes in the slice, bytes.
    pub(super) tolerated_bytes: u64,
}

/// The charge of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceCharge {
    pub(super) bytes: u64,
    /// Maximum of the part of `bytes` that is lazily freed (`MADV_FREE`).
    pub(super) lazily_freed_bytes: u64,
}

/// The charge of the user's slice. `None`: the slice has no controller, or its processes are not
/// exactly those of the user.
pub(super) fn slice_charge(
    cgroups: &Cgroups,
    proc: &mut Proc,
    query: &SliceQuery,
) -> Option<SliceCharge> {
    let path = format!("/user.slice/user-{}.slice", query.uid);
    let Ok(Members::Pids(members)) = cgroups.members_within(&path, MAX_CGROUPS) else {
        return None;
    };
    let members: BTreeSet<u32> = members.into_iter().collect();
    let own: BTreeSet<u32> = query.pids.iter().copied().collect();
    let outside: Vec<u32> = own.difference(&members).copied().collect();
    let others: Vec<u32> = members.difference(&own).copied().collect();
    if outside.len() + others.len() > MAX_STRAY {
        return None;
    }
    // A process that has exited meanwhile is in no cgroup.
    if outside.into_iter().any(|pid| proc.cgroup(pid).is_ok()) {
        return None;
    }
    let others_bytes = others.into_iter().map(|pid| others_bytes(proc, pid, query.uid)).sum();
    if others_bytes > query.tolerated_bytes {
        return None;
    }
    let memory = cgroups.memory(&path).ok()??;
    let bytes = charged_bytes(&memory, query.count)?.saturating_sub(others_bytes);
    let lazily_freed_bytes = if query.count.anon { memory.lazily_freed_bytes() } else { 0 };
    Some(SliceCharge { bytes, lazily_freed_bytes })
}

/// The memory of a process in the slice that is not charged to the user, bytes. A process of the
/// user counts as 0: it was started meanwhile.
fn others_bytes(proc: &mut Proc, pid: u32, user: Uid) -> u64 {
    let status = proc.status(pid).unwrap_or_default();
    if status.uid == Some(user) { 0 } else { status.charged_bytes().unwrap_or(0) }
}

/// The charge of the kinds that count, and of kernel memory that cannot be reclaimed. The page
/// cache is excluded, so this is not `memory.current`. `None`: the kernel is older than 5.18.
fn charged_bytes(memory: &CgroupMemory, count: Count) -> Option<u64> {
    let kinds = [
        (count.anon, memory.anon),
        (count.shmem, memory.shmem),
        // Swap that is also in memory is charged as anonymous or shared memory already.
        (count.swap, memory.swap.saturating_sub(memory.swap_cached)),
    ];
    let counted: u64 = kinds.iter().filter(|(counts, _)| *counts).map(|(_, bytes)| *bytes).sum();
    Some(counted + memory.kernel?.saturating_sub(memory.slab_reclaimable))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const USER: Uid = Uid(1000);
    const SLICE: &str = "cgroup/user.slice/user-1000.slice";

    /// Lines of a file of Linux 6.12, after a process wrote 8 MiB to a file of a tmpfs.
    const STAT: &str = "anon 65536\nfile 8388608\nkernel 114688\nkernel_stack 16384\n\
        pagetables 36864\nsec_pagetables 0\npercpu 0\nsock 0\nvmalloc 0\nshmem 8388608\n\
        zswap 0\nzswapped 0\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\nswapcached 0\n\
        anon_thp 0\ninactive_anon 0\nactive_anon 8409088\ninactive_file 0\nactive_file 0\n\
        unevictable 0\nslab_reclaimable 21560\nslab_unreclaimable 23272\nslab 44832\n";
    const CHARGED: u64 = 65536 + 8388608 + 114688 - 21560;

    /// A slice with processes 10 and 11 of the user, in a folder with a `proc` of its own.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.write(&format!("{SLICE}/cgroup.procs"), "");
            machine.write(&format!("{SLICE}/memory.stat"), STAT);
            machine.write(&format!("{SLICE}/memory.swap.current"), "4096\n");
            machine.write(&format!("{SLICE}/session-1.scope/cgroup.procs"), "10\n11\n");
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn process(&self, pid: u32, uid: Uid, anon_kib: u64) {
            let status =
                format!("Tgid:\t{pid}\nUid:\t{}\t0\t0\t0\nRssAnon:\t{anon_kib} kB\n", uid.0);
            self.write(&format!("proc/{pid}/status"), &status);
            self.write(&format!("proc/{pid}/cgroup"), "0::/system.slice/cron.service\n");
        }

        fn bytes(&self, pids: &[u32]) -> Option<u64> {
            self.charge(pids).map(|charge| charge.bytes)
        }

        fn charge(&self, pids: &[u32]) -> Option<SliceCharge> {
            let query = SliceQuery {
                uid: USER,
                pids: pids.to_vec(),
                count: Count::default(),
                tolerated_bytes: 1 << 20,
            };
            let cgroups = Cgroups::at(self.0.path().join("cgroup"));
            slice_charge(&cgroups, &mut Proc::new(self.0.path().join("proc")), &query)
        }
    }

    #[test]
    fn the_charge_excludes_page_cache_and_reclaimable_memory() {
        let machine = Machine::new();
        assert_eq!(machine.bytes(&[10, 11]), Some(CHARGED + 4096));
        let cached = STAT.replace("swapcached 0", "swapcached 4096");
        machine.write(&format!("{SLICE}/memory.stat"), &cached);
        assert_eq!(machine.bytes(&[10, 11]), Some(CHARGED), "swapped out, and in memory again");
        let freed = STAT.replace("inactive_file 0", "inactive_file 40960");
        machine.write(&format!("{SLICE}/memory.stat"), &freed);
        let charge = machine.charge(&[10, 11]).unwrap();
        assert_eq!(charge.lazily_freed_bytes, 40_960, "anonymous memory, as there is no cache");
        let old = STAT.replace("kernel 114688\n", "");
        machine.write(&format!("{SLICE}/memory.stat"), &old);
        assert_eq!(machine.bytes(&[10, 11]), None, "before Linux 5.18");
    }

    #[test]
    fn only_the_kinds_that_count_are_charged() {
        let memory = CgroupMemory {
            anon: 1,
            shmem: 20,
            file_mapped: 300,
            swap: 4000,
            kernel: Some(60_000),
            slab_reclaimable: 10_000,
            swap_cached: 1000,
            ..CgroupMemory::default()
        };
        assert_eq!(charged_bytes(&memory, Count::default()), Some(53_021));
        assert_eq!(charged_bytes(&memory, Count::of(["anon"])), Some(50_001));
    }

    #[test]
    fn a_slice_is_used_only_if_it_contains_all_processes_of_the_user() {
        let machine = Machine::new();
        machine.process(12, USER, 100);
        assert_eq!(machine.bytes(&[10, 11, 12]), None);
        // One process has exited meanwhile, and one was started.
        assert_eq!(machine.bytes(&[10, 11, 13]), Some(CHARGED + 4096));
        machine.process(11, USER, 50_000);
        assert_eq!(machine.bytes(&[10]), Some(CHARGED + 4096));
    }

    #[test]
    fn other_processes_in_the_slice_are_taken_off_or_prevent_its_use() {
        let machine = Machine::new();
        machine.process(11, Uid::ROOT, 10);
        assert_eq!(machine.bytes(&[10]), Some(CHARGED + 4096 - 10 * 1024));
        machine.process(11, Uid::ROOT, 1025);
        assert_eq!(machine.bytes(&[10]), None, "more than is tolerated");
    }

    #[test]
    fn a_slice_of_too_many_cgroups_or_without_the_controller_is_not_used() {
        let machine = Machine::new();
        fs::remove_file(machine.0.path().join(SLICE).join("memory.stat")).unwrap();
        assert_eq!(machine.bytes(&[10, 11]), None);
        let machine = Machine::new();
        for number in 0..MAX_CGROUPS {
            machine.write(&format!("{SLICE}/{number}.scope/cgroup.procs"), "");
        }
        assert_eq!(machine.bytes(&[10, 11]), None);
    }
}
