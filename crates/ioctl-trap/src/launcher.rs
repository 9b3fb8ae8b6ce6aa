//! Launcher: used by a program that starts both the server of a bus and its clients. It installs
//! the filter in each client, and passes the listener to the server.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use binder_uapi::ioctl::BINDER_WRITE_READ;
use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, c_ulong, sock_filter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::{HeldCalls, Listener};

/// `AUDIT_ARCH_*` of this program's own calls; the filter ignores calls of other architectures.
const ARCHITECTURE: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64"))
{
    Some(0xc000_003e)
} else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
    Some(0xc000_00b7)
} else {
    None
};

/// With this flag (Linux 5.19) only a fatal signal interrupts a call that the listener has
/// received; all other signals wait until the call proceeds.
const WAIT_KILLABLE: c_ulong = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

/// Offsets in `struct seccomp_data`. The request of an ioctl is its second argument, of which the
/// kernel uses the lower half.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const REQUEST_AT: u32 = 24;

const fn load(offset: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Continues with the next instruction if the value is equal, else skips `skips` instructions.
const fn only(value: u32, skips: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 0, jf: skips, k: value }
}

const fn answer(action: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: action }
}

/// Installs the filter in the calling thread and in everything that it starts; it cannot be
/// removed. Returns the listener, close-on-exec.
///
/// Requires `CAP_SYS_ADMIN` in the user namespace (or no-new-privileges, which the caller may set).
/// `EBUSY`: the thread already has a listener; `EINVAL`: the kernel supports none (before Linux
/// 5.5). Makes system calls only: may be called between `fork` and `exec`.
pub fn install() -> io::Result<OwnedFd> {
    let architecture = ARCHITECTURE.ok_or(io::ErrorKind::Unsupported)?;
    let mut program = [
        load(ARCHITECTURE_AT),
        only(architecture, 5),
        load(NUMBER_AT),
        only(libc::SYS_ioctl as u32, 3),
        load(REQUEST_AT),
        only(BINDER_WRITE_READ, 1),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let waits = if check_wait_killable().is_ok() { WAIT_KILLABLE } else { 0 };
    // SAFETY: the program and its instructions live across the call.
    unsafe { set_filter(&program, flags | waits) }
}

/// The kernel lets signals wait until a call proceeds, or the error if it does not. Makes one
/// system call, for a filter that does not exist: the kernel checks the flags first.
pub fn check_wait_killable() -> io::Result<()> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE;
    // SAFETY: the kernel does not follow the null pointer.
    match unsafe { set_filter(std::ptr::null(), flags) } {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        installed => installed.map(drop),
    }
}

/// # Safety
///
/// The program is null, or valid during the call, which copies it.
unsafe fn set_filter(program: *const libc::sock_fprog, flags: c_ulong) -> io::Result<OwnedFd> {
    // SAFETY: by the caller; the returned descriptor is new and has no other owner.
    unsafe {
        let operation = libc::SECCOMP_SET_MODE_FILTER;
        let fd = libc::syscall(libc::SYS_seccomp, operation, flags, program);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as i32)) }
    }
}

/// Maximum number of descriptors in one message: a listener, and the memory of its `HeldCalls`.
const MOST: usize = 2;

/// Installs the filter, and sends the listener, or the errno of the failure. Makes system calls
/// only: may be called between `fork` and `exec`. Fails if the message cannot be sent.
pub fn offer(socket: BorrowedFd<'_>) -> io::Result<()> {
    match install() {
        Ok(listener) => send(socket, 0, &[listener.as_fd()]),
        Err(error) => send(socket, error.raw_os_error().unwrap_or(libc::ENOSYS), &[]),
    }
}

/// Sends an errno (0: none) and up to two descriptors over a `SOCK_SEQPACKET` socket.
pub fn send(socket: BorrowedFd<'_>, errno: i32, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&errno.to_ne_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for a message and returns it. `UnexpectedEof`: the other end is closed.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<(i32, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut errno = [0; 4];
    let parts = &mut [IoSliceMut::new(&mut errno)];
    let received = recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes < 4 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    Ok((i32::from_ne_bytes(errno), fds))
}

/// How long the server may take to confirm that it serves a listener, which is little work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs clients under filters that the server serves, and replaces the server if it is killed:
/// calls then fail as on any bus without a server.
#[derive(Debug)]
pub struct Launcher {
    /// Our end of the socket pair with the server; `server_end` is kept until the server is
    /// started.
    server: OwnedFd,
    server_end: Option<OwnedFd>,
    /// Receives the listeners of the clients that we start, which send them through `offer_end`.
    offers: OwnedFd,
    offer_end: OwnedFd,
    standbys: Vec<(Listener, HeldCalls)>,
    deserted: bool,
}

fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Launcher {
    /// Creates a launcher without clients.
    pub fn new() -> io::Result<Self> {
        let (server, server_end) = sockets()?;
        let (offers, offer_end) = sockets()?;
        let (standbys, deserted) = (Vec::new(), false);
        Ok(Self { server, server_end: Some(server_end), offers, offer_end, standbys, deserted })
    }

    /// Passes the server a socket from which it receives listeners (`--listeners FD`).
    pub fn connect(&mut self, server: &mut Command) {
        let Some(end) = self.server_end.take() else { return };
        server.args(["--listeners", &end.as_raw_fd().to_string()]);
        // SAFETY: one system call, on a descriptor that the closure owns.
        unsafe {
            server
                .pre_exec(move || Ok(rustix::io::fcntl_setfd(&end, rustix::io::FdFlags::empty())?));
        }
    }

    /// Runs the command under a filter. Must be the last `pre_exec` closure of the command.
    pub fn bait(&self, command: &mut Command) {
        let socket = self.offer_end.as_raw_fd();
        // SAFETY: system calls alone; the socket is open until the parent has spawned.
        unsafe { command.pre_exec(move || offer(BorrowedFd::borrow_raw(socket))) };
    }

    /// Serves the calls of a command prepared by [`bait`](Self::bait) that has started. Returns the
    /// reason if the command does not run under a filter or the server does not serve it.
    pub fn serve(&mut self) -> io::Result<()> {
        let (errno, fds) = receive(self.offers.as_fd())?;
        let listener = fds.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(errno))?;
        self.standbys.retain(|(listener, _)| !listener.is_deserted());
        // From here on the command's calls fail unless a process holds the listener.
        let held_calls = HeldCalls::new()?;
        let served = self.pass_on(listener.as_fd(), &held_calls);
        self.standbys.push((Listener::new(listener), held_calls));
        if served.is_err() || self.deserted {
            self.stand_in()?;
        }
        served
    }

    fn pass_on(&self, listener: BorrowedFd<'_>, held_calls: &HeldCalls) -> io::Result<()> {
        send(self.server.as_fd(), 0, &[listener, held_calls.as_fd()])?;
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.server, PollFlags::IN)];
        if poll(&mut fds, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match receive(self.server.as_fd())? {
            (0, _) => Ok(()),
            (errno, _) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Lets all calls proceed, by one thread for each filter, because the server is dead or does
    /// not serve them. Fails if a thread cannot be created; the calls then fail with `ENOSYS`.
    pub fn stand_in(&mut self) -> io::Result<()> {
        self.deserted = true;
        for (listener, held_calls) in self.standbys.drain(..) {
            let serve = move || stand_in(&listener, &held_calls);
            std::thread::Builder::new().spawn(serve)?;
        }
        Ok(())
    }
}

/// Lets every call proceed, including those that the server (which must have exited) held, until no
/// process runs under the filter.
pub fn stand_in(listener: &Listener, held_calls: &HeldCalls) -> io::Result<()> {
    // An id that is no longer held, or was never received, is no error.
    held_calls.suspects().for_each(|id| drop(listener.proceed(id)));
    while let Some(call) = listener.next()? {
        let _ = listener.proceed(call.id);
    }
    Ok(())
}
