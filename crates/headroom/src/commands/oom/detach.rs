//! `headroom oom detach`: ends the limits of a daemon that does not run any more: detaches its
//! pinned BPF programs, and removes the file for the next daemon.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;

use crate::arguments::Globals;
use crate::helpers::output;

/// Runs the command.
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
    anyhow::bail!("{pins}: the static headroom cannot use BPF; install the package headroom")
}
