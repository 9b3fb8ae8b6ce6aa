//! The gate alone, for allocators that map memory themselves: take before it is made usable, give
//! once the system has it back.

use crate::gate::{self, Refused};
use crate::heap;

/// Whether the gate is there already: while the allocator starts, it is not, and what is mapped
/// then counts as it is touched.
pub fn is_ready() -> bool {
    heap::is_ready()
}

/// Takes so many bytes, or says why not. What was taken may be touched at any time.
pub fn take(bytes: u64) -> Result<(), Refused> {
    gate::take(bytes)
}

/// Gives back bytes that were taken and that are not resident any more.
pub fn give(bytes: u64) {
    gate::give(bytes);
}
