//! The BPF implementation of [`Watch`]: accounts in the kernel, updated at every change.
//!
//! Loaded once; attached while at least one user has a limit, so that there is no cost without
//! limits.

mod accounts;
mod load;
mod pins;
#[cfg(test)]
mod scale_test;
mod scan;
mod slots;
mod users;
mod wire;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headroom_linux::clock::monotonic_ns;
use headroom_linux::pidfd;
use libbpf_rs::{Link, Map, MapCore, Object, RingBuffer, RingBufferBuilder};
use memory_ledger::limit::cleared_below;
use memory_ledger::{AccountId, Count, ProcessId};
use zerocopy::FromBytes;

use self::accounts::Strays;
use self::load::Capacity;
pub use self::load::{CountRuns, RunStats};
use self::pins::Pins;
pub use self::pins::{enforces as enforces_without_daemon, remove_left as remove_left_pins};
use self::slots::{SharedMap, Slots};
use self::wire::{Account, Scan, Slot, UidFilter, WireEvent};
pub use self::wire::{account_of_key, key_of_account};
use crate::NotifierError;
use crate::capability::obstacle;
use crate::watch::{
    Backend, Charge, Charged, Correction, Event, Inherited, Precision, ProcessSample, Reconciled,
    SlotLimit, SpaceState, UnarmedKills, UnlistedSpace, Usage, Watch,
};

/// Room for the samples of 800 processes per read.
const ITERATOR_BUFFER_BYTES: usize = 64 * 1024;
/// Growth is counted from the mark before the last one, so from one to two intervals ago.
const MARK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of queued events; more than the ring buffer holds.
const EVENT_QUEUE: usize = 1024;

/// The BPF notifier.
pub struct Notifier {
    // Fields drop in this order: first the programs are detached, then the maps they used are
    // freed.
    pins: Option<Pins>,
    link: Option<Link>,
    ring: RingBuffer<'static>,
    slots: Slots,
    limited_uids: SharedMap<UidFilter>,
    scan: SharedMap<Scan>,
    object: Object,
    queue: Arc<Mutex<VecDeque<Event>>>,
    /// Index of each account's slot.
    index_of: HashMap<AccountId, u32>,
    /// Charges that were set explicitly.
    charges: HashMap<AccountId, Charge>,
    strays: Strays,
    buffer: RefCell<Vec<u8>>,
    /// Time of the last scan that marked the usage of all processes.
    marked: Option<Instant>,
    /// Accounts that another watch had left, when they were taken over.
    inherited: Vec<Inherited>,
}

impl Notifier {
    /// Opens and loads the programs; nothing is attached yet. Fails if the kernel has no type
    /// information, refuses tracing programs, or this process is not in the initial pid namespace
    /// (the programs see global pids only).
    pub fn load() -> Result<Self, NotifierError> {
        Self::load_with(None, Capacity::of_machine()?)
    }

    /// Like [`load`](Self::load), with accounts that outlive this process if it is killed: they are
    /// pinned under `root`, on a BPF filesystem, and so is the program that updates and enforces
    /// them. Existing pins are taken over if they are of this version and consistent. On drop they
    /// are removed.
    pub fn load_pinned(root: &Path) -> Result<Self, NotifierError> {
        let capacity = Capacity::of_machine()?;
        let pins = Pins::open(root, load::fingerprint())?;
        if !pins.are_there() {
            return Self::load_with(Some(pins), capacity);
        }
        let root = root.to_owned();
        let mut notifier = Self::load_with(Some(pins), capacity).or_else(|error| {
            tracing::warn!("cannot take over the accounts of the last daemon: {error}");
            Self::load_afresh(&root)
        })?;
        match notifier.take_over() {
            Ok(()) => Ok(notifier),
            Err(why) => {
                tracing::warn!("the accounts of the last daemon make no sense: {why}");
                drop(notifier);
                Self::load_afresh(&root)
            }
        }
    }

    fn load_afresh(root: &Path) -> Result<Self, NotifierError> {
        let pins = Pins::open(root, load::fingerprint())?;
        pins.clear();
        Self::load_with(Some(pins), Capacity::of_machine()?)
    }

    fn load_with(pins: Option<Pins>, capacity: Capacity) -> Result<Self, NotifierError> {
        require_initial_pid_namespace()?;
        let object = load::notifier(pins.as_ref(), capacity).map_err(|error| match error {
            NotifierError::Bpf { .. } => obstacle().map_or(error, NotifierError::Unsupported),
            error => error,
        })?;
        accounts::require_size(&map(&object, "accounts")?)?;
        let queue = Arc::new(Mutex::new(VecDeque::with_capacity(EVENT_QUEUE)));
        let ring = {
            let queue = Arc::clone(&queue);
            let events = map(&object, "events")?;
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&events, move |bytes: &[u8]| {
                    let event = WireEvent::read_from_bytes(bytes).ok().and_then(|e| e.decode());
                    if let (Some(event), Ok(mut queue)) = (event, queue.lock()) {
                        queue.push_back(event);
                    }
                    0
                })
                .map_err(|e| NotifierError::bpf("use ring buffer events", e))?;
            builder.build().map_err(|e| NotifierError::bpf("open ring buffer events", e))?
        };
        let slots = Slots::new(pins.as_ref());
        let notifier = Self {
            pins,
            link: None,
            ring,
            slots,
            limited_uids: SharedMap::new(&map(&object, "limited_uids")?)?,
            scan: SharedMap::new(&map(&object, "scans")?)?,
            object,
            queue,
            index_of: HashMap::new(),
            charges: HashMap::new(),
            strays: Strays::default(),
            buffer: RefCell::new(vec![0; ITERATOR_BUFFER_BYTES]),
            marked: None,
            inherited: Vec::new(),
        };
        notifier.beat();
        notifier.check_own_sample()?;
        Ok(notifier)
    }

    /// The programs are attached.
    pub fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    /// Number of address spaces with an account.
    pub fn account_count(&self) -> Result<usize, NotifierError> {
        Ok(accounts::read_all(&map(&self.object, "accounts")?)?.len())
    }

    /// Run-time costs of the program.
    pub fn run_stats(&self) -> Result<RunStats, NotifierError> {
        load::run_stats(&self.object)
    }

    /// With a wrong layout of the kernel's structs the programs would kill the wrong processes, so
    /// their sample of this process must agree with `/proc`.
    fn check_own_sample(&self) -> Result<(), NotifierError> {
        let mut samples = Vec::new();
        self.processes(&mut samples)?;
        let statm = crate::process::Proc::default().statm(std::process::id())?;
        let own = samples.iter().find(|sample| sample.tgid == std::process::id());
        let Some(own) = own else {
            return Err(NotifierError::Unsupported(
                "the task iterator does not list this process".into(),
            ));
        };
        let read = own.anon_pages + own.file_pages + own.shmem_pages;
        // statm may leave out pages that CPUs have not folded yet, and this process allocates
        // meanwhile: 4 MiB.
        const TOLERANCE_PAGES: u64 = 1024;
        if read.abs_diff(statm.resident_pages) > TOLERANCE_PAGES {
            return Err(NotifierError::Unsupported(format!(
                "the programs read {read} resident pages of this process, /proc/self/statm has {}",
                statm.resident_pages
            )));
        }
        // By it the daemon identifies the victims that the programs name.
        let own_pidfd = pidfd::open(own.tgid).map_err(|e| NotifierError::os("open a pidfd", e))?;
        if let Some(number) = pidfd::number(own_pidfd)
            && number != own.start_number
        {
            return Err(NotifierError::Unsupported(format!(
                "the programs read start number {} of this process, its pidfd has {number}",
                own.start_number
            )));
        }
        Ok(())
    }

    fn slot(&self, account: AccountId) -> Option<&Slot> {
        self.slots.get(*self.index_of.get(&account)?)
    }

    fn slot_or_error(&self, account: AccountId) -> Result<&Slot, NotifierError> {
        self.slot(account).ok_or(NotifierError::NoSuchLimit(account))
    }

    fn attach(&mut self) -> Result<(), NotifierError> {
        if self.link.is_none() {
            let program =
                self.object
                    .progs_mut()
                    .find(|program| program.name() == "on_rss_stat")
                    .ok_or_else(|| NotifierError::Unsupported("on_rss_stat is missing".into()))?;
            let mut link = program
                .attach()
                .map_err(|e| NotifierError::bpf("attach to tracepoint rss_stat", e))?;
            if let Some(pins) = &self.pins {
                pins.replace_link(&mut link)?;
            }
            self.link = Some(link);
        }
        Ok(())
    }

    fn detach(&mut self) {
        if let Some(pins) = &self.pins {
            pins.remove_link();
        }
        self.link = None;
        self.limited_uids.clear(0);
    }

    /// Records a heartbeat, so that the programs know that the daemon is running.
    fn beat(&self) {
        if let Some(scan) = self.scan.get(0) {
            scan.beat_ns.store(monotonic_ns(), Relaxed);
        }
    }
}

impl Watch for Notifier {
    fn backend(&self) -> Backend {
        Backend::Bpf
    }

    fn set_limit(&mut self, account: AccountId, limit: SlotLimit) -> Result<(), NotifierError> {
        let SlotLimit { soft_pages, hard_pages } = limit;
        if hard_pages == 0 || soft_pages > hard_pages || hard_pages > i64::MAX as u64 {
            return Err(NotifierError::BadLimit { account, soft_pages, hard_pages });
        }
        if !self.index_of.contains_key(&account) {
            self.attach()?;
            if let Err(error) = self.add_user(account) {
                if self.index_of.is_empty() {
                    self.detach();
                }
                return Err(error);
            }
        }
        let slot = self.slot_or_error(account)?;
        slot.clear_pages.store(cleared_below(soft_pages), Relaxed);
        slot.hard_pages.store(hard_pages, Relaxed);
        slot.soft_pages.store(soft_pages, Relaxed);
        slot.reported.store(0, Release);
        // Charges running processes, and checks the new limits at once.
        self.charge_all().map(|_| ())
    }

    fn clear_limit(&mut self, account: AccountId) -> Result<(), NotifierError> {
        self.remove_user(account)?;
        self.charges.remove(&account);
        Ok(())
    }

    fn charge(&mut self, account: AccountId, charge: Charge) -> Result<(), NotifierError> {
        self.change_charge(account, charge)
    }

    fn usage(&self, account: AccountId) -> Option<Usage> {
        let slot = self.slot(account)?;
        let pages = |value: &std::sync::atomic::AtomicI64| value.load(Relaxed).max(0) as u64;
        Some(Usage {
            pages: pages(&slot.pages),
            correction_pages: slot.correction.load(Relaxed),
            unconfirmed_pages: pages(&slot.unconfirmed),
            peak_pages: pages(&slot.peak_pages),
            dying_pages: pages(&slot.dying_pages),
            events: slot.events.load(Relaxed),
            soft_crossings: slot.soft_crossings.load(Relaxed),
            hard_crossings: slot.hard_crossings.load(Relaxed),
            kills: slot.kills.load(Relaxed),
            lost: slot.lost.load(Relaxed),
            latched: slot.latch.load(Relaxed) != 0,
        })
    }

    fn arm(&mut self, account: AccountId, victim: Option<ProcessId>) -> Result<(), NotifierError> {
        let slot = self.slot_or_error(account)?;
        let index = match victim {
            None => 0,
            Some(victim) => {
                // The unused element is filled, then selected in one store: the programs never see
                // one process's tgid with another's start time.
                let free = if slot.armed_index.load(Relaxed) == 1 { 1 } else { 0 };
                slot.armed[free].tgid.store(victim.pid, Relaxed);
                slot.armed[free].start_number.store(victim.start_time, Relaxed);
                free as u32 + 1
            }
        };
        slot.armed_index.store(index, Release);
        slot.reported.store(0, Release);
        Ok(())
    }

    fn store_memo(&mut self, account: AccountId, memo: u64) -> Result<(), NotifierError> {
        self.slot_or_error(account)?.memo.store(memo, Relaxed);
        Ok(())
    }

    fn inherited(&self) -> Vec<Inherited> {
        self.inherited.clone()
    }

    fn end_limits_of_other_versions(&mut self) {
        if let Some(pins) = &self.pins {
            pins.remove_other_versions();
        }
    }

    fn leave_behind(&mut self) {
        if let Some(pins) = &mut self.pins {
            pins.keep();
        }
    }

    fn set_unarmed_kills(
        &mut self,
        account: AccountId,
        kills: UnarmedKills,
    ) -> Result<(), NotifierError> {
        let forbidden = u32::from(kills == UnarmedKills::Forbidden);
        self.slot_or_error(account)?.spare_unarmed.store(forbidden, Release);
        Ok(())
    }

    fn set_precision(
        &mut self,
        account: AccountId,
        precision: Precision,
    ) -> Result<(), NotifierError> {
        let exact = precision == Precision::Exact;
        let was = self.slot_or_error(account)?.exact.swap(exact.into(), Release);
        // Counters that have not changed since were read in batches, and would stay inexact.
        if exact && was == 0 { self.reconcile().map(|_| ()) } else { Ok(()) }
    }

    fn correct(&mut self, account: AccountId, correction: Correction) -> Result<(), NotifierError> {
        let slot = self.slot_or_error(account)?;
        let pages = |pages: u64| i64::try_from(pages).unwrap_or(i64::MAX);
        let confirmed = pages(correction.unconfirmed_pages) - pages(correction.unlisted_pages);
        // An event in between sees the account too small rather than too large: pages that a fork
        // has added are subtracted before they may cause a kill, and pages that are being freed are
        // unconfirmed before they are not subtracted any more.
        slot.unconfirmed.fetch_add((-confirmed).max(0), Release);
        slot.correction.store(correction.pages, Release);
        slot.unconfirmed.fetch_sub(confirmed.max(0), Release);
        slot.reported.store(0, Release);
        Ok(())
    }

    fn doubt(&mut self, account: AccountId, pages: u64) {
        let Some(slot) = self.slot(account) else { return };
        let (sum, before) = (slot.pages.load(Relaxed), slot.unconfirmed.load(Relaxed));
        let added = i64::try_from(pages).unwrap_or(i64::MAX).min(sum - before);
        slot.unconfirmed.fetch_add(added.max(0), Release);
    }

    fn charged(&self, process: &ProcessSample) -> Result<Option<Charged>, NotifierError> {
        let account = accounts::read(&map(&self.object, "accounts")?, process.mm_id)?;
        let slot = account.and_then(|account| Some((account, self.slots.get(account.slot())?)));
        Ok(slot.map(|(account, slot)| Charged {
            account: slot.account(),
            pages: u64::try_from(account.charged(slot.counts())).unwrap_or(0),
        }))
    }

    fn take_latch(&mut self, account: AccountId) -> Result<bool, NotifierError> {
        let slot = self.slot_or_error(account)?;
        Ok(slot.latch.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())
    }

    fn count_dying(&mut self, account: AccountId, victim: ProcessId) -> Result<(), NotifierError> {
        let slot = self.slot_or_error(account)?;
        let mut samples = Vec::new();
        self.processes(&mut samples)?;
        let found = samples.iter().find(|sample| sample.id() == victim);
        if let Some(mm) = found.map(|sample| sample.mm_id)
            && let Some(account) = accounts::read(&map(&self.object, "accounts")?, mm)?
        {
            slot.dying_pages.store(account.charged(slot.counts()), Relaxed);
            slot.victim_mm.store(mm, Release);
        }
        Ok(())
    }

    fn release_latch(&mut self, account: AccountId) {
        let Some(slot) = self.slot(account) else { return };
        if slot.latch.load(Relaxed) == 0 {
            return;
        }
        // A victim that has not exited (its grace period is over) counts as running again.
        slot.victim_mm.store(0, Relaxed);
        slot.dying_pages.store(0, Relaxed);
        slot.reported.store(0, Relaxed);
        slot.latch.store(0, Release);
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        let fd = self.ring.epoll_fd();
        // SAFETY: the ring's epoll instance, open as long as `self.ring` exists.
        unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
    }

    fn drain(&mut self, f: &mut dyn FnMut(Event)) {
        self.beat();
        if let Err(error) = self.ring.consume() {
            tracing::warn!("cannot read BPF events: {error}; the next scan corrects the accounts");
        }
        let mut crossed = false;
        loop {
            let event = self.queue.lock().ok().and_then(|mut queue| queue.pop_front());
            let Some(event) = event else { break };
            crossed |= matches!(event, Event::SoftCrossed { .. });
            f(event);
        }
        // From here on the user's changes are read exactly; its idle processes have to be read
        // once.
        if crossed && let Err(error) = self.reconcile() {
            tracing::warn!("cannot reconcile after a soft crossing: {error}");
        }
    }

    fn processes(&self, out: &mut Vec<ProcessSample>) -> Result<(), NotifierError> {
        scan::snapshot(&self.object, &mut self.buffer.borrow_mut(), out)
    }

    fn unlisted_spaces(
        &self,
        account: AccountId,
        listed: &HashSet<u64>,
    ) -> Result<Vec<UnlistedSpace>, NotifierError> {
        let (slot, index) = (self.slot_or_error(account)?, self.index_of.get(&account).copied());
        let accounts = map(&self.object, "accounts")?;
        let mut spaces = accounts::read_all(&accounts)?;
        // The victim's memory is not in the sum.
        let victim_mm = slot.victim_mm.load(Relaxed);
        spaces
            .retain(|mm, it| Some(it.slot()) == index && *mm != victim_mm && !listed.contains(mm));
        if spaces.is_empty() {
            return Ok(Vec::new());
        }
        let used = scan::used_spaces(&self.object, &accounts, &mut self.buffer.borrow_mut())?;
        let counts = slot.counts();
        let shmem = Count { anon: false, swap: false, file: false, ..counts };
        let pages = |account: &Account, count| u64::try_from(account.charged(count)).unwrap_or(0);
        let convert = |(mm_id, account): (u64, Account)| UnlistedSpace {
            mm_id,
            pages: pages(&account, counts),
            shmem_pages: pages(&account, shmem),
            state: if used.contains(&mm_id) { SpaceState::Used } else { SpaceState::Freed },
        };
        Ok(spaces.into_iter().map(convert).collect())
    }

    fn reconcile(&mut self) -> Result<Reconciled, NotifierError> {
        if self.index_of.is_empty() {
            return Ok(Reconciled::default());
        }
        let (charged, round) = self.charge_all()?;
        let accounts = map(&self.object, "accounts")?;
        let slot = |index: &u32| self.slots.get(*index).map(|slot| (*index, slot));
        let slots = self.index_of.values().filter_map(slot);
        let used = || scan::used_spaces(&self.object, &accounts, &mut self.buffer.borrow_mut());
        let swept = self.strays.sweep(&accounts, round, slots, used)?;
        Ok(Reconciled {
            accounts: swept.accounts,
            dropped: swept.dropped,
            drift_pages: charged.drift_pages + swept.drift_pages,
            ..charged
        })
    }
}

impl Notifier {
    /// Charges each process, and corrects its account. Returns the number of the scan.
    fn charge_all(&mut self) -> Result<(Reconciled, u32), NotifierError> {
        let Some(scan) = self.scan.get(0) else { return Ok(Default::default()) };
        self.beat();
        let round = scan.round.load(Relaxed).wrapping_add(1);
        scan.processes.store(0, Relaxed);
        scan.added.store(0, Relaxed);
        scan.drift_pages.store(0, Relaxed);
        scan.uncounted.store(0, Relaxed);
        let mark = self.marked.is_none_or(|at| at.elapsed() >= MARK_INTERVAL);
        scan.mark.store(mark.into(), Relaxed);
        // Limits, users and precision may have changed since the last scan.
        scan.changes.fetch_add(1, Release);
        scan.round.store(round, Release);
        scan::reconcile(&self.object, &mut self.buffer.borrow_mut())?;
        if mark {
            self.marked = Some(Instant::now());
        }
        let result = Reconciled {
            processes: scan.processes.load(Relaxed),
            drift_pages: scan.drift_pages.load(Relaxed),
            added: scan.added.load(Relaxed),
            uncounted: scan.uncounted.load(Relaxed),
            ..Reconciled::default()
        };
        Ok((result, round))
    }
}

fn map<'o>(object: &'o Object, name: &str) -> Result<Map<'o>, NotifierError> {
    object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| NotifierError::Unsupported(format!("BPF map {name} is missing")))
}

/// The programs see global pids only, and the daemon uses those of its own pid namespace.
fn require_initial_pid_namespace() -> Result<(), NotifierError> {
    /// `PROC_PID_INIT_INO`: the initial pid namespace's inode number, the same on every boot.
    const INITIAL: &str = "pid:[4026531836]";
    let path = std::path::Path::new("/proc/self/ns/pid");
    let namespace = std::fs::read_link(path)
        .map_err(|e| headroom_linux::machine_memory::ReadError::io(path, e))?;
    if namespace.as_os_str() != INITIAL {
        return Err(NotifierError::Unsupported(
            "this process has a pid namespace of its own, and BPF programs see the initial one"
                .into(),
        ));
    }
    Ok(())
}

/// Waits until no program that was running at the time of the call is running any more.
fn wait_for_running_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes integers only. It is an RCU grace period, which tracing programs hold off.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Refused on nohz_full machines. A program runs for microseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
