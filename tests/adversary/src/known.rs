//! What is known to fail, and why. An entry that starts to hold fails the suite: it is removed with
//! the change that fixes it.

use harness::outcome::ExpectedFailure;

const OSCILLATION: &str = "each crossing of the soft limit has the daemon look at all processes";

const fn known(
    scenario: &'static str,
    backend: &'static str,
    check: &'static str,
    reason: &'static str,
) -> ExpectedFailure {
    ExpectedFailure { scenario, backend, check, reason }
}

/// By attack, backend (empty: both) and check.
pub const TO_FAIL: &[ExpectedFailure] = &[known("soft-limit-oscillation", "", "cpu", OSCILLATION)];
