//! Children, threads and signal handlers of a process that is to be killed.

use std::ptr::null_mut;

use crate::sleep_forever;

/// Time after which a child of a failed test exits by itself, seconds.
const LIFE_S: u32 = 100;

/// Forks children that fork one child each; all have only inherited memory, and outlive their
/// parent.
pub fn have_children(count: usize) {
    for _ in 0..count {
        // SAFETY: the children only wait for signals.
        unsafe {
            if libc::fork() == 0 {
                libc::fork();
                libc::alarm(LIFE_S);
                sleep_forever();
            }
        }
    }
}

/// Forks a child in the same address space (CLONE_VM), which waits.
pub fn share_memory() {
    extern "C" fn wait(_: *mut libc::c_void) -> i32 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(LIFE_S) };
        sleep_forever();
        0
    }
    let stack = Box::leak(Box::new([0u128; 4096]));
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the child gets a separate stack, which is never freed, and only waits on it.
    let pid = unsafe { libc::clone(wait, top, flags, null_mut()) };
    assert!(pid > 0, "clone: {}", std::io::Error::last_os_error());
}

pub fn start_idle_threads(count: usize) {
    for _ in 0..count {
        std::thread::spawn(sleep_forever);
    }
}

/// Starts a thread that accesses a file of a file system which does not answer.
pub fn start_hung_thread(path: String) {
    std::thread::spawn(move || drop(std::fs::metadata(path)));
}

pub fn ignore_sigterm() {
    // A handler, not SIG_IGN: the daemon must see that the victim handles the signal.
    extern "C" fn ignore(_: i32) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGTERM, ignore as *const () as usize) };
}

/// Makes SIGTERM end the process with exit code 3.
pub fn exit_on_sigterm() {
    extern "C" fn exit_3(_: i32) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(3) }
    }
    // SAFETY: the handler calls _exit, which a handler may.
    unsafe { libc::signal(libc::SIGTERM, exit_3 as *const () as usize) };
}
