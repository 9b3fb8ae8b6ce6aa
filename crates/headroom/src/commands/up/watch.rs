//! Watches a daemon through its control socket, and prints changes. Degradations are not printed
//! here: the daemons log them on standard error.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{binderd, oomd};

use crate::helpers::{client, decision, output, status_line};

/// Interval of the requests to a daemon.
const INTERVAL: Duration = Duration::from_millis(300);
/// Maximum of kills that are printed per interval, one line each.
const MAX_KILLS_PRINTED: u32 = 16;

/// Set once the daemon has answered.
#[derive(Clone, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// The daemon has answered.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// State of a daemon, and the line to print when it changes.
struct Summary {
    pid: u32,
    line: String,
    /// Compared with the previous one; the line is printed if it differs.
    key: String,
    kills: u64,
}

/// Socket and query for one kind of daemon.
pub struct Watcher {
    socket: PathBuf,
    query: fn(&Path) -> anyhow::Result<Summary>,
}

/// Watches `headroom-binderd`.
pub fn binder(socket: &Path) -> Watcher {
    fn query(socket: &Path) -> anyhow::Result<Summary> {
        let status: binderd::Status = client::binderd_status(socket)?;
        Ok(Summary {
            pid: status.pid,
            line: status_line::binderd_line(&status),
            key: format!("{} {} {}", status.mount, status.mapping, status.devices),
            kills: 0,
        })
    }
    Watcher { socket: socket.to_owned(), query }
}

/// Watches `headroom-oomd`.
pub fn oom(socket: &Path) -> Watcher {
    fn query(socket: &Path) -> anyhow::Result<Summary> {
        let status: oomd::Status = client::oomd_status(socket)?;
        Ok(Summary {
            pid: status.pid,
            line: status_line::oomd_line(&status),
            key: format!("{} {} {}", status.notifier, status.attached, status.limited_users),
            kills: status.kills,
        })
    }
    Watcher { socket: socket.to_owned(), query }
}

impl Watcher {
    /// Starts a thread that runs until this process exits. Answers of another process than `pid` (a
    /// daemon that was running before) are ignored.
    pub fn spawn(self, name: &'static str, pid: u32) -> Ready {
        let ready = Ready::default();
        let set = ready.clone();
        std::thread::spawn(move || self.watch(name, pid, &set));
        ready
    }

    fn watch(&self, name: &str, pid: u32, ready: &Ready) {
        let mut last: Option<Summary> = None;
        loop {
            if let Some(summary) =
                (self.query)(&self.socket).ok().filter(|summary| summary.pid == pid)
            {
                self.print_changes(name, last.as_ref(), &summary);
                ready.0.store(true, Ordering::Release);
                last = Some(summary);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn print_changes(&self, name: &str, last: Option<&Summary>, summary: &Summary) {
        if last.is_none_or(|last| last.key != summary.key) {
            print_line(name, &summary.line);
        }
        let kills = summary.kills.saturating_sub(last.map_or(0, |last| last.kills));
        if kills > 0 {
            let number = u32::try_from(kills).unwrap_or(u32::MAX).min(MAX_KILLS_PRINTED);
            let records = client::records(&self.socket, number).unwrap_or_default();
            for record in records.iter().rev() {
                print_line(
                    name,
                    &format!("{}; see `headroom why {}`", decision::headline(record), record.id),
                );
            }
        }
    }
}

/// Prints a line under a daemon's name.
pub fn print_line(name: &str, text: &str) {
    // A closed output is not a reason to stop the daemons.
    let _ = output::print(&format!("{name:<9} {text}\n"));
}
