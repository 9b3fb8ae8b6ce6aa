//! The connection of one client: received and queued packets.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde::de::DeserializeOwned;

use crate::Peer;
use crate::frame::{self, Decoder};
use crate::peer_socket::{PeerSocket, Received as Packet};

/// Maximum length of a request, bytes.
const MAX_REQUEST: usize = 64 * 1024;

/// State of a connection: what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A packet; epoll watches for it.
    Reading,
    /// To be scheduled: a packet may be there. epoll watches for nothing, so a client that must
    /// wait does not wake the event loop.
    Queued,
    /// A reply that is not known yet; epoll watches for nothing.
    Answering,
    /// Space in its socket; epoll watches for it.
    Writing,
}

/// Result of reading a packet.
pub(super) enum Received<Q> {
    /// A complete request, or the reason why it is invalid.
    Request(Result<Q, String>),
    /// A part of a request.
    Part,
    /// No packet is available.
    Nothing,
    /// The client has closed the connection, or has sent files.
    Closed,
}

/// A client's connection.
pub(super) struct Connection {
    socket: PeerSocket,
    pub(super) peer: Peer,
    pub(super) stage: Stage,
    decoder: Decoder,
    /// Packets that the client has not received yet. While it is not empty, the client's next
    /// request is not read, so a client that does not read costs at most one reply.
    pub(super) outbox: VecDeque<Vec<u8>>,
    /// Whether the client receives published messages.
    pub(super) subscribed: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    pub(super) fn new(socket: PeerSocket, peer: Peer) -> Self {
        let (decoder, outbox) = (Decoder::default(), VecDeque::new());
        Self { socket, peer, stage: Stage::Reading, decoder, outbox, subscribed: false }
    }

    /// Receives one packet.
    pub(super) fn receive<Q: DeserializeOwned>(&mut self) -> Received<Q> {
        let mut packet = vec![0; frame::MAX_PACKET];
        let len = match self.socket.receive(&mut packet) {
            Packet::Packet(len) => len,
            Packet::Nothing => return Received::Nothing,
            Packet::Files | Packet::Closed => return Received::Closed,
        };
        match self.decoder.push(&packet[..len], MAX_REQUEST) {
            Ok(None) => Received::Part,
            Ok(Some(request)) => Received::Request(Ok(request)),
            Err(error) => Received::Request(Err(error.to_string())),
        }
    }

    /// Sends as many packets as the socket has space for.
    pub(super) fn flush(&mut self) -> Result<(), ()> {
        while let Some(packet) = self.outbox.front() {
            match send(&self.socket, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => drop(self.outbox.pop_front()),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => break,
                Err(_) => return Err(()),
            }
        }
        Ok(())
    }
}
