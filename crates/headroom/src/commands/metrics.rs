//! `headroom metrics`: counters of both daemons, for Prometheus.

use std::process::ExitCode;

use control::metrics::{self, NameOf};

use crate::arguments::{Globals, UserLabels};
use crate::helpers::{output, user};

/// Runs the command. The exit code is 1 if no daemon runs.
pub fn metrics(globals: &Globals, labels: UserLabels) -> anyhow::Result<ExitCode> {
    let sources = metrics::collect(&globals.oomd_socket, &globals.binderd_socket);
    let names: Option<NameOf> = match labels {
        UserLabels::Uid => None,
        UserLabels::UidAndName => Some(|uid| Some(user::name(uid))),
    };
    output::print_as(globals.format(), &sources, || metrics::text(&sources, names))?;
    let runs = sources.oomd.is_ok() || sources.binderd.is_ok();
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
