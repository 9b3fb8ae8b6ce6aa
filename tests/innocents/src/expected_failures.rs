//! Checks that fail at present, with reasons.

use harness::outcome::{ExpectedFailure, ExpectedFailures};

const EXIT: &str = "on busy CPUs the exit of 50 sessions at once takes longer than a kill waits";

/// By program, backend (empty: both) and check.
pub const TABLE: ExpectedFailures = ExpectedFailures(&[
    ExpectedFailure::new("postgresql", "", "spared", EXIT),
    ExpectedFailure::new("postgresql", "", "finished", EXIT),
    ExpectedFailure::new("postgresql", "", "victim", EXIT),
]);
