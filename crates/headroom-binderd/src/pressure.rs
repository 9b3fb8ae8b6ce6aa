//! When memory is short: the kernel says that programs wait for it, or that little is left.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use machine_memory::pressure::{Resource, Stall};
use machine_memory::{Meminfo, PressureTrigger};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

const PROC: &str = "/proc";
/// Programs that waited for memory during a tenth of a second's time are what users begin to notice; Android's
/// low-memory killer acts at 70 ms.
const STALL: Duration = Duration::from_millis(100);
const STALL_WINDOW: Duration = Duration::from_secs(1);
/// How often is looked at what is left. Memory can go faster than that, but then there are stalls.
const LOOK_EVERY: i64 = 1;

/// Watches the machine's memory.
pub struct Pressure {
    /// `None`: this kernel does not say.
    trigger: Option<PressureTrigger>,
    timer: OwnedFd,
    /// Of all memory, percent: with less available, memory is short.
    low_percent: u8,
}

impl Pressure {
    /// Watches from now on. Also what does not work here.
    pub fn watch(low_percent: u8) -> std::io::Result<(Self, Option<String>)> {
        let trigger = PressureTrigger::open(
            Path::new(PROC),
            Resource::Memory,
            Stall::Some,
            STALL,
            STALL_WINDOW,
        );
        let lacking = trigger.as_ref().err().map(|error| {
            format!(
                "no pressure stall information ({error}): idle buffers are given back only when less than \
                 {low_percent} % of memory is available"
            )
        });
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let every = Timespec { tv_sec: LOOK_EVERY, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &spec)?;
        Ok((Self { trigger: trigger.ok(), timer, low_percent }, lacking))
    }

    /// Becomes urgent when programs wait for memory.
    pub fn stalls(&self) -> Option<BorrowedFd<'_>> {
        self.trigger.as_ref().map(AsFd::as_fd)
    }

    /// Becomes readable when it is time to [look](Self::is_low).
    pub fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Little memory is available. `worthwhile`: something could be given back; else nothing is read.
    pub fn is_low(&self, worthwhile: bool) -> bool {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        if !worthwhile {
            return false;
        }
        let read = Meminfo::read(Path::new(PROC)).ok();
        let shares = read.and_then(|info| Some((info.available?, info.total?)));
        shares.is_some_and(|(available, total)| {
            u128::from(available) * 100 < u128::from(total) * u128::from(self.low_percent)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_everything_is_never_available() {
        let low = |percent| Pressure::watch(percent).unwrap().0.is_low(true);
        assert!(low(100) && !low(0));
        assert!(!Pressure::watch(100).unwrap().0.is_low(false), "nothing to give back");
    }
}
