//! Objects in a parcel: translated from the sender's handles to the receiver's, in a private copy.

use binder_uapi::*;

use crate::buffer::types::HeldObject;
use crate::driver::Driver;
use crate::errno::Errno;
use crate::host::Host;
use crate::keys::ProcessId;
use crate::objects::types::Strength;
use crate::transaction::descriptors::{translate_fd, translate_fd_array};
use crate::transaction::scatter_gather::Gather;
use crate::transaction::types::{ObjectPlace, Parcel, Sender};

impl Driver {
    /// Translates all objects; they must be in the order of the offsets without overlap (`EFAULT`).
    /// On an error, the counts taken so far are in `parcel.held`.
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
