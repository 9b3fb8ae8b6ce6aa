//! FUSE passthrough: the client's mapping is the mapping of a memfd that we write.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use headroom_linux::kept_fd::KeptFd;
use headroom_linux::sealed_memfd::sealed_memfd;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::MapFlags;

use super::{Backing, SavedBacking, checked_range};
use crate::channel::Channel;
use crate::shared_mapping::SharedMapping;
use crate::tree::DEVICE_SIZE;
use crate::wire::types::{FOPEN_DIRECT_IO, FOPEN_PASSTHROUGH};

/// One open's memfd. It is sparse: only pages with stored data exist.
pub(crate) struct Passthrough {
    channel: Arc<Channel>,
    memfd: File,
    backing_id: i32,
    /// Created at the first store: an open that never receives uses no address space.
    view: Option<SharedMapping>,
}

impl Passthrough {
    /// A memfd registered as backing file. Fails without `CAP_SYS_ADMIN` in the first user
    /// namespace, and before Linux 6.9.
    pub(crate) fn new(channel: &Arc<Channel>) -> io::Result<Self> {
        // Writing cannot be sealed: we write, and punch holes.
        let memfd = File::from(sealed_memfd("binder-buffers", DEVICE_SIZE)?);
        let backing_id = channel.backing_open(&memfd)?;
        Ok(Self { channel: Arc::clone(channel), memfd, backing_id, view: None })
    }

    /// The memfd of a state, which the kernel knows by this id.
    pub(crate) fn restore(channel: &Arc<Channel>, memfd: OwnedFd, backing_id: i32) -> Self {
        Self { channel: Arc::clone(channel), memfd: memfd.into(), backing_id, view: None }
    }

    fn view(&mut self) -> io::Result<*mut u8> {
        let view = match self.view.take() {
            Some(view) => view,
            None => SharedMapping::new(&self.memfd, DEVICE_SIZE as usize, MapFlags::empty())?,
        };
        Ok(self.view.insert(view).start().as_ptr())
    }
}

impl Backing for Passthrough {
    fn store(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = checked_range(offset, bytes.len() as u64)?;
        let view = self.view()?;
        // SAFETY: the range lies in the view. The client may read or write the same memory at the
        // same time; we form no reference to it and never read it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), view.add(range.start), bytes.len())
        };
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let range = checked_range(offset, len)?;
        let view = self.view()?;
        // SAFETY: as in `store`.
        unsafe { std::ptr::write_bytes(view.add(range.start), 0, range.len()) };
        Ok(())
    }

    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
        checked_range(offset, len)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.memfd, flags, offset, len)?)
    }

    fn open_reply(&self) -> (u32, i32) {
        // DIRECT_IO: read(2) and write(2) still come to us, and are refused.
        (FOPEN_PASSTHROUGH | FOPEN_DIRECT_IO, self.backing_id)
    }

    fn save(&self) -> SavedBacking {
        let memfd = KeptFd::of(&self.memfd);
        SavedBacking::Passthrough { memfd, backing_id: self.backing_id }
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        self.channel.backing_close(self.backing_id);
    }
}
