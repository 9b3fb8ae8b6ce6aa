//! A call to the context manager of a binder device, whoever serves the device.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};
use binder_client::{Client, Echo, Options, Payload, Session};

use crate::measure::Subject;
use crate::peer::{Peer, say_ready};

/// Calls of one thread to one thread.
pub struct Binder {
    name: String,
    session: Session<'static>,
    _peer: Peer,
}

impl Binder {
    /// Starts a context manager that echoes, and a client of it. Both live as long as the process.
    pub fn start(name: &str, device: &Path) -> Result<Self> {
        let path = device.to_str().context("the device's path is not UTF-8")?;
        let peer = Peer::start(&["binder", path], Stdio::null(), Stdio::null())?;
        // A benchmark opens a handful of devices once: they may stay until its end.
        let client = Box::leak(Box::new(Client::open(device, &Options::default())?));
        Ok(Self { name: name.to_owned(), session: Session::new(client), _peer: peer })
    }
}

impl Subject for Binder {
    fn name(&self) -> &str {
        &self.name
    }

    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
        // The buffer of the last reply goes back with this call, as libraries do.
        let received = self.session.call(0, 1, Payload::bytes(message))?;
        reply.copy_from_slice(received.data()?);
        self.session.free(received);
        Ok(())
    }
}

pub(super) fn serve(device: &str) -> Result<()> {
    let client = Client::open(device, &Options::default())?;
    let manager = client.become_context_manager();
    manager.context("the device has a context manager already; give a device of its own")?;
    let mut session = Session::new(&client);
    session.enter_looper()?;
    say_ready();
    Ok(session.serve(&mut Echo)?)
}
