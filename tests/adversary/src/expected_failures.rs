//! Checks that fail at present, with reasons.

use harness::outcome::{ExpectedFailure, ExpectedFailures};

const OSCILLATION: &str = "each crossing of the soft limit has the daemon look at all processes";

const DEAD: &str = "memory that no process has is not in /proc (docs/limitations.md)";

/// By attack, backend (empty: both) and check.
pub const TABLE: ExpectedFailures = ExpectedFailures(&[
    ExpectedFailure::new("soft-limit-oscillation", "", "cpu", OSCILLATION),
    ExpectedFailure::new("dead-address-space", "proc", "held", DEAD),
]);
