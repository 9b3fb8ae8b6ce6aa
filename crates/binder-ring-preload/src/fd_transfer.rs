//! Descriptors that the daemon sends us over a socket.

use std::ffi::c_int;

use binder_ring::page::MAX_FILES;

use crate::system;

/// Makes a pair of sockets, lets `request` name the second one to the daemon, and receives what it
/// has sent over it. Returns how many descriptors were received. `None`: not all of them, or
/// `request` has failed.
pub(crate) fn receive(
    numbers: &mut [u32; MAX_FILES],
    request: impl FnOnce(u32) -> bool,
) -> Option<usize> {
    system::keep_errno(|| {
        let sockets = system::socket_pair()?;
        let is_sent = request(sockets[1] as u32);
        let received = if is_sent { receive_from(sockets[0], numbers) } else { None };
        sockets.into_iter().for_each(system::close);
        received
    })
}

/// Closes descriptors that the daemon has passed to us: the program does not know them, or has
/// freed the buffer that contains them.
pub(crate) fn close_all(numbers: &[u32]) {
    numbers.iter().for_each(|&number| system::close(number as c_int));
}

fn receive_from(socket: c_int, numbers: &mut [u32; MAX_FILES]) -> Option<usize> {
    const CONTROL: usize = 24 + 4 * MAX_FILES;
    #[repr(align(8))]
    struct Control([u8; CONTROL]);
    let (mut control, mut byte) = (Control([0; CONTROL]), 0_u8);
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the structure consists of numbers and pointers that may be null.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    // Binder installs descriptors with O_CLOEXEC.
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: all parts of the message are ours.
    unsafe {
        if !system::receive(socket, &mut message, flags) {
            return None;
        }
        let head = libc::CMSG_FIRSTHDR(&message);
        if head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        let bytes = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
        let count = (bytes / size_of::<u32>()).min(MAX_FILES);
        std::ptr::copy_nonoverlapping(
            libc::CMSG_DATA(head),
            numbers.as_mut_ptr().cast(),
            count * size_of::<u32>(),
        );
        if message.msg_flags & libc::MSG_CTRUNC == 0 {
            return Some(count);
        }
        // The table of descriptors is full.
        close_all(&numbers[..count]);
        None
    }
}
