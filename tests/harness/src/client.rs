//! The control socket as plain JSON, so that the suites run against any version of the daemon.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};
use serde_json::Value;

/// Maximum length of a packet: a mark and a piece of at most 64 KiB.
const PACKET: usize = 64 * 1024 + 1;
/// Mark of the last packet of a message.
const LAST: u8 = b'.';

/// A connection.
pub struct Client(OwnedFd);

impl Client {
    /// Connects, with a time limit for all later messages. Root uses its separate socket if the
    /// daemon has one.
    pub fn connect(path: &Path, patience: Duration) -> anyhow::Result<Self> {
        let own = path.with_file_name("oomd-root.sock");
        let own = rustix::process::geteuid().is_root() && own.exists();
        let path = if own { path.with_file_name("oomd-root.sock") } else { path.to_owned() };
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&fd, timeout, Some(patience))?;
        }
        connect(&fd, &SocketAddrUnix::new(&path)?).context("cannot connect")?;
        Ok(Self(fd))
    }

    /// Sends one request and receives one reply.
    pub fn call(&self, request: &Value) -> anyhow::Result<Value> {
        let mut packet = vec![LAST];
        packet.extend(serde_json::to_vec(request)?);
        send(&self.0, &packet, SendFlags::NOSIGNAL).context("cannot send")?;
        let (mut document, mut packet) = (Vec::new(), vec![0; PACKET]);
        loop {
            let (len, _) =
                recv(&self.0, &mut packet[..], RecvFlags::empty()).context("no reply")?;
            let Some((mark, piece)) = packet[..len].split_first() else { bail!("closed") };
            document.extend_from_slice(piece);
            if *mark == LAST {
                return Ok(serde_json::from_slice(&document)?);
            }
        }
    }
}
