//! A measurement of one account.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use headroom_linux::clock::monotonic_ns;
use headroom_linux::machine_memory::Meminfo;
use memory_ledger::measurement::READ_MS;
use memory_ledger::{
    AccountId, ControllerUse, Count, Effort, Measurement, NS_PER_MS, Order, ProcessId, Uid,
    UsageSource,
};
use memory_watch::process::{
    FileId, FileRange, HeldFile, Hold, Proc, SmapsRollup, Storage, TmpfsDevices,
};
use owners::Owner;

use super::bound::{Bound, MappedFiles, MemoryParts};
use super::bounded::{Answer, BATCH, BoundedReader, Question, thread_cpu_ns};
use super::open_files::{Holder, held_bytes};
use super::slice::{self, ChargeDifference, Controller, SliceQuery};

/// Maximum number of file descriptors and mapped files examined per measurement, of all processes
/// of the account together: about 4 µs each.
pub(super) const MOST_DESCRIPTORS: usize = 16_384;

/// CPU time for what processes map of files that are searched, and for what they lock, in a
/// measurement on which no kill depends, milliseconds each. Other accounts wait for it, at most
/// [`PATIENCE_MS`](memory_ledger::measurement::PATIENCE_MS). It is longer than [`READ_MS`]: what
/// is not read counts twice.
const SEARCH_MS: u64 = 100;

/// One address space of the account.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// A process with this address space.
    pub id: ProcessId,
    /// The user of that process.
    pub uid: Uid,
    /// Its owner.
    pub owner: Owner,
    /// Memory charged for the address space, bytes.
    pub charged_bytes: u64,
    /// The part of `charged_bytes` that is shared memory; 0 if the account does not count it.
    pub shmem_bytes: u64,
    /// Its page tables, bytes.
    pub page_table_bytes: u64,
}

impl Member {
    /// Memory charged for the address space.
    fn charged(&self) -> MemoryParts {
        let shmem_bytes = self.shmem_bytes;
        MemoryParts { shmem_bytes, other_bytes: self.charged_bytes - shmem_bytes }
    }
}

/// Memory that another daemon holds for the account's processes.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The file through which it is mapped.
    pub file: Option<FileId>,
    /// Bytes, mapped or not.
    pub bytes: u64,
}

/// Memory of address spaces that no process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlisted {
    /// Those that a system call of another process uses, for so long that it is no fork, bytes.
    pub kept_bytes: u64,
    /// Others that a fork in progress or a system call uses, bytes.
    pub recent_bytes: u64,
    /// Shared memory of all but those of `kept_bytes`, bytes.
    pub shmem_bytes: u64,
}

/// Whether to search for files in memory that are held open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSearchMode {
    /// Only if the last measurement found some.
    AsBefore,
    /// In any case.
    Search,
}

/// A measurement to be made.
#[derive(Clone, Debug)]
pub struct Request {
    /// The account and the effort.
    pub order: Order,
    /// The kinds of memory that the account counts.
    pub count: Count,
    /// All address spaces of the account.
    pub members: Vec<Member>,
    /// Whether to search for files that are held open.
    pub files: FileSearchMode,
    /// Memory that other daemons hold for the account.
    pub held: Vec<Held>,
    /// Address spaces without a process, if a kill depends on the measurement.
    pub unlisted: Unlisted,
    /// All processes that are charged to the account, if the memory controller may be read.
    pub pids: Vec<u32>,
}

/// Measures accounts, and caches which of them hold files.
pub(super) struct Measurer {
    reader: BoundedReader,
    controller: Controller,
    proc: Proc,
    devices: TmpfsDevices,
    /// Accounts that hold files in memory open.
    holders: BTreeSet<AccountId>,
    /// Cached readings of the processes of accounts near their limits.
    shares: BTreeMap<AccountId, BTreeMap<ProcessId, Share>>,
}

/// The sizes of files in memory that an account's processes hold, and what they lock, bytes.
#[derive(Default)]
struct OpenFiles {
    /// Files of a tmpfs and memfds. What is mapped of them is shared memory.
    files: BTreeMap<FileId, u64>,
    /// Files of a ramfs and secret memory. What is mapped of them is memory of files.
    unreclaimable: BTreeMap<FileId, u64>,
    /// What the processes lock of other files.
    locked_bytes: u64,
    /// What processes that the budget excluded may lock of other files.
    unread_locked_bytes: u64,
}

impl OpenFiles {
    /// Memory that the kernel counts as that of files and cannot take back.
    fn page_cache_bytes(&self) -> u64 {
        self.unreclaimable.values().sum::<u64>() + self.locked_bytes + self.unread_locked_bytes
    }
}

/// The size of files of which processes may have mapped a part.
#[derive(Clone, Copy, Default)]
struct Unmapped {
    /// Without the parts that processes which were read have mapped, bytes.
    bytes: u64,
    /// The part of `bytes` that processes which the budget excluded may have mapped, bytes.
    unread_bytes: u64,
}

/// The reading of a process.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The part of its memory that belongs to other sharers, or is lazily freed.
    of_others: MemoryParts,
    /// Part of `of_others`: no other process has it, but the kernel can take it at any time.
    lazily_freed_bytes: u64,
    read_at_ns: u64,
}

impl Measurer {
    pub(super) fn new() -> Self {
        Self {
            reader: BoundedReader::default(),
            controller: Controller::new(slice::hierarchy()),
            proc: Proc::default(),
            devices: TmpfsDevices::new(),
            holders: BTreeSet::new(),
            shares: BTreeMap::new(),
        }
    }

    /// The memory of the files that each process holds open, bytes.
    pub(super) fn search_files(&mut self, holders: &[Holder]) -> BTreeMap<ProcessId, u64> {
        self.devices.forget_mounts();
        held_bytes(holders, |holder, left| self.memory_files(holder.owner, holder.id.pid, left))
    }

    /// The memory files that a process holds, once per descriptor; `left` is the number of
    /// descriptors and mapped files that may still be checked.
    fn memory_files(
        &mut self,
        owner: Owner,
        pid: u32,
        left: &mut usize,
    ) -> Vec<(HeldFile, Storage)> {
        let Some(Answer::HeldFiles { mut files, checked }) =
            self.reader.read(owner, Question::HeldFiles(pid, *left))
        else {
            return Vec::new();
        };
        *left -= checked;
        let (devices, proc) = (&mut self.devices, &self.proc);
        let with_storage = files.drain(..).map(|file| {
            let storage = file.unlisted.unwrap_or_else(|| devices.storage(file.id, proc, pid));
            (file, storage)
        });
        let in_memory = |storage| matches!(storage, Storage::Memory | Storage::Unreclaimable);
        with_storage.filter(|(_, storage)| in_memory(*storage)).collect()
    }

    pub(super) fn measure(&mut self, request: Request) -> Measurement {
        let begun_ns = thread_cpu_ns();
        let account = request.order.account;
        let charge = self.charge_difference(&request);
        let tolerated_bytes = request.order.tolerated_bytes;
        let found = match charge {
            Some(ChargeDifference { bytes, lazily_freed_bytes })
                if lazily_freed_bytes <= tolerated_bytes =>
            {
                self.shares.remove(&account);
                let source = UsageSource::Controller;
                Measurement {
                    account,
                    difference_bytes: bytes,
                    unlisted_bytes: 0,
                    used_unlisted_bytes: 0,
                    unread_bytes: 0,
                    source,
                    cost_ns: 0,
                }
            }
            charge => {
                if charge.is_none() {
                    self.controller.forget(account);
                }
                let summed_bytes = request.order.summed_bytes;
                let recent_bytes = request.unlisted.recent_bytes;
                let bound = self.bound(request);
                let unlisted_bytes = bound.unconfirmed_bytes();
                let used_bytes = recent_bytes + bound.unanswered_bytes();
                let difference_bytes = bound.bytes() as i64 - summed_bytes as i64;
                // What the controller counts in any case: lazily freed pages are no way to hide
                // memory that no process holds.
                let least_bytes = charge.map_or(i64::MIN, ChargeDifference::least_bytes);
                Measurement {
                    account,
                    difference_bytes: difference_bytes.max(least_bytes),
                    unlisted_bytes,
                    used_unlisted_bytes: used_bytes.min(unlisted_bytes),
                    unread_bytes: bound.unread_bytes(),
                    source: UsageSource::Pss,
                    cost_ns: 0,
                }
            }
        };
        let cost_ns = thread_cpu_ns() - begun_ns + self.reader.take_cpu_ns();
        Measurement { cost_ns, ..found }
    }

    /// The lazily freed memory of the account's processes in its last measurement, bytes.
    pub(super) fn lazily_freed(&self, account: AccountId) -> BTreeMap<ProcessId, u64> {
        let shares = self.shares.get(&account).into_iter().flatten();
        let lazily_freed = shares.map(|(id, share)| (*id, share.lazily_freed_bytes));
        lazily_freed.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// The memory controller's charge less the account's sum.
    fn charge_difference(&mut self, request: &Request) -> Option<ChargeDifference> {
        let Request { order, count, pids, held, .. } = request;
        let (ControllerUse::Allowed, AccountId::User(uid)) = (order.controller, order.account)
        else {
            return None;
        };
        let query = SliceQuery {
            uid,
            pids: pids.clone(),
            count: *count,
            tolerated_bytes: order.tolerated_bytes,
        };
        let difference = self.controller.difference(order, query, &mut self.reader)?;
        // Pages are charged to the cgroup of the daemon, which has touched them first, whether the
        // user's processes map them or not.
        let held = held.iter().filter(|_| count.shmem);
        let held_bytes: u64 = held.map(|held| held.bytes).sum();
        let hidden_bytes = held_bytes + self.page_cache_that_counts(request)?;
        let bytes = difference.bytes.saturating_add_unsigned(hidden_bytes);
        Some(ChargeDifference { bytes, ..difference })
    }

    /// What the memory controller reports as page cache and the kernel cannot take back, in files
    /// that the account's users hold open, bytes. Its statistics would not do: pages of the user's
    /// files that others lock are in the same sums. `None`: not all processes could be read.
    fn page_cache_that_counts(&mut self, request: &Request) -> Option<u64> {
        let Request { order, count, members, files, .. } = request;
        let wanted = *files == FileSearchMode::Search || self.holders.contains(&order.account);
        if !wanted || !count.shmem || count.file {
            return Some(0);
        }
        self.devices.forget_mounts();
        let open_files = self.open_files(order, members);
        let bytes = open_files.page_cache_bytes();
        match bytes {
            0 => self.holders.remove(&order.account),
            _ => self.holders.insert(order.account),
        };
        (open_files.unread_locked_bytes == 0).then_some(bytes)
    }

    /// The memory of the account's processes, each page divided by its sharers as far as that is
    /// needed.
    fn bound(&mut self, request: Request) -> Bound {
        let Request { order, count, mut members, files, held, unlisted, .. } = request;
        let account = order.account;
        self.devices.forget_mounts();
        let open_files = match files {
            FileSearchMode::AsBefore if !self.holders.contains(&account) => OpenFiles::default(),
            FileSearchMode::AsBefore | FileSearchMode::Search if count.shmem => {
                self.open_files(&order, &members)
            }
            FileSearchMode::AsBefore | FileSearchMode::Search => OpenFiles::default(),
        };
        // Where files count, what is mapped of these is in the sum; the rest is not known.
        let (page_cache_bytes, unread_locked_bytes) = if count.file {
            (0, 0)
        } else {
            (open_files.page_cache_bytes(), open_files.unread_locked_bytes)
        };
        let open = self.unmapped(&order, open_files.files, &members);
        match open.bytes + page_cache_bytes {
            0 => self.holders.remove(&account),
            _ => self.holders.insert(account),
        };
        let held = self.held(&order, &held, count, &members);
        let tables_bytes: u64 = members.iter().map(|member| member.page_table_bytes).sum();
        let mut bound = charged_bound(order.summed_bytes, &members, unlisted);
        let unread_bytes = open.unread_bytes + unread_locked_bytes + held.unread_bytes;
        bound.add(open.bytes + page_cache_bytes + held.bytes + tables_bytes - unread_bytes);
        if bound.bytes() > order.enough_bytes {
            self.read_files(&order, &mut members, &mut bound);
        }
        if bound.bytes() > order.enough_bytes && bound.shmem_bytes() > order.tolerated_bytes {
            bound.bound_by_machine(machine_shmem_bytes());
        }
        if bound.bytes() > order.enough_bytes {
            self.read_members(&order, count, &mut members, &mut bound);
        } else {
            self.shares.remove(&account);
        }
        // No kill and no warning may come from what was not read: it may be in the sum already.
        let unread_bytes = unread_bytes.min(order.enough_bytes.saturating_sub(bound.bytes()));
        bound.add(unread_bytes);
        bound.exclude(unread_bytes);
        bound
    }

    /// Bounds shared memory by the mapped parts of the files of all processes, and removes
    /// processes that have exited. Many processes with the same large shared memory are measured by
    /// this in microseconds each; reading their page tables would take longer than a kill waits.
    fn read_files(&mut self, order: &Order, members: &mut Vec<Member>, bound: &mut Bound) {
        let begun_ns = self.spent_ns();
        members.sort_unstable_by_key(|member| std::cmp::Reverse(member.shmem_bytes));
        let mut left: u64 = members.iter().map(|member| member.shmem_bytes).sum();
        let (mut files, mut exited) = (MappedFiles::default(), Vec::new());
        let sharers = members.iter().take_while(|member| member.shmem_bytes > 0).count();
        for batch in members[..sharers].chunks(BATCH) {
            let wanted = left > order.tolerated_bytes && self.affords(order, begun_ns, READ_MS);
            let questions: Vec<(Owner, Question)> = batch
                .iter()
                .map(|member| (member.owner, Question::Ranges(member.id.pid)))
                .collect();
            let answers = if wanted { self.reader.read_all(&questions) } else { Vec::new() };
            let mut answers = answers.into_iter();
            for member in batch {
                let pid = member.id.pid;
                match answers.next().flatten() {
                    Some(Answer::Exited) => exited.push(member.id),
                    Some(Answer::Ranges(ranges)) => {
                        let (devices, proc) = (&mut self.devices, &self.proc);
                        let file =
                            |range: FileRange| (range, devices.storage(range.file, proc, pid));
                        files.add(member.shmem_bytes, ranges.into_iter().map(file));
                    }
                    _ => files.add_unknown(member.shmem_bytes),
                }
                left -= member.shmem_bytes;
            }
        }
        bound.bound_by_files(files.bytes());
        members.retain(|member| {
            let has_exited = exited.contains(&member.id);
            if has_exited {
                bound.exit(member.charged());
            }
            !has_exited
        });
    }

    /// CPU time of this measurement so far, nanoseconds.
    fn spent_ns(&self) -> u64 {
        thread_cpu_ns() + self.reader.cpu_ns()
    }

    /// Whether another process may be read.
    fn affords(&self, order: &Order, begun_ns: u64, budget_ms: u64) -> bool {
        order.effort == Effort::All || self.spent_ns() - begun_ns < budget_ms * NS_PER_MS
    }

    /// Takes off what other sharers have of the processes' memory. A process that was not read yet
    /// counts in full. With [`Effort::All`] all are read, until usage is low enough.
    fn read_members(
        &mut self,
        order: &Order,
        count: Count,
        members: &mut [Member],
        bound: &mut Bound,
    ) {
        let begun_ns = self.spent_ns();
        let mut before = self.shares.remove(&order.account).unwrap_or_default();
        let mut now = BTreeMap::new();
        let read_at = |member: &Member| before.get(&member.id).map(|share| share.read_at_ns);
        match order.effort {
            Effort::All => {
                members.sort_unstable_by_key(|member| std::cmp::Reverse(member.charged_bytes));
            }
            Effort::Some => members
                .sort_by_key(|member| (read_at(member), std::cmp::Reverse(member.charged_bytes))),
        }
        // The budget is checked after each process, a limit after several.
        let batch = match order.effort {
            Effort::All => BATCH,
            Effort::Some => 1,
        };
        let mut left: u64 = members.iter().map(|member| member.charged_bytes).sum();
        for batch in members.chunks(batch) {
            let wanted = left > order.tolerated_bytes
                && match order.effort {
                    Effort::All => bound.bytes() > order.enough_bytes,
                    Effort::Some => self.affords(order, begun_ns, READ_MS),
                };
            let mut answers = if wanted { self.rollups(batch) } else { Vec::new() }.into_iter();
            for member in batch {
                let known = before.remove(&member.id);
                let share = match answers.next() {
                    Some(Some(Answer::Rollup(rollup))) => member_share(member, &rollup, count),
                    Some(Some(Answer::Exited)) => {
                        bound.exit(member.charged());
                        None
                    }
                    Some(_) => {
                        bound.on_no_answer(member.charged());
                        None
                    }
                    None => {
                        let excluded = known.is_none() && left > order.tolerated_bytes;
                        if excluded && order.effort == Effort::Some {
                            bound.exclude(member.charged_bytes);
                        }
                        known
                    }
                };
                left -= member.charged_bytes;
                if let Some(share) = share {
                    bound.take_off(share.of_others, member.charged());
                    now.insert(member.id, share);
                }
            }
        }
        self.shares.insert(order.account, now);
    }

    fn rollups(&mut self, members: &[Member]) -> Vec<Option<Answer>> {
        let questions: Vec<(Owner, Question)> =
            members.iter().map(|member| (member.owner, Question::Rollup(member.id.pid))).collect();
        self.reader.read_all(&questions)
    }

    /// The files in memory that the account's users own and hold.
    fn open_files(&mut self, order: &Order, members: &[Member]) -> OpenFiles {
        let owners: BTreeSet<Uid> = members.iter().map(|member| member.uid).collect();
        let (mut open, mut left) = (OpenFiles::default(), MOST_DESCRIPTORS);
        // No list of mounts shows those of a detached tmpfs.
        let mut in_memory = BTreeSet::new();
        for member in members {
            let found = self.memory_files(member.owner, member.id.pid, &mut left);
            in_memory.extend(found.iter().map(|(file, _)| file.id));
            let owned: Vec<(HeldFile, Storage)> =
                found.into_iter().filter(|(file, _)| owners.contains(&file.owner)).collect();
            let is_mapped = |file: &HeldFile, storage: Storage| {
                file.hold == Hold::Mapped && storage == Storage::Memory
            };
            let mapped = owned.iter().filter(|(file, storage)| is_mapped(file, *storage));
            let mapped_bytes: u64 = mapped.map(|(file, _)| file.bytes).sum();
            // Page tables may have all of them: finding out takes long.
            let is_shown = mapped_bytes <= member.shmem_bytes;
            for (file, storage) in owned {
                if is_shown && is_mapped(&file, storage) {
                    continue;
                }
                let files = match storage {
                    Storage::Unreclaimable => &mut open.unreclaimable,
                    _ => &mut open.files,
                };
                files.insert(file.id, file.bytes);
            }
        }
        let begun_ns = self.spent_ns();
        for member in members {
            if !self.affords(order, begun_ns, SEARCH_MS) {
                let Ok(status) = self.proc.status(member.id.pid) else { continue };
                // Locked pages of files are resident ones.
                open.unread_locked_bytes += status.locked_bytes.min(status.file_bytes).unwrap_or(0);
                continue;
            }
            let answer = self.reader.read(member.owner, Question::Locked(member.id.pid));
            let Some(Answer::Mapped(locked)) = answer else { continue };
            for (id, bytes) in locked {
                let storage = self.devices.storage(id, &self.proc, member.id.pid);
                let elsewhere = matches!(storage, Storage::Memory | Storage::Unreclaimable);
                if !elsewhere && !in_memory.contains(&id) {
                    open.locked_bytes += bytes;
                }
            }
        }
        open
    }

    /// The memory that other daemons hold for the account, less the part that its processes have
    /// mapped.
    fn held(&mut self, order: &Order, held: &[Held], count: Count, members: &[Member]) -> Unmapped {
        if !count.shmem {
            return Unmapped::default();
        }
        let (mut files, mut other_bytes) = (BTreeMap::new(), 0);
        for Held { file, bytes } in held {
            match file {
                Some(file) => *files.entry(*file).or_insert(0) += bytes,
                None => other_bytes += bytes,
            }
        }
        let unmapped = self.unmapped(order, files, members);
        Unmapped { bytes: other_bytes + unmapped.bytes, ..unmapped }
    }

    /// The size of these files, less the part that the account's processes have mapped. What a
    /// process has mapped since it was listed is not in its shared memory, and is not subtracted.
    fn unmapped(
        &mut self,
        order: &Order,
        mut files: BTreeMap<FileId, u64>,
        members: &[Member],
    ) -> Unmapped {
        if files.is_empty() {
            return Unmapped::default();
        }
        let ids: Arc<[FileId]> = files.keys().copied().collect();
        let (begun_ns, mut unread_bytes) = (self.spent_ns(), 0);
        for member in members.iter().filter(|member| member.shmem_bytes > 0) {
            if !self.affords(order, begun_ns, SEARCH_MS) {
                unread_bytes += member.shmem_bytes;
                continue;
            }
            let question = Question::Mapped(member.id.pid, Arc::clone(&ids));
            let answer = self.reader.read(member.owner, question);
            let Some(Answer::Mapped(mapped)) = answer else { continue };
            let mut listed_bytes = member.shmem_bytes;
            for (id, mapped) in mapped {
                if let Some(bytes) = files.get_mut(&id) {
                    let counted = mapped.min(listed_bytes).min(*bytes);
                    *bytes -= counted;
                    listed_bytes -= counted;
                }
            }
        }
        let bytes = files.values().sum();
        Unmapped { bytes, unread_bytes: unread_bytes.min(bytes) }
    }
}

/// The account's memory as charged, each page once for each process.
fn charged_bound(summed_bytes: u64, members: &[Member], unlisted: Unlisted) -> Bound {
    let charged_bytes: u64 = members.iter().map(|member| member.charged_bytes).sum();
    let shmem_bytes: u64 = members.iter().map(|member| member.shmem_bytes).sum();
    let unlisted_bytes = summed_bytes.saturating_sub(charged_bytes + unlisted.kept_bytes);
    let unlisted_shmem_bytes = unlisted.shmem_bytes.min(unlisted_bytes);
    let listed = MemoryParts {
        shmem_bytes,
        other_bytes: summed_bytes.saturating_sub(shmem_bytes + unlisted_bytes),
    };
    let unlisted = MemoryParts {
        shmem_bytes: unlisted_shmem_bytes,
        other_bytes: unlisted_bytes - unlisted_shmem_bytes,
    };
    Bound::new(listed, unlisted)
}

/// The machine's shared memory, each page once, bytes. The kernel adds up what the CPUs have
/// allocated, except for less than half a MiB of each.
pub(crate) fn machine_shmem_bytes() -> u64 {
    let read = Meminfo::read(Path::new("/proc"));
    read.ok().and_then(|info| info.shmem).unwrap_or(u64::MAX)
}

/// The parts of a process's memory that belong to other sharers. `None`: as [`share`].
fn member_share(member: &Member, rollup: &SmapsRollup, count: Count) -> Option<Share> {
    let own_shmem = if count.shmem { rollup.pss_shmem_bytes? } else { 0 };
    let own_other = share(rollup, Count { shmem: false, ..count })?;
    let MemoryParts { shmem_bytes, other_bytes } = member.charged();
    let lazily_freed_bytes = if count.anon { rollup.lazily_freed_bytes() } else { 0 };
    // What a process has added since it was listed must not hide what it shares.
    let own_anon = rollup.pss_anon_bytes.filter(|_| count.anon).zip(rollup.anon_bytes);
    let shared_anon = own_anon.map_or(0, |(own, all)| all.saturating_sub(own));
    let of_others = MemoryParts {
        shmem_bytes: shmem_bytes.saturating_sub(own_shmem),
        other_bytes: other_bytes.saturating_sub(own_other).max(shared_anon + lazily_freed_bytes),
    };
    Some(Share { of_others, lazily_freed_bytes, read_at_ns: monotonic_ns() })
}

/// The memory of a process of the kinds that count, shared pages divided by their sharers, without
/// lazily freed pages, bytes.
/// `None`: the kernel does not distinguish the kinds (before 5.4).
fn share(rollup: &SmapsRollup, count: Count) -> Option<u64> {
    let anon_bytes =
        rollup.pss_anon_bytes.map(|bytes| bytes.saturating_sub(rollup.lazily_freed_bytes()));
    let kinds = [
        (count.anon, anon_bytes),
        (count.shmem, rollup.pss_shmem_bytes),
        (count.file, rollup.pss_file_bytes),
        (count.swap, rollup.swap_pss_bytes),
    ];
    let counted = kinds.iter().filter(|(counts, _)| *counts);
    counted.map(|(_, bytes)| *bytes).sum()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::{Mutex, PoisonError};

    use memory_ledger::Demand;
    use memory_watch::cgroups::Cgroups;
    use rustix::fs::{MemfdFlags, Mode, OFlags};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
    };

    use super::*;

    /// Held by tests that hold page cache: it counts for this process, which they measure.
    static PAGE_CACHE: Mutex<()> = Mutex::new(());

    fn order(uid: Uid, effort: Effort) -> Order {
        Order {
            account: AccountId::User(uid),
            summed_bytes: 0,
            enough_bytes: 0,
            tolerated_bytes: 1 << 20,
            effort,
            controller: ControllerUse::Allowed,
            demand: Demand::Usage,
        }
    }

    /// This process as a user's.
    fn own(uid: Uid, shmem_bytes: u64) -> Member {
        let (id, owner) = (ProcessId { pid: std::process::id(), start_time: 0 }, Owner::User(uid));
        Member { id, uid, owner, charged_bytes: shmem_bytes, shmem_bytes, page_table_bytes: 0 }
    }

    /// A file on a disk with 1 MiB.
    fn on_disk() -> std::fs::File {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        std::io::Write::write_all(&mut &file, &vec![1; 1 << 20]).unwrap();
        file
    }

    /// A file of a detached filesystem of this type with 8 MiB.
    fn file_of(fs_type: &str) -> OwnedFd {
        let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        fsconfig_create(context.as_fd()).unwrap();
        let attributes = MountAttrFlags::empty();
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).unwrap();
        let create = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&mount, "file", create, Mode::RUSR).unwrap();
        assert_eq!(rustix::io::write(&file, &vec![1; 8 << 20]), Ok(8 << 20));
        file
    }

    #[test]
    fn page_cache_that_cannot_be_reclaimed_adds_to_the_controllers_charge() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let _alone = PAGE_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let (pid, uid) = (std::process::id(), Uid(rustix::process::getuid().as_raw()));
        let folder = tempfile::tempdir().unwrap();
        let slice = folder.path().join(format!("user.slice/user-{uid}.slice"));
        std::fs::create_dir_all(&slice).unwrap();
        std::fs::write(folder.path().join("cgroup.controllers"), "memory").unwrap();
        std::fs::write(slice.join("cgroup.procs"), format!("{pid}\n")).unwrap();
        let stat = format!("anon {}\nfile {}\nkernel 0\n", 1 << 20, 8 << 20);
        std::fs::write(slice.join("memory.stat"), stat).unwrap();
        let cgroups = Cgroups::at(folder.path());
        let mut measurer =
            Measurer { controller: Controller::new(Some(cgroups)), ..Measurer::new() };
        let mut measured = |files, count| {
            let order = order(uid, Effort::All);
            let (members, held, pids) = (vec![own(uid, 0)], Vec::new(), vec![pid]);
            let unlisted = Unlisted::default();
            let request = Request { order, count, members, files, held, unlisted, pids };
            let Measurement { difference_bytes, source, .. } = measurer.measure(request);
            assert_eq!(source, UsageSource::Controller);
            difference_bytes
        };
        let file = file_of("ramfs");
        assert_eq!(measured(FileSearchMode::AsBefore, Count::default()), 1 << 20);
        assert_eq!(measured(FileSearchMode::Search, Count::default()), 9 << 20);
        assert_eq!(
            measured(FileSearchMode::AsBefore, Count::default()),
            9 << 20,
            "it was found before"
        );
        drop(file);
        assert_eq!(measured(FileSearchMode::AsBefore, Count::default()), 1 << 20);
        assert!(measurer.holders.is_empty());
    }

    #[test]
    fn locked_memory_that_resident_sets_have_counts_once() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        const LEN: usize = 1 << 20;
        let _alone = PAGE_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let locked_bytes = || {
            let (order, members) = (order(Uid(0), Effort::All), [own(Uid(0), 64 << 20)]);
            Measurer::new().open_files(&order, &members).locked_bytes
        };
        let before = locked_bytes();
        let detached = file_of("tmpfs");
        // SAFETY: takes numbers; the result is a new segment, or -1.
        let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, LEN, 0o600) };
        assert_ne!(segment, -1);
        // SAFETY: new mappings, written within their bounds, that nothing refers to afterwards.
        unsafe {
            let attached = libc::shmat(segment, std::ptr::null(), 0);
            libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut());
            let of_tmpfs = mmap(std::ptr::null_mut(), LEN, protection, shared, &detached, 0);
            let own_copy =
                mmap(std::ptr::null_mut(), LEN, protection, MapFlags::PRIVATE, on_disk(), 0);
            let maps = [attached, of_tmpfs.unwrap(), own_copy.unwrap()];
            for start in maps {
                start.cast::<u8>().write_bytes(1, LEN);
                rustix::mm::mlock(start, LEN).unwrap();
            }
            assert_eq!(locked_bytes(), before);
            // What is not written to is the file's.
            let of_file = mmap(std::ptr::null_mut(), LEN, ProtFlags::READ, shared, on_disk(), 0);
            rustix::mm::mlock(of_file.unwrap(), LEN).unwrap();
            assert_eq!(locked_bytes(), before + LEN as u64);
            libc::shmdt(attached);
            for start in [maps[1], maps[2], of_file.unwrap()] {
                munmap(start, LEN).unwrap();
            }
        }
    }

    #[test]
    fn memory_mapped_since_its_process_was_listed_is_not_subtracted() {
        const MIB: u64 = 1 << 20;
        let memfd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, 4 * MIB).unwrap();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let flags = flags | MapFlags::POPULATE;
        // SAFETY: a new mapping, which this test does not access.
        unsafe { mmap(std::ptr::null_mut(), 4 << 20, protection, flags, &memfd, 0) }.unwrap();
        let stat = rustix::fs::fstat(&memfd).unwrap();
        let file = FileId { device: stat.st_dev, inode: stat.st_ino };
        let held = [Held { file: Some(file), bytes: 4 * MIB }];
        let held_bytes = |shmem_bytes| {
            let (order, members) = (order(Uid(0), Effort::All), [own(Uid(0), shmem_bytes)]);
            Measurer::new().held(&order, &held, Count::default(), &members).bytes
        };
        assert_eq!(held_bytes(0), 4 * MIB);
        assert_eq!(held_bytes(MIB), 3 * MIB);
        assert_eq!(held_bytes(4 * MIB), 0);
    }

    #[test]
    fn what_the_budget_excludes_is_not_confirmed_and_exceeds_no_limit() {
        const LEN: usize = 1 << 20;
        let _alone = PAGE_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let (address, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let memfd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, LEN as u64).unwrap();
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let maps = [on_disk().into(), memfd.try_clone().unwrap()].map(|file: OwnedFd| {
            // SAFETY: a new mapping, which this test does not access.
            unsafe { mmap(address, LEN, protection, flags, file, 0) }.unwrap()
        });
        // SAFETY: of the mapping of the file.
        unsafe { rustix::mm::mlock(maps[0], LEN) }.unwrap();
        // To read all of them takes far longer than the budget.
        let member = Member { charged_bytes: 0, ..own(Uid(0), LEN as u64) };
        let (order, members) = (order(Uid(0), Effort::Some), vec![member; 5_000]);
        let mut measurer = Measurer::new();
        let open_files = measurer.open_files(&order, &members);
        let (locked, unread) = (open_files.locked_bytes, open_files.unread_locked_bytes);
        assert!(locked >= LEN as u64 && unread >= LEN as u64, "{locked} {unread}");
        let stat = rustix::fs::fstat(&memfd).unwrap();
        let file = FileId { device: stat.st_dev, inode: stat.st_ino };
        let files = BTreeMap::from([(file, 10_000 * LEN as u64)]);
        let unmapped = measurer.unmapped(&order, files, &members);
        assert!(unmapped.unread_bytes > 0 && unmapped.unread_bytes < unmapped.bytes);
        let order = Order { enough_bytes: 3_000 * LEN as u64, ..order };
        let (count, unlisted) = (Count::default(), Unlisted::default());
        let (held, pids, files) = (Vec::new(), Vec::new(), FileSearchMode::Search);
        let request = Request { order, count, members, files, held, unlisted, pids };
        let measured = measurer.measure(request);
        assert_eq!(measured.difference_bytes, 3_000 * LEN as i64, "{measured:?}");
        assert!(measured.unlisted_bytes > 0);
        for start in maps {
            // SAFETY: the mappings of above, to which nothing refers.
            unsafe { munmap(start, LEN) }.unwrap();
        }
    }

    #[test]
    fn a_share_includes_the_counted_kinds_only() {
        let rollup = SmapsRollup {
            pss_anon_bytes: Some(1),
            pss_shmem_bytes: Some(20),
            pss_file_bytes: Some(300),
            swap_pss_bytes: Some(4000),
            ..SmapsRollup::default()
        };
        assert_eq!(share(&rollup, Count::default()), Some(4021));
        assert_eq!(share(&rollup, Count::of(["file"])), Some(300));
        let pss_anon_bytes = Some(1000);
        let (lazy_free_bytes, shared_clean_bytes) = (Some(900), Some(50));
        let lazy = SmapsRollup { pss_anon_bytes, lazy_free_bytes, shared_clean_bytes, ..rollup };
        assert_eq!(share(&lazy, Count::of(["anon"])), Some(150));
        let old = SmapsRollup { pss_anon_bytes: None, ..rollup };
        assert_eq!(share(&old, Count::default()), None);
    }
    #[test]
    fn growth_since_the_list_hides_no_shared_memory() {
        let member = Member { charged_bytes: 1000, ..own(Uid(0), 0) };
        let rollup = SmapsRollup {
            anon_bytes: Some(3000),
            pss_anon_bytes: Some(2400),
            pss_shmem_bytes: Some(0),
            swap_pss_bytes: Some(0),
            ..SmapsRollup::default()
        };
        let share = member_share(&member, &rollup, Count::default()).unwrap();
        assert_eq!(share.of_others.other_bytes, 600);
        let exact = Member { charged_bytes: 3000, ..member };
        let share = member_share(&exact, &rollup, Count::default()).unwrap();
        assert_eq!(share.of_others.other_bytes, 600);
        let lazy =
            SmapsRollup { lazy_free_bytes: Some(500), shared_clean_bytes: Some(0), ..rollup };
        let share = member_share(&exact, &lazy, Count::default()).unwrap();
        assert_eq!(share.of_others.other_bytes, 1100);
    }
}
