//! `headroom run -- CMD`: a private bus for one command, without root, which ends with the command.
//!
//! Processes, besides those of the command:
//!
//! ```text
//! a guardian        ends the bus should the session be killed
//! headroom run      makes the namespaces and the private /dev, passes signals and the exit code on
//!  └ the session    first process of the pid namespace: starts the others, reaps, ends the rest
//!     ├ headroom-binderd   has capabilities, which count in the namespace alone
//!     ├ the service manager, if one is requested
//!     └ CMD
//! ```
//!
//! Whichever process is killed, nothing stays behind: the session is killed with `headroom run`,
//! the pid namespace ends with the session, and the mounts with the mount namespace. The daemon has
//! the privileges that it needs (mounting, reading clients' memory) as owner of the user namespace
//! of its clients; that also satisfies Yama.

mod namespaces;
mod private_dev;
mod rings;
mod session;

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub use namespaces::{profiled_program, remedies};
pub use private_dev::BUS;

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use crate::arguments::Run;
use crate::commands::preload;
use crate::helpers::output;
use crate::helpers::programs::{self, RUN_FAILED};
use crate::helpers::signals::{BlockedSignals, Origin};
use namespaces::Isolation;
use private_dev::BUS_C;
use session::Session;

/// Signals that are passed on to the command, and SIGCHLD. The others keep their default action: a
/// terminal stops and continues this process together with the command.
const TAKEN: [Signal; 8] = [
    Signal::CHILD,
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];
/// Limit for the guardian to exit after the session; it has little to do.
const GUARDIAN_PATIENCE: Duration = Duration::from_secs(1);
/// Interval of checks whether the guardian has exited.
const GUARDIAN_TICK: Duration = Duration::from_millis(1);

/// Runs the command. Its exit code is CMD's, 128 + n if signal n killed it, 127 if there is no such
/// program, 126 if it cannot be run, 125 if there is no bus.
pub fn run(options: &Run) -> ExitCode {
    match try_run(options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::warn(format_args!("{error:#}"));
            ExitCode::from(RUN_FAILED)
        }
    }
}

fn try_run(options: &Run) -> anyhow::Result<u8> {
    namespaces::enter_profile()?;
    let daemon = programs::binderd()?;
    let users = namespaces::enter()?;
    // Outside of the pid namespace that is created next.
    let (guardian, guarded) = Guardian::start()?;
    let isolation = Isolation { users, pids: namespaces::enter_pids() };
    private_dev::build(&options.devices)?;
    // Without the library (`headroom doctor` reports it), all calls are requests.
    let find_library = || preload::Library::find(preload::RINGS, None).ok();
    let library = (!options.no_ring).then(find_library).flatten();
    if let Some(library) = &library {
        rings::build(library.path())?;
    }
    let has_rings = library.is_some();
    let signals = BlockedSignals::block(&TAKEN).context("cannot block signals")?;
    // A pipe that is never written to: it hangs up when this process exits.
    let (hangs_up, lifeline) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("cannot start the session"),
        0 => {
            drop(lifeline);
            let session = Session { options, isolation, has_rings, signals, _guarded: guarded };
            session.run(daemon, &hangs_up)
        }
        pid => {
            drop(guarded);
            let code = supervise(pid, lifeline, &signals);
            guardian.wait();
            Ok(code)
        }
    }
}

/// Passes signals on until the session ends. CMD has received those of the terminal already: it is
/// in this process's process group, or in the terminal's foreground group.
fn supervise(session: libc::pid_t, lifeline: OwnedFd, signals: &BlockedSignals) -> u8 {
    let Some(session) = Pid::from_raw(session) else { return RUN_FAILED };
    loop {
        let Some(taken) = signals.wait(None) else { continue };
        if taken.signal == Signal::CHILD {
            let Ok(Some((_, status))) = waitpid(Some(session), WaitOptions::NOHANG) else {
                continue;
            };
            drop(lifeline);
            return exit_code(status);
        }
        if taken.origin == Origin::Process {
            // The session is a child that is not reaped yet, so the pid is not reused.
            let _ = kill_process(session, taken.signal);
        }
    }
}

fn exit_code(session: WaitStatus) -> u8 {
    if let Some(code) = session.exit_status() {
        return code as u8;
    }
    let signal = session.terminating_signal().unwrap_or(Signal::KILL.as_raw());
    output::warn(format_args!(
        "the session was killed by signal {signal}; everything in it is gone"
    ));
    128_u8.saturating_add(signal as u8)
}

/// Process that ends the bus when the session is killed, a child of this one.
///
/// When the first process of a pid namespace exits, the kernel kills all others in it and waits for
/// them. A daemon that is killed while it holds opens of its own bus waits for an answer that no
/// process gives any more, and so do its clients. The daemon's own guardian is killed with it; this
/// one is outside of the pid namespace. It is a fork that makes system calls only.
struct Guardian(Pid);

impl Guardian {
    /// Starts it in the mount namespace of the session. When the last copy of the returned
    /// descriptor is closed, it ends the bus and exits; after a clean end the bus is unmounted
    /// already.
    fn start() -> anyhow::Result<(Self, OwnedFd)> {
        let (hangs_up, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .context("cannot make a pipe")?;
        // SAFETY: the child makes system calls only, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error()).context("cannot start the guardian"),
            0 => Self::watch(hangs_up.as_raw_fd()),
            pid => Ok((Self(Pid::from_raw(pid).context("no pid")?), held)),
        }
    }

    fn watch(hangs_up: i32) -> ! {
        // SAFETY: system calls; the set and the byte are live, and the set is initialised before it
        // is read. The closed descriptors belong to the child's copy of the table, which nothing
        // else uses.
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

    /// Waits until it has exited, so that it does not outlive this process.
    fn wait(self) {
        let begun = Instant::now();
        while let Ok(None) = waitpid(Some(self.0), WaitOptions::NOHANG) {
            if begun.elapsed() > GUARDIAN_PATIENCE {
                return;
            }
            std::thread::sleep(GUARDIAN_TICK);
        }
    }
}
