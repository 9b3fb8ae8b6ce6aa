//! `headroom oom upgrade`: replaces the daemon's program.

use std::path::Path;

use control::oomd::{Reply, Request};
use serde::Serialize;

use crate::arguments::Globals;
use crate::helpers::client::{call_oomd, unexpected};
use crate::helpers::{output, upgrade};

/// Runs `headroom oom upgrade`.
pub fn upgrade(globals: &Globals, program: Option<&Path>) -> anyhow::Result<()> {
    let program = program.map(upgrade::resolve).transpose()?;
    match call_oomd(&globals.oomd_socket, &Request::Upgrade { program })? {
        Reply::Upgraded { from, to, kills, pause_us } => {
            let what = format!("{kills} kills in flight");
            let sentence = upgrade::sentence(&from, &to, &what, pause_us);
            let upgraded = Upgraded { from, to, kills, pause_us };
            output::print_as(globals.format(), &upgraded, || sentence)
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
