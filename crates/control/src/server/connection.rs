//! One client: packets in, packets out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::de::DeserializeOwned;

use crate::Peer;
use crate::frame::{self, Decoder};

/// Longest request, bytes.
const MAX_REQUEST: usize = 64 * 1024;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// For a packet; epoll watches for it.
    Reading,
    /// For its turn: a packet may be there. epoll watches for nothing, so a client that must wait
    /// wakes nobody.
    Queued,
    /// For a reply that is not known yet; epoll watches for nothing.
    Answering,
    /// For room in its socket; epoll watches for it.
    Writing,
}

/// What was read.
pub(super) enum Received<Q> {
    /// A request, or why it cannot be understood.
    Request(Result<Q, String>),
    /// A part of one.
    Part,
    /// Nothing was there.
    Nothing,
    /// The client is gone.
    Closed,
}

/// A client's connection.
pub(super) struct Connection {
    fd: OwnedFd,
    pub(super) peer: Peer,
    pub(super) stage: Stage,
    decoder: Decoder,
    /// Packets that the client has not taken yet; while it is not empty the client's
    /// next request waits, so a client that does not read costs one reply and no more.
    pub(super) outbox: VecDeque<Vec<u8>>,
    /// It receives what is published.
    pub(super) subscribed: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Connection {
    pub(super) fn new(fd: OwnedFd, peer: Peer) -> Self {
        let (decoder, outbox) = (Decoder::default(), VecDeque::new());
        Self { fd, peer, stage: Stage::Reading, decoder, outbox, subscribed: false }
    }

    /// One packet.
    pub(super) fn receive<Q: DeserializeOwned>(&mut self) -> Received<Q> {
        let mut packet = vec![0; frame::MAX_PACKET];
        let len = match recv(&self.fd, &mut packet[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Received::Closed,
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        match self.decoder.push(&packet[..len], MAX_REQUEST) {
            Ok(None) => Received::Part,
            Ok(Some(request)) => Received::Request(Ok(request)),
            Err(error) => Received::Request(Err(error.to_string())),
        }
    }

    /// Sends what the socket has room for.
    pub(super) fn flush(&mut self) -> Result<(), ()> {
        while let Some(packet) = self.outbox.front() {
            match send(&self.fd, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => drop(self.outbox.pop_front()),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => break,
                Err(_) => return Err(()),
            }
        }
        Ok(())
    }
}
