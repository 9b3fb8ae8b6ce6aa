//! `headroom config import earlyoom`: earlyoom's options as Headroom's configuration.
//!
//! * [`words`]: the options out of a string or of `/etc/default/earlyoom`;
//! * [`options`]: earlyoom's command line;
//! * [`levels`]: the levels of memory and swap;
//! * [`translate`]: everything else, and the text of the file.

mod error;
mod levels;
mod options;
mod translate;
mod words;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use machine_memory::Meminfo;

use crate::arguments::{EarlyoomOptions, Globals};
use crate::helpers::output;
use error::ImportError;
use levels::Machine;
use translate::Imported;

/// The exit code for options that earlyoom would refuse, as for our own command line.
const BAD_OPTIONS: u8 = 2;

/// Runs the command.
pub fn earlyoom(globals: &Globals, arguments: &EarlyoomOptions) -> anyhow::Result<ExitCode> {
    let words = match &arguments.file {
        Some(path) => {
            let content = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            words::of_environment_file(&content)
        }
        None => words::of_command_line(&arguments.options),
    };
    match import(words, machine()?) {
        Ok(imported) => {
            output::print_as(globals.format(), &imported, || imported.toml.clone())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            output::warn(format_args!("{error}"));
            Ok(ExitCode::from(BAD_OPTIONS))
        }
    }
}

fn import(
    words: Result<Vec<String>, ImportError>,
    machine: Machine,
) -> Result<Imported, ImportError> {
    translate::translate(&options::parse(&words?)?, machine)
}

fn machine() -> anyhow::Result<Machine> {
    let info = Meminfo::read(Path::new("/proc"))?;
    let kib = |bytes: Option<u64>| bytes.unwrap_or(0) >> 10;
    Ok(Machine { memory_kib: kib(info.total), swap_kib: kib(info.swap_total) })
}
