//! The one face of everything that watches users' memory: the BPF notifier, the `/proc` poller, a
//! fake in a test.
//!
//! Units: pages are of the machine's page size (4 KiB on x86-64); times are nanoseconds. What is
//! *charged* to a user is anonymous + shared + swapped-out memory of its processes, not file pages
//! (those are shared and can be dropped), unless its [`Charge`] says otherwise. The user is the
//! *real* uid, as the initial user namespace sees it.
//!
//! Several users can share an account: [`Watch::charge`] says whose memory it holds.

use std::os::fd::BorrowedFd;

use memory_ledger::{AccountId, Count, ProcessId, Uid};

use crate::error::NotifierError;

/// An account's limits, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimit {
    /// From here on the account is exact and the daemon is woken (once; see
    /// [`Event::SoftCrossed`]).
    pub soft_pages: u64,
    /// Above this a process must die.
    pub hard_pages: u64,
}

/// What an account holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Whose memory, ascending; nobody's at present if empty.
    pub uids: Vec<Uid>,
    /// What of it.
    pub count: Count,
}

impl Charge {
    /// What an account holds of which nothing was said: one user's memory, what is usual of it; of
    /// several users, nobody's.
    pub fn of(account: AccountId) -> Self {
        Self { uids: account.user().into_iter().collect(), count: Count::default() }
    }
}

/// What a measurement of an account has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Correction {
    /// Actual usage less [`Usage::summed_pages`] when the measurement began.
    pub pages: i64,
    /// [`Usage::summed_pages`] then.
    pub summed_pages: u64,
    /// [`Usage::unconfirmed_pages`] then: these are confirmed, or corrected, from now on.
    pub confirmed_pages: u64,
}

/// A user's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The sum over all processes now, those of a dying victim included. Below the soft limit each
    /// process may be off by a few dozen pages a CPU, until the next [`Watch::reconcile`].
    pub pages: u64,
    /// Actual usage less the sum, as it was [last measured](Watch::correct).
    pub correction_pages: i64,
    /// Of `pages`: came since then, and may be shared with another process. A crossing by these
    /// alone kills nobody before they are measured.
    pub unconfirmed_pages: u64,
    /// The most that was ever charged since the limit was set, corrections included.
    pub peak_pages: u64,
    /// Of `pages`: those of the victim, until its account is gone.
    pub dying_pages: u64,
    /// How often the account changed.
    pub events: u64,
    /// How often the soft limit was crossed upwards (after having fallen clearly below it).
    pub soft_crossings: u64,
    /// How often a process was killed, or should have been, at the hard limit.
    pub hard_crossings: u64,
    /// Processes killed by the notifier itself.
    pub kills: u64,
    /// Events that found the ring buffer full, and accounts that found the account table full. When
    /// this grows, [`Watch::reconcile`] at once.
    pub lost: u64,
    /// A victim was killed and [`Watch::release_latch`] has not been called since: nobody else
    /// dies.
    pub latched: bool,
}

impl Usage {
    /// Pages that count against the limit: all but those that are on their way back.
    pub fn live_pages(&self) -> u64 {
        self.summed_pages().saturating_add_signed(self.correction_pages)
    }

    /// The same before correction: each page as often as processes have it.
    pub fn summed_pages(&self) -> u64 {
        self.pages.saturating_sub(self.dying_pages)
    }

    /// Actual usage, those of a dying victim included.
    pub fn used_pages(&self) -> u64 {
        self.live_pages() + self.dying_pages
    }
}

/// Who delivered the signal at a hard crossing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KilledBy {
    /// The armed victim was the task that crossed the limit; it died in its own page fault.
    ArmedSelf,
    /// The armed victim was killed from another task's page fault (kernel 6.13 or later).
    ArmedOther,
    /// Nobody was armed; the task that crossed the limit was its user's largest process.
    UnarmedSelf,
    /// Nobody was armed; the user's largest process was killed from another task's page fault
    /// (kernel 6.13 or later).
    UnarmedOther,
}

/// A process killed by the notifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    /// Which: [`ProcessSample::id`].
    pub id: ProcessId,
    /// Its real uid.
    pub uid: Uid,
    /// Pages charged for it at the kill.
    pub pages: u64,
    /// How.
    pub by: KilledBy,
}

/// What a watch tells its owner. `time_ns` is `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The account reached its soft limit. Not repeated until [`Event::SoftCleared`].
    SoftCrossed {
        /// Whose.
        account: AccountId,
        /// Live pages at the crossing.
        pages: u64,
        /// When.
        time_ns: u64,
    },
    /// The account fell below its soft limit by more than a sixteenth of it.
    SoftCleared {
        /// Whose.
        account: AccountId,
        /// Live pages.
        pages: u64,
        /// When.
        time_ns: u64,
    },
    /// The account is above its hard limit and no victim is dying. With `killed: None` the notifier
    /// could not or must not kill and the owner has to; it is told once until the account falls
    /// below the limit, the victim is armed anew or the latch is released.
    HardCrossed {
        /// Whose.
        account: AccountId,
        /// Live pages at the crossing, before the victim's became dying ones.
        pages: u64,
        /// Time of the crossing, CLOCK_MONOTONIC.
        time_ns: u64,
        /// The process that the BPF program killed.
        killed: Option<Killed>,
        /// The armed victim was gone, was another process by now, or belonged to another user.
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
    /// Thread-group id: what users call the pid.
    pub tgid: u32,
    /// The leader's parent.
    pub parent_tgid: u32,
    /// Real uid.
    pub uid: Uid,
    /// Who has made the outermost user namespace that it is in: whoever has a limit pays for all
    /// that lives in its namespaces. Its own uid where it is in the initial one, or in that of the
    /// reader.
    pub namespace_owner: Uid,
    /// Start of the leader on `CLOCK_BOOTTIME`. The poller knows it to a clock tick only
    /// ([`ProcessSample::start_ticks`]).
    pub start_time_ns: u64,
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
    /// It has begun to exit, or a signal that ends it is under way.
    pub exiting: bool,
    /// Its page tables.
    pub page_table_bytes: u64,
    /// Names the address space; the same in two samples: they share their memory. 0: unknown.
    pub mm_id: u64,
}

impl ProcessSample {
    /// What is charged for it where nothing else is said: anonymous + shared + swapped-out pages.
    pub fn charged_pages(&self) -> u64 {
        self.counted_pages(Count::default())
    }

    /// What is charged for it where these are counted.
    pub fn counted_pages(&self, count: Count) -> u64 {
        let kinds = [
            (count.file, self.file_pages),
            (count.anon, self.anon_pages),
            (count.swap, self.swap_pages),
            (count.shmem, self.shmem_pages),
        ];
        kinds.iter().filter(|(counts, _)| *counts).map(|(_, pages)| pages).sum()
    }

    /// `comm` as text, as far as it is UTF-8.
    pub fn comm(&self) -> &str {
        let end = self.comm.iter().position(|&b| b == 0).unwrap_or(self.comm.len());
        match std::str::from_utf8(&self.comm[..end]) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(&self.comm[..e.valid_up_to()]).unwrap_or_default(),
        }
    }

    /// The start time in clock ticks, as field 22 of `/proc/<pid>/stat` has it (100 a second on
    /// every Linux of today).
    pub fn start_ticks(&self) -> u64 {
        self.start_time_ns / crate::process::NS_PER_TICK
    }

    /// This process for good: one with the same tgid and another start time is another process.
    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.tgid, start_time: self.start_time_ns }
    }
}

/// One process' account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Which account is charged.
    pub account: AccountId,
    /// What of its pages that account counts.
    pub pages: u64,
}

/// What a reconciliation found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Processes visited.
    pub processes: u64,
    /// Accounts that exist afterwards (address spaces of limited users).
    pub accounts: u64,
    /// Sum of the absolute corrections, in pages. Below the soft limit a few dozen pages a process
    /// are normal: those accounts are kept in batches.
    pub drift_pages: u64,
    /// Address spaces that were charged for the first time.
    pub added: u64,
    /// Accounts dropped because nothing uses their address space any more.
    pub dropped: u64,
}

/// A limit and its account as they were taken over from a watch that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Whose.
    pub account: AccountId,
    /// Its limits, which are in force.
    pub limit: SlotLimit,
    /// What they count.
    pub count: Count,
    /// What the last owner [remembered](Watch::remember) of it.
    pub memo: u64,
}

/// How exact an account is below its soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Each process may be off by a few dozen pages a CPU, until the next [`Watch::reconcile`].
    Batched,
    /// To the page, at the price of what that costs above the soft limit.
    Exact,
}

/// What the watch itself does when the hard limit is broken and no victim is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnarmedKills {
    /// It kills the account's largest process.
    Allowed,
    /// It kills nobody.
    Forbidden,
}

/// How a watch gets its knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// In the kernel, at every change.
    Bpf,
    /// By reading `/proc` on a timer.
    ProcPolling,
}

/// Watches the memory of limited users. Users without a limit cost nothing and are not watched.
pub trait Watch: Send {
    /// How this watch works.
    fn backend(&self) -> Backend;

    /// Says what an account holds, from now on or before it has a limit; what nothing was said of
    /// is a user's own. Users that another account has held come over. Where other members are
    /// counted than before, the account begins anew: who was armed is armed no more.
    fn charge(&mut self, account: AccountId, charge: Charge) -> Result<(), NotifierError>;

    /// Sets or changes a user's limits. The first one switches the watch on; the user's living
    /// processes are charged at once.
    fn set_limit(&mut self, account: AccountId, limit: SlotLimit) -> Result<(), NotifierError>;

    /// Removes a user's limits and account; the last one switches the watch off. No limit: no-op.
    fn clear_limit(&mut self, account: AccountId) -> Result<(), NotifierError>;

    /// The user's account, without a system call; `None` for a user without a limit.
    fn usage(&self, account: AccountId) -> Option<Usage>;

    /// How exact the account is below its soft limit, initially [`Precision::Batched`].
    /// [`Precision::Exact`] is for accounts to whose processes memory is promised.
    fn set_precision(
        &mut self,
        account: AccountId,
        precision: Precision,
    ) -> Result<(), NotifierError>;

    /// Corrects an account by what was measured. The next crossing of its hard limit is told again.
    /// A test's watch may have nothing to correct.
    fn correct(
        &mut self,
        _account: AccountId,
        _correction: Correction,
    ) -> Result<(), NotifierError> {
        Ok(())
    }

    /// What one process of a limited user is charged now, and to whom, without a look at the
    /// others. `None`: it is gone, or no limited user's.
    fn charged(&self, process: &ProcessSample) -> Result<Option<Charged>, NotifierError>;

    /// Keeps a word of the owner's beside a user's account, for whoever takes over. Initially 0.
    /// Where nothing outlives the watch this does nothing.
    fn remember(&mut self, _account: AccountId, _memo: u64) -> Result<(), NotifierError> {
        Ok(())
    }

    /// The users whose limits and accounts were taken over from a watch that is no more.
    fn inherited(&self) -> Vec<Inherited> {
        Vec::new()
    }

    /// Limits stay in force when the watch is dropped, where that can be.
    fn leave_behind(&mut self) {}

    /// Names the process to be killed at the hard limit, or nobody. Nobody armed: the notifier
    /// kills the user's largest process, where each page taken in the last seconds counts as
    /// several, unless [`Watch::set_unarmed_kills`] forbids it, or that process has an
    /// `oom_score_adj` of -1000, or the limit was crossed by a fork. Kernels before 6.13 kill
    /// whoever it is in its own next page fault only.
    fn arm(&mut self, account: AccountId, victim: Option<ProcessId>) -> Result<(), NotifierError>;

    /// Whether the watch may kill a process that is not armed, initially [`UnarmedKills::Allowed`].
    /// Forbidden for accounts some of whose processes are protected.
    fn set_unarmed_kills(
        &mut self,
        account: AccountId,
        kills: UnarmedKills,
    ) -> Result<(), NotifierError>;

    /// The owner is about to kill this process itself: takes the user's latch, so that the watch
    /// kills nobody meanwhile, and counts the process' pages as dying. `false`: a victim is dying
    /// already, leave it at that.
    fn take_latch(&mut self, account: AccountId, victim: ProcessId) -> Result<bool, NotifierError>;

    /// The victim is gone and its memory back (or its grace is over): the next may die.
    fn release_latch(&mut self, account: AccountId);

    /// Becomes readable when [`Watch::drain`] has something to do.
    fn events_fd(&self) -> BorrowedFd<'_>;

    /// Hands over what happened since the last call; never blocks.
    fn drain(&mut self, f: &mut dyn FnMut(Event));

    /// All processes with an address space, ordered by tgid; clears `out` first. Kernel threads are
    /// left out, and (by some kernels' task iterator) pid 1, which must not be killed anyway.
    fn processes(&self, out: &mut Vec<ProcessSample>) -> Result<(), NotifierError>;

    /// Corrects all accounts by a scan that trusts nothing.
    fn reconcile(&mut self) -> Result<Reconciled, NotifierError>;
}
