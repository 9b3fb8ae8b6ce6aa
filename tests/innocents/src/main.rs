//! `innocents`: runs ordinary programs under a limit, with a `headroom-oomd` of its own.
//!
//! The memory that a program really needs is measured without Headroom (`harness::memory`). At
//! 125 % of its peak Headroom must send no signal; at 90 % exactly one, to the process that grows.
//! What is known to fail is in `known.rs`; the run fails when something else does, and when an
//! entry of that table is fixed.

mod known;
mod programs;
mod run;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use harness::MIB;
use harness::daemon::Backend;
use harness::outcome::Verdict;

use crate::programs::{Mode, Program};
use crate::run::{Effort, Outcome, play};

/// Runs ordinary programs under a limit
#[derive(Parser)]
struct Arguments {
    /// Only programs whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// How the daemon watches memory
    #[arg(long, value_enum, default_value_t = Backends::Both)]
    backend: Backends,
    /// All programs, 20 times for a minute each under the limit that they keep to; otherwise some,
    /// once for seconds
    #[arg(long)]
    full: bool,
    /// Times that a program is run under the limit that it keeps to
    #[arg(long)]
    runs: Option<u32>,
    /// How long the load of a program lasts, seconds
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..))]
    seconds: Option<u32>,
    /// Print what is known to fail, and why, and run nothing
    #[arg(long)]
    known: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Backends {
    Bpf,
    Proc,
    Both,
}

impl Backends {
    fn list(self) -> &'static [Backend] {
        match self {
            Self::Bpf => &[Backend::Bpf],
            Self::Proc => &[Backend::Proc],
            Self::Both => &[Backend::Bpf, Backend::Proc],
        }
    }
}

impl Arguments {
    fn effort(&self) -> Effort {
        let usual = if self.full {
            Effort { runs: 20, seconds: 60 }
        } else {
            Effort { runs: 1, seconds: 4 }
        };
        Effort {
            runs: self.runs.unwrap_or(usual.runs),
            seconds: self.seconds.unwrap_or(usual.seconds),
        }
    }

    fn wants(&self, program: &Program) -> bool {
        match &self.only {
            Some(only) => program.name.contains(only.as_str()),
            None => self.full || program.mode == Mode::Quick,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.known {
        for known in known::TO_FAIL {
            let backend = if known.backend.is_empty() { "both" } else { known.backend };
            println!("{:16} {backend:5} {:9} {}", known.scenario, known.check, known.reason);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(why) = harness::missing() {
        eprintln!("innocents: {why}");
        return ExitCode::FAILURE;
    }
    let mut fine = true;
    for program in programs::ALL.iter().filter(|program| arguments.wants(program)) {
        let (file, package) = program.needs;
        if !Path::new(file).exists() {
            test_support::skip(format_args!("{} is not installed ({package})", program.name));
            continue;
        }
        for backend in arguments.backend.list() {
            fine &= match play_until_expected(program, *backend, arguments.effort()) {
                Ok(outcome) => report(program, *backend, &outcome),
                Err(error) => {
                    eprintln!("innocents: {}: {error:#}", program.name);
                    false
                }
            };
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The machine is busy with other things as well: what is not as expected gets two more chances.
/// What is known to fail is fixed only if it holds each time.
fn play_until_expected(
    program: &Program,
    backend: Backend,
    effort: Effort,
) -> anyhow::Result<Outcome> {
    let mut outcome = play(program, backend, effort)?;
    for _ in 0..2 {
        let mut verdicts = outcome.checks.iter().map(|check| verdict(program, backend, check));
        if verdicts.all(Verdict::is_fine) {
            break;
        }
        outcome = play(program, backend, effort)?;
    }
    Ok(outcome)
}

fn verdict(program: &Program, backend: Backend, check: &harness::outcome::Check) -> Verdict {
    Verdict::of(known::TO_FAIL, program.name, backend.name(), check)
}

fn report(program: &Program, backend: Backend, outcome: &Outcome) -> bool {
    let peak = outcome.peak;
    println!(
        "{:16} {:5} peak {} MiB (sum of RSS {} MiB), {} address spaces",
        program.name,
        backend.name(),
        peak.total() / MIB,
        peak.rss_sum / MIB,
        peak.spaces,
    );
    let mut fine = true;
    for check in &outcome.checks {
        let verdict = verdict(program, backend, check);
        println!("      {verdict:6} {:9} {}", check.name, check.found);
        fine &= verdict.is_fine();
    }
    fine
}
