//! Timer of the scans of all accounts and processes, which do not rely on events.

use headroom_linux::clock::monotonic_ns;
use memory_ledger::NS_PER_MS;

/// Interval of scans while an account is above its soft limit, milliseconds: the interval of the
/// published timer.
const ALERT_SCAN_MS: u64 = 200;
/// Interval of scans otherwise, milliseconds: half the window over which growth is counted.
const CALM_SCAN_MS: u64 = 2_000;
/// Calm scans use at most 1/1000 of one CPU, so with very many processes the interval is longer.
pub(super) const CALM_SCAN_SHARE: u64 = 1_000;

/// Urgency of the next scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// No account is near its limit.
    Calm,
    /// At least one account is near its limit.
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

    /// Makes a scan due at once.
    pub(super) fn scan_now(&mut self) {
        self.next_scan_ns = 0;
    }

    /// Makes a scan due within the alert interval, since an account is near its limit.
    pub(super) fn scan_soon(&mut self) {
        let soon = monotonic_ns() + ALERT_SCAN_MS * NS_PER_MS;
        self.next_scan_ns = self.next_scan_ns.min(soon);
    }

    /// Schedules the next scan after one that has ended.
    pub(super) fn scanned(&mut self, begun_ns: u64, urgency: Urgency) {
        let now_ns = monotonic_ns();
        let pause_ns = match urgency {
            Urgency::Alert => ALERT_SCAN_MS * NS_PER_MS,
            Urgency::Calm => (CALM_SCAN_MS * NS_PER_MS).max((now_ns - begun_ns) * CALM_SCAN_SHARE),
        };
        self.next_scan_ns = now_ns + pause_ns;
    }
}
