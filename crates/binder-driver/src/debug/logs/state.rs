//! `state`, `transactions` and `proc/PID`: all opens, objects and pending transactions.

use std::fmt::Write;

use binder_uapi::returns::BR_TRANSACTION_COMPLETE;

use super::{ended, is_full};
use crate::driver::Driver;
use crate::keys::{BufferId, NodeId, ProcessId, RefId, ThreadId, TransactionId};
use crate::notifications::types::DeathState;
use crate::transaction::types::Kind;
use crate::write_read::held::ReplyComplete;
use crate::write_read::queue::QueueId;
use crate::write_read::types::Work;

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
