//! The listening side: one fd to watch, never blocked by a client.

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::epoll;
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with, sockopt,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::frame::{self, Decoder};
use crate::{ControlError, Peer};

/// Clients at a time; one more is turned away.
const MAX_CONNECTIONS: usize = 64;
/// Of these, connections of one uid other than root: nobody can lock the others out.
const MAX_CONNECTIONS_OF_A_USER: usize = 8;
/// Longest request, bytes.
const MAX_REQUEST: usize = 64 * 1024;
/// Requests that one client is served before the others have their turn.
const REQUESTS_PER_TURN: usize = 16;
/// Packets that may wait for a subscriber, besides those in its socket; one more and it is dropped.
const MAX_BEHIND: usize = 64;
/// epoll's word for the listener; connections have the numbers above.
const LISTENER: u64 = 0;

/// A control socket that listens.
///
/// Put [`fd`](AsFd::as_fd) into the daemon's event loop and call [`serve`](Server::serve) when it is
/// readable. The socket file is removed on drop.
pub struct Server {
    path: PathBuf,
    epoll: OwnedFd,
    listener: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

struct Connection {
    fd: OwnedFd,
    peer: Peer,
    decoder: Decoder,
    /// Packets of the reply that the client has not taken yet; while it is not empty the client's
    /// next request waits, so a client that does not read costs one reply and no more.
    outbox: VecDeque<Vec<u8>>,
    /// It hears of what is [published](Server::publish).
    subscribed: bool,
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn unix_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

impl Server {
    /// Listens on `path`, which gets the permission bits `mode` (connecting needs write permission).
    /// The folder is made where it is missing; a socket that a dead daemon left is replaced.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ControlError> {
        let fail = |doing| move |errno| ControlError::Io { path: path.to_owned(), doing, errno };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                .map_err(fail("cannot make its folder"))?;
        }
        let address = SocketAddrUnix::new(path).map_err(fail("not a socket address"))?;
        let listener = unix_socket(SocketFlags::NONBLOCK).map_err(fail("cannot make a socket"))?;
        match bind(&listener, &address) {
            Err(Errno::ADDRINUSE) => {
                let probe = unix_socket(SocketFlags::NONBLOCK).map_err(fail("cannot probe"))?;
                if connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                    return Err(ControlError::InUse(path.to_owned()));
                }
                rustix::fs::unlink(path).map_err(fail("cannot remove a dead daemon's socket"))?;
                bind(&listener, &address).map_err(fail("cannot bind"))?;
            }
            other => other.map_err(fail("cannot bind"))?,
        }
        chmod(path, Mode::from_raw_mode(mode)).map_err(fail("cannot set its permissions"))?;
        listen(&listener, 16).map_err(fail("cannot listen"))?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail("cannot make epoll"))?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN).map_err(fail("cannot watch"))?;
        Ok(Self { path: path.to_owned(), epoll, listener, connections: BTreeMap::new(), next: 1 })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers what is there to be answered, without ever blocking. `answer` gets a request, or the
    /// complaint about one that cannot be understood.
    pub fn serve<Q: DeserializeOwned, R: Serialize>(
        &mut self,
        answer: impl FnMut(Peer, Result<Q, String>) -> R,
    ) {
        self.serve_subscribers(answer, |_| false);
    }

    /// The same; who gets a reply for which `subscribes` holds hears of what is [published](Server::publish) from then on.
    pub fn serve_subscribers<Q: DeserializeOwned, R: Serialize>(
        &mut self,
        mut answer: impl FnMut(Peer, Result<Q, String>) -> R,
        subscribes: fn(&R) -> bool,
    ) {
        let mut events = [MaybeUninit::uninit(); 16];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&timeout)) else { return };
        let tokens: Vec<u64> = ready.iter().map(|event| event.data.u64()).collect();
        for token in tokens {
            if token == LISTENER {
                self.accept_all();
            } else if self.turn(token, &mut answer, subscribes).is_err() {
                // Dropping the fd takes it out of the epoll set.
                self.connections.remove(&token);
            }
        }
    }

    fn accept_all(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(fd) = accept_with(&self.listener, flags) {
            let Ok(credentials) = sockopt::socket_peercred(&fd) else { continue };
            let peer = Peer {
                pid: credentials.pid.as_raw_nonzero().get(),
                uid: credentials.uid.as_raw(),
                gid: credentials.gid.as_raw(),
            };
            let data = epoll::EventData::new_u64(self.next);
            if self.has_room_for(peer)
                && epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN).is_ok()
            {
                let connection = Connection {
                    fd,
                    peer,
                    decoder: Decoder::default(),
                    outbox: VecDeque::new(),
                    subscribed: false,
                };
                self.connections.insert(self.next, connection);
                self.next += 1;
            }
        }
    }

    fn has_room_for(&self, peer: Peer) -> bool {
        let same_user = self.connections.values().filter(|c| c.peer.uid == peer.uid).count();
        self.connections.len() < MAX_CONNECTIONS
            && (peer.is_root() || same_user < MAX_CONNECTIONS_OF_A_USER)
    }

    /// One client's turn; `Err` ends the connection.
    fn turn<Q: DeserializeOwned, R: Serialize>(
        &mut self,
        token: u64,
        answer: &mut impl FnMut(Peer, Result<Q, String>) -> R,
        subscribes: fn(&R) -> bool,
    ) -> Result<(), ()> {
        let connection = self.connections.get_mut(&token).ok_or(())?;
        connection.flush()?;
        let mut packet = vec![0; frame::MAX_PACKET];
        for _ in 0..REQUESTS_PER_TURN {
            if !connection.outbox.is_empty() {
                break;
            }
            let len = match recv(&connection.fd, &mut packet[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(()),
                Ok((len, _)) => len,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Err(()),
            };
            let request = match connection.decoder.push(&packet[..len], MAX_REQUEST) {
                Ok(None) => continue,
                Ok(Some(request)) => Ok(request),
                Err(error) => Err(error.to_string()),
            };
            let reply = answer(connection.peer, request);
            connection.subscribed |= subscribes(&reply);
            connection.outbox.extend(frame::encode(&reply).map_err(|_| ())?);
            connection.flush()?;
        }
        connection.watch(&self.epoll, token)
    }

    /// Tells those who have subscribed and may hear of it. Nobody is waited for: who is too far behind is dropped.
    pub fn publish(&mut self, message: &impl Serialize, may_hear: impl Fn(Peer) -> bool) {
        let Ok(packets) = frame::encode(message) else { return };
        let epoll = &self.epoll;
        self.connections.retain(|token, connection| {
            if !connection.subscribed || !may_hear(connection.peer) {
                return true;
            }
            let waiting = !connection.outbox.is_empty();
            connection.outbox.extend(packets.iter().cloned());
            connection.outbox.len() <= MAX_BEHIND
                && (waiting
                    || connection.flush().and_then(|()| connection.watch(epoll, *token)).is_ok())
        });
    }

    /// Somebody would hear of what is published.
    pub fn has_subscribers(&self) -> bool {
        self.connections.values().any(|connection| connection.subscribed)
    }
}

impl Connection {
    /// Readable wakes the server when all was taken, else that more can be taken.
    fn watch(&self, epoll: &OwnedFd, token: u64) -> Result<(), ()> {
        let wanted = match self.outbox.is_empty() {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::OUT,
        };
        epoll::modify(epoll, &self.fd, epoll::EventData::new_u64(token), wanted).map_err(|_| ())
    }

    fn flush(&mut self) -> Result<(), ()> {
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
