//! Compares parts of two tasks that threads or processes can share.

use std::cmp::Ordering;

/// A part of a task, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `KCMP_VM`: the address space.
    Memory = 1,
    /// `KCMP_FILES`: the table of descriptors.
    Files = 2,
}

/// The kernel's order of this part of two tasks, by pid or tid; equal if they share it. `None`: it
/// does not report it.
pub fn compare(part: Part, a: u32, b: u32) -> Option<Ordering> {
    // SAFETY: kcmp takes numbers, and no memory of ours.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, part as i32, 0, 0) } {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}
