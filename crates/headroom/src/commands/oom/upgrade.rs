//! `headroom oom upgrade`: replaces the daemon's program.

use std::path::Path;

use control::oomd::{Reply, Request};
use serde::Serialize;

use crate::arguments::Globals;
use crate::helpers::client::{call_oomd, program_to_execute, unexpected};
use crate::helpers::output;

/// Runs `headroom oom upgrade`.
pub fn upgrade(globals: &Globals, program: Option<&Path>) -> anyhow::Result<()> {
    let program = program.map(program_to_execute).transpose()?;
    match call_oomd(&globals.oomd_socket, &Request::Upgrade { program })? {
        Reply::Upgraded { from, to, kills, pause_us } => {
            let upgraded = Upgraded { from, to, kills, pause_us };
            output::print_as(globals.format(), &upgraded, || upgraded.sentence())
        }
        reply => Err(unexpected(&reply)),
    }
}

/// Result of the request.
#[derive(Clone, Debug, Serialize)]
struct Upgraded {
    from: String,
    to: String,
    kills: u32,
    pause_us: u64,
}

impl Upgraded {
    fn sentence(&self) -> String {
        let Self { from, to, kills, pause_us } = self;
        let pause_ms = *pause_us as f64 / 1000.0;
        format!(
            "upgraded from {from} to {to}: {kills} kills in flight continue after a pause of \
             {pause_ms:.1} ms\n"
        )
    }
}
