//! Keeps idle CPUs from deep idle states while calls flow, on request of the operator.
//!
//! A request for the CPU's wake-up latency lasts as long as its file is open, so the kernel ends
//! that of a killed daemon.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use headroom_linux::timer::Timer;

/// Wake-up latency that is requested while calls flow, microseconds.
const NONE: i32 = 0;
/// `PM_QOS_DEFAULT_VALUE`: no request.
const ANY: i32 = -1;
/// The request ends one to two intervals after the last call: far longer than the pauses between
/// the calls of a program that is in use, and short compared with what a battery notices.
const INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    None,
    /// A call has been made in this interval.
    Called,
    /// No call has been made in this interval yet.
    Idle,
}

/// See the module's documentation.
pub(super) struct LowLatency {
    device: File,
    timer: Timer,
    request: Request,
}

impl LowLatency {
    /// `device` is `/dev/cpu_dma_latency`.
    pub(super) fn new(device: &Path) -> io::Result<Self> {
        let device = File::options().write(true).open(device)?;
        Ok(Self { device, timer: Timer::new()?, request: Request::None })
    }

    /// Signals the end of an interval.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// A client makes a call.
    pub(super) fn note_call(&mut self) {
        if std::mem::replace(&mut self.request, Request::Called) == Request::None {
            self.set(NONE);
            self.timer.expire_every(INTERVAL);
        }
    }

    /// An interval has passed.
    pub(super) fn end_interval(&mut self) {
        if !self.timer.take_expiry() {
            return;
        }
        self.request = match self.request {
            Request::Called => Request::Idle,
            Request::Idle | Request::None => {
                self.timer.disarm();
                self.set(ANY);
                Request::None
            }
        };
    }

    fn set(&self, latency_us: i32) {
        // A write of four bytes to the open device does not fail; if it did, calls would be slower.
        let _ = self.device.write_all_at(&latency_us.to_ne_bytes(), 0);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn wait(low: &LowLatency) {
        poll(&mut [PollFd::new(&low.timer, PollFlags::IN)], None).unwrap();
    }

    #[test]
    fn the_request_lasts_until_an_interval_has_passed_without_a_call() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let requested = || std::fs::read(file.path()).unwrap();
        let mut low = LowLatency::new(file.path()).unwrap();
        assert!(requested().is_empty(), "there is no request before the first call");
        for _ in 0..2 {
            low.note_call();
            assert_eq!(requested(), NONE.to_ne_bytes());
            wait(&low);
            low.note_call();
            low.end_interval();
            low.end_interval();
            assert_eq!(requested(), NONE.to_ne_bytes(), "there was a call");
            wait(&low);
            low.end_interval();
            assert_eq!(requested(), ANY.to_ne_bytes());
        }
    }

    #[test]
    fn a_missing_device_is_an_error() {
        let missing = tempfile::tempdir().unwrap().path().join("cpu_dma_latency");
        assert_eq!(LowLatency::new(&missing).err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
