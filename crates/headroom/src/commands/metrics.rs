//! `headroom metrics`: counters of both daemons, for Prometheus.

use std::process::ExitCode;

use control::metrics;

use crate::arguments::Globals;
use crate::helpers::output;

/// Runs the command. The exit code is 1 if no daemon runs.
pub fn metrics(globals: &Globals) -> anyhow::Result<ExitCode> {
    let sources = metrics::collect(&globals.oomd_socket, &globals.binderd_socket);
    output::print_as(globals.format(), &sources, || metrics::text(&sources))?;
    let runs = sources.oomd.is_ok() || sources.binderd.is_ok();
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
