//! A child that does nothing but wait for its end, or to be asked for it.

use std::io;
use std::os::fd::AsRawFd;

use memory_ledger::Uid;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A child of ours; killed, if it still lives, and waited for on drop.
pub(super) struct Victim(Pid);

impl Victim {
    /// Forks it, as this user where that is allowed. Returns when it has changed its user.
    pub(super) fn start(uid: Uid) -> io::Result<Self> {
        let (told, tells) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let parent = rustix::process::getpid();
        // SAFETY: the child calls only what may be called after a fork of a program with threads
        // (system calls, no allocation), and never returns from wait_for_death.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => wait_for_death(uid, parent.as_raw_nonzero().get(), tells.as_raw_fd()),
            pid => {
                drop(tells);
                let victim = Self(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?);
                match rustix::io::read(&told, &mut [0]) {
                    Ok(1) => Ok(victim),
                    Ok(_) => Err(io::Error::other("it ended too early")),
                    Err(errno) => Err(errno.into()),
                }
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// It is dead; that it was ours to wait for is left for later.
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
        // Not waited for yet, so the pid is still its own.
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// Asked to end, it does.
extern "C" fn end(_signal: libc::c_int) {
    // SAFETY: takes an integer, and may be called in a handler.
    unsafe { libc::_exit(0) }
}

/// The child's life. System calls only: what other threads held at the fork is held for ever.
fn wait_for_death(uid: Uid, parent: i32, tells: i32) -> ! {
    let handler: extern "C" fn(libc::c_int) = end;
    // SAFETY: all of these take integers, but write, which reads one byte that is there, and those
    // that take a set of signals, which is ours.
    unsafe {
        let mut term = std::mem::zeroed();
        libc::sigemptyset(&mut term);
        libc::sigaddset(&mut term, libc::SIGTERM);
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        // The parent has blocked it.
        libc::sigprocmask(libc::SIG_UNBLOCK, &term, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The raw call is for this thread, the only one. Refused: then it stays ours.
        libc::syscall(libc::SYS_setresuid, uid.0, uid.0, uid.0);
        // Forgotten with the change of user, and too late if the parent has died meanwhile.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        libc::write(tells, [1u8].as_ptr().cast(), 1);
        loop {
            libc::pause();
        }
    }
}
