//! `headroom binder attach`: runs a command whose calls are carried by shared memory.

use std::process::ExitCode;

use crate::arguments::Preloaded;
use crate::helpers::preload::Library;

/// The library that replaces the C library's ioctl.
const LIBRARY: &str = "libbinder_ring_preload.so";

/// Runs the command in place of this program; returns only on failure.
pub fn attach(options: &Preloaded) -> anyhow::Result<ExitCode> {
    let library = Library::find(LIBRARY, options.library.as_deref())?;
    library.run(&options.command, "its calls would all be requests", &[])
}
