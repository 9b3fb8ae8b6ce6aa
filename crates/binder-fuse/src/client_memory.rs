//! Reading and writing in a client's address space: the only module that does.
//!
//! While a thread is blocked in its ioctl, its tid cannot mean another thread, and its process
//! cannot execute another program: `process_vm_readv` and `process_vm_writev` access it by number.
//! At any other time only a [`MemoryHandle`] accesses it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use binder_driver::{Fault, Piece};

use crate::mapping::machine_page_size;

/// Maximum number of ranges of one call (`IOV_MAX`).
const PIECES_PER_CALL: usize = 1024;

/// Fills `into`, or fails.
pub(crate) fn read(tid: u32, address: u64, into: &mut [u8]) -> Result<(), Fault> {
    let piece = Piece { address, at: 0, len: into.len() };
    if read_pieces(tid, &[piece], into) == 1 { Ok(()) } else { Err(Fault::BadAddress) }
}

/// Reads pieces to their places, in their order until one faults. Returns how many were read
/// completely.
pub(crate) fn read_pieces(tid: u32, pieces: &[Piece], into: &mut [u8]) -> usize {
    let mut complete = 0;
    for chunk in pieces.chunks(PIECES_PER_CALL) {
        let mut local = [EMPTY; 4];
        let mut remote = [EMPTY; 4];
        let read = if chunk.len() <= local.len() {
            read_chunk(tid, chunk, into, &mut local, &mut remote)
        } else {
            let (mut local, mut remote) = (vec![EMPTY; chunk.len()], vec![EMPTY; chunk.len()]);
            read_chunk(tid, chunk, into, &mut local, &mut remote)
        };
        complete += read;
        if read < chunk.len() {
            break;
        }
    }
    complete
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// See [`read_pieces`]; a piece outside of `into` is read like one that faults.
fn read_chunk(
    tid: u32,
    pieces: &[Piece],
    into: &mut [u8],
    local: &mut [libc::iovec],
    remote: &mut [libc::iovec],
) -> usize {
    let mut count = 0;
    for piece in pieces {
        let end = piece.at.checked_add(piece.len);
        let Some(place) = end.and_then(|end| into.get_mut(piece.at..end)) else { break };
        let iov_len = piece.len;
        local[count] = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len };
        remote[count] = libc::iovec { iov_base: piece.address as *mut libc::c_void, iov_len };
        count += 1;
    }
    let vectors = count as libc::c_ulong;
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    // SAFETY: each local vector is within a slice that is exclusively borrowed until after the
    // call; the remote addresses may be invalid, the kernel checks them.
    let copied =
        unsafe { libc::process_vm_readv(tid as libc::pid_t, local, vectors, remote, vectors, 0) };
    // -1: nothing was read, or the thread has exited.
    let Ok(mut copied) = usize::try_from(copied) else { return 0 };
    let is_complete = |piece: &&Piece| {
        let left = copied.checked_sub(piece.len);
        copied = left.unwrap_or(0);
        left.is_some()
    };
    pieces[..count].iter().take_while(is_complete).count()
}

/// Writes all of `bytes`, or fails (some of them may have been written then).
pub(crate) fn write(tid: u32, address: u64, bytes: &[u8]) -> Result<(), Fault> {
    if bytes.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the local vector is a borrowed slice that the call only reads; the remote address may
    // be invalid, the kernel checks it.
    let copied = unsafe { libc::process_vm_writev(tid as libc::pid_t, &local, 1, &remote, 1, 0) };
    if copied == bytes.len() as isize { Ok(()) } else { Err(Fault::BadAddress) }
}

/// Reads a byte of each page of a range, so that the next access does not wait for it. Nothing
/// depends on the result: the thread need not be in its ioctl any more.
pub(crate) fn touch(tid: u32, address: u64, len: u64) {
    touch_all(tid, [(address, len)]);
}

/// As [`touch`], of several ranges.
fn touch_all(tid: u32, ranges: impl IntoIterator<Item = (u64, u64)>) {
    let pieces: Vec<_> = ranges.into_iter().flat_map(a_byte_of_each_page).collect();
    // A bad address makes the access fail that follows.
    read_pieces(tid, &pieces, &mut [0]);
}

/// All at the beginning of what they are read into.
fn a_byte_of_each_page((address, len): (u64, u64)) -> impl Iterator<Item = Piece> {
    let page_bytes = u64::from(machine_page_size().bytes());
    let first_page = address / page_bytes;
    let pages = first_page..address.saturating_add(len).div_ceil(page_bytes).max(first_page);
    pages.map(move |page| Piece { address: address.max(page * page_bytes), at: 0, len: 1 })
}

/// Bytes to write to memory.
#[derive(Debug)]
pub(crate) struct MemoryWrite {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The address space of a thread that we trace.
///
/// Writes reach that address space only, also once the thread has exited or its process executes
/// another program: `/proc/TID/mem` stays bound to the address space that it was opened for. Unlike
/// an access by number they ignore the protection of private pages.
///
/// Reads name the thread by its number, which may mean another program by then. A request of the
/// tracer has to follow before anything depends on what was read: it fails in this case.
#[derive(Debug)]
pub(crate) struct MemoryHandle {
    tid: u32,
    memory: File,
}

impl MemoryHandle {
    /// Of a thread that is blocked in its ioctl.
    pub(crate) fn open(tid: u32) -> io::Result<Self> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{tid}/mem"))?;
        Ok(Self { tid, memory })
    }

    /// Fills `into`, or fails.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        read(self.tid, address, into)
    }

    /// As [`read`](Self::read), of the beginning of a range of `len` bytes, to which
    /// [`write_present`](Self::write_present) writes next.
    pub(crate) fn read_before_write(
        &self,
        address: u64,
        into: &mut [u8],
        len: u64,
    ) -> Result<(), Fault> {
        let mut pieces = vec![Piece { address, at: 0, len: into.len() }];
        pieces.extend(
            a_byte_of_each_page((address, len))
                .skip(1)
                .map(|piece| Piece { at: into.len(), ..piece }),
        );
        let mut bytes = vec![0; into.len() + 1];
        let read = read_pieces(self.tid, &pieces, &mut bytes);
        into.copy_from_slice(&bytes[..into.len()]);
        if read > 0 { Ok(()) } else { Err(Fault::BadAddress) }
    }

    /// Writes all of `bytes`, or fails (some of them may have been written then).
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        touch(self.tid, address, bytes.len() as u64);
        self.write_present(address, bytes)
    }

    /// Makes all writes, or fails (some of them may have been made then).
    pub(crate) fn write_all(&self, writes: &[MemoryWrite]) -> Result<(), Fault> {
        touch_all(self.tid, writes.iter().map(|write| (write.address, write.bytes.len() as u64)));
        writes.iter().try_for_each(|write| self.write_present(write.address, &write.bytes))
    }

    /// As [`write`](Self::write), of bytes whose pages were just read: this access holds the lock
    /// of the memory map while it waits for a page, and a client that provides the page itself may
    /// need that lock. `process_vm_readv` releases it.
    pub(crate) fn write_present(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.memory.write_all_at(bytes, position(address)).map_err(|_| Fault::BadAddress)
    }
}

/// Without the tag that user addresses of arm64 may have: positions in a file are not negative.
fn position(address: u64) -> u64 {
    if cfg!(target_arch = "aarch64") { address & (u64::MAX >> 8) } else { address }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn several_ranges_are_read_in_one_go() {
        let (first, second) = (*b"hello", *b"binder");
        let pieces = [
            Piece { address: first.as_ptr() as u64, at: 7, len: 5 },
            Piece { address: second.as_ptr() as u64, at: 0, len: 6 },
        ];
        let mut into = *b"------ -----";
        assert_eq!(read_pieces(own_tid(), &pieces, &mut into), 2);
        assert_eq!(&into, b"binder hello");
    }

    #[test]
    fn more_ranges_than_one_call_takes_are_read_all_the_same() {
        let source: Vec<u8> = (0..3000_u32).map(|i| i as u8).collect();
        let mut target = vec![0; source.len()];
        let base = source.as_ptr() as u64;
        let pieces = (0..source.len()).map(|at| Piece { address: base + at as u64, at, len: 1 });
        let read = read_pieces(own_tid(), &pieces.collect::<Vec<_>>(), &mut target);
        assert_eq!(read, source.len());
        assert_eq!(source, target);
    }

    #[test]
    fn a_piece_beyond_the_parcel_is_a_fault() {
        let source = *b"hello";
        let piece = |at, len| Piece { address: source.as_ptr() as u64, at, len };
        for wrong in [piece(4, 5), piece(usize::MAX, 2)] {
            assert_eq!(read_pieces(own_tid(), &[wrong], &mut [0; 8]), 0);
        }
    }

    #[test]
    fn pieces_in_front_of_a_bad_pointer_are_read() {
        let (first, last) = (*b"hello", *b"binder");
        let piece = |address, at, len| Piece { address, at, len };
        let pieces = [
            piece(first.as_ptr() as u64, 0, 5),
            piece(0, 5, 0),
            piece(8, 5, 1),
            piece(last.as_ptr() as u64, 6, 6),
        ];
        let mut into = [0; 12];
        assert_eq!(read_pieces(own_tid(), &pieces, &mut into), 2, "an empty piece cannot fault");
        assert_eq!(&into[..5], b"hello");
    }

    #[test]
    fn a_bad_pointer_is_a_fault_and_nothing_more() {
        let mut into = [0; 8];
        assert_eq!(read(own_tid(), 8, &mut into), Err(Fault::BadAddress));
        assert_eq!(write(own_tid(), 8, &[1]), Err(Fault::BadAddress));
        assert_eq!(write(own_tid(), u64::MAX - 3, &[1; 8]), Err(Fault::BadAddress));
        assert_eq!(write(own_tid(), 0, &[]), Ok(()), "nothing to write is no fault");
    }

    #[test]
    fn a_write_lands_where_it_should() {
        let target = [std::cell::Cell::new(0_u8), std::cell::Cell::new(0)];
        write(own_tid(), target.as_ptr() as u64, &[7, 9]).unwrap();
        assert_eq!((target[0].get(), target[1].get()), (7, 9));
    }

    #[test]
    fn a_handle_accesses_the_address_space_that_it_was_opened_for() {
        let target = [std::cell::Cell::new(0_u8), std::cell::Cell::new(0)];
        let handle = MemoryHandle::open(own_tid()).unwrap();
        handle.write(target.as_ptr() as u64, &[7, 9]).unwrap();
        assert_eq!((target[0].get(), target[1].get()), (7, 9));
        let mut read = [0; 2];
        handle.read(target.as_ptr() as u64, &mut read).unwrap();
        assert_eq!(read, [7, 9]);
        assert_eq!(handle.write(8, &[1]), Err(Fault::BadAddress));
        assert_eq!(handle.write(u64::MAX - 3, &[1; 8]), Err(Fault::BadAddress));
    }

    #[test]
    fn a_handle_does_not_reach_the_program_that_its_process_executes_later() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read line; exec sleep 1000"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let stack = |maps: &str| {
            let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
            u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap()
        };
        let handle = MemoryHandle::open(child.id()).unwrap();
        let (before, mut byte) = (maps(), [0]);
        assert_eq!(handle.read(stack(&before), &mut byte), Ok(()));
        drop(child.stdin.take());
        let begun = std::time::Instant::now();
        while !maps().contains("sleep") {
            assert!(begun.elapsed().as_secs() < 60, "it executes nothing");
            std::thread::yield_now();
        }
        let after = maps();
        assert_eq!(read(child.id(), stack(&after), &mut byte), Ok(()));
        assert_eq!(handle.write(stack(&after), &byte), Err(Fault::BadAddress));
        let write = MemoryWrite { address: stack(&after), bytes: byte.to_vec() };
        assert_eq!(handle.write_all(&[write]), Err(Fault::BadAddress));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
