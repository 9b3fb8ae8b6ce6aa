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

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use binder_uapi::BinderWriteRead;
use headroom_linux::timer::Timer;
use owners::{Owner, Rate};

use super::request_queue::{Due, RequestQueue, Requester, Slice, Stage};
use super::{PendingIoctl, Server};
use crate::access_limits::Start;
use crate::memory_touch;
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
    calls: RequestQueue,
    /// Further slices of ioctls.
    pub(super) budgets: OwnerBudgets,
}

impl DelayedCalls {
    pub(super) fn new() -> io::Result<Self> {
        let budgets = OwnerBudgets::new(SLICES, Exempt::Nobody);
        Ok(Self { timer: Timer::new()?, calls: RequestQueue::new(), budgets })
    }

    /// Becomes readable when the calls are to be checked.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// The calls, in no order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.calls.slices()
    }

    /// Charges a further slice to its owner, if that has one left.
    fn pay(&mut self, owner: Owner, stage: Stage) -> Stage {
        if stage != Stage::Unpaid || !self.budgets.has_left(owner) {
            return stage;
        }
        self.budgets.charge(owner, 1);
        Stage::Due
    }

    fn insert(&mut self, requester: Requester, call: Slice) {
        if self.calls.is_empty() {
            self.timer.expire_every(CHECK_EVERY);
        }
        self.calls.push_call(requester, call.request.unique, Due::Slice(call));
    }

    /// Removes and returns a call, since its caller has a signal.
    pub(super) fn withdraw(&mut self, unique: u64) -> Option<Due> {
        self.calls.withdraw(unique)
    }
}

impl Server {
    /// Starts or continues a call later.
    pub(super) fn delay_call(&mut self, call: Slice) {
        let Some(open) = self.host.opens.get_mut(call.request.key) else { return };
        open.calls.set(call.request.caller.tid, Some(call.request.unique));
        self.delayed.insert(Requester::of(open), call);
    }

    /// Continues a long BINDER_WRITE_READ in its owner's next turn, or once the owner has slices.
    pub(super) fn continue_call(&mut self, request: PendingIoctl, bwr: BinderWriteRead) {
        let owner = self.host.charge(request.caller).owner;
        let stage = self.delayed.pay(owner, Stage::Unpaid);
        let slice = Slice { request, bwr, stage };
        if stage == Stage::Unpaid { self.delay_call(slice) } else { self.queue_slice(slice) }
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
            let Some(Due::Slice(call)) = self.delayed.calls.pop_in_turn() else { break };
            let owner = self.host.charge(call.request.caller).owner;
            let call = Slice { stage: self.delayed.pay(owner, call.stage), ..call };
            let start = match call.stage {
                Stage::Unpaid => Start::Later,
                Stage::Due => self.host.start_of_call(call.request.caller),
                Stage::Touched if self.host.admits_touched(call.request.caller) => Start::Now,
                Stage::Touched => Start::Later,
            };
            match start {
                Start::Now => self.queue_slice(call),
                Start::Touched => self.touch_and_delay(call),
                Start::Later => self.delay_call(call),
            }
        }
        if self.delayed.calls.is_empty() {
            self.delayed.timer.disarm();
        }
    }

    /// Starts a thread that touches the call's memory; the call waits until it has returned.
    pub(super) fn touch_and_delay(&mut self, call: Slice) {
        let caller = call.request.caller;
        let threads = self.loop_threads.as_ref();
        let started = threads.map(|threads| memory_touch::start(threads, caller.tid, call.bwr));
        if let Some(Ok(access)) = started {
            self.host.note_touch(caller, access);
        }
        // Without a thread, its next access may be late.
        self.delay_call(Slice { stage: Stage::Touched, ..call });
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

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
}
