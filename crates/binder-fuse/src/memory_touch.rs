//! Reads the memory that a call will access, so that the access of the event loop does not wait for
//! it: on a thread of its own, as a client's memory may never answer.
//!
//! The call reads the memory again. A client that makes it late once more is charged again.

use std::io;
use std::sync::Arc;

use binder_uapi::{BinderWriteRead, Command, CommandReader};
use headroom_linux::sched::leave_realtime;

use crate::client_access::{BlockedAccess, Progress};
use crate::client_memory;
use crate::loop_threads::LoopThreads;

/// Bytes of a thread's stack. All of it is resident once the daemon locks its memory.
const STACK: usize = 64 << 10;
/// Commands of a call that are searched for parcels: the driver reads as many at a time.
const MAX_COMMAND_BYTES: u64 = 4096;
/// Bytes of a parcel's data, or of its offsets, that are touched: no receive buffer is larger.
const MAX_PARCEL_BYTES: u64 = 4 << 20;
/// Bytes of a read buffer that are touched. Returns are shorter.
const MAX_READ_BYTES: u64 = 4096;

/// Starts a thread that touches the memory of a thread's call. It signals `threads` afterwards.
pub(crate) fn start(
    threads: &Arc<LoopThreads>,
    tid: u32,
    bwr: BinderWriteRead,
) -> io::Result<BlockedAccess> {
    let progress = Arc::new(Progress::default());
    let access = BlockedAccess::new(Arc::clone(&progress));
    let threads = Arc::clone(threads);
    let thread = std::thread::Builder::new().name("memory-touch".into()).stack_size(STACK);
    thread.spawn(move || {
        // The event loop's real-time priority is inherited.
        leave_realtime(0);
        touch_call(tid, &bwr);
        progress.complete(Ok(()));
        threads.signal_return();
    })?;
    Ok(access)
}

fn touch_call(tid: u32, bwr: &BinderWriteRead) {
    touch(tid, bwr.read_buffer, bwr.read_size.min(MAX_READ_BYTES));
    let left = bwr.write_size.saturating_sub(bwr.write_consumed).min(MAX_COMMAND_BYTES);
    let mut commands = vec![0; left as usize];
    let address = bwr.write_buffer.wrapping_add(bwr.write_consumed);
    if client_memory::read(tid, address, &mut commands).is_err() {
        return;
    }
    for command in CommandReader::new(&commands).map_while(Result::ok) {
        if let Command::Transaction { data, .. } | Command::Reply { data, .. } = command {
            touch(tid, data.buffer, data.data_size);
            touch(tid, data.offsets, data.offsets_size);
        }
    }
}

/// Reads a byte of each page of a parcel's range.
fn touch(tid: u32, address: u64, len: u64) {
    client_memory::touch(tid, address, len.min(MAX_PARCEL_BYTES));
}

#[cfg(test)]
mod tests {
    use binder_uapi::BinderTransactionData;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;
    use crate::mapping::machine_page_size;

    fn page_bytes() -> u64 {
        machine_page_size().bytes().into()
    }

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    /// Anonymous pages, none of which is resident.
    fn pages(count: usize) -> u64 {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let len = count * page_bytes() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) };
        mapped.unwrap() as u64
    }

    fn is_resident(page: u64) -> bool {
        let (mut state, len) = (0_u8, page_bytes() as usize);
        // SAFETY: one page of a mapping of `pages`, and a live byte for its state.
        let found = unsafe { libc::mincore(page as *mut libc::c_void, len, &raw mut state) };
        assert_eq!(found, 0);
        state & 1 == 1
    }

    fn resident(at: u64, count: u64) -> Vec<bool> {
        (0..count).map(|page| is_resident(at + page * page_bytes())).collect()
    }

    #[test]
    fn the_pages_of_parcel_and_read_buffer_are_resident_afterwards() {
        let (data, offsets, returns) = (pages(4), pages(1), pages(2));
        let parcel = BinderTransactionData {
            buffer: data + page_bytes() - 1,
            data_size: page_bytes() + 2,
            offsets,
            offsets_size: 8,
            ..BinderTransactionData::default()
        };
        let mut commands = Vec::new();
        Command::Transaction { data: parcel, buffers_size: None }.write_to(&mut commands);
        let bwr = BinderWriteRead {
            write_size: commands.len() as u64,
            write_buffer: commands.as_ptr() as u64,
            read_size: 256,
            read_buffer: returns,
            ..BinderWriteRead::default()
        };
        touch_call(own_tid(), &bwr);
        assert_eq!(resident(data, 4), [true, true, true, false]);
        assert_eq!(resident(offsets, 1), [true]);
        assert_eq!(resident(returns, 2), [true, false]);
    }

    #[test]
    fn bad_addresses_are_ignored() {
        let bwr = BinderWriteRead {
            write_size: u64::MAX,
            write_buffer: u64::MAX - 3,
            read_size: u64::MAX,
            read_buffer: 8,
            ..BinderWriteRead::default()
        };
        touch_call(own_tid(), &bwr);
    }
}
