//! Checks, and which of them are known to fail.

use std::fmt;

/// What a run was to show, and whether it did.
#[derive(Clone, Debug)]
pub struct Check {
    /// The same in all runs: `held`, `cpu` ...
    pub name: &'static str,
    /// It holds.
    pub holds: bool,
    /// What was measured, and the bound.
    pub found: String,
}

impl Check {
    /// A check.
    #[expect(clippy::fn_params_excessive_bools, reason = "the result of what was checked")]
    pub fn new(name: &'static str, holds: bool, found: impl Into<String>) -> Self {
        Self { name, holds, found: found.into() }
    }
}

/// A check that fails today.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedFailure {
    /// The attack or program.
    pub scenario: &'static str,
    /// `bpf` or `proc`; empty: both.
    pub backend: &'static str,
    /// The check's name.
    pub check: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// How a check relates to what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It fails, and nobody knew.
    Fails,
    /// It fails, as is known.
    KnownToFail(&'static str),
    /// It holds now: the entry is to be removed from the table.
    HoldsUnexpectedly,
}

impl Verdict {
    /// Compares.
    pub fn of(table: &[ExpectedFailure], scenario: &str, backend: &str, check: &Check) -> Self {
        let known = table.iter().find(|known| {
            known.scenario == scenario
                && known.check == check.name
                && (known.backend.is_empty() || known.backend == backend)
        });
        match (known, check.holds) {
            (None, true) => Self::Holds,
            (None, false) => Self::Fails,
            (Some(known), false) => Self::KnownToFail(known.reason),
            (Some(_), true) => Self::HoldsUnexpectedly,
        }
    }

    /// The suite goes on to pass.
    pub fn is_fine(self) -> bool {
        matches!(self, Self::Holds | Self::KnownToFail(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => to.pad("ok"),
            Self::Fails => to.pad("FAILS"),
            Self::KnownToFail(_) => to.pad("known"),
            Self::HoldsUnexpectedly => to.pad("FIXED: remove it from the table"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expected_failure_that_starts_to_hold_fails_the_suite() {
        let known = |backend| ExpectedFailure { scenario: "a", backend, check: "x", reason: "r" };
        let verdict = |table: &[ExpectedFailure], holds| {
            Verdict::of(table, "a", "bpf", &Check::new("x", holds, ""))
        };
        assert_eq!(verdict(&[], true), Verdict::Holds);
        assert_eq!(verdict(&[], false), Verdict::Fails);
        assert_eq!(verdict(&[known("proc")], false), Verdict::Fails);
        for table in [[known("bpf")], [known("")]] {
            assert_eq!(verdict(&table, false), Verdict::KnownToFail("r"));
            assert_eq!(verdict(&table, true), Verdict::HoldsUnexpectedly);
            assert!(!verdict(&table, true).is_fine());
        }
    }
}
