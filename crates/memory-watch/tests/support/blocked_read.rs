//! A system call that uses the memory of another process for as long as the test wants.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::thread::JoinHandle;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const PAGE: usize = 4096;
const API: u64 = 0xaa;
const MISSING: u64 = 1;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UFFDIO_ZEROPAGE: libc::Ioctl = 0xc020_aa04_u32 as libc::Ioctl;

/// A read of another process's memory whose own page is missing. It ends on drop.
pub struct BlockedRead {
    faults: OwnedFd,
    page: u64,
    reader: Option<JoinHandle<()>>,
}

impl BlockedRead {
    /// Reads the first mapping of the process.
    pub fn start(pid: u32) -> io::Result<Self> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let begin = maps.split('-').next().and_then(|text| usize::from_str_radix(text, 16).ok());
        let remote = begin.ok_or_else(|| io::Error::other("no mapping"))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new page, which stays mapped.
        let page = unsafe { mmap_anonymous(null_mut(), PAGE, protection, flags) }?;
        let page = page.expose_provenance();
        // SAFETY: takes an integer.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut read = Self { faults, page: page as u64, reader: None };
        read.control(UFFDIO_API, [API, 0, 0, 0])?;
        read.control(UFFDIO_REGISTER, [page as u64, PAGE as u64, MISSING, 0])?;
        read.reader = Some(std::thread::spawn(move || {
            let at = |address: usize| libc::iovec {
                iov_base: with_exposed_provenance_mut(address),
                iov_len: 1,
            };
            let (local, remote) = (at(page), at(remote));
            // SAFETY: the local page is written by no one else, the remote one is not ours.
            unsafe { libc::process_vm_readv(pid as i32, &local, 1, &remote, 1, 0) };
        }));
        Ok(read)
    }

    fn control(&self, request: libc::Ioctl, mut argument: [u64; 4]) -> io::Result<()> {
        // SAFETY: the argument has the size of the largest of the three structures.
        let done = unsafe { libc::ioctl(self.faults.as_raw_fd(), request, argument.as_mut_ptr()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for BlockedRead {
    fn drop(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        self.control(UFFDIO_ZEROPAGE, [self.page, PAGE as u64, 0, 0]).expect("zeropage");
        let _ = reader.join();
    }
}
