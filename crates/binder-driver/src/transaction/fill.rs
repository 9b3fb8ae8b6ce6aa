//! The receiver's buffer: reserved, filled with the sender's data, objects translated.

use binder_uapi::returns::BR_FAILED_REPLY;
use binder_uapi::{BinderTransactionData, TF_CLEAR_BUF};

use crate::buffer::types::{BufferRequest, Layout};
use crate::driver::Driver;
use crate::errno::Errno;
use crate::host::{Host, Piece};
use crate::keys::BufferId;
use crate::objects::types::Strength;
use crate::transaction::types::{Failure, Kind, Message, Parcel, Sender, Target};

/// The sizes and contents of a parcel.
#[derive(Clone, Copy, Debug)]
struct ParcelSource<'a> {
    sender: Sender,
    data: &'a BinderTransactionData,
    /// The sender's security context with its final NUL; empty if the node does not request it.
    context: &'a [u8],
    accepts_fds: bool,
    /// Bytes of scatter-gather buffers.
    extra_size: u64,
}

impl Driver {
    /// Reserves the receiver's buffer, copies the sender's data, translates the objects in a
    /// private copy and stores the result. Undone on failure.
    pub(crate) fn fill_buffer<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        target: Target,
        message: Message<'_>,
    ) -> Result<BufferId, Failure> {
        let Message { kind, data, extra_size, .. } = message;
        self.log_target(target.process, target.node, target.thread);
        let wanted = target.node.is_some_and(|node| self.nodes[node].wants_security_context);
        let context = if wanted {
            // NUL-terminated, because the reader has no length of it.
            let context = host.security_context(sender.caller)?;
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
                oneway: kind == Kind::Oneway,
                clear: data.flags & TF_CLEAR_BUF != 0,
                sender: sender.caller.process,
                sender_pid,
            },
        )?;
        if let Some(node) = target.node {
            self.inc_local(node, Strength::Strong);
        }
        let mut bytes = std::mem::take(&mut self.scratch.parcel);
        let source = ParcelSource {
            sender,
            data,
            context: &context,
            accepts_fds: target.accepts_fds,
            extra_size,
        };
        let filled = self.copy_parcel(host, source, buffer, &mut bytes);
        self.scratch.parcel = bytes;
        if let Err(errno) = filled {
            self.release_buffer(host, buffer);
            // This receiver has a mapping, so it is not reported as dead whatever the errno is.
            return Err(Failure { word: BR_FAILED_REPLY, errno: Some(errno), in_reply_to: None });
        }
        Ok(buffer)
    }

    fn copy_parcel<H: Host>(
        &mut self,
        host: &mut H,
        source: ParcelSource<'_>,
        buffer: BufferId,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let ParcelSource { sender, data, context, accepts_fds, extra_size } = source;
        let layout = self.buffers[buffer].layout;
        self.threads[sender.thread].last_parcel.note(data);
        let is_read = self.take_predicted(data, &layout, bytes);
        // The buffer was allocated in the receive area, so it is 4 MiB at most.
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
        if !is_read && !pieces.is_empty() {
            let read = host.read_parcel(sender.caller, pieces, bytes);
            read.map_err(|fault| fault.errno(Errno::EFAULT))?;
        }
        if !layout.offsets_size.is_multiple_of(8) || !extra_size.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        let (process, offset) = (self.buffers[buffer].process, self.buffers[buffer].offset);
        if layout.offsets_size > 0 {
            let address = self.buffer_address(buffer);
            let mut held = std::mem::take(&mut self.buffers[buffer].held);
            let mut files = Vec::new();
            let parcel =
                Parcel { bytes, layout, address, held: &mut held, files: &mut files, accepts_fds };
            let translated = self.translate_objects(host, sender, process, parcel);
            self.buffers[buffer].held = held;
            self.buffers[buffer].files = files;
            translated?;
        }
        if !bytes.is_empty() {
            self.touch(process, offset, bytes.len() as u64);
            host.store(process, offset.into(), bytes).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(())
    }
}
