//! `innocents`: runs ordinary programs under a limit, with a private `headroom-oomd`.
//!
//! The actual memory of a program is measured without Headroom (`harness::memory`). At 125 % and
//! 110 % of its peak Headroom must send no signal; at 90 % and 60 % exactly one, to the process
//! that grows. Known failures are in `expected_failures.rs`; the run fails when another check
//! fails, and when an entry of that table is fixed.

mod expected_failures;
mod programs;
mod run;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use harness::backend::Backends;
use harness::users::Uid;

use crate::programs::{Mode, Program};
use crate::run::{Effort, USER, play};

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
    /// Uid of the user that runs the programs, which must have no other processes
    #[arg(long, default_value_t = USER.0)]
    user: u32,
    /// Print the checks that are expected to fail, and why, and run nothing
    #[arg(long)]
    expected_failures: bool,
}

impl Arguments {
    fn effort(&self) -> Effort {
        let (runs, seconds) = if self.full { (20, 60) } else { (1, 4) };
        Effort {
            runs: self.runs.unwrap_or(runs),
            seconds: self.seconds.unwrap_or(seconds),
            uid: Uid(self.user),
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
    if arguments.expected_failures {
        expected_failures::TABLE.print();
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
            let run_once = || play(program, *backend, arguments.effort());
            fine &= match expected_failures::TABLE.run(program.name, *backend, run_once) {
                Ok(expected) => expected,
                Err(error) => {
                    eprintln!("innocents: {}: {error:#}", program.name);
                    false
                }
            };
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
