//! Access to clients' memory and lists of areas, outside of the event loop's stack.
//!
//! Each access suspends the event loop's coroutine, so that another thread can resume it when the
//! system call does not return ([`loop_threads`](crate::loop_threads)). Suspend and resume cost
//! some nanoseconds and one copy of the bytes; parcels are not copied.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use binder_driver::{Fault, Piece};
use headroom_linux::mountinfo::Device;

use crate::client_memory;
use crate::loop_threads::{self, LoopYielder};
use crate::maps::{self, Lookup};

/// A buffer of an access that is larger than this is freed after it. Bytes.
const KEPT_BYTES: usize = 256 << 10;

/// A system call on a client, with buffers of its own: a blocked thread keeps them.
#[derive(Default)]
pub(crate) struct AccessRequest {
    access: Access,
    /// Ranges in the client, and their positions in `bytes`.
    pieces: Vec<Piece>,
    /// Bytes that were read or are to be written.
    bytes: Vec<u8>,
    result: Option<AccessResult>,
    progress: Arc<Progress>,
}

/// Whether an access has returned.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU8);

impl Progress {
    const UNDER_WAY: u8 = 0;
    const SUCCEEDED: u8 = 1;
    const FAILED: u8 = 2;

    pub(crate) fn complete(&self, result: Result<(), Fault>) {
        let state = if result.is_ok() { Self::SUCCEEDED } else { Self::FAILED };
        self.0.store(state, Ordering::Release);
    }

    fn restart(&self) {
        self.0.store(Self::UNDER_WAY, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Default)]
enum Access {
    #[default]
    None,
    Read {
        tid: u32,
    },
    Write {
        tid: u32,
    },
    FindMapping {
        pid: u32,
        device: Device,
        inode: u64,
        most_areas: u64,
    },
}

enum AccessResult {
    /// Number of pieces that were read completely.
    Read(usize),
    Write(Result<(), Fault>),
    Mapping(Lookup),
}

impl AccessRequest {
    /// Number of pieces that were read completely.
    fn read_pieces(&mut self) -> usize {
        match self.result.take() {
            Some(AccessResult::Read(complete)) => complete,
            _ => 0,
        }
    }

    pub(crate) fn execute(&mut self) {
        self.result = match self.access {
            Access::None => None,
            Access::Read { tid } => {
                let complete = client_memory::read_pieces(tid, &self.pieces, &mut self.bytes);
                Some(AccessResult::Read(complete))
            }
            Access::Write { tid } => {
                let address = self.pieces.first().map_or(0, |piece| piece.address);
                Some(AccessResult::Write(client_memory::write(tid, address, &self.bytes)))
            }
            Access::FindMapping { pid, device, inode, most_areas } => {
                Some(AccessResult::Mapping(maps::find(pid, device, inode, most_areas)))
            }
        };
        self.progress.complete(match self.result {
            Some(AccessResult::Write(result)) => result,
            _ => Ok(()),
        });
    }
}

/// Executes accesses for the event loop.
pub(crate) struct ClientAccess {
    /// `None`: the program does not run by [`loop_threads::serve`], and accesses are made directly.
    yielder: Option<NonNull<LoopYielder>>,
    /// Reused by the next access. `None` while a blocked thread has it.
    request: Option<Box<AccessRequest>>,
    /// Of the last request.
    progress: Arc<Progress>,
}

/// The access takes too long; the client's memory may never become available.
#[derive(Debug)]
pub(crate) struct Late(pub(crate) BlockedAccess);

/// An access that was late. It blocks a thread until it returns.
#[derive(Clone, Debug)]
pub(crate) struct BlockedAccess(Arc<Progress>);

impl BlockedAccess {
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self(progress)
    }

    /// The result, once the access has returned; its thread exits then.
    pub(crate) fn result(&self) -> Option<Result<(), Fault>> {
        match self.0.0.load(Ordering::Acquire) {
            Progress::UNDER_WAY => None,
            Progress::SUCCEEDED => Some(Ok(())),
            _ => Some(Err(Fault::BadAddress)),
        }
    }

    pub(crate) fn has_returned(&self) -> bool {
        self.result().is_some()
    }
}

impl ClientAccess {
    /// The access object of this thread's event loop; may be used on the loop's stack only.
    pub(crate) fn of_this_loop() -> Self {
        let (request, progress) = (None, Arc::default());
        Self { yielder: loop_threads::current_yielder(), request, progress }
    }

    /// Executes the access that `prepare` describes; returns the request with its result.
    fn execute(
        &mut self,
        prepare: impl FnOnce(&mut AccessRequest),
    ) -> Result<&mut AccessRequest, Late> {
        let mut request = self.request.take().unwrap_or_else(|| {
            let request = Box::<AccessRequest>::default();
            self.progress = Arc::clone(&request.progress);
            request
        });
        request.progress.restart();
        prepare(&mut request);
        let completed = match self.yielder {
            // SAFETY: the yielder lives at the bottom of the stack that we are on, which `serve`'s
            // closure never leaves.
            Some(yielder) => unsafe { yielder.as_ref() }.suspend(request),
            None => {
                request.execute();
                Some(request)
            }
        };
        let completed = completed.ok_or_else(|| Late(BlockedAccess(self.progress.clone())))?;
        Ok(self.request.insert(completed))
    }

    /// Fills `into`, or fails.
    pub(crate) fn read(
        &mut self,
        tid: u32,
        address: u64,
        into: &mut [u8],
    ) -> Result<Result<(), Fault>, Late> {
        let len = into.len();
        let request = self.execute(|request| {
            request.access = Access::Read { tid };
            request.pieces.clear();
            request.pieces.push(Piece { address, at: 0, len });
            if request.bytes.len() < len {
                request.bytes.resize(len, 0);
            }
        })?;
        let result = if request.read_pieces() == 1 { Ok(()) } else { Err(Fault::BadAddress) };
        if result.is_ok() {
            into.copy_from_slice(&request.bytes[..len]);
        }
        if request.bytes.capacity() > KEPT_BYTES {
            request.bytes = Vec::new();
        }
        Ok(result)
    }

    /// Reads pieces to their positions in `into`, in their order until one faults; returns how many
    /// were read completely. No bytes are copied twice: the request owns the buffer during the
    /// access, and a blocked thread keeps it.
    pub(crate) fn read_pieces(
        &mut self,
        tid: u32,
        pieces: &[Piece],
        into: &mut Vec<u8>,
    ) -> Result<usize, Late> {
        let request = self.execute(|request| {
            request.access = Access::Read { tid };
            request.pieces.clear();
            request.pieces.extend_from_slice(pieces);
            std::mem::swap(&mut request.bytes, into);
        })?;
        std::mem::swap(&mut request.bytes, into);
        Ok(request.read_pieces())
    }

    /// Writes all of `bytes`, or fails.
    pub(crate) fn write(
        &mut self,
        tid: u32,
        address: u64,
        bytes: &[u8],
    ) -> Result<Result<(), Fault>, Late> {
        let request = self.execute(|request| {
            request.access = Access::Write { tid };
            request.pieces.clear();
            request.pieces.push(Piece { address, at: 0, len: bytes.len() });
            request.bytes.clear();
            request.bytes.extend_from_slice(bytes);
        })?;
        Ok(match request.result.take() {
            Some(AccessResult::Write(result)) => result,
            _ => Err(Fault::BadAddress),
        })
    }

    /// Like [`maps::find`].
    pub(crate) fn find_mapping(
        &mut self,
        pid: u32,
        device: Device,
        inode: u64,
        most_areas: u64,
    ) -> Result<Lookup, Late> {
        let request = self.execute(|request| {
            request.access = Access::FindMapping { pid, device, inode, most_areas };
        })?;
        Ok(match request.result.take() {
            Some(AccessResult::Mapping(lookup)) => lookup,
            _ => Lookup::default(),
        })
    }
}
