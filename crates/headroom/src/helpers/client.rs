//! Requests to the daemons. A refusal becomes an error.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use control::{Client, ControlError, Uid, binderd, oomd};
use rustix::io::Errno;

use super::{programs, user};

fn call<Q: serde::Serialize, R: serde::de::DeserializeOwned>(
    name: &str,
    socket: &Path,
    request: &Q,
) -> anyhow::Result<R> {
    let mut client = connect(name, socket)?;
    client.call(request).with_context(|| format!("no reply from {name}"))
}

/// Connects to a daemon.
pub fn connect(name: &str, socket: &Path) -> anyhow::Result<Client> {
    Client::connect(socket).map_err(|error| connect_error(name, error))
}

/// The error of a failed connection; if the daemon does not run, with the command that starts it.
pub fn connect_error(name: &str, error: ControlError) -> anyhow::Error {
    match error {
        ControlError::NotListening { path, errno: Errno::NOENT } => {
            anyhow!(not_running(name, &path))
        }
        ControlError::NotListening { path, .. } => {
            let path = path.display();
            anyhow!("{name} is not running (nothing listens on {path}). {}", start(name))
        }
        error => anyhow::Error::new(error).context(format!("cannot connect to {name}")),
    }
}

/// The error of a daemon without a socket.
pub fn not_running(name: &str, socket: &Path) -> String {
    format!("{name} is not running (no socket at {}). {}", socket.display(), start(name))
}

fn start(name: &str) -> String {
    format!("Start it: {}", programs::Remedy::Start.of(name))
}

/// Replaces each uid of a message by the name of the user. The daemon does not look names up, as
/// that may query a remote database.
pub fn with_user_names(message: &str) -> String {
    let mut parts = message.split("uid ");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (digits, rest) = part.split_at(end);
        match digits.parse().ok().map(|uid| user::name(Uid(uid))) {
            Some(name) if name != digits => shown += &format!("user {name}{rest}"),
            _ => shown += &format!("uid {part}"),
        }
    }
    shown
}

/// Sends a request to `headroom-oomd`.
pub fn call_oomd(socket: &Path, request: &oomd::Request) -> anyhow::Result<oomd::Reply> {
    match call("headroom-oomd", socket, request)? {
        oomd::Reply::Error { message } => bail!("headroom-oomd: {}", with_user_names(&message)),
        reply => Ok(reply),
    }
}

/// Sends a request on an existing connection.
pub fn call_on(client: &mut Client, request: &oomd::Request) -> anyhow::Result<oomd::Reply> {
    match client.call(request).context("no reply from headroom-oomd")? {
        oomd::Reply::Error { message } => bail!("headroom-oomd: {}", with_user_names(&message)),
        reply => Ok(reply),
    }
}

/// Sends a request to `headroom-binderd`.
pub fn call_binderd(socket: &Path, request: &binderd::Request) -> anyhow::Result<binderd::Reply> {
    match call("headroom-binderd", socket, request)? {
        binderd::Reply::Error { message } => bail!("headroom-binderd: {message}"),
        reply => Ok(reply),
    }
}

/// The error for a reply that does not match the request.
pub fn unexpected(reply: &impl std::fmt::Debug) -> anyhow::Error {
    anyhow::anyhow!(
        "unexpected reply ({reply:?}): the daemon has another version than this command; restart \
         the daemon"
    )
}

/// `headroom-oomd`'s status.
pub fn oomd_status(socket: &Path) -> anyhow::Result<oomd::Status> {
    match call_oomd(socket, &oomd::Request::Status)? {
        oomd::Reply::Status(status) => Ok(status),
        reply => Err(unexpected(&reply)),
    }
}

/// `headroom-binderd`'s status.
pub fn binderd_status(socket: &Path) -> anyhow::Result<binderd::Status> {
    match call_binderd(socket, &binderd::Request::Status)? {
        binderd::Reply::Status(status) => Ok(status),
        reply => Err(unexpected(&reply)),
    }
}

/// The latest decisions of `headroom-oomd`, newest first.
pub fn records(socket: &Path, last: u32) -> anyhow::Result<Vec<oomd::Why>> {
    match call_oomd(socket, &oomd::Request::Why { last })? {
        oomd::Reply::Why { records } => Ok(records),
        reply => Err(unexpected(&reply)),
    }
}
