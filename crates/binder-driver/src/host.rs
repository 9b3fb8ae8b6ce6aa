//! What the driver needs from the world: client memory, the receivers' mappings, files, identities,
//! priorities.
//!
//! A front end implements these for real clients, tests with byte vectors. None of them may block
//! for long: the driver is owned by the thread that calls it.

use owners::Uid;

use crate::errno::Errno;
use crate::keys::ProcessId;

/// A thread in an ioctl on one open of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The open.
    pub process: ProcessId,
    /// The calling thread, as the host numbers threads.
    pub tid: u32,
    /// Its effective uid, which may differ from that of the process that opened the device.
    pub euid: Uid,
}

/// Client memory could not be read or written (bad pointer, or the client is gone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("client memory is not accessible")]
pub struct Fault;

/// A receiver's mapping could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receiver's mapping could not be written")]
pub struct StoreError;

/// One range to read in a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the client.
    pub address: u64,
    /// Where it goes in the parcel.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// Memory of a client that is blocked in its ioctl, so that its tid is still its own.
pub trait ClientMemory {
    /// Fills `into` from `address` in the caller's address space, or nothing useful on a fault.
    fn read(&mut self, from: Caller, address: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// The data and the offsets of one transaction in one go, each to its place in the parcel,
    /// which is long enough. After a fault the parcel may be any other one: who reads may have had
    /// to leave it behind.
    fn read_parcel(
        &mut self,
        from: Caller,
        pieces: &[Piece],
        parcel: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        pieces.iter().try_for_each(|piece| {
            self.read(from, piece.address, &mut parcel[piece.at..][..piece.len])
        })
    }

    /// Writes `bytes` at `address` in the caller's address space.
    fn write(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// Where a process mapped its open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address in the process.
    pub address: u64,
    /// Bytes; the driver uses at most 4 MiB of them.
    pub len: u64,
}

/// The receivers' buffer mappings: write-only for the driver, never trusted, never read back.
pub trait Mappings {
    /// Where the open is mapped in its process; `None` = not mapped (a transaction to it fails
    /// with `BR_DEAD_REPLY`, `-ESRCH`). Asked until `Some`, then remembered.
    fn mapping(&mut self, process: ProcessId) -> Option<Mapping>;

    /// Writes `bytes` at `offset` into the mapping.
    fn store(&mut self, process: ProcessId, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes the range read as zeros (`TF_CLEAR_BUF`); bytes outside it stay.
    fn zero(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError>;

    /// Gives whole pages (4096 bytes) back; they read as zeros afterwards.
    fn punch(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError>;
}

/// A file that was taken from its sender: the host's own name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileToken(pub u64);

/// Files on their way from one client's descriptor table to another's.
pub trait Files {
    /// Takes the file behind a descriptor of the caller. `EBADF`: there is none; `EPERM`: it may
    /// not be taken; `ENOMEM`: too many are on their way.
    fn take_file(&mut self, from: Caller, fd: u32) -> Result<FileToken, Errno>;

    /// The file was given to its receiver, or never will be. Each token is dropped once.
    fn drop_file(&mut self, file: FileToken);

    /// Descriptors to close in the caller's process when it returns from its ioctl: those of an
    /// array whose buffer it has freed.
    fn close_on_return(&mut self, caller: Caller, fds: &[u32]);
}

/// Who a client is in another client's eyes.
pub trait Identity {
    /// The sender's pid as the receiver's pid namespace sees it, 0 if it can't be seen.
    fn pid_seen_by(&mut self, receiver: ProcessId, sender: ProcessId) -> i32;

    /// A uid (as the host numbers users) as the receiver's user namespace sees it; `u32::MAX` if it
    /// has no number there.
    fn uid_seen_by(&mut self, receiver: ProcessId, uid: Uid) -> u32;

    /// The caller's security context, without a final NUL; `None` where the system has none.
    fn security_context(&mut self, caller: Caller) -> Option<Vec<u8>>;
}

/// The priorities of clients' threads.
pub trait Scheduler {
    /// A thread's priority; `None` where they cannot be changed and put back: then none is
    /// inherited.
    fn priority(&mut self, tid: u32) -> Option<Priority>;

    /// Gives a thread another one, if it might have taken that itself. False: it keeps its own.
    fn inherit_priority(&mut self, tid: u32, priority: Priority) -> bool;

    /// Gives a thread back what it had before [`inherit_priority`](Self::inherit_priority).
    fn restore_priority(&mut self, tid: u32, priority: Priority);
}

/// All of it.
pub trait Host: ClientMemory + Mappings + Files + Identity + Scheduler {}

impl<T: ClientMemory + Mappings + Files + Identity + Scheduler> Host for T {}

/// How a thread gets its share of the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// -20 to 19; a real-time thread has one too, which counts when it is one no more.
    pub nice: i32,
    /// Under which rules.
    pub policy: Policy,
    /// What the thread starts has an ordinary policy.
    pub reset_on_fork: bool,
}

/// The scheduler's rules for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A policy that shares time, by the host's number.
    Fair(u32),
    /// Real time, first in, first out: priority 1 to 99.
    Fifo(u8),
    /// Real time, round robin: priority 1 to 99.
    RoundRobin(u8),
}

impl Policy {
    /// Real-time priority; 0 where there is none.
    pub fn level(self) -> u8 {
        match self {
            Policy::Fair(_) => 0,
            Policy::Fifo(level) | Policy::RoundRobin(level) => level,
        }
    }
}
