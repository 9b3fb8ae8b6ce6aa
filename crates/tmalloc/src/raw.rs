//! Only the gate, for allocators that map memory themselves: take before the memory is made usable,
//! release after it was released to the system.

use crate::gate::{self, Refused};
use crate::heap;

/// Whether the gate is ready: it is not during the start of the allocator, and memory that is
/// mapped then counts as it is touched.
pub fn is_ready() -> bool {
    heap::is_ready()
}

/// Takes `bytes`, or returns the reason for refusing. Memory that was taken may be touched at any
/// time.
pub fn take(bytes: u64) -> Result<(), Refused> {
    gate::take(bytes)
}

/// Returns bytes that were taken and are not resident any more.
pub fn release(bytes: u64) {
    gate::release(bytes);
}
