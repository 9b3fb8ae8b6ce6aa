//! Detects a shortage of memory: tasks stall on memory, or little is available.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use headroom_linux::clock::Timer;
use headroom_linux::machine_memory::pressure::{Resource, Stall};
use headroom_linux::machine_memory::{Meminfo, PressureTrigger};

const PROC: &str = "/proc";
/// Tasks that stall on memory for a tenth of the time are noticeable to users; Android's low-memory
/// killer acts at 70 ms.
const STALL: Duration = Duration::from_millis(100);
const STALL_WINDOW: Duration = Duration::from_secs(1);
/// Longest and shortest interval between two checks of the available memory. The longest one
/// applies while memory is short, so that memory reclaimed just now can be used first.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_SOON: Duration = Duration::from_millis(50);
/// Maximum rate at which one program fills memory, bytes a millisecond: as in
/// `memory_ledger::machine`. If several programs fill it faster together, they stall.
const FASTEST_FILL: u64 = 6 << 20;

/// Watches the machine's memory.
pub struct Pressure {
    /// `None`: the kernel has no pressure stall information.
    trigger: Option<PressureTrigger>,
    timer: Timer,
    /// Percent of all memory: with less available, memory is short.
    low_percent: u8,
    /// Longest interval between two checks.
    often: Duration,
}

impl Pressure {
    /// Starts watching; the timer becomes readable after `often` at the latest. Also returns a
    /// description of what does not work on this machine.
    pub fn watch(
        low_percent: u8,
        often: Option<Duration>,
    ) -> std::io::Result<(Self, Option<String>)> {
        let trigger = PressureTrigger::open(
            Path::new(PROC),
            Resource::Memory,
            Stall::Some,
            STALL,
            STALL_WINDOW,
        );
        let lacking = trigger.as_ref().err().map(|error| {
            format!(
                "no pressure stall information ({error}): idle buffers are given back only when \
                 less than {low_percent} % of memory is available"
            )
        });
        let timer = Timer::new()?;
        let often = often.map_or(LOOK_EVERY, |often| often.clamp(LOOK_SOON, LOOK_EVERY));
        let watch = Self { trigger: trigger.ok(), timer, low_percent, often };
        watch.timer.expire_in(often);
        Ok((watch, lacking))
    }

    /// Readable with `POLLPRI` when tasks stall on memory.
    pub fn stalls(&self) -> Option<BorrowedFd<'_>> {
        self.trigger.as_ref().map(AsFd::as_fd)
    }

    /// Becomes readable when the next [check](Self::is_low) is due.
    pub fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Whether memory is short. Without idle pages to reclaim, `/proc/meminfo` is not read.
    pub fn is_low(&self, idle_pages: u64) -> bool {
        let meminfo = || Meminfo::read(Path::new(PROC)).ok();
        let read = if idle_pages > 0 { meminfo() } else { None };
        let shares = read.and_then(|info| Some((info.available?, info.total?)));
        let left = shares.map(|(available, total)| available.checked_sub(self.mark(total)));
        let soon = |left: u64| Duration::from_millis(left / FASTEST_FILL);
        let pause = left.flatten().map_or(self.often, soon);
        // Also clears the readable state.
        self.timer.expire_in(pause.clamp(LOOK_SOON, self.often));
        left == Some(None)
    }

    /// Memory is short below this many available bytes.
    fn mark(&self, total: u64) -> u64 {
        total / 100 * u64::from(self.low_percent)
    }
}

/// Bytes of this percentage of the machine's memory.
pub fn share_of_memory(percent: u8) -> u64 {
    let info = rustix::system::sysinfo();
    let total = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    total / 100 * u64::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_total_is_never_available() {
        let low = |percent| Pressure::watch(percent, None).unwrap().0.is_low(1);
        assert!(low(101) && !low(0));
        assert!(!Pressure::watch(100, None).unwrap().0.is_low(0), "nothing to give back");
    }
}
