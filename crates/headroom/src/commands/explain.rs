//! `headroom explain`: the process that would be killed now, and the reason.

use std::fmt::Write;

use control::oomd::{Explanation, Reply, Request};

use crate::arguments::Globals;
use crate::helpers::client::{call_oomd, unexpected};
use crate::helpers::decision::{memory, others, process};
use crate::helpers::output::{self, count, printable};
use crate::helpers::user::User;

/// Runs the command.
pub fn explain(globals: &Globals, user: Option<&User>) -> anyhow::Result<()> {
    let account = user.map(|user| user.account(&globals.oomd_socket)).transpose()?;
    match call_oomd(&globals.oomd_socket, &Request::Explain { account })? {
        Reply::Explained(found) => output::print_as(globals.format(), &found, || text(&found)),
        reply => Err(unexpected(&reply)),
    }
}

fn text(found: &Explanation) -> String {
    let mut text = String::new();
    let mut line = |title: &str, content: String| {
        let _ = writeln!(text, "{title:<9} {content}");
    };
    line("now", printable(&found.state).to_string());
    match &found.victim {
        Some(victim) => line("victim", format!("{}, {}", process(victim), memory(victim))),
        None => line("victim", "none".into()),
    }
    if !found.others.is_empty() {
        line("and", others(&found.others));
    }
    let considered = count(found.considered, "process", "processes");
    line("because", format!("{} ({considered} looked at)", printable(&found.rule)));
    if let Some(next) = &found.runner_up {
        line("next", format!("{}, {}", process(next), memory(next)));
    }
    text
}

#[cfg(test)]
mod tests {
    use control::oomd::Candidate;

    use super::*;

    #[test]
    fn the_text_names_the_victim_the_reason_and_the_next_candidate() {
        let candidate = |pid, comm: &str| Candidate {
            pid,
            uid: None,
            comm: comm.to_owned(),
            rss_bytes: 64 << 20,
            swap_bytes: 0,
            unmapped_bytes: 0,
            grown_bytes: 0,
            details: None,
        };
        let mut found = Explanation {
            state: "900 MiB in use of 1024 MiB allowed".into(),
            victim: Some(candidate(7, "leak\n")),
            others: vec![candidate(8, "child")],
            runner_up: Some(candidate(9, "editor")),
            considered: 3,
            rule: "it grew".into(),
        };
        let shown = text(&found);
        for part in ["900 MiB in use", "pid 7", "pid 8", "pid 9", "it grew (3 processes looked at)"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(shown.lines().count(), 5, "a name cannot add lines: {shown}");
        found.victim = None;
        assert!(
            text(&found).lines().any(|line| line.starts_with("victim") && line.ends_with("none"))
        );
    }
}
