//! When all accounts and processes are scanned though nothing was reported.

use crate::clock::{NS_PER_MS, monotonic_ns};

/// How often is scanned while an account is above its soft limit, milliseconds: the interval of the
/// published timer.
const ALERT_SCAN_MS: u64 = 200;
/// How often otherwise, milliseconds: half the time over which growth counts.
const CALM_SCAN_MS: u64 = 2_000;
/// With very many processes less often: calm scans take a thousandth of one CPU at the most.
pub(super) const CALM_SCAN_SHARE: u64 = 1_000;

/// How soon the next scan has to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// No account is near its limit.
    Calm,
    /// One is.
    Alert,
}

/// The time of the next scan.
#[derive(Default)]
pub(super) struct ScanTimer {
    next_scan_ns: u64,
}

impl ScanTimer {
    pub(super) fn next_scan_ns(&self) -> u64 {
        self.next_scan_ns
    }

    pub(super) fn is_due(&self) -> bool {
        monotonic_ns() >= self.next_scan_ns
    }

    /// A scan is due at once.
    pub(super) fn scan_now(&mut self) {
        self.next_scan_ns = 0;
    }

    /// An account is near its limit.
    pub(super) fn scan_soon(&mut self) {
        let soon = monotonic_ns() + ALERT_SCAN_MS * NS_PER_MS;
        self.next_scan_ns = self.next_scan_ns.min(soon);
    }

    /// A scan has ended.
    pub(super) fn scanned(&mut self, begun_ns: u64, urgency: Urgency) {
        let now_ns = monotonic_ns();
        let pause_ns = match urgency {
            Urgency::Alert => ALERT_SCAN_MS * NS_PER_MS,
            Urgency::Calm => (CALM_SCAN_MS * NS_PER_MS).max((now_ns - begun_ns) * CALM_SCAN_SHARE),
        };
        self.next_scan_ns = now_ns + pause_ns;
    }
}
