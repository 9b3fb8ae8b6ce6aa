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

mod apparmor;
mod empty_library;
mod guardian;
mod namespaces;
mod offspring;
mod private_dev;
mod rings;
mod service_manager;
mod session;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

pub use private_dev::BUS;

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use crate::arguments::Run;
use crate::helpers::exit_code::RUN_FAILED;
use crate::helpers::signals::{BlockedSignals, Origin};
use crate::helpers::{output, preload, programs};
use namespaces::Isolation;
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
    if !namespaces::is_capable() {
        apparmor::enter_profile()?;
    }
    let daemon = programs::binderd()?;
    let users = namespaces::enter()?;
    // Outside of the pid namespace that is created next.
    let (guardian, guarded) = guardian::start()?;
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
