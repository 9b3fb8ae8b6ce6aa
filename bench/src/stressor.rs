//! A process that causes memory pressure: it allocates a fixed amount, writes to every page of it
//! over and over, and on every pass returns a chunk to the kernel and allocates a new one.

use std::collections::VecDeque;
use std::fs;
use std::io::stdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};

use crate::affinity::{self, Class};
use crate::machine;
use crate::memory::{Memory, Pages};
use crate::peer::{Worker, report_ready};

/// The argument that makes a peer a stressor: `peer stress MIB CORE`.
pub const KIND: &str = "stress";
const CHUNK: usize = 16 << 20;

/// The stressor process, as the benchmark sees it.
pub struct Stressor(Worker);

/// MiB of `wanted` that may be used when `available` are available and `keep_free` must stay free.
pub fn allowance_mib(wanted: u64, available: u64, keep_free: u64) -> u64 {
    wanted.min(available.saturating_sub(keep_free))
}

impl Stressor {
    /// Starts a stressor for `mib`, on the cores other than `core` if there are any. It allocates
    /// nothing yet.
    pub fn start(mib: u64, core: usize) -> Result<Self> {
        let words = [mib.to_string(), core.to_string()];
        Ok(Self(Worker::start(None, &[KIND, &words[0], &words[1]])?))
    }

    /// Returns once everything is allocated; the stressor keeps writing to it.
    pub fn go(&mut self) -> Result<()> {
        self.order("go", "full")
    }

    /// Returns once everything is freed.
    pub fn rest(&mut self) -> Result<()> {
        self.order("rest", "empty")
    }

    fn order(&mut self, order: &str, answer: &str) -> Result<()> {
        self.0.order(order)?;
        let printed = self.0.answer()?;
        anyhow::ensure!(printed == answer, "the memory stressor printed \"{printed}\"");
        Ok(())
    }
}

fn hold_memory(mib: u64, stop: &AtomicBool) -> Result<()> {
    let mut chunks = VecDeque::new();
    for _ in 0..(mib << 20).div_ceil(CHUNK as u64) {
        let chunk = Memory::map(CHUNK, Pages::Small)?;
        chunk.touch(0, 1);
        chunks.push_back(chunk);
    }
    println!("full");
    loop {
        for chunk in &chunks {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            chunk.touch(0, 1);
        }
        // Frees the oldest first: never more than the agreed amount is held.
        if chunks.pop_front().is_some() {
            chunks.push_back(Memory::map(CHUNK, Pages::Small)?);
        }
    }
}

/// The stressor's main function.
pub fn serve(mib: &str, core: &str) -> Result<()> {
    let mib: u64 = mib.parse().context("how many MiB?")?;
    let alone = !affinity::avoid(core.parse().context("which core?")?)?;
    Class::Nice(if alone { 19 } else { 0 }).take()?;
    // If memory does run out, the kernel kills this process first.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let available = machine::available_mib()?;
    anyhow::ensure!(available > mib, "{mib} MiB are wanted, {available} MiB are there");
    report_ready();
    let mut orders = stdin().lines();
    while let Some(order) = orders.next() {
        anyhow::ensure!(order? == "go", "an order out of turn");
        let stop = AtomicBool::new(false);
        let rest = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                if let Err(error) = hold_memory(mib, &stop) {
                    // The other thread waits for orders, and the parent for an answer.
                    println!("{error:#}");
                    std::process::exit(1);
                }
            });
            let rest = orders.next();
            stop.store(true, Ordering::Relaxed);
            holder.join().map(|()| rest)
        });
        let rest = rest.map_err(|_| anyhow::anyhow!("the holder panicked"))?;
        match rest {
            Some(_) => println!("empty"),
            None => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stressor_leaves_others_their_share() {
        assert_eq!(allowance_mib(2048, 20_000, 4096), 2048);
        assert_eq!(allowance_mib(2048, 5000, 4096), 904);
        assert_eq!(allowance_mib(2048, 1000, 4096), 0);
    }
}
