//! Many sleeping processes, for scans of all processes.

use anyhow::{Result, ensure};
use control::Uid;

use crate::child::{Child, become_user};

const PAGE: usize = 4096;
/// Maximum of pages that each writes to, so that they differ a little in size.
const MOST_PAGES: usize = 8;
static mut PAGES: [u8; MOST_PAGES * PAGE] = [0; MOST_PAGES * PAGE];

/// Starts `count` processes of this user, which sleep until they are dropped.
pub fn start(count: u32, uid: Uid) -> Result<Vec<Child>> {
    let parent = std::process::id();
    (0..count)
        .map(|number| {
            // SAFETY: the child makes only calls that are safe after a fork of a threaded process.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                sleep(uid, parent, number as usize % MOST_PAGES + 1);
            }
            let error = std::io::Error::last_os_error();
            ensure!(pid > 0, "cannot fork sleeper {number} of {count}: {error}");
            Ok(Child::of(pid))
        })
        .collect()
}

fn sleep(uid: Uid, parent: u32, pages: usize) -> ! {
    // SAFETY: plain system calls; the array is this process's own and inside its bounds.
    unsafe {
        become_user(uid, parent);
        for page in 0..pages {
            (&raw mut PAGES).cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        loop {
            libc::pause();
        }
    }
}
