//! Checks, and which of them are expected to fail.

use std::fmt;

use crate::backend::Backend;

/// An expectation of a run, and whether it was met.
#[derive(Clone, Debug)]
pub struct Check {
    /// Name, the same in all runs: `held`, `cpu` ...
    pub name: &'static str,
    /// The expectation was met.
    pub holds: bool,
    /// The measured value and the bound.
    pub found: String,
}

impl Check {
    /// Creates a check.
    #[expect(clippy::fn_params_excessive_bools, reason = "the result of what was checked")]
    pub fn new(name: &'static str, holds: bool, found: impl Into<String>) -> Self {
        Self { name, holds, found: found.into() }
    }
}

/// A check that fails at present.
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

impl ExpectedFailure {
    /// Creates an entry of a table.
    pub const fn new(
        scenario: &'static str,
        backend: &'static str,
        check: &'static str,
        reason: &'static str,
    ) -> Self {
        Self { scenario, backend, check, reason }
    }
}

/// A run's result compared with what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    ExpectedFailure,
    /// The entry must be removed from the table.
    UnexpectedPass,
}

impl Verdict {
    fn is_expected(self) -> bool {
        matches!(self, Self::Passed | Self::ExpectedFailure)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => to.pad("ok"),
            Self::Failed => to.pad("FAILS"),
            Self::ExpectedFailure => to.pad("known"),
            Self::UnexpectedPass => to.pad("FIXED: remove it from the table"),
        }
    }
}

/// The result of one run of a scenario.
pub trait Outcome {
    /// Checks in the order in which they are printed.
    fn checks(&self) -> &[Check];
    /// Prints the measured values, in front of the checks.
    fn print(&self, scenario: &str, backend: Backend);
}

/// The checks of a suite that fail at present. An entry that starts to pass fails the suite: it
/// must be removed with the change that fixes it.
pub struct ExpectedFailures(pub &'static [ExpectedFailure]);

impl ExpectedFailures {
    /// Runs a scenario and prints its checks. `false`: one of them is not as expected.
    ///
    /// Other load on the machine may affect it, so an unexpected result gets two more runs.
    pub fn run<O: Outcome>(
        &self,
        scenario: &str,
        backend: Backend,
        mut run_once: impl FnMut() -> anyhow::Result<O>,
    ) -> anyhow::Result<bool> {
        let verdict = |check: &Check| self.verdict(scenario, backend, check);
        let mut outcome = run_once()?;
        for _ in 0..2 {
            if outcome.checks().iter().map(verdict).all(Verdict::is_expected) {
                break;
            }
            outcome = run_once()?;
        }
        outcome.print(scenario, backend);
        for check in outcome.checks() {
            println!("      {:6} {:16} {}", verdict(check), check.name, check.found);
        }
        Ok(outcome.checks().iter().map(verdict).all(Verdict::is_expected))
    }

    /// Prints one line for each entry.
    pub fn print(&self) {
        for entry in self.0 {
            let backend = if entry.backend.is_empty() { "both" } else { entry.backend };
            println!("{:24} {backend:5} {:16} {}", entry.scenario, entry.check, entry.reason);
        }
    }

    fn verdict(&self, scenario: &str, backend: Backend, check: &Check) -> Verdict {
        let listed = self.0.iter().any(|entry| {
            entry.scenario == scenario
                && entry.check == check.name
                && (entry.backend.is_empty() || entry.backend == backend.name())
        });
        match (listed, check.holds) {
            (false, true) => Verdict::Passed,
            (false, false) => Verdict::Failed,
            (true, false) => Verdict::ExpectedFailure,
            (true, true) => Verdict::UnexpectedPass,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BPF: ExpectedFailures = ExpectedFailures(&[ExpectedFailure::new("a", "bpf", "x", "r")]);
    const PROC: ExpectedFailures = ExpectedFailures(&[ExpectedFailure::new("a", "proc", "x", "r")]);
    const BOTH: ExpectedFailures = ExpectedFailures(&[ExpectedFailure::new("a", "", "x", "r")]);

    struct Run(Check);

    impl Outcome for Run {
        fn checks(&self) -> &[Check] {
            std::slice::from_ref(&self.0)
        }

        fn print(&self, _scenario: &str, _backend: Backend) {}
    }

    #[test]
    fn an_expected_failure_that_starts_to_hold_fails_the_suite() {
        let verdict = |table: &ExpectedFailures, holds| {
            table.verdict("a", Backend::Bpf, &Check::new("x", holds, ""))
        };
        assert_eq!(verdict(&ExpectedFailures(&[]), true), Verdict::Passed);
        assert_eq!(verdict(&ExpectedFailures(&[]), false), Verdict::Failed);
        assert_eq!(verdict(&PROC, false), Verdict::Failed);
        for table in [BPF, BOTH] {
            assert_eq!(verdict(&table, false), Verdict::ExpectedFailure);
            assert_eq!(verdict(&table, true), Verdict::UnexpectedPass);
            assert!(!verdict(&table, true).is_expected());
        }
    }

    #[test]
    fn an_unexpected_result_gets_two_more_runs() {
        let runs_until = |first_to_hold: u32| {
            let mut runs = 0;
            let expected = ExpectedFailures(&[]).run("a", Backend::Bpf, || {
                runs += 1;
                Ok(Run(Check::new("x", runs >= first_to_hold, "")))
            });
            (runs, expected.unwrap())
        };
        assert_eq!(runs_until(1), (1, true));
        assert_eq!(runs_until(3), (3, true));
        assert_eq!(runs_until(4), (3, false));
    }
}
