//! Sending: `BC_TRANSACTION` and `BC_REPLY`, from the target to the receiver's queue.

use binder_uapi::returns::*;
use binder_uapi::{BinderTransactionData, TF_ACCEPT_FDS, TF_CLEAR_BUF, TF_ONE_WAY, TF_UPDATE_TXN};

use crate::Errno;
use crate::buffer::{BufferRequest, Layout};
use crate::driver::Driver;
use crate::host::{Caller, Host, Piece};
use crate::keys::{BufferId, NodeId, ProcessId, ThreadId, TransactionId};
use crate::limits::MAX_THREAD_WORK;
use crate::objects::Parcel;
use crate::statistics::one_more;
use crate::thread::NO_ERROR;
use crate::trace::TraceEvent;
use crate::transaction::{Kind, Transaction};
use crate::work::Work;

/// Why a transaction was not sent: the sender's `BR_` word and the extended error's errno.
#[derive(Clone, Copy, Debug)]
struct Failure {
    word: u32,
    /// `None`: nothing is wrong with what was sent.
    errno: Option<Errno>,
    /// The call that was being replied to, which fails as well.
    in_reply_to: Option<TransactionId>,
}

impl Failure {
    fn dead(errno: Errno) -> Self {
        Self { word: BR_DEAD_REPLY, errno: Some(errno), in_reply_to: None }
    }
}

impl From<Errno> for Failure {
    /// A missing mapping counts as a dead target.
    fn from(errno: Errno) -> Self {
        let word = if errno == Errno::ESRCH { BR_DEAD_REPLY } else { BR_FAILED_REPLY };
        Self { word, errno: Some(errno), in_reply_to: None }
    }
}

/// The sending side of one command.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub caller: Caller,
    pub thread: ThreadId,
}

/// Where a transaction goes.
#[derive(Clone, Copy, Debug)]
struct Target {
    process: ProcessId,
    /// The node; a local strong reference was taken for the buffer. `None` for a reply.
    node: Option<NodeId>,
    /// The thread that must take it.
    thread: Option<ThreadId>,
    /// It takes descriptors.
    accepts_fds: bool,
}

impl Driver {
    /// `BC_TRANSACTION`, `BC_REPLY` and their scatter-gather forms. A failure is told to the
    /// sender with its next read, and to the waiting caller if it was a reply.
    pub(crate) fn transact<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        data: &BinderTransactionData,
        extra_size: u64,
        is_reply: bool,
    ) {
        let id = self.new_debug_id();
        self.set_extended_error(sender.thread, id, NO_ERROR, 0);
        self.log_transaction(id, Kind::of(is_reply, data.flags), sender, data);
        let sent = if is_reply {
            self.reply(host, id, sender, data, extra_size)
        } else {
            self.call(host, id, sender, data, extra_size)
        };
        let failure = sent.err().map(|failure| {
            let param = failure.errno.map_or(0, |errno| -errno.code());
            self.log_failure(failure.word, param);
            (failure, param)
        });
        if !is_reply && self.trace.is_some() {
            self.note_sent(data);
        }
        let Some((Failure { word, in_reply_to, .. }, param)) = failure else { return };
        self.threads[sender.thread].return_error = true;
        let Some(call) = in_reply_to else {
            self.set_extended_error(sender.thread, id, word, param);
            return self.push_thread_work(sender.thread, Work::ReturnError(word));
        };
        // To the replier all went well; the error is the caller's.
        self.push_thread_work(sender.thread, Work::ReturnError(BR_TRANSACTION_COMPLETE));
        if let Some(caller) = self.transactions[call].from
            && self.threads[caller].extended_error.command == NO_ERROR
        {
            self.set_extended_error(caller, id, word, param);
        }
        self.send_failed_reply(host, call, word);
    }

    fn call<H: Host>(
        &mut self,
        host: &mut H,
        id: u32,
        sender: Sender,
        data: &BinderTransactionData,
        extra_size: u64,
    ) -> Result<(), Failure> {
        let oneway = data.flags & TF_ONE_WAY != 0;
        let node = self.target_node(sender.caller.process, data.handle())?;
        let owner = self.nodes[node].owner.ok_or(Failure::dead(Errno::EINVAL))?;
        if !oneway {
            self.hand_promise_back(sender.thread);
        }
        let thread = if oneway { None } else { self.nested_target(sender.thread, owner)? };
        if self.queues.len(self.threads[sender.thread].todo) >= MAX_THREAD_WORK {
            return Err(Errno::ENOMEM.into());
        }
        let accepts_fds = self.nodes[node].accepts_fds;
        let target = Target { process: owner, node: Some(node), thread, accepts_fds };
        let buffer = self.fill_buffer(host, sender, target, data, extra_size, oneway)?;
        let freezer = &mut self.processes[owner].freezer;
        let frozen = freezer.frozen;
        freezer.sync_received |= frozen && !oneway;
        freezer.async_received |= frozen && oneway;
        if frozen && !oneway {
            self.release_buffer(host, buffer);
            return Err(Failure { word: BR_FROZEN_REPLY, errno: None, in_reply_to: None });
        }
        let kind = if oneway { Kind::Oneway } else { Kind::Call };
        let call = self.new_transaction(id, kind, sender, data, buffer);
        if oneway {
            let spam = self.is_oneway_spam(buffer);
            if frozen && data.flags & TF_UPDATE_TXN != 0 {
                self.drop_outdated(host, node, call);
            }
            self.queue_oneway(target, node, call);
            let word = match (frozen, spam) {
                (true, _) => BR_TRANSACTION_PENDING_FROZEN,
                (_, true) => BR_ONEWAY_SPAM_SUSPECT,
                _ => BR_TRANSACTION_COMPLETE,
            };
            self.push_thread_work(sender.thread, Work::TransactionComplete(word));
        } else {
            let caller = &mut self.threads[sender.thread];
            let entry = &mut self.transactions[call];
            entry.from = Some(sender.thread);
            entry.priority = host.priority(sender.caller.tid);
            entry.to_thread = thread;
            entry.from_parent = caller.stack.replace(call);
            // Read together with the reply: one wake-up less.
            let complete = Work::TransactionComplete(BR_TRANSACTION_COMPLETE);
            self.push_deferred_work(sender.thread, complete);
            self.queue_for(target, call);
        }
        Ok(())
    }

    /// The node behind a handle that may be called.
    fn target_node(&mut self, process: ProcessId, handle: u32) -> Result<NodeId, Failure> {
        if handle != 0 {
            let reference = self.ref_by_handle(process, handle, true).ok_or(Errno::EINVAL)?;
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

    /// The thread that must take a call to `owner`, because it waits further down in the sender's
    /// stack. `EPROTO`: the sender may not call now.
    fn nested_target(
        &self,
        sender: ThreadId,
        owner: ProcessId,
    ) -> Result<Option<ThreadId>, Failure> {
        let entry = &self.threads[sender];
        let mut queued = self.queues.iter(entry.todo);
        if entry.giving.is_some() {
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
        id: u32,
        sender: Sender,
        data: &BinderTransactionData,
        extra_size: u64,
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
        let buffer =
            self.fill_buffer(host, sender, target, data, extra_size, false).map_err(failed)?;
        let reply = self.new_transaction(id, Kind::Reply, sender, data, buffer);
        let answered = self.transactions[call].id;
        self.note(|| TraceEvent::Answered { id: answered, bytes: data.data_size });
        let complete = Work::TransactionComplete(BR_TRANSACTION_COMPLETE);
        self.push_thread_work(sender.thread, complete);
        self.pop_call(caller, call);
        self.push_thread_work(caller, Work::Transaction(reply));
        self.finish_transaction(host, call);
        Ok(())
    }

    fn new_transaction(
        &mut self,
        id: u32,
        kind: Kind,
        sender: Sender,
        data: &BinderTransactionData,
        buffer: BufferId,
    ) -> TransactionId {
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
            sender_euid: sender.caller.euid,
            priority: None,
            own_priority: None,
        });
        let process = self.buffers[buffer].process;
        self.buffers[buffer].transaction = Some(transaction);
        self.processes[process].freezer.outstanding += 1;
        transaction
    }

    /// Hands a call to the thread that must take it, an idle one, or the process.
    fn queue_for(&mut self, target: Target, id: TransactionId) {
        let work = Work::Transaction(id);
        match target.thread.or_else(|| self.select_idle(target.process)) {
            Some(thread) => self.push_thread_work(thread, work),
            None => {
                self.queues.push(self.processes[target.process].todo, work);
                self.wake_process(target.process);
            }
        }
    }

    /// One-way calls to one node go one at a time, in the order they were sent.
    fn queue_oneway(&mut self, target: Target, node: NodeId, id: TransactionId) {
        let entry = &mut self.nodes[node];
        if !std::mem::replace(&mut entry.has_oneway, true) {
            self.hold_oneway_slot(id);
            return self.queue_for(target, id);
        }
        let queue = *entry.oneway_todo.get_or_insert_with(|| self.queues.create());
        self.queues.push(queue, Work::Transaction(id));
    }

    /// `TF_UPDATE_TXN`: the first queued one-way call that this one replaces is dropped. It is of
    /// the same sender and code, and came with the same flags.
    fn drop_outdated<H: Host>(&mut self, host: &mut H, node: NodeId, newer: TransactionId) {
        let Some(queue) = self.nodes[node].oneway_todo else { return };
        let key = |id: TransactionId| {
            let entry = &self.transactions[id];
            let sender = entry.buffer.map(|buffer| self.buffers[buffer].sender_pid);
            (entry.code, entry.flags, sender)
        };
        let wanted = key(newer);
        let outdated = self.queues.iter(queue).find_map(|(work_id, work)| match work {
            Work::Transaction(older) if key(older) == wanted => Some((work_id, older)),
            _ => None,
        });
        if let Some((work, older)) = outdated {
            self.queues.unlink(work);
            self.finish_transaction(host, older);
        }
    }

    /// Reserves the receiver's buffer, copies the sender's data, translates the objects in a
    /// private copy and stores the result. Undone on failure.
    fn fill_buffer<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        target: Target,
        data: &BinderTransactionData,
        extra_size: u64,
        oneway: bool,
    ) -> Result<BufferId, Failure> {
        self.log_target(target.process, target.node, target.thread);
        let wanted = target.node.is_some_and(|node| self.nodes[node].wants_security_context);
        let context = if wanted {
            // As a string: its reader knows no length.
            let context = host.security_context(sender.caller).ok_or(Errno::EINVAL)?;
            [context, vec![0]].concat()
        } else {
            Vec::new()
        };
        let context_size = context.len() as u64;
        let layout = Layout::new(data.data_size, data.offsets_size, extra_size, context_size)?;
        let sender_pid = self.processes[sender.caller.process].opener.pid;
        let buffer = self.allocate_buffer(
            host,
            BufferRequest {
                process: target.process,
                layout,
                target: target.node,
                oneway,
                clear: data.flags & TF_CLEAR_BUF != 0,
                sender_pid,
            },
        )?;
        if let Some(node) = target.node {
            self.inc_local(node, true);
        }
        let mut bytes = std::mem::take(&mut self.scratch.parcel);
        let parts = (extra_size, &context[..], target.accepts_fds);
        let filled = self.copy_parcel(host, sender, buffer, data, parts, &mut bytes);
        self.scratch.parcel = bytes;
        if let Err(errno) = filled {
            self.release_buffer(host, buffer);
            // Whatever happened, this receiver has a mapping.
            return Err(Failure { word: BR_FAILED_REPLY, errno: Some(errno), in_reply_to: None });
        }
        Ok(buffer)
    }

    fn copy_parcel<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        buffer: BufferId,
        data: &BinderTransactionData,
        (extra_size, context, accepts_fds): (u64, &[u8], bool),
        bytes: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let layout = self.buffers[buffer].layout;
        // The area held it, so it is 4 MiB at most.
        bytes.resize(layout.total as usize, 0);
        let end = |at: u64, size: u64| (at + size) as usize;
        bytes[end(0, layout.data_size)..layout.offsets_at as usize].fill(0);
        bytes[end(layout.offsets_at, layout.offsets_size)..].fill(0);
        if !context.is_empty() {
            let at = layout.extra_end as usize;
            bytes[at..at + context.len()].copy_from_slice(context);
            self.buffers[buffer].context_at = Some(layout.extra_end);
        }
        let piece =
            |address, at: u64, len: u64| Piece { address, at: at as usize, len: len as usize };
        let pieces = [
            piece(data.buffer, 0, layout.data_size),
            piece(data.offsets, layout.offsets_at, layout.offsets_size),
        ];
        let pieces = match (layout.data_size, layout.offsets_size) {
            (0, 0) => &pieces[..0],
            (_, 0) => &pieces[..1],
            (0, _) => &pieces[1..],
            _ => &pieces[..],
        };
        if !pieces.is_empty() {
            host.read_parcel(sender.caller, pieces, bytes).map_err(|_| Errno::EFAULT)?;
        }
        if !layout.offsets_size.is_multiple_of(8) || !extra_size.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        let (process, offset) = (self.buffers[buffer].process, self.buffers[buffer].offset);
        if layout.offsets_size > 0 {
            let address = self.buffer_address(buffer);
            let mut held = std::mem::take(&mut self.buffers[buffer].held);
            let (held_ref, mut files) = (&mut held, Vec::new());
            let parcel =
                Parcel { bytes, layout, address, held: held_ref, files: &mut files, accepts_fds };
            let translated = self.translate_objects(host, sender, process, parcel);
            self.buffers[buffer].held = held;
            self.buffers[buffer].files = files;
            translated?;
        }
        if !bytes.is_empty() {
            self.processes[process].touch(offset, bytes.len() as u64);
            host.store(process, offset.into(), bytes).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(())
    }
}
