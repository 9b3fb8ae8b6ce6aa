//! Sending: `BC_TRANSACTION` and `BC_REPLY`, from the target to the receiver's queue.

use binder_uapi::returns::*;
use binder_uapi::{BinderTransactionData, TF_ACCEPT_FDS, TF_UPDATE_TXN};

use crate::debug::counters::one_more;
use crate::debug::trace::TraceEvent;
use crate::debug::transaction_log::Refusal;
use crate::driver::{BufferId, Driver, NodeId, ProcessId, ThreadId, TransactionId};
use crate::host::{Caller, Errno, Freshness, Host};
use crate::limits::MAX_THREAD_WORK;
use crate::objects::Strength;
use crate::process::thread::NO_ERROR;
use crate::transaction::{Kind, Transaction};
use crate::write_read::work::Work;

/// The sending side of one command.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub caller: Caller,
    pub thread: ThreadId,
}

/// Contents of a `BC_TRANSACTION` or `BC_REPLY`.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Debug id of the transaction.
    pub id: u32,
    pub kind: Kind,
    pub data: &'a BinderTransactionData,
    /// Bytes of scatter-gather buffers.
    pub extra_size: u64,
}

/// Why a transaction was not sent: the sender's `BR_` word and the extended error's errno.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub word: u32,
    /// `None`: the sender made no error.
    pub errno: Option<Errno>,
    /// The call to which this is the reply, which fails as well.
    pub in_reply_to: Option<TransactionId>,
}

impl Failure {
    /// The extended error's negative errno; 0: none.
    fn param(&self) -> i32 {
        self.errno.map_or(0, |errno| -errno.code())
    }

    /// The transaction had no effect and is sent again, as client memory is late.
    fn is_restart(&self) -> bool {
        self.errno == Some(Errno::ERESTART)
    }

    fn dead(errno: Errno) -> Self {
        Self { word: BR_DEAD_REPLY, errno: Some(errno), in_reply_to: None }
    }
}

impl From<Errno> for Failure {
    /// A missing mapping is treated as a dead target.
    fn from(errno: Errno) -> Self {
        let word = if errno == Errno::ESRCH { BR_DEAD_REPLY } else { BR_FAILED_REPLY };
        Self { word, errno: Some(errno), in_reply_to: None }
    }
}

/// The target of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub process: ProcessId,
    /// The node, with a local strong reference for the buffer. `None` for a reply.
    pub node: Option<NodeId>,
    /// The thread that must receive it.
    pub thread: Option<ThreadId>,
    /// The target accepts descriptors.
    pub accepts_fds: bool,
}

impl Driver {
    /// `BC_TRANSACTION`, `BC_REPLY` and their scatter-gather forms. A failure is returned to the
    /// sender by its next read, and to the waiting caller if it was a reply. `ERESTART`: client
    /// memory is late, and the command has had no effect.
    pub(crate) fn transact<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        message: Message<'_>,
    ) -> Result<(), Errno> {
        let Message { id, kind, data, .. } = message;
        self.set_extended_error(sender.thread, id, NO_ERROR, 0);
        self.log_transaction(sender, message);
        let sent = match kind {
            Kind::Reply => self.reply(host, sender, message),
            Kind::Call | Kind::Oneway => self.call(host, sender, message),
        };
        if let Err(failure) = &sent {
            if failure.is_restart() {
                self.return_debug_id(id);
                return Err(Errno::ERESTART);
            }
            self.log_failure(Refusal { word: failure.word, errno: failure.param() });
        }
        if kind != Kind::Reply {
            self.note_sent(data);
        }
        let Err(failure) = sent else { return Ok(()) };
        let Failure { word, in_reply_to, .. } = failure;
        let param = failure.param();
        self.threads[sender.thread].return_error = true;
        let Some(call) = in_reply_to else {
            self.set_extended_error(sender.thread, id, word, param);
            self.push_thread_work(sender.thread, Work::ReturnError(word));
            return Ok(());
        };
        // For the replying thread the reply is complete; the caller gets the error.
        self.push_thread_work(sender.thread, Work::ReturnError(BR_TRANSACTION_COMPLETE));
        if let Some(caller) = self.transactions[call].from
            && self.threads[caller].extended_error.command == NO_ERROR
        {
            self.set_extended_error(caller, id, word, param);
        }
        self.send_failed_reply(host, call, word);
        Ok(())
    }

    fn call<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        message: Message<'_>,
    ) -> Result<(), Failure> {
        let data = message.data;
        let oneway = message.kind == Kind::Oneway;
        let node = self.target_node(sender.caller.process, data.handle())?;
        let owner = self.nodes[node].owner.ok_or(Failure::dead(Errno::EINVAL))?;
        if !oneway {
            self.requeue_deferred(sender.thread);
        }
        let thread = if oneway { None } else { self.nested_target(sender.thread, owner)? };
        if self.queues.len(self.threads[sender.thread].todo) >= MAX_THREAD_WORK {
            return Err(Errno::ENOMEM.into());
        }
        let accepts_fds = self.nodes[node].accepts_fds;
        let target = Target { process: owner, node: Some(node), thread, accepts_fds };
        let buffer = self.fill_buffer(host, sender, target, message)?;
        let freezer = &mut self.processes[owner].freezer;
        let frozen = freezer.frozen;
        freezer.sync_received |= frozen && !oneway;
        freezer.async_received |= frozen && oneway;
        if frozen && !oneway {
            self.release_buffer(host, buffer);
            return Err(Failure { word: BR_FROZEN_REPLY, errno: None, in_reply_to: None });
        }
        let call = self.new_transaction(sender, message, buffer);
        if oneway {
            let spam = self.is_oneway_spam(buffer);
            if frozen && data.flags & TF_UPDATE_TXN != 0 {
                self.drop_outdated(host, node, call);
            }
            self.queue_oneway(target, node, call);
            let word = if frozen {
                BR_TRANSACTION_PENDING_FROZEN
            } else if spam {
                BR_ONEWAY_SPAM_SUSPECT
            } else {
                BR_TRANSACTION_COMPLETE
            };
            self.push_thread_work(sender.thread, Work::TransactionComplete(word));
        } else {
            let caller = &mut self.threads[sender.thread];
            let entry = &mut self.transactions[call];
            entry.from = Some(sender.thread);
            entry.priority = host.priority(sender.caller.tid, Freshness::Recent);
            entry.to_thread = thread;
            entry.from_parent = caller.stack.replace(call);
            // Delivered together with the reply, which saves one wake-up.
            let complete = Work::TransactionComplete(BR_TRANSACTION_COMPLETE);
            self.push_deferred_work(sender.thread, complete);
            self.queue_for(target, call);
        }
        Ok(())
    }

    /// The node behind a handle, if the process may call it.
    fn target_node(&mut self, process: ProcessId, handle: u32) -> Result<NodeId, Failure> {
        if handle != 0 {
            let reference =
                self.ref_by_handle(process, handle, Strength::Strong).ok_or(Errno::EINVAL)?;
            return Ok(self.refs[reference].node);
        }
        let context = &self.contexts[self.processes[process].context];
        let node = context.manager.ok_or(Failure::dead(Errno::EINVAL))?;
        let owner = self.nodes[node].owner.ok_or(Failure::dead(Errno::EINVAL))?;
        if self.processes[owner].opener.pid == self.processes[process].opener.pid {
            return Err(Errno::EINVAL.into());
        }
        Ok(node)
    }

    /// The thread that must receive a call to `owner`, because it waits further down in the
    /// sender's stack. `EPROTO`: the sender may not make a call now.
    fn nested_target(
        &self,
        sender: ThreadId,
        owner: ProcessId,
    ) -> Result<Option<ThreadId>, Failure> {
        let entry = &self.threads[sender];
        let mut queued = self.queues.iter(entry.todo);
        if entry.fd_delivery.is_some() {
            return Err(Errno::EPROTO.into());
        }
        if queued.any(|(_, work)| matches!(work, Work::Transaction(_))) {
            return Err(Errno::EPROTO.into());
        }
        if entry.stack.is_some_and(|top| self.transactions[top].to_thread != Some(sender)) {
            return Err(Errno::EPROTO.into());
        }
        let mut at = entry.stack;
        while let Some(call) = at {
            let call = &self.transactions[call];
            if let Some(from) = call.from.filter(|&from| self.threads[from].process == owner) {
                return Ok(Some(from));
            }
            at = call.from_parent;
        }
        Ok(None)
    }

    fn reply<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        message: Message<'_>,
    ) -> Result<(), Failure> {
        let call = self.threads[sender.thread].stack.ok_or(Errno::EPROTO)?;
        if self.transactions[call].to_thread != Some(sender.thread) {
            return Err(Errno::EPROTO.into());
        }
        self.threads[sender.thread].stack = self.transactions[call].to_parent;
        self.restore_priority(host, sender.caller, call);
        let failed = |failure| Failure { in_reply_to: Some(call), ..failure };
        let caller = self.transactions[call].from.ok_or(failed(Failure::dead(Errno::ESRCH)))?;
        let process = self.threads[caller].process;
        let accepts_fds = self.transactions[call].flags & TF_ACCEPT_FDS != 0;
        let target = Target { process, node: None, thread: Some(caller), accepts_fds };
        let filled = self.fill_buffer(host, sender, target, message);
        if filled.as_ref().is_err_and(Failure::is_restart) {
            self.threads[sender.thread].stack = Some(call);
        }
        let buffer = filled.map_err(failed)?;
        let reply = self.new_transaction(sender, message, buffer);
        let answered = self.transactions[call].id;
        let bytes = message.data.data_size;
        self.note(|| TraceEvent::Answered { id: answered, bytes });
        let complete = Work::TransactionComplete(BR_TRANSACTION_COMPLETE);
        self.confirm_reply(sender.thread, complete);
        self.pop_call(caller, call);
        self.push_thread_work(caller, Work::Transaction(reply));
        self.finish_transaction(host, call);
        Ok(())
    }

    fn new_transaction(
        &mut self,
        sender: Sender,
        message: Message<'_>,
        buffer: BufferId,
    ) -> TransactionId {
        let Message { id, kind, data, .. } = message;
        one_more(&mut self.statistics.made.transactions);
        let transaction = self.transactions.insert(Transaction {
            id,
            kind,
            from: None,
            from_parent: None,
            to_thread: None,
            to_parent: None,
            to: Some(self.buffers[buffer].process),
            buffer: Some(buffer),
            code: data.code,
            flags: data.flags,
            sender_euid: self.processes[sender.caller.process].opener.euid,
            priority: None,
            own_priority: None,
        });
        let process = self.buffers[buffer].process;
        self.buffers[buffer].transaction = Some(transaction);
        self.processes[process].freezer.outstanding += 1;
        transaction
    }

    /// Queues a call for the thread that must receive it, an idle one, or the process.
    pub(crate) fn queue_for(&mut self, target: Target, id: TransactionId) {
        let work = Work::Transaction(id);
        match target.thread.or_else(|| self.select_idle(target.process)) {
            Some(thread) => self.push_thread_work(thread, work),
            None => {
                self.queues.push(self.processes[target.process].todo, work);
                self.wake_process(target.process);
            }
        }
    }
}
