//! `stats`: counters of commands and returns, and numbers of objects.

use std::fmt::Write;

use super::{ended, is_full};
use crate::debug::counters::{COMMANDS, Counters, RETURNS};
use crate::driver::Driver;
use crate::process::types::{Process, Thread};
use crate::write_read::held::ReplyComplete;
use crate::write_read::types::Work;

impl Driver {
    /// Counters of the whole driver, then of every open.
    pub fn stats(&self) -> String {
        let mut text = String::from("binder stats:\n");
        counters(&mut text, "", &self.statistics.all);
        self.objects(&mut text);
        for process in self.processes.values() {
            self.process_stats(&mut text, process);
        }
        ended(text)
    }

    fn objects(&self, text: &mut String) {
        let made = self.statistics.made;
        // A transaction is created together with the return that confirms it to its sender.
        for (kind, active, total) in [
            ("proc", self.processes.len(), made.processes),
            ("thread", self.threads.len(), made.threads),
            ("node", self.nodes.len(), made.nodes),
            ("ref", self.refs.len(), made.refs),
            ("death", self.deaths.len(), made.deaths),
            ("transaction", self.transactions.len(), made.transactions),
            ("transaction_complete", self.completes(), made.transactions),
            ("freeze", self.freeze_notifications.len(), made.freezes),
        ] {
            if active > 0 || total > 0 {
                let _ = writeln!(text, "{kind}: active {active} total {total}");
            }
        }
    }

    /// Number of these confirmations that were not read yet.
    fn completes(&self) -> usize {
        let is_one = |work: &Work| matches!(work, Work::TransactionComplete(_));
        let queued = |todo| self.queues.iter(todo).filter(|(_, work)| is_one(work)).count();
        let of_thread = |thread: &Thread| {
            queued(thread.todo) + usize::from(thread.reply_complete != ReplyComplete::Delivered)
        };
        self.threads.values().map(of_thread).sum()
    }

    fn process_stats(&self, text: &mut String, process: &Process) {
        if is_full(text) {
            return;
        }
        let refs = || process.refs.iter().map(|id| &self.refs[id]);
        let (strong, weak) = refs().fold((0, 0), |(strong, weak), one| {
            (strong + u64::from(one.strong), weak + u64::from(one.weak))
        });
        let area = process.area.as_ref();
        let pages = area.map_or(0, |area| area.ranges.size() / self.page_bytes());
        let (touched, idle) = area.map_or((0, 0), |area| (area.pages.touched(), area.pages.idle()));
        let pending = self.queues.iter(process.todo);
        let pending = pending.filter(|(_, work)| matches!(work, Work::Transaction(_))).count();
        let _ = write!(
            text,
            "proc {}\ncontext {}\n  threads: {}\n  requested threads: {}+{}/{}\n  \
             ready threads {}\n  \
             free async space {}\n  nodes: {}\n  refs: {} s {strong} w {weak}\n  buffers: {}\n  \
             pages: {}:{idle}:{}\n  pages high watermark: {touched}\n  \
             pending transactions: {pending}\n",
            process.opener.pid,
            self.contexts[process.context].name,
            process.threads.len(),
            process.requested_threads,
            process.started_threads,
            process.max_threads,
            process.idle.len(),
            area.map_or(0, |area| area.free_oneway),
            process.nodes.len(),
            process.refs.len(),
            area.map_or(0, |area| area.ranges.live_count()),
            touched - idle,
            pages - touched,
        );
        counters(text, "  ", &process.counters);
    }
}

fn counters(text: &mut String, indent: &str, counters: &Counters) {
    let commands = COMMANDS.iter().zip(counters.commands);
    for (name, count) in commands.chain(RETURNS.iter().zip(counters.returns)) {
        if count > 0 {
            let _ = writeln!(text, "{indent}{name}: {count}");
        }
    }
}
