//! Benchmarks over rings: the program starts itself again, with the library that carries the calls.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::bus::RINGS;
use e2e::{Bus, BusError, Mapping};

const LIBRARY: &str = "libbinder_ring_preload.so";
const PRELOAD: &str = "LD_PRELOAD";

/// Which private daemons accept rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepting {
    /// Those that the program starts with the option.
    Chosen,
    /// All.
    All,
}

/// Option of a daemon that accepts rings.
pub const ACCEPTED: &[&str] = &["--rings"];

/// Starts a private daemon with these options, without the library in it.
pub fn start_bus(mapping: Mapping, options: &[&str]) -> Result<Bus, BusError> {
    Bus::start_with(mapping, |command| {
        command.args(options).env_remove(PRELOAD);
    })
}

/// Returns in a process whose calls go over rings where the daemon accepts them. To be called
/// before the program starts others.
pub fn preload(accepting: Accepting) -> Result<()> {
    let program = std::env::current_exe().context("where am I?")?;
    let library = program.with_file_name(LIBRARY);
    if std::env::var_os(PRELOAD).is_some_and(|loaded| loaded == library.as_os_str()) {
        return Ok(());
    }
    ensure!(
        library.exists(),
        "{}: build it with `cargo build --release -p binder-ring-preload`",
        library.display()
    );
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(PRELOAD, library);
    if accepting == Accepting::All {
        command.env(RINGS, "1");
    }
    Err(command.exec()).context("cannot start again with rings")
}
