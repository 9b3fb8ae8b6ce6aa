//! The configuration of `headroom-oomd`, as the daemon reads it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use control::configuration::Configuration;

use super::programs::beside_us;

/// The content of the files. The daemon itself parses them, so that the result is what it would
/// use; the error is the daemon's message.
pub fn read(config: Option<&Path>) -> anyhow::Result<Configuration> {
    let daemon = beside_us("headroom-oomd")?;
    let mut command = Command::new(&daemon);
    command.arg("--check-config").stdin(Stdio::null());
    if let Some(path) = config {
        command.arg("--config").arg(path);
    }
    let done = command.output().with_context(|| format!("cannot start {}", daemon.display()))?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        let stderr = stderr.trim();
        bail!("{}", stderr.strip_prefix("headroom-oomd: ").unwrap_or(stderr));
    }
    serde_json::from_slice(&done.stdout)
        .context("cannot understand headroom-oomd; are daemon and command of one version?")
}
