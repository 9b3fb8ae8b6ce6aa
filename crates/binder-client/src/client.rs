//! One open of a device: its mapping, its ioctls, and their errors.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use binder_uapi::ioctl::*;
use binder_uapi::{
    BINDERFS_MAX_NAME, BinderExtendedError, BinderFreezeInfo, BinderFrozenStatusInfo,
    BinderNodeDebugInfo, BinderNodeInfoForRef, BinderVersion, BinderWriteRead, BinderfsDevice,
    CURRENT_PROTOCOL_VERSION, FlatBinderObject, StreamError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Error of a client's operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The device could not be opened.
    #[error("{path}: cannot open: {errno}")]
    Open {
        /// The device.
        path: PathBuf,
        /// Errno of the failed open.
        errno: Errno,
    },
    /// The device could not be mapped.
    #[error("{path}: cannot map {len} bytes: {errno}")]
    Map {
        /// The device.
        path: PathBuf,
        /// Requested size, bytes.
        len: usize,
        /// Errno of the failed mmap.
        errno: Errno,
    },
    /// The device implements another protocol version.
    #[error("{path}: speaks binder protocol {found}; only 8 (64-bit structures) is known here")]
    Version {
        /// The device.
        path: PathBuf,
        /// The version that it returned.
        found: i32,
    },
    /// A system call on the device failed.
    #[error("{doing}: {errno}")]
    Ioctl {
        /// Name of the call.
        doing: &'static str,
        /// Errno of the failed call.
        errno: Errno,
    },
    /// The driver returned a stream that does not parse.
    #[error("the driver's returns do not parse: {0}")]
    Stream(#[from] StreamError),
    /// The driver reported more bytes than the buffer has.
    #[error("the driver reports that it moved {counted} bytes of a {given}-byte buffer")]
    Count {
        /// Bytes reported by the driver.
        counted: u64,
        /// Bytes in the buffer.
        given: usize,
    },
    /// The driver returned an address outside of the mapping.
    #[error("the driver put {len} bytes at {address:#x}, which is not in the mapping")]
    OutsideMapping {
        /// Address of the range.
        address: u64,
        /// Length of the range, bytes.
        len: u64,
    },
    /// The contents received are not those that the protocol of sender and receiver requires.
    #[error("unexpected contents: {0}")]
    Contents(&'static str),
    /// `BR_DEAD_REPLY`: the target is gone.
    #[error("the target of the call is dead (BR_DEAD_REPLY)")]
    DeadReply,
    /// `BR_FAILED_REPLY`: the call failed; the extended error has the reason.
    #[error("the call failed (BR_FAILED_REPLY)")]
    FailedReply,
    /// `BR_FROZEN_REPLY`: the target is frozen.
    #[error("the target of the call is frozen (BR_FROZEN_REPLY)")]
    FrozenReply,
    /// `BR_ERROR`.
    #[error("the driver reports error {0} (BR_ERROR)")]
    Driver(i32),
    /// The target replied with a status code instead of data.
    #[error("the target answered with status {0}")]
    Status(i32),
}

impl ClientError {
    /// The errno of a failed system call.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::Map { errno, .. } | Self::Ioctl { errno, .. } => {
                Some(*errno)
            }
            _ => None,
        }
    }
}

/// Bytes that libbinder maps: 1 MiB less two pages.
pub const LIBBINDER_MAP_LEN: usize = 1024 * 1024 - 2 * 4096;

/// Type of the mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// `MAP_PRIVATE`, as libbinder does.
    #[default]
    Private,
    /// `MAP_SHARED`, as AOSP's driver test does.
    Shared,
}

/// Options of [`Client::open`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes to map; with 0 nothing is mapped, and nothing can be received.
    pub map_len: usize,
    /// Request a writable mapping, which a driver refuses if it can.
    pub map_writable: bool,
    /// Type of the mapping.
    pub sharing: Sharing,
    /// Maximum number of loopers that the driver may request.
    pub max_threads: u32,
    /// Open with `O_NONBLOCK`: a read without work fails with `EAGAIN`.
    pub nonblock: bool,
}

impl Default for Options {
    /// The options of libbinder, without looper threads.
    fn default() -> Self {
        let map_len = LIBBINDER_MAP_LEN;
        Self {
            map_len,
            map_writable: false,
            sharing: Sharing::Private,
            max_threads: 0,
            nonblock: false,
        }
    }
}

struct Map {
    address: usize,
    len: usize,
}

impl Map {
    fn new(fd: BorrowedFd<'_>, options: &Options) -> Result<Self, Errno> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, options.map_writable);
        let sharing = match options.sharing {
            Sharing::Private => MapFlags::PRIVATE,
            Sharing::Shared => MapFlags::SHARED,
        };
        let flags = sharing | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe { mmap(ptr::null_mut(), options.map_len, protection, flags, fd, 0) }?;
        let map = Self { address: at as usize, len: options.map_len };
        // A forked child must not read transactions that arrive later: the kernel's driver sets
        // VM_DONTCOPY.
        // SAFETY: the range was mapped above; the advice concerns children only.
        unsafe { madvise(at, map.len, Advice::LinuxDontFork) }?;
        Ok(map)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`; every view of it borrows the client.
        let _ = unsafe { munmap(self.address as *mut c_void, self.len) };
    }
}

/// One open of a device. Threads share it; each has its own [`Session`](crate::Session).
pub struct Client {
    path: PathBuf,
    // Dropped before the descriptor is closed, as libraries do.
    map: Option<Map>,
    fd: OwnedFd,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Client {
    /// Opens a device like a library: open, version, number of threads, mapping.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, ClientError> {
        let path = path.as_ref().to_owned();
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        flags.set(OFlags::NONBLOCK, options.nonblock);
        let fd = open(&path, flags, Mode::empty())
            .map_err(|errno| ClientError::Open { path: path.clone(), errno })?;
        let mut client = Self { path, map: None, fd };
        let found = client.version()?;
        if found != CURRENT_PROTOCOL_VERSION {
            return Err(ClientError::Version { path: client.path, found });
        }
        client.set_max_threads(options.max_threads)?;
        if options.map_len > 0 {
            let path = client.path.clone();
            let len = options.map_len;
            let map = Map::new(client.fd.as_fd(), options);
            client.map = Some(map.map_err(|errno| ClientError::Map { path, len, errno })?);
        }
        Ok(client)
    }

    /// The device's path, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Address and length of the mapping.
    pub fn mapping(&self) -> Option<(u64, usize)> {
        self.map.as_ref().map(|map| (map.address as u64, map.len))
    }

    /// Any ioctl with any argument.
    ///
    /// # Safety
    /// `argument` must be valid for `request`: the driver reads and writes behind it.
    pub unsafe fn ioctl_raw(&self, request: u32, argument: usize) -> Result<i32, Errno> {
        // SAFETY: as the caller guarantees.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, argument) };
        if result < 0 {
            let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            return Err(Errno::from_raw_os_error(code));
        }
        Ok(result)
    }

    /// `BINDER_WRITE_READ`, once. `bwr` has the consumed sizes even when the call fails.
    ///
    /// # Safety
    /// `read_size` bytes at `read_buffer` must be writable by the caller, or not mapped.
    pub unsafe fn write_read(&self, bwr: &mut BinderWriteRead) -> Result<(), Errno> {
        // SAFETY: a live `BinderWriteRead`; the caller guarantees what it points at.
        unsafe { self.ioctl_raw(BINDER_WRITE_READ, bwr as *mut _ as usize) }.map(drop)
    }

    /// An ioctl whose argument is one plain structure without pointers.
    fn plain<T>(&self, doing: &'static str, request: u32, arg: &mut T) -> Result<(), ClientError> {
        debug_assert_eq!(payload_len(request), size_of::<T>(), "{doing}");
        // SAFETY: every request below encodes the size of `T`, which holds no pointer.
        unsafe { self.ioctl_raw(request, arg as *mut T as usize) }
            .map(drop)
            .map_err(|errno| ClientError::Ioctl { doing, errno })
    }

    /// `BINDER_VERSION`.
    pub fn version(&self) -> Result<i32, ClientError> {
        let mut version = BinderVersion::default();
        self.plain("BINDER_VERSION", BINDER_VERSION, &mut version)?;
        Ok(version.protocol_version)
    }

    /// `BINDER_SET_MAX_THREADS`.
    pub fn set_max_threads(&self, mut threads: u32) -> Result<(), ClientError> {
        self.plain("BINDER_SET_MAX_THREADS", BINDER_SET_MAX_THREADS, &mut threads)
    }

    /// `BINDER_SET_CONTEXT_MGR`: makes this open handle 0 of its device.
    pub fn become_context_manager(&self) -> Result<(), ClientError> {
        self.plain("BINDER_SET_CONTEXT_MGR", BINDER_SET_CONTEXT_MGR, &mut 0i32)
    }

    /// `BINDER_SET_CONTEXT_MGR_EXT`: like `BINDER_SET_CONTEXT_MGR`, with the node's pointer, cookie
    /// and flags.
    pub fn become_context_manager_ext(&self, object: FlatBinderObject) -> Result<(), ClientError> {
        let mut object = object;
        self.plain("BINDER_SET_CONTEXT_MGR_EXT", BINDER_SET_CONTEXT_MGR_EXT, &mut object)
    }

    /// `BINDER_THREAD_EXIT`: the calling thread will not call again.
    pub fn thread_exit(&self) -> Result<(), ClientError> {
        self.plain("BINDER_THREAD_EXIT", BINDER_THREAD_EXIT, &mut 0i32)
    }

    /// `BINDER_GET_NODE_DEBUG_INFO`: this process's first node above `ptr`; all zeros if there is
    /// none.
    pub fn node_debug_info(&self, ptr: u64) -> Result<BinderNodeDebugInfo, ClientError> {
        let mut info = BinderNodeDebugInfo { ptr, ..Default::default() };
        self.plain("BINDER_GET_NODE_DEBUG_INFO", BINDER_GET_NODE_DEBUG_INFO, &mut info)?;
        Ok(info)
    }

    /// `BINDER_GET_NODE_INFO_FOR_REF`, for the context manager.
    pub fn node_info_for_ref(&self, handle: u32) -> Result<BinderNodeInfoForRef, ClientError> {
        let mut info = BinderNodeInfoForRef { handle, ..Default::default() };
        self.plain("BINDER_GET_NODE_INFO_FOR_REF", BINDER_GET_NODE_INFO_FOR_REF, &mut info)?;
        Ok(info)
    }

    /// `BINDER_GET_EXTENDED_ERROR`: the error of the calling thread's last failed transaction;
    /// clears it.
    pub fn extended_error(&self) -> Result<BinderExtendedError, ClientError> {
        let mut error = BinderExtendedError::default();
        self.plain("BINDER_GET_EXTENDED_ERROR", BINDER_GET_EXTENDED_ERROR, &mut error)?;
        Ok(error)
    }

    /// `BINDER_ENABLE_ONEWAY_SPAM_DETECTION`.
    pub fn enable_oneway_spam_detection(&self) -> Result<(), ClientError> {
        let request = BINDER_ENABLE_ONEWAY_SPAM_DETECTION;
        self.plain("BINDER_ENABLE_ONEWAY_SPAM_DETECTION", request, &mut 1_u32)
    }

    /// `BINDER_FREEZE`: waits up to `timeout_ms` for pending calls.
    pub fn freeze(&self, pid: u32, timeout_ms: u32) -> Result<(), ClientError> {
        let mut info = BinderFreezeInfo { pid, enable: 1, timeout_ms };
        self.plain("BINDER_FREEZE", BINDER_FREEZE, &mut info)
    }

    /// `BINDER_FREEZE` with 0: the process takes calls again.
    pub fn thaw(&self, pid: u32) -> Result<(), ClientError> {
        let mut info = BinderFreezeInfo { pid, enable: 0, timeout_ms: 0 };
        self.plain("BINDER_FREEZE", BINDER_FREEZE, &mut info)
    }

    /// `BINDER_GET_FROZEN_INFO`.
    pub fn frozen_info(&self, pid: u32) -> Result<BinderFrozenStatusInfo, ClientError> {
        let mut info = BinderFrozenStatusInfo { pid, ..Default::default() };
        self.plain("BINDER_GET_FROZEN_INFO", BINDER_GET_FROZEN_INFO, &mut info)?;
        Ok(info)
    }

    /// Waits until one of `events` (or an error) holds; empty flags after the timeout.
    pub fn poll(&self, events: PollFlags, patience: Duration) -> Result<PollFlags, ClientError> {
        let failed = |errno| ClientError::Ioctl { doing: "poll", errno };
        let timeout = Timespec::try_from(patience).map_err(|_| failed(Errno::INVAL))?;
        let mut fds = [PollFd::new(&self.fd, events)];
        poll(&mut fds, Some(&timeout)).map_err(failed)?;
        Ok(fds[0].revents())
    }

    /// A range of the mapping, in place.
    pub(crate) fn view(&self, address: u64, len: u64) -> Result<&[u8], ClientError> {
        if len == 0 {
            return Ok(&[]);
        }
        let outside = ClientError::OutsideMapping { address, len };
        let (start, map_len) = self.mapping().ok_or(outside.clone())?;
        let offset = address.checked_sub(start).ok_or(outside.clone())?;
        if offset.checked_add(len).is_none_or(|end| end > map_len as u64) {
            return Err(outside);
        }
        // SAFETY: inside the mapping, which lives as long as `self`. The driver writes a buffer
        // before it delivers it and not again until it is freed; a view borrows a `Received`, which
        // freeing consumes.
        Ok(unsafe { std::slice::from_raw_parts(address as *const u8, len as usize) })
    }
}

/// `BINDER_CTL_ADD` on `control` (`.../binder-control`): adds the device `name`.
///
/// A name that is too long for the structure is truncated, not refused, so that a driver's own
/// limit can be tested: all 256 bytes may be used, without a NUL.
pub fn add_device(control: &Path, name: &[u8]) -> Result<BinderfsDevice, ClientError> {
    let fd = open(control, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| ClientError::Open { path: control.to_owned(), errno })?;
    let mut device = BinderfsDevice { name: [0; BINDERFS_MAX_NAME + 1], major: 0, minor: 0 };
    let len = name.len().min(device.name.len());
    device.name[..len].copy_from_slice(&name[..len]);
    // SAFETY: the request encodes the size of this structure, which holds no pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), BINDER_CTL_ADD as _, &mut device) };
    if result < 0 {
        let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        let errno = Errno::from_raw_os_error(code);
        return Err(ClientError::Ioctl { doing: "BINDER_CTL_ADD", errno });
    }
    Ok(device)
}
