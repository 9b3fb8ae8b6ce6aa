//! Runs a command while the binder daemon of its bus is upgraded in a loop.
//!
//! Exit code 1: the command, or an upgrade, has failed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;
use e2e::upgrades::Upgrades;

/// Set by `headroom run`.
const SOCKET_VARIABLE: &str = "HEADROOM_BINDERD_SOCKET";

/// Runs a command while the binder daemon of its bus is upgraded to its own program in a loop, and
/// prints the number of upgrades and their pauses.
#[derive(Parser)]
struct Options {
    /// Control socket of the daemon [default: that of the session]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Repeat the command until there were so many upgrades
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    count: usize,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("upgrade_loop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(Options { socket, count, command }: &Options) -> Result<(), String> {
    let of_session = || std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from);
    let socket = socket.clone().or_else(of_session);
    let socket = socket.ok_or("there is no session: give the daemon's socket by --socket PATH")?;
    let (program, arguments) = command.split_first().ok_or("a command is missing")?;
    let shown = program.display();
    let upgrades = Upgrades::start(&socket);
    let mut runs = 0;
    let failure = loop {
        match Command::new(program).args(arguments).status() {
            Err(error) => break Some(format!("{shown}: {error}")),
            Ok(status) if !status.success() => break Some(format!("{shown}: {status}")),
            Ok(_) => runs += 1,
        }
        // Its reason is that of `stop`.
        let Ok(done) = upgrades.count() else { break None };
        if done >= *count {
            break None;
        }
    };
    let report = upgrades.stop();
    if let Some(failure) = failure {
        return Err(format!("{failure}, after {runs} runs; {report:?}"));
    }
    println!("{runs} runs, {}", report?);
    Ok(())
}
