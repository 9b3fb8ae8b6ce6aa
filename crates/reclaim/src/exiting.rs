//! How a victim's exit proceeds. Its tracer can hold it (`PTRACE_O_TRACEEXIT`): SIGKILL ends every
//! other stop.

use std::fs;

use headroom_linux::machine_memory::value_of;
use headroom_linux::task_status;

/// Maximum number of a victim's threads that are checked: with very many threads, those that are
/// held may be missed, and the victim counts as slow.
const THREADS: usize = 64;

/// How a victim's exit proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exiting {
    /// One of its threads runs, or would if it got a CPU.
    Running,
    /// The process with this pid holds it.
    HeldBy(u32),
    /// It sleeps, or it has exited.
    Waiting,
}

/// How the exit of a victim proceeds, to be called some milliseconds after its SIGKILL.
pub fn exiting(pid: u32) -> Exiting {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Exiting::Waiting };
    let mut found = Exiting::Waiting;
    for task in tasks.flatten().take(THREADS) {
        let Ok(status) = task_status(format_args!("{pid}/task/{}", task.file_name().display()))
        else {
            continue;
        };
        let state = value_of(&status, "State").unwrap_or_default();
        if state.starts_with('R') {
            found = Exiting::Running;
        }
        let tracer = value_of(&status, "TracerPid").and_then(|pid| pid.parse().ok()).unwrap_or(0);
        if state.starts_with('t')
            && tracer != 0
            && let Some(holder) = process_of(tracer)
        {
            return Exiting::HeldBy(holder);
        }
    }
    found
}

/// The process that holds a victim.
pub fn holder_of(pid: u32) -> Option<u32> {
    match exiting(pid) {
        Exiting::HeldBy(holder) => Some(holder),
        Exiting::Running | Exiting::Waiting => None,
    }
}

/// The process that a thread belongs to.
fn process_of(tid: u32) -> Option<u32> {
    value_of(&task_status(tid).ok()?, "Tgid")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn a_process_that_computes_runs_and_one_that_sleeps_waits() {
        // This thread runs while it reads its own state.
        assert_eq!(exiting(std::process::id()), Exiting::Running);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let waits = (0..1000).any(|_| exiting(child.id()) == Exiting::Waiting);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(waits);
    }

    #[test]
    fn a_killed_process_that_is_held_at_its_exit_has_a_holder() {
        // SAFETY: the child calls only what is allowed after a fork; it never returns from here.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                // A name that is no text hides nothing.
                libc::prctl(libc::PR_SET_NAME, c"\xff".as_ptr());
                libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>());
                libc::raise(libc::SIGSTOP);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(pid > 0);
        let child = pid as u32;
        let mut status = 0;
        let options = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_EXITKILL;
        // SAFETY: the child is ours, traced by this thread, and not waited for elsewhere.
        unsafe {
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            let set =
                libc::ptrace(libc::PTRACE_SETOPTIONS, pid, null_mut::<u8>(), options as usize);
            assert_eq!(set, 0);
            libc::ptrace(libc::PTRACE_CONT, pid, null_mut::<u8>(), null_mut::<u8>());
        }
        assert_eq!(holder_of(child), None, "it runs");
        // SAFETY: as above.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            assert_eq!(libc::waitpid(pid, &raw mut status, libc::__WALL), pid);
        }
        assert!(libc::WIFSTOPPED(status), "at its exit");
        assert_eq!(holder_of(child), Some(std::process::id()));
        // SAFETY: as above.
        unsafe {
            libc::ptrace(libc::PTRACE_CONT, pid, null_mut::<u8>(), null_mut::<u8>());
            libc::waitpid(pid, &raw mut status, 0);
        }
        assert_eq!(holder_of(child), None, "it is gone");
    }
}
