//! Reading and writing in a client's address space: `process_vm_readv`/`process_vm_writev`.
//!
//! The client's thread is blocked in its ioctl while we do this, so its tid cannot have been reused.

use binder_driver::{Fault, ReadPart};

/// Ranges a call takes at most (`IOV_MAX`).
const PARTS_PER_CALL: usize = 1024;

/// Fills every part, or fails as a whole.
pub(crate) fn read(tid: u32, parts: &mut [ReadPart<'_>]) -> Result<(), Fault> {
    for chunk in parts.chunks_mut(PARTS_PER_CALL) {
        let mut local = [EMPTY; 4];
        let mut remote = [EMPTY; 4];
        if chunk.len() <= local.len() {
            read_chunk(tid, chunk, &mut local, &mut remote)?;
        } else {
            let (mut local, mut remote) = (vec![EMPTY; chunk.len()], vec![EMPTY; chunk.len()]);
            read_chunk(tid, chunk, &mut local, &mut remote)?;
        }
    }
    Ok(())
}

/// Reads all ranges (address and bytes) into one buffer, one behind the other, or fails as a whole. The buffer may be
/// longer than they are.
pub(crate) fn read_into(
    tid: u32,
    ranges: &[(u64, usize)],
    into: &mut Vec<u8>,
) -> Result<(), Fault> {
    let total = ranges.iter().map(|range| range.1).sum();
    if into.len() < total {
        into.resize(total, 0);
    }
    let mut rest = &mut into[..total];
    for chunk in ranges.chunks(PARTS_PER_CALL) {
        let len = chunk.iter().map(|range| range.1).sum();
        let (head, tail) = rest.split_at_mut(len);
        rest = tail;
        let mut few = [EMPTY; 4];
        let many: Vec<libc::iovec>;
        let remote = if chunk.len() <= few.len() {
            few.iter_mut().zip(chunk).for_each(|(part, range)| *part = remote_part(*range));
            &few[..chunk.len()]
        } else {
            many = chunk.iter().copied().map(remote_part).collect();
            &many[..]
        };
        if len == 0 {
            continue;
        }
        let local = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: len };
        let count = remote.len() as libc::c_ulong;
        // SAFETY: the local vector is an exclusively borrowed slice that outlives the call; the remote addresses are
        // the client's affair, the kernel checks them.
        let copied = unsafe {
            libc::process_vm_readv(tid as libc::pid_t, &local, 1, remote.as_ptr(), count, 0)
        };
        if copied != len as isize {
            return Err(Fault);
        }
    }
    Ok(())
}

fn remote_part((address, len): (u64, usize)) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn read_chunk(
    tid: u32,
    parts: &mut [ReadPart<'_>],
    local: &mut [libc::iovec],
    remote: &mut [libc::iovec],
) -> Result<(), Fault> {
    let mut total = 0;
    for (i, part) in parts.iter_mut().enumerate() {
        let iov_len = part.into.len();
        local[i] = libc::iovec { iov_base: part.into.as_mut_ptr().cast(), iov_len };
        remote[i] = libc::iovec { iov_base: part.address as *mut libc::c_void, iov_len };
        total += iov_len;
    }
    if total == 0 {
        return Ok(());
    }
    let count = parts.len() as libc::c_ulong;
    // SAFETY: each local vector is an exclusively borrowed slice that outlives the call; the remote
    // addresses are the client's affair, the kernel checks them.
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
    // SAFETY: the local vector is a borrowed slice that the call only reads; the remote address is the
    // client's affair, the kernel checks it.
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
        let (mut a, mut b) = ([0; 5], [0; 6]);
        let mut parts = [
            ReadPart { address: first.as_ptr() as u64, into: &mut a },
            ReadPart { address: second.as_ptr() as u64, into: &mut b },
        ];
        read(own_tid(), &mut parts).unwrap();
        assert_eq!((&a, &b), (b"hello", b"binder"));
    }

    #[test]
    fn more_ranges_than_one_call_takes_are_read_all_the_same() {
        let source: Vec<u8> = (0..3000_u32).map(|i| i as u8).collect();
        let mut target = vec![0; source.len()];
        let base = source.as_ptr() as u64;
        let mut parts: Vec<_> = target
            .chunks_mut(1)
            .enumerate()
            .map(|(i, into)| ReadPart { address: base + i as u64, into })
            .collect();
        read(own_tid(), &mut parts).unwrap();
        assert_eq!(source, target);
        let ranges: Vec<_> = (0..source.len()).map(|i| (base + i as u64, 1)).collect();
        let mut target = Vec::new();
        read_into(own_tid(), &ranges, &mut target).unwrap();
        assert_eq!(source, target);
    }

    #[test]
    fn a_bad_pointer_is_a_fault_and_nothing_more() {
        let mut into = [0; 8];
        let parts = &mut [ReadPart { address: 8, into: &mut into }];
        assert_eq!(read(own_tid(), parts), Err(Fault));
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
