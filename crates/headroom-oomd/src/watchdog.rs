//! Notices when the event loop does not come round any more.
//!
//! A thread of its own asks the loop for a sign of life again and again. A loop that does not give
//! one is stuck, on a lock of the kernel or by a mistake of ours: that is said, and where somebody
//! starts us again, we end. What is pinned in the kernel goes on meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// How often the loop is asked, unless the service manager wants to know more often.
const INTERVAL: Duration = Duration::from_secs(5);
/// Questions without an answer after which it is said.
const SAY_AFTER: u32 = 2;
/// Questions without an answer after which we end. The longest that the loop is known to work at
/// one thing is half a second.
const END_AFTER: u32 = 6;

/// How a stuck loop is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It has not answered for so many questions; it is said once.
    Stuck(u32),
    /// It has answered again.
    Back,
    /// It is time to end.
    Lost,
}

/// The loop's side of it.
pub struct Pulse {
    asked: Arc<Asked>,
}

struct Asked {
    fd: OwnedFd,
    answers: AtomicU64,
}

/// Readable when a sign of life is wanted.
impl AsFd for Pulse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asked.fd.as_fd()
    }
}

impl Pulse {
    /// Gives one. To be called by the loop when the fd is readable.
    pub fn answer(&self) {
        // Nonblocking: nothing to read is as good.
        let _ = rustix::io::read(&self.asked.fd, &mut [0u8; 8]);
        self.asked.answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Half of what the manager allows: one sign may be late.
pub fn interval(allowed: Option<Duration>) -> Duration {
    allowed.map_or(INTERVAL, |allowed| INTERVAL.min(allowed / 2))
}

/// Starts the thread, which ends with the [`Pulse`].
pub fn start(
    interval: Duration,
    mut found: impl FnMut(Finding) + Send + 'static,
) -> io::Result<Pulse> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let asked = Arc::new(Asked { fd, answers: AtomicU64::new(0) });
    let weak = Arc::downgrade(&asked);
    std::thread::Builder::new().name("watchdog".into()).stack_size(64 * 1024).spawn(move || {
        let mut unanswered = 0;
        while let Some(asked) = weak.upgrade() {
            let before = asked.answers.load(Ordering::Relaxed);
            // Full is impossible; it would be as good as asked.
            let _ = rustix::io::write(&asked.fd, &1u64.to_ne_bytes());
            drop(asked);
            std::thread::sleep(interval);
            let Some(asked) = weak.upgrade() else { return };
            if asked.answers.load(Ordering::Relaxed) != before {
                if unanswered >= SAY_AFTER {
                    found(Finding::Back);
                }
                unanswered = 0;
                continue;
            }
            unanswered += 1;
            match unanswered {
                SAY_AFTER => found(Finding::Stuck(unanswered)),
                END_AFTER => found(Finding::Lost),
                _ => {}
            }
        }
    })?;
    Ok(Pulse { asked })
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
        let (tell, told) = channel();
        let pulse = start(Duration::from_millis(2), move |found| {
            let _ = tell.send(found);
        })
        .unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Finding::Stuck(SAY_AFTER)));
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Finding::Lost));
        let begun = Instant::now();
        loop {
            pulse.answer();
            match told.try_recv() {
                Ok(found) => break assert_eq!(found, Finding::Back),
                Err(_) => assert!(begun.elapsed() < PATIENCE, "nobody noticed the answer"),
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
    fn the_manager_may_want_to_know_more_often() {
        assert_eq!(interval(None), INTERVAL);
        assert_eq!(interval(Some(Duration::from_secs(60))), INTERVAL);
        assert_eq!(interval(Some(Duration::from_secs(2))), Duration::from_secs(1));
    }
}
