//! Simulates an interactive user: a little work on a small working set at a fixed interval,
//! measuring every delay.

use std::sync::atomic::Ordering::Relaxed;

use crate::Result;
use crate::clock::{now_ns, sleep_until};
use crate::memory::{MIB, Mapping};
use crate::options::Options;
use crate::shared;

/// The interval: a screen at 50 frames per second.
pub const PERIOD_NS: u64 = 20_000_000;
/// Size of the file in its working set: program text and data, MiB.
pub const FILE_MIB: usize = 24;
const ANONYMOUS_MIB: usize = 16;
/// Minimum of a perceptible delay, nanoseconds.
const FELT_NS: u64 = 100_000_000;

/// Touches `--file` and its own memory at every interval, and writes its delays into `--shared`;
/// runs until it is killed.
pub fn run(options: &Options) -> Result<()> {
    let shared = shared::map(&options.get::<String>("shared")?)?;
    let file = Mapping::file(&options.get::<String>("file")?)?;
    let mut own = Mapping::anonymous(ANONYMOUS_MIB * MIB)?;
    let mut planned = now_ns();
    loop {
        file.read_pages();
        own.write_pages(planned as u8);
        let now = now_ns();
        let lag = now.saturating_sub(planned + PERIOD_NS);
        shared.max_lag_ns.fetch_max(lag, Relaxed);
        if lag > FELT_NS {
            shared.sum_lag_ns.fetch_add(lag, Relaxed);
        }
        shared.beats.fetch_add(1, Relaxed);
        shared.last_beat_ns.store(now, Relaxed);
        // A late round counts as one delay, and is not followed by a series of them.
        planned = (planned + PERIOD_NS).max(now.saturating_sub(PERIOD_NS));
        sleep_until(planned);
    }
}
