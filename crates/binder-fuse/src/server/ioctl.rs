//! The ioctls of a device and of `binder-control`.

use std::io;
use std::time::Instant;

use binder_driver::{Caller, Errno, Freshness, SpamDetection};
use binder_uapi::ioctl::*;
use binder_uapi::{
    BINDERFS_MAX_NAME, BinderFrozenStatusInfo, BinderNodeDebugInfo, BinderNodeInfoForRef,
    BinderVersion, BinderWriteRead, BinderfsDevice, CURRENT_PROTOCOL_VERSION, FlatBinderObject,
};
use owners::Uid;
use zerocopy::{FromBytes, IntoBytes};

use super::{PendingIoctl, RingPolicy, Server};
use crate::fixed::Place;
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

/// An open, and the thread that makes a call on it.
#[derive(Clone, Copy)]
struct Target {
    key: OpenKey,
    caller: Caller,
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
        let key = OpenKey::from_fh(ioctl.fh);
        if let Some(open) = self.host.opens.get(key) {
            let caller = Caller { process: open.process, tid: header.pid, euid: Uid(header.uid) };
            return self.device_ioctl(header, Target { key, caller }, ioctl, data);
        }
        match self.tree.place(header.nodeid) {
            Some(Place::Control) => match self.control_ioctl(ioctl, data) {
                Ok(data) => self.channel.send(self.reply.ioctl(header.unique, 0, &data)),
                Err(errno) => self.send_error(header, errno),
            },
            _ => self.send_error(header, libc::ENOTTY),
        }
    }

    fn device_ioctl(
        &mut self,
        header: &InHeader,
        target: Target,
        ioctl: &IoctlIn,
        data: &[u8],
    ) -> io::Result<()> {
        let Target { key, caller } = target;
        if ioctl.cmd == BINDER_WRITE_READ_32 {
            self.warn_once("protocol 7", || {
                format!("thread {}: it speaks protocol 7 of 32-bit systems, refusing", header.pid)
            });
            return self.send_error(header, libc::EINVAL);
        }
        if header.pid == 0 {
            return self.send_error(header, libc::EPERM);
        }
        if let Err(errno) = self.note_thread(key, header.pid) {
            return self.send_error(header, errno);
        }
        if ioctl.cmd == BINDER_WRITE_READ {
            self.refresh_opener_euid(key, caller.tid, caller.euid);
            return self.write_read(header, target, ioctl.arg, data);
        }
        if self.rings == RingPolicy::Accepted
            && let Some(result) = self.ring_ioctl(key, caller, ioctl.cmd, data)
        {
            return match result {
                Ok(()) => self.channel.send(self.reply.ioctl(header.unique, 0, &[])),
                Err(errno) => self.send_error(header, errno.code()),
            };
        }
        let known = self.driver.note_ioctl(caller);
        if let (BINDER_FREEZE, Ok(()), Ok(info)) = (ioctl.cmd, known, argument(data)) {
            return self.freeze(header.unique, caller, info);
        }
        match known.and_then(|()| self.small_ioctl(caller, ioctl.cmd, data)) {
            Ok(out) => self.channel.send(self.reply.ioctl(header.unique, 0, &out)),
            Err(errno) => self.send_error(header, errno.code()),
        }
    }

    fn write_read(
        &mut self,
        header: &InHeader,
        Target { key, caller }: Target,
        argument_at: u64,
        data: &[u8],
    ) -> io::Result<()> {
        let Ok(bwr) = argument::<BinderWriteRead>(data) else {
            return self.send_error(header, libc::EINVAL);
        };
        let Some(open) = self.host.opens.get(key) else {
            return self.send_error(header, libc::EBADF);
        };
        if open.calls.request(caller.tid).is_some() {
            // A thread can be in one call only; a second request at the same time would replace the
            // first.
            return self.send_error(header, libc::EBUSY);
        }
        self.host.rings.note_request(key, caller.tid, coarse_now_ns());
        let request = PendingIoctl { key, caller, unique: header.unique, argument: argument_at };
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
}
