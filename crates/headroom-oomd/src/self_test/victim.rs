//! A child process that waits for SIGTERM or SIGKILL.

use std::io;
use std::os::fd::AsRawFd;

use memory_ledger::Uid;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A child process; killed and reaped on drop.
pub(super) struct Victim(Pid);

impl Victim {
    /// Forks the child, with this uid if permitted. Returns when its uid is set.
    pub(super) fn start(uid: Uid) -> io::Result<Self> {
        let (ready, child_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let parent = rustix::process::getpid();
        // SAFETY: the child calls only what may be called after a fork of a program with threads
        // (system calls, no allocation), and never returns from wait_for_signal.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => wait_for_signal(uid, parent.as_raw_nonzero().get(), child_end.as_raw_fd()),
            pid => {
                drop(child_end);
                let victim = Self(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?);
                match rustix::io::read(&ready, &mut [0]) {
                    Ok(1) => Ok(victim),
                    Ok(_) => Err(io::Error::other("it exited too early")),
                    Err(errno) => Err(errno.into()),
                }
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether the child has exited. It stays a zombie until drop, so the pid is not reused.
    pub(super) fn has_ended(&self) -> bool {
        let options = rustix::process::WaitIdOptions::EXITED
            | rustix::process::WaitIdOptions::NOHANG
            | rustix::process::WaitIdOptions::NOWAIT;
        let ended = rustix::process::waitid(rustix::process::WaitId::Pid(self.0), options);
        matches!(ended, Ok(Some(_)))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The child is not reaped yet, so the pid is not reused.
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// Handler of SIGTERM.
extern "C" fn exit_on_sigterm(_signal: libc::c_int) {
    // SAFETY: takes an integer, and may be called in a handler.
    unsafe { libc::_exit(0) }
}

/// Body of the child. System calls only: locks that other threads held at the fork stay locked.
fn wait_for_signal(uid: Uid, parent: i32, ready: i32) -> ! {
    let handler: extern "C" fn(libc::c_int) = exit_on_sigterm;
    // SAFETY: all of these take integers, but write, which reads one byte that is there, and those
    // that take a set of signals, which is ours.
    unsafe {
        let mut term = std::mem::zeroed();
        libc::sigemptyset(&mut term);
        libc::sigaddset(&mut term, libc::SIGTERM);
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        // The parent blocked SIGTERM before the fork.
        libc::sigprocmask(libc::SIG_UNBLOCK, &term, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The raw call affects this thread, the only one. If refused, the uid stays the parent's.
        libc::syscall(libc::SYS_setresuid, uid.0, uid.0, uid.0);
        // The change of uid cleared it. It has no effect if the parent has exited meanwhile.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        libc::write(ready, [1u8].as_ptr().cast(), 1);
        loop {
            libc::pause();
        }
    }
}
