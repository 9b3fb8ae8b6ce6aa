//! `headroom run-oom-killer`: makes the daemon check all limits now.

use control::oomd::{Reply, Request};

use crate::arguments::Globals;
use crate::helpers::client::{call_oomd, unexpected};
use crate::helpers::user::User;
use crate::helpers::{decision, output};

/// Runs the command.
pub fn run_oom_killer(globals: &Globals, user: Option<&User>) -> anyhow::Result<()> {
    let account = user.map(|user| user.account(&globals.oomd_socket)).transpose()?;
    match call_oomd(&globals.oomd_socket, &Request::RunOomKiller { account })? {
        Reply::OomKillerRan { kills } => {
            let document = serde_json::json!({ "decisions": kills });
            output::print_as(globals.format(), &document, || match (&kills[..], user) {
                ([], None) => "no limit is exceeded\n".into(),
                ([], Some(user)) => format!("{user} does not exceed its limit\n"),
                (kills, _) => decision::explain_all(kills),
            })
        }
        reply => Err(unexpected(&reply)),
    }
}
