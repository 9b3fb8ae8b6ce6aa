//! Fork bombs with a bound.

use std::ptr::null_mut;

/// How long a member lives if it is not killed: it must not outlive a failed test by much.
const LIFE_S: u32 = 30;
/// What each child of [`replace`] has in the end.
const CHILD_BYTES: usize = 16 << 20;
/// Between two steps of one MiB.
const STEP_MICROS: u32 = 5_000;

/// New memory, or the end of the process.
fn map(bytes: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice, or an end without anything that
    // is left to do.
    unsafe {
        let memory = libc::mmap(null_mut(), bytes, rights, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            libc::_exit(1);
        }
        memory.cast()
    }
}

/// Takes memory and forks two children that do the same, until the last generation.
pub fn breed(generations: usize) {
    let bytes = 2 << 20;
    // SAFETY: what is written to was just mapped, with that length; one thread goes on, in each
    // process, with system calls only.
    unsafe {
        // A job of its own, as one from a shell; where it leads one already, that stays so.
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
            // What the parent had is the child's too, until then.
            libc::munmap(memory.cast(), bytes);
        }
        libc::_exit(0);
    }
}

/// Has so many children at a time. No more processes of this user are possible than a few besides.
pub fn replace(children: usize) {
    let most = children as u64 + 8;
    // SAFETY: system calls with plain values, and what is written to was just mapped, with that
    // length; one thread goes on in each process.
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
