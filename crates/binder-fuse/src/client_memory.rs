//! Reading and writing in a client's address space: `process_vm_readv`/`process_vm_writev`.
//!
//! The client's thread is blocked in its ioctl while we do this, so its tid cannot have been
//! reused.

use binder_driver::{Fault, Piece};

/// Maximum number of ranges of one call (`IOV_MAX`).
const PIECES_PER_CALL: usize = 1024;

/// Fills `into`, or fails.
pub(crate) fn read(tid: u32, address: u64, into: &mut [u8]) -> Result<(), Fault> {
    read_pieces(tid, &[Piece { address, at: 0, len: into.len() }], into)
}

/// Reads all pieces to their places, or fails as a whole.
pub(crate) fn read_pieces(tid: u32, pieces: &[Piece], into: &mut [u8]) -> Result<(), Fault> {
    for chunk in pieces.chunks(PIECES_PER_CALL) {
        let mut local = [EMPTY; 4];
        let mut remote = [EMPTY; 4];
        if chunk.len() <= local.len() {
            read_chunk(tid, chunk, into, &mut local, &mut remote)?;
        } else {
            let (mut local, mut remote) = (vec![EMPTY; chunk.len()], vec![EMPTY; chunk.len()]);
            read_chunk(tid, chunk, into, &mut local, &mut remote)?;
        }
    }
    Ok(())
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn read_chunk(
    tid: u32,
    pieces: &[Piece],
    into: &mut [u8],
    local: &mut [libc::iovec],
    remote: &mut [libc::iovec],
) -> Result<(), Fault> {
    let mut total = 0;
    for (i, piece) in pieces.iter().enumerate() {
        let end = piece.at.checked_add(piece.len).ok_or(Fault)?;
        let place = into.get_mut(piece.at..end).ok_or(Fault)?;
        let iov_len = piece.len;
        local[i] = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len };
        remote[i] = libc::iovec { iov_base: piece.address as *mut libc::c_void, iov_len };
        total += iov_len;
    }
    if total == 0 {
        return Ok(());
    }
    let count = pieces.len() as libc::c_ulong;
    // SAFETY: each local vector is within a slice that is exclusively borrowed until after the
    // call; the remote addresses may be invalid, the kernel checks them.
    let copied = unsafe {
        libc::process_vm_readv(tid as libc::pid_t, local.as_ptr(), count, remote.as_ptr(), count, 0)
    };
    if copied == total as isize { Ok(()) } else { Err(Fault) }
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
    if copied == bytes.len() as isize { Ok(()) } else { Err(Fault) }
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
        read_pieces(own_tid(), &pieces, &mut into).unwrap();
        assert_eq!(&into, b"binder hello");
    }

    #[test]
    fn more_ranges_than_one_call_takes_are_read_all_the_same() {
        let source: Vec<u8> = (0..3000_u32).map(|i| i as u8).collect();
        let mut target = vec![0; source.len()];
        let base = source.as_ptr() as u64;
        let pieces = (0..source.len()).map(|at| Piece { address: base + at as u64, at, len: 1 });
        read_pieces(own_tid(), &pieces.collect::<Vec<_>>(), &mut target).unwrap();
        assert_eq!(source, target);
    }

    #[test]
    fn a_piece_beyond_the_parcel_is_a_fault() {
        let source = *b"hello";
        let piece = |at, len| Piece { address: source.as_ptr() as u64, at, len };
        for wrong in [piece(4, 5), piece(usize::MAX, 2)] {
            assert_eq!(read_pieces(own_tid(), &[wrong], &mut [0; 8]), Err(Fault));
        }
    }

    #[test]
    fn a_bad_pointer_is_a_fault_and_nothing_more() {
        let mut into = [0; 8];
        assert_eq!(read(own_tid(), 8, &mut into), Err(Fault));
        assert_eq!(write(own_tid(), 8, &[1]), Err(Fault));
        assert_eq!(write(own_tid(), u64::MAX - 3, &[1; 8]), Err(Fault));
        assert_eq!(write(own_tid(), 0, &[]), Ok(()), "nothing to write is no fault");
    }

    #[test]
    fn a_write_lands_where_it_should() {
        let target = [std::cell::Cell::new(0_u8), std::cell::Cell::new(0)];
        write(own_tid(), target.as_ptr() as u64, &[7, 9]).unwrap();
        assert_eq!((target[0].get(), target[1].get()), (7, 9));
    }
}
