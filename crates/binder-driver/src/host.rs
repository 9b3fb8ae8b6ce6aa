//! The driver's interface to its environment: client memory, the receivers' mappings, files,
//! identities, priorities.
//!
//! A front end implements these traits for real clients, tests with byte vectors. No method may
//! block for long: the driver is owned by the thread that calls it.

use owners::Uid;
use serde::{Deserialize, Serialize};

use crate::driver::ProcessId;

/// An errno of the driver; the numbers are those of the generic Linux ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Errno {
    /// Not allowed for this caller.
    #[error("operation not permitted (EPERM)")]
    EPERM,
    /// No such object.
    #[error("no such entry (ENOENT)")]
    ENOENT,
    /// The target process has no mapping, or is gone.
    #[error("no such process (ESRCH)")]
    ESRCH,
    /// A signal ended the wait.
    #[error("interrupted (EINTR)")]
    EINTR,
    /// The open is not known to the driver (any more).
    #[error("unknown open of the device (EBADF)")]
    EBADF,
    /// No work to read, and the caller does not wait.
    #[error("nothing to read (EAGAIN)")]
    EAGAIN,
    /// A quota or the memory is exhausted.
    #[error("out of memory or over a quota (ENOMEM)")]
    ENOMEM,
    /// Client memory could not be read or written.
    #[error("bad address (EFAULT)")]
    EFAULT,
    /// The context has a manager already.
    #[error("the context has a manager already (EBUSY)")]
    EBUSY,
    /// Malformed or unsupported request.
    #[error("invalid argument (EINVAL)")]
    EINVAL,
    /// A user has too many rings.
    #[error("too many rings of one user (EMFILE)")]
    EMFILE,
    /// The receiver's buffer space is exhausted.
    #[error("no buffer space left in the receiver (ENOSPC)")]
    ENOSPC,
    /// The ioctl is to be repeated, as client memory is late. No client gets it.
    #[error("to be repeated (ERESTART)")]
    ERESTART,
    /// The call breaks the order of calls and replies.
    #[error("call stack violated (EPROTO)")]
    EPROTO,
}

impl Errno {
    /// The positive error number.
    pub const fn code(self) -> i32 {
        match self {
            Errno::EPERM => 1,
            Errno::ENOENT => 2,
            Errno::ESRCH => 3,
            Errno::EINTR => 4,
            Errno::EBADF => 9,
            Errno::EAGAIN => 11,
            Errno::ENOMEM => 12,
            Errno::EFAULT => 14,
            Errno::EBUSY => 16,
            Errno::EINVAL => 22,
            Errno::EMFILE => 24,
            Errno::ENOSPC => 28,
            Errno::EPROTO => 71,
            Errno::ERESTART => 85,
        }
    }
}

/// A thread in an ioctl on one open of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The open.
    pub process: ProcessId,
    /// Tid of the calling thread, as the host numbers threads.
    pub tid: u32,
    /// Its effective uid, which may differ from that of the process that opened the device.
    pub euid: Uid,
}

/// Why client memory was not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Bad pointer, or the client is gone.
    #[error("client memory is not accessible")]
    BadAddress,
    /// It does not answer, or must not be accessed now: the ioctl is repeated from here
    /// ([`WriteRead::Late`](crate::WriteRead::Late)).
    #[error("client memory does not answer")]
    Late,
}

impl Fault {
    /// `bad_address` for a bad address, `ERESTART` for late memory.
    pub(crate) fn errno(self, bad_address: Errno) -> Errno {
        match self {
            Self::BadAddress => bad_address,
            Self::Late => Errno::ERESTART,
        }
    }
}

/// A receiver's mapping could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receiver's mapping could not be written")]
pub struct StoreError;

/// One range to read in a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address in the client.
    pub address: u64,
    /// Offset in the parcel.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// Memory of a client that is blocked in its ioctl, so that its tid is still its own.
pub trait ClientMemory {
    /// Fills `into` from `address` in the caller's address space; after a fault the contents are
    /// undefined.
    fn read(&mut self, from: Caller, address: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// Reads pieces to their offsets in `into`, in this order, until one faults. Returns how many
    /// were read completely. If the memory is late, `into` may be a different buffer.
    fn read_ahead(
        &mut self,
        from: Caller,
        pieces: &[Piece],
        into: &mut Vec<u8>,
    ) -> Result<usize, Fault> {
        let is_read = |piece: &&Piece| {
            self.read(from, piece.address, &mut into[piece.at..][..piece.len]).is_ok()
        };
        Ok(pieces.iter().take_while(is_read).count())
    }

    /// Reads the data and the offsets of one transaction in one call, each to its offset in the
    /// parcel, which is long enough. If the memory is late, `parcel` may be a different buffer.
    fn read_parcel(
        &mut self,
        from: Caller,
        pieces: &[Piece],
        parcel: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let read = self.read_ahead(from, pieces, parcel)?;
        if read == pieces.len() { Ok(()) } else { Err(Fault::BadAddress) }
    }

    /// Writes `bytes` at `address` in the caller's address space. Late memory may be written later.
    fn write(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Writes the returns of a read, which cannot be repeated. Late memory is no error: the front
    /// end replies to the ioctl once the write has completed. If it fails after all, the reply is
    /// `EFAULT`, and the front end calls [`Driver::thread_exit`](crate::Driver::thread_exit), since
    /// the thread does not know of its calls.
    fn write_returns(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.write(to, address, bytes)
    }
}

/// The mapping of an open in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Address in the process.
    pub address: u64,
    /// Bytes; the driver uses at most 4 MiB of them.
    pub len: u64,
}

/// The receivers' buffer mappings: write-only for the driver, never trusted, never read back.
pub trait Mappings {
    /// The mapping of the open in its process; `None` = not mapped (a transaction to it fails with
    /// `BR_DEAD_REPLY`, `-ESRCH`). Called until it returns `Some`, then cached. An error: the
    /// process's memory is late, and so is the call of the sender.
    fn mapping(&mut self, process: ProcessId) -> Result<Option<Mapping>, Fault>;

    /// Whether a mapping that [`mapping`](Self::mapping) has returned can still exist: its address
    /// space does. Called for each transaction.
    fn has_address_space(&mut self, process: ProcessId) -> bool;

    /// Writes `bytes` at `offset` into the mapping.
    fn store(&mut self, process: ProcessId, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes the range read as zeros (`TF_CLEAR_BUF`); bytes outside it stay.
    fn zero(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError>;

    /// Releases whole pages of the machine; they read as zeros afterwards.
    fn punch(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError>;
}

/// Token of a file that was taken from its sender; the host assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileToken(pub u64);

/// Files that are passed from one client's descriptor table to another's.
pub trait Files {
    /// Takes the file behind a descriptor of the caller. `EBADF`: there is none; `EPERM`: it may
    /// not be taken; `ENOMEM`: too many files are in transit; `ERESTART`: it cannot be taken now.
    fn take_file(&mut self, from: Caller, fd: u32) -> Result<FileToken, Errno>;

    /// The file was installed in its receiver, or never will be. Each token is dropped once.
    fn drop_file(&mut self, file: FileToken);

    /// Descriptors to close in the caller's process when it returns from its ioctl: those of an
    /// array whose buffer it has freed.
    fn close_on_return(&mut self, caller: Caller, fds: &[u32]);
}

/// A client's identity as another client sees it.
pub trait Identity {
    /// The sender's pid in the receiver's pid namespace; 0 if it is not visible there.
    fn pid_seen_by(&mut self, receiver: ProcessId, sender: ProcessId) -> i32;

    /// A uid (as the host numbers users) in the receiver's user namespace; `u32::MAX` if it is not
    /// mapped there.
    fn uid_seen_by(&mut self, receiver: ProcessId, uid: Uid) -> u32;

    /// The caller's security context, without a final NUL. `EINVAL`: the system has none;
    /// `ERESTART`: it cannot be read now.
    fn security_context(&mut self, caller: Caller) -> Result<Vec<u8>, Errno>;
}

/// How old a priority may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Some milliseconds, to save reading it for each call.
    Recent,
    /// It is read now.
    Current,
}

/// The priorities of clients' threads.
pub trait Scheduler {
    /// A thread's priority; `None` if priorities cannot be changed and restored: then none is
    /// inherited.
    fn priority(&mut self, tid: u32, freshness: Freshness) -> Option<Priority>;

    /// The CPU time that a thread has had so far, nanoseconds; `None`: not known.
    fn run_time_ns(&mut self, tid: u32) -> Option<u64>;

    /// Changes a thread's priority, if the thread might have set it itself. False: it is unchanged.
    fn inherit_priority(&mut self, tid: u32, priority: Priority) -> bool;

    /// Restores the priority that a thread had before [`inherit_priority`](Self::inherit_priority).
    fn restore_priority(&mut self, tid: u32, priority: Priority);
}

/// All interfaces of a host.
pub trait Host: ClientMemory + Mappings + Files + Identity + Scheduler {}

impl<T: ClientMemory + Mappings + Files + Identity + Scheduler> Host for T {}

/// Scheduling parameters of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priority {
    /// -20 to 19; used by a real-time thread once it is no longer one.
    pub nice: i32,
    /// Scheduling policy.
    pub policy: Policy,
    /// Children of the thread start with an ordinary policy (`SCHED_RESET_ON_FORK`).
    pub reset_on_fork: bool,
}

/// Scheduling policy of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// A time-sharing policy, by the host's number.
    Fair(u32),
    /// `SCHED_FIFO`: priority 1 to 99.
    Fifo(u8),
    /// `SCHED_RR`: priority 1 to 99.
    RoundRobin(u8),
}

impl Policy {
    /// Real-time priority; 0 for other policies.
    pub fn level(self) -> u8 {
        match self {
            Policy::Fair(_) => 0,
            Policy::Fifo(level) | Policy::RoundRobin(level) => level,
        }
    }
}
