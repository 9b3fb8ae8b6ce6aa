//! The table of file descriptors of this process.

use std::os::fd::AsFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit, and makes the table large enough for
/// `count` descriptors, or for those that the limit allows.
///
/// A table that grows while several threads use it makes the thread that opens a file wait until
/// all CPUs have passed a quiescent state (`synchronize_rcu`): 4 s on a starved machine. Therefore
/// to be called before other threads are started.
pub fn prepare(count: u32) -> Result<(), Errno> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    let highest = u64::from(count).min(allowed).saturating_sub(1);
    let any = eventfd(0, EventfdFlags::CLOEXEC)?;
    fcntl_dupfd_cloexec(any.as_fd(), i32::try_from(highest).unwrap_or(i32::MAX)).map(drop)
}
