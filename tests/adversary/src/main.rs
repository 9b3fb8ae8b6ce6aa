//! `adversary`: plays attacks of ordinary users against a `headroom-oomd` of its own, and says what
//! came of them.
//!
//! Each attack is a program in `programs/`, run as a user with a limit. What the user holds is
//! measured without Headroom (`harness::memory`); how promptly the daemon answers root, and what
//! CPU time it uses, is measured meanwhile. What is known to fail is in `known.rs`; the run fails
//! when something else does, and when an entry of that table is fixed.

mod attack;
mod attacks;
mod known;
mod run;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use harness::daemon::Backend;
use harness::outcome::Verdict;

use crate::run::{Outcome, play};

/// Plays attacks on limits against the real daemon
#[derive(Parser)]
struct Arguments {
    /// Only attacks whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// How the daemon watches memory
    #[arg(long, value_enum, default_value_t = Backends::Both)]
    backend: Backends,
    /// Times that each attack is played; what fails is played twice more in any case
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Print what is known to fail, and why, and play nothing
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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.known {
        for known in known::TO_FAIL {
            let backend = if known.backend.is_empty() { "both" } else { known.backend };
            println!("{:24} {backend:5} {:14} {}", known.scenario, known.check, known.reason);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(why) = harness::missing() {
        eprintln!("adversary: {why}");
        return ExitCode::FAILURE;
    }
    let programs = match run::copy_programs() {
        Ok(programs) => programs,
        Err(error) => {
            eprintln!("adversary: cannot copy the attacks: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let mut fine = true;
    for _ in 0..arguments.rounds {
        match round(&arguments) {
            Ok(round) => fine &= round,
            Err(error) => {
                eprintln!("adversary: {error:#}");
                fine = false;
            }
        }
    }
    drop(programs);
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Every attack once. `false`: something is not as it is expected.
fn round(arguments: &Arguments) -> anyhow::Result<bool> {
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only));
    let mut fine = true;
    run::print_header();
    for backend in arguments.backend.list() {
        for attack in attacks::ALL.iter().filter(|attack| wanted(attack.name)) {
            let outcome = play_until_expected(attack, *backend)?;
            fine &= report(attack.name, *backend, &outcome);
        }
    }
    Ok(fine)
}

/// The machine is busy with other things as well: what is not as expected gets two more chances.
/// What is known to fail is fixed only if it holds each time.
fn play_until_expected(attack: &attack::Attack, backend: Backend) -> anyhow::Result<Outcome> {
    let mut outcome = play(attack, backend)?;
    for _ in 0..2 {
        let expected = outcome
            .checks
            .iter()
            .all(|check| Verdict::of(known::TO_FAIL, attack.name, backend.name(), check).is_fine());
        if expected {
            break;
        }
        outcome = play(attack, backend)?;
    }
    Ok(outcome)
}

fn report(name: &str, backend: Backend, outcome: &Outcome) -> bool {
    outcome.print(name, backend);
    let mut fine = true;
    for check in &outcome.checks {
        let verdict = Verdict::of(known::TO_FAIL, name, backend.name(), check);
        println!("      {verdict:6} {:14} {}", check.name, check.found);
        fine &= verdict.is_fine();
    }
    fine
}
