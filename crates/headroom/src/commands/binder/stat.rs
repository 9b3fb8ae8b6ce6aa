//! `headroom binder stat`: the driver's counters, in total or per second.

use std::fmt::Write;
use std::time::Duration;

use control::binderd::{PAGE_BYTES, Reply, Request, Stat};

use crate::arguments::Globals;
use crate::helpers::client::{call_binderd, unexpected};
use crate::helpers::output::{self, Format};
use crate::helpers::quantity::Size;

/// Lines of the table between two headers.
const LINES_A_HEAD: u32 = 20;

/// Runs `headroom binder stat`: with an interval, one line for each, `count` lines at most.
pub fn stat(globals: &Globals, seconds: Option<f64>, count: Option<u32>) -> anyhow::Result<()> {
    let mut last = counts(globals)?;
    let Some(seconds) = seconds else {
        return output::print_as(globals.format(), &last, || totals(&last));
    };
    for line in 0..count.unwrap_or(u32::MAX) {
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let now = counts(globals)?;
        let rates = Rates::between(&last, &now, seconds);
        let reader = if globals.format() == Format::Json {
            output::print_json_line(&rates)?
        } else {
            let head = if line % LINES_A_HEAD == 0 { HEAD } else { "" };
            output::print_on(&format!("{head}{}", rates.line()))?
        };
        if reader.is_break() {
            break;
        }
        last = now;
    }
    Ok(())
}

fn counts(globals: &Globals) -> anyhow::Result<Stat> {
    match call_binderd(&globals.binderd_socket, &Request::Stat)? {
        Reply::Stat(counts) => Ok(counts),
        reply => Err(unexpected(&reply)),
    }
}

fn totals(counts: &Stat) -> String {
    let status = &counts.status;
    let mut text = format!(
        "{} devices, {} opens, {} rings, {} transactions; {} of buffer memory, {} idle, {} given \
         back\n",
        status.devices,
        status.processes,
        status.rings,
        status.transactions,
        Size(status.touched_pages * PAGE_BYTES),
        Size(status.idle_pages * PAGE_BYTES),
        Size(status.reclaimed_pages * PAGE_BYTES),
    );
    for (name, count) in counts.commands.iter().chain(&counts.returns).filter(|(_, n)| *n > 0) {
        let _ = writeln!(text, "{count:>12}  {name}");
    }
    text
}

const HEAD: &str =
    "    calls/s  replies/s  failed/s    dead/s  frozen/s   freed/s  opens    memory      idle\n";

/// Rates of one interval, per second.
#[derive(Debug, PartialEq, serde::Serialize)]
struct Rates {
    calls: f64,
    replies: f64,
    failed: f64,
    dead: f64,
    frozen: f64,
    freed: f64,
    opens: u32,
    touched_bytes: u64,
    idle_bytes: u64,
}

impl Rates {
    fn between(before: &Stat, after: &Stat, seconds: f64) -> Self {
        let of = |counts: &Stat, name: &str| {
            let mut all = counts.commands.iter().chain(&counts.returns);
            all.find(|(other, _)| other == name).map_or(0, |(_, count)| *count)
        };
        let rate = |names: &[&str]| {
            let sum: u32 =
                names.iter().map(|name| of(after, name).wrapping_sub(of(before, name))).sum();
            f64::from(sum) / seconds
        };
        Self {
            calls: rate(&["BC_TRANSACTION", "BC_TRANSACTION_SG"]),
            replies: rate(&["BC_REPLY", "BC_REPLY_SG"]),
            failed: rate(&["BR_FAILED_REPLY"]),
            dead: rate(&["BR_DEAD_REPLY"]),
            frozen: rate(&["BR_FROZEN_REPLY"]),
            freed: rate(&["BC_FREE_BUFFER"]),
            opens: after.status.processes,
            touched_bytes: after.status.touched_pages * PAGE_BYTES,
            idle_bytes: after.status.idle_pages * PAGE_BYTES,
        }
    }

    fn line(&self) -> String {
        format!(
            "{:>11.0}{:>11.0}{:>10.0}{:>10.0}{:>10.0}{:>10.0}{:>7}{:>10}{:>10}\n",
            self.calls,
            self.replies,
            self.failed,
            self.dead,
            self.frozen,
            self.freed,
            self.opens,
            Size(self.touched_bytes),
            Size(self.idle_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use control::binderd::Status;

    use super::*;

    fn counts(calls: u32, sg: u32, dead: u32) -> Stat {
        let named = |pairs: &[(&str, u32)]| {
            pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        Stat {
            commands: named(&[
                ("BC_TRANSACTION", calls),
                ("BC_TRANSACTION_SG", sg),
                ("BC_REPLY", 0),
            ]),
            returns: named(&[("BR_DEAD_REPLY", dead)]),
            status: Status {
                version: String::new(),
                protocol: control::PROTOCOL_VERSION,
                pid: 1,
                mount: String::new(),
                mapping: String::new(),
                devices: 3,
                processes: 4,
                transactions: 5,
                touched_pages: 2,
                idle_pages: 1,
                reclaimed_pages: 0,
                owner_quota_bytes: 0,
                largest_owner_bytes: 0,
                rings: 6,
                degraded: Vec::new(),
            },
        }
    }

    #[test]
    fn rates_are_differences_and_counters_may_start_again() {
        let rates = Rates::between(&counts(u32::MAX, 10, 0), &counts(9, 20, 3), 2.0);
        assert_eq!((rates.calls, rates.dead, rates.replies), (10.0, 1.5, 0.0));
        assert_eq!(rates.line().len(), HEAD.len());
    }

    #[test]
    fn totals_leave_out_what_never_happened() {
        let text = totals(&counts(7, 0, 1));
        assert!(text.starts_with("3 devices, 4 opens, 6 rings, 5 transactions; 8.0 KiB of"));
        assert!(text.contains("7  BC_TRANSACTION\n") && !text.contains("BC_REPLY"), "{text}");
    }
}
