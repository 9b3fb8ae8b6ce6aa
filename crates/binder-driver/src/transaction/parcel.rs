//! Parcels: copied into a buffer of the receiver, their objects translated from the sender's
//! handles to the receiver's, in a private copy.

use binder_uapi::returns::BR_FAILED_REPLY;
use binder_uapi::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::buffer::{BufferRequest, FileSlot, HeldObject, Layout};
use crate::driver::{BufferId, Driver, ProcessId};
use crate::host::{Errno, Host, Piece};
use crate::objects::Strength;
use crate::transaction::Kind;
use crate::transaction::descriptors::{translate_fd, translate_fd_array};
use crate::transaction::scatter_gather::Gather;
use crate::transaction::send::{Failure, Message, Sender, Target};

/// Position of an object in a parcel.
#[derive(Clone, Copy, Debug)]
pub struct ObjectPlace {
    /// Index in the table of offsets.
    pub index: u64,
    /// Offset in the data.
    pub at: u64,
}

/// Private copy of a parcel that is being sent, and the references that its buffer will hold.
pub struct Parcel<'a> {
    /// Data, offsets and extra buffers in their layout.
    pub bytes: &'a mut [u8],
    pub layout: Layout,
    /// The receiver's address of `bytes`.
    pub address: u64,
    pub held: &'a mut Vec<HeldObject>,
    pub files: &'a mut Vec<FileSlot>,
    /// The target accepts descriptors.
    pub accepts_fds: bool,
}

impl Parcel<'_> {
    /// The offset of the object with this index; `EINVAL` if there is none.
    pub fn object_at(&self, index: u64) -> Result<u64, Errno> {
        if index >= self.layout.offsets_size / 8 {
            return Err(Errno::EINVAL);
        }
        self.get(self.layout.offsets_at + index * 8)
    }

    /// Reads a value from the copy; `EINVAL` if it is outside.
    pub fn get<T: FromBytes>(&self, at: u64) -> Result<T, Errno> {
        let from = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..));
        from.and_then(|bytes| T::read_from_prefix(bytes).ok())
            .map(|(value, _)| value)
            .ok_or(Errno::EINVAL)
    }

    /// Replaces a value in the copy.
    pub fn put<T: IntoBytes + Immutable>(&mut self, at: u64, value: &T) -> Result<(), Errno> {
        let into = usize::try_from(at).ok().and_then(|at| self.bytes.get_mut(at..));
        into.and_then(|bytes| value.write_to_prefix(bytes).ok()).ok_or(Errno::EINVAL)
    }

    /// The type and size of the object at an offset in the data; `EINVAL` if it is misaligned,
    /// unknown or not wholly inside.
    pub fn object(&self, at: u64) -> Result<(u32, u64), Errno> {
        if !at.is_multiple_of(4) || at >= self.layout.data_size {
            return Err(Errno::EINVAL);
        }
        let ty: u32 = self.get(at)?;
        let size = match ty {
            BINDER_TYPE_BINDER
            | BINDER_TYPE_WEAK_BINDER
            | BINDER_TYPE_HANDLE
            | BINDER_TYPE_WEAK_HANDLE => size_of::<FlatBinderObject>(),
            BINDER_TYPE_FD => size_of::<BinderFdObject>(),
            BINDER_TYPE_FDA => size_of::<BinderFdArrayObject>(),
            BINDER_TYPE_PTR => size_of::<BinderBufferObject>(),
            _ => return Err(Errno::EINVAL),
        } as u64;
        if self.layout.data_size - at < size {
            return Err(Errno::EINVAL);
        }
        Ok((ty, size))
    }
}

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

    /// Translates all objects; they must be in the order of the offsets without overlap (`EFAULT`).
    /// On an error, the counts taken so far are in `parcel.held`.
    fn translate_objects<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        receiver: ProcessId,
        mut parcel: Parcel<'_>,
    ) -> Result<(), Errno> {
        let mut gather = Gather::new(&parcel);
        let mut lowest = 0;
        for index in 0..parcel.layout.offsets_size / 8 {
            let at = parcel.object_at(index)?;
            // The errno of the kernel's driver, whose copy of the data between two objects would
            // fail.
            if at < lowest || at > parcel.layout.data_size {
                return Err(Errno::EFAULT);
            }
            let (ty, size) = parcel.object(at)?;
            lowest = at + size;
            let place = ObjectPlace { index, at };
            match ty {
                BINDER_TYPE_BINDER | BINDER_TYPE_WEAK_BINDER => {
                    self.translate_binder(sender, receiver, &mut parcel, at)?;
                }
                BINDER_TYPE_HANDLE | BINDER_TYPE_WEAK_HANDLE => {
                    self.translate_handle(sender, receiver, &mut parcel, at)?;
                }
                BINDER_TYPE_PTR => gather.buffer(host, sender, &mut parcel, place)?,
                BINDER_TYPE_FD => translate_fd(host, sender, &mut parcel, at)?,
                _ => translate_fd_array(host, sender, &mut gather, &mut parcel, place)?,
            }
        }
        Ok(())
    }

    /// Translates an object of the sender to a handle of the receiver.
    fn translate_binder(
        &mut self,
        sender: Sender,
        receiver: ProcessId,
        parcel: &mut Parcel<'_>,
        at: u64,
    ) -> Result<(), Errno> {
        let object: FlatBinderObject = parcel.get(at)?;
        let strength =
            if object.ty == BINDER_TYPE_BINDER { Strength::Strong } else { Strength::Weak };
        let node = self.node_for_object(sender.caller.process, object)?;
        if self.nodes[node].cookie != object.cookie {
            return Err(Errno::EINVAL);
        }
        let taken = self.take_ref(receiver, node, strength, Some(sender.thread));
        let reference = taken.inspect_err(|_| self.drop_node_if_unused(node))?;
        parcel.held.push(HeldObject::Ref { reference, strength });
        let ty = match strength {
            Strength::Strong => BINDER_TYPE_HANDLE,
            Strength::Weak => BINDER_TYPE_WEAK_HANDLE,
        };
        let handle = self.refs[reference].handle.into();
        parcel.put(at, &FlatBinderObject { ty, binder: handle, cookie: 0, ..object })
    }

    /// Translates a handle of the sender to one of the receiver, or to the receiver's own object.
    fn translate_handle(
        &mut self,
        sender: Sender,
        receiver: ProcessId,
        parcel: &mut Parcel<'_>,
        at: u64,
    ) -> Result<(), Errno> {
        let object: FlatBinderObject = parcel.get(at)?;
        let strength =
            if object.ty == BINDER_TYPE_HANDLE { Strength::Strong } else { Strength::Weak };
        let reference = self
            .ref_by_handle(sender.caller.process, object.handle(), strength)
            .ok_or(Errno::EINVAL)?;
        let node = self.refs[reference].node;
        let entry = &self.nodes[node];
        if entry.owner == Some(receiver) {
            let ty = match strength {
                Strength::Strong => BINDER_TYPE_BINDER,
                Strength::Weak => BINDER_TYPE_WEAK_BINDER,
            };
            let (binder, cookie) = (entry.ptr, entry.cookie);
            self.inc_local(node, strength);
            parcel.held.push(HeldObject::Node { node, strength });
            parcel.put(at, &FlatBinderObject { ty, binder, cookie, ..object })
        } else {
            let reference = self.take_ref(receiver, node, strength, None)?;
            parcel.held.push(HeldObject::Ref { reference, strength });
            let handle = self.refs[reference].handle.into();
            parcel.put(at, &FlatBinderObject { binder: handle, cookie: 0, ..object })
        }
    }
}
