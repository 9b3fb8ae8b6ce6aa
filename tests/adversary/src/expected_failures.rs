//! Checks that fail today, and why.

use harness::outcome::{ExpectedFailure, ExpectedFailures};

const OSCILLATION: &str = "each crossing of the soft limit has the daemon look at all processes";

/// By attack, backend (empty: both) and check.
pub const TABLE: ExpectedFailures =
    ExpectedFailures(&[ExpectedFailure::new("soft-limit-oscillation", "", "cpu", OSCILLATION)]);
