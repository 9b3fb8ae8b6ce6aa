//! `headroom oom detach`: detaches the pinned BPF programs of a daemon that does not run any more.

use std::path::Path;

use crate::arguments::Globals;
use crate::helpers::output;

/// Runs the command.
pub fn detach(globals: &Globals, pins: &Path) -> anyhow::Result<()> {
    let found = remove_left_pins(pins)?;
    let report = serde_json::json!({ "pins": pins, "found": found });
    output::print_as(globals.format(), &report, || {
        let what = if found { "not enforced any more" } else { "nothing was left in force" };
        format!("{}: {what}\n", pins.display())
    })
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
