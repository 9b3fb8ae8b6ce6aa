//! Thin wrappers of system calls: none of them allocates or locks.

use std::ffi::CStr;

use control::lease::page;

unsafe extern "C" {
    /// From the C library; missing in the libc crate.
    fn secure_getenv(name: *const libc::c_char) -> *mut libc::c_char;
}

/// A descriptor that is closed on drop.
pub(crate) struct File(libc::c_int);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: ours, and used no more.
        unsafe { libc::close(self.0) };
    }
}

/// First descriptor number for the socket: programs rarely use those from here on, and often use
/// lower ones by number.
const OUT_OF_THE_WAY: libc::c_int = 700;
/// Maximum wait for a reply in addition to the requested time, seconds.
const PATIENCE_S: libc::time_t = 2;

/// A connection to the daemon.
pub(crate) struct Socket {
    fd: libc::c_int,
    /// Device and inode of the socket: programs close, and reuse, descriptors that they do not own.
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: ours, and used no more.
            unsafe { libc::close(self.fd) };
        }
    }
}

fn identity(fd: libc::c_int) -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: fstat fills the struct, which is valid as zeros.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

impl Socket {
    pub fn connect(path: &[u8]) -> Result<Self, &'static CStr> {
        // SAFETY: plain system calls; the address is initialised and its length is right.
        unsafe {
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            if path.len() >= address.sun_path.len() {
                return Err(c"the socket's path is too long");
            }
            for (to, from) in address.sun_path.iter_mut().zip(path) {
                *to = *from as libc::c_char;
            }
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(c"no socket");
            }
            let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
            let fd = if high < 0 {
                fd
            } else {
                libc::close(fd);
                high
            };
            let patience = libc::timeval { tv_sec: PATIENCE_S, tv_usec: 0 };
            for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let len = size_of::<libc::timeval>() as libc::socklen_t;
                libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const patience).cast(), len);
            }
            let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            if libc::connect(fd, (&raw const address).cast(), len) != 0 {
                libc::close(fd);
                return Err(c"headroom-oomd is not running");
            }
            let Some((device, inode)) = identity(fd) else {
                libc::close(fd);
                return Err(c"no socket");
            };
            Ok(Self { fd, device, inode })
        }
    }

    /// The descriptor still refers to the socket that was opened here.
    pub fn is_ours(&self) -> bool {
        identity(self.fd) == Some((self.device, self.inode))
    }

    pub fn send(&self, packet: &[u8]) -> bool {
        loop {
            // SAFETY: the packet is valid for its length.
            let sent = unsafe {
                libc::send(self.fd, packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL)
            };
            if sent >= 0 || !interrupted() {
                return sent == packet.len() as isize;
            }
        }
    }

    /// Receives one packet; returns its length.
    pub fn receive(&self, packet: &mut [u8]) -> Option<usize> {
        loop {
            // SAFETY: the buffer is valid for its length.
            let len = unsafe { libc::recv(self.fd, packet.as_mut_ptr().cast(), packet.len(), 0) };
            if len >= 0 || !interrupted() {
                return usize::try_from(len).ok().filter(|len| *len > 0);
            }
        }
    }

    /// Receives one packet and the file that was passed with it.
    pub fn receive_with_file(&self, packet: &mut [u8]) -> Option<(usize, Option<File>)> {
        #[repr(align(8))]
        struct Space([u8; 64]);
        let mut space = Space([0; 64]);
        let mut slice = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
        loop {
            // SAFETY: the header points to buffers of the lengths in it; control messages
            // are read with the macros made for it, within the length that the kernel wrote.
            unsafe {
                let mut header: libc::msghdr = std::mem::zeroed();
                header.msg_iov = &mut slice;
                header.msg_iovlen = 1;
                header.msg_control = space.0.as_mut_ptr().cast();
                header.msg_controllen = space.0.len();
                let len = libc::recvmsg(self.fd, &mut header, libc::MSG_CMSG_CLOEXEC);
                if len < 0 && interrupted() {
                    continue;
                }
                let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
                let message = libc::CMSG_FIRSTHDR(&header);
                let carries_file = !message.is_null()
                    && (*message).cmsg_level == libc::SOL_SOCKET
                    && (*message).cmsg_type == libc::SCM_RIGHTS
                    && (*message).cmsg_len == libc::CMSG_LEN(4) as usize;
                let file = carries_file
                    .then(|| File(libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned()));
                return Some((len, file));
            }
        }
    }
}

fn interrupted() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
}

/// Maps the daemon's page, in place of the one at address `at`.
pub(crate) fn map_page(file: &File, at: Option<*mut u8>) -> Option<*mut u8> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let at = at.unwrap_or(std::ptr::null_mut());
    // SAFETY: a new mapping, or one in the place of an old page of ours, which stays valid memory.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            at,
            page::BYTES,
            (libc::PROT_READ | libc::PROT_WRITE) as usize,
            (libc::MAP_SHARED | fixed) as usize,
            file.0 as usize,
            0usize,
        )
    };
    (mapped != -1).then_some(mapped as *mut u8)
}

/// Unmaps a page that is not used any more.
pub(crate) fn unmap_page(at: *mut u8) {
    // SAFETY: ours, and used no more.
    unsafe { libc::syscall(libc::SYS_munmap, at, page::BYTES) };
}

/// An environment variable; `None` in programs with more privileges than their caller.
pub(crate) fn environment(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name ends with NUL; the value is valid as long as the variable is
    // not changed, which threads must not do while others read it.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

pub(crate) fn monotonic_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

pub(crate) fn sleep_ms(ms: u64) {
    let time = libc::timespec {
        tv_sec: (ms / 1000) as libc::time_t,
        tv_nsec: (ms % 1000 * 1_000_000) as libc::c_long,
    };
    // SAFETY: reads the struct.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Writes one line to standard error, in one call.
pub(crate) fn warn(parts: &[&CStr]) {
    let mut line = [0u8; 256];
    let mut len = 0;
    for part in [c"tmalloc: "].iter().chain(parts).chain(&[c"\n"]) {
        for byte in part.to_bytes() {
            if let Some(to) = line.get_mut(len) {
                *to = *byte;
                len += 1;
            }
        }
    }
    // SAFETY: the buffer is valid for that length. A failure cannot be reported anywhere else.
    unsafe { libc::write(2, line.as_ptr().cast(), len) };
}
