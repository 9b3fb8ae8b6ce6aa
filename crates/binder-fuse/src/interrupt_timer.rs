//! Periodically interrupts a thread that waits for another process, or for a request.
//!
//! `waitpid` has no timeout, and polling for a stop without sleeping keeps the thread that is to
//! stop from the CPU, for a whole time slice if the two threads share one.

use std::io;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::gettid;

use crate::files::note_timer_period;

/// Interval of the timer.
pub(crate) const PERIOD: Duration = Duration::from_millis(5);

/// A timer that interrupts the thread that created it; only that thread may use it.
pub(crate) struct InterruptTimer(libc::timer_t);

/// The timer's signal: one that no other code of this process uses.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

/// Interrupts the system call that the thread is in; `PTRACE_SEIZE` needs more than that.
extern "C" fn on_expiry(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the state of this thread, which nothing else accesses meanwhile.
    if let Some(context) = unsafe { context.cast::<libc::ucontext_t>().as_mut() } {
        note_timer_period(context);
    }
}

impl InterruptTimer {
    /// Creates a disarmed timer, and installs the handler of its signal.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: all-zero is valid for these structures; those that are read are filled in before,
        // and live across the calls. The handler touches variables of its thread only.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = on_expiry as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let mut set = zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal());
            checked(libc::sigaction(signal(), &action, null_mut()))?;
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, null_mut());
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = null_mut();
            checked(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer))?;
            Ok(Self(timer))
        }
    }

    /// Zero stops the timer.
    pub(crate) fn set_interval(&self, interval: Duration) {
        let every = libc::timespec { tv_sec: 0, tv_nsec: interval.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: our own timer, and a live structure.
        unsafe { libc::timer_settime(self.0, 0, &times, null_mut()) };
    }
}

impl Drop for InterruptTimer {
    fn drop(&mut self) {
        // SAFETY: our own timer, which is not used after this.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// The timer of the thread that runs a loop, which another thread may run later.
#[derive(Default)]
pub(crate) struct LoopTimer {
    timer: Option<(Pid, InterruptTimer)>,
    interval: Duration,
}

impl LoopTimer {
    /// Whether it interrupts the loop.
    pub(crate) fn runs(&self) -> bool {
        !self.interval.is_zero()
    }

    /// Sets the interval of the calling thread's timer; zero stops it.
    pub(crate) fn set_interval(&mut self, interval: Duration) -> io::Result<()> {
        let thread = gettid();
        if self.timer.as_ref().is_none_or(|(owner, _)| *owner != thread) {
            self.interval = Duration::ZERO;
            self.timer = Some((thread, InterruptTimer::new()?));
        }
        if let Some((_, timer)) = &self.timer
            && interval != self.interval
        {
            timer.set_interval(interval);
            self.interval = interval;
        }
        Ok(())
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
