//! Transactions: calls, one-ways and replies, the call stacks of threads, and their unwinding.
//!
//! A thread's stack is a chain of calls, newest first. A call is in two chains at once: that of its
//! caller (linked by `from_parent`) and, after delivery, that of its server (linked by
//! `to_parent`).

pub mod descriptors;
pub mod oneway;
pub mod parcel;
pub mod prediction;
pub mod priority;
mod scatter_gather;
pub mod send;

use std::fmt;

use binder_uapi::returns::*;
use binder_uapi::{BinderTransactionData, BinderTransactionDataSecctx, Return, TF_ONE_WAY};
use owners::Uid;
use serde::{Deserialize, Serialize};

use crate::debug::trace::TraceEvent;
use crate::driver::{BufferId, Driver, ProcessId, ThreadId, TransactionId};
use crate::host::{Host, Priority};
use crate::write_read::work::{DeliverToRead, Flow, Reader, Work};

/// Kind of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The sender waits for the reply.
    Call,
    /// There is no reply.
    Oneway,
    /// The reply to a call.
    Reply,
}

impl Kind {
    /// The kind of a `BC_TRANSACTION` with these flags.
    pub fn of_transaction(flags: u32) -> Self {
        if flags & TF_ONE_WAY != 0 { Self::Oneway } else { Self::Call }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Call => "call",
            Kind::Oneway => "oneway",
            Kind::Reply => "reply",
        })
    }
}

/// One transaction. A one-way call and a reply end when delivered, a call when replied to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Transaction {
    /// Debug id.
    pub id: u32,
    pub kind: Kind,
    /// The thread that waits for the reply to a call; `None` once it has exited.
    pub from: Option<ThreadId>,
    pub from_parent: Option<TransactionId>,
    /// The thread that must receive a nested call, then the one that serves it.
    pub to_thread: Option<ThreadId>,
    pub to_parent: Option<TransactionId>,
    /// The receiver, while this transaction is among its outstanding ones.
    pub to: Option<ProcessId>,
    /// `None` once the receiver has freed it.
    pub buffer: Option<BufferId>,
    pub code: u32,
    pub flags: u32,
    pub sender_euid: Uid,
    /// The caller's priority; `None` if it is not inherited.
    pub priority: Option<Priority>,
    /// The priority to restore of the thread that serves the call.
    pub own_priority: Option<Priority>,
}

impl Driver {
    /// The next older call after `call` on the stack of `thread`.
    fn parent_for(&self, thread: ThreadId, call: TransactionId) -> Option<TransactionId> {
        let entry = &self.transactions[call];
        if entry.from == Some(thread) { entry.from_parent } else { entry.to_parent }
    }

    /// The stack of a thread, newest first.
    pub(crate) fn stack_of(&self, thread: ThreadId) -> impl Iterator<Item = TransactionId> {
        std::iter::successors(self.threads[thread].stack, move |&at| self.parent_for(thread, at))
    }

    /// Pops a call that has ended from its caller's stack.
    pub(crate) fn pop_call(&mut self, caller: ThreadId, call: TransactionId) {
        debug_assert_eq!(self.threads[caller].stack, Some(call));
        self.threads[caller].stack = self.transactions[call].from_parent;
        self.transactions[call].from = None;
    }

    /// Ends a transaction; its buffer is released if it was not delivered.
    pub(crate) fn finish_transaction<H: Host>(&mut self, host: &mut H, id: TransactionId) {
        let Some(entry) = self.transactions.remove(id) else { return };
        self.note(|| TraceEvent::Over { id: entry.id });
        if let Some(to) = entry.to {
            self.transaction_left(to);
        }
        let Some(buffer) = entry.buffer else { return };
        self.buffers[buffer].transaction = None;
        if !self.buffers[buffer].delivered {
            self.release_buffer(host, buffer);
        }
    }

    /// Fails a call. If the caller has exited, the call that the caller was serving fails, and so
    /// on up to a caller that still exists.
    pub(crate) fn send_failed_reply<H: Host>(
        &mut self,
        host: &mut H,
        call: TransactionId,
        word: u32,
    ) {
        let mut at = Some(call);
        while let Some(call) = at {
            let entry = &self.transactions[call];
            at = match entry.from {
                Some(caller) => {
                    let id = self.transactions[call].id;
                    self.note(|| TraceEvent::Failed { id, word });
                    self.pop_call(caller, call);
                    if !std::mem::replace(&mut self.threads[caller].reply_error, true) {
                        self.push_thread_work(caller, Work::ReplyError(word));
                    }
                    None
                }
                None => entry.from_parent,
            };
            self.finish_transaction(host, call);
        }
    }

    /// A thread has exited (`stack` was its own): the thread that waits for its reply gets an
    /// error; calls that it made continue without a caller.
    pub(crate) fn leave_stack<H: Host>(
        &mut self,
        host: &mut H,
        thread: ThreadId,
        stack: Option<TransactionId>,
    ) {
        let serving = stack.filter(|&top| self.transactions[top].to_thread == Some(thread));
        let mut at = stack;
        while let Some(call) = at {
            let entry = &mut self.transactions[call];
            if entry.from == Some(thread) {
                entry.from = None;
                at = entry.from_parent;
            } else {
                entry.to_thread = None;
                at = entry.to_parent;
                let to = entry.to.take();
                if let Some(buffer) = entry.buffer.take() {
                    self.buffers[buffer].transaction = None;
                }
                if let Some(to) = to {
                    self.transaction_left(to);
                }
            }
        }
        if let Some(call) = serving {
            self.send_failed_reply(host, call, BR_DEAD_REPLY);
        }
    }

    /// A delivered transaction was written to the reader: the receiver owns the buffer, and a call
    /// is on the reader's stack.
    pub(crate) fn transaction_arrived<H: Host>(
        &mut self,
        host: &mut H,
        thread: ThreadId,
        id: TransactionId,
    ) {
        self.note_taken(thread, id);
        let (kind, buffer) = (self.transactions[id].kind, self.transactions[id].buffer);
        self.statistics.delivered += u64::from(kind != Kind::Reply);
        if let Some(buffer) = buffer {
            self.buffers[buffer].delivered = true;
            self.transfer_message(buffer);
        }
        if kind == Kind::Call {
            let entry = &mut self.transactions[id];
            entry.to_parent = self.threads[thread].stack.replace(id);
            entry.to_thread = Some(thread);
            self.inherit_priority(host, thread, id);
        } else {
            self.finish_transaction(host, id);
        }
    }

    /// A delivered transaction could not be written to the reader: it fails for its sender.
    pub(crate) fn transaction_lost<H: Host>(&mut self, host: &mut H, id: TransactionId) {
        if self.transactions[id].kind == Kind::Call {
            self.send_failed_reply(host, id, BR_FAILED_REPLY);
        } else {
            self.finish_transaction(host, id);
        }
    }
}

impl DeliverToRead for TransactionId {
    fn deliver<H: Host>(self, driver: &mut Driver, host: &mut H, reader: &mut Reader<'_>) -> Flow {
        let entry = &driver.transactions[self];
        let Some(buffer_id) = entry.buffer else {
            // Only delivered buffers can be freed; without its buffer there is nothing to deliver.
            driver.finish_transaction(host, self);
            return Flow::Continue;
        };
        let buffer = &driver.buffers[buffer_id];
        let target = buffer.target.map(|node| &driver.nodes[node]);
        let sender = entry.from.map(|thread| driver.threads[thread].process);
        let address = driver.buffer_address(buffer_id);
        let data = BinderTransactionData {
            target: target.map_or(0, |node| node.ptr),
            cookie: target.map_or(0, |node| node.cookie),
            code: entry.code,
            flags: entry.flags,
            sender_pid: sender.map_or(0, |sender| host.pid_seen_by(reader.process, sender)),
            sender_euid: host.uid_seen_by(reader.process, entry.sender_euid),
            data_size: buffer.layout.data_size,
            offsets_size: buffer.layout.offsets_size,
            buffer: address,
            offsets: address.wrapping_add(buffer.layout.offsets_at),
        };
        reader.put(match (entry.kind, buffer.context_at) {
            (Kind::Reply, _) => Return::Reply(data),
            (_, None) => Return::Transaction(data),
            (_, Some(at)) => Return::TransactionSecCtx(BinderTransactionDataSecctx {
                transaction_data: data,
                secctx: address.wrapping_add(at),
            }),
        });
        Flow::ReturnWith(self)
    }

    fn cancel<H: Host>(self, driver: &mut Driver, host: &mut H, thread: Option<ThreadId>) {
        let entry = &driver.transactions[self];
        let receiver = entry.buffer.map(|buffer| driver.buffers[buffer].process);
        let alive = receiver.filter(|&process| !driver.processes[process].dead);
        let for_any_thread = entry.kind != Kind::Reply && entry.to_thread.is_none();
        match (entry.kind, alive) {
            // The call was queued for an idle thread that did not read it; another thread may
            // receive it.
            (_, Some(process)) if for_any_thread && thread.is_some() => {
                driver.queues.push(driver.processes[process].todo, Work::Transaction(self));
                driver.wake_process(process);
            }
            (Kind::Call, _) => driver.send_failed_reply(host, self, BR_DEAD_REPLY),
            _ => driver.finish_transaction(host, self),
        }
    }
}
