//! Exit codes of commands that run another command, as `env`, `timeout` and `docker run` use them.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// There is no bus, or the session failed otherwise.
pub const RUN_FAILED: u8 = 125;
/// The command exists and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;

/// Exit code for a command that could not be executed.
pub fn of_failed_exec(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// The command's exit code, or 128 + n if signal n killed it.
pub fn of(ended: ExitStatus) -> u8 {
    let killed = ended.signal().map(|signal| 128 + signal);
    ended.code().or(killed).unwrap_or(RUN_FAILED.into()) as u8
}
