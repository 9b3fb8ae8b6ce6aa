//! The control sockets of the daemons: messages and transport.
//!
//! A control socket is a `SOCK_SEQPACKET` Unix socket. A message is one JSON document, cut into
//! packets of at most [`frame::MAX_CHUNK`] bytes behind a one-byte mark ([`frame`]). The server
//! gets the peer's identity from the kernel ([`Peer`]); no message carries one.
//!
//! * [`oomd`] and [`binderd`]: requests and replies of the two daemons;
//! * [`lease`]: messages and memory shared by tmalloc clients and `headroom-oomd`, binary;
//! * [`metrics`]: counters of both in the text format of Prometheus;
//! * [`server`]: an event-loop friendly server, never blocked by a client;
//! * [`listener`], [`peer_socket`]: sockets of a server, of which no call blocks;
//! * [`client`]: a blocking client with a time limit, and one that receives events.
#![forbid(unsafe_code)]

pub mod binderd;
pub mod client;
pub mod configuration;
pub mod frame;
pub mod lease;
pub mod listener;
pub mod metrics;
pub mod oomd;
pub mod peer_socket;
pub mod server;

use std::path::PathBuf;

pub use client::Client;
pub use listener::check_free;
pub use owners::Uid;
pub use peer_socket::Peer;
pub use server::{Answer, Listeners, Request, RequestId, Server};

/// Version of the messages of both control sockets: field `protocol` of the status. It changes when
/// a message of an earlier release is not understood any more (docs/stability.md).
pub const PROTOCOL_VERSION: u32 = 1;

/// Default control socket of `headroom-oomd`.
pub const OOMD_SOCKET: &str = "/run/headroom/oomd.sock";
/// Folder of pinned BPF objects, which outlive `headroom-oomd`.
pub const PINS_FOLDER: &str = "/sys/fs/bpf/headroom";
/// Folder of the decisions of `headroom-oomd`.
pub const STATE_FOLDER: &str = "/var/lib/headroom";
/// File with the limits of headroom-oomd in the folder of its socket.
pub const LIMITS_FILE: &str = "limits";
/// Default control socket of `headroom-binderd`.
pub const BINDERD_SOCKET: &str = "/run/headroom/binderd.sock";

/// An error on a control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No daemon listens on the socket.
    #[error("no daemon listens on {path}")]
    NotListening {
        /// Path of the socket.
        path: PathBuf,
        /// Why the connection failed.
        errno: rustix::io::Errno,
    },
    /// The socket is served already.
    #[error("{0}: another daemon listens on this socket; stop it or use another --socket")]
    InUse(PathBuf),
    /// The path of a socket is taken by another kind of file.
    #[error("{path}: this is {what}, not a daemon's socket; move it or use another --socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{path}: {doing}: {errno}")]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// Error of the system call.
        errno: rustix::io::Errno,
    },
    /// The other side closed the connection in the middle of a call.
    #[error("{0}: the daemon closed the connection before it answered")]
    Closed(PathBuf),
    /// The other side did not answer in time.
    #[error("{path}: no answer within {seconds} s")]
    Timeout {
        /// Path of the socket.
        path: PathBuf,
        /// The time limit, seconds.
        seconds: u64,
    },
    /// The daemon refused the request.
    #[error("{path}: {message}")]
    Refused {
        /// Path of the socket.
        path: PathBuf,
        /// The daemon's message.
        message: String,
    },
    /// The message does not parse.
    #[error(
        "{path}: cannot parse the reply ({error}): the daemon has another version than this program"
    )]
    Garbled {
        /// Path of the socket.
        path: PathBuf,
        /// The parser's error.
        error: String,
    },
}
