//! Somebody at the keyboard: a little work on a small working set at a steady beat, who notices
//! every delay.

use std::sync::atomic::Ordering::Relaxed;

use crate::Result;
use crate::clock::{now_ns, sleep_until};
use crate::memory::{MIB, Mapping};
use crate::options::Options;
use crate::shared;

/// The beat: a screen at 50 frames a second.
pub const PERIOD_NS: u64 = 20_000_000;
/// Its working set: program text and data.
pub const FILE_MIB: usize = 24;
const ANONYMOUS_MIB: usize = 16;
/// What a person feels.
const FELT_NS: u64 = 100_000_000;

/// Touches `--file` and its own memory at every beat, and writes what it felt into `--shared`; ends
/// when killed.
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
        // A late round is one delay, not a debt of many.
        planned = (planned + PERIOD_NS).max(now.saturating_sub(PERIOD_NS));
        sleep_until(planned);
    }
}
