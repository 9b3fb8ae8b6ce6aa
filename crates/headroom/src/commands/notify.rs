//! `headroom notify`: kills and warnings on the desktop of whoever runs it.
//!
//! It subscribes like any user, and has `notify-send` do the rest: the daemon itself knows nothing
//! of desktops.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use control::oomd::{Event, Outcome, Why};
use control::subscription::Subscription;

use crate::arguments::Globals;
use crate::helpers::output::{self, printable};
use crate::helpers::size::Size;
use crate::helpers::{decision, user};

/// How soon a daemon that does not answer is asked again.
const RETRY: Duration = Duration::from_secs(5);
/// What shows a notice.
const PROGRAM: &str = "notify-send";

/// Runs until it is ended, or nobody reads what it says.
pub fn notify(globals: &Globals) -> anyhow::Result<()> {
    let mut reachable = true;
    loop {
        match follow(&globals.oomd_socket) {
            Ok(()) => return Ok(()),
            Err(End::Said(heard)) if heard || reachable => {
                eprintln!("headroom: headroom-oomd does not answer; asking again every {RETRY:?}");
                reachable = false;
            }
            Err(End::Said(_)) => {}
            Err(End::Output(error)) => return Err(error),
        }
        std::thread::sleep(RETRY);
    }
}

enum End {
    /// The daemon; and whether anything was heard of it.
    Said(bool),
    Output(anyhow::Error),
}

fn follow(socket: &Path) -> Result<(), End> {
    let events = Subscription::start(socket).map_err(|_| End::Said(false))?;
    for event in events {
        let event = event.map_err(|_| End::Said(true))?;
        if let Some(notice) = notice(&event)
            && show(&notice).map_err(End::Output)?.is_break()
        {
            return Ok(());
        }
    }
    Err(End::Said(true))
}

/// A message on the desktop.
struct Notice {
    title: String,
    body: String,
}

/// `None`: there is more to come about it.
fn notice(event: &Event) -> Option<Notice> {
    match event {
        Event::Near { account, group, cgroup, used_bytes, hard_bytes } => {
            let (used, hard) = (Size(*used_bytes), Size(*hard_bytes));
            let who = user::owner(account.uid, group.as_deref(), cgroup.as_deref());
            Some(Notice {
                title: format!("{who} is almost out of memory"),
                body: format!("{used} are in use of {hard}. Beyond that a process will be killed."),
            })
        }
        Event::Decided { why } if why.killer.is_none() => Some(told(why, "Out of memory")),
        Event::Decided { .. } => None,
        Event::Ended { why } if matches!(why.outcome, Outcome::Stuck { .. }) => {
            Some(told(why, "A process does not end"))
        }
        Event::Ended { why } => Some(told(why, "A process was killed")),
    }
}

fn told(why: &Why, title: &str) -> Notice {
    let body = format!("{}: {}", decision::headline(why), decision::outcome(&why.outcome));
    Notice { title: title.to_owned(), body: printable(&body) }
}

/// On the desktop, or as a line where there is none; `Break` when the reader has gone away.
fn show(notice: &Notice) -> anyhow::Result<ControlFlow<()>> {
    let Notice { title, body } = notice;
    let mut command = Command::new(PROGRAM);
    // Markup is understood in the text: what a process calls itself is not to be any.
    let body_text = body.replace('&', "&amp;").replace('<', "&lt;");
    command.args(["--app-name=Headroom", "--urgency=critical", "--", title.as_str(), &body_text]);
    match command.stdin(Stdio::null()).stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(ControlFlow::Continue(())),
        _ => output::print_on(&format!("{title}: {body}\n")),
    }
}
