//! The fallback implementation of [`Watch`]: reads `/proc` on a timer. Later and coarser than the
//! notifier, and it never kills by itself, but it requires only `/proc`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use headroom_linux::clock::{Timer, monotonic_ns};
use headroom_linux::pidfd;
use memory_ledger::limit::cleared_below;
use memory_ledger::{AccountId, ProcessId, Uid};
use owners::reader::NamespaceReader;

use crate::NotifierError;
use crate::process::Proc;
use crate::sharers::{Sharers, SpaceSize};
use crate::watch::{
    Backend, Charge, Charged, Correction, Event, Parent, Precision, ProcessSample, Reconciled,
    SlotLimit, UnarmedKills, Usage, Watch,
};
use headroom_linux::machine_memory::ReadError;

/// Reading one process costs about 7 µs (status), so 1,000 processes take 3.5 % of a CPU
/// at this interval.
const FAR_INTERVAL: Duration = Duration::from_millis(200);
/// Interval while a user is above its soft limit. A program that allocates 1 GiB/s gets 25 MiB
/// further meanwhile.
const NEAR_INTERVAL: Duration = Duration::from_millis(25);

/// Monitors accounts by reading `/proc`.
pub struct ProcPoller {
    proc: RefCell<Proc>,
    /// `None`: the reader's user namespace is not known.
    namespaces: Option<NamespaceReader>,
    sharers: RefCell<Sharers>,
    page_bytes: u64,
    timer: Timer,
    interval: Option<Duration>,
    /// By account.
    users: BTreeMap<AccountId, User>,
    /// Charges that were set explicitly.
    charges: BTreeMap<AccountId, Charge>,
    /// Crossings found by a scan that was not a drain, for the next drain.
    pending: Vec<Event>,
}

struct User {
    limit: SlotLimit,
    usage: Usage,
    above_soft: bool,
    reported: bool,
    victim: Option<ProcessId>,
    /// The sum at the last measurement: pages that were added since may be shared.
    measured_pages: u64,
}

impl ProcPoller {
    /// Reads `/proc` at the usual path.
    pub fn new() -> Result<Self, NotifierError> {
        let proc = Proc::default();
        let timer = Timer::new().map_err(|e| NotifierError::os("create a timer", e))?;
        Ok(Self {
            namespaces: NamespaceReader::new(proc.root()).ok(),
            proc: RefCell::new(proc),
            sharers: RefCell::default(),
            page_bytes: rustix::param::page_size() as u64,
            timer,
            interval: None,
            users: BTreeMap::new(),
            charges: BTreeMap::new(),
            pending: Vec::new(),
        })
    }

    /// The account that a process is charged to: that of the owner of its user namespace takes
    /// precedence over that of its own uid.
    fn account_of(&self, sample: &ProcessSample) -> Option<AccountId> {
        let of_user = |uid: Uid| {
            let theirs =
                |(_, charge): &(&AccountId, &Charge)| charge.uids.binary_search(&uid).is_ok();
            let charged =
                self.charges.iter().find(theirs).map_or(uid.into(), |(account, _)| *account);
            self.users.contains_key(&charged).then_some(charged)
        };
        of_user(sample.namespace_owner).or_else(|| of_user(sample.uid))
    }

    /// One process and its address space; `Ok(None)` without one. Reads no file that waits for the
    /// process's `execve`, and none in which another process appears if the pid is reused.
    fn sample(
        &self,
        proc: &mut Proc,
        pid: u32,
    ) -> Result<Option<(ProcessSample, SpaceSize)>, ReadError> {
        let gone = |error| ReadError::io(&proc.root().join(pid.to_string()), error);
        let pidfd = pidfd::open(pid).map_err(gone)?;
        let status = proc.status(pid)?;
        let (Some(uid), Some(anon)) = (status.uid, status.anon_bytes) else { return Ok(None) };
        let start_number = match pidfd::number(&pidfd) {
            Some(number) => number,
            None => proc.stat(pid)?.start_time_ns(),
        };
        // A process of root is never charged to the owner of a namespace.
        let levels = match &self.namespaces {
            Some(reader) if uid != Uid::ROOT => reader.namespaces_of(pidfd.as_fd(), pid).ok(),
            _ => None,
        };
        let outermost = levels.as_ref().and_then(|levels| levels.last());
        let pages = |bytes: Option<u64>| bytes.unwrap_or(0) / self.page_bytes;
        let sample = ProcessSample {
            tgid: pid,
            parent: Parent { tgid: status.ppid.unwrap_or(0), is_copied: false },
            uid,
            namespace_owner: outermost.map_or(uid, |level| level.creator),
            start_number,
            anon_pages: anon / self.page_bytes,
            file_pages: pages(status.file_bytes),
            shmem_pages: pages(status.shmem_bytes),
            swap_pages: pages(status.swap_bytes),
            comm: status.comm,
            oom_score_adj: proc.oom_score_adj(pid)?,
            exiting: status.is_exiting() && !status.main_thread_exited && !status.dumps_core,
            session_leader: status.session == Some(pid),
            group: status.group.unwrap_or(0),
            page_table_bytes: status.page_table_bytes.unwrap_or(0),
            mm_id: 0,
        };
        let size = SpaceSize {
            size_bytes: status.size_bytes.unwrap_or(0),
            code_bytes: status.code_bytes.unwrap_or(0),
        };
        Ok(Some((sample, size)))
    }

    /// Adds up the limited users' processes and checks their limits.
    fn scan(&mut self) -> Result<Reconciled, NotifierError> {
        let mut samples = Vec::new();
        let alike = self.list(&mut samples)?;
        let mut result = Reconciled { processes: samples.len() as u64, ..Reconciled::default() };
        let time_ns = monotonic_ns();
        // Memory that several processes share is charged once, to the first of them.
        let mut seen = BTreeSet::new();
        samples.retain(|sample| {
            let first = sample.mm_id == 0 || seen.insert(sample.mm_id);
            first && !alike.contains(&sample.tgid)
        });
        let accounts: Vec<Option<AccountId>> =
            samples.iter().map(|sample| self.account_of(sample)).collect();
        for (account, user) in &mut self.users {
            let count = self.charges.get(account).map(|charge| charge.count).unwrap_or_default();
            let all = || samples.iter().zip(&accounts);
            let own = || all().filter(|(_, of)| **of == Some(*account)).map(|(sample, _)| sample);
            let pages = own().map(|sample| sample.counted_pages(count)).sum();
            result.accounts += own().count() as u64;
            user.usage.dying_pages = own()
                .filter(|sample| user.usage.latched && Some(sample.id()) == user.victim)
                .map(|sample| sample.counted_pages(count))
                .sum();
            user.usage.events += u64::from(user.usage.pages != pages);
            user.usage.pages = pages;
            user.usage.unconfirmed_pages =
                user.usage.summed_pages().saturating_sub(user.measured_pages);
            user.usage.peak_pages = user.usage.peak_pages.max(user.usage.used_pages());
            user.look_at_limits(*account, time_ns, &mut self.pending);
        }
        self.set_timer();
        Ok(result)
    }

    /// Sets the interval of the timer; without limits it is off.
    fn set_timer(&mut self) {
        let interval = if self.users.is_empty() {
            None
        } else if self.users.values().any(|user| user.above_soft) {
            Some(NEAR_INTERVAL)
        } else {
            Some(FAR_INTERVAL)
        };
        if interval != self.interval {
            match interval {
                Some(interval) => self.timer.expire_every(interval),
                None => self.timer.disarm(),
            }
            self.interval = interval;
        }
    }

    fn user(&mut self, account: AccountId) -> Result<&mut User, NotifierError> {
        self.users.get_mut(&account).ok_or(NotifierError::NoSuchLimit(account))
    }
}

impl User {
    fn look_at_limits(&mut self, account: AccountId, time_ns: u64, events: &mut Vec<Event>) {
        let SlotLimit { soft_pages, hard_pages } = self.limit;
        let pages = self.usage.live_pages();
        if pages >= soft_pages && !self.above_soft {
            self.above_soft = true;
            self.usage.soft_crossings += 1;
            events.push(Event::SoftCrossed { account, pages, time_ns });
        } else if pages < cleared_below(soft_pages) && self.above_soft {
            self.above_soft = false;
            events.push(Event::SoftCleared { account, pages, time_ns });
        }
        if pages <= hard_pages {
            self.reported = false;
        } else if !self.reported && !self.usage.latched {
            self.reported = true;
            self.usage.hard_crossings += 1;
            events.push(Event::HardCrossed {
                account,
                pages,
                time_ns,
                killed: None,
                armed_was_stale: false,
            });
        }
    }
}

impl Watch for ProcPoller {
    fn backend(&self) -> Backend {
        Backend::ProcPolling
    }

    fn set_limit(&mut self, account: AccountId, limit: SlotLimit) -> Result<(), NotifierError> {
        let SlotLimit { soft_pages, hard_pages } = limit;
        if hard_pages == 0 || soft_pages > hard_pages {
            return Err(NotifierError::BadLimit { account, soft_pages, hard_pages });
        }
        let user = self.users.entry(account).or_insert(User {
            limit,
            usage: Usage::default(),
            above_soft: false,
            reported: false,
            victim: None,
            measured_pages: 0,
        });
        user.limit = limit;
        user.reported = false;
        self.scan().map(|_| ())
    }

    fn clear_limit(&mut self, account: AccountId) -> Result<(), NotifierError> {
        self.users.remove(&account);
        self.charges.remove(&account);
        self.set_timer();
        Ok(())
    }

    fn charge(&mut self, account: AccountId, mut charge: Charge) -> Result<(), NotifierError> {
        charge.uids.sort_unstable();
        // A user is charged to one account: to the latest one.
        for (_, other) in self.charges.iter_mut().filter(|(other, _)| **other != account) {
            other.uids.retain(|uid| charge.uids.binary_search(uid).is_err());
        }
        self.charges.insert(account, charge);
        self.scan().map(drop)
    }

    fn usage(&self, account: AccountId) -> Option<Usage> {
        self.users.get(&account).map(|user| user.usage)
    }

    fn arm(&mut self, account: AccountId, victim: Option<ProcessId>) -> Result<(), NotifierError> {
        let user = self.user(account)?;
        user.reported = false;
        // With the latch taken, the victim stays the process whose pages are counted as dying.
        if !user.usage.latched {
            user.victim = victim;
        }
        Ok(())
    }

    /// No effect: the poller never kills.
    fn set_unarmed_kills(
        &mut self,
        account: AccountId,
        _kills: UnarmedKills,
    ) -> Result<(), NotifierError> {
        self.user(account).map(|_| ())
    }

    /// No effect: values from `/proc` are always exact.
    fn set_precision(
        &mut self,
        account: AccountId,
        _precision: Precision,
    ) -> Result<(), NotifierError> {
        self.user(account).map(|_| ())
    }

    fn correct(&mut self, account: AccountId, correction: Correction) -> Result<(), NotifierError> {
        let user = self.user(account)?;
        user.usage.correction_pages = correction.pages;
        user.measured_pages = correction.summed_pages.saturating_sub(correction.unlisted_pages);
        user.usage.unconfirmed_pages =
            user.usage.summed_pages().saturating_sub(user.measured_pages);
        user.reported = false;
        Ok(())
    }

    fn charged(&self, process: &ProcessSample) -> Result<Option<Charged>, NotifierError> {
        let now = match self.sample(&mut self.proc.borrow_mut(), process.tgid) {
            Ok(Some((now, _))) if now.start_number == process.start_number => now,
            Ok(_) => return Ok(None),
            Err(error) if error.is_gone() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(account) = self.account_of(&now) else { return Ok(None) };
        let count = self.charges.get(&account).map(|charge| charge.count).unwrap_or_default();
        Ok(Some(Charged { account, pages: now.counted_pages(count) }))
    }

    fn take_latch(&mut self, account: AccountId) -> Result<bool, NotifierError> {
        let user = self.user(account)?;
        Ok(!std::mem::replace(&mut user.usage.latched, true))
    }

    fn count_dying(&mut self, account: AccountId, victim: ProcessId) -> Result<(), NotifierError> {
        self.user(account)?.victim = Some(victim);
        self.scan().map(drop)
    }

    fn release_latch(&mut self, account: AccountId) {
        if let Ok(user) = self.user(account) {
            user.usage.latched = false;
            user.usage.dying_pages = 0;
            user.reported = false;
            user.victim = None;
        }
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn drain(&mut self, f: &mut dyn FnMut(Event)) {
        // Otherwise no scan is due.
        if self.timer.take_expiry()
            && let Err(error) = self.scan()
        {
            tracing::warn!("cannot scan: {error}; trying again at the next tick");
        }
        self.pending.drain(..).for_each(f);
    }

    fn processes(&self, out: &mut Vec<ProcessSample>) -> Result<(), NotifierError> {
        self.list(out).map(drop)
    }

    fn reconcile(&mut self) -> Result<Reconciled, NotifierError> {
        self.scan()
    }
}

impl ProcPoller {
    /// All processes; returns those that may share the memory of their parent.
    fn list(&self, out: &mut Vec<ProcessSample>) -> Result<HashSet<u32>, NotifierError> {
        out.clear();
        let mut proc = self.proc.borrow_mut();
        let mut pids = Vec::new();
        proc.pids(&mut pids)?;
        let mut sizes = Vec::with_capacity(pids.len());
        pids.sort_unstable();
        for pid in pids {
            match self.sample(&mut proc, pid) {
                Ok(Some((sample, size))) => {
                    out.push(sample);
                    sizes.push(size);
                }
                Ok(None) => (),
                // The process has exited since it was listed.
                Err(error) if error.is_gone() => (),
                Err(error) => tracing::debug!("leaving out process {pid}: {error}"),
            }
        }
        Ok(self.sharers.borrow_mut().name_shared(out, &sizes))
    }
}
