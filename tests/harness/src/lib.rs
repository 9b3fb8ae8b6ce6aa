//! What the suites about limits (`tests/adversary`, `tests/innocents`) share.
//!
//! They treat Headroom as a black box: the shipped binary, its control socket, its configuration
//! file.
//!
//! * [`backend`]: how the daemon watches memory;
//! * [`daemon`]: a daemon of its own;
//! * [`client`]: its control socket, as plain JSON;
//! * [`memory`]: what users really hold, measured without Headroom;
//! * [`memory_group`]: what the kernel charges a program with, where it can;
//! * [`sampler`]: the same over time, and how promptly the daemon answers meanwhile;
//! * [`users`]: programs as other users, and their end;
//! * [`outcome`]: checks, and which of them are expected to fail.

pub mod backend;
pub mod client;
pub mod daemon;
pub mod memory;
pub mod memory_group;
pub mod outcome;
pub mod sampler;
pub mod users;

/// Bytes.
pub const MIB: u64 = 1 << 20;

/// Root, with `/proc` and user namespaces: what the suites need. Otherwise why they are skipped.
pub fn missing() -> Option<&'static str> {
    let root = rustix::process::geteuid().is_root();
    (!root).then_some("needs root: it starts a daemon and becomes other users")
}
