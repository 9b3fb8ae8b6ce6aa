//! A victim that its tracer holds at its exit (`PTRACE_O_TRACEEXIT`): SIGKILL ends every other
//! stop.

use std::fs;
use std::path::Path;

use machine_memory::text::value_of;

/// Maximum number of a victim's threads that are checked: with very many threads, those that are
/// held may be missed, and the victim counts as slow.
const THREADS: usize = 64;

/// The process that holds a victim, to be called some milliseconds after its SIGKILL.
pub fn holder_of(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    tasks.flatten().take(THREADS).find_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let held = value_of(&status, "State")?.starts_with('t');
        let tracer = value_of(&status, "TracerPid")?.parse::<u32>().ok()?;
        (held && tracer != 0).then(|| process_of(tracer)).flatten()
    })
}

/// The process that a thread belongs to.
fn process_of(tid: u32) -> Option<u32> {
    let status =
        fs::read_to_string(Path::new("/proc").join(tid.to_string()).join("status")).ok()?;
    value_of(&status, "Tgid")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn a_killed_process_that_is_held_at_its_exit_has_a_holder() {
        // SAFETY: the child calls only what is allowed after a fork; it never returns from here.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
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
