//! The socket's side: who connects, packets in and out. Never blocks.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context;
use control::Peer;
use control::lease::{Reply, Request};
use memory_ledger::ClientId;
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recvmsg,
    sendmsg, socket_with, sockopt,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A client's connection.
pub struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) peer: Peer,
    /// After its hello.
    pub(super) client: Option<ClientId>,
    /// Requests since the window began.
    pub(super) asked: u32,
    /// It asked too often and is not listened to until the window is over.
    pub(super) muted: bool,
}

/// What came.
pub enum Received {
    /// A request.
    Request(Request),
    /// A packet that is none.
    Garbage,
    /// Nothing, for now.
    Nothing,
    /// The other side is gone.
    Closed,
}

impl Connection {
    /// The next packet, if one is there.
    pub fn receive(&self) -> Received {
        // One byte more than a request: a longer packet is not taken for one.
        let mut packet = [0; control::lease::REQUEST_BYTES + 1];
        // No room for files: what a client sends along is closed by the kernel at once.
        let mut no_files = RecvAncillaryBuffer::default();
        let mut slices = [IoSliceMut::new(&mut packet)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&self.fd, &mut slices, &mut no_files, flags) {
            Ok(message) if message.bytes == 0 => Received::Closed,
            Ok(message) => packet
                .get(..message.bytes)
                .and_then(Request::decode)
                .map_or(Received::Garbage, Received::Request),
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::Closed,
        }
    }

    /// Answers, with the client's page if there is one. `false`: the client does not read, or is gone.
    pub fn reply(&self, reply: &Reply, page: Option<&OwnedFd>) -> bool {
        let packet = reply.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = SendAncillaryBuffer::new(&mut space);
        let page = page.map(|page| [page.as_fd()]);
        if let Some(page) = &page {
            files.push(SendAncillaryMessage::ScmRights(page));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.fd, &[IoSlice::new(&packet)], &mut files, flags).is_ok()
    }

    /// The process that connected, pinned: its pid cannot become another's while the fd is open.
    pub fn pidfd(&self) -> Result<OwnedFd, Errno> {
        const SO_PEERPIDFD: libc::c_int = 77;
        let mut fd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `fd`, which is that long.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut fd).cast(),
                &mut len,
            )
        };
        if done == 0 && fd >= 0 {
            // SAFETY: a new descriptor that nobody else owns.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // Before 6.5. The pid could be another's by now; the caller compares users.
        let pid = Pid::from_raw(self.peer.pid).ok_or(Errno::SRCH)?;
        pidfd_open(pid, PidfdFlags::empty())
    }
}

/// The socket that listens; its file is removed on drop.
pub struct Listener {
    path: PathBuf,
    pub(super) fd: OwnedFd,
}

impl Listener {
    /// Listens on `path`, where anybody may connect. A socket that a dead daemon left is replaced:
    /// whoever calls this holds the control socket beside it.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(name);
            }
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .context("cannot make a socket")?;
        let address = SocketAddrUnix::new(path).with_context(name)?;
        bind(&fd, &address).with_context(name)?;
        chmod(path, Mode::from_raw_mode(0o666)).with_context(name)?;
        listen(&fd, 128).with_context(name)?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// The next who has connected.
    pub fn accept(&self) -> Option<Connection> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match accept_with(&self.fd, flags) {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return None,
            };
            let Ok(credentials) = sockopt::socket_peercred(&fd) else { continue };
            let peer = Peer {
                pid: credentials.pid.as_raw_nonzero().get(),
                uid: credentials.uid.as_raw(),
                gid: credentials.gid.as_raw(),
            };
            return Some(Connection { fd, peer, client: None, asked: 0, muted: false });
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
