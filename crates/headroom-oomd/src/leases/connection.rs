//! A connection of the lease socket: receives and sends packets. Never blocks.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use control::Peer;
use control::lease::{Reply, Request};
use control::peer_socket::{PeerSocket, Received as Packet};
use memory_ledger::ClientId;
use owners::reader;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A client's connection.
pub struct Connection {
    pub(super) socket: PeerSocket,
    pub(super) peer: Peer,
    /// Set by the hello request.
    pub(super) client: Option<ClientId>,
    /// The owner has used up its CPU time; the connection is not read until the next window.
    pub(super) muted: bool,
}

/// The result of a receive.
pub enum Received {
    /// A request.
    Request(Request),
    /// A packet that is not a valid request.
    Garbage,
    /// No packet at present.
    Nothing,
    /// The peer has closed the connection, or has sent files.
    Closed,
}

impl Connection {
    /// Receives a packet if there is one.
    pub fn receive(&self) -> Received {
        // One byte more than a request, so that a longer packet is not taken for a request.
        let mut packet = [0; control::lease::REQUEST_BYTES + 1];
        match self.socket.receive(&mut packet) {
            Packet::Packet(len) => packet
                .get(..len)
                .and_then(Request::decode)
                .map_or(Received::Garbage, Received::Request),
            Packet::Nothing => Received::Nothing,
            Packet::Files | Packet::Closed => Received::Closed,
        }
    }

    /// Sends a reply, with the client's page if given. `false`: the send buffer is full or the
    /// connection is closed.
    pub fn reply(&self, reply: &Reply, page: Option<&OwnedFd>) -> bool {
        let packet = reply.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = SendAncillaryBuffer::new(&mut space);
        let page = page.map(|page| [page.as_fd()]);
        if let Some(page) = &page {
            files.push(SendAncillaryMessage::ScmRights(page));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &[IoSlice::new(&packet)], &mut files, flags).is_ok()
    }

    /// A pidfd of the process that connected: it refers to this process even if the pid is reused.
    pub fn pidfd(&self) -> std::io::Result<OwnedFd> {
        reader::peer_pidfd(self.socket.as_fd(), self.peer.pid.unsigned_abs())
    }
}
