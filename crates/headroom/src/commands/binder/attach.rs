//! `headroom binder attach`: runs a command whose calls are carried by shared memory.

use std::process::ExitCode;

use crate::arguments::Preloaded;
use crate::helpers::preload::{self, Library};

/// Runs the command in place of this program; returns only on failure.
pub fn attach(options: &Preloaded) -> anyhow::Result<ExitCode> {
    let library = Library::find(preload::RINGS, options.library.as_deref())?;
    library.run(&options.command, "its calls would all be requests", &[])
}
