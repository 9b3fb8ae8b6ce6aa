//! Identity of the process at the other end of a connection.

use std::os::fd::BorrowedFd;

use owners::{Owner, Uid, reader};
use rustix::net::sockopt;

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
