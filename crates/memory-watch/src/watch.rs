//! The interface of everything that monitors users' memory: the BPF notifier, the `/proc` poller, a
//! fake in a test.
//!
//! Units: pages are of the machine's page size (4 KiB on x86-64); times are nanoseconds. Memory
//! *charged* to a user is anonymous + shared + swapped-out memory of its processes, not file pages
//! (those are shared and can be dropped), unless its [`Charge`] differs. The user is the *real*
//! uid, as seen in the initial user namespace.
//!
//! Several users can share an account: see [`Watch::charge`].

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use memory_ledger::{AccountId, Comm, Count, ProcessId, Uid};
use owners::Owner;

use crate::NotifierError;

/// An account's limits, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimit {
    /// From here on the account is exact and the daemon is woken (once; see
    /// [`Event::SoftCrossed`]).
    pub soft_pages: u64,
    /// Above this a process must be killed.
    pub hard_pages: u64,
}

/// The memory that is charged to an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Uids of its users, ascending; may be empty.
    pub uids: Vec<Uid>,
    /// The kinds of memory that count.
    pub count: Count,
}

impl Charge {
    /// The charge of an account without an explicit one: the default kinds of memory of one user; a
    /// group has no users.
    pub fn of(account: AccountId) -> Self {
        Self { uids: account.user().into_iter().collect(), count: Count::default() }
    }
}

/// Result of measuring an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Correction {
    /// Actual usage minus [`Usage::summed_pages`] when the measurement began.
    pub pages: i64,
    /// [`Usage::summed_pages`] at that time.
    pub summed_pages: u64,
    /// [`Usage::unconfirmed_pages`] at that time: these are confirmed, or corrected, from now on.
    pub unconfirmed_pages: u64,
    /// Part of `summed_pages` that is unconfirmed from now on: it belongs to no process.
    pub unlisted_pages: u64,
}

/// A user's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The sum over all processes now, including those of a dying victim. Below the soft limit each
    /// process may be off by a few dozen pages per CPU, until the next [`Watch::reconcile`].
    pub pages: u64,
    /// Actual usage minus the sum, as it was [last measured](Watch::correct).
    pub correction_pages: i64,
    /// Part of `pages` that was added since then, and may be shared with another process, or that
    /// may be [lazily freed](Watch::doubt). A crossing by these alone kills no process before they
    /// are measured.
    pub unconfirmed_pages: u64,
    /// Maximum of the charge since the limit was set, corrections included.
    pub peak_pages: u64,
    /// Part of `pages` that belongs to the victim, until its account is removed.
    pub dying_pages: u64,
    /// Number of changes of the account.
    pub events: u64,
    /// Number of upward crossings of the soft limit (after falling clearly below it).
    pub soft_crossings: u64,
    /// Number of crossings of the hard limit that killed a process or should have.
    pub hard_crossings: u64,
    /// Number of processes killed by the notifier itself.
    pub kills: u64,
    /// Events dropped because the ring buffer was full, plus accounts that found the account table
    /// full. When this grows, call [`Watch::reconcile`] at once.
    pub lost: u64,
    /// A victim was killed and [`Watch::release_latch`] has not been called since: no other process
    /// is killed.
    pub latched: bool,
}

impl Usage {
    /// Pages that count against the limit: all but those of a dying victim.
    pub fn live_pages(&self) -> u64 {
        self.summed_pages().saturating_add_signed(self.correction_pages)
    }

    /// `live_pages` before correction: each page is counted once per process that maps it.
    pub fn summed_pages(&self) -> u64 {
        self.pages.saturating_sub(self.dying_pages)
    }

    /// Actual usage, including that of a dying victim.
    pub fn used_pages(&self) -> u64 {
        self.live_pages() + self.dying_pages
    }
}

/// The way in which the notifier delivered the signal at a hard crossing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KilledBy {
    /// The armed victim was the task that crossed the limit; it was killed in its own page fault.
    ArmedSelf,
    /// The armed victim was killed from another task's page fault (kernel 6.13 or later).
    ArmedOther,
    /// No process was armed; the task that crossed the limit was its user's largest process.
    UnarmedSelf,
    /// No process was armed; the user's largest process was killed from another task's page fault
    /// (kernel 6.13 or later).
    UnarmedOther,
}

/// A process killed by the notifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    /// As in [`ProcessSample::id`].
    pub id: ProcessId,
    /// Its real uid.
    pub uid: Uid,
    /// Its name at the kill.
    pub comm: Comm,
    /// Pages charged to it at the kill.
    pub pages: u64,
    /// How the signal was delivered.
    pub by: KilledBy,
}

/// An event that a watch reports to its owner. `time_ns` is `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The account reached its soft limit. Not repeated until [`Event::SoftCleared`].
    SoftCrossed {
        /// The account that crossed the limit.
        account: AccountId,
        /// Live pages at the crossing.
        pages: u64,
        /// CLOCK_MONOTONIC, nanoseconds.
        time_ns: u64,
    },
    /// The account fell below its soft limit by more than a sixteenth of it.
    SoftCleared {
        /// The account that fell below the limit.
        account: AccountId,
        /// Live pages.
        pages: u64,
        /// CLOCK_MONOTONIC, nanoseconds.
        time_ns: u64,
    },
    /// The account is above its hard limit and no victim is dying. With `killed: None` the notifier
    /// could not or must not kill and the owner has to; this is reported once until the account
    /// falls below the limit, the victim is armed anew or the latch is released.
    HardCrossed {
        /// The account that crossed the limit.
        account: AccountId,
        /// Live pages at the crossing, before the victim's became dying ones.
        pages: u64,
        /// Time of the crossing, CLOCK_MONOTONIC.
        time_ns: u64,
        /// The process that the BPF program killed.
        killed: Option<Killed>,
        /// The armed victim had exited, was another process by now, or belonged to another user.
        armed_was_stale: bool,
    },
}

impl Event {
    /// The account the event is about.
    pub fn account(&self) -> AccountId {
        match self {
            Self::SoftCrossed { account, .. }
            | Self::SoftCleared { account, .. }
            | Self::HardCrossed { account, .. } => *account,
        }
    }
}

/// One process in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSample {
    /// Thread-group id: the pid as users see it.
    pub tgid: u32,
    /// The leader's parent.
    pub parent: Parent,
    /// Real uid.
    pub uid: Uid,
    /// Creator of the outermost user namespace that it is in: a user with a limit is charged for
    /// all processes in its namespaces. Its own uid where it is in the initial namespace, or in
    /// that of the reader.
    pub namespace_owner: Uid,
    /// Distinguishes it from others with the same tgid, and increases with each start:
    /// [`headroom_linux::pidfd::number`]. Before Linux 6.9 the start of the leader on
    /// `CLOCK_BOOTTIME`, nanoseconds, which the poller reads with the resolution of a clock tick.
    pub start_number: u64,
    /// Anonymous pages.
    pub anon_pages: u64,
    /// File pages; charged only where an account counts them.
    pub file_pages: u64,
    /// Shared memory and tmpfs pages.
    pub shmem_pages: u64,
    /// Pages in swap.
    pub swap_pages: u64,
    /// Its process group.
    pub group: u32,
    /// It leads its session.
    pub session_leader: bool,
    /// `comm`, zero-padded.
    pub comm: [u8; 16],
    /// `oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: i16,
    /// It has begun to exit, or a fatal signal is pending.
    pub exiting: bool,
    /// Size of its page tables.
    pub page_table_bytes: u64,
    /// Identifies the address space: samples with the same id share their memory. 0: unknown.
    pub mm_id: u64,
}

/// The parent of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    /// Its thread-group id.
    pub tgid: u32,
    /// The process has executed no program since its fork, so both may have memory in common. The
    /// poller does not know it: `/proc/PID/stat`, which shows it, waits for an `execve`.
    pub is_copied: bool,
}

impl ProcessSample {
    /// Pages charged for it where these kinds are counted.
    pub fn counted_pages(&self, count: Count) -> u64 {
        let kinds = [
            (count.file, self.file_pages),
            (count.anon, self.anon_pages),
            (count.swap, self.swap_pages),
            (count.shmem, self.shmem_pages),
        ];
        kinds.iter().filter(|(counts, _)| *counts).map(|(_, pages)| pages).sum()
    }

    /// `comm` as text, up to the first byte that is not UTF-8.
    pub fn comm(&self) -> &str {
        let end = self.comm.iter().position(|&b| b == 0).unwrap_or(self.comm.len());
        match std::str::from_utf8(&self.comm[..end]) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(&self.comm[..e.valid_up_to()]).unwrap_or_default(),
        }
    }

    /// The owner of the process. Its namespace is not known, so each uid of a container that root
    /// created counts as an owner.
    pub fn owner(&self) -> Owner {
        match self.namespace_owner {
            Uid::ROOT => Owner::User(self.uid),
            creator => Owner::User(creator),
        }
    }

    /// Identifies this process uniquely: another start with the same tgid is another process.
    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.tgid, start_time: self.start_number }
    }
}

/// The charge of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The account that is charged.
    pub account: AccountId,
    /// Pages of the kinds that the account counts.
    pub pages: u64,
}

/// An address space that no listed process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnlistedSpace {
    /// As [`ProcessSample::mm_id`].
    pub mm_id: u64,
    /// Pages of the kinds that its account counts.
    pub pages: u64,
    /// The part of `pages` that is shared memory.
    pub shmem_pages: u64,
    /// Whether it has users.
    pub state: SpaceState,
}

/// Whether an address space without a process has users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceState {
    /// A fork in progress, or a system call of another process.
    Used,
    /// It has none: the kernel is freeing it.
    Freed,
}

/// Result of a reconciliation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Processes visited.
    pub processes: u64,
    /// Accounts that exist afterwards (address spaces of limited users).
    pub accounts: u64,
    /// Sum of the absolute corrections, in pages. Below the soft limit a few dozen pages per
    /// process are normal: those accounts are updated in batches.
    pub drift_pages: u64,
    /// Address spaces that were charged for the first time.
    pub added: u64,
    /// Accounts dropped because no process uses their address space any more.
    pub dropped: u64,
    /// Address spaces of limited users that could not be charged, since the table of accounts is
    /// full or memory is short.
    pub uncounted: u64,
}

/// A limit and its account that were taken over from an earlier watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The account that was taken over.
    pub account: AccountId,
    /// The limits in force.
    pub limit: SlotLimit,
    /// The kinds of memory that the account counts.
    pub count: Count,
    /// The value that the previous owner [stored](Watch::store_memo).
    pub memo: u64,
}

/// Precision of an account below its soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Each process may be off by a few dozen pages per CPU, until the next [`Watch::reconcile`].
    Batched,
    /// Exact to the page, at the same cost as above the soft limit.
    Exact,
}

/// Action of the watch when the hard limit is exceeded and no victim is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnarmedKills {
    /// The watch kills the account's largest process.
    Allowed,
    /// The watch kills no process.
    Forbidden,
}

/// The method of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// In the kernel, at every change.
    Bpf,
    /// By reading `/proc` on a timer.
    ProcPolling,
}

/// Monitors the memory of limited users. Users without a limit are not monitored and cost nothing.
pub trait Watch: Send {
    /// The method of this watch.
    fn backend(&self) -> Backend;

    /// Sets the charge of an account, from now on or before it has a limit; the default is a user's
    /// own memory. Users of another account are moved to this one. If the kinds of memory change,
    /// the account starts anew, without an armed victim.
    fn charge(&mut self, account: AccountId, charge: Charge) -> Result<(), NotifierError>;

    /// Sets or changes a user's limits. The first one switches the watch on; the user's running
    /// processes are charged at once.
    fn set_limit(&mut self, account: AccountId, limit: SlotLimit) -> Result<(), NotifierError>;

    /// Removes a user's limits and account; the last one switches the watch off. No limit: no-op.
    fn clear_limit(&mut self, account: AccountId) -> Result<(), NotifierError>;

    /// The user's account, without a system call; `None` for a user without a limit.
    fn usage(&self, account: AccountId) -> Option<Usage>;

    /// Sets the precision of the account below its soft limit, initially [`Precision::Batched`].
    /// [`Precision::Exact`] is for accounts with processes that have a lease.
    fn set_precision(
        &mut self,
        account: AccountId,
        precision: Precision,
    ) -> Result<(), NotifierError>;

    /// Corrects an account by the result of a measurement. The next crossing of its hard limit is
    /// reported again. The watch of a test may ignore it.
    fn correct(
        &mut self,
        _account: AccountId,
        _correction: Correction,
    ) -> Result<(), NotifierError> {
        Ok(())
    }

    /// Adds to [`Usage::unconfirmed_pages`], up to the account's sum: this many pages may be lazily
    /// freed. No effect where a crossing by growth since the last measurement kills no process.
    fn doubt(&mut self, _account: AccountId, _pages: u64) {}

    /// The present charge of one process of a limited user, without reading the others. `None`: it
    /// has exited, or its user has no limit.
    fn charged(&self, process: &ProcessSample) -> Result<Option<Charged>, NotifierError>;

    /// Stores a value of the owner with a user's account, for the next daemon that takes it over.
    /// Initially 0. Without effect if the accounts do not outlive the watch.
    fn store_memo(&mut self, _account: AccountId, _memo: u64) -> Result<(), NotifierError> {
        Ok(())
    }

    /// The accounts and limits that were taken over from an earlier watch.
    fn inherited(&self) -> Vec<Inherited> {
        Vec::new()
    }

    /// Ends limits that another version of the watch has left in force. To be called when those
    /// that still apply are set again.
    fn end_limits_of_other_versions(&mut self) {}

    /// Keeps limits in force when the watch is dropped, where that is possible.
    fn leave_behind(&mut self) {}

    /// Sets the process to be killed at the hard limit. `None`: the notifier kills the user's
    /// largest process, where each page allocated in the last seconds counts as several, unless
    /// [`Watch::set_unarmed_kills`] forbids it, or that process has an `oom_score_adj` of -1000, or
    /// the limit was crossed by a fork. Kernels before 6.13 can kill a process in its own next page
    /// fault only.
    fn arm(&mut self, account: AccountId, victim: Option<ProcessId>) -> Result<(), NotifierError>;

    /// Whether the watch may kill a process that is not armed, initially [`UnarmedKills::Allowed`].
    /// Forbidden for accounts with protected processes.
    fn set_unarmed_kills(
        &mut self,
        account: AccountId,
        kills: UnarmedKills,
    ) -> Result<(), NotifierError>;

    /// Takes the user's latch before the owner kills a process itself, so that the watch does not
    /// kill meanwhile. Returns `false` if a victim is dying already: the owner must not kill
    /// another one. Neither allocates nor reads processes.
    fn take_latch(&mut self, account: AccountId) -> Result<bool, NotifierError>;

    /// Counts the pages of a killed process as dying until the latch is released.
    fn count_dying(&mut self, account: AccountId, victim: ProcessId) -> Result<(), NotifierError>;

    /// Releases the latch after the victim's memory is back (or its grace period is over): the next
    /// process may be killed.
    fn release_latch(&mut self, account: AccountId);

    /// Becomes readable when [`Watch::drain`] has something to do.
    fn events_fd(&self) -> BorrowedFd<'_>;

    /// Passes the events since the last call to `f`; never blocks.
    fn drain(&mut self, f: &mut dyn FnMut(Event));

    /// All processes with an address space, ordered by tgid; clears `out` first. Kernel threads are
    /// left out, and (by some kernels' task iterator) pid 1, which must not be killed anyway.
    fn processes(&self, out: &mut Vec<ProcessSample>) -> Result<(), NotifierError>;

    /// The address spaces of an account that are not among the listed ones, which are given by
    /// [`ProcessSample::mm_id`]. Empty where they are not visible.
    fn unlisted_spaces(
        &self,
        _account: AccountId,
        _listed: &HashSet<u64>,
    ) -> Result<Vec<UnlistedSpace>, NotifierError> {
        Ok(Vec::new())
    }

    /// Corrects all accounts by a scan of all processes, independent of earlier events.
    fn reconcile(&mut self) -> Result<Reconciled, NotifierError>;
}
