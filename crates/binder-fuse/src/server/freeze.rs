//! Pending freezes: their requests, their timeouts, and the signals that end them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use binder_driver::{Caller, Errno, Freeze, FreezeId};
use binder_uapi::BinderFreezeInfo;
use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::Server;

/// An errno internal to the kernel: the call is restarted after a signal, or fails with EINTR,
/// depending on SA_RESTART.
const ERESTARTSYS: i32 = 512;

/// Requests that wait for a freeze.
pub(crate) struct Freezes {
    timer: OwnedFd,
    waiting: HashMap<FreezeId, Waiting>,
    by_request: HashMap<u64, FreezeId>,
}

struct Waiting {
    unique: u64,
    deadline: Instant,
}

impl Freezes {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer, waiting: HashMap::new(), by_request: HashMap::new() })
    }

    /// Becomes readable when a timeout has expired.
    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn insert(&mut self, id: FreezeId, unique: u64, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        self.waiting.insert(id, Waiting { unique, deadline });
        self.by_request.insert(unique, id);
        self.arm();
    }

    /// Removes and returns the request of a freeze that has ended.
    fn remove(&mut self, id: FreezeId) -> Option<u64> {
        let unique = self.waiting.remove(&id)?.unique;
        self.by_request.remove(&unique);
        Some(unique)
    }

    fn arm(&self) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let next = self.waiting.values().map(|waiting| waiting.deadline).min();
        let it_value = next.map_or(zero, |deadline| {
            // A timeout of 0 would disarm the timer.
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_nanos(1));
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let spec = Itimerspec { it_interval: zero, it_value };
        // Cannot fail: the descriptor is a timer and the value is in range.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// Freezes whose timeout has expired.
    fn expired(&mut self) -> Vec<FreezeId> {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        let now = Instant::now();
        let over = self.waiting.iter().filter(|(_, waiting)| waiting.deadline <= now);
        over.map(|(id, _)| *id).collect()
    }
}

impl Server {
    /// `BINDER_FREEZE`.
    pub(super) fn freeze(
        &mut self,
        unique: u64,
        caller: Caller,
        info: BinderFreezeInfo,
    ) -> io::Result<()> {
        match self.driver.freeze(caller.process, info) {
            Freeze::Done(result) => self.finish_freeze(unique, result),
            Freeze::Waiting(id) => {
                self.freezes.insert(id, unique, Duration::from_millis(info.timeout_ms.into()));
                Ok(())
            }
        }
    }

    fn finish_freeze(&mut self, unique: u64, result: Result<(), Errno>) -> io::Result<()> {
        match result {
            Ok(()) => self.channel.send(self.reply.ioctl(unique, 0, &[])),
            Err(errno) => self.channel.send(self.reply.error(unique, errno.code())),
        }
    }

    /// The driver has ended a pending freeze.
    pub(super) fn freeze_ended(
        &mut self,
        id: FreezeId,
        result: Result<(), Errno>,
    ) -> io::Result<()> {
        match self.freezes.remove(id) {
            Some(unique) => self.finish_freeze(unique, result),
            None => Ok(()),
        }
    }

    /// The timer fired.
    pub(super) fn serve_freeze_timeouts(&mut self) {
        for id in self.freezes.expired() {
            let result = self.driver.freeze_timed_out(id);
            if let Err(error) = self.freeze_ended(id, result) {
                tracing::warn!("the kernel does not take the answer to a BINDER_FREEZE: {error}");
            }
        }
        self.freezes.arm();
        self.serve_wakes();
    }

    /// Handles a signal for a request that may be a pending freeze; `None` if it is not.
    pub(super) fn interrupt_freeze(&mut self, unique: u64) -> Option<io::Result<()>> {
        let id = *self.freezes.by_request.get(&unique)?;
        self.freezes.remove(id);
        self.driver.freeze_interrupted(id);
        Some(self.channel.send(self.reply.ioctl(unique, -ERESTARTSYS, &[])))
    }
}
