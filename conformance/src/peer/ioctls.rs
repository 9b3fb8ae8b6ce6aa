//! The ioctls of a peer besides `BINDER_WRITE_READ`, each logged as a line of the transcript.

use binder_uapi::ioctl::*;
use binder_uapi::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Peer;
use crate::actor::Order;
use crate::shared::{Outcome, Stop};

impl Peer {
    /// Makes an ioctl with an address as argument; logs nothing.
    pub fn raw_ioctl(&self, request: u32, argument: u64) -> Result<i64, Stop> {
        let fd = self.fd() as u64;
        self.call(libc::SYS_ioctl, [fd, request.into(), argument, 0, 0, 0])
    }

    /// Makes an ioctl with an invalid address as argument, such as NULL or one that faults.
    pub fn ioctl_at(&self, name: &str, request: u32, argument: u64) -> Outcome {
        let at = self.shared.names.address(&self.process, argument);
        let result = self.raw_ioctl(request, argument)?;
        self.logged(&format!("{name} at {at}"), result);
        Ok(())
    }

    /// Makes an ioctl with a structure; logs it before and after the call.
    pub fn ioctl<T>(&self, name: &str, request: u32, argument: T) -> Result<(i32, T), Stop>
    where
        T: FromBytes + IntoBytes + Immutable + Clone,
    {
        let at = self.arena().place(argument.as_bytes());
        let result = self.raw_ioctl(request, at)?;
        let after = self.arena().get(at, size_of::<T>()).unwrap_or_default();
        let after = T::read_from_bytes(&after).map_err(|_| Stop("short structure".to_owned()))?;
        self.logged(name, result);
        Ok((if result < 0 { -result as i32 } else { 0 }, after))
    }

    /// `BINDER_SET_CONTEXT_MGR`.
    pub fn manage(&self) -> Result<i32, Stop> {
        Ok(self.ioctl("BINDER_SET_CONTEXT_MGR", BINDER_SET_CONTEXT_MGR, 0i32)?.0)
    }

    /// `BINDER_SET_CONTEXT_MGR_EXT`.
    pub fn manage_as(&self, object: FlatBinderObject) -> Result<i32, Stop> {
        let (flags, ptr, cookie) = (object.flags, object.binder, object.cookie);
        let name =
            format!("BINDER_SET_CONTEXT_MGR_EXT flags={flags:#x} ptr={ptr:#x} cookie={cookie:#x}");
        Ok(self.ioctl(&name, BINDER_SET_CONTEXT_MGR_EXT, object)?.0)
    }

    /// `BINDER_SET_MAX_THREADS`.
    pub fn set_max_threads(&self, threads: u32) -> Outcome {
        let name = format!("BINDER_SET_MAX_THREADS {threads}");
        self.ioctl(&name, BINDER_SET_MAX_THREADS, threads).map(drop)
    }

    /// `BINDER_THREAD_EXIT`.
    pub fn thread_exit(&self) -> Outcome {
        self.ioctl("BINDER_THREAD_EXIT", BINDER_THREAD_EXIT, 0i32).map(drop)
    }

    /// `BINDER_GET_EXTENDED_ERROR`, decoded.
    pub fn extended_error(&self) -> Outcome {
        let name = "BINDER_GET_EXTENDED_ERROR";
        let argument = BinderExtendedError::default();
        let (errno, error) = self.ioctl(name, BINDER_GET_EXTENDED_ERROR, argument)?;
        if errno == 0 {
            self.log(format!("  {}", self.describing(|d| d.extended_error(&error))));
        }
        Ok(())
    }

    /// `BINDER_GET_NODE_DEBUG_INFO`, decoded.
    pub fn node_debug_info(&self, ptr: u64) -> Result<BinderNodeDebugInfo, Stop> {
        let argument = BinderNodeDebugInfo { ptr, ..Default::default() };
        let name = format!("BINDER_GET_NODE_DEBUG_INFO after {ptr:#x}");
        let (_, info) = self.ioctl(&name, BINDER_GET_NODE_DEBUG_INFO, argument)?;
        self.log(format!(
            "  ptr={:#x} cookie={:#x} strong={} weak={}",
            info.ptr, info.cookie, info.has_strong_ref, info.has_weak_ref
        ));
        Ok(info)
    }

    /// `BINDER_GET_NODE_INFO_FOR_REF`, decoded.
    pub fn node_info(&self, argument: BinderNodeInfoForRef) -> Outcome {
        let name = format!("BINDER_GET_NODE_INFO_FOR_REF {}", argument.handle);
        let (_, info) = self.ioctl(&name, BINDER_GET_NODE_INFO_FOR_REF, argument)?;
        let reserved = [info.reserved1, info.reserved2, info.reserved3];
        self.log(format!(
            "  handle={} strong={} weak={} reserved={reserved:?}",
            info.handle, info.strong_count, info.weak_count
        ));
        Ok(())
    }

    /// `BINDER_FREEZE` of another peer's process.
    pub fn freeze(&self, target: &Peer, enable: u32, timeout_ms: u32) -> Result<i32, Stop> {
        let info = BinderFreezeInfo { pid: target.pid(), enable, timeout_ms };
        let name = format!("BINDER_FREEZE {} enable={enable} timeout={timeout_ms}", target.label);
        Ok(self.ioctl(&name, BINDER_FREEZE, info)?.0)
    }

    /// Starts a `BINDER_FREEZE` that waits for pending calls; [`Self::finish_freeze`] waits for its
    /// result.
    pub fn start_freeze(&self, target: &Peer, timeout_ms: u32) -> Outcome {
        let info = BinderFreezeInfo { pid: target.pid(), enable: 1, timeout_ms };
        let at = self.arena().place(info.as_bytes());
        let arguments = [self.fd() as u64, BINDER_FREEZE.into(), at, 0, 0, 0];
        self.process.order(self.thread, Order::Call(libc::SYS_ioctl, arguments))?;
        self.log(format!("BINDER_FREEZE {} enable=1 timeout={timeout_ms}", target.label));
        match self.wait(self.shared.patience.blocks)? {
            None => self.log("... blocks"),
            Some(result) => {
                self.logged("... BINDER_FREEZE", result);
                return Err(Stop("BINDER_FREEZE does not wait".to_owned()));
            }
        }
        Ok(())
    }

    /// Waits for the freeze of [`Self::start_freeze`].
    pub fn finish_freeze(&self) -> Outcome {
        let result = self.wait(self.shared.patience.hangs)?;
        let result = result.ok_or_else(|| Stop("BINDER_FREEZE hangs".to_owned()))?;
        self.logged("... BINDER_FREEZE", result);
        Ok(())
    }

    /// `BINDER_GET_FROZEN_INFO` of another peer's process.
    pub fn frozen_info(&self, target: &Peer) -> Outcome {
        let argument = BinderFrozenStatusInfo { pid: target.pid(), ..Default::default() };
        let name = format!("BINDER_GET_FROZEN_INFO {}", target.label);
        let (errno, info) = self.ioctl(&name, BINDER_GET_FROZEN_INFO, argument)?;
        if errno == 0 {
            self.log(format!("  sync={:#x} async={:#x}", info.sync_recv, info.async_recv));
        }
        Ok(())
    }
}
