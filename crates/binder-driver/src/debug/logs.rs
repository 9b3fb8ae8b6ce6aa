//! The texts of `binder_logs`, in the format of the kernel's driver, which tools parse.
//!
//! Values that this driver does not have are shown as the kernel's driver usually shows them: 0 for
//! addresses of the kernel's structures and lines of its source, 1 for the temporary reference that
//! printing a node takes, 0 for the age of a transaction (this driver has no clock).

use std::fmt::Write;

use binder_uapi::returns::BR_TRANSACTION_COMPLETE;

use crate::debug::counters::{COMMANDS, Counters, RETURNS};
use crate::debug::transaction_log::{LogEntry, Refusal, Ring};
use crate::driver::{BufferId, Driver, NodeId, ProcessId, RefId, ThreadId, TransactionId};
use crate::notifications::death::DeathState;
use crate::process::Process;
use crate::process::thread::Thread;
use crate::transaction::Kind;
use crate::write_read::held::ReplyComplete;
use crate::write_read::queue::QueueId;
use crate::write_read::work::Work;

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

/// Level of detail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Everything,
    /// Only pending transactions.
    Transactions,
}

/// Line prefixes for the items of a queue.
struct LinePrefix {
    transaction: &'static str,
    other: &'static str,
}

impl LinePrefix {
    const PROCESS: Self = Self { transaction: "  pending transaction", other: "  " };
    const THREAD: Self = Self { transaction: "    pending transaction", other: "    " };
    const NODE: Self = Self { transaction: "    pending async transaction", other: "    " };
}

/// `state`, `transactions` and `proc/PID`: all opens, objects and pending transactions.
impl Driver {
    /// The whole state.
    pub fn state(&self) -> String {
        let mut text = String::from("binder state:\n");
        let mut dead = self.nodes.iter().filter(|(_, node)| node.owner.is_none()).peekable();
        if dead.peek().is_some() {
            text += "dead nodes:\n";
        }
        for (id, _) in dead {
            self.print_node(&mut text, id);
        }
        self.print_processes(&mut text, Detail::Everything, |_| true);
        ended(text)
    }

    /// Pending transactions only.
    pub fn transactions(&self) -> String {
        let mut text = String::from("binder transactions:\n");
        self.print_processes(&mut text, Detail::Transactions, |_| true);
        ended(text)
    }

    /// The whole state of one process, with all its opens.
    pub fn process_state(&self, pid: u32) -> String {
        let mut text = String::from("binder proc state:\n");
        self.print_processes(&mut text, Detail::Everything, |of| of == pid);
        ended(text)
    }

    fn print_processes(&self, text: &mut String, detail: Detail, wanted: impl Fn(u32) -> bool) {
        let processes = self.processes.iter();
        for (id, _) in processes.filter(|(_, process)| wanted(process.opener.pid)) {
            self.print_process(text, id, detail);
        }
    }

    fn print_process(&self, text: &mut String, id: ProcessId, detail: Detail) {
        if is_full(text) {
            return;
        }
        let process = &self.processes[id];
        let context = &self.contexts[process.context].name;
        let start = text.len();
        let _ = writeln!(text, "proc {}\ncontext {context}", process.opener.pid);
        let header_end = text.len();
        for &thread in process.threads.values() {
            self.print_thread(text, thread, detail);
        }
        for &node in process.nodes.values() {
            let has_oneway = self.nodes[node].has_oneway;
            if detail == Detail::Everything || has_oneway {
                self.print_node(text, node);
            }
        }
        if detail == Detail::Everything {
            for reference in process.refs.iter() {
                self.print_ref(text, reference);
            }
        }
        for (_, _, buffer) in process.area.iter().flat_map(|area| area.ranges.live()) {
            self.print_buffer(text, buffer);
        }
        self.print_queue(text, process.todo, id, &LinePrefix::PROCESS);
        if !process.delivered_deaths.is_empty() {
            *text += "  has delivered dead binder\n";
        }
        if !process.sent_freeze_notifications.is_empty() {
            *text += "  has delivered freeze binder\n";
        }
        if detail == Detail::Transactions && text.len() == header_end {
            text.truncate(start);
        }
    }

    fn print_thread(&self, text: &mut String, id: ThreadId, detail: Detail) {
        if is_full(text) {
            return;
        }
        let thread = &self.threads[id];
        let looper = thread.looper;
        // Bits of the kernel's looper state.
        let flags = [
            looper.registered,
            looper.entered,
            looper.exited,
            looper.invalid,
            thread.parked.is_some(),
            thread.polls,
        ];
        let bits = flags.iter().rev().fold(0, |bits, &set| bits << 1 | u32::from(set));
        let start = text.len();
        let need_return = u32::from(thread.need_return);
        let _ =
            writeln!(text, "  thread {}: l {bits:02x} need_return {need_return} tr 0", thread.tid);
        let header_end = text.len();
        for call in self.stack_of(id) {
            let outgoing = self.transactions[call].from == Some(id);
            let prefix =
                if outgoing { "    outgoing transaction" } else { "    incoming transaction" };
            self.print_transaction(text, call, thread.process, prefix);
        }
        if thread.reply_complete != ReplyComplete::Delivered {
            let complete = Work::TransactionComplete(BR_TRANSACTION_COMPLETE);
            self.print_work(text, complete, thread.process, &LinePrefix::THREAD);
        }
        self.print_queue(text, thread.todo, thread.process, &LinePrefix::THREAD);
        if detail == Detail::Transactions && text.len() == header_end {
            text.truncate(start);
        }
    }

    fn print_transaction(
        &self,
        text: &mut String,
        id: TransactionId,
        seen_by: ProcessId,
        prefix: &str,
    ) {
        let entry = &self.transactions[id];
        let from = entry.from.and_then(|thread| self.threads.get(thread));
        let from_pid = from.map(|thread| self.processes[thread.process].opener.pid);
        let buffer = entry.buffer.map(|buffer| &self.buffers[buffer]);
        let sender = buffer.map_or(0, |buffer| buffer.sender_pid);
        let to = buffer.map(|buffer| buffer.process).or(entry.to);
        let to_pid = to.map_or(0, |to| self.processes[to].opener.pid);
        let to_thread = entry.to_thread.and_then(|thread| self.threads.get(thread));
        let to_tid = to_thread.map_or(0, |thread| thread.tid);
        let _ = write!(
            text,
            "{prefix} {}: {:016x} from {}:{} to {to_pid}:{to_tid} code {:x} flags {:x} \
             pri {} r{} elapsed 0ms",
            entry.id,
            0,
            from_pid.unwrap_or(sender),
            from.map_or(0, |thread| thread.tid),
            entry.code,
            entry.flags,
            entry.priority.map_or(0, |priority| priority.nice),
            u32::from(entry.kind == Kind::Call),
        );
        // The buffer is shown in the receiver's view only.
        if to == Some(seen_by) {
            match buffer {
                Some(buffer) => {
                    if let Some(node) = buffer.target {
                        let _ = write!(text, " node {}", self.nodes[node].id);
                    }
                    let layout = buffer.layout;
                    let _ = write!(
                        text,
                        " size {}:{} offset {:x}",
                        layout.data_size, layout.offsets_size, buffer.offset
                    );
                }
                None => *text += " buffer free",
            }
        }
        text.push('\n');
    }

    fn print_queue(
        &self,
        text: &mut String,
        queue: QueueId,
        owner: ProcessId,
        prefix: &LinePrefix,
    ) {
        for (_, work) in self.queues.iter(queue) {
            if is_full(text) {
                return;
            }
            self.print_work(text, work, owner, prefix);
        }
    }

    fn print_work(&self, text: &mut String, work: Work, owner: ProcessId, prefix: &LinePrefix) {
        let words = match work {
            Work::Transaction(id) => {
                return self.print_transaction(text, id, owner, prefix.transaction);
            }
            Work::ReturnError(word) | Work::ReplyError(word) => {
                format!("transaction error: {word}")
            }
            Work::Error(errno) => format!("transaction error: {errno}"),
            Work::TransactionComplete(_) => "transaction complete".to_owned(),
            Work::Node(id) => {
                let node = &self.nodes[id];
                format!("node work {}: u{:016x} c{:016x}", node.id, node.ptr, node.cookie)
            }
            Work::Death(id) => match self.deaths[id].state {
                DeathState::Armed | DeathState::Dead => "has dead binder",
                DeathState::DeadAndClear => "has cleared dead binder",
                DeathState::Clear => "has cleared death notification",
            }
            .to_owned(),
            Work::FreezeNotification(id) => {
                if self.freeze_notifications[id].clear {
                    "has cleared freeze notification".to_owned()
                } else {
                    "has frozen binder".to_owned()
                }
            }
        };
        let _ = writeln!(text, "{}{words}", prefix.other);
    }

    fn print_node(&self, text: &mut String, id: NodeId) {
        if is_full(text) {
            return;
        }
        let node = &self.nodes[id];
        let _ = write!(
            text,
            "  node {}: u{:016x} c{:016x} hs {} hw {} ls {} lw {} is {} iw {} tr 1",
            node.id,
            node.ptr,
            node.cookie,
            u32::from(node.has_strong),
            u32::from(node.has_weak),
            node.local_strong,
            node.local_weak,
            node.internal_strong,
            node.ref_count,
        );
        if node.ref_count > 0 {
            *text += " proc";
        }
        let next = |&id: &RefId| self.refs[id].next_of_node;
        for reference in std::iter::successors(node.first_ref, next) {
            if is_full(text) {
                return;
            }
            let holder = self.refs[reference].process;
            let _ = write!(text, " {}", self.processes[holder].opener.pid);
        }
        text.push('\n');
        if let (Some(owner), Some(queue)) = (node.owner, node.oneway_todo) {
            self.print_queue(text, queue, owner, &LinePrefix::NODE);
        }
    }

    fn print_ref(&self, text: &mut String, id: RefId) {
        if is_full(text) {
            return;
        }
        let reference = &self.refs[id];
        let node = &self.nodes[reference.node];
        let dead = if node.owner.is_none() { "dead " } else { "" };
        // References have no debug id in this driver: the handle is shown instead.
        let _ = writeln!(
            text,
            "  ref {handle}: desc {handle} {dead}node {} s {} w {} d {:016x}",
            node.id,
            reference.strong,
            reference.weak,
            u32::from(reference.death.is_some()),
            handle = reference.handle,
        );
    }

    fn print_buffer(&self, text: &mut String, id: BufferId) {
        if is_full(text) {
            return;
        }
        let buffer = &self.buffers[id];
        let transaction = buffer.transaction.and_then(|id| self.transactions.get(id));
        let layout = buffer.layout;
        let _ = writeln!(
            text,
            "  buffer {}: {:x} size {}:{}:{} {}",
            transaction.map_or(0, |transaction| transaction.id),
            buffer.offset,
            layout.data_size,
            layout.offsets_size,
            layout.extra_end - layout.extra_at,
            if transaction.is_some() { "active" } else { "delivered" },
        );
    }
}

/// `stats`: counters of commands and returns, and numbers of objects.
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

/// `transaction_log` and `failed_transaction_log`: a line for each of the last transactions.
impl Driver {
    /// The last 32 transactions, oldest first.
    pub fn transaction_log(&self) -> String {
        self.lines(&self.log.all)
    }

    /// The last 32 that failed, oldest first.
    pub fn failed_transaction_log(&self) -> String {
        self.lines(&self.log.failed)
    }

    fn lines(&self, ring: &Ring) -> String {
        ring.iter().fold(String::new(), |mut text, entry| {
            self.line(&mut text, entry);
            text
        })
    }

    fn line(&self, text: &mut String, entry: &LogEntry) {
        let kind = match entry.kind {
            Kind::Call => "call ",
            Kind::Oneway => "async",
            Kind::Reply => "reply",
        };
        let context = entry.context.and_then(|context| self.contexts.get(context));
        let context = context.map_or("(removed)", |context| &context.name);
        let LogEntry { id, from_pid, from_tid, to_pid, to_tid, to_node, handle, .. } = entry;
        let (data, offsets) = (entry.data_size, entry.offsets_size);
        let Refusal { word, errno } = entry.refused.unwrap_or(Refusal { word: 0, errno: 0 });
        let _ = writeln!(
            text,
            "{id}: {kind} from {from_pid}:{from_tid} to {to_pid}:{to_tid} context {context} \
             node {to_node} handle {handle} size {data}:{offsets} ret {word}/{errno} l=0"
        );
    }
}
