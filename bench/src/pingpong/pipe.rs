//! Two pipes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::MAX_MESSAGE;
use crate::measure::Subject;
use crate::peer::{Peer, report_ready};

/// A pipe in each direction.
pub struct Pipe {
    to: File,
    from: File,
    _peer: Peer,
}

impl Pipe {
    /// Starts the other process.
    pub fn start() -> Result<Self> {
        let pipe = || -> Result<(OwnedFd, OwnedFd)> {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            // So that a message fits and needs one write.
            fcntl_setpipe_size(&write, MAX_MESSAGE).context("pipe size")?;
            Ok((read, write))
        };
        let (their_in, our_out) = pipe()?;
        let (our_in, their_out) = pipe()?;
        let peer = Peer::start(&["pipe"], their_in.into(), their_out.into())?;
        Ok(Self { to: our_out.into(), from: our_in.into(), _peer: peer })
    }
}

impl Subject for Pipe {
    fn name(&self) -> &str {
        "pipe"
    }

    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
        self.to.write_all(message)?;
        self.from.read_exact(reply)?;
        Ok(())
    }
}

pub(super) fn serve() -> Result<()> {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let mut room = vec![0; MAX_MESSAGE];
    report_ready();
    loop {
        // The pipe has no message boundaries, but the next message follows only after the reply.
        let len = rustix::io::read(&stdin, &mut room[..])?;
        if len == 0 {
            return Ok(());
        }
        let mut rest = &room[..len];
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&stdout, rest)?..];
        }
    }
}
