//! What is known to fail, and why. An entry that starts to hold fails the suite: it is removed with the change that fixes it.

use harness::outcome::ExpectedFailure;

/// By attack, backend (empty: both) and check.
pub const TO_FAIL: &[ExpectedFailure] = &[];
