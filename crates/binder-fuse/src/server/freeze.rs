//! Pending freezes: their requests, their timeouts, and the signals that end them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use binder_driver::{Caller, Errno, Freeze, FreezeId};
use binder_uapi::BinderFreezeInfo;
use headroom_linux::clock::Timer;
use owners::Uid;
use serde::{Deserialize, Serialize};

use super::Server;
use crate::identity;

/// An errno internal to the kernel: the call is restarted after a signal, or fails with EINTR,
/// depending on SA_RESTART.
const ERESTARTSYS: i32 = 512;

/// Requests that wait for a freeze.
pub(crate) struct Freezes {
    timer: Timer,
    waiting: HashMap<FreezeId, Waiting>,
    by_request: HashMap<u64, FreezeId>,
}

struct Waiting {
    unique: u64,
    deadline: Instant,
}

/// A pending freeze in a state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct SavedFreeze {
    pub(super) id: FreezeId,
    pub(super) unique: u64,
    /// Remaining time.
    left: Duration,
}

impl SavedFreeze {
    /// Whether the remaining time is one that a client can request.
    pub(super) fn is_possible(&self) -> bool {
        self.left <= Duration::from_millis(u32::MAX.into())
    }
}

impl Freezes {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { timer: Timer::new()?, waiting: HashMap::new(), by_request: HashMap::new() })
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

    pub(super) fn save(&self) -> Vec<SavedFreeze> {
        let now = Instant::now();
        let saved = |(&id, &Waiting { unique, deadline }): (&FreezeId, &Waiting)| SavedFreeze {
            id,
            unique,
            left: deadline.saturating_duration_since(now),
        };
        self.waiting.iter().map(saved).collect()
    }

    pub(super) fn restore(&mut self, SavedFreeze { id, unique, left }: SavedFreeze) {
        self.insert(id, unique, left);
    }

    /// Removes and returns the request of a freeze that has ended.
    fn remove(&mut self, id: FreezeId) -> Option<u64> {
        let unique = self.waiting.remove(&id)?.unique;
        self.by_request.remove(&unique);
        Some(unique)
    }

    fn arm(&self) {
        match self.waiting.values().map(|waiting| waiting.deadline).min() {
            Some(next) => self.timer.expire_in(next.saturating_duration_since(Instant::now())),
            None => self.timer.disarm(),
        }
    }

    /// Freezes whose timeout has expired.
    fn expired(&mut self) -> Vec<FreezeId> {
        self.timer.take_expiry();
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
        if !self.may_freeze(caller, info.pid) {
            return self.finish_freeze(unique, Err(Errno::EPERM));
        }
        match self.driver.freeze(caller.process, info) {
            Freeze::Done(result) => self.finish_freeze(unique, result),
            Freeze::Waiting(id) => {
                self.freezes.insert(id, unique, Duration::from_millis(info.timeout_ms.into()));
                Ok(())
            }
        }
    }

    /// Whether the caller may signal the process whose opens it freezes or thaws. The caller's own
    /// credentials cannot change while it waits for its request. Whatever becomes of the process
    /// meanwhile, nothing but its opens is affected.
    fn may_freeze(&self, caller: Caller, pid: u32) -> bool {
        let of_pid = self.host.opens.values().filter(|open| open.pid == pid);
        let mut others = of_pid.filter(|open| open.sender_euid != caller.euid).peekable();
        others.peek().is_none() || may_signal(caller.tid, caller.euid, pid)
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

/// Whether a thread may signal a process of another user.
fn may_signal(tid: u32, euid: Uid, pid: u32) -> bool {
    let levels = |pid| match owners::reader::namespaces(Path::new("/proc"), pid) {
        // A server without privileges sees its own namespace only.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(Vec::new()),
        levels => levels.ok(),
    };
    let (Some(own), Some(target)) = (levels(tid), levels(pid)) else { return false };
    // Innermost first: the target's namespaces below that of the caller.
    let Some(below) = target.strip_suffix(&own[..]) else { return false };
    below.last().is_some_and(|level| level.creator == euid) || identity::has_cap_kill(tid)
}
