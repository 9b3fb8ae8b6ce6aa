//! A measurement of one account.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headroom_linux::clock::monotonic_ns;
use memory_ledger::measurement::READ_MS;
use memory_ledger::{
    AccountId, ControllerUse, Count, Effort, Measurement, Order, ProcessId, Uid, UsageSource,
};
use memory_watch::process::{FileId, FileRange, HeldFile, Proc, SmapsRollup, TmpfsDevices};

use super::bounded::{Answer, BATCH, BoundedReader, Question, thread_cpu_ns};
use super::controller::{self, Controller};
use super::mapped_files::MappedFiles;
use super::open_files::{Holder, held_bytes};
use super::slice::SliceQuery;
use crate::clock::NS_PER_MS;

/// Maximum number of file descriptors examined per measurement, of all processes of the account
/// together: about 4 µs each.
pub(super) const MOST_DESCRIPTORS: usize = 16_384;

/// One address space of the account.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// A process with this address space.
    pub id: ProcessId,
    /// The user of that process.
    pub uid: Uid,
    /// Memory charged for the address space, bytes.
    pub charged_bytes: u64,
    /// The part of `charged_bytes` that is shared memory; 0 if the account does not count it.
    pub shmem_bytes: u64,
    /// Its page tables, bytes.
    pub page_table_bytes: u64,
}

impl Member {
    /// Memory charged for the address space besides shared memory, bytes.
    fn other_bytes(&self) -> u64 {
        self.charged_bytes - self.shmem_bytes
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

/// Memory of address spaces that no process has, as far as a fork in progress or a system call of
/// another process uses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlisted {
    /// Those that are used for so long that it is no fork, bytes.
    pub kept_bytes: u64,
    /// The others, bytes.
    pub recent_bytes: u64,
}

/// Whether to search for tmpfs files and memfds that are held open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
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
    pub files: Files,
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
    /// Accounts that hold tmpfs files or memfds open.
    holders: BTreeSet<AccountId>,
    /// Cached readings of the processes of accounts near their limits.
    shares: BTreeMap<AccountId, BTreeMap<ProcessId, Share>>,
}

/// The reading of a process.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The part of its shared memory that belongs to other sharers, bytes.
    shmem_bytes: u64,
    /// The part of its other memory that belongs to other sharers, bytes.
    other_bytes: u64,
    read_at_ns: u64,
}

/// An upper bound of an account's actual usage.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The mapped shared memory of all processes, less what other sharers have of it as far as
    /// processes were read, bytes.
    shmem_bytes: u64,
    /// The mapped parts of all files, bytes.
    files_bytes: u64,
    /// All other memory, bytes.
    other_bytes: u64,
    /// Part of the others that belongs to processes which the budget excluded, bytes.
    unread_bytes: u64,
    /// Memory of processes that have exited since they were listed, in none of the others, bytes.
    exited_bytes: u64,
}

impl Bound {
    fn bytes(&self) -> u64 {
        self.other_bytes + self.shmem_bytes.min(self.files_bytes)
    }

    /// Takes off what other sharers have of a process's memory. The charge may have changed since
    /// the process was read, so it caps the shared part.
    fn take_off(&mut self, share: Share, member: &Member) {
        self.shmem_bytes -= share.shmem_bytes.min(member.shmem_bytes);
        let shared_bytes = share.other_bytes.min(member.other_bytes());
        self.other_bytes = self.other_bytes.saturating_sub(shared_bytes);
    }

    /// Takes off the memory of a process that has exited: it is being freed.
    fn exit(&mut self, member: &Member) {
        self.shmem_bytes -= member.shmem_bytes;
        self.other_bytes = self.other_bytes.saturating_sub(member.other_bytes());
        self.exited_bytes += member.charged_bytes;
    }
}

impl Measurer {
    pub(super) fn new() -> Self {
        Self {
            reader: BoundedReader::default(),
            controller: Controller::new(controller::hierarchy()),
            proc: Proc::default(),
            devices: TmpfsDevices::new(),
            holders: BTreeSet::new(),
            shares: BTreeMap::new(),
        }
    }

    /// The memory of the files that each process holds open, bytes.
    pub(super) fn search_files(&mut self, holders: &[Holder]) -> BTreeMap<ProcessId, u64> {
        self.devices.forget_mounts();
        held_bytes(holders, &self.proc, &mut self.devices)
    }

    pub(super) fn measure(&mut self, request: Request) -> Measurement {
        let begun_ns = thread_cpu_ns();
        let account = request.order.account;
        let found = match self.charge_difference(&request) {
            Some(difference_bytes) => {
                self.holders.remove(&account);
                self.shares.remove(&account);
                let source = UsageSource::Controller;
                Measurement {
                    account,
                    difference_bytes,
                    unlisted_bytes: 0,
                    used_unlisted_bytes: 0,
                    source,
                    cost_ns: 0,
                }
            }
            None => {
                self.controller.forget(account);
                let listed: u64 = request.members.iter().map(|member| member.charged_bytes).sum();
                let summed_bytes = request.order.summed_bytes;
                let Unlisted { kept_bytes, recent_bytes } = request.unlisted;
                let bound = self.bound(request);
                let difference_bytes =
                    (bound.bytes() + bound.exited_bytes) as i64 - summed_bytes as i64;
                let unlisted_bytes = summed_bytes.saturating_sub(listed + kept_bytes)
                    + bound.exited_bytes
                    + bound.unread_bytes;
                Measurement {
                    account,
                    difference_bytes,
                    unlisted_bytes,
                    used_unlisted_bytes: recent_bytes.min(unlisted_bytes),
                    source: UsageSource::Pss,
                    cost_ns: 0,
                }
            }
        };
        let cost_ns = thread_cpu_ns() - begun_ns + self.reader.take_cpu_ns();
        Measurement { cost_ns, ..found }
    }

    /// The memory controller's charge less the account's sum, bytes.
    fn charge_difference(&mut self, request: &Request) -> Option<i64> {
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
        let difference_bytes = self.controller.difference(order, query, &mut self.reader)?;
        // Pages are charged to the cgroup of the daemon, which has touched them first, whether the
        // user's processes map them or not.
        let held = held.iter().filter(|_| count.shmem);
        let held_bytes = held.map(|held| held.bytes).sum();
        Some(difference_bytes.saturating_add_unsigned(held_bytes))
    }

    /// The memory of the account's processes, each page divided by its sharers as far as that is
    /// needed.
    fn bound(&mut self, request: Request) -> Bound {
        let Request { order, count, mut members, files, held, .. } = request;
        let account = order.account;
        self.devices.forget_mounts();
        let open_files = match files {
            Files::AsBefore if !self.holders.contains(&account) => BTreeMap::new(),
            Files::AsBefore | Files::Search if count.shmem => self.open_files(&members),
            Files::AsBefore | Files::Search => BTreeMap::new(),
        };
        let open_bytes = self.unmapped_bytes(open_files, &members);
        match open_bytes {
            0 => self.holders.remove(&account),
            _ => self.holders.insert(account),
        };
        let held_bytes = open_bytes + self.held_bytes(&held, count, &members);
        let tables_bytes: u64 = members.iter().map(|member| member.page_table_bytes).sum();
        let shmem_bytes: u64 = members.iter().map(|member| member.shmem_bytes).sum();
        let private_bytes = order.summed_bytes.saturating_sub(shmem_bytes);
        let other_bytes = private_bytes + held_bytes + tables_bytes;
        let (files_bytes, unread_bytes, exited_bytes) = (u64::MAX, 0, 0);
        let mut bound = Bound { shmem_bytes, files_bytes, other_bytes, unread_bytes, exited_bytes };
        if bound.bytes() > order.enough_bytes {
            self.read_files(&order, &mut members, &mut bound);
        }
        if bound.bytes() > order.enough_bytes {
            self.read_members(&order, count, &mut members, &mut bound);
        } else {
            self.shares.remove(&account);
        }
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
            let wanted = left > order.tolerated_bytes && self.affords(order, begun_ns);
            let questions: Vec<Question> =
                batch.iter().map(|member| Question::Ranges(member.id.pid)).collect();
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
        bound.files_bytes = files.bytes();
        members.retain(|member| {
            let has_exited = exited.contains(&member.id);
            if has_exited {
                bound.exit(member);
            }
            !has_exited
        });
    }

    /// CPU time of this measurement so far, nanoseconds.
    fn spent_ns(&self) -> u64 {
        thread_cpu_ns() + self.reader.cpu_ns()
    }

    /// Whether another process may be read.
    fn affords(&self, order: &Order, begun_ns: u64) -> bool {
        order.effort == Effort::All || self.spent_ns() - begun_ns < READ_MS * NS_PER_MS
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
                    Effort::Some => self.affords(order, begun_ns),
                };
            let mut answers = if wanted { self.rollups(batch) } else { Vec::new() }.into_iter();
            for member in batch {
                let known = before.remove(&member.id);
                let share = match answers.next() {
                    Some(Some(Answer::Rollup(rollup))) => member_share(member, &rollup, count),
                    Some(Some(Answer::Exited)) => {
                        bound.exit(member);
                        None
                    }
                    Some(_) => None,
                    None => {
                        let excluded = known.is_none() && left > order.tolerated_bytes;
                        if excluded && order.effort == Effort::Some {
                            bound.unread_bytes += member.charged_bytes;
                        }
                        known
                    }
                };
                left -= member.charged_bytes;
                if let Some(share) = share {
                    bound.take_off(share, member);
                    now.insert(member.id, share);
                }
            }
        }
        self.shares.insert(order.account, now);
    }

    fn rollups(&mut self, members: &[Member]) -> Vec<Option<Answer>> {
        let questions: Vec<Question> =
            members.iter().map(|member| Question::Rollup(member.id.pid)).collect();
        self.reader.read_all(&questions)
    }

    /// The size of each tmpfs file and memfd that the account's users own and hold open, bytes.
    fn open_files(&mut self, members: &[Member]) -> BTreeMap<FileId, u64> {
        let owners: BTreeSet<Uid> = members.iter().map(|member| member.uid).collect();
        let (mut files, mut found) = (BTreeMap::new(), Vec::new());
        let mut left = MOST_DESCRIPTORS;
        for member in members {
            let most = left;
            let looked_at = self
                .proc
                .held_files(member.id.pid, most, &mut self.devices, &mut found)
                .unwrap_or(0);
            left -= looked_at;
            let own = found.drain(..).filter(|file| owners.contains(&file.owner));
            files.extend(own.map(|HeldFile { id, bytes, .. }| (id, bytes)));
        }
        files
    }

    /// The memory that other daemons hold for the account, bytes, less the part that its processes
    /// have mapped.
    fn held_bytes(&mut self, held: &[Held], count: Count, members: &[Member]) -> u64 {
        if !count.shmem {
            return 0;
        }
        let (mut files, mut other_bytes) = (BTreeMap::new(), 0);
        for Held { file, bytes } in held {
            match file {
                Some(file) => *files.entry(*file).or_insert(0) += bytes,
                None => other_bytes += bytes,
            }
        }
        other_bytes + self.unmapped_bytes(files, members)
    }

    /// The size of these files, bytes, less the part that the account's processes have mapped. What
    /// a process has mapped since it was listed is not in its shared memory, and is not subtracted.
    fn unmapped_bytes(&mut self, mut files: BTreeMap<FileId, u64>, members: &[Member]) -> u64 {
        if files.is_empty() {
            return 0;
        }
        let ids: Arc<[FileId]> = files.keys().copied().collect();
        for member in members.iter().filter(|member| member.shmem_bytes > 0) {
            let question = Question::Mapped(member.id.pid, Arc::clone(&ids));
            let answer = self.reader.read(question);
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
        files.values().sum()
    }
}

/// The parts of a process's memory that belong to other sharers. `None`: as [`share`].
fn member_share(member: &Member, rollup: &SmapsRollup, count: Count) -> Option<Share> {
    let own_shmem = if count.shmem { rollup.pss_shmem_bytes? } else { 0 };
    let own_other = share(rollup, Count { shmem: false, ..count })?;
    Some(Share {
        shmem_bytes: member.shmem_bytes.saturating_sub(own_shmem),
        other_bytes: member.other_bytes().saturating_sub(own_other),
        read_at_ns: monotonic_ns(),
    })
}

/// The memory of a process of the kinds that count, shared pages divided by their sharers, bytes.
/// `None`: the kernel does not distinguish the kinds (before 5.4).
fn share(rollup: &SmapsRollup, count: Count) -> Option<u64> {
    let kinds = [
        (count.anon, rollup.pss_anon_bytes),
        (count.shmem, rollup.pss_shmem_bytes),
        (count.file, rollup.pss_file_bytes),
        (count.swap, rollup.swap_pss_bytes),
    ];
    let counted = kinds.iter().filter(|(counts, _)| *counts);
    counted.map(|(_, bytes)| *bytes).sum()
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::*;

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
        let listed_with = |shmem_bytes| Member {
            id: ProcessId { pid: std::process::id(), start_time: 0 },
            uid: Uid(0),
            charged_bytes: shmem_bytes,
            shmem_bytes,
            page_table_bytes: 0,
        };
        let held_bytes = |shmem_bytes| {
            Measurer::new().held_bytes(&held, Count::default(), &[listed_with(shmem_bytes)])
        };
        assert_eq!(held_bytes(0), 4 * MIB);
        assert_eq!(held_bytes(MIB), 3 * MIB);
        assert_eq!(held_bytes(4 * MIB), 0);
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
        let old = SmapsRollup { pss_anon_bytes: None, ..rollup };
        assert_eq!(share(&old, Count::default()), None);
    }
}
