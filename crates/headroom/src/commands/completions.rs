//! `headroom completions`: a completion script for a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::helpers::output;

/// Runs the command.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "headroom", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
