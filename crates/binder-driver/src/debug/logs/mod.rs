//! The texts of `binder_logs`, in the format of the kernel's driver, which tools parse.
//!
//! Values that this driver does not have are shown as the kernel's driver usually shows them: 0 for
//! addresses of the kernel's structures and lines of its source, 1 for the temporary reference that
//! printing a node takes, 0 for the age of a transaction (this driver has no clock).

mod state;
mod stats;
mod transactions;

use crate::driver::Driver;

/// Bytes at which a text ends: creating more would take milliseconds, in which no client is served.
const MAX_TEXT: usize = 1 << 20;
/// The last line of such a text.
const CUT: &str = "(the rest is left out)\n";

/// Whether no more is added.
fn is_full(text: &str) -> bool {
    text.len() >= MAX_TEXT
}

/// Ends a text.
fn ended(mut text: String) -> String {
    if is_full(&text) {
        let lines = text.as_bytes()[..MAX_TEXT].iter().rposition(|&byte| byte == b'\n');
        text.truncate(lines.map_or(0, |at| at + 1));
        text += CUT;
    }
    text
}

impl Driver {
    /// Pids that have a device open, ascending.
    pub fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.processes.values().map(|open| open.opener.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Whether a pid has a device open.
    pub fn has_pid(&self, pid: u32) -> bool {
        self.processes.values().any(|open| open.opener.pid == pid)
    }
}
