//! Checks that fail at present, with reasons.

use harness::outcome::{ExpectedFailure, ExpectedFailures};

const ENDS: &str = "on busy CPUs the limit is exceeded when the sessions end, and one of them is \
                    killed instead of the one that sorts";

const FORKS: &str = "`/proc` does not show that a process has executed no program since its fork: \
                     each counts with all that it shares, and workers die, not the parent that \
                     grows";
const BUFFERS: &str = "the shared buffers alone exceed the limit before a session sorts";

/// By program, backend (empty: both) and check.
pub const TABLE: ExpectedFailures = ExpectedFailures(&[
    ExpectedFailure::new("multiprocessing", "proc", "victim", FORKS),
    ExpectedFailure::new("postgresql", "", "victim", ENDS),
    ExpectedFailure::new("postgresql", "", "victim at 60 %", BUFFERS),
]);
