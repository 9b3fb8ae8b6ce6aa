//! Asking the daemons: one question, one answer; a refusal becomes an error.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use control::{Client, binderd, oomd};

/// Bytes of a page of a receive buffer, in which `headroom-binderd` counts.
pub const BUFFER_PAGE: u64 = 4096;

fn ask<Q: serde::Serialize, R: serde::de::DeserializeOwned>(
    name: &str,
    socket: &Path,
    request: &Q,
) -> anyhow::Result<R> {
    Client::connect(socket)
        .and_then(|mut client| client.call(request))
        .with_context(|| format!("cannot ask {name}"))
}

/// Asks `headroom-oomd`.
pub fn ask_oomd(socket: &Path, request: &oomd::Request) -> anyhow::Result<oomd::Reply> {
    match ask("headroom-oomd", socket, request)? {
        oomd::Reply::Error { message } => bail!("headroom-oomd: {message}"),
        reply => Ok(reply),
    }
}

/// Asks `headroom-oomd` over a connection that is there.
pub fn ask_on(client: &mut Client, request: &oomd::Request) -> anyhow::Result<oomd::Reply> {
    match client.call(request).context("cannot ask headroom-oomd")? {
        oomd::Reply::Error { message } => bail!("headroom-oomd: {message}"),
        reply => Ok(reply),
    }
}

/// Asks `headroom-binderd`.
pub fn ask_binderd(socket: &Path, request: &binderd::Request) -> anyhow::Result<binderd::Reply> {
    match ask("headroom-binderd", socket, request)? {
        binderd::Reply::Error { message } => bail!("headroom-binderd: {message}"),
        reply => Ok(reply),
    }
}

/// The complaint about an answer to another question.
pub fn unexpected(reply: &impl std::fmt::Debug) -> anyhow::Error {
    anyhow::anyhow!(
        "the daemon gave the answer to another question ({reply:?}); are daemon and command of one \
         version?"
    )
}

/// `headroom-oomd`'s status.
pub fn oomd_status(socket: &Path) -> anyhow::Result<oomd::Status> {
    match ask_oomd(socket, &oomd::Request::Status)? {
        oomd::Reply::Status(status) => Ok(status),
        reply => Err(unexpected(&reply)),
    }
}

/// `headroom-binderd`'s status.
pub fn binderd_status(socket: &Path) -> anyhow::Result<binderd::Status> {
    match ask_binderd(socket, &binderd::Request::Status)? {
        binderd::Reply::Status(status) => Ok(status),
        reply => Err(unexpected(&reply)),
    }
}

/// The latest decisions of `headroom-oomd`, newest first.
pub fn records(socket: &Path, last: u32) -> anyhow::Result<Vec<oomd::Why>> {
    match ask_oomd(socket, &oomd::Request::Why { last })? {
        oomd::Reply::Why { records } => Ok(records),
        reply => Err(unexpected(&reply)),
    }
}

/// The daemons are installed beside `headroom`; nothing else is ever run as root.
pub fn beside_us(name: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find our own executable")?;
    let path = us.parent().unwrap_or(Path::new("/")).join(name);
    ensure!(path.is_file(), "{} is missing: it belongs beside {}", path.display(), us.display());
    Ok(path)
}
