//! Process that ends the bus when the session is killed.
//!
//! When the first process of a pid namespace exits, the kernel kills all others in it and waits for
//! them. A daemon that is killed while it holds opens of its own bus waits for an answer that no
//! process gives any more, and so do its clients. The daemon's own guardian is killed with it; this
//! one is outside of the pid namespace. It is a fork that makes system calls only.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::private_dev::BUS_C;

/// Limit for the guardian to exit after the session; it has little to do.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval of checks whether it has exited.
const TICK: Duration = Duration::from_millis(1);

/// A running guardian, a child of this process.
pub struct Guardian(Pid);

impl Guardian {
    /// Waits until it has exited, so that it does not outlive this process.
    pub fn wait(self) {
        let begun = Instant::now();
        while let Ok(None) = waitpid(Some(self.0), WaitOptions::NOHANG) {
            if begun.elapsed() > PATIENCE {
                return;
            }
            std::thread::sleep(TICK);
        }
    }
}

/// Starts the guardian in the mount namespace of the session. When the last copy of the returned
/// descriptor is closed, it ends the bus and exits; after a clean end the bus is unmounted already.
pub fn start() -> anyhow::Result<(Guardian, OwnedFd)> {
    let (hangs_up, held) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    // SAFETY: the child makes system calls only, and never returns.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("cannot start the guardian"),
        0 => watch(hangs_up.as_raw_fd()),
        pid => Ok((Guardian(Pid::from_raw(pid).context("no pid")?), held)),
    }
}

fn watch(hangs_up: i32) -> ! {
    // SAFETY: system calls; the set and the byte are live, and the set is initialised before it is
    // read. The closed descriptors belong to the child's copy of the table, which nothing else
    // uses.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"run-guardian".as_ptr());
        libc::chdir(c"/".as_ptr());
        libc::dup2(hangs_up, 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
        let mut byte = 0_u8;
        while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
        libc::umount2(BUS_C.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH);
        libc::_exit(0)
    }
}
