//! `adversary`: carries out attacks of ordinary users against a private `headroom-oomd`, and
//! reports the results.
//!
//! Each attack is a program in `programs/`, run as a user with a limit. The user's memory is
//! measured without Headroom (`harness::memory`); the daemon's response time for root, and its CPU
//! time, are measured meanwhile. Known failures are in `expected_failures.rs`; the run fails when
//! another check fails, and when an entry of that table is fixed.

mod attack;
mod attacks;
mod expected_failures;
mod latency;
mod run;
mod witnesses;

use std::process::ExitCode;

use clap::Parser;
use harness::backend::Backends;

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
    /// Measure root's requests and another user's kills instead, without and under each attack, at
    /// SCHED_FIFO, in this number of passes
    #[arg(long)]
    latency: Option<u32>,
    /// Print the checks that are expected to fail, and why, and play nothing
    #[arg(long)]
    expected_failures: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.expected_failures {
        expected_failures::TABLE.print();
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

/// Carries out every attack once. `false`: a result is not as expected.
fn round(arguments: &Arguments) -> anyhow::Result<bool> {
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only));
    let mut fine = true;
    match arguments.latency {
        Some(_) => latency::print_header(),
        None => run::print_header(),
    }
    for backend in arguments.backend.list() {
        for attack in attacks::ALL.iter().filter(|attack| wanted(attack.name)) {
            if let Some(why) = attack.witness.missing() {
                // Not `test_support::skip`: the reasons are properties of the machine.
                println!("{:24} skipped: {why}", attack.name);
                continue;
            }
            fine &= match arguments.latency {
                Some(passes) => latency::measure(attack, *backend, passes)?,
                None => expected_failures::TABLE
                    .run(attack.name, *backend, || run::play(attack, *backend))?,
            };
        }
    }
    Ok(fine)
}
