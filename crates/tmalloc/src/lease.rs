//! Memory that is reserved ahead of the allocations that will use it.

use std::time::Duration;

use control::lease::{Request, Status};

use crate::gate::{self, Refused};
use crate::{heap, link};

/// Reservations are multiples of this, bytes.
const PAGE: u64 = 4096;

/// Memory that is reserved for this process. No other process can have it; memory that was not
/// assigned to the allocator by [`commit`](Lease::commit) is returned on drop.
#[derive(Debug)]
#[must_use = "what is reserved goes back at once when the lease is dropped"]
pub struct Lease {
    bytes: u64,
}

/// Reserves memory, in whole pages, or returns the reason for refusing at once.
pub fn reserve(bytes: usize) -> Result<Lease, Refused> {
    reserve_within(bytes, Duration::ZERO)
}

/// Reserves memory; waits up to `patience` for other processes to return some.
pub fn reserve_within(bytes: usize, patience: Duration) -> Result<Lease, Refused> {
    heap::ready();
    let Some(bytes) = (bytes as u64).checked_next_multiple_of(PAGE) else {
        return Err(Refused::By(Status::Full));
    };
    let wait_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    match gate::take_waiting(bytes, 0) {
        Err(Refused::By(Status::Full | Status::Short)) => {
            // Returns the unused pages of this process's own allocator first.
            heap::purge();
            gate::take_waiting(bytes, wait_ms)?;
        }
        other => other?,
    }
    Ok(Lease { bytes })
}

impl Lease {
    /// Remaining size, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Creates a lease of memory that was taken already.
    pub(crate) fn of(bytes: u64) -> Self {
        Self { bytes }
    }

    /// The size of the lease, bytes; the caller owns that memory from here on.
    pub(crate) fn into_bytes(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }

    /// Assigns the lease to the allocator: the next pages that allocations of any thread of this
    /// process need are taken from it and cannot be refused.
    pub fn commit(self) {
        gate::fill_pool(self.into_bytes());
    }

    /// Returns the memory of the lease.
    pub fn release(self) {}
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.bytes > 0 {
            gate::release(self.bytes);
            link::report_released();
        }
    }
}

/// Memory that could be granted to this process now, bytes, in addition to its present grants.
/// Requests of other processes may be faster.
pub fn headroom() -> Result<u64, Refused> {
    heap::ready();
    let reply = link::request(&Request::Headroom)?;
    if reply.status == Status::Done { Ok(reply.headroom) } else { Err(Refused::By(reply.status)) }
}

/// Returns the allocator's unused memory, and notifies the daemon for waiting processes.
pub fn give_back() {
    heap::purge();
    link::report_released();
}
