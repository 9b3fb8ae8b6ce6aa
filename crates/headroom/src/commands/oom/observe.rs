//! `headroom oom observe`: runs a daemon that selects victims but does not kill them.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::anyhow;

use crate::arguments::Globals;
use crate::helpers::programs::beside_us;

/// Executes the daemon in place of this program.
pub fn observe(globals: &Globals, config: Option<&Path>) -> anyhow::Result<()> {
    let mut command = Command::new(beside_us("headroom-oomd")?);
    command.arg("--observe").arg("--socket").arg(&globals.oomd_socket);
    command.arg("--reclaimer").arg(&globals.binderd_socket);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let error = command.exec();
    Err(anyhow!("cannot start {}: {error}", command.get_program().display()))
}
