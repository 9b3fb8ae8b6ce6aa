//! A connection whose receive and close never block, and the process at its other end.
//!
//! A peer can pass files, and decides how long their close blocks: a TCP socket with `SO_LINGER`, a
//! file of its own FUSE server. Where the kernel refuses them (`SO_PASSRIGHTS`), none can be in the
//! queue. Elsewhere a packet is looked at before it is received, one with files is never received,
//! and a thread closes the connection, since the files in its queue are closed with it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use headroom_linux::descriptors::{PassRights, pass_rights_of};
use owners::client_files::{Charge, ClientFile, Closers};
use owners::{Owner, Uid, reader};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg, sockopt,
};

/// The process at the other end of a connection, as the kernel knows it (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id when the peer connected, in this process's pid namespace.
    pub pid: i32,
    /// Effective uid when the peer connected.
    pub uid: Uid,
    /// Effective gid when the peer connected.
    pub gid: u32,
    /// Its connections and requests are charged to this owner.
    pub owner: Owner,
}

impl Peer {
    /// The peer of a connection that was just accepted. `None`: it has exited already.
    pub fn of(connection: BorrowedFd<'_>) -> Option<Self> {
        let credentials = sockopt::socket_peercred(connection).ok()?;
        let (pid, uid) = (credentials.pid.as_raw_nonzero().get(), Uid(credentials.uid.as_raw()));
        let owner = reader::peer_owner(connection, u32::try_from(pid).ok()?, uid).ok()?;
        Some(Self { pid, uid, gid: credentials.gid.as_raw(), owner })
    }

    /// Whether the peer is root, which may do everything.
    pub fn is_root(&self) -> bool {
        self.uid == Uid::ROOT
    }
}

/// A connection. Neither [`receive`](Self::receive) nor its drop blocks.
pub struct PeerSocket(Kind);

enum Kind {
    /// The kernel refuses files.
    WithoutFiles(OwnedFd),
    MayCarryFiles(ClientFile),
}

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A packet of this length.
    Packet(usize),
    /// A packet with files, which was not received: the connection has to be closed.
    Files,
    /// No packet is available.
    Nothing,
    /// The peer has closed the connection.
    Closed,
}

impl PeerSocket {
    /// `peer` is `None` if it has exited.
    pub(crate) fn new(fd: OwnedFd, peer: Option<Peer>, closers: &Closers) -> Self {
        if pass_rights_of(&fd) == PassRights::Refused {
            return Self(Kind::WithoutFiles(fd));
        }
        let charge = peer.map_or_else(
            || {
                // A socket of this kind always has credentials.
                let uid = sockopt::socket_peercred(&fd).map_or(0, |it| it.uid.as_raw());
                Charge { owner: Owner::User(Uid(uid)), uid: Uid(uid) }
            },
            |Peer { owner, uid, .. }| Charge { owner, uid },
        );
        Self(Kind::MayCarryFiles(closers.adopt(fd, charge)))
    }

    /// Receives one packet, as far as it fits into `packet`.
    pub fn receive(&self, packet: &mut [u8]) -> Received {
        let mut read = |flags| {
            let mut slices = [IoSliceMut::new(packet)];
            let mut no_room = RecvAncillaryBuffer::default();
            recvmsg(self, &mut slices, &mut no_room, RecvFlags::DONTWAIT | flags)
        };
        if let Kind::MayCarryFiles(_) = self.0 {
            // Truncated control data: there are files, of which none is installed.
            match read(RecvFlags::PEEK) {
                Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                    return Received::Files;
                }
                Ok(_) => {}
                Err(errno) => return Received::from(errno),
            }
        }
        match read(RecvFlags::empty()) {
            Ok(message) if message.bytes == 0 => Received::Closed,
            Ok(message) => Received::Packet(message.bytes),
            Err(errno) => Received::from(errno),
        }
    }

    /// Sends one packet, with `file` if given. Never blocks.
    pub fn send(&self, packet: &[u8], file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = SendAncillaryBuffer::new(&mut space);
        if let Some(file) = &file {
            files.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(self, &[IoSlice::new(packet)], &mut files, flags).map(drop)
    }
}

impl From<Errno> for Received {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN | Errno::INTR => Self::Nothing,
            _ => Self::Closed,
        }
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::WithoutFiles(fd) => fd.as_fd(),
            Kind::MayCarryFiles(file) => file.as_fd(),
        }
    }
}
