//! Listeners of seccomp filters, passed by the process that starts the clients.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::Context;
use binder_fuse::Server;
use ioctl_trap::{HeldCalls, Listener};

/// The socket from which listeners are received. Each one gets a reply: 0 if it is served from now
/// on, else an errno.
pub struct Listeners(OwnedFd);

impl Listeners {
    /// Takes the descriptor with the number on the command line.
    pub fn new(fd: i32) -> anyhow::Result<Self> {
        anyhow::ensure!(fd > 2, "--listeners {fd}: that one has another use");
        // SAFETY: the descriptor was passed to us for this purpose and is not used elsewhere in
        // this process; if it is no socket, operations on it fail.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::ioctl_fionbio(&socket, true).with_context(|| format!("--listeners {fd}"))?;
        Ok(Self(socket))
    }

    /// Continues with the socket of the program that this one replaces.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Serves the next listener, if there is one. False: the other end is closed.
    pub fn take(&self, server: &mut Server) -> bool {
        let received = match ioctl_trap::receive(self.0.as_fd()) {
            Ok((_, fds)) => parse(fds),
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        let served = received.and_then(|(listener, held_calls)| {
            server.add_listener(listener, held_calls).map_err(io::Error::other)
        });
        let errno = match served {
            Ok(()) => 0,
            Err(error) => {
                tracing::warn!("cannot serve a seccomp filter: {error}");
                error.raw_os_error().unwrap_or(libc::EIO)
            }
        };
        // Fails only if the process that passed the listener has exited.
        let _ = ioctl_trap::send(self.0.as_fd(), errno, &[]);
        true
    }
}

fn parse(fds: Vec<OwnedFd>) -> io::Result<(Listener, HeldCalls)> {
    let [listener, memory] =
        <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok((Listener::new(listener), HeldCalls::map(memory)?))
}

impl AsFd for Listeners {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
