//! What the upgrades of both daemons have in common.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The absolute path of a program to execute. Resolved here: a daemon must not wait for a
/// filesystem that it serves itself.
pub fn resolve(program: &Path) -> anyhow::Result<PathBuf> {
    program.canonicalize().with_context(|| format!("{}: cannot resolve it", program.display()))
}

/// Result for people: between which versions, what continues, and the pause, microseconds.
pub fn sentence(from: &str, to: &str, what: &str, pause_us: u64) -> String {
    let pause_ms = pause_us as f64 / 1000.0;
    format!("upgraded from {from} to {to}: {what} continue after a pause of {pause_ms:.1} ms\n")
}
