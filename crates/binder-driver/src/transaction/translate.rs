//! Objects in a parcel: translated from the sender's names to the receiver's, in a private copy.

use binder_uapi::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Errno;
use crate::buffer::{HeldObject, Layout};
use crate::call::Sender;
use crate::descriptors::FileSlot;
use crate::driver::Driver;
use crate::host::Host;
use crate::keys::ProcessId;
use crate::scatter_gather::Gather;

/// The private copy of what is being sent, and what its buffer will hold.
pub struct Parcel<'a> {
    /// Data, offsets and extra buffers as laid out.
    pub bytes: &'a mut [u8],
    pub layout: Layout,
    /// Where the receiver will see `bytes`.
    pub address: u64,
    pub held: &'a mut Vec<HeldObject>,
    pub files: &'a mut Vec<FileSlot>,
    /// The target takes descriptors.
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

    /// Reads a value in the copy; `EINVAL` outside of it.
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
    fn object(&self, at: u64) -> Result<(u32, u64), Errno> {
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

impl Driver {
    /// Translates all objects; they must lie in the order of the offsets without overlap
    /// (`EFAULT`). On an error, what was taken so far is in `parcel.held`.
    pub(crate) fn translate_objects<H: Host>(
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
            // The kernel's errno: the copy of what lies between two objects would fail.
            if at < lowest || at > parcel.layout.data_size {
                return Err(Errno::EFAULT);
            }
            let (ty, size) = parcel.object(at)?;
            lowest = at + size;
            match ty {
                BINDER_TYPE_BINDER | BINDER_TYPE_WEAK_BINDER => {
                    self.translate_binder(sender, receiver, &mut parcel, at)?;
                }
                BINDER_TYPE_HANDLE | BINDER_TYPE_WEAK_HANDLE => {
                    self.translate_handle(sender, receiver, &mut parcel, at)?;
                }
                BINDER_TYPE_PTR => gather.buffer(host, sender, &mut parcel, index, at)?,
                BINDER_TYPE_FD => self.translate_fd(host, sender, &mut parcel, at)?,
                _ => self.translate_fd_array(host, sender, &mut gather, &mut parcel, index, at)?,
            }
        }
        Ok(())
    }

    /// The sender's own object becomes a handle of the receiver.
    fn translate_binder(
        &mut self,
        sender: Sender,
        receiver: ProcessId,
        parcel: &mut Parcel<'_>,
        at: u64,
    ) -> Result<(), Errno> {
        let object: FlatBinderObject = parcel.get(at)?;
        let strong = object.ty == BINDER_TYPE_BINDER;
        let node = self.node_for_object(sender.caller.process, object)?;
        if self.nodes[node].cookie != object.cookie {
            return Err(Errno::EINVAL);
        }
        let taken = self.take_ref(receiver, node, strong, Some(sender.thread));
        let reference = taken.inspect_err(|_| self.drop_node_if_unused(node))?;
        parcel.held.push(HeldObject::Ref { reference, strong });
        let ty = if strong { BINDER_TYPE_HANDLE } else { BINDER_TYPE_WEAK_HANDLE };
        let handle = self.refs[reference].handle.into();
        parcel.put(at, &FlatBinderObject { ty, binder: handle, cookie: 0, ..object })
    }

    /// The sender's handle becomes the receiver's, or its own object again.
    fn translate_handle(
        &mut self,
        sender: Sender,
        receiver: ProcessId,
        parcel: &mut Parcel<'_>,
        at: u64,
    ) -> Result<(), Errno> {
        let object: FlatBinderObject = parcel.get(at)?;
        let strong = object.ty == BINDER_TYPE_HANDLE;
        let reference = self
            .ref_by_handle(sender.caller.process, object.handle(), strong)
            .ok_or(Errno::EINVAL)?;
        let node = self.refs[reference].node;
        let entry = &self.nodes[node];
        if entry.owner == Some(receiver) {
            let ty = if strong { BINDER_TYPE_BINDER } else { BINDER_TYPE_WEAK_BINDER };
            let (binder, cookie) = (entry.ptr, entry.cookie);
            self.inc_local(node, strong);
            parcel.held.push(HeldObject::Node { node, strong });
            parcel.put(at, &FlatBinderObject { ty, binder, cookie, ..object })
        } else {
            let reference = self.take_ref(receiver, node, strong, None)?;
            parcel.held.push(HeldObject::Ref { reference, strong });
            let handle = self.refs[reference].handle.into();
            parcel.put(at, &FlatBinderObject { binder: handle, cookie: 0, ..object })
        }
    }
}
