//! `headroom config`: the configuration of `headroom-oomd`.

mod import;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use control::Uid;
use control::configuration::{Configuration, MachineLevels};
use control::oomd::{Reply, Request, RuleMatches};

use crate::arguments::{ConfigCommand, Globals, ImportCommand};
use crate::helpers::client::{self, call_oomd, unexpected, with_user_names};
use crate::helpers::programs::beside_us;
use crate::helpers::quantity::Size;
use crate::helpers::{output, user};

/// Seconds; another value is shown.
const DEFAULT_GRACE_S: u32 = 60;

/// Runs the command.
pub fn config(globals: &Globals, command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Check { config } => check(globals, config.as_deref()),
        ConfigCommand::Reload => reload(globals),
        ConfigCommand::Import(ImportCommand::Earlyoom(options)) => {
            import::earlyoom(globals, options)
        }
    }
}

fn check(globals: &Globals, config: Option<&Path>) -> anyhow::Result<ExitCode> {
    let configuration = read(config)?;
    output::print_as(globals.format(), &configuration, || {
        // Without a daemon there is no scan.
        let in_force = client::oomd_status(&globals.oomd_socket);
        text(&configuration, &in_force.map(|status| status.rules).unwrap_or_default())
    })?;
    for warning in &configuration.warnings {
        output::warn(format_args!("{warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The configuration in the files. The daemon itself parses them, so that the result is what it
/// would use; the error is the daemon's message.
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

fn reload(globals: &Globals) -> anyhow::Result<ExitCode> {
    let reloaded = match call_oomd(&globals.oomd_socket, &Request::Reload)? {
        Reply::Reloaded(reloaded) => reloaded,
        reply => return Err(unexpected(&reply)),
    };
    output::print_as(globals.format(), &reloaded, || match reloaded.changes.len() {
        0 => "nothing has changed\n".to_owned(),
        _ => reloaded.changes.iter().map(|line| with_user_names(line) + "\n").collect(),
    })?;
    for problem in &reloaded.problems {
        output::warn(format_args!("not in force: {problem}"));
    }
    Ok(if reloaded.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(configuration: &Configuration, in_force: &[RuleMatches]) -> String {
    let Configuration { files, limits, machine, rules, notifications, .. } = configuration;
    let mut text = if files.is_empty() {
        "no file; these are the defaults\n".to_owned()
    } else {
        format!("{}\n", files.join(", "))
    };
    if configuration.observe {
        text.push_str("observe  no process is killed; decisions are recorded\n");
    }
    for limit in limits {
        let name = match limit.user.parse() {
            Ok(uid) => user::name(Uid(uid)),
            Err(_) if limit.user.starts_with('@') => {
                let members: Vec<String> = limit.members.iter().map(|it| user::name(*it)).collect();
                let members =
                    if members.is_empty() { "no members".into() } else { members.join(", ") };
                format!("{} ({members}, together)", output::printable(&limit.user))
            }
            Err(_) if limit.user.starts_with("each of @") => {
                let users = output::count(limit.members.len() as u32, "member", "members");
                format!("{} ({users} known so far)", output::printable(&limit.user))
            }
            Err(_) if limit.user.starts_with('/') => {
                format!("cgroups {}, each", output::printable(&limit.user))
            }
            Err(_) => {
                let [first, last] = configuration.ordinary_uids;
                format!("every ordinary user (uid {first} to {last}, and from 65536 on)")
            }
        };
        if limit.exempt {
            let _ = writeln!(text, "limit    {name}: none");
            continue;
        }
        let (hard, soft) = (Size(limit.hard_bytes), Size(limit.soft_bytes));
        let of = match &limit.counts[..] {
            [] => String::new(),
            counts => format!(", of {}", counts.join(", ")),
        };
        let warn = limit.warn_bytes.map(|bytes| format!(", warn {}", Size(bytes)));
        let warn = warn.unwrap_or_default();
        let signal =
            limit.soft_signal_ms.map(|ms| format!(" with SIGTERM {} s before SIGKILL", ms / 1000));
        let signal = signal.unwrap_or_default();
        let _ = writeln!(text, "limit    {name}: {hard}, soft {soft}{signal}{warn}{of}");
    }
    if configuration.grace_s != DEFAULT_GRACE_S {
        let _ = writeln!(text, "grace    {} s for lowered limits", configuration.grace_s);
    }
    if configuration.backstop {
        text.push_str("backstop systemd limits the slice of each limited user except root\n");
    }
    match machine {
        Some(levels) => describe_levels(&mut text, levels),
        None => text.push_str("machine  not monitored\n"),
    }
    for rule in rules {
        let in_force = in_force.iter().find(|it| it.rule == *rule).and_then(|it| it.processes);
        let matches = in_force.map(|processes| {
            format!(" (matches {})", output::count(processes, "process", "processes"))
        });
        let _ =
            writeln!(text, "rule     {}{}", output::printable(rule), matches.unwrap_or_default());
    }
    for line in notifications {
        let _ = writeln!(text, "notify   {}", output::printable(line));
    }
    text
}

fn describe_levels(text: &mut String, levels: &MachineLevels) {
    let MachineLevels { soft, hard, swap_soft, swap_hard, .. } = levels;
    let _ = writeln!(text, "machine  SIGTERM below {soft} of memory and {swap_soft} of swap");
    let _ = writeln!(text, "machine  SIGKILL below {hard} of memory and {swap_hard} of swap");
    if levels.forecast_ms > 0 {
        let _ = writeln!(
            text,
            "machine  SIGKILL if memory will be exhausted within {} ms",
            levels.forecast_ms
        );
    }
    if levels.stall_ms > 0 {
        let (percent, time) = (levels.stall_percent, Duration::from_millis(levels.stall_ms));
        let _ = writeln!(
            text,
            "machine  SIGKILL if all tasks stalled for {percent} % of {time:?} (PSI full)"
        );
    }
    if levels.max_kills_window_ms > 0 {
        let (most, time) = (levels.max_kills, Duration::from_millis(levels.max_kills_window_ms));
        let _ = writeln!(
            text,
            "machine  after {most} kills within {time:?} only below {hard} and by the forecast"
        );
    }
}

#[cfg(test)]
mod tests {
    use control::configuration::ConfiguredLimit;

    use super::*;

    #[test]
    fn a_configuration_is_a_line_a_thing() {
        let limit = |user: &str| ConfiguredLimit {
            user: user.into(),
            hard_bytes: 2 << 30,
            soft_bytes: 1 << 30,
            warn_bytes: (user == "*").then_some(1 << 29),
            soft_signal_ms: (user == "*").then_some(10_000),
            exempt: user == "4000000009",
            counts: if user == "*" { vec!["anon".into(), "file".into()] } else { Vec::new() },
            members: if user == "@both" {
                vec![Uid(4_000_000_001), Uid(4_000_000_002)]
            } else {
                Vec::new()
            },
        };
        let configuration = Configuration {
            files: vec!["/a.toml".into(), "/a.d/b.toml".into()],
            observe: true,
            backstop: true,
            limits: ["4000000000", "4000000009", "*", "each of @x", "@both", "/a/ci-*"]
                .map(limit)
                .to_vec(),
            grace_s: 5,
            machine: None,
            rules: vec!["avoid: every process".into(), "never: uid 0".into()],
            notifications: vec!["metrics on /run/m".into()],
            ordinary_uids: [Uid(1000), Uid(2000)],
            warnings: Vec::new(),
        };
        let expected = "/a.toml, /a.d/b.toml\n\
                        observe  no process is killed; decisions are recorded\n\
                        limit    4000000000: 2.0 GiB, soft 1.0 GiB\n\
                        limit    4000000009: none\n\
                        limit    every ordinary user (uid 1000 to 2000, and from 65536 on): \
                        2.0 GiB, soft 1.0 GiB with SIGTERM 10 s before SIGKILL, \
                        warn 512.0 MiB, of anon, file\n\
                        limit    each of @x (0 members known so far): 2.0 GiB, soft 1.0 GiB\n\
                        limit    @both (4000000001, 4000000002, together): 2.0 GiB, soft 1.0 GiB\n\
                        limit    cgroups /a/ci-*, each: 2.0 GiB, soft 1.0 GiB\n\
                        grace    5 s for lowered limits\n\
                        backstop systemd limits the slice of each limited user except root\n\
                        machine  not monitored\n\
                        rule     avoid: every process (matches 1 process)\n\
                        rule     never: uid 0\n\
                        notify   metrics on /run/m\n";
        let rule = "avoid: every process".to_owned();
        let in_force = [RuleMatches { rule, processes: Some(1) }];
        assert_eq!(text(&configuration, &in_force), expected);
    }
}
