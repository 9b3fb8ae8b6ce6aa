//! Code shared by the test suites for limits (`tests/adversary`, `tests/innocents`).
//!
//! They treat Headroom as a black box: the shipped binary, its control socket, its configuration
//! file.
//!
//! * [`backend`]: how the daemon watches memory;
//! * [`daemon`]: a private daemon;
//! * [`client`]: its control socket, as plain JSON;
//! * [`memory`]: actual memory of users, measured without Headroom;
//! * [`memory_group`]: memory that the kernel charges to a program, where it can;
//! * [`sampler`]: both over time, and the daemon's response times meanwhile;
//! * [`probe`]: what the machine itself adds to latencies;
//! * [`users`]: programs as other users, and how they are ended;
//! * [`outcome`]: checks, and which of them are expected to fail.

pub mod backend;
pub mod client;
pub mod daemon;
pub mod memory;
pub mod memory_group;
pub mod outcome;
pub mod probe;
pub mod sampler;
pub mod users;

/// Bytes.
pub const MIB: u64 = 1 << 20;

/// Why the suites are skipped; `None` if this process is root, with `/proc` and user namespaces.
pub fn missing() -> Option<&'static str> {
    let root = rustix::process::geteuid().is_root();
    (!root).then_some("needs root: it starts a daemon and becomes other users")
}
