//! Checks that fail at present, with reasons.

use harness::outcome::{ExpectedFailure, ExpectedFailures};

const SLOW: &str = "with 30 runnable programs a measurement takes longer than a kill waits";

/// By program, backend (empty: both) and check.
pub const TABLE: ExpectedFailures = ExpectedFailures(&[
    ExpectedFailure::new("postgresql", "", "spared", SLOW),
    ExpectedFailure::new("postgresql", "", "finished", SLOW),
    ExpectedFailure::new("postgresql", "", "victim", SLOW),
]);
