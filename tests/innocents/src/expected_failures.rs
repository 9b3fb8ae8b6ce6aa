//! Checks that fail at present, with reasons.

use harness::outcome::{ExpectedFailure, ExpectedFailures};

const SHARED: &str = "measuring 21 processes with shared buffers takes longer than a kill waits";

/// By program, backend (empty: both) and check.
pub const TABLE: ExpectedFailures = ExpectedFailures(&[
    ExpectedFailure::new("postgresql", "", "spared", SHARED),
    ExpectedFailure::new("postgresql", "", "finished", SHARED),
    ExpectedFailure::new("postgresql", "", "victim", SHARED),
]);
