//! Memory that other daemons hold for users' processes, as they report it: receive buffers of
//! `headroom-binderd`.
//!
//! It is in the resident set of a process as far as the process has mapped it. A measurement of an
//! account subtracts the mapped part ([`crate::usage`]).

use std::collections::{BTreeMap, BTreeSet};

use control::RequestId;
use control::oomd::{self, MappedFile};
use memory_ledger::{AccountId, Count, Groups, Uid};
use memory_watch::ProcessSample;
use memory_watch::process::FileId;

use super::accounts::{Size, size_by};
use crate::usage::Held;

/// Change of an account's memory after which it is measured, bytes.
const NOTABLE_BYTES: u64 = 1 << 20;

/// The last report of each daemon.
#[derive(Default)]
pub(super) struct HeldMemoryReports {
    /// By the connection of the daemon.
    reports: BTreeMap<RequestId, Vec<oomd::HeldMemory>>,
    /// Sum of the entries of a process, bytes.
    by_pid: BTreeMap<u32, u64>,
    /// Processes of the last reports that were killed since: what is held for them is released.
    killed: BTreeSet<u32>,
    /// Sum of a user's entries when its account was measured last, bytes.
    measured: BTreeMap<Uid, u64>,
}

impl HeldMemoryReports {
    /// Replaces the report of a connection. Returns the users whose memory has changed notably.
    pub(super) fn replace(
        &mut self,
        connection: RequestId,
        report: Vec<oomd::HeldMemory>,
    ) -> Vec<Uid> {
        self.reports.insert(connection, report);
        self.on_change()
    }

    /// Drops the reports of connections that have ended; as [`replace`](Self::replace).
    pub(super) fn retain(&mut self, is_connected: impl Fn(RequestId) -> bool) -> Vec<Uid> {
        let before = self.reports.len();
        self.reports.retain(|connection, _| is_connected(*connection));
        if self.reports.len() == before { Vec::new() } else { self.on_change() }
    }

    /// Does not count what is held for a process that was killed. A report made before its release
    /// would cause another kill.
    pub(super) fn exclude(&mut self, pid: u32) {
        if self.by_pid.remove(&pid).is_some() {
            self.killed.insert(pid);
        }
    }

    fn on_change(&mut self) -> Vec<Uid> {
        self.by_pid.clear();
        let mut by_uid: BTreeMap<Uid, u64> = self.measured.keys().map(|uid| (*uid, 0)).collect();
        for held in self.reports.values().flatten() {
            *by_uid.entry(held.uid).or_default() += held.bytes;
            if let Some(pid) = held.pid {
                *self.by_pid.entry(pid).or_default() += held.bytes;
            }
        }
        // The pid of a process that is no longer reported may become that of another one.
        self.killed.retain(|pid| self.by_pid.remove(pid).is_some());
        let mut changed = Vec::new();
        for (uid, bytes) in by_uid {
            let measured = self.measured.get(&uid).copied().unwrap_or(0);
            if bytes.abs_diff(measured) >= NOTABLE_BYTES || (bytes == 0 && measured > 0) {
                changed.push(uid);
                self.measured.insert(uid, bytes);
            }
        }
        self.measured.retain(|_, bytes| *bytes > 0);
        changed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// As [`size_by`], with the memory held for the process that it has certainly not mapped.
    pub(super) fn size(&self, count: Count, sample: &ProcessSample, page_bytes: u64) -> Size {
        let Size { rss_bytes, swap_bytes } = size_by(count, sample, page_bytes);
        let held = self.by_pid.get(&sample.tgid).copied().filter(|_| count.shmem).unwrap_or(0);
        let unmapped_bytes = held.saturating_sub(sample.shmem_pages * page_bytes);
        Size { rss_bytes: rss_bytes + unmapped_bytes, swap_bytes }
    }

    /// Whether memory is held for the process, and it was not killed.
    pub(super) fn is_reported(&self, pid: u32) -> bool {
        self.by_pid.contains_key(&pid)
    }

    /// The memory held for each of these accounts. `payers` are the accounts of all
    /// [reported](Self::is_reported) processes that count; what was held for another process is
    /// released soon.
    pub(super) fn by_account(
        &self,
        accounts: &BTreeSet<AccountId>,
        payers: &BTreeMap<u32, AccountId>,
        groups: &Groups,
    ) -> BTreeMap<AccountId, Vec<Held>> {
        let mut of: BTreeMap<AccountId, Vec<Held>> = BTreeMap::new();
        for held in self.reports.values().flatten() {
            let account = match held.pid {
                Some(pid) => payers.get(&pid).copied(),
                None => Some(groups.account_of(held.uid)),
            };
            if let Some(account) = account.filter(|account| accounts.contains(account)) {
                let file = held.file.map(file_id);
                of.entry(account).or_default().push(Held { file, bytes: held.bytes });
            }
        }
        of
    }
}

fn file_id(MappedFile { major, minor, inode }: MappedFile) -> FileId {
    FileId { device: rustix::fs::makedev(major, minor), inode }
}
