//! A fixed amount of user and kernel work, to check whether a clock is deterministic.

use std::hint::black_box;

use crate::Result;
use crate::clock::now_ns;

const ROUNDS: u64 = 20_000;

/// Prints the nanoseconds that the work took.
pub fn run() -> Result<()> {
    let started = now_ns();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..ROUNDS {
        for _ in 0..16 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        // SAFETY: getppid takes nothing and cannot fail.
        state = state.wrapping_add(unsafe { libc::getppid() } as u64);
    }
    black_box(state);
    println!("{}", now_ns() - started);
    Ok(())
}
