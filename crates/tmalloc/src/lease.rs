//! Memory reserved ahead of the allocations that will use it.

use std::time::Duration;

use control::lease::{Request, Status};

use crate::gate::{self, Refused};
use crate::{heap, link};

/// What is reserved comes in pages.
const PAGE: u64 = 4096;

/// Memory that this process is sure to get. Nobody else can have it; what was not handed to the
/// allocator by [`commit`](Lease::commit) goes back on drop.
#[derive(Debug)]
#[must_use = "what is reserved goes back at once when the lease is dropped"]
pub struct Lease {
    bytes: u64,
}

/// Reserves memory, in whole pages, or says at once why not.
pub fn reserve(bytes: usize) -> Result<Lease, Refused> {
    reserve_within(bytes, Duration::ZERO)
}

/// Reserves memory; waits so long for others to give theirs back.
pub fn reserve_within(bytes: usize, patience: Duration) -> Result<Lease, Refused> {
    heap::ready();
    let Some(bytes) = (bytes as u64).checked_next_multiple_of(PAGE) else {
        return Err(Refused::By(Status::Full));
    };
    let wait_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    match gate::take_waiting(bytes, 0) {
        Err(Refused::By(Status::Full | Status::Short)) => {
            // What our own allocator keeps unused comes first.
            heap::purge();
            gate::take_waiting(bytes, wait_ms)?;
        }
        other => other?,
    }
    Ok(Lease { bytes })
}

impl Lease {
    /// What is left of it, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A lease of memory that was taken already.
    pub(crate) fn of(bytes: u64) -> Self {
        Self { bytes }
    }

    /// Its bytes, which are the caller's from here on.
    pub(crate) fn into_bytes(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }

    /// Hands it to the allocator: the next pages that this process' allocations need, of any
    /// thread, come from it and cannot be refused.
    pub fn commit(self) {
        gate::fill_pool(self.into_bytes());
    }

    /// Gives it back.
    pub fn release(self) {}
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.bytes > 0 {
            gate::give(self.bytes);
            link::tell_given_back();
        }
    }
}

/// How much this process could be granted now, bytes, beside what it holds. Others may be faster.
pub fn headroom() -> Result<u64, Refused> {
    heap::ready();
    let reply = link::ask(&Request::Headroom)?;
    if reply.status == Status::Done { Ok(reply.headroom) } else { Err(Refused::By(reply.status)) }
}

/// Gives back what the allocator keeps unused, and says so to those who wait.
pub fn give_back() {
    heap::purge();
    link::tell_given_back();
}
