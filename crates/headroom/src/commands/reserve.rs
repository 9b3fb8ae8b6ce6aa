//! `headroom reserve`: runs a command whose memory is reserved before it is used.

use std::process::ExitCode;

use anyhow::ensure;
use control::lease::LEASE_SOCKET_NAME;

use crate::arguments::{Globals, Preloaded};
use crate::helpers::client;
use crate::helpers::preload::Library;

/// The library that replaces the C library's malloc.
const LIBRARY: &str = "libtmalloc_preload.so";

/// Runs the command in place of this program; returns only on failure. The exit code is 127 if
/// there is no such program, 126 if it cannot be executed.
pub fn reserve(globals: &Globals, options: &Preloaded) -> anyhow::Result<ExitCode> {
    let library = Library::find(LIBRARY, options.library.as_deref())?;
    let socket = globals.oomd_socket.with_file_name(LEASE_SOCKET_NAME);
    ensure!(socket.exists(), client::not_running("headroom-oomd", &socket));
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    let variable = ("HEADROOM_LEASE_SOCKET", socket.as_os_str());
    library.run(&options.command, "memory cannot be reserved for it", &[variable])
}
