//! Round trips: a message is sent to another process, which sends it back.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use binder_client::{Client, Echo, Options, Payload, Session};

use crate::affinity::{self, Bound};
use crate::devices::Device;
use crate::measure::Subject;
use crate::peer::{Peer, report_ready};
use crate::{server, sockets};

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// Main function of the other process. Returns when its parent exits, or with an error.
pub fn serve(words: &[&str]) -> Result<()> {
    match words {
        ["seqpacket"] => {
            report_ready();
            sockets::echo(std::io::stdin(), MAX_MESSAGE, |_| Ok(()))
        }
        ["binder", device] => server::serve_alone(device, &mut Echo),
        _ => bail!("no such peer: {words:?}"),
    }
}

/// A Unix `SOCK_SEQPACKET` socket pair with both processes on one core: the baseline.
pub struct SeqPacket {
    socket: OwnedFd,
    peer: Peer,
    core: usize,
}

impl SeqPacket {
    /// Name in comparisons.
    pub const NAME: &'static str = "seqpacket";

    /// Starts the other process on this core, on which this one is during a block.
    pub fn start(core: usize) -> Result<Self> {
        let _bound = affinity::bind(core)?;
        let (ours, theirs) = sockets::pair(MAX_MESSAGE)?;
        let peer = Peer::start(&["seqpacket"], theirs.into(), Stdio::null())?;
        Ok(Self { socket: ours, peer, core })
    }
}

impl Subject for SeqPacket {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn begin_block(&self) -> Result<Option<Bound>> {
        affinity::bind(self.core).map(Some)
    }

    fn helpers(&self) -> Vec<u32> {
        vec![self.peer.pid()]
    }

    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
        sockets::call(&self.socket, message, reply)
    }
}

/// Calls from one thread to one thread, the context manager of a device with any driver.
struct Binder {
    name: String,
    session: Session<'static>,
    peer: Peer,
    daemon: Option<u32>,
}

impl Binder {
    /// Starts a context manager that echoes, and a client of it. Both exist until the process
    /// exits.
    pub fn start(device: &Device) -> Result<Self> {
        let peer = Peer::start(&["binder", device.path_text()?], Stdio::null(), Stdio::null())?;
        // A benchmark opens a handful of devices once: they may stay open until it exits.
        let client = Box::leak(Box::new(Client::open(&device.path, &Options::default())?));
        let (name, session) = (device.name.clone(), Session::new(client));
        Ok(Self { name, session, peer, daemon: device.daemon() })
    }
}

/// The baseline on this core, and each device.
pub fn subjects(core: usize, devices: &[Device]) -> Result<Vec<Box<dyn Subject>>> {
    let mut subjects: Vec<Box<dyn Subject>> =
        vec![Box::new(SeqPacket::start(core).context(SeqPacket::NAME)?)];
    for device in devices {
        subjects.push(Box::new(Binder::start(device).context(device.name.clone())?));
    }
    Ok(subjects)
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
