//! Scatter-gather buffers: `BINDER_TYPE_PTR` objects, copied behind the offsets, with the pointers
//! to them fixed up in their parents.

use binder_uapi::{BINDER_BUFFER_FLAG_HAS_PARENT, BINDER_TYPE_PTR, BinderBufferObject};

use crate::host::{Errno, Host};
use crate::transaction::parcel::{ObjectPlace, Parcel};
use crate::transaction::send::Sender;

/// Position of the last fix-up: later ones are allowed only in that object or its ancestors, and
/// only behind it.
#[derive(Clone, Copy, Debug)]
struct LastFixup {
    /// Offset of the parent object.
    object: u64,
    /// Lowest offset inside the parent's buffer that may be written next.
    lowest: u64,
}

/// State of one parcel's scatter-gather buffers.
#[derive(Debug)]
pub struct Gather {
    /// Offset in the parcel for the next buffer.
    next: u64,
    end: u64,
    last: Option<LastFixup>,
}

impl Gather {
    pub fn new(parcel: &Parcel<'_>) -> Self {
        Self { next: parcel.layout.extra_at, end: parcel.layout.extra_end, last: None }
    }

    /// Copies the buffer of the object at `place`, and sets the pointers in the object and its
    /// parent to the receiver's copy.
    pub fn buffer<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        parcel: &mut Parcel<'_>,
        place: ObjectPlace,
    ) -> Result<(), Errno> {
        let ObjectPlace { index, at } = place;
        let object: BinderBufferObject = parcel.get(at)?;
        if object.length > self.end - self.next {
            return Err(Errno::EINVAL);
        }
        let start = self.next;
        let into = &mut parcel.bytes[start as usize..(start + object.length) as usize];
        if !into.is_empty() {
            let read = host.read(sender.caller, object.buffer, into);
            read.map_err(|fault| fault.errno(Errno::EINVAL))?;
        }
        // The extra space is padded to 8, so the next start cannot pass its end.
        self.next = start + object.length.next_multiple_of(8);
        let address = parcel.address.wrapping_add(start);
        if object.flags & BINDER_BUFFER_FLAG_HAS_PARENT != 0 {
            let slot = self.parent_slot(parcel, index, &object, 8)?;
            parcel.put(slot, &address)?;
        }
        parcel.put(at, &BinderBufferObject { buffer: address, ..object })?;
        self.last = Some(LastFixup { object: at, lowest: 0 });
        Ok(())
    }

    /// Data was written into the buffer of `object`: later fix-ups must be behind it.
    pub fn fixed_up(&mut self, object: u64, lowest: u64) {
        self.last = Some(LastFixup { object, lowest });
    }

    /// Offset in the parcel of `len` bytes for a child: the pointer to it, or its descriptors.
    pub fn parent_slot(
        &self,
        parcel: &Parcel<'_>,
        index: u64,
        child: &BinderBufferObject,
        len: u64,
    ) -> Result<u64, Errno> {
        if child.parent >= index {
            return Err(Errno::EINVAL);
        }
        let parent_at = parcel.object_at(child.parent)?;
        let parent = pointer_object(parcel, parent_at)?;
        let lowest = self.lowest_slot(parcel, parent_at)?;
        let room = parent.length.checked_sub(len).ok_or(Errno::EINVAL)?;
        if child.parent_offset < lowest || child.parent_offset > room {
            return Err(Errno::EINVAL);
        }
        // The pointers of earlier objects refer to the receiver's copy already.
        Ok(parent.buffer.wrapping_sub(parcel.address) + child.parent_offset)
    }

    /// Walks from the last fixed-up object to its ancestors; `EINVAL` if `parent_at` is not among
    /// them. Returns the lowest offset that may be written there.
    fn lowest_slot(&self, parcel: &Parcel<'_>, parent_at: u64) -> Result<u64, Errno> {
        let LastFixup { mut object, mut lowest } = self.last.ok_or(Errno::EINVAL)?;
        while object != parent_at {
            let last = pointer_object(parcel, object)?;
            if last.flags & BINDER_BUFFER_FLAG_HAS_PARENT == 0 {
                return Err(Errno::EINVAL);
            }
            lowest = last.parent_offset + 8;
            object = parcel.object_at(last.parent)?;
        }
        Ok(lowest)
    }
}

fn pointer_object(parcel: &Parcel<'_>, at: u64) -> Result<BinderBufferObject, Errno> {
    let object: BinderBufferObject = parcel.get(at)?;
    if object.ty == BINDER_TYPE_PTR { Ok(object) } else { Err(Errno::EINVAL) }
}
