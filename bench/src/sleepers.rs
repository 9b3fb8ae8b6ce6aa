//! Many sleeping processes, for scans of all processes.

use anyhow::{Context, Result};
use control::Uid;

use crate::child::Child;

const PAGE: usize = 4096;
/// Maximum of pages that each writes to, so that they differ a little in size.
const MOST_PAGES: usize = 8;
static mut PAGES: [u8; MOST_PAGES * PAGE] = [0; MOST_PAGES * PAGE];

/// Starts `count` processes of this user, which sleep until they are dropped.
pub fn start(count: u32, uid: Uid) -> Result<Vec<Child>> {
    let sleeper = |number: u32| {
        // SAFETY: the child makes only calls that are safe after a fork of a threaded process.
        let child = unsafe { Child::fork(uid) };
        let child = child.with_context(|| format!("sleeper {number} of {count}"))?;
        Ok(child.unwrap_or_else(|| sleep(number as usize % MOST_PAGES + 1)))
    };
    (0..count).map(sleeper).collect()
}

fn sleep(pages: usize) -> ! {
    // SAFETY: plain system calls; the array is this process's own and inside its bounds.
    unsafe {
        for page in 0..pages {
            (&raw mut PAGES).cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        loop {
            libc::pause();
        }
    }
}
