//! Benchmarks over rings: the program starts itself again, with the library that carries the calls.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use e2e::{Bus, BusError, Mapping};

const LIBRARY: &str = "libbinder_ring_preload.so";
const PRELOAD: &str = "LD_PRELOAD";

/// Option of a daemon that accepts rings.
pub const ACCEPTED: &[&str] = &["--rings"];

/// Starts a private daemon with these options, without the library in it. `None`: this machine
/// cannot have one, as is printed.
pub fn start_bus(name: &str, mapping: Mapping, options: &[&str]) -> Result<Option<Bus>> {
    let started = Bus::start_with(mapping, |command| {
        command.args(options).env_remove(PRELOAD);
    });
    match started {
        Ok(bus) => Ok(Some(bus)),
        Err(BusError::Unavailable(reason)) => {
            eprintln!("{name}: skipped: {reason}");
            Ok(None)
        }
        Err(fault) => bail!("{name}: {fault}"),
    }
}

/// Returns in a process whose calls go over rings where the daemon accepts them. To be called
/// before the program starts others.
pub fn preload() -> Result<()> {
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
    Err(command.exec()).context("cannot start again with rings")
}
