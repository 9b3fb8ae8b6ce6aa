//! Readers of `/proc/<pid>/*`, one file each.

/// `/proc/<pid>/stat` counts start times in ticks of `USER_HZ`, which is 100 on every architecture
/// that Linux still supports.
pub const NS_PER_TICK: u64 = 10_000_000;
