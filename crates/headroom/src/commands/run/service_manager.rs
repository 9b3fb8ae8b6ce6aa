//! The service manager that a session starts before the command.

use std::path::Path;
use std::process::{Command, Stdio};

use control::binderd::{Reply, Request};

use crate::commands::binder::service_manager::DEVICES;
use crate::helpers::client::call_binderd;

/// The command for a service manager, which the shell parses; an empty one is ours. Its input is
/// empty, and its output goes to standard error; ours prints its devices.
pub fn command(line: &str) -> Command {
    if line.is_empty() {
        let mut command = Command::new("/proc/self/exe");
        command.args(["binder", "service-manager"]).stdin(Stdio::null()).stdout(Stdio::null());
        return command;
    }
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).stdin(Stdio::null());
    match std::os::fd::AsFd::as_fd(&std::io::stderr()).try_clone_to_owned() {
        Ok(stderr) => command.stdout(stderr),
        Err(_) => command.stdout(Stdio::null()),
    };
    command
}

/// Whether the service manager of [`command`] serves: a device has a context manager, and where it
/// is ours all of its devices.
pub fn is_there(socket: &Path, line: &str) -> bool {
    let Ok(Reply::Ls { devices }) = call_binderd(socket, &Request::Ls) else { return false };
    let is_ours = |name: &str| line.is_empty() && DEVICES.contains(&name);
    let mut waited = devices.iter().filter(|device| is_ours(&device.name));
    devices.iter().any(|device| device.manager.is_some())
        && waited.all(|device| device.manager.is_some())
}
