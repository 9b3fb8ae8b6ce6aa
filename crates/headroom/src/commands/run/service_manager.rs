//! The service manager that a session starts before the command.

use std::path::Path;
use std::process::{Command, Stdio};

use control::binderd::{Reply, Request};

use crate::helpers::client::call_binderd;

/// The command for a service manager, which the shell parses. Its input is empty, and its output
/// goes to standard error.
pub fn command(line: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line);
    command.stdin(Stdio::null());
    match std::os::fd::AsFd::as_fd(&std::io::stderr()).try_clone_to_owned() {
        Ok(stderr) => command.stdout(stderr),
        Err(_) => command.stdout(Stdio::null()),
    };
    command
}

/// Whether any device has a context manager.
pub fn is_there(socket: &Path) -> bool {
    match call_binderd(socket, &Request::Ls) {
        Ok(Reply::Ls { devices }) => devices.iter().any(|device| device.manager.is_some()),
        _ => false,
    }
}
