//! Cost of a call: the same allocator with and without the gate, in alternating processes.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::Uid;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::report;

/// One series of calls.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Size of each block, bytes.
    pub size: usize,
    /// Threads that run the series concurrently.
    pub threads: usize,
}

/// Duration of a measurement.
const LENGTH: Duration = Duration::from_millis(120);
/// Pairs between two readings of the clock.
const PAIRS: usize = 256;

/// Whether tmalloc requests leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No: plain malloc.
    Off,
    /// Yes, from the daemon.
    On,
}

impl Gate {
    /// Value of `HEADROOM_TMALLOC`.
    fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

impl Case {
    /// Name of the case in results.
    pub fn name(self) -> String {
        let threads = report::number(self.threads as u64, "thread", "threads");
        format!("{}, {threads}", report::bytes(self.size))
    }

    /// Live blocks per thread: many small ones, few large ones.
    fn live(self) -> usize {
        ((64 << 20) / self.size / self.threads).clamp(16, 20_000)
    }

    /// Frees and allocates blocks in pseudo-random order and writes to one byte of each. Returns
    /// nanoseconds per pair.
    fn work(self) -> f64 {
        let mut blocks: Vec<*mut u8> = (0..self.live()).map(|_| self.block()).collect();
        let (mut random, mut pairs) = (0x9e37_79b9_7f4a_7c15_u64, 0);
        let mut pair = |blocks: &mut Vec<*mut u8>| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random as usize % blocks.len();
            // SAFETY: allocated by `block`, and replaced at once.
            unsafe { tmalloc::heap::free(blocks[at].cast()) };
            blocks[at] = self.block();
        };
        for _ in 0..2 * self.live() {
            pair(&mut blocks);
        }
        let start = Instant::now();
        while start.elapsed() < LENGTH {
            for _ in 0..PAIRS {
                pair(&mut blocks);
            }
            pairs += PAIRS;
        }
        start.elapsed().as_nanos() as f64 / pairs as f64
    }

    fn block(self) -> *mut u8 {
        // SAFETY: a block of at least one byte, checked before it is written to.
        unsafe {
            let block: *mut u8 = tmalloc::heap::malloc(self.size).cast();
            assert!(!block.is_null(), "{} bytes were refused", self.size);
            block.write(1);
            block
        }
    }

    /// Main function of the worker process: prints nanoseconds per pair.
    pub fn run_worker(self) {
        let threads: Vec<_> =
            (0..self.threads).map(|_| std::thread::spawn(move || self.work())).collect();
        let times = threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN));
        println!("{}", times.sum::<f64>() / self.threads as f64);
    }

    /// Runs the worker in a process of `uid`. Returns nanoseconds per pair.
    pub fn measure(self, uid: Uid, socket: &Path, gate: Gate) -> Result<f64> {
        let mut command = Command::new(std::env::current_exe().context("this program")?);
        command.args(["--worker", &self.size.to_string(), &self.threads.to_string()]);
        command.env("HEADROOM_LEASE_SOCKET", socket);
        command.env("HEADROOM_TMALLOC", gate.word());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).uid(uid.0);
        // SAFETY: one system call, on integers.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().context("cannot start a worker")?;
        let mut output = String::new();
        child.stdout.take().context("no output")?.read_to_string(&mut output)?;
        let status = child.wait()?;
        anyhow::ensure!(status.success(), "{}: the worker ended: {status}", self.name());
        output.trim().parse().with_context(|| format!("the worker printed {output:?}"))
    }
}
