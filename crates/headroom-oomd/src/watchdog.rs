//! Detects a stuck event loop.
//!
//! A dedicated thread pings the loop at an interval. A loop that does not respond is stuck in the
//! kernel or by a defect of the daemon. That is reported, and the daemon aborts if a service
//! manager restarts it. The BPF programs and maps pinned in the kernel stay in force meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// Interval of the pings, unless the service manager requires a shorter one.
const INTERVAL: Duration = Duration::from_secs(5);
/// Missed pings after which the stuck loop is reported.
const REPORT_AFTER: u32 = 2;
/// Missed pings after which the daemon aborts. The longest known duration of one iteration of the
/// loop is half a second.
const END_AFTER: u32 = 6;

/// A state change of the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// This number of pings was missed; reported once.
    Stuck(u32),
    /// The loop responds again.
    Back,
    /// The loop is considered stuck for good.
    Lost,
}

/// The event loop's side of the watchdog.
pub struct Pulse {
    ping: Arc<Ping>,
}

struct Ping {
    fd: OwnedFd,
    answers: AtomicU64,
}

/// Readable when a ping is pending.
impl AsFd for Pulse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ping.fd.as_fd()
    }
}

impl Pulse {
    /// Responds to a ping. Must be called by the loop when the fd is readable.
    pub fn answer(&self) {
        // The fd is nonblocking; it does not matter if there is nothing to read.
        let _ = rustix::io::read(&self.ping.fd, &mut [0u8; 8]);
        self.ping.answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// At most half the interval that the service manager allows, so that one response may be late.
pub fn interval(allowed: Option<Duration>) -> Duration {
    allowed.map_or(INTERVAL, |allowed| INTERVAL.min(allowed / 2))
}

/// Starts the thread, which ends after the [`Pulse`] is dropped.
pub fn start(
    interval: Duration,
    mut found: impl FnMut(Finding) + Send + 'static,
) -> io::Result<Pulse> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let ping = Arc::new(Ping { fd, answers: AtomicU64::new(0) });
    let weak = Arc::downgrade(&ping);
    std::thread::Builder::new().name("watchdog".into()).stack_size(64 * 1024).spawn(move || {
        let mut unanswered = 0;
        while let Some(ping) = weak.upgrade() {
            let before = ping.answers.load(Ordering::Relaxed);
            // The counter cannot overflow; if it did, the fd would be readable all the same.
            let _ = rustix::io::write(&ping.fd, &1u64.to_ne_bytes());
            drop(ping);
            std::thread::sleep(interval);
            let Some(ping) = weak.upgrade() else { return };
            if ping.answers.load(Ordering::Relaxed) != before {
                if unanswered >= REPORT_AFTER {
                    found(Finding::Back);
                }
                unanswered = 0;
                continue;
            }
            unanswered += 1;
            match unanswered {
                REPORT_AFTER => found(Finding::Stuck(unanswered)),
                END_AFTER => found(Finding::Lost),
                _ => {}
            }
        }
    })?;
    Ok(Pulse { ping })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_loop_that_does_not_answer_is_noticed_and_so_is_its_return() {
        let (sender, findings) = channel();
        let pulse = start(Duration::from_millis(2), move |found| {
            let _ = sender.send(found);
        })
        .unwrap();
        assert_eq!(findings.recv_timeout(PATIENCE), Ok(Finding::Stuck(REPORT_AFTER)));
        assert_eq!(findings.recv_timeout(PATIENCE), Ok(Finding::Lost));
        let begun = Instant::now();
        loop {
            pulse.answer();
            match findings.try_recv() {
                Ok(found) => break assert_eq!(found, Finding::Back),
                Err(_) => assert!(begun.elapsed() < PATIENCE, "the answer was not noticed"),
            }
        }
    }

    #[test]
    fn a_question_wakes_the_loop() {
        let pulse = start(Duration::from_millis(1), |_| {}).unwrap();
        let mut fds = [PollFd::new(&pulse, PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&patience)), Ok(1));
    }

    #[test]
    fn the_manager_can_request_a_shorter_interval() {
        assert_eq!(interval(None), INTERVAL);
        assert_eq!(interval(Some(Duration::from_secs(60))), INTERVAL);
        assert_eq!(interval(Some(Duration::from_secs(2))), Duration::from_secs(1));
    }
}
