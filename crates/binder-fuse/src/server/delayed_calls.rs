//! Calls that are not started or continued, because memory of their client does not answer or their
//! owner has used up its time or its slices.
//!
//! With the kernel's driver, such a call waits for the page in the caller's own system call. Here
//! it waits until the late access has returned, until another thread has touched its memory if its
//! owner has little time left, and until the owner has time again if it has none.
//!
//! An ioctl with millions of commands is executed with the caller's priority there. Here it would
//! occupy a CPU with the event loop's, so the slices after the first have a rate.
//!
//! Owners take turns in being checked, so that one with thousands of delayed calls neither occupies
//! the event loop nor delays the calls of another one that are ready.
//!
//! The reply to a read whose returns are late waits until the blocked thread has written them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use binder_driver::Errno;
use binder_uapi::{BinderWriteRead, Command, CommandReader};
use headroom_linux::clock::Timer;
use headroom_linux::sched::leave_realtime;
use owners::{FairQueue, Owner, Rate};

use super::Server;
use super::call::{Call, CallState, LateRead, PendingIoctl, Stage, Step};
use super::request_queue::{Account, Requester};
use crate::access_limits::Start;
use crate::client_access::{BlockedAccess, LoopThreads, Progress};
use crate::client_memory;
use crate::open::CallKey;
use crate::owner_budgets::{Exempt, OwnerBudgets};

/// How often delayed calls are checked, besides after each access that has returned: an owner's
/// budget is refilled in seconds.
const CHECK_EVERY: Duration = Duration::from_millis(25);
/// Number of calls that are checked at once: a bound on the work of one event.
const CHECKS: usize = 256;

const SLICES: Rate = owners::bounds::CALL_SLICES.of_an_owner();

/// See the module's documentation.
pub(super) struct DelayedCalls {
    timer: Timer,
    /// Of those that have ended meanwhile, too.
    calls: FairQueue<Account, CallKey>,
    /// Further slices of ioctls.
    pub(super) budgets: OwnerBudgets,
}

impl DelayedCalls {
    pub(super) fn new() -> io::Result<Self> {
        let budgets = OwnerBudgets::new(SLICES, Exempt::Nobody);
        Ok(Self { timer: Timer::new()?, calls: FairQueue::new(1), budgets })
    }

    /// Becomes readable when the calls are to be checked.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Charges a further slice to its owner, if that has one left.
    fn pay(&mut self, owner: Owner, stage: Stage) -> Stage {
        if stage != Stage::Unpaid || !self.budgets.has_left(owner) {
            return stage;
        }
        self.budgets.charge(owner, 1);
        Stage::Due
    }

    /// Adds a call.
    pub(super) fn push(&mut self, requester: Requester, call: CallKey) {
        if self.calls.is_empty() {
            self.timer.expire_every(CHECK_EVERY);
        }
        self.calls.push(requester.account, requester.uid, 1, call);
    }
}

impl Server {
    /// Continues a long BINDER_WRITE_READ in its owner's next turn, or once the owner has slices.
    pub(super) fn continue_call(&mut self, request: PendingIoctl, bwr: BinderWriteRead) {
        let owner = self.host.charge(request.caller).owner;
        match self.delayed.pay(owner, Stage::Unpaid) {
            Stage::Unpaid => self.delay_call(request, bwr, Stage::Unpaid),
            stage => self.queue_call(request, Box::new(Step { bwr, stage })),
        }
    }

    /// Late accesses have returned.
    pub(super) fn serve_returned_accesses(&mut self) {
        if let Some(threads) = &self.loop_threads {
            threads.clear_returned();
        }
        self.finish_late_returns();
        self.serve_delayed_calls();
        self.serve_wakes();
    }

    /// Queues the calls that may be started now.
    pub(super) fn serve_delayed_calls(&mut self) {
        self.delayed.timer.take_expiry();
        for _ in 0..self.delayed.calls.len().min(CHECKS) {
            let Some(key) = self.delayed.calls.pop() else { break };
            self.check_delayed_call(key);
        }
        if self.delayed.calls.is_empty() {
            self.delayed.timer.disarm();
        }
    }

    fn check_delayed_call(&mut self, key: CallKey) {
        let Some(Call { request, state: CallState::Delayed(step) }) = self.calls.get_mut(key)
        else {
            return;
        };
        let (request, caller) = (*request, request.caller);
        step.stage = self.delayed.pay(self.host.charge(caller).owner, step.stage);
        let start = match step.stage {
            Stage::Unpaid => Start::Later,
            Stage::Touched if self.host.admits_touched(caller) => Start::Now,
            Stage::Touched => Start::Later,
            Stage::Due | Stage::Arrived(_) => self.host.start_of_call(caller),
        };
        if start == Start::Later {
            return self.delayed.push(self.requester_of(&request), key);
        }
        let Some(Call { state: CallState::Delayed(step), .. }) = self.end_wait(key) else { return };
        match start {
            Start::Touched => self.touch_and_delay(request, step.bwr),
            Start::Now | Start::Later => self.queue_call(request, step),
        }
    }

    /// Starts a thread that touches the call's memory; the call waits until it has returned.
    pub(super) fn touch_and_delay(&mut self, request: PendingIoctl, bwr: BinderWriteRead) {
        let caller = request.caller;
        let threads = self.loop_threads.as_ref();
        let started = threads.map(|threads| start_touch(threads, caller.tid, bwr));
        if let Some(Ok(access)) = started {
            self.host.note_touch(caller, access);
        }
        // Without a thread, its next access may be late.
        self.delay_call(request, bwr, Stage::Touched);
    }

    /// Replies to the reads whose returns are written by now.
    fn finish_late_returns(&mut self) {
        for key in self.calls.returned() {
            let Some(Call { request, state: CallState::Returning(read) }) = self.end_wait(key)
            else {
                continue;
            };
            let LateRead { bwr, access } = *read;
            let sent = match access.result() {
                Some(Ok(())) => self.finish(request, &bwr, Ok(())),
                _ => self.fail_returns(request, bwr),
            };
            self.log_unsent(&request, sent);
        }
    }

    /// Ends a read whose returns are not written, or whose caller has a signal, which may kill it.
    /// The thread does not know of the calls that it has received: they fail as if it had exited.
    pub(super) fn fail_returns(
        &mut self,
        request: PendingIoctl,
        bwr: BinderWriteRead,
    ) -> io::Result<()> {
        let (process, tid) = (request.caller.process, request.caller.tid);
        self.driver.thread_exit(&mut self.host, process, tid);
        self.cancel_deferred(tid, process);
        let bwr = BinderWriteRead { read_consumed: 0, ..bwr };
        self.finish(request, &bwr, Err(Errno::EFAULT))
    }
}

/// Bytes of a thread's stack. All of it is resident once the daemon locks its memory.
const STACK: usize = 64 << 10;
/// Commands of a call that are searched for parcels: the driver reads as many at a time.
const MAX_COMMAND_BYTES: u64 = 4096;
/// Bytes of a parcel's data, or of its offsets, that are touched: no receive buffer is larger.
const MAX_PARCEL_BYTES: u64 = 4 << 20;
/// Bytes of a read buffer that are touched. Returns are shorter.
const MAX_READ_BYTES: u64 = 4096;

/// Starts a thread that reads the memory that a call will access, so that the access of the event
/// loop does not wait for it: a thread of its own, as a client's memory may never answer. It
/// signals `threads` afterwards.
///
/// The call reads the memory again. A client that makes it late once more is charged again.
fn start_touch(
    threads: &Arc<LoopThreads>,
    tid: u32,
    bwr: BinderWriteRead,
) -> io::Result<BlockedAccess> {
    let progress = Arc::new(Progress::default());
    let access = BlockedAccess::new(Arc::clone(&progress));
    let threads = Arc::clone(threads);
    let thread = std::thread::Builder::new().name("memory-touch".into()).stack_size(STACK);
    thread.spawn(move || {
        // The event loop's real-time priority is inherited.
        leave_realtime(0);
        touch_call(tid, &bwr);
        progress.complete(Ok(()));
        threads.signal_return();
    })?;
    Ok(access)
}

fn touch_call(tid: u32, bwr: &BinderWriteRead) {
    touch(tid, bwr.read_buffer, bwr.read_size.min(MAX_READ_BYTES));
    let left = bwr.write_size.saturating_sub(bwr.write_consumed).min(MAX_COMMAND_BYTES);
    let mut commands = vec![0; left as usize];
    let address = bwr.write_buffer.wrapping_add(bwr.write_consumed);
    if client_memory::read(tid, address, &mut commands).is_err() {
        return;
    }
    for command in CommandReader::new(&commands).map_while(Result::ok) {
        if let Command::Transaction { data, .. } | Command::Reply { data, .. } = command {
            touch(tid, data.buffer, data.data_size);
            touch(tid, data.offsets, data.offsets_size);
        }
    }
}

/// Reads a byte of each page of a parcel's range.
fn touch(tid: u32, address: u64, len: u64) {
    client_memory::touch(tid, address, len.min(MAX_PARCEL_BYTES));
}

#[cfg(test)]
mod tests {
    use binder_uapi::BinderTransactionData;
    use owners::Uid;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;
    use crate::mapping::machine_page_size;

    #[test]
    fn only_further_slices_are_charged() {
        const OWNER: Owner = Owner::User(Uid(1000));
        let mut delayed = DelayedCalls::new().unwrap();
        for stage in [Stage::Due, Stage::Touched] {
            assert_eq!(delayed.pay(OWNER, stage), stage);
        }
        assert_eq!(delayed.budgets.balances(), [].into());
        let paid = |delayed: &mut DelayedCalls| delayed.pay(OWNER, Stage::Unpaid) == Stage::Due;
        assert!((0..SLICES.burst).all(|_| paid(&mut delayed)));
        // Some were refilled meanwhile.
        let more = (0..SLICES.burst).take_while(|_| paid(&mut delayed)).count();
        assert!((more as u64) < SLICES.burst, "without a bound");
        assert_eq!(delayed.pay(OWNER, Stage::Touched), Stage::Touched);
    }

    fn page_bytes() -> u64 {
        machine_page_size().bytes().into()
    }

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    /// Anonymous pages, none of which is resident.
    fn pages(count: usize) -> u64 {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let len = count * page_bytes() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) };
        mapped.unwrap() as u64
    }

    fn is_resident(page: u64) -> bool {
        let (mut state, len) = (0_u8, page_bytes() as usize);
        // SAFETY: one page of a mapping of `pages`, and a live byte for its state.
        let found = unsafe { libc::mincore(page as *mut libc::c_void, len, &raw mut state) };
        assert_eq!(found, 0);
        state & 1 == 1
    }

    fn resident(at: u64, count: u64) -> Vec<bool> {
        (0..count).map(|page| is_resident(at + page * page_bytes())).collect()
    }

    #[test]
    fn the_pages_of_parcel_and_read_buffer_are_resident_afterwards() {
        let (data, offsets, returns) = (pages(4), pages(1), pages(2));
        let parcel = BinderTransactionData {
            buffer: data + page_bytes() - 1,
            data_size: page_bytes() + 2,
            offsets,
            offsets_size: 8,
            ..BinderTransactionData::default()
        };
        let mut commands = Vec::new();
        Command::Transaction { data: parcel, buffers_size: None }.write_to(&mut commands);
        let bwr = BinderWriteRead {
            write_size: commands.len() as u64,
            write_buffer: commands.as_ptr() as u64,
            read_size: 256,
            read_buffer: returns,
            ..BinderWriteRead::default()
        };
        touch_call(own_tid(), &bwr);
        assert_eq!(resident(data, 4), [true, true, true, false]);
        assert_eq!(resident(offsets, 1), [true]);
        assert_eq!(resident(returns, 2), [true, false]);
    }

    #[test]
    fn bad_addresses_are_ignored() {
        let bwr = BinderWriteRead {
            write_size: u64::MAX,
            write_buffer: u64::MAX - 3,
            read_size: u64::MAX,
            read_buffer: 8,
            ..BinderWriteRead::default()
        };
        touch_call(own_tid(), &bwr);
    }
}
