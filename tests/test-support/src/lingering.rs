//! Files whose close blocks.

use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

/// Maximum of files in a message (`SCM_MAX_FD`).
pub const MOST_FILES: usize = 253;
/// How long a close blocks, unless the other end is dropped: longer than any test.
const LINGER: Duration = Duration::from_secs(600);

/// TCP sockets with unsent data and `SO_LINGER`.
pub struct LingeringSockets {
    /// When they are dropped, the closes return: dropped first, if the sockets stay here.
    ends: Vec<TcpStream>,
    sockets: Vec<TcpStream>,
}

impl LingeringSockets {
    /// Makes `count` of them.
    pub fn new(count: usize) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        sockopt::set_socket_recv_buffer_size(&listener, 4096)?;
        let (mut sockets, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut socket = TcpStream::connect(listener.local_addr()?)?;
            ends.push(listener.accept()?.0);
            sockopt::set_socket_send_buffer_size(&socket, 4096)?;
            sockopt::set_socket_linger(&socket, Some(LINGER))?;
            socket.set_nonblocking(true)?;
            while socket.write(&[0; 4096]).is_ok() {}
            sockets.push(socket);
        }
        Ok(Self { sockets, ends })
    }

    /// Sends them in one message, beside `packet`.
    pub fn pass(&self, connection: impl AsFd, packet: &[u8]) -> Result<(), Errno> {
        let files: Vec<BorrowedFd<'_>> = self.sockets.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        assert!(message.push(SendAncillaryMessage::ScmRights(&files)), "too many files");
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(connection, &[std::io::IoSlice::new(packet)], &mut message, flags).map(drop)
    }

    /// Drops the own copies: the last close of each is the receiver's. The result ends the closes
    /// when it is dropped.
    pub fn leave(self) -> Vec<TcpStream> {
        let Self { ends, sockets } = self;
        // The receiver may have closed its copies already.
        std::thread::spawn(move || drop(sockets));
        ends
    }
}
