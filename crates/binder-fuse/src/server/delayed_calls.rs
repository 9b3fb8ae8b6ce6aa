//! Calls that are not started, because memory of their client does not answer or their owner has
//! used up its time.
//!
//! With the kernel's driver, such a call waits for the page in the caller's own system call. Here
//! it waits until the late access has returned, and until its owner has time again.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::{Server, Slice};

/// How often delayed calls are checked. Each waits for an access that is late by ten times as much,
/// or for a budget that is refilled in seconds.
const CHECK_EVERY: Duration = Duration::from_millis(25);

/// See the module's documentation.
pub(super) struct DelayedCalls {
    timer: OwnedFd,
    /// By unique id.
    calls: HashMap<u64, Slice>,
}

impl DelayedCalls {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer, calls: HashMap::new() })
    }

    /// Becomes readable when the calls are to be checked.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn insert(&mut self, call: Slice) {
        if self.calls.is_empty() {
            self.arm(CHECK_EVERY);
        }
        self.calls.insert(call.request.unique, call);
    }

    /// Removes and returns a call, since its caller has a signal.
    pub(super) fn withdraw(&mut self, unique: u64) -> Option<Slice> {
        self.calls.remove(&unique)
    }

    /// Removes and returns the calls that may be started now.
    fn take_ready(&mut self, mut is_ready: impl FnMut(&Slice) -> bool) -> Vec<Slice> {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        let ready = self.calls.extract_if(|_, call| is_ready(call));
        let ready = ready.map(|(_, call)| call).collect();
        if self.calls.is_empty() {
            self.arm(Duration::ZERO);
        }
        ready
    }

    /// Zero disarms the timer.
    fn arm(&self, interval: Duration) {
        let interval = Timespec { tv_sec: 0, tv_nsec: interval.subsec_nanos().into() };
        let spec = Itimerspec { it_interval: interval, it_value: interval };
        // Cannot fail: the descriptor is a timer and the value is in range.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }
}

impl Server {
    /// Starts or continues a call later.
    pub(super) fn delay_call(&mut self, call: Slice) {
        let Some(open) = self.host.opens.get_mut(call.request.key) else { return };
        open.calls.set(call.request.caller.tid, Some(call.request.unique));
        self.delayed.insert(call);
    }

    /// The timer fired: queues the calls that may be started now.
    pub(super) fn serve_delayed_calls(&mut self) {
        let host = &mut self.host;
        let ready = self.delayed.take_ready(|call| host.may_start_call(call.request.caller));
        ready.into_iter().for_each(|call| self.queue_slice(call));
    }
}
