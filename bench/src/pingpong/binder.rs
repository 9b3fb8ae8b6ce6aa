//! A call to the context manager of a binder device, with any driver.

use std::process::Stdio;

use anyhow::{Context, Result};
use binder_client::{Client, Echo, Options, Payload, Session};

use crate::devices::Device;
use crate::measure::Subject;
use crate::peer::{Peer, report_ready};

/// Calls from one thread to one thread.
pub struct Binder {
    name: String,
    session: Session<'static>,
    peer: Peer,
    daemon: Option<u32>,
}

impl Binder {
    /// Starts a context manager that echoes, and a client of it. Both exist until the process
    /// exits.
    pub fn start(device: &Device) -> Result<Self> {
        let name = device.name.clone();
        let peer = Peer::start(&["binder", device.path_text()?], Stdio::null(), Stdio::null())?;
        // A benchmark opens a handful of devices once: they may stay open until it exits.
        let client = Box::leak(Box::new(Client::open(&device.path, &Options::default())?));
        Ok(Self { name, session: Session::new(client), peer, daemon: device.daemon })
    }
}

impl Subject for Binder {
    fn name(&self) -> &str {
        &self.name
    }

    fn helpers(&self) -> Vec<u32> {
        std::iter::once(self.peer.pid()).chain(self.daemon).collect()
    }

    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
        // The buffer of the last reply is freed with this call, as libraries do.
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
    report_ready();
    Ok(session.serve(&mut Echo)?)
}
