//! A process that constantly changes its memory: it allocates, shares, swaps out and frees memory,
//! forks, executes and changes its user, until it is killed or its parent exits. `memory-hog churn
//! SEED UID...` starts as the first of these users; with more than one it changes between them.

use std::ffi::CStr;
use std::time::Duration;

use control::Uid;

use crate::{
    Areas, PAGE, become_user, change_real_uid, fork, map, page_out, touch, touch_in_threads,
};

/// Maximum of pages per mapping, and of mappings that a process keeps: about 8 MiB each.
const MOST_PAGES: u64 = 200;
const MOST_AREAS: usize = 24;
/// Pause between two steps: a hundred such processes keep a CPU busy, but leave time for the
/// measurement.
const PAUSE: Duration = Duration::from_millis(10);
/// The name of a process that has called setresuid and has not touched a page since: it is charged
/// to either user.
const MOVING: &CStr = c"moving";
const SETTLED: &CStr = c"churning";

pub fn churn(seed: u64, users: &[Uid]) {
    // SAFETY: no arguments.
    let parent = unsafe { libc::getppid() };
    let Some(first) = users.first() else { return };
    if users.len() == 1 {
        become_user(*first);
    }
    let mut churner =
        Churner { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, areas: Areas::new() };
    churner.move_to(users, 0);
    // SAFETY: no arguments.
    while unsafe { libc::getppid() } == parent {
        churner.step(users);
        std::thread::sleep(PAUSE);
    }
}

struct Churner {
    state: u64,
    areas: Areas,
}

impl Churner {
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 8
    }

    fn step(&mut self, users: &[Uid]) {
        let pages = (self.next() % MOST_PAGES) as usize + 1;
        let kind = self.next() % 20;
        if self.areas.len() >= MOST_AREAS {
            self.give_back();
        }
        match kind {
            0..=3 => touch(map(&mut self.areas, pages * PAGE, libc::MAP_PRIVATE), pages),
            4..=6 => touch(map(&mut self.areas, pages * PAGE, libc::MAP_SHARED), pages),
            7 => touch_in_threads(&mut self.areas, 2, pages / 2 + 1),
            8 | 9 => self.give_back(),
            10 | 11 => self.forget_a_part(),
            12 => {
                reap(fork(|| {
                    touch(map(&mut Areas::new(), pages * PAGE, libc::MAP_PRIVATE), pages)
                }));
            }
            13 => reap(fork(execute_something)),
            // Only effective if there is swap.
            16 | 17 => page_out(self.one()),
            18 | 19 => self.one().iter().for_each(|(start, bytes)| touch(*start, bytes / PAGE)),
            _ => {
                let which = self.next() as usize;
                self.move_to(users, which);
            }
        }
    }

    /// A random mapping, if there is any.
    fn one(&mut self) -> &[(usize, usize)] {
        let which = self.next() as usize % self.areas.len().max(1);
        self.areas.get(which..=which).unwrap_or_default()
    }

    fn give_back(&mut self) {
        if self.areas.is_empty() {
            return;
        }
        let which = self.next() as usize % self.areas.len();
        let (address, bytes) = self.areas.swap_remove(which);
        // SAFETY: a private mapping that is not used any more.
        unsafe { libc::munmap(address as *mut _, bytes) };
    }

    fn forget_a_part(&mut self) {
        let which = self.next() as usize;
        if let Some((address, bytes)) = self.areas.get(which % self.areas.len().max(1)) {
            let half = (bytes / 2).next_multiple_of(PAGE).min(*bytes);
            // SAFETY: part of a private mapping without relevant content.
            unsafe { libc::madvise(*address as *mut _, half, libc::MADV_DONTNEED) };
        }
    }

    /// Changes the user. The process is charged to the new user from its next page fault on.
    fn move_to(&mut self, users: &[Uid], which: usize) {
        if users.len() > 1 {
            name(MOVING);
            change_real_uid(users[which % users.len()]);
        }
        // More pages than a thread may cache in its own counters before Linux 6.2.
        touch(map(&mut self.areas, 100 * PAGE, libc::MAP_PRIVATE), 100);
        name(SETTLED);
    }
}

fn name(name: &CStr) {
    // SAFETY: a static string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

fn execute_something() {
    let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
    // SAFETY: a static path, and a list that ends with NULL. Returns only if it fails.
    unsafe { libc::execv(arguments[0], arguments.as_ptr()) };
}

fn reap(pid: i32) {
    // SAFETY: a child of this process; no status is requested.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}
