//! The asking side: one request, one reply, with a time limit.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::ControlError;
use crate::frame::{self, Decoder};

/// Longest reply that is believed, bytes.
const MAX_REPLY: usize = 256 * 1024 * 1024;
/// How long a daemon may take over an answer. A kill waits for its victim, seconds at the worst.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a daemon.
pub struct Client {
    path: PathBuf,
    fd: OwnedFd,
}

impl Client {
    /// Connects to the daemon that listens on `path`.
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let fail = |doing| move |errno| ControlError::Io { path: path.to_owned(), doing, errno };
        let address = SocketAddrUnix::new(path).map_err(fail("not a socket address"))?;
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(fail("cannot make a socket"))?;
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&fd, timeout, Some(PATIENCE))
                .map_err(fail("cannot set a time limit"))?;
        }
        connect(&fd, &address).map_err(|errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED => {
                ControlError::NotListening { path: path.to_owned(), errno }
            }
            errno => ControlError::Io { path: path.to_owned(), doing: "cannot connect", errno },
        })?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// How long is waited for what comes next; `None`: for ever.
    pub fn set_patience(&mut self, patience: Option<Duration>) -> Result<(), ControlError> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, patience).map_err(|errno| {
            ControlError::Io { path: self.path.clone(), doing: "cannot set a time limit", errno }
        })
    }

    /// Sends a request and waits for its reply.
    pub fn call<R: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
    ) -> Result<R, ControlError> {
        let packets = frame::encode(request).map_err(|e| self.garbled(e))?;
        for packet in packets {
            retry(|| send(&self.fd, &packet, SendFlags::NOSIGNAL)).map_err(|e| self.broken(e))?;
        }
        self.receive()
    }

    /// Waits for a message: the reply, or what comes without a question.
    pub fn receive<R: DeserializeOwned>(&mut self) -> Result<R, ControlError> {
        let mut decoder = Decoder::default();
        let mut packet = vec![0; frame::MAX_PACKET];
        loop {
            let (len, _) = retry(|| recv(&self.fd, &mut packet[..], RecvFlags::empty()))
                .map_err(|e| self.broken(e))?;
            if len == 0 {
                return Err(ControlError::Closed(self.path.clone()));
            }
            if let Some(reply) =
                decoder.push(&packet[..len], MAX_REPLY).map_err(|e| self.garbled(e))?
            {
                return Ok(reply);
            }
        }
    }

    /// The socket itself, for a caller with its own event loop.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    fn garbled(&self, error: impl std::fmt::Display) -> ControlError {
        ControlError::Garbled { path: self.path.clone(), error: error.to_string() }
    }

    fn broken(&self, errno: Errno) -> ControlError {
        let path = self.path.clone();
        match errno {
            Errno::AGAIN => ControlError::Timeout { path, seconds: PATIENCE.as_secs() },
            Errno::PIPE | Errno::CONNRESET => ControlError::Closed(path),
            errno => ControlError::Io { path, doing: "cannot talk to the daemon", errno },
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
