//! Receive areas: the buffers in a receiver's mapping and the memory of its pages.

pub mod allocator;
mod lifecycle;
pub mod pages;
pub mod reclaim;
pub mod types;
