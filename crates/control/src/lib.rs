//! The control sockets of the daemons: what is said on them, and how.
//!
//! A control socket is a `SOCK_SEQPACKET` Unix socket. A message is one JSON document, cut into
//! packets of at most [`frame::MAX_CHUNK`] bytes behind a one-byte mark ([`frame`]). The server
//! learns from the kernel who speaks ([`Peer`]); no message carries an identity.
//!
//! * [`oomd`] and [`binderd`]: requests and replies of the two daemons;
//! * [`lease`]: what tmalloc clients and `headroom-oomd` say and share, binary;
//! * [`metrics`]: what both count, as Prometheus reads it;
//! * [`server`]: an event-loop friendly server, never blocked by a client;
//! * [`subscription`]: a client that hears of kills;
//! * [`client`]: a blocking client with a time limit.
#![forbid(unsafe_code)]

pub mod binderd;
pub mod client;
pub mod configuration;
pub mod frame;
pub mod lease;
pub mod metrics;
pub mod oomd;
mod peer;
pub mod server;
pub mod subscription;

use std::path::PathBuf;

pub use client::Client;
pub use peer::Peer;
pub use server::{Answer, Request, RequestId, Server};

/// Where `headroom-oomd` listens unless told otherwise.
pub const OOMD_SOCKET: &str = "/run/headroom/oomd.sock";
/// Where `headroom oom margin --save` leaves what it measured for headroom-oomd.
pub const MARGIN_FILE: &str = "/var/lib/headroom/margin.toml";
/// Where `headroom-oomd` pins what outlives it, on a BPF filesystem.
pub const PINS_FOLDER: &str = "/sys/fs/bpf/headroom";
/// Where `headroom-oomd` remembers its decisions.
pub const STATE_FOLDER: &str = "/var/lib/headroom";
/// Where `headroom-binderd` listens unless told otherwise.
pub const BINDERD_SOCKET: &str = "/run/headroom/binderd.sock";

/// What can go wrong on a control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens.
    #[error("{path}: no daemon is listening ({errno}); is it running?")]
    NotListening {
        /// The socket.
        path: PathBuf,
        /// Why the connection failed.
        errno: rustix::io::Errno,
    },
    /// The socket is served already.
    #[error("{0}: another daemon is already listening there; stop it or choose another --socket")]
    InUse(PathBuf),
    /// A system call failed.
    #[error("{path}: {doing}: {errno}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// How it failed.
        errno: rustix::io::Errno,
    },
    /// The other side closed the connection in the middle of a call.
    #[error("{0}: the daemon closed the connection before it answered")]
    Closed(PathBuf),
    /// The other side did not answer in time.
    #[error("{path}: no answer within {seconds} s")]
    Timeout {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        seconds: u64,
    },
    /// The daemon said no.
    #[error("{path}: {message}")]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Its words.
        message: String,
    },
    /// The message does not parse.
    #[error(
        "{path}: cannot understand the answer ({error}); are daemon and command of one version?"
    )]
    Garbled {
        /// The socket.
        path: PathBuf,
        /// The parser's complaint.
        error: String,
    },
}
