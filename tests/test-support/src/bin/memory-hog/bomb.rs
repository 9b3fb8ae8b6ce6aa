//! Fork bombs with a bound.

use std::ptr::null_mut;

/// Lifetime of a member, seconds: it must not outlive a failed test by much.
const LIFE_S: u32 = 30;
/// Final size of each child of [`replace`], bytes.
const CHILD_BYTES: usize = 16 << 20;
/// Pause between two steps of one MiB.
const STEP_MICROS: u32 = 5_000;

/// Maps new memory, or exits.
fn map(bytes: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice, or an exit without cleanup.
    unsafe {
        let memory = libc::mmap(null_mut(), bytes, rights, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            libc::_exit(1);
        }
        memory.cast()
    }
}

/// Allocates memory and forks two children that do the same, until the last generation.
pub fn breed(generations: usize) {
    let bytes = 2 << 20;
    // SAFETY: only memory that was just mapped, with that length, is written to; one thread
    // continues, in each process, with system calls only.
    unsafe {
        // Creates a process group, like a job of a shell; no change if it leads one already.
        libc::setpgid(0, 0);
        for left in (0..=generations).rev() {
            libc::alarm(LIFE_S);
            let memory = map(bytes);
            for page in 0..bytes / 4096 {
                memory.add(page * 4096).write_volatile(1);
            }
            let mut child = 1;
            for _ in 0..2 {
                if left > 0 && child != 0 {
                    child = libc::fork();
                }
            }
            if child != 0 {
                loop {
                    libc::pause();
                }
            }
            // Until then the child shares the parent's memory.
            libc::munmap(memory.cast(), bytes);
        }
        libc::_exit(0);
    }
}

/// Keeps this number of children running. The user can have only a few more processes.
pub fn replace(children: usize) {
    let most = children as u64 + 8;
    // SAFETY: system calls with plain values; only memory that was just mapped, with that length,
    // is written to; one thread continues in each process.
    unsafe {
        libc::setpgid(0, 0);
        libc::alarm(LIFE_S);
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        libc::setrlimit(libc::RLIMIT_NPROC, &limit);
        let mut living = 0;
        loop {
            if living < children {
                match libc::fork() {
                    0 => break,
                    -1 => drop(libc::usleep(STEP_MICROS)),
                    _ => living += 1,
                }
            } else if libc::wait(null_mut()) > 0 {
                living -= 1;
            }
        }
        libc::alarm(LIFE_S);
        let memory = map(CHILD_BYTES);
        for page in 0..CHILD_BYTES / 4096 {
            memory.add(page * 4096).write_volatile(1);
            if page % 256 == 255 {
                libc::usleep(STEP_MICROS);
            }
        }
        loop {
            libc::pause();
        }
    }
}
