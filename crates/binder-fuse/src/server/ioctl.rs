//! The ioctls of a device and of `binder-control`.

use std::io;
use std::time::{Duration, Instant};

use binder_driver::{Caller, Errno, Freeze, FreezeId, Freshness, SpamDetection};
use binder_uapi::ioctl::*;
use binder_uapi::{
    BINDERFS_MAX_NAME, BinderFreezeInfo, BinderFrozenStatusInfo, BinderNodeDebugInfo,
    BinderNodeInfoForRef, BinderVersion, BinderWriteRead, BinderfsDevice, CURRENT_PROTOCOL_VERSION,
    FlatBinderObject,
};
use owners::Uid;
use zerocopy::{FromBytes, IntoBytes};

use super::call::{CallState, PendingFreeze, PendingIoctl, Transport};
use super::device::user_namespaces;
use super::{RingPolicy, Server};
use crate::fixed::Place;
use crate::identity;
use crate::open::OpenKey;
use crate::owner_budgets::coarse_now_ns;
use crate::wire::types::{IOCTL_DIR, InHeader, IoctlIn};

/// BINDER_WRITE_READ of protocol 7, whose `binder_write_read` has 24 bytes.
const BINDER_WRITE_READ_32: u32 = 0xc018_6201;

/// The ioctl's argument, which the kernel has copied in; its length is encoded in the ioctl's
/// number.
fn argument<T: FromBytes>(data: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(data).map_err(|_| Errno::EINVAL)
}

fn bytes(value: impl IntoBytes + zerocopy::Immutable) -> Vec<u8> {
    value.as_bytes().to_vec()
}

/// The name in the argument of BINDER_CTL_ADD, as the kernel takes it: at most 255 bytes of it. An
/// errno (positive) if it is not UTF-8.
pub(crate) fn name_of(device: &mut BinderfsDevice) -> Result<&str, i32> {
    device.name[BINDERFS_MAX_NAME] = 0;
    let end = device.name.iter().position(|&byte| byte == 0).unwrap_or(BINDERFS_MAX_NAME);
    std::str::from_utf8(&device.name[..end]).map_err(|_| libc::EINVAL)
}

impl Server {
    pub(super) fn ioctl(
        &mut self,
        header: &InHeader,
        ioctl: &IoctlIn,
        data: &[u8],
    ) -> io::Result<()> {
        if ioctl.flags & IOCTL_DIR != 0 {
            return self.send_error(header, libc::ENOTTY);
        }
        if let Some(request) = self.on_device(header, ioctl) {
            return self.device_ioctl(request, ioctl, data);
        }
        match self.tree.place(header.nodeid) {
            Some(Place::Control) => match self.control_ioctl(ioctl, data) {
                Ok(data) => self.channel.send(self.reply.ioctl(header.unique, 0, &data)),
                Err(errno) => self.send_error(header, errno),
            },
            _ => self.send_error(header, libc::ENOTTY),
        }
    }

    /// The ioctl of a request on a device.
    fn on_device(&self, header: &InHeader, ioctl: &IoctlIn) -> Option<PendingIoctl> {
        let key = OpenKey::from_fh(ioctl.fh);
        let process = self.host.opens.get(key)?.info.process;
        let caller = Caller { process, tid: header.pid, euid: Uid(header.uid) };
        let from = Transport::Request { unique: header.unique, argument: ioctl.arg };
        Some(PendingIoctl { key, caller, from })
    }

    /// The BINDER_WRITE_READ of a request that can be started. `None`: it is another request, or
    /// will be refused.
    pub(super) fn arrived_call(
        &self,
        header: &InHeader,
        ioctl: &IoctlIn,
        data: &[u8],
    ) -> Option<(PendingIoctl, BinderWriteRead)> {
        if ioctl.cmd != BINDER_WRITE_READ || ioctl.flags & IOCTL_DIR != 0 || header.pid == 0 {
            return None;
        }
        Some((self.on_device(header, ioctl)?, argument(data).ok()?))
    }

    fn device_ioctl(
        &mut self,
        request: PendingIoctl,
        ioctl: &IoctlIn,
        data: &[u8],
    ) -> io::Result<()> {
        let PendingIoctl { key, caller, .. } = request;
        if ioctl.cmd == BINDER_WRITE_READ_32 {
            self.warn_once("protocol 7", || {
                format!("thread {}: it speaks protocol 7 of 32-bit systems, refusing", caller.tid)
            });
            return self.send_errno(&request, libc::EINVAL);
        }
        if caller.tid == 0 {
            return self.send_errno(&request, libc::EPERM);
        }
        if ioctl.cmd == BINDER_WRITE_READ {
            return match argument(data) {
                Ok(bwr) => self.start_call(request, bwr),
                Err(errno) => self.send_errno(&request, errno.code()),
            };
        }
        if let Err(errno) = self.note_thread(key, caller.tid) {
            return self.send_errno(&request, errno);
        }
        if self.rings == RingPolicy::Accepted
            && let Some(result) = self.ring_ioctl(key, caller, ioctl.cmd, data)
        {
            return self.finish_ioctl(&request, result);
        }
        let known = self.driver.note_ioctl(caller);
        if let (BINDER_FREEZE, Ok(()), Ok(info)) = (ioctl.cmd, known, argument(data)) {
            return self.freeze(request, info);
        }
        match known.and_then(|()| self.small_ioctl(caller, ioctl.cmd, data)) {
            Ok(out) => self.send_ioctl(&request, 0, &out),
            Err(errno) => self.send_errno(&request, errno.code()),
        }
    }

    /// Replies to an ioctl that returns no data.
    fn finish_ioctl(
        &mut self,
        request: &PendingIoctl,
        result: Result<(), Errno>,
    ) -> io::Result<()> {
        match result {
            Ok(()) => self.send_ioctl(request, 0, &[]),
            Err(errno) => self.send_errno(request, errno.code()),
        }
    }

    /// Starts a BINDER_WRITE_READ.
    pub(super) fn start_call(
        &mut self,
        request: PendingIoctl,
        bwr: BinderWriteRead,
    ) -> io::Result<()> {
        let PendingIoctl { key, caller, .. } = request;
        if let Err(errno) = self.note_thread(key, caller.tid) {
            return self.send_errno(&request, errno);
        }
        self.refresh_opener_euid(key, caller.tid, caller.euid);
        if self.call_of(key, caller.tid).is_some() {
            // A thread can be in one call only; a second request at the same time would replace the
            // first.
            return self.send_errno(&request, libc::EBUSY);
        }
        self.host.rings.note_request(key, caller.tid, coarse_now_ns());
        self.note_call(&request);
        self.run_write_read(request, bwr)
    }

    /// Records that a thread starts a BINDER_WRITE_READ.
    pub(super) fn note_call(&mut self, &PendingIoctl { key, caller, .. }: &PendingIoctl) {
        self.chain.request(caller.tid, Instant::now());
        self.host.oldest_priority =
            if self.chain.is_chain() { Freshness::Recent } else { Freshness::Current };
        self.collect_deferred(key, caller.tid);
    }

    /// All ioctls but BINDER_WRITE_READ: they return at once, with data or an errno.
    fn small_ioctl(&mut self, caller: Caller, cmd: u32, data: &[u8]) -> Result<Vec<u8>, Errno> {
        let process = caller.process;
        let done = |()| Vec::new();
        match cmd {
            BINDER_VERSION => {
                Ok(bytes(BinderVersion { protocol_version: CURRENT_PROTOCOL_VERSION }))
            }
            BINDER_SET_MAX_THREADS => {
                self.driver.set_max_threads(process, argument(data)?).map(done)
            }
            BINDER_SET_CONTEXT_MGR => self.driver.set_context_manager(caller, None).map(done),
            BINDER_SET_CONTEXT_MGR_EXT => {
                let object: FlatBinderObject = argument(data)?;
                self.driver.set_context_manager(caller, Some(object)).map(done)
            }
            BINDER_THREAD_EXIT => {
                self.driver.thread_exit(&mut self.host, process, caller.tid);
                self.host.restore_priorities();
                self.cancel_deferred(caller.tid, process);
                Ok(Vec::new())
            }
            BINDER_GET_NODE_DEBUG_INFO => {
                let query: BinderNodeDebugInfo = argument(data)?;
                self.driver.node_debug_info(process, query.ptr).map(bytes)
            }
            BINDER_GET_NODE_INFO_FOR_REF => {
                let query: BinderNodeInfoForRef = argument(data)?;
                self.driver.node_info_for_ref(process, query).map(bytes)
            }
            BINDER_ENABLE_ONEWAY_SPAM_DETECTION => {
                let enable: u32 = argument(data)?;
                let detection = if enable == 0 { SpamDetection::Off } else { SpamDetection::On };
                self.driver.enable_oneway_spam_detection(process, detection).map(done)
            }
            BINDER_GET_FROZEN_INFO => {
                let query: BinderFrozenStatusInfo = argument(data)?;
                self.driver.frozen_info(query.pid).map(bytes)
            }
            BINDER_GET_EXTENDED_ERROR => self.driver.extended_error(caller).map(bytes),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Ioctls of `binder-control`; errno (positive) on failure.
    fn control_ioctl(&mut self, ioctl: &IoctlIn, data: &[u8]) -> Result<Vec<u8>, i32> {
        if ioctl.cmd != BINDER_CTL_ADD {
            return Err(libc::EINVAL);
        }
        let mut device = BinderfsDevice::read_from_bytes(data).map_err(|_| libc::EINVAL)?;
        let name = name_of(&mut device)?;
        self.tree.check_name(name)?;
        let context = self.driver.add_context(name);
        self.tree.add(name, context, self.added_mode);
        tracing::info!("device {name} added");
        // There is no device node, hence no device numbers; clients open the file by its name.
        (device.major, device.minor) = (0, 0);
        Ok(bytes(device))
    }

    /// `BINDER_FREEZE`.
    pub(super) fn freeze(
        &mut self,
        request: PendingIoctl,
        info: BinderFreezeInfo,
    ) -> io::Result<()> {
        if !self.may_freeze(request.caller, info.pid) {
            return self.finish_ioctl(&request, Err(Errno::EPERM));
        }
        match self.driver.freeze(request.caller.process, info) {
            Freeze::Done(result) => self.finish_ioctl(&request, result),
            Freeze::Waiting(id) => {
                let deadline = Instant::now() + Duration::from_millis(info.timeout_ms.into());
                let freeze = PendingFreeze { id, deadline };
                self.wait(request, CallState::Freezing(Box::new(freeze)));
                self.arm_freeze_timer();
                Ok(())
            }
        }
    }

    /// The timer expires with the next freeze that fails.
    pub(super) fn arm_freeze_timer(&self) {
        match self.calls.freezes().map(|(_, deadline)| deadline).min() {
            Some(next) => {
                let left = next.saturating_duration_since(Instant::now());
                self.freeze_timer.expire_in(left);
            }
            None => self.freeze_timer.disarm(),
        }
    }

    /// Whether the caller may signal the process whose opens it freezes or thaws. The caller's own
    /// credentials cannot change while it waits for its request. Whatever becomes of the process
    /// meanwhile, nothing but its opens is affected.
    fn may_freeze(&self, caller: Caller, pid: u32) -> bool {
        let of_pid = self.host.opens.values().filter(|open| open.info.pid == pid);
        let mut others = of_pid.filter(|open| open.info.sender_euid != caller.euid).peekable();
        others.peek().is_none() || may_signal(caller.tid, caller.euid, pid)
    }

    /// The driver has ended a pending freeze.
    pub(super) fn freeze_ended(
        &mut self,
        id: FreezeId,
        result: Result<(), Errno>,
    ) -> io::Result<()> {
        match self.calls.of_freeze(id).and_then(|key| self.end_wait(key)) {
            Some(call) => self.finish_ioctl(&call.request, result),
            None => Ok(()),
        }
    }

    /// The timer fired.
    pub(super) fn serve_freeze_timeouts(&mut self) {
        self.freeze_timer.take_expiry();
        let now = Instant::now();
        let expired: Vec<_> =
            self.calls.freezes().filter(|&(_, deadline)| deadline <= now).collect();
        for (id, _) in expired {
            let result = self.driver.freeze_timed_out(id);
            if let Err(error) = self.freeze_ended(id, result) {
                tracing::warn!("the kernel does not take the answer to a BINDER_FREEZE: {error}");
            }
        }
        self.arm_freeze_timer();
        self.serve_wakes();
    }
}

/// Whether a thread may signal a process of another user.
fn may_signal(tid: u32, euid: Uid, pid: u32) -> bool {
    let (Ok(own), Ok(target)) = (user_namespaces(tid), user_namespaces(pid)) else { return false };
    // Innermost first: the target's namespaces below that of the caller.
    let Some(below) = target.strip_suffix(&own[..]) else { return false };
    below.last().is_some_and(|level| level.creator == euid) || identity::has_cap_kill(tid)
}
