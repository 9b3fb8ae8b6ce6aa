//! For who starts both the server of a bus and its clients.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::{InHand, Listener, offer, receive, send, stand_in};

/// How long the server may take to say that it serves a listener; it has little to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has clients live under filters that the server serves, and stands in for it should it die: calls
/// then fail as on any dead bus.
#[derive(Debug)]
pub struct Launcher {
    /// To the server, and its end until it is started.
    server: OwnedFd,
    server_end: Option<OwnedFd>,
    /// From those whom we start, and their end.
    offers: OwnedFd,
    offer_end: OwnedFd,
    posts: Vec<(Listener, InHand)>,
    deserted: bool,
}

fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Launcher {
    /// With nobody under a filter.
    pub fn new() -> io::Result<Self> {
        let (server, server_end) = sockets()?;
        let (offers, offer_end) = sockets()?;
        let (posts, deserted) = (Vec::new(), false);
        Ok(Self { server, server_end: Some(server_end), offers, offer_end, posts, deserted })
    }

    /// Has the server take listeners (`--listeners FD`).
    pub fn connect(&mut self, server: &mut Command) {
        let Some(end) = self.server_end.take() else { return };
        server.args(["--listeners", &end.as_raw_fd().to_string()]);
        // SAFETY: one system call, on a descriptor that the closure owns.
        unsafe {
            server
                .pre_exec(move || Ok(rustix::io::fcntl_setfd(&end, rustix::io::FdFlags::empty())?));
        }
    }

    /// Has the command live under a filter. Nothing that its start does may come after this.
    pub fn bait(&self, command: &mut Command) {
        let socket = self.offer_end.as_raw_fd();
        // SAFETY: system calls alone; the socket is open until the parent has spawned.
        unsafe { command.pre_exec(move || offer(BorrowedFd::borrow_raw(socket))) };
    }

    /// The command of [`bait`](Self::bait) has started: its calls are served from now on. Why not,
    /// where it lives under no filter.
    pub fn serve(&mut self) -> io::Result<()> {
        let (errno, fds) = receive(self.offers.as_fd())?;
        let listener = fds.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(errno))?;
        self.posts.retain(|(listener, _)| !listener.is_deserted());
        // From here on it cannot do without us.
        let in_hand = InHand::new()?;
        let served = self.pass_on(listener.as_fd(), &in_hand);
        self.posts.push((Listener::new(listener), in_hand));
        if served.is_err() || self.deserted {
            self.stand_in()?;
        }
        served
    }

    fn pass_on(&self, listener: BorrowedFd<'_>, in_hand: &InHand) -> io::Result<()> {
        send(self.server.as_fd(), 0, &[listener, in_hand.as_fd()])?;
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.server, PollFlags::IN)];
        if poll(&mut fds, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match receive(self.server.as_fd())? {
            (0, _) => Ok(()),
            (errno, _) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The server is dead (or does not serve): lets all calls go on to what it has left, by a
    /// thread for each filter. An error: there is no thread to be had, and the calls fail with
    /// `ENOSYS`.
    pub fn stand_in(&mut self) -> io::Result<()> {
        self.deserted = true;
        for (listener, in_hand) in self.posts.drain(..) {
            let serve = move || stand_in(&listener, &in_hand);
            std::thread::Builder::new().spawn(serve)?;
        }
        Ok(())
    }
}
