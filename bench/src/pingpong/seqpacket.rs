//! A Unix `SOCK_SEQPACKET` socket pair: the baseline.

use std::os::fd::OwnedFd;

use anyhow::Result;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

use super::MAX_MESSAGE;
use crate::measure::Subject;
use crate::peer::{Peer, report_ready};

/// A connected pair.
pub struct SeqPacket {
    socket: OwnedFd,
    peer: Peer,
}

impl SeqPacket {
    /// Name in comparisons.
    pub const NAME: &'static str = "seqpacket";

    /// Starts the other process.
    pub fn start() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for socket in [&ours, &theirs] {
            sockopt::set_socket_send_buffer_size(socket, 2 * MAX_MESSAGE)?;
        }
        Ok(Self { socket: ours, peer: Peer::start_on(&["seqpacket"], theirs)? })
    }
}

impl Subject for SeqPacket {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn helpers(&self) -> Vec<u32> {
        vec![self.peer.pid()]
    }

    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
        send(&self.socket, message, SendFlags::NOSIGNAL)?;
        let (len, _) = recv(&self.socket, &mut *reply, RecvFlags::empty())?;
        anyhow::ensure!(len == reply.len(), "{len} bytes came back");
        Ok(())
    }
}

pub(super) fn serve() -> Result<()> {
    let socket = std::io::stdin();
    let mut room = vec![0; MAX_MESSAGE];
    report_ready();
    loop {
        let (len, _) = recv(&socket, &mut room[..], RecvFlags::empty())?;
        if len == 0 {
            return Ok(());
        }
        send(&socket, &room[..len], SendFlags::NOSIGNAL)?;
    }
}
