//! `headroom oom`: commands about the OOM manager itself.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, anyhow};

use crate::arguments::Globals;
use crate::helpers::output;
use crate::helpers::programs::beside_us;

/// Executes, in place of this program, a daemon that selects victims but does not kill them.
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

/// Ends the limits of a daemon that does not run any more: detaches its pinned BPF programs, and
/// removes the file for the next daemon.
pub fn detach(globals: &Globals, pins: &Path) -> anyhow::Result<()> {
    let found = remove_left_pins(pins)?;
    // After the pins, which a daemon that runs has locked.
    let file = globals.oomd_socket.with_file_name(control::LIMITS_FILE);
    let found = remove_left_file(&file)? || found;
    let report = serde_json::json!({ "pins": pins, "found": found });
    output::print_as(globals.format(), &report, || {
        let what = if found { "not enforced any more" } else { "nothing was left in force" };
        format!("{}: {what}\n", pins.display())
    })
}

fn remove_left_file(file: &Path) -> anyhow::Result<bool> {
    match std::fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{}: cannot remove it", file.display())),
    }
}

#[cfg(feature = "bpf")]
fn remove_left_pins(pins: &Path) -> anyhow::Result<bool> {
    Ok(memory_watch::remove_left_pins(pins)?)
}

#[cfg(not(feature = "bpf"))]
fn remove_left_pins(pins: &Path) -> anyhow::Result<bool> {
    let pins = pins.display();
    let remedy = crate::helpers::programs::Remedy::Install.of("headroom");
    anyhow::bail!("{pins}: the static headroom cannot use BPF; {remedy}")
}
