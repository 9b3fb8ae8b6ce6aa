//! Launcher: used by a program that starts both the server of a bus and its clients.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::{HeldCalls, Listener, offer, receive, send, stand_in};

/// How long the server may take to confirm that it serves a listener, which is little work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs clients under filters that the server serves, and replaces the server if it is killed:
/// calls then fail as on any bus without a server.
#[derive(Debug)]
pub struct Launcher {
    /// Our end of the socket pair with the server; `server_end` is kept until the server is
    /// started.
    server: OwnedFd,
    server_end: Option<OwnedFd>,
    /// Receives the listeners of the clients that we start, which send them through `offer_end`.
    offers: OwnedFd,
    offer_end: OwnedFd,
    standbys: Vec<(Listener, HeldCalls)>,
    deserted: bool,
}

fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Launcher {
    /// Creates a launcher without clients.
    pub fn new() -> io::Result<Self> {
        let (server, server_end) = sockets()?;
        let (offers, offer_end) = sockets()?;
        let (standbys, deserted) = (Vec::new(), false);
        Ok(Self { server, server_end: Some(server_end), offers, offer_end, standbys, deserted })
    }

    /// Passes the server a socket from which it receives listeners (`--listeners FD`).
    pub fn connect(&mut self, server: &mut Command) {
        let Some(end) = self.server_end.take() else { return };
        server.args(["--listeners", &end.as_raw_fd().to_string()]);
        // SAFETY: one system call, on a descriptor that the closure owns.
        unsafe {
            server
                .pre_exec(move || Ok(rustix::io::fcntl_setfd(&end, rustix::io::FdFlags::empty())?));
        }
    }

    /// Runs the command under a filter. Must be the last `pre_exec` closure of the command.
    pub fn bait(&self, command: &mut Command) {
        let socket = self.offer_end.as_raw_fd();
        // SAFETY: system calls alone; the socket is open until the parent has spawned.
        unsafe { command.pre_exec(move || offer(BorrowedFd::borrow_raw(socket))) };
    }

    /// Serves the calls of a command prepared by [`bait`](Self::bait) that has started. Returns the
    /// reason if the command does not run under a filter or the server does not serve it.
    pub fn serve(&mut self) -> io::Result<()> {
        let (errno, fds) = receive(self.offers.as_fd())?;
        let listener = fds.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(errno))?;
        self.standbys.retain(|(listener, _)| !listener.is_deserted());
        // From here on the command's calls fail unless a process holds the listener.
        let held_calls = HeldCalls::new()?;
        let served = self.pass_on(listener.as_fd(), &held_calls);
        self.standbys.push((Listener::new(listener), held_calls));
        if served.is_err() || self.deserted {
            self.stand_in()?;
        }
        served
    }

    fn pass_on(&self, listener: BorrowedFd<'_>, held_calls: &HeldCalls) -> io::Result<()> {
        send(self.server.as_fd(), 0, &[listener, held_calls.as_fd()])?;
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

    /// Lets all calls proceed, by one thread for each filter, because the server is dead or does
    /// not serve them. Fails if a thread cannot be created; the calls then fail with `ENOSYS`.
    pub fn stand_in(&mut self) -> io::Result<()> {
        self.deserted = true;
        for (listener, held_calls) in self.standbys.drain(..) {
            let serve = move || stand_in(&listener, &held_calls);
            std::thread::Builder::new().spawn(serve)?;
        }
        Ok(())
    }
}
