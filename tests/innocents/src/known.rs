//! What is known to fail, and why. An entry that starts to hold fails the suite: it is removed with
//! the change that fixes it.

use harness::outcome::ExpectedFailure;

const SHARED: &str = "measuring 21 processes with shared buffers takes longer than a kill waits";

const fn known(
    scenario: &'static str,
    backend: &'static str,
    check: &'static str,
    reason: &'static str,
) -> ExpectedFailure {
    ExpectedFailure { scenario, backend, check, reason }
}

/// By program, backend (empty: both) and check.
pub const TO_FAIL: &[ExpectedFailure] = &[
    known("postgresql", "", "spared", SHARED),
    known("postgresql", "", "finished", SHARED),
    known("postgresql", "", "victim", SHARED),
];
