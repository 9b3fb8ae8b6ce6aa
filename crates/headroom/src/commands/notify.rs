//! `headroom notify`: desktop notifications of kills and warnings.
//!
//! It subscribes like any other user and runs `notify-send`, so that the daemon does not depend on
//! a desktop.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use control::client::Subscription;
use control::oomd::{Event, LimitLevel, Outcome, Why};

use crate::arguments::Globals;
use crate::helpers::output::{self, printable};
use crate::helpers::quantity::Size;
use crate::helpers::{decision, user};

/// Interval of connection attempts.
const RETRY: Duration = Duration::from_secs(5);
const PROGRAM: &str = "notify-send";

/// Runs until interrupted, or until standard output is closed.
pub fn notify(globals: &Globals) -> anyhow::Result<()> {
    let mut reachable = true;
    loop {
        match follow(&globals.oomd_socket) {
            Ok(()) => return Ok(()),
            Err(End::Disconnected { connected }) if connected || reachable => {
                output::warn(format_args!(
                    "no connection to headroom-oomd: trying again every {RETRY:?}"
                ));
                reachable = false;
            }
            Err(End::Disconnected { .. }) => {}
            Err(End::Output(error)) => return Err(error),
        }
        std::thread::sleep(RETRY);
    }
}

enum End {
    /// No connection to the daemon, or it was lost after it had been `connected`.
    Disconnected {
        connected: bool,
    },
    Output(anyhow::Error),
}

fn follow(socket: &Path) -> Result<(), End> {
    let events = Subscription::start(socket).map_err(|_| End::Disconnected { connected: false })?;
    for event in events {
        let event = event.map_err(|_| End::Disconnected { connected: true })?;
        if let Some(notice) = notice(&event)
            && show(&notice).map_err(End::Output)?.is_break()
        {
            return Ok(());
        }
    }
    Err(End::Disconnected { connected: true })
}

/// A message on the desktop.
struct Notice {
    title: String,
    body: String,
}

/// Title and text for an event; `None`: a later event reports the outcome.
fn notice(event: &Event) -> Option<Notice> {
    match event {
        Event::SoftLimitCrossed(it) => {
            let (used, hard) = (Size(it.used_bytes), Size(it.hard_bytes));
            let who = user::owner(it.account, it.group.as_deref(), it.cgroup.as_deref());
            if let Some(seconds) = it.grace_s {
                return Some(Notice {
                    title: format!("the memory limit of {who} was lowered to {hard}"),
                    body: format!(
                        "{used} are in use. If it is still more in {seconds} s, a process will be \
                         killed."
                    ),
                });
            }
            Some(Notice {
                title: match it.level {
                    LimitLevel::Soft => format!("{who} is almost out of memory"),
                    LimitLevel::Warn => format!("{who} uses much of its memory"),
                },
                body: format!("{used} are in use of {hard}. Beyond that a process will be killed."),
            })
        }
        Event::Decided { why } if why.killer.is_none() => {
            Some(decision_notice(why, "Out of memory"))
        }
        Event::Decided { .. } => None,
        Event::Ended { why } if matches!(why.outcome, Outcome::Stuck { .. }) => {
            Some(decision_notice(why, "A process does not end"))
        }
        Event::Ended { why } => Some(decision_notice(why, "A process was killed")),
    }
}

fn decision_notice(why: &Why, title: &str) -> Notice {
    let body = format!("{}: {}", decision::headline(why), decision::outcome(&why.outcome));
    Notice { title: title.to_owned(), body: printable(&body) }
}

/// Shows it on the desktop, or prints a line if there is none; `Break` when the reader has closed
/// the pipe.
fn show(notice: &Notice) -> anyhow::Result<ControlFlow<()>> {
    let Notice { title, body } = notice;
    let mut command = Command::new(PROGRAM);
    // The desktop interprets markup in the text: escape it, since process names are arbitrary.
    let body_text = body.replace('&', "&amp;").replace('<', "&lt;");
    command.args(["--app-name=Headroom", "--urgency=critical", "--", title.as_str(), &body_text]);
    match command.stdin(Stdio::null()).stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(ControlFlow::Continue(())),
        _ => output::print_on(&format!("{title}: {body}\n")),
    }
}
