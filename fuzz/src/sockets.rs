//! Target for the sockets of the daemons: packets with files and credentials, whole and in parts.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control::Server;
use control::lease;
use control::listener::{Accepted, Listener};
use control::peer_socket::{PeerSocket, Received};
use headroom_linux::descriptors::{PassRights, pass_rights_of, set_pass_rights};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, UCred, connect, recv, sendmsg, shutdown, socket_with,
    sockopt,
};

/// Maximum of steps of one input.
const MAX_STEPS: usize = 32;
/// Maximum of files in one packet.
const MAX_FILES: u8 = 3;
/// Connections to the control socket.
const CLIENTS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(60);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const MILLISECOND: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The sockets of one thread, which all inputs use.
struct Sockets {
    _folder: tempfile::TempDir,
    server: Server,
    control: PathBuf,
    leases: Listener,
    lease: PathBuf,
}

impl Sockets {
    fn bind() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (control, lease) = (folder.path().join("c.sock"), folder.path().join("l.sock"));
        let server = Server::bind(&control, 0o666).expect("a control socket");
        // Root's socket, where the rate of connections is not limited.
        let control = folder.path().join("c-root.sock");
        let leases = Listener::bind(&lease, 0o600, 16, server.closers()).expect("a lease socket");
        Self { _folder: folder, server, control, leases, lease }
    }

    /// As before Linux 6.16, or as since.
    fn set(&self, rights: PassRights) {
        let root = self.server.listeners().root.expect("others may connect");
        let _ = set_pass_rights(root, rights);
        let _ = set_pass_rights(&self.leases, rights);
    }

    fn serve(&mut self) {
        self.server.serve(|_, request: Result<control::oomd::Request, String>| request.is_ok());
    }
}

fn client(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let fd = fd.expect("a socket");
    connect(&fd, &SocketAddrUnix::new(path).expect("an address")).expect("the server listens");
    fd
}

/// Sends a packet with `files` copies of a file, and with the own credentials. Whether it was sent.
fn send(to: &OwnedFd, packet: &[u8], file: BorrowedFd<'_>, files: u8, own: Option<UCred>) -> bool {
    let list = vec![file; files.into()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3), ScmCredentials(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    if files > 0 {
        assert!(message.push(SendAncillaryMessage::ScmRights(&list)));
    }
    if let Some(own) = own {
        assert!(message.push(SendAncillaryMessage::ScmCredentials(own)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(to, &[IoSlice::new(packet)], &mut message, flags).is_ok()
}

/// Receives what was sent on a lease connection, as the daemon does.
fn receive(lease: &PeerSocket) -> Received {
    let mut packet = [0; lease::REQUEST_BYTES + 1];
    let received = lease.receive(&mut packet);
    if let Received::Packet(len) = received
        && let Some(request) = packet.get(..len).and_then(lease::Request::decode)
    {
        assert_eq!(lease::Request::decode(&request.encode()), Some(request));
    }
    received
}

/// The first byte selects whether the kernel refuses files. Then steps: a byte for the operation,
/// the client and the number of files, one for the length of the packet, and the packet. No packet
/// with files may be received, and all of them must be closed at the end.
pub fn sockets(input: &[u8]) {
    thread_local! {
        static SOCKETS: std::cell::RefCell<Sockets> = std::cell::RefCell::new(Sockets::bind());
    }
    SOCKETS.with_borrow_mut(|sockets| run(sockets, input));
}

fn run(sockets: &mut Sockets, input: &[u8]) {
    let Some((first, mut rest)) = input.split_first() else { return };
    let rights = if first % 2 == 0 { PassRights::Accepted } else { PassRights::Refused };
    sockets.set(rights);
    let controls: Vec<OwnedFd> = (0..CLIENTS).map(|_| client(&sockets.control)).collect();
    let lease_client = client(&sockets.lease);
    let Accepted::Connection(lease, _) = sockets.leases.accept() else {
        panic!("the connection is not accepted");
    };
    // Older kernels accept files in any case.
    let rights = pass_rights_of(&lease);
    let own = sockopt::socket_peercred(&lease).ok();
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    // Whether the next packet of the lease socket has files, in order.
    let mut queued = std::collections::VecDeque::new();
    let mut lease = Some(lease);
    for _ in 0..MAX_STEPS {
        let [what, len, bytes @ ..] = rest else { break };
        let (packet, next) = bytes.split_at(bytes.len().min((*len).into()));
        rest = next;
        let files = (what >> 4) % (MAX_FILES + 1);
        let own = own.filter(|_| what & 8 != 0);
        match what % 8 {
            0..=2 => {
                let to = &controls[usize::from(what % 2)];
                send(to, packet, write.as_fd(), files, own);
            }
            3 | 4 => {
                let sent = send(&lease_client, packet, write.as_fd(), files, own);
                assert!(!sent || files == 0 || rights == PassRights::Accepted);
                if sent {
                    queued.push_back(files > 0);
                }
            }
            5 => {
                let Some(socket) = &lease else { continue };
                let received = receive(socket);
                let has_files = queued.front() == Some(&true);
                assert_eq!(received == Received::Files, has_files, "{received:?}");
                match received {
                    Received::Files | Received::Closed => lease = None,
                    Received::Packet(_) => drop(queued.pop_front()),
                    Received::Nothing => assert!(queued.is_empty()),
                }
            }
            6 => sockets.serve(),
            _ => {
                let _ = shutdown(&controls[usize::from(what >> 7)], Shutdown::Write);
            }
        }
    }
    for client in &controls {
        let _ = recv(client, &mut [0; 256][..], RecvFlags::DONTWAIT);
    }
    drop((controls, lease_client, lease, write));
    // The connections end, some of them by a thread; then nobody has the pipe's other end.
    let begun = Instant::now();
    while !is_ended(&read) || is_readable(&sockets.server, NOW) {
        assert!(begun.elapsed() < PATIENCE, "a file is still open");
        sockets.serve();
        is_readable(&read, MILLISECOND);
    }
}

/// Waits for at most `patience`.
fn is_readable(fd: impl AsFd, patience: Timespec) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&patience)).is_ok_and(|ready| ready > 0)
}

fn is_ended(pipe: &OwnedFd) -> bool {
    is_readable(pipe, NOW) && rustix::io::read(pipe, &mut [0; 1]) == Ok(0)
}
