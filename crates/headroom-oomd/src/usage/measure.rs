//! A measurement of one account.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memory_ledger::measurement::READ_MS;
use memory_ledger::{
    AccountId, ControllerUse, Count, Effort, Measurement, Order, ProcessId, Uid, UsageSource,
};
use memory_watch::process::{FileId, HeldFile, Proc, SmapsRollup, TmpfsDevices};

use super::bounded::{Answer, BoundedReader, Question, thread_cpu_ns};
use super::controller::{self, Controller};
use super::slice::SliceQuery;
use crate::clock::{NS_PER_MS, monotonic_ns};

/// Maximum number of file descriptors examined per measurement, of all processes of the account
/// together: about 4 µs each.
const MOST_DESCRIPTORS: usize = 16_384;

/// One address space of the account.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// A process with this address space.
    pub id: ProcessId,
    /// The user of that process.
    pub uid: Uid,
    /// Memory charged for the address space, bytes.
    pub charged_bytes: u64,
    /// The part of `charged_bytes` that is shared memory.
    pub shmem_bytes: u64,
    /// Its page tables, bytes.
    pub page_table_bytes: u64,
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
    /// The part of its charge that belongs to other sharers.
    shared_bytes: u64,
    read_at_ns: u64,
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

    pub(super) fn measure(&mut self, request: Request) -> Measurement {
        let begun_ns = thread_cpu_ns();
        let account = request.order.account;
        let found = match self.charge_difference(&request) {
            Some(difference_bytes) => {
                self.holders.remove(&account);
                self.shares.remove(&account);
                let source = UsageSource::Controller;
                Measurement { account, difference_bytes, unlisted_bytes: 0, source, cost_ns: 0 }
            }
            None => {
                self.controller.forget(account);
                let listed = request.members.iter().map(|member| member.charged_bytes).sum();
                let unlisted_bytes = request.order.summed_bytes.saturating_sub(listed);
                let difference_bytes = self.share_difference(request, begun_ns);
                let source = UsageSource::Pss;
                Measurement { account, difference_bytes, unlisted_bytes, source, cost_ns: 0 }
            }
        };
        let cost_ns = thread_cpu_ns() - begun_ns + self.reader.take_cpu_ns();
        Measurement { cost_ns, ..found }
    }

    /// The memory controller's charge less the account's sum, bytes.
    fn charge_difference(&mut self, request: &Request) -> Option<i64> {
        let Request { order, count, pids, .. } = request;
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
        self.controller.difference(order, query, &mut self.reader)
    }

    /// The memory of the account's processes, each page divided by its sharers, less the account's
    /// sum, bytes.
    fn share_difference(&mut self, request: Request, begun_ns: u64) -> i64 {
        let Request { order, count, mut members, files, .. } = request;
        let account = order.account;
        let held_bytes = match files {
            Files::AsBefore if !self.holders.contains(&account) => 0,
            Files::AsBefore | Files::Search if count.shmem => self.held_bytes(&members),
            Files::AsBefore | Files::Search => 0,
        };
        match held_bytes {
            0 => self.holders.remove(&account),
            _ => self.holders.insert(account),
        };
        let tables_bytes: u64 = members.iter().map(|member| member.page_table_bytes).sum();
        let mut used_bytes = order.summed_bytes + held_bytes + tables_bytes;
        if used_bytes > order.enough_bytes {
            let shared = self.read_members(&order, count, &mut members, begun_ns);
            used_bytes = used_bytes.saturating_sub(shared);
        } else {
            self.shares.remove(&account);
        }
        used_bytes as i64 - order.summed_bytes as i64
    }

    /// The shared part of the charges of the account's processes, bytes. A process that was not
    /// read yet counts in full.
    fn read_members(
        &mut self,
        order: &Order,
        count: Count,
        members: &mut [Member],
        begun_ns: u64,
    ) -> u64 {
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
        let mut left: u64 = members.iter().map(|member| member.charged_bytes).sum();
        let mut shared = 0;
        for member in members {
            let spent = || thread_cpu_ns() - begun_ns + self.reader.cpu_ns();
            let affordable = order.effort == Effort::All || spent() < READ_MS * NS_PER_MS;
            let known = before.remove(&member.id);
            let share = if left > order.tolerated_bytes && affordable {
                self.read_member(member, count)
            } else {
                known
            };
            left -= member.charged_bytes;
            if let Some(share) = share {
                // The charge may have changed since the process was read, so the shared part is
                // capped by it.
                shared += share.shared_bytes.min(member.charged_bytes);
                now.insert(member.id, share);
            }
        }
        self.shares.insert(order.account, now);
        shared
    }

    /// Reads a process. `None`: it has exited, or the read has timed out.
    fn read_member(&mut self, member: &Member, count: Count) -> Option<Share> {
        let answer = self.reader.read(Question::Rollup(member.id.pid));
        let Some(Answer::Rollup(rollup)) = answer else { return None };
        let own_bytes = share(&rollup, count)?;
        let shared_bytes = member.charged_bytes.saturating_sub(own_bytes);
        Some(Share { shared_bytes, read_at_ns: monotonic_ns() })
    }

    /// The size of tmpfs files and memfds that the account's users own and hold open, bytes, less
    /// the part that its processes have mapped.
    fn held_bytes(&mut self, members: &[Member]) -> u64 {
        self.devices.forget_mounts();
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
        if files.is_empty() {
            return 0;
        }
        let ids: Arc<[FileId]> = files.keys().copied().collect();
        for member in members.iter().filter(|member| member.shmem_bytes > 0) {
            let question = Question::Mapped(member.id.pid, Arc::clone(&ids));
            let answer = self.reader.read(question);
            let Some(Answer::Mapped(mapped)) = answer else { continue };
            for (id, mapped) in mapped {
                if let Some(bytes) = files.get_mut(&id) {
                    *bytes = bytes.saturating_sub(mapped);
                }
            }
        }
        files.values().sum()
    }
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
    use super::*;

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
