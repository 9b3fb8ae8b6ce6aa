//! The driver's host for real clients: [`binder_driver::Host`] over the opens.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use binder_driver::slab::Slab;
use binder_driver::{
    Caller, ClientMemory, Errno, Fault, FileToken, Files, Freshness, Identity, Mapping, Mappings,
    Piece, Priority, ProcessId, Scheduler, StoreError,
};
use headroom_linux::mountinfo::Device;
use owners::bounds::{OPENS, THREADS};
use owners::{Exhausted, Owner, Quota, Uid};
use serde::{Deserialize, Serialize};

use crate::access_limits::{AccessCost, AccessLimits, Occupation, Start};
use crate::client_access::{BlockedAccess, ClientAccess, Late};
use crate::client_memory::MemoryWrite;
use crate::files::{Charge, Closers, Store, quota_of_descriptors};
use crate::mapping::{Backing, SavedBacking};
use crate::maps::{Lookup, Readers};
use crate::open::{Open, OpenKey, OpenerState, SavedOpen};
use crate::owner_budgets::{LookupBudgets, MAX_AREAS, WarningLimits, coarse_now_ns};
use crate::page_server::PageServer;
use crate::priority::{self, RecentPriorities};
use crate::rings::Rings;
use crate::tree::DEVICE_SIZE;

/// Number of threads that are searched for a waiting reader: a bound on the work for a transaction.
const THREADS_CHECKED: usize = 8;

/// The uids of an owner share its opens and threads without parts: in a container, one of hundreds
/// may have most of them.
const ALL_UIDS: Uid = Uid::NONE;

/// Balances of owners that have used a part of a budget.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedHostBudgets {
    /// Nanoseconds of blocked accesses to memory.
    accesses: BTreeMap<Owner, i64>,
    /// Areas of memory maps.
    areas: BTreeMap<Owner, i64>,
}

/// All opens.
pub(crate) struct ClientHost {
    pub(crate) opens: Slab<OpenKey, Open>,
    open_quota: Quota,
    /// Threads in [`Open::calls`].
    thread_quota: Quota,
    by_process: HashMap<ProcessId, OpenKey>,
    pages: Arc<PageServer>,
    access: ClientAccess,
    limits: AccessLimits,
    /// The returns of the last read that are not written yet.
    late_returns: Option<BlockedAccess>,
    /// While a read of a stopped thread is completed: its returns, for the worker that has stopped
    /// the thread. The thread's number is no handle to its memory once its ioctl has its reply.
    returns_of_stopped: Option<Vec<MemoryWrite>>,
    lookups: LookupBudgets,
    pub(crate) rings: Rings,
    pub(crate) warnings: WarningLimits,
    /// Device number of our filesystem in the clients' maps.
    device: Device,
    pub(crate) files: Store,
    pub(crate) closers: Closers,
    /// Descriptors that threads have to close at the return from their ioctls, by tid.
    pub(crate) closes: HashMap<u32, Vec<u32>>,
    /// Whether priorities are inherited.
    pub(crate) priorities: bool,
    recent_priorities: RecentPriorities,
    /// How old a priority that the driver reads may be at the most.
    pub(crate) oldest_priority: Freshness,
    /// The warning about a refused real-time priority was logged.
    warned_real_time: bool,
    /// Priorities that threads get back: see [`restore_priorities`](Self::restore_priorities).
    restores: Vec<(u32, Priority)>,
}

impl ClientHost {
    pub(crate) fn new(pages: Arc<PageServer>, device: Device) -> Self {
        let closers = Closers::for_files();
        let own_uid = Uid(rustix::process::geteuid().as_raw());
        Self {
            opens: Slab::default(),
            open_quota: quota_of_descriptors(&OPENS),
            thread_quota: quota_of_descriptors(&THREADS),
            by_process: HashMap::new(),
            pages,
            access: ClientAccess::of_this_loop(),
            limits: AccessLimits::new(own_uid),
            late_returns: None,
            returns_of_stopped: None,
            lookups: LookupBudgets::new(),
            rings: Rings::default(),
            warnings: WarningLimits::new(),
            device,
            files: Store::new(closers.clone()),
            closers,
            closes: HashMap::new(),
            priorities: priority::can_change(),
            recent_priorities: RecentPriorities::default(),
            oldest_priority: Freshness::Current,
            warned_real_time: false,
            restores: Vec::new(),
        }
    }

    /// Gives threads their own priorities back, after the wake-ups of an event.
    ///
    /// Linux 6.12 starves all others on a CPU on which a caller of nice -20 is woken beside its
    /// server that has not slept since it was weakened from -20.
    pub(crate) fn restore_priorities(&mut self) {
        while let Some((tid, own)) = self.restores.pop() {
            self.recent_priorities.forget(tid);
            if let Err(error) = priority::set(tid, own) {
                tracing::debug!("thread {tid} does not get its priority back: {error}");
            }
        }
    }

    /// The real-time priority of a thread, not older than a tick; 0 if it has none.
    pub(crate) fn real_time_level(&mut self, tid: u32) -> u8 {
        if !self.priorities {
            return 0;
        }
        let recent = self.recent_priorities.of(tid, coarse_now_ns());
        recent.map_or(0, |priority| priority.policy.level())
    }

    /// The thread's request is answered: it must not run with another's priority.
    pub(crate) fn restore_priority_of(&mut self, tid: u32) {
        if self.restores.iter().any(|(other, _)| *other == tid) {
            self.restore_priorities();
        }
    }

    /// Whether the owner may make another open.
    pub(crate) fn check_open(&self, owner: Owner) -> Result<(), Exhausted> {
        self.open_quota.check_also_root(owner, ALL_UIDS)
    }

    /// Adds a thread that has not called on this open before, charged to the owner of the open
    /// until the thread or the open ends.
    pub(crate) fn add_thread(&mut self, key: OpenKey, tid: u32) -> Result<(), Exhausted> {
        let Some(open) = self.opens.get_mut(key) else { return Ok(()) };
        self.thread_quota.check_also_root(open.info.owner, ALL_UIDS)?;
        self.thread_quota.insert(open.info.owner, ALL_UIDS);
        open.info.calls.set(tid, None);
        Ok(())
    }

    /// Removes a thread that has exited from an open.
    pub(crate) fn forget_thread(&mut self, process: ProcessId, tid: u32) {
        let key = self.key_of(process);
        let Some(open) = key.and_then(|key| self.opens.get_mut(key)) else { return };
        if open.info.calls.knows(tid) {
            open.info.calls.forget(tid);
            self.thread_quota.give_back(open.info.owner, ALL_UIDS);
        }
        if let Some(poll) = &mut open.info.poll {
            poll.thread = poll.thread.filter(|&thread| thread != tid);
        }
    }

    /// Charges an open to its owner until it is removed, whoever holds it.
    pub(crate) fn insert(&mut self, open: Open) -> OpenKey {
        let process = open.info.process;
        self.open_quota.insert(open.info.owner, ALL_UIDS);
        let key = self.opens.insert(open);
        self.by_process.insert(process, key);
        key
    }

    pub(crate) fn remove(&mut self, key: OpenKey) -> Option<Open> {
        let open = self.opens.remove(key)?;
        self.by_process.remove(&open.info.process);
        self.open_quota.give_back(open.info.owner, ALL_UIDS);
        for _ in open.info.calls.iter() {
            self.thread_quota.give_back(open.info.owner, ALL_UIDS);
        }
        Some(open)
    }

    pub(crate) fn save_opens(&self) -> Slab<OpenKey, SavedOpen> {
        self.opens.map(Open::save)
    }

    /// Adds the opens of a state to a host without any.
    ///
    /// # Safety
    ///
    /// As for [`KeptFd::take`](headroom_linux::descriptors::KeptFd::take).
    pub(crate) unsafe fn restore_opens(
        &mut self,
        saved: Slab<OpenKey, SavedOpen>,
        mut restore_backing: impl FnMut(u64, SavedBacking) -> io::Result<Box<dyn Backing>>,
    ) -> io::Result<()> {
        self.opens = saved.try_into_map(|saved| {
            let SavedOpen { info, address_space, backing } = saved;
            // SAFETY: as guaranteed by the caller.
            let space = address_space.map(|space| unsafe { space.restore() }).transpose()?;
            let backing = restore_backing(info.node, backing)?;
            Ok::<_, io::Error>(Open { info, address_space: space, backing })
        })?;
        self.by_process = self.opens.iter().map(|(key, open)| (open.info.process, key)).collect();
        for open in self.opens.values() {
            self.open_quota.insert(open.info.owner, ALL_UIDS);
            for _ in open.info.calls.iter() {
                self.thread_quota.insert(open.info.owner, ALL_UIDS);
            }
        }
        Ok(())
    }

    /// What each owner has used of its budgets.
    pub(crate) fn save_budgets(&self) -> SavedHostBudgets {
        SavedHostBudgets {
            accesses: self.limits.balances(coarse_now_ns()),
            areas: self.lookups.balances(),
        }
    }

    pub(crate) fn restore_budgets(
        &mut self,
        SavedHostBudgets { accesses, areas }: SavedHostBudgets,
    ) {
        self.limits.restore(accesses, coarse_now_ns());
        self.lookups.restore(areas);
    }

    /// The device of our filesystem.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn key_of(&self, process: ProcessId) -> Option<OpenKey> {
        self.by_process.get(&process).copied()
    }

    fn open_of(&mut self, process: ProcessId) -> Option<&mut Open> {
        let key = self.key_of(process)?;
        self.opens.get_mut(key)
    }

    /// Owner and uid that a file of a caller is charged to.
    pub(crate) fn charge(&self, caller: Caller) -> Charge {
        let uid = caller.euid;
        let open = self.key_of(caller.process).and_then(|key| self.opens.get(key));
        Charge { owner: open.map_or(Owner::User(uid), |open| open.info.owner), uid }
    }

    fn with_backing(
        &mut self,
        process: ProcessId,
        f: impl FnOnce(&mut dyn Backing) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let open = self.open_of(process).ok_or(StoreError)?;
        let Err(error) = f(&mut *open.backing) else { return Ok(()) };
        let is_first = !std::mem::replace(&mut open.info.warned.broken, true);
        let (pid, owner) = (open.info.pid, open.info.owner);
        if is_first && self.warnings.admit(owner) {
            tracing::warn!("pid {pid}: cannot write its receive buffer: {error}");
        }
        Err(StoreError)
    }

    /// Whether each access is admitted: no owner has used its budget, and none was late.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.limits.is_unused()
    }

    /// An owner whose client's memory blocks a thread.
    pub(crate) fn owner_of_blocked_access(&mut self) -> Option<Owner> {
        self.limits.owner_of_blocked()
    }

    /// Whether a call whose memory is being touched, or was, may be continued now.
    pub(crate) fn admits_touched(&mut self, caller: Caller) -> bool {
        let charge = self.charge(caller);
        self.limits.admits_touched(caller.process, caller.tid, charge, coarse_now_ns())
    }

    /// How a call may be started or continued now.
    pub(crate) fn start_of_call(&mut self, caller: Caller) -> Start {
        if self.is_unlimited() {
            return Start::Now;
        }
        let charge = self.charge(caller);
        self.limits.start_of_call(caller.process, charge, coarse_now_ns())
    }

    /// Returns the access that writes the returns of the last read, if it has not completed yet.
    pub(crate) fn take_late_returns(&mut self) -> Option<BlockedAccess> {
        self.late_returns.take()
    }

    /// Collects the returns that `complete` writes to a stopped thread.
    pub(crate) fn collect_returns<T>(
        &mut self,
        complete: impl FnOnce(&mut Self) -> T,
    ) -> (T, Vec<MemoryWrite>) {
        self.returns_of_stopped = Some(Vec::new());
        let completed = complete(self);
        (completed, self.returns_of_stopped.take().unwrap_or_default())
    }

    /// Accesses a client's memory; late if the access is refused.
    fn access<T>(
        &mut self,
        client: Caller,
        touch: impl FnOnce(&mut ClientAccess) -> Result<T, Late>,
    ) -> Result<T, Fault> {
        if !self.is_unlimited() {
            let charge = self.charge(client);
            if !self.limits.admits(client.process, charge, coarse_now_ns()) {
                return Err(Fault::Late);
            }
        }
        self.access_now(client, touch).map_err(|_| Fault::Late)
    }

    /// Accesses a client's memory, even if its owner has no budget left.
    fn access_now<T>(
        &mut self,
        client: Caller,
        touch: impl FnOnce(&mut ClientAccess) -> Result<T, Late>,
    ) -> Result<T, BlockedAccess> {
        let (touched, was_blocked) = {
            let inside = self.pages.enter_access(client.tid);
            (touch(&mut self.access), inside.was_blocked())
        };
        if was_blocked {
            let cost = if touched.is_ok() { AccessCost::Blocked } else { AccessCost::Late };
            self.limits.charge(self.charge(client).owner, coarse_now_ns(), cost);
        }
        touched.map_err(|Late(blocked)| {
            self.note_late(client, blocked.clone());
            blocked
        })
    }

    /// Records that another thread touches a client's memory.
    pub(crate) fn note_touch(&mut self, client: Caller, touch: BlockedAccess) {
        let charge = self.charge(client);
        self.limits.add_blocked(
            client.process,
            charge,
            Occupation::Touch { tid: client.tid },
            touch,
        );
    }

    /// Records that an access to a client's memory did not complete in time.
    fn note_late(&mut self, client: Caller, blocked: BlockedAccess) {
        let charge = self.charge(client);
        self.limits.add_blocked(client.process, charge, Occupation::LateAccess, blocked);
        if self.warnings.admit(charge.owner) {
            tracing::warn!(
                "thread {} ({}): its memory does not answer; calls of its process wait until it \
                 does",
                client.tid,
                charge.owner
            );
        }
    }
}

impl ClientHost {
    /// Whether a caller is in a call of its ring. Such a thread runs: it may have exited, and its
    /// number may mean another program. The call is left to a request if it needs more than the
    /// ring.
    fn is_in_ring_call(&self, caller: Caller) -> bool {
        self.rings.in_call(caller.tid).is_some()
    }

    /// The mapping that a lookup has found for an open, unless it is writable.
    fn accept_mapping(&mut self, key: OpenKey, lookup: Lookup) -> Option<Mapping> {
        let found = lookup.mapping?;
        let open = self.opens.get_mut(key)?;
        open.address_space = lookup.address_space;
        if found.writable {
            // The protocol refuses such a mapping. FUSE cannot refuse it, so it is treated as
            // missing.
            let is_first = !std::mem::replace(&mut open.info.warned.writable, true);
            let (pid, owner) = (open.info.pid, open.info.owner);
            if is_first && self.warnings.admit(owner) {
                tracing::warn!(
                    "pid {pid}: its mapping is writable; it gets nothing until it is mapped \
                     read-only"
                );
            }
            return None;
        }
        Some(Mapping { address: found.address, len: found.len.min(DEVICE_SIZE) })
    }
}

impl ClientMemory for ClientHost {
    fn read(&mut self, from: Caller, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        if self.rings.read(from.tid, address, into) {
            return Ok(());
        }
        if self.is_in_ring_call(from) {
            return Err(Fault::Late);
        }
        self.access(from, |access| access.read(from.tid, address, into))?
    }

    fn read_ahead(
        &mut self,
        from: Caller,
        pieces: &[Piece],
        into: &mut Vec<u8>,
    ) -> Result<usize, Fault> {
        match self.rings.read_pieces(from.tid, pieces, into) {
            0 => {}
            read => return Ok(read),
        }
        if self.is_in_ring_call(from) {
            return Err(Fault::Late);
        }
        self.access(from, |access| access.read_pieces(from.tid, pieces, into))
    }

    fn write(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if self.rings.write(to.tid, address, bytes) {
            return Ok(());
        }
        if self.is_in_ring_call(to) {
            return Err(Fault::Late);
        }
        self.access(to, |access| access.write(to.tid, address, bytes))?
    }

    fn write_returns(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if let Some(returns) = &mut self.returns_of_stopped {
            returns.push(MemoryWrite { address, bytes: bytes.to_vec() });
            return Ok(());
        }
        if self.rings.write(to.tid, address, bytes) {
            return Ok(());
        }
        if self.is_in_ring_call(to) {
            // The ring has room for all returns of a client that uses it as it should.
            return Err(Fault::BadAddress);
        }
        self.access_now(to, |access| access.write(to.tid, address, bytes)).unwrap_or_else(|late| {
            self.late_returns = Some(late);
            Ok(())
        })
    }
}

impl Mappings for ClientHost {
    fn mapping(&mut self, process: ProcessId) -> Result<Option<Mapping>, Fault> {
        let Some(key) = self.key_of(process) else { return Ok(None) };
        let Some(open) = self.opens.get(key) else { return Ok(None) };
        if open.info.opener == OpenerState::Exited {
            return Ok(None);
        }
        let (pid, node, device) = (open.info.pid, open.info.node, self.device);
        let client = Caller { process, tid: pid, euid: open.info.euid };
        let owner = open.info.owner;
        if !self.lookups.may_look(owner) {
            return Err(Fault::Late);
        }
        // Reading the maps takes a lock that a page fault of the client may hold.
        let lookup =
            self.access(client, |access| access.find_mapping(pid, device, node, MAX_AREAS))?;
        self.lookups.note(owner, &lookup);
        Ok(self.accept_mapping(key, lookup))
    }

    fn has_address_space(&mut self, process: ProcessId) -> bool {
        let Some(open) = self.open_of(process) else { return false };
        if open.info.opener == OpenerState::Exited {
            // Another process may share it, but the open must not hold what is sent to it.
            return false;
        }
        let mut threads = open.info.calls.iter().take(THREADS_CHECKED);
        let readers = if threads.any(|(_, request)| request.is_some()) {
            Readers::Waiting
        } else {
            Readers::NoneWaiting
        };
        open.address_space.as_mut().is_none_or(|space| space.exists(readers))
    }

    fn store(&mut self, process: ProcessId, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.with_backing(process, |backing| backing.store(offset, bytes))
    }

    fn zero(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.with_backing(process, |backing| backing.zero(offset, len))
    }

    fn punch(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.with_backing(process, |backing| backing.punch(offset, len))
    }
}

impl Identity for ClientHost {
    fn pid_seen_by(&mut self, receiver: ProcessId, sender: ProcessId) -> i32 {
        let open = |process| self.opens.get(self.key_of(process)?);
        match (open(sender), open(receiver)) {
            (Some(sender), Some(receiver)) if sender.info.opener == OpenerState::Alive => {
                sender.info.views.pid.seen_by(&receiver.info.views.pid)
            }
            _ => 0,
        }
    }

    fn uid_seen_by(&mut self, receiver: ProcessId, uid: Uid) -> u32 {
        self.open_of(receiver).map_or(uid.0, |open| {
            let pid = (open.info.opener == OpenerState::Alive).then_some(open.info.pid);
            open.info.views.user.sees(pid, uid)
        })
    }

    fn security_context(&mut self, caller: Caller) -> Result<Vec<u8>, Errno> {
        if self.is_in_ring_call(caller) {
            return Err(Errno::ERESTART);
        }
        // AppArmor, if active, has labels, but none for binder: the kernel's driver finds no
        // context there either.
        if std::fs::read("/proc/self/attr/apparmor/current").is_ok() {
            return Err(Errno::EINVAL);
        }
        let context = std::fs::read(format!("/proc/{}/attr/current", caller.tid))
            .map_err(|_| Errno::EINVAL)?;
        // Security modules terminate theirs with a newline, a NUL, or nothing.
        let end = context.iter().position(|byte| matches!(byte, 0 | b'\n'));
        let context = &context[..end.unwrap_or(context.len())];
        if context.is_empty() { Err(Errno::EINVAL) } else { Ok(context.to_vec()) }
    }
}

impl Scheduler for ClientHost {
    fn priority(&mut self, tid: u32, freshness: Freshness) -> Option<Priority> {
        self.restore_priority_of(tid);
        match (freshness, self.oldest_priority) {
            _ if !self.priorities => None,
            (Freshness::Recent, Freshness::Recent) => {
                self.recent_priorities.of(tid, coarse_now_ns())
            }
            _ => priority::of(tid),
        }
    }

    fn run_time_ns(&mut self, tid: u32) -> Option<u64> {
        priority::run_time_ns(tid)
    }

    fn inherit_priority(&mut self, tid: u32, priority: Priority) -> bool {
        self.restore_priority_of(tid);
        let Some(allowed) = priority::allowed(tid, priority) else {
            if priority.policy.level() > 0 && !std::mem::replace(&mut self.warned_real_time, true) {
                tracing::warn!(
                    "thread {tid} may not run at real-time priority (RLIMIT_RTPRIO, CAP_SYS_NICE): \
                     it serves calls that request it with a nice value only (logged once)"
                );
            }
            return false;
        };
        self.recent_priorities.forget(tid);
        priority::set(tid, allowed).is_ok()
    }

    fn restore_priority(&mut self, tid: u32, priority: Priority) {
        self.restores.push((tid, priority));
    }
}

impl Files for ClientHost {
    fn take_file(&mut self, from: Caller, fd: u32) -> Result<FileToken, Errno> {
        if self.is_in_ring_call(from) {
            return Err(Errno::ERESTART);
        }
        let charge = self.charge(from);
        self.files.take(charge, from.tid, fd)
    }

    fn drop_file(&mut self, file: FileToken) {
        self.files.drop(file);
    }

    fn close_on_return(&mut self, caller: Caller, fds: &[u32]) {
        self.closes.entry(caller.tid).or_default().extend_from_slice(fds);
    }
}

#[cfg(test)]
#[path = "../../../tests/contracts/host.rs"]
mod contract;

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use super::*;
    use crate::channel::Channel;

    #[test]
    fn the_host_of_real_clients_fulfils_the_contract() {
        // No request arrives: the client is this thread, without an open of a device.
        let channel = Channel::from_device(std::fs::File::open("/dev/null").unwrap().into());
        let pages = Arc::new(PageServer::new(Arc::new(channel)).unwrap());
        let mut host = ClientHost::new(pages, Device { major: 0, minor: 0 });
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let euid = Uid(rustix::process::geteuid().as_raw());
        let caller = Caller { process: ProcessId::default(), tid, euid };
        let room = std::cell::UnsafeCell::new([0_u8; 64]);
        let file: OwnedFd = std::fs::File::open("/proc/self/maps").unwrap().into();
        let client = contract::Client {
            caller,
            memory: room.get() as u64,
            open_fd: file.as_raw_fd() as u32,
            closed_fd: u32::MAX,
        };
        contract::check_client(&mut host, &client);
        assert_eq!(host.mapping(caller.process), Ok(None), "it has no open");
        assert!(!host.has_address_space(caller.process));
    }
}
