//! The atomic types of the code that the loom tests include a second time, with loom's types.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
