//! A blocking client, with a time limit: one request, one reply; or events as they happen.
//!
//! ```no_run
//! use control::oomd::{Event, Importance};
//! use control::client::{Subscription, set_importance};
//!
//! # fn main() -> Result<(), control::ControlError> {
//! let socket = std::path::Path::new(control::OOMD_SOCKET);
//! // This process holds what cannot be had again: the user's other processes go first.
//! set_importance(socket, None, Importance::Avoid)?;
//! for event in Subscription::start(socket)? {
//!     match event? {
//!         Event::SoftLimitCrossed(warning) => {
//!             println!("{} of {}", warning.used_bytes, warning.hard_bytes);
//!         }
//!         Event::Ended { why } => println!("{:?} is gone", why.victim),
//!         Event::Decided { .. } => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```

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
use crate::oomd::{Event, Importance, Reply, Request};
use crate::server::root_socket;

/// Maximum length of a reply that is accepted, bytes.
const MAX_REPLY: usize = 256 * 1024 * 1024;
/// Time limit for a reply. A request to kill waits for its victim, seconds at the worst.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a daemon.
pub struct Client {
    path: PathBuf,
    fd: OwnedFd,
}

impl Client {
    /// Connects to the daemon that listens on `path`.
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        // Root has a socket of its own, whose queue others cannot fill.
        if rustix::process::geteuid().is_root()
            && let Ok(client) = Self::connect_to(&root_socket(path), path)
        {
            return Ok(client);
        }
        Self::connect_to(path, path)
    }

    /// `name`: the socket's path in errors.
    fn connect_to(path: &Path, name: &Path) -> Result<Self, ControlError> {
        let fail = |doing| move |errno| ControlError::Io { path: name.to_owned(), doing, errno };
        let address = SocketAddrUnix::new(path)
            .map_err(fail("not a valid socket address, which has at most 107 bytes"))?;
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(fail("cannot make a socket"))?;
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&fd, timeout, Some(PATIENCE))
                .map_err(fail("cannot set a time limit"))?;
        }
        connect(&fd, &address).map_err(|errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED => {
                ControlError::NotListening { path: name.to_owned(), errno }
            }
            errno => ControlError::Io { path: name.to_owned(), doing: "cannot connect", errno },
        })?;
        Ok(Self { path: name.to_owned(), fd })
    }

    /// Sets the time limit for the next messages; `None`: wait without a limit.
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
        let mut sent = packets
            .iter()
            .map(|packet| retry(|| send(&self.fd, packet, SendFlags::NOSIGNAL)).map(drop));
        match sent.find_map(Result::err) {
            None => self.receive(),
            // A daemon that refuses a connection sends the reason before it closes the connection.
            Some(errno) => self.receive().map_err(|_| self.broken(errno)),
        }
    }

    /// Waits for a message: the reply, or an unsolicited message.
    pub fn receive<R: DeserializeOwned>(&mut self) -> Result<R, ControlError> {
        let mut decoder = Decoder::default();
        let mut packet = vec![0; frame::MAX_PACKET];
        loop {
            let mut receive = || retry(|| recv(&self.fd, &mut packet[..], RecvFlags::empty()));
            // ECONNRESET is reported once, for a request that was not read; messages that were sent
            // before can still be received.
            let received = match receive() {
                Err(Errno::CONNRESET) => receive(),
                other => other,
            };
            let (len, _) = received.map_err(|e| self.broken(e))?;
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

/// Events as they happen: those of the caller's own user; for root, all.
///
/// The iterator ends when the daemon exits, which is an error once; then start another
/// subscription.
pub struct Subscription {
    path: PathBuf,
    /// `None`: the connection has ended.
    client: Option<Client>,
}

impl Subscription {
    /// Subscribes at the daemon that listens on `path`. No event after this call is missed.
    pub fn start(path: &Path) -> Result<Self, ControlError> {
        let mut client = Client::connect(path)?;
        match client.call(&Request::Subscribe)? {
            Reply::Subscribed => {}
            reply => return Err(unexpected(path, reply)),
        }
        client.set_patience(None)?;
        Ok(Self { path: path.to_owned(), client: Some(client) })
    }

    fn receive(&mut self) -> Option<Result<Event, ControlError>> {
        Some(match self.client.as_mut()?.receive() {
            Ok(Reply::Event(event)) => Ok(event),
            Ok(reply) => Err(unexpected(&self.path, reply)),
            Err(error) => Err(error),
        })
    }
}

impl Iterator for Subscription {
    type Item = Result<Event, ControlError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.receive()?;
        if next.is_err() {
            self.client = None;
        }
        Some(next)
    }
}

/// Sets the kill preference of one of the caller's own processes; `None` is the caller itself. It
/// is valid until the process, or the daemon, exits.
pub fn set_importance(
    path: &Path,
    pid: Option<u32>,
    importance: Importance,
) -> Result<(), ControlError> {
    match Client::connect(path)?.call(&Request::SetImportance { pid, importance })? {
        Reply::Done => Ok(()),
        reply => Err(unexpected(path, reply)),
    }
}

fn unexpected(path: &Path, reply: Reply) -> ControlError {
    let path = path.to_owned();
    match reply {
        Reply::Error { message } => ControlError::Refused { path, message },
        reply => {
            let error = format!("it is the answer to another question: {reply:?}");
            ControlError::Garbled { path, error }
        }
    }
}
