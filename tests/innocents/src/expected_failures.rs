//! Checks that fail at present, with reasons.

use harness::outcome::{ExpectedFailure, ExpectedFailures};

const EXIT: &str = "on busy CPUs the exit of 50 sessions at once takes longer than a kill waits";
const PEAK: &str = "on busy CPUs the measurement of 66 processes misses the peak";

/// By program, backend (empty: both) and check.
pub const TABLE: ExpectedFailures = ExpectedFailures(&[
    ExpectedFailure::new("postgresql", "", "spared", EXIT),
    ExpectedFailure::new("postgresql", "", "finished", EXIT),
    ExpectedFailure::new("postgresql", "", "victim", EXIT),
    ExpectedFailure::new("gunicorn", "", "spared", PEAK),
    ExpectedFailure::new("gunicorn", "", "finished", PEAK),
    ExpectedFailure::new("gunicorn", "", "victim", PEAK),
]);
