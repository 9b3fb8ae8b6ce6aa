//! Deadlines on the monotonic clock.

use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headroom_linux::clock::monotonic_ns;
use rustix::event::Timespec;

/// Time left until a deadline on the monotonic clock; zero if it has passed.
pub fn until(deadline_ns: u64) -> Timespec {
    let left = deadline_ns.saturating_sub(monotonic_ns());
    Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
}

/// Sends a thread its last messages and waits until it has ended, but no longer than `patience`:
/// what it writes to may be stuck.
pub fn end_thread<T>(
    queue: &SyncSender<T>,
    last: impl IntoIterator<Item = T>,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
) {
    const PAUSE: Duration = Duration::from_millis(1);
    let end = Instant::now() + patience;
    for mut message in last {
        while let Err(TrySendError::Full(back)) = queue.try_send(message)
            && Instant::now() < end
        {
            message = back;
            std::thread::sleep(PAUSE);
        }
    }
    let Some(thread) = thread else { return };
    while !thread.is_finished() && Instant::now() < end {
        std::thread::sleep(PAUSE);
    }
}
